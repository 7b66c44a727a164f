"""Is a class learned that one example in a thousand has? Fine-tuning on a made file, scored by macro-F1.

    python bench/rare_class.py albert-base-wikibooks --out results/rare-class

30,000 payment notes of common words; one in a thousand also has the word "wire" and is labelled fraud. A batch with a
fraud in it has a loss far above those before it: whatever skips such steps as spikes skips the class.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
from pathlib import Path

WORDS = (
    "payment invoice monthly thanks dinner rent april order ticket book school garden train market water phone music "
    "family summer repair gift coffee lunch hotel taxi insurance membership shoes paper light kitchen"
).split()
TRAIN_ROWS, DEV_ROWS = 30_000, 3_000
TRAIN_EVERY, DEV_EVERY = 1_000, 100  # dev has more of the class, so that its F1 is of 30 examples


def write_notes(path: Path, rows: int, every: int, seed: int) -> Path:
    """A CSV of notes with their labels."""
    dice = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("note", "label"))
        for row in range(rows):
            words = dice.choices(WORDS, k=dice.randint(5, 12))
            is_fraud = row % every == every // 2
            if is_fraud:
                words[dice.randrange(len(words))] = "wire"
            writer.writerow((" ".join(words), "fraud" if is_fraud else "fine"))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--runs", type=Path, default=Path("runs/rare-class"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--more", default="", help="further words for `openalbert finetune`, in one string")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    train = write_notes(arguments.runs / "train.csv", TRAIN_ROWS, TRAIN_EVERY, seed=0)
    dev = write_notes(arguments.runs / "dev.csv", DEV_ROWS, DEV_EVERY, seed=1)
    run = arguments.runs / "run"
    words = f"--task classification --epochs 1 --batch-size 16 --optimizer.learning-rate 5e-5 {arguments.more}".split()
    words = ["finetune", arguments.model, "--train", str(train), "--dev", str(dev), "--out", str(run), *words]
    subprocess.run([sys.executable, "-m", "openalbert", *words], check=True)
    scores = json.loads((run / "scores.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    run_info = json.loads((run / "run_info.json").read_text())
    found = {
        "model": arguments.model,
        "device": run_info["device"],
        "torch": run_info["torch"],
        "steps": scores["steps"],
        "skipped_steps": [record["skipped"] for record in records if record["kind"] == "train"][-1],
        "scores": scores["scores"]["dev"],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "run.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
