"""A speedrun: from raw text to a target accuracy, every second counted.

    python bench/speedrun.py mlm-40 --text wikipedia.txt books.txt --heldout-text heldout.txt \\
        --out results/speedrun/NAME --change "what is new" -- --minutes 2
    python bench/speedrun.py sst2-85 --text … --heldout-text … --glue GLUE --out results/speedrun/NAME -- --minutes 5
    python bench/speedrun.py table

Tracks: mlm-40 and sop-70 are held-out MLM and SOP accuracy in percent; sst2-85 and sst2-88 are the median SST-2 dev
accuracy of three seeds. What follows `--` goes to `openalbert pretrain albert-base-budget`; --recipe names another one.
Anything may be changed but the text, the evaluation and the fine-tuning recipe.

The clock runs from the raw text to the finished model: prepare, start of the process, compilation, training and, in the
SST-2 tracks, the longest of the three fine-tuning runs. Held-out text is prepared and evaluated off the clock, by
bench/heldout.py: 4,096 examples of length 128 in Google's chunks under 15 % masks. A run that misses its target is
written down too, but is no record.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "speedrun"
TOKENIZER = ROOT / "src" / "openalbert" / "pretrained" / "albert-base-wikibooks"
TRACKS = {
    "mlm-40": ("mlm_acc", 40.0),
    "sop-70": ("sop_acc", 70.0),
    "sst2-85": ("sst2", 85.0),
    "sst2-88": ("sst2", 88.0),
}
EVALUATION = "128:google:4096:0"
SEEDS = 3
# As in results/tasks-h200. Baselines would be measured before, and count.
FINETUNING = "--epochs 2 --optimizer.learning-rate 1e-4 --dropout 0 --no-baselines".split()


def timed(words: list[str], log: Path) -> float:
    """Run `openalbert` with these words; its output goes to the log, and its wall time is returned."""
    started = time.perf_counter()
    with log.open("a") as file:
        file.write(f"$ openalbert {' '.join(words)}\n")
        file.flush()
        subprocess.run([sys.executable, "-m", "openalbert", *words], check=True, stdout=file, stderr=subprocess.STDOUT)
    return time.perf_counter() - started


def evaluate_heldout(run: Path, shards: Path, out: Path) -> dict[str, float]:
    """Held-out MLM and SOP accuracy of a run's model, in percent."""
    script = ROOT / "bench" / "heldout.py"
    words = [str(run), str(shards), "--on", EVALUATION, "--out", str(out)]
    subprocess.run([sys.executable, str(script), *words], check=True)
    [found] = json.loads(out.read_text())["evaluations"]
    return {name: 100 * found[name] for name in ("mlm_acc", "sop_acc")}


def finetune_sst2(run: Path, glue: Path, work: Path, log: Path) -> tuple[float, float]:
    """Median dev accuracy of three seeds, and the seconds of the longest run."""
    scores, seconds = [], []
    for seed in range(1, SEEDS + 1):
        out = work / f"sst2-{seed}"
        words = ["finetune", str(run), "--task", "sst2", "--data", str(glue), "--out", str(out), "--seed", str(seed)]
        words += FINETUNING
        seconds.append(timed(words, log))
        [metrics] = json.loads((out / "scores.json").read_text())["scores"].values()
        scores.append(metrics["accuracy"])
    return statistics.median(scores), max(seconds)


