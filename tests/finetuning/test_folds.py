"""Cross-validation: a run for each fold, predictions for every row, and a last model from all of them."""

import csv
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from tests.finetuning.made_lessons import KINDS, command, lesson, weights
from tests.report.parsed_page import Page

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning import run as run_module
from openalbert.finetuning.evaluation import intervals
from openalbert.finetuning.folds import bounds, corrected_interval
from openalbert.finetuning.settings import Finetune
from openalbert.interop.task_json import read_task_info
from openalbert.tasks.data.source import TaskSource

QUICK = "--steps 20 --evaluate-every 10 --folds 3"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run has intervals, whose bootstrap is tested elsewhere."""
    monkeypatch.setattr(intervals, "RESAMPLES", 20)


def validate(tiny: Path, kind: str, file: Path, out: Path, words: str = "", baselines: bool = False) -> dict[str, Any]:
    line = command(tiny, kind, file, out, f"{QUICK} {words}")
    cli.main([word for word in line if not (baselines and word == "--no-baselines")])
    scores: dict[str, Any] = json.loads((out / "scores.json").read_text())
    return scores


def out_of_fold(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "out_of_fold.jsonl").read_text().splitlines()]


def test_every_row_is_predicted_by_the_model_that_did_not_learn_from_it(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path, 120), tmp_path / "run"
    rows = file.read_text().splitlines()
    rows[4:4] = ["a text without a label,", ",warm"]  # left out, and still counted
    file.write_text("\n".join([*rows, "another without,"]) + "\n")
    scores = validate(tiny, "classification", file, out, baselines=True)
    said = capsys.readouterr()
    lines = out_of_fold(out)
    with file.open(newline="") as opened:
        given = list(csv.DictReader(opened))
    assert [line["row"] for line in lines] == list(range(1, len(given) + 1))
    assert [line.get("label") or "" for line in lines] == [row["label"] if row["text"] else "" for row in given]
    assert [number for number, line in enumerate(lines) if line["prediction"] is None] == [3, 4, len(lines) - 1]
    with (out / "out_of_fold.csv").open(newline="") as opened:
        table = list(csv.DictReader(opened))
    assert [row["prediction"] or None for row in table] == [line["prediction"] for line in lines]
    predicted = [line for line in lines if line["prediction"] is not None]
    assert float(table[0]["probability"]) == max(lines[0]["probabilities"].values())
    for fold in (1, 2, 3):
        # The model of a fold predicts the same, asked again through the shell.
        single = str(out / f"fold-{fold}")
        cli.main(
            ["evaluate", single, "--train", str(file), "--fold", str(fold), "3", "--predictions", str(tmp_path / "p")]
        )
        found = [json.loads(line) for line in (tmp_path / "p" / "classification.dev.jsonl").read_text().splitlines()]
        mine = [line for line in predicted if line["fold"] == fold]
        assert [one["id"] for one in found] == [one["id"] for one in mine]
        for one, other in zip(found, mine, strict=True):
            assert one["probabilities"]["warm"] == pytest.approx(other["probabilities"]["warm"], abs=1e-5)
        accuracy = json.loads((out / f"fold-{fold}" / "scores.json").read_text())["scores"]["dev"]["accuracy"]
        own = sklearn.metrics.accuracy_score([one["label"] for one in mine], [one["prediction"] for one in mine])
        assert accuracy == pytest.approx(100 * own)
    folds = json.loads((out / "folds.json").read_text())
    each = [one["scores"]["dev"]["accuracy"] for one in folds["runs"]]
    assert scores["scores"]["cross-validation"]["accuracy"] == pytest.approx(statistics.fmean(each))
    assert folds["metrics"]["dev"]["accuracy"]["spread"] == pytest.approx(statistics.stdev(each))
    low, high = scores["intervals"]["cross-validation"]["accuracy"]
    assert low <= statistics.fmean(each) <= high
    assert "Cross-validation over 3 folds of 120 examples: accuracy" in said.out
    assert "TF-IDF + logistic regression" in said.out
    # The page, the card and task.json speak of the folds.
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert page.data["runs"] == ["fold-1", "fold-2", "fold-3"]
    for words in (
        "95 % interval",
        "Compared with baselines",
        "Error analysis: out_of_fold",
        "learned from all of them",
    ):
        assert words in page.text
    card = (out / "model" / "README.md").read_text(encoding="utf-8")
    assert "This model was trained on all 120 examples. Cross-validation over 3 folds" in card
    task_info = read_task_info(out / "model")
    assert task_info is not None
    assert (task_info.split, task_info.scores) == ("cross-validation", scores["scores"]["cross-validation"])
    assert openalbert.open_run(out).scores == scores["scores"]


@pytest.mark.parametrize("kind", [*KINDS[1:], "question_answering, some without an answer"])
def test_every_other_kind_of_task_is_cross_validated_too(kind: str, tiny: Path, tmp_path: Path) -> None:
    name = kind.split(",")[0]
    file, out = lesson(name, tmp_path, 80, may_have_no_answer="," in kind), tmp_path / "run"
    scores = validate(
        tiny, name, file, out, "--folds 2 --steps 10 --long-texts mean" if "_label" in kind else "--folds 2"
    )
    lines = out_of_fold(out)
    assert len(lines) == 80
    assert {line["fold"] for line in lines} == {1, 2}
    folds = [json.loads((out / f"fold-{number}" / "scores.json").read_text()) for number in (1, 2)]
    metric = scores["main_metric"]
    mean = statistics.fmean(one["scores"]["dev"][metric] for one in folds)
    assert scores["scores"]["cross-validation"][metric] == pytest.approx(mean)
    if name == "regression":
        gold, given = (np.array([line[key] for line in lines]) for key in ("label", "prediction"))
        first = np.array([line["fold"] == 1 for line in lines])
        r2 = sklearn.metrics.r2_score(gold[first], given[first])
        assert folds[0]["scores"]["dev"]["r2"] == pytest.approx(100 * r2, abs=0.01)
    if "," in kind:  # each fold is decided with its own threshold
        of_fold = [line for line in lines if line["fold"] == 1]
        exact = [line["prediction"] == line["label"] for line in of_fold]
        assert folds[0]["scores"]["dev"]["exact_match"] == pytest.approx(100 * statistics.fmean(exact))
    assert (out / "model" / "config.json").exists()


def test_the_last_model_learns_from_all_examples_for_as_long_as_the_folds_did(tiny: Path, tmp_path: Path) -> None:
    file, out = lesson("classification", tmp_path, 120), tmp_path / "run"
    validate(tiny, "classification", file, out, "--steps 40 --evaluate-every 5 --schedule.kind constant")
    steps = [json.loads((out / f"fold-{number}" / "scores.json").read_text())["step"] for number in (1, 2, 3)]
    final = json.loads((out / "final" / "scores.json").read_text())
    assert final["step"] == final["steps"] == math.ceil(statistics.median(steps))
    assert json.loads((out / "final" / "run_info.json").read_text())["data"]["train_examples"] == 120
    for name, tensor in weights(out).items():
        assert torch.equal(tensor, weights(out / "final")[name])


def test_cross_validation_that_was_stopped_is_resumed_where_it_was(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, whole, out = lesson("classification", tmp_path, 90), tmp_path / "whole", tmp_path / "out"
    words = "--folds 2 --steps 10"
    validate(tiny, "classification", file, whole, words)
    train = run_module.FinetuningRun.train

    def fails_in_the_second(self: run_module.FinetuningRun, stop: Any) -> Any:
        if self.folder.name == "fold-2":
            raise UserError("made to fail")
        return train(self, stop)

    with monkeypatch.context() as patched:
        patched.setattr(run_module.FinetuningRun, "train", fails_in_the_second)
        with pytest.raises(SystemExit):
            validate(tiny, "classification", file, out, words)
    first = (out / "fold-1" / "metrics.jsonl").read_bytes()
    assert not (out / "folds.json").exists()
    validate(tiny, "classification", file, out, words)
    assert "fold-1: this run is done" in capsys.readouterr().err
    assert (out / "fold-1" / "metrics.jsonl").read_bytes() == first
    assert (out / "out_of_fold.csv").read_bytes() == (whole / "out_of_fold.csv").read_bytes()
    for name, tensor in weights(out).items():
        assert torch.equal(tensor, weights(whole)[name])
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "classification", file, out, f"{QUICK} {words} --folds 4"))
    assert "folds was 2, now 4" in capsys.readouterr().err


def test_a_dry_run_of_folds_leaves_nothing(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = lesson("classification", tmp_path, 60)
    cli.main(command(tiny, "classification", file, tmp_path / "run", f"{QUICK} --dry-run"))
    assert "this is one of 4 runs: 3 folds, and a last one on all examples\n" in capsys.readouterr().err
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--trainable head --folds 3 --dry-run"))
    assert "a last one on all examples, which share the encoder's pass over the texts\n" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"folds": 1}, "folds is 1: cross-validation needs at least 2"),
        ({"folds": 0}, "folds is 0"),
        ({"folds": 3, "seeds": 2}, "--folds and --seeds are both many runs"),
        ({"folds": 3, "source": TaskSource(dev=Path("dev.csv"))}, "leave --dev out"),
        ({"folds": 3, "source": TaskSource(fold=(1, 3))}, "give one of the two"),
    ],
)
def test_folds_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Finetune(**settings)


@pytest.mark.parametrize("fold", [(3, 2), (-1, 4), (1, 1)])
def test_a_fold_that_does_not_exist_is_refused(fold: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="give its number and how many there are"):
        TaskSource(fold=fold)


@pytest.mark.parametrize(
    ("labels", "folds", "said"),
    [
        ("abab", 5, "4 different texts cannot make 5 folds: give --folds 4 or fewer"),
        ("aaaab", 3, "all examples are of one class, 'a': give fewer folds, or more rows"),
    ],
)
def test_a_file_that_is_too_small_for_the_folds_is_refused_before_anything_is_trained(
    labels: str, folds: int, said: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"this is text number {number} of them,{label}" for number, label in enumerate(labels)]
    (tmp_path / "few.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    with pytest.raises(SystemExit):
        validate(tiny, "classification", tmp_path / "few.csv", tmp_path / "run", f"--folds {folds}")
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("fold-*"))


def test_a_class_with_fewer_examples_than_folds_is_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"this is text number {number} of them,{label}" for number, label in enumerate("aaaaaabbbbbbcc")]
    (tmp_path / "rare.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    validate(tiny, "classification", tmp_path / "rare.csv", tmp_path / "run", "--steps 2 --evaluate-every 2")
    assert "WARNING: fewer examples than the 3 folds, so that some folds have none: c 2" in capsys.readouterr().err
    assert len(out_of_fold(tmp_path / "run")) == 14


def test_the_interval_of_a_mean_over_folds_is_nadeau_and_bengios() -> None:
    values = [80.0, 84.0, 79.0, 88.0, 81.0]
    low, high = corrected_interval(values) or (0.0, 0.0)
    deviation = math.sqrt((1 / 5 + 1 / 4) * float(np.var(values, ddof=1)))
    expected = scipy.stats.t.interval(0.95, 4, loc=np.mean(values), scale=deviation)
    assert (low, high) == pytest.approx(expected)
    naive = scipy.stats.t.interval(0.95, 4, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert low < naive[0] < naive[1] < high
    assert corrected_interval([99.0, 100.0], highest=100.0)[1] == 100.0  # type: ignore[index]
    assert corrected_interval([90.0, 90.0]) is None
    assert corrected_interval([10.0, 90.0], *bounds("accuracy")) == (0.0, 100.0)
    assert corrected_interval([10.0, 90.0], *bounds("matthews")) == (-100.0, 100.0)
