"""Classes of very different size: the right weights are kept, and what is never predicted is said."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import f1_score
from tests.finetuning.made_lessons import PLAIN, command, learn, lesson, records
from tests.report.parsed_page import Page

from openalbert import cli
from openalbert.finetuning import early_stopping
from openalbert.finetuning.evaluation import Evaluation, evaluate_split
from openalbert.finetuning.settings import Finetune
from openalbert.report.error_analysis import read_error_analyses


def imbalanced(folder: Path, num_examples: int = 200, every: int = 20) -> Path:
    """A file in which one text in twenty is of the class Cancellation."""
    dice = random.Random(0)
    lines = ["text,label"]
    for number in range(num_examples):
        is_rare = number % every == 0
        words = [*dice.choices(PLAIN, k=5), "war" if is_rare else "school"]
        lines.append(f"{' '.join(words)},{'Cancellation' if is_rare else 'Other'}")
    path = folder / "imbalanced.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def answering(monkeypatch: pytest.MonkeyPatch, rounds: Sequence[Sequence[int]]) -> None:
    """Have the evaluations of a run come out as these predictions, one after another."""
    left = list(rounds)

    def evaluate(*given: Any, **more: Any) -> Evaluation:
        found, predictions = evaluate_split(*given, **more), list(left.pop(0))
        metrics = found.task.measure(found.data.examples, predictions)
        return replace(found, predictions=predictions, metrics=metrics)

    monkeypatch.setattr(early_stopping, "evaluate_split", evaluate)


def test_on_a_tie_in_accuracy_the_weights_with_the_higher_macro_f1_are_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = imbalanced(tmp_path, 40)
    gold = [0 if number % 20 == 0 else 1 for number in range(40)]
    only_others = [1] * 40
    both = [0, 0, 0, *gold[3:]]
    assert sum(map(int.__eq__, gold, only_others)) == sum(map(int.__eq__, gold, both)) == 38
    answering(monkeypatch, [only_others, both, only_others])
    words = f"--dev {file} --steps 3 --evaluate-every 1 --retries 0"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert scores["step"] == 2
    assert scores["scores"]["dev"]["accuracy"] == 95
    assert scores["scores"]["dev"]["macro_f1"] == pytest.approx(100 * f1_score(gold, both, average="macro"))
    assert [record["accuracy"] for record in records(tmp_path / "run", "evaluation")] == [95] * 3


def test_on_a_tie_in_accuracy_and_macro_f1_the_weights_with_the_lower_loss_are_kept(tiny: Path, tmp_path: Path) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 90 --evaluate-every 15 --patience None"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    evaluations = records(tmp_path / "run", "evaluation")
    best = max(evaluations, key=lambda one: (one["accuracy"], one["macro_f1"], -one["evaluation_loss"]))
    ties = [one for one in evaluations if one["accuracy"] == best["accuracy"]]
    assert len(ties) > 1
    assert ties[0] != best
    assert scores["step"] == best["step"]
    assert scores["losses"]["dev"] == best["evaluation_loss"]


def test_a_class_that_was_never_predicted_is_named_everywhere(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path)
    sentence = "class Cancellation was never predicted (10 of 200 examples)"
    words = f"--dev {file} --steps 20 --optimizer.learning-rate 0.001 --retries 0 --evaluate-every 20"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert f"WARNING: dev: {sentence}" in capsys.readouterr().err
    assert scores["never_predicted"] == {"dev": {"Cancellation": 10}}
    assert sentence in Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert f"**dev: {sentence}.**" in (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    cli.main(["evaluate", str(tmp_path / "run"), "--dev", str(file), "--report", str(page), "--speed.threads", "1"])
    assert f"WARNING: dev: {sentence}" in capsys.readouterr().err
    assert sentence in Page(page.read_text(encoding="utf-8")).text


def test_scores_on_few_examples_have_an_interval_everywhere(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    scores = learn(tiny, "classification", file, tmp_path / "run", "--steps 25")
    accuracy = scores["scores"]["dev"]["accuracy"]
    low, high = scores["intervals"]["dev"]["accuracy"]
    assert low < accuracy <= high
    written = f"accuracy {accuracy:.2f} [{low:.2f}, {high:.2f}]"
    said = capsys.readouterr().out
    assert said.startswith(f"dev: {written}")
    assert said.endswith("(in brackets: 95 % intervals, from 40 examples)\n")
    [analyses] = read_error_analyses(tmp_path / "run")
    assert {name: list(ends) for name, ends in analyses.intervals.items()} == scores["intervals"]["dev"]
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert f"95 % interval: {low:.1f} to {high:.1f}" in page
    assert written in page
    assert f" {accuracy:.2f} [{low:.2f}, {high:.2f}] |" in (tmp_path / "run" / "model" / "README.md").read_text()
    cli.main(["evaluate", str(tmp_path / "run"), "--train", str(file), "--json", "--speed.threads", "1"])
    again = json.loads(capsys.readouterr().out)["splits"]["dev"]
    assert again["intervals"] == scores["intervals"]["dev"]


@pytest.mark.parametrize("metric", ["macro_f1", "f1", "matthews", "loss"])
def test_the_metric_that_is_asked_for_decides_and_is_reported_first(
    metric: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    words = f"--steps 60 --evaluate-every 10 --schedule.kind constant --optimizer.learning-rate 0.01 --metric {metric}"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert capsys.readouterr().out.startswith(f"dev: {metric} ")
    assert scores["main_metric"] == metric
    evaluations = records(tmp_path / "run", "evaluation")
    sign = -1 if metric == "loss" else 1
    assert sign * scores["scores"]["dev"][metric] == max(sign * one[metric] for one in evaluations)
    assert scores["scores"]["dev"][metric] == next(one[metric] for one in evaluations if one["step"] == scores["step"])
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert f"{metric.replace('_', ' ')} on dev {scores['scores']['dev'][metric]:.2f}" in page


def test_early_stopping_is_by_the_metric_that_is_asked_for(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = imbalanced(tmp_path, 40)
    gold = [0 if number % 20 == 0 else 1 for number in range(40)]
    # Accuracy rises to the fifth evaluation; macro-F1 is highest at the second, which alone finds the rare class.
    rounds = [[0] * 40, [0] * 6 + gold[6:], [1] * 38 + [0] * 2, [1] * 39 + [0], [1] * 40, [1] * 39 + [0]]
    ends = {}
    for metric in ("accuracy", "macro_f1"):
        answering(monkeypatch, rounds)
        words = f"--dev {file} --steps 6 --evaluate-every 1 --retries 0 --patience 2 --metric {metric}"
        scores = learn(tiny, "classification", file, tmp_path / metric, words)
        ends[metric] = (scores["step"], scores["steps"])
    assert ends == {"accuracy": (5, 6), "macro_f1": (2, 4)}


def test_a_metric_that_the_task_does_not_have_is_refused_with_those_it_has(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, names in (
        ("classification", "accuracy, macro_f1, f1, matthews, loss"),
        ("regression", "r2, pearson, spearman, loss"),
        ("multi_label", "f1, macro_f1, exact_match, loss"),
        ("multiple_choice", "accuracy, loss"),
        ("question_answering", "exact_match, f1, loss"),
    ):
        file = lesson(kind, tmp_path, 40)
        with pytest.raises(SystemExit):
            cli.main(command(tiny, kind, file, tmp_path / "run", "--metric auc"))
        said = capsys.readouterr().err
        assert f"--metric is 'auc', which {kind} does not have: give one of {names}" in " ".join(said.split())


def test_a_class_that_is_learned_but_not_among_the_held_out_examples_is_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path, 40)  # two of Cancellation, too few for a tenth to be held out
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 4 --dry-run"))
    said = " ".join(capsys.readouterr().err.split())
    assert "WARNING: there is no example of class Cancellation to score on, so no metric counts it" in said
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 4 --dry-run --heldout-fraction 0.5"))
    assert "to score on, so no metric" not in capsys.readouterr().err


def test_an_evaluation_puts_the_metric_first_that_was_optimized(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path, 80)
    for metric, first in (("macro_f1", "macro_f1"), ("loss", "accuracy")):
        learn(tiny, "classification", file, tmp_path / metric, f"--dev {file} --steps 2 --metric {metric}")
        capsys.readouterr()
        cli.main(["evaluate", str(tmp_path / metric), "--dev", str(file), "--json"])
        assert json.loads(capsys.readouterr().out)["main_metric"] == first


@pytest.mark.parametrize("kind", ["regression", "multi_label", "multiple_choice", "question_answering"])
def test_the_lowest_loss_decides_in_every_kind_of_task(kind: str, tiny: Path, tmp_path: Path) -> None:
    words = "--steps 30 --evaluate-every 10 --metric loss --patience None"
    scores = learn(tiny, kind, lesson(kind, tmp_path, 80), tmp_path / "run", words)
    losses = [record["loss"] for record in records(tmp_path / "run", "evaluation")]
    assert scores["scores"]["dev"]["loss"] == min(losses)


def test_balanced_weights_teach_a_rare_class_what_plain_losses_do_not(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path, 400)
    words = f"--dev {file} --steps 40 --evaluate-every 40 --optimizer.learning-rate 0.001 --retries 0"
    found = {}
    for how in ("none", "balanced"):
        found[how] = learn(tiny, "classification", file, tmp_path / how, f"{words} --class-weights {how}")
    assert "class weights: Cancellation 10, Other 0.526" in capsys.readouterr().err
    assert found["none"]["never_predicted"]["dev"] == {"Cancellation": 20}
    assert found["balanced"]["scores"]["dev"]["macro_f1"] > found["none"]["scores"]["dev"]["macro_f1"]
    assert "| class weights | balanced |" in (tmp_path / "balanced" / "model" / "README.md").read_text()


def test_weights_for_a_task_without_classes_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("regression", tmp_path, 40)
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "regression", file, tmp_path / "run", "--class-weights balanced"))
    assert "--class-weights balanced is for classification and multi_label" in capsys.readouterr().err


def test_metric_and_weights_are_what_is_learned_and_cannot_change_on_the_way(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (Finetune().metric, Finetune().class_weights) == (None, "none")
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 2"))
    for words in ("--metric loss", "--class-weights balanced"):
        with pytest.raises(SystemExit):
            cli.main(command(tiny, "classification", file, tmp_path / "run", f"--steps 2 {words}"))
        assert "holds a run with other settings" in capsys.readouterr().err
