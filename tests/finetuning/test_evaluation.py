"""From a split to metrics: what is decided, and 95 % intervals, which are compared with scipy's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from tests.finetuning.made_lessons import imbalanced, learn, lesson
from tests.finetuning.micro_models import micro_model
from tests.report.parsed_page import Page
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert import cli
from openalbert.finetuning.data import encode_split
from openalbert.finetuning.evaluation import MAX_FOR_INTERVALS, RESAMPLES, evaluate_split, intervals, resample, wilson
from openalbert.model.config import Head
from openalbert.report.error_analysis import read_error_analyses
from openalbert.tasks.metrics import accuracy, macro_f1, measure_classes
from openalbert.tasks.task import Reading, Task, TextExample
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")


def made(num_examples: int, seed: int = 0) -> tuple[Task, list[TextExample], list[int]]:
    dice = np.random.default_rng(seed)
    gold = dice.integers(0, 3, num_examples)
    predicted = np.where(dice.random(num_examples) < 0.7, gold, dice.integers(0, 3, num_examples))
    examples = [TextExample(str(number), "a text", None, int(label)) for number, label in enumerate(gold)]
    task = made_task("classification", examples)
    task = Task(
        task.name, task.kind, task.labels, task.splits, task.read, measure_classes(accuracy, macro_f1), "accuracy"
    )
    return task, examples, predicted.tolist()


@given(st.integers(1, 3000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_wilsons_interval_is_scipys(counts: tuple[int, int]) -> None:
    right, total = counts
    oracle = scipy.stats.binomtest(right, total).proportion_ci(method="wilson")
    assert wilson(right, total) == pytest.approx((100 * oracle.low, 100 * oracle.high), abs=1e-9)


def test_a_bootstrapped_interval_is_near_an_independent_one_and_the_same_every_time() -> None:
    task, examples, predicted = made(150)
    scores = task.measure(examples, predicted)
    found = intervals(task, examples, predicted, scores)
    assert found == intervals(task, examples, predicted, scores)
    right = round(scores["accuracy"] * 1.5)
    assert found["accuracy"] == wilson(right, 150)
    gold = np.array([example.label for example in examples])

    # An independent bootstrap within each class.
    dice = np.random.default_rng(1)
    of_class = [np.flatnonzero(gold == label) for label in range(3)]
    drawn = []
    for _ in range(1000):
        rows = np.concatenate([dice.choice(members, len(members)) for members in of_class])
        drawn.append(100 * float(f1_score(gold[rows], np.array(predicted)[rows], average="macro")))
    oracle = np.percentile(drawn, (2.5, 97.5))
    low, high = found["macro_f1"]
    assert low < scores["macro_f1"] < high
    # Two draws of 1,000 differ by a few tenths of a point at the ends.
    assert (low, high) == pytest.approx(tuple(oracle), abs=1.2)


def test_resamples_draw_every_example_equally_often() -> None:
    strata = np.arange(50) % 7 // 5  # 36 of one class and 14 of the other, mixed
    rows = resample("task", strata)
    assert rows.shape == (RESAMPLES, 50)
    counts = np.bincount(rows.ravel(), minlength=50)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    assert (strata[rows].sum(1) == strata.sum()).all()
    assert not np.array_equal(rows, resample("another", strata))


def test_a_rare_class_is_in_every_resample() -> None:
    """2 of 39: a resample without them would score the frequent class alone, near 100."""
    task, _, _ = made(3)
    gold = [1, 1, *[0] * 37]
    examples = [TextExample(str(number), "a text", None, label) for number, label in enumerate(gold)]
    ends = []
    for found in (0, 1):
        predicted = [1] * found + [0] * (39 - found)
        ends.append(intervals(task, examples, predicted, task.measure(examples, predicted)).get("macro_f1"))
    assert ends[0] is None  # every resample has 37 right and 2 wrong
    assert ends[1] is not None
    assert 45 < ends[1][0] < 82.7 < ends[1][1] <= 100


def test_answers_to_questions_are_resampled_as_means_over_questions() -> None:
    task = made_task("question_answering")
    examples = EXAMPLES["question_answering"] * 20
    predictions = ["January 1900", "nobody", ""] * 20
    scores = task.measure(examples, predictions)
    low, high = intervals(task, examples, predictions, scores)["right"]
    rows = resample(task.name, np.zeros(60, np.int64))
    is_right = np.array([100.0, 0.0, 100.0] * 20)
    assert (low, high) == pytest.approx(tuple(np.percentile(is_right[rows].mean(1), (2.5, 97.5))))


def test_large_sets_have_no_interval_and_what_never_varies_has_none_either() -> None:
    task, examples, predicted = made(MAX_FOR_INTERVALS)
    assert intervals(task, examples, predicted, task.measure(examples, predicted)) == {}
    gold = [int(example.label) for example in examples[:40]]  # type: ignore[arg-type]
    scores = task.measure(examples[:40], gold)
    found = intervals(task, examples[:40], gold, scores)
    assert found == {"accuracy": (pytest.approx(91.24, abs=0.01), 100.0)}


def test_only_a_task_that_allows_for_it_leaves_a_question_without_an_answer(small: Tokenizer) -> None:
    reading = Reading(tuple(EXAMPLES["question_answering"]))
    for may_have_no_answer in (True, False):
        task = made_task("question_answering", may_have_no_answer=may_have_no_answer)
        data, model = encode_split(task, "dev", reading, small, max_length=64), micro_model(task)
        silent = evaluate_split([model], task, data, CPU, null_threshold=-1000.0).predictions
        assert [text == "" for text in silent] == [may_have_no_answer] * 3
        assert "" not in evaluate_split([model], task, data, CPU, null_threshold=1000.0).predictions


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


def test_a_model_without_an_answerability_head_has_metrics_but_no_loss(small: Tokenizer) -> None:
    task = made_task("question_answering")
    data = encode_split(task, "dev", Reading(tuple(EXAMPLES["question_answering"])), small, max_length=64)
    for heads, has_loss in ((task.heads, True), ((Head("span"),), False)):
        found = evaluate_split([micro_model(task, heads=heads)], task, data, CPU)
        assert found.metrics.keys() == {"right"}
        assert math.isfinite(found.loss) == has_loss
