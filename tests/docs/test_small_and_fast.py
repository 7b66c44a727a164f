"""The guide on exports is correct: its commands are run as they stand there, in order."""

import csv
from pathlib import Path

import pytest
from tests.docs.test_guides import commands, run
from tests.finetuning.made_lessons import learn, lesson, made_model

from openalbert.text.tokenizer import Tokenizer


@pytest.fixture
def mails(tmp_path: Path, small: Tokenizer) -> Path:
    made_model(tmp_path / "my-model", small)
    train = lesson("classification", tmp_path / "made", 1200)
    learn(tmp_path / "my-model", "classification", train, tmp_path / "runs" / "mails", "--steps 60")
    lesson("classification", tmp_path / "other", 60, seed=9).rename(tmp_path / "more-mails.csv")
    train.rename(tmp_path / "mails.csv")
    (tmp_path / "new-mails.csv").write_text("text\ngood people of the time\nthe water was over the school\n")
    return tmp_path


def test_the_commands_of_the_guide_export_and_predict(mails: Path) -> None:
    blocks = commands("small-and-fast.md")
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "python", "python", "sh", "sh", "sh", "python"]
    said = []
    for kind, block in blocks:
        done = run(kind, block, mails)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    assert "classification dev, accuracy:" in said[0]
    assert "int8, down in fp32" in said[1]
    with (mails / "predicted.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ["good people of the time", "the water was over the school"]
    assert {row["prediction"] for row in rows} <= {"warm", "cold"}
    assert said[3].strip() in said[2]
    assert said[4].strip() == "(2, 2)"
    assert "early exit at" in said[5]
    assert all("of 2 layers were computed on average" in one for one in said[5:8])
    assert (mails / "early-int8.csv").read_text().count("\n") == 3
