"""A class that one batch in many holds is learned: its high loss is no reason to skip the step."""

import csv
import random
from pathlib import Path

from tests.finetuning.made_lessons import PLAIN, learn, records


def write_rare(path: Path, rows: int, every: int, seed: int) -> Path:
    """Texts of which one in `every` is the rare class, by one word alone."""
    dice = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for row in range(rows):
            words = dice.choices(PLAIN[:20], k=5)
            is_rare = row % every == every // 2
            if is_rare:
                words[dice.randrange(5)] = "good"
            writer.writerow((" ".join(words), "fraud" if is_rare else "fine"))
    return path


def test_a_rare_class_marked_by_one_word_is_learned(tiny: Path, tmp_path: Path) -> None:
    train = write_rare(tmp_path / "train.csv", rows=4000, every=150, seed=0)
    dev = write_rare(tmp_path / "dev.csv", rows=400, every=20, seed=1)
    words = f"--dev {dev} --steps 1500 --batch-size 4 --evaluate-every 500 --log-every 50 --keep last --retries 0"
    scores = learn(tiny, "classification", train, tmp_path / "run", words)
    assert records(tmp_path / "run", "train")[-1]["skipped"] == 0
    assert scores["scores"]["dev"]["accuracy"] == 100.0  # the more frequent class alone is 95