def speedrun(given: argparse.Namespace) -> dict[str, Any]:
    """Carry out one run and write it down."""
    given.out.mkdir(parents=True, exist_ok=True)
    work = (given.work or given.out) / "speedrun"  # a folder of its own: the one given may hold more than this run
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log = given.out / "output.txt"
    log.write_text("")
    heldout = work / "heldout"
    tokenizer = ["--tokenizer", str(given.tokenizer)]
    timed(["prepare", *map(str, given.heldout_text), *tokenizer, "--out", str(heldout)], log)

    run = work / "run"
    seconds = {"prepare": timed(["prepare", *map(str, given.text), *tokenizer, "--out", str(work / "shards")], log)}
    words = ["pretrain", given.recipe, "--data", str(work / "shards"), "--out", str(run), *given.settings]
    seconds["pretrain"] = timed(words, log)
    for file in ("run.json", "run_info.json", "metrics.jsonl"):
        shutil.copy(run / file, given.out / file)
    metrics = evaluate_heldout(run, heldout, given.out / "evaluations.json")
    name, target = TRACKS[given.track]
    if name == "sst2":
        metrics["sst2"], seconds["finetune"] = finetune_sst2(run, given.glue, work, log)
    record = {
        "track": given.track,
        "date": time.strftime("%Y-%m-%d"),
        "change": given.change,
        "seconds": sum(seconds.values()),
        "stages": seconds,
        "metrics": metrics,
        "target": target,
        "is_record": metrics[name] >= target,
        "device": json.loads((run / "run_info.json").read_text())["device"],
        "settings": [given.recipe, *given.settings],
    }
    (given.out / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    if given.work is None:
        shutil.rmtree(work)
    return record


def table(folder: Path) -> str:
    """The records of all tracks, the fastest first; runs that missed their target last."""
    records = [(path.parent.name, json.loads(path.read_text())) for path in sorted(folder.glob("*/record.json"))]
    if not records:
        return "No run has been made yet: every track is open."
    lines = ["| track | seconds | date | change | device | metric, % | target met | log |", "|---" * 8 + "|"]
    for track, (name, _) in TRACKS.items():
        own = [(where, record) for where, record in records if record["track"] == track]
        for where, record in sorted(own, key=lambda pair: (not pair[1]["is_record"], pair[1]["seconds"])):
            lines.append(
                f"| {track} | {record['seconds']:.0f} | {record['date']} | {record['change']} | {record['device']} | "
                f"{record['metrics'][name]:.1f} | {'yes' if record['is_record'] else 'no'} | [{where}]({where}) |"
            )
    return "\n".join(lines)


def report(folder: Path) -> str:
    """The page of all speedruns."""
    return f"""# Speedruns: from raw text to a target accuracy

## Result

{table(folder)}

| track | target |
|---|---|
| mlm-40 | 40 % MLM accuracy on held-out text |
| sop-70 | 70 % SOP accuracy on held-out text |
| sst2-85 | 85 % on SST-2's dev set |
| sst2-88 | 88 % on SST-2's dev set |

Anybody may add a run: the fastest that meets its target holds the record. To compete:

1. Choose settings (what follows `--`), or change the code. Text, evaluation and fine-tuning recipe stay as they are.
2. `python bench/speedrun.py mlm-40 --text wikipedia.txt books.txt --heldout-text heldout.txt --change "what is new"
   --out results/speedrun/NAME -- --minutes 2`; for SST-2 `sst2-85` and `--glue GLUE`.
3. `python bench/speedrun.py table` writes this page again. Commit NAME with its log, and the change.

## Setup

The clock covers everything from the raw text to the finished model: preparing the shards, starting and compiling,
training, and in the SST-2 tracks one fine-tuning run. The evaluation is the same for all: 4,096 held-out examples of
length 128 in Google's chunks under 15 % masks, or the median SST-2 dev accuracy of three seeds. Text: one piece of
English Wikipedia and one of Project Gutenberg, 95 MB each, as in [muon-h200](../muon-h200/report.md); a run on other
text states it in its change and is compared with runs on the same text only.

## Limits

- Times depend on the machine: compare runs on the same device.
- The tokenizer is that of the bundled checkpoint, trained beforehand.
- One run each; repeat a run before you trust a difference of a few percent.
"""


def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("track", choices=[*TRACKS, "table"])
    parser.add_argument("--text", type=Path, nargs="+")
    parser.add_argument("--heldout-text", type=Path, nargs="+")
    parser.add_argument("--glue", type=Path, help="GLUE's folder, for the SST-2 tracks")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--recipe", default="albert-base-budget")
    parser.add_argument("--change", default="", help="what is new, for the table")
    parser.add_argument("--out", type=Path, help="where record, log and metrics go; for `table` the folder of records")
    parser.add_argument("--work", type=Path, help="keep shards and runs here, in a folder `speedrun`")
    given = parser.parse_args(words[:split])
    given.settings = words[split + 1 :]
    if given.track == "table":
        folder = given.out or RECORDS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.md").write_text(report(folder))
        return
    if not (given.text and given.heldout_text and given.out):
        parser.error("give --text, --heldout-text and --out")
    if TRACKS[given.track][0] == "sst2" and given.glue is None:
        parser.error("give --glue, the folder of GLUE, for an SST-2 track")
    record = speedrun(given)
    name, target = TRACKS[given.track]
    print(f"{given.track}: {record['metrics'][name]:.1f} % (target {target:g}) in {record['seconds']:.0f} s")


if __name__ == "__main__":
    main()
