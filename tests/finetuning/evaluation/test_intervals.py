"""95 % intervals, which are compared with scipy's and with an independent bootstrap."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert.finetuning.evaluation.intervals import MAX_FOR_INTERVALS, RESAMPLES, intervals, resample, wilson
from openalbert.tasks.metrics import accuracy, macro_f1, measure_classes
from openalbert.tasks.task import Task, TextExample


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
    assert np.array_equal(rows[:100], resample("task", strata, 100))


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
