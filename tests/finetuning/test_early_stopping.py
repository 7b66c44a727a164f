"""Evaluations of a run: the best weights, patience, nothing predicted twice, and no verdict before it can be known."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from tests.finetuning.made_lessons import imbalanced, learn, lesson, records
from tests.report.parsed_page import Page
from tests.tasks.made_tasks import made_task

from openalbert.finetuning import early_stopping
from openalbert.finetuning.early_stopping import EarlyStopping, EvaluationHistory
from openalbert.finetuning.evaluation import split
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_split
from openalbert.finetuning.predict import predict
from openalbert.tasks.task import TextExample

# The rate stays high to the end, so that the best evaluation is not the last.
RISING_AND_FALLING = (
    "--steps 40 --evaluate-every 5 --schedule.kind constant --optimizer.learning-rate 0.01 --patience None"
)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_run_predicts_once_for_each_evaluation_and_no_more(
    keep: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = []

    def counted(*given: Any, **more: Any) -> Any:
        times.append(1)
        return predict(*given, **more)

    monkeypatch.setattr(split, "predict", counted)
    file = lesson("classification", tmp_path)
    scores = learn(tiny, "classification", file, tmp_path / "run", f"{RISING_AND_FALLING} --keep {keep}")
    evaluations = records(tmp_path / "run", "evaluation")
    assert len(times) == len(evaluations) == 8
    assert (scores["step"] < scores["steps"]) == (keep == "best")
    [chosen] = [one for one in evaluations if one["step"] == scores["step"]]
    assert scores["scores"]["dev"] == {name: chosen[name] for name in scores["scores"]["dev"]}


def test_a_dozen_steps_are_too_few_to_say_that_nothing_was_learned(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "alike.csv"
    file.write_text("text,label\n" + "the time of people,warm\nthe time of people,cold\n" * 50)
    for steps in (12, 30):
        words = f"--dev {file} --optimizer.learning-rate 0 --retries 0 --evaluate-every 200 --steps {steps}"
        learn(tiny, "classification", file, tmp_path / f"run-{steps}", words)
        told = capsys.readouterr().err
        assert ("100 % of the predictions are" in told) == (steps == 30)


def test_a_score_that_never_left_0_is_told_however_few_the_steps(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A regression's r2 at a rate of 0 is below 0, a classification's accuracy is not."""
    remark = "r2 on dev never rose above 0: it has hardly learned anything; train for longer, or raise"
    for kind in ("regression", "classification"):
        file = lesson(kind, tmp_path)
        learn(tiny, kind, file, tmp_path / kind, "--steps 12 --evaluate-every 6 --optimizer.learning-rate 0")
        assert (remark in capsys.readouterr().err) == (kind == "regression")


@pytest.mark.parametrize(("num_examples", "is_told"), [(4, False), (12, True)])
def test_a_few_predictions_alike_say_nothing(num_examples: int, is_told: bool) -> None:
    examples = tuple(TextExample(str(number), "a text", None, number % 2) for number in range(num_examples))
    task = replace(made_task("classification", examples), labels=("cold", "warm"))
    task_data = SimpleNamespace(task=task, scored={"dev": SimpleNamespace(examples=examples)})
    stopping = EarlyStopping(cast(Any, task_data), 0.69, cast(Any, None), cast(Any, None))
    same = cast(Any, SimpleNamespace(predictions=[1] * num_examples))
    assert stopping.describe_constant_predictions(same, is_trial=True) is None
    assert stopping.describe_constant_predictions(same, is_trial=False) == (
        "100 % of the predictions are 'warm'" if is_told else None
    )


def after(scores: list[float]) -> EvaluationHistory:
    history = EvaluationHistory()
    for step, score in enumerate(scores, 1):
        history.add(float(score), step)
    return history


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_the_best_is_the_earliest_of_the_highest(scores: list[float]) -> None:
    history = after(scores)
    place = scores.index(max(scores))
    assert history.best == scores[place]
    assert history.since_best == len(scores) - 1 - place
    assert history.is_best_at(len(scores)) == (place == len(scores) - 1)
    assert not history.is_best_at(len(scores) + 1)
    assert EvaluationHistory(**json.loads(json.dumps(history.state()))) == history


def test_a_run_is_out_of_patience_only_once_its_score_has_risen() -> None:
    assert after([50, 60, 60, 59, 58]).is_out_of_patience(3)
    assert not after([50, 60, 60, 59, 58]).is_out_of_patience(4)
    assert not after([50, 60, 60, 59, 58]).is_out_of_patience(None)
    assert not after([50, 50, 50, 49, 50, 50]).is_out_of_patience(3)
    assert after([50, 50, 50, 51, 50, 50, 50]).is_out_of_patience(3)


def test_of_equal_scores_the_one_with_the_higher_tie_breaks_is_the_best() -> None:
    history = EvaluationHistory()
    for step, (score, macro_f1, loss) in enumerate([(94.9, 48.7, 0.3), (94.9, 80.7, 0.4), (94.9, 80.7, 0.2)], 1):
        history.add(score, step, (macro_f1, -loss))
        assert history.is_best_at(step)
    history.add(94.9, 4, (80.7, -0.2))
    assert (history.best_at, history.best) == (3, 94.9)
    # A tie that was broken is no rise: patience is of the score alone.
    assert history.since_best == 3
    history.add(95.0, 5, (0.0, -9.0))
    assert history.is_best_at(5)
    assert EvaluationHistory(**json.loads(json.dumps(history.state()))) == history


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


@pytest.mark.parametrize("kind", ["regression", "multi_label", "multiple_choice", "question_answering"])
def test_the_lowest_loss_decides_in_every_kind_of_task(kind: str, tiny: Path, tmp_path: Path) -> None:
    words = "--steps 30 --evaluate-every 10 --metric loss --patience None"
    scores = learn(tiny, kind, lesson(kind, tmp_path, 80), tmp_path / "run", words)
    losses = [record["loss"] for record in records(tmp_path / "run", "evaluation")]
    assert scores["scores"]["dev"]["loss"] == min(losses)
