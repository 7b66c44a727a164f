"""The guide on using a model: its commands and its Python are run as they stand, on models of the tests."""

import csv
import json
from pathlib import Path

import pytest
from tests.docs.test_guides import commands, namespace, run
from tests.finetuning.made_lessons import lesson


@pytest.fixture
def own_models(quick_runs: dict[str, Path], tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    for name, kind in (
        ("mails", "classification"),
        ("questions", "question_answering"),
        ("choices", "multiple_choice"),
        ("entities", "tagging"),
    ):
        (tmp_path / "runs" / name).symlink_to(quick_runs[kind])
    lesson("classification", tmp_path, 30, seed=1).rename(tmp_path / "new-mails.csv")
    lesson("tagging", tmp_path, 5, seed=1).rename(tmp_path / "sentences.conll")
    (tmp_path / "lines.txt").write_text("It was a good day.\nPlease send me the invoice again.\n")
    return tmp_path


def test_the_commands_and_the_python_of_the_guide_predict(own_models: Path) -> None:
    blocks = commands("use-your-model.md")
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "python", "sh", "python", "python"]
    said = []
    for kind, block in blocks:
        done = run(kind, block, own_models)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout)
    assert [json.loads(line)["prediction"] for line in said[0].splitlines()] == ["cold", "warm"]
    assert len((own_models / "predicted.jsonl").read_text().splitlines()) == 30
    with (own_models / "predicted.csv").open(newline="") as after, (own_models / "new-mails.csv").open() as before:
        rows = list(csv.DictReader(after))
        assert [row["text"] for row in rows] == [row["text"] for row in csv.DictReader(before)]
    assert namespace(own_models)["labels"] == ["warm", "cold"]
    shown = [json.loads(line) for line in said[4].splitlines()]
    assert isinstance(shown[2]["prediction"], list)
    given = (own_models / "sentences.conll").read_text().splitlines()
    tagged = (own_models / "tagged.conll").read_text().splitlines()
    assert [line.split()[:-1] for line in tagged] == [line.split() for line in given]
    assert shown[3]["prediction"] == "door"
    assert shown[4]["prediction"] in ("in order", "swapped")
    assert "it predicts classes, by predict(…)" in said[6]
