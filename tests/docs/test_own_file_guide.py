"""The guide on fine-tuning tells the truth: its commands are run as they stand there, in order."""

import csv
import json
import re
from pathlib import Path

import pytest
from tests.docs.test_guides import ROOT, commands, run
from tests.finetuning.made_lessons import lesson, made_model
from tests.finetuning.test_long_texts import late_file

from openalbert.text.tokenizer import Tokenizer

GUIDE = "fine-tune-your-own-file.md"


@pytest.fixture
def own_files(tmp_path: Path, small: Tokenizer) -> Path:
    made_model(tmp_path / "my-model", small)
    for kind, name in (
        ("classification", "reviews.csv"),
        ("question_answering", "questions.json"),
    ):
        lesson(kind, tmp_path / "made").rename(tmp_path / name)
    lesson("classification", tmp_path / "made", 60, seed=9).rename(tmp_path / "more-reviews.csv")
    late_file(tmp_path / "letters.csv")
    (tmp_path / "new.csv").write_text("text\ngood people of the time\nthe water was over the school\n")
    return tmp_path


def test_the_commands_of_the_guide_make_the_models_it_speaks_of(own_files: Path) -> None:
    blocks = commands(GUIDE)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "sh", "sh", "python", "sh", "sh", "sh", "sh", "sh"]
    said = []
    for number, (kind, block) in enumerate(blocks):
        done = run(kind, block, own_files)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
        if number == 0:
            assert not (own_files / "runs").exists()  # a dry run
    dry, first, quick, evaluated, _, by_transformers, seeds, folds, letters, *_ = said
    for line in (
        "label from 'label', text from 'text' (guessed",
        "40 of 400 examples are held out to score on",
        "train: 2 classes: cold 230, warm 130",
        "baseline on dev, majority: accuracy 65.00 [49.51, 77.87]",
        "baseline on dev, TF-IDF + logistic regression: accuracy 100.00",
        "225 steps of batch 16",
        "step 2: loss",
        "estimate",
    ):
        assert line in dry
    assert "step 18, dev: accuracy" in first
    assert "--trainable head, 130 parameters (as given)" in quick
    assert "is in runs/reviews/model, the page is runs/reviews/report.html" in first
    assert "accuracy" in evaluated
    assert "to predict: openalbert predict runs/reviews" in first
    with (own_files / "predicted.csv").open(newline="") as file:
        predicted = list(csv.DictReader(file))
    assert [one["prediction"] for one in predicted] == ["warm", "cold"]
    assert all(float(one["probability"]) > 0.9 for one in predicted)
    assert re.findall(r"'label': '(\w+)'", by_transformers) == ["warm", "cold"]
    for word in ("seed 1", "seed 3", "median", "mean", "spread"):
        assert word in seeds
    for word in ("fold 1 ", "fold 5 ", "mean", "majority ", "Cross-validation over 5 folds of 400 examples: accuracy"):
        assert word in folds
    assert "read in 3.0 windows on average" in letters
    runs = own_files / "runs"
    assert len((runs / "folds" / "out_of_fold.csv").read_text().splitlines()) == 401
    assert json.loads((runs / "letters" / "scores.json").read_text())["scores"]["dev"]["accuracy"] > 90
    assert len(json.loads((runs / "three" / "seeds.json").read_text())["runs"]) == 3
    for name in ("reviews", "quick", "three", "folds", "letters", "questions", "more"):
        assert (runs / name / "model" / "config.json").exists()
    # What the guide says of a run's folder is all there is in one.
    section = (ROOT / "docs" / "guides" / GUIDE).read_text().split("## What is in the folder of a run")[1]
    table = re.findall(r"^\| `([a-z_.]+)/?` \|", section, re.MULTILINE)
    left = {path.name for path in (runs / "reviews").iterdir() if not path.name.startswith(".")}
    assert left == set(table)
