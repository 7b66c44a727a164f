"""Metrics against scikit-learn and scipy, and what they are where they are not defined."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert.errors import UserError
from openalbert.tasks.metrics import (
    accuracy,
    f1,
    gold_prediction,
    macro_f1,
    macro_f1_of,
    matthews,
    measure_choices,
    measure_classes,
    measure_label_sets,
    measure_values,
    pearson,
    r2,
    spearman,
)
from openalbert.tasks.squad import measure_answers
from openalbert.tasks.tags import measure_tags
from openalbert.tasks.task import Answer, ChoiceExample, Kind, QuestionExample, TextExample

SIZES = st.integers(1, 60)


@st.composite
def two_arrays(draw: st.DrawFn, elements: st.SearchStrategy[float] | st.SearchStrategy[int], kind: type) -> tuple:
    size = draw(SIZES)
    return tuple(draw(arrays(kind, size, elements=elements)) for _ in range(2))


def quietly(peer: Callable, *args: object, **options: object) -> float:
    """scikit-learn warns where a metric is not defined; there it is 0 here too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return 100 * float(peer(*args, **options))


@given(two_arrays(st.integers(0, 3), np.int64))
@settings(max_examples=150, deadline=None)
def test_metrics_of_classes_are_those_of_scikit_learn(both: tuple[np.ndarray, np.ndarray]) -> None:
    gold, predicted = both
    assert accuracy(gold, predicted) == pytest.approx(quietly(sklearn.metrics.accuracy_score, gold, predicted))
    macro = quietly(sklearn.metrics.f1_score, gold, predicted, average="macro", zero_division=0)
    assert macro_f1(gold, predicted) == pytest.approx(macro)
    assert matthews(gold, predicted) == pytest.approx(quietly(sklearn.metrics.matthews_corrcoef, gold, predicted))
    binary = gold % 2, predicted % 2
    assert f1(*binary) == pytest.approx(quietly(sklearn.metrics.f1_score, *binary, zero_division=0))


VALUES = st.integers(-20, 20).map(lambda number: number / 4)


@given(two_arrays(VALUES, np.float64))
@settings(max_examples=150, deadline=None)
def test_metrics_of_values_are_those_of_scipy_and_scikit_learn(both: tuple[np.ndarray, np.ndarray]) -> None:
    gold, predicted = both
    if len(set(gold)) == 1 or len(set(predicted)) == 1:
        assert pearson(gold, predicted) == spearman(gold, predicted) == 0
    else:
        assert pearson(gold, predicted) == pytest.approx(100 * scipy.stats.pearsonr(gold, predicted).statistic)
        assert spearman(gold, predicted) == pytest.approx(100 * scipy.stats.spearmanr(gold, predicted).statistic)
    if len(set(gold)) > 1:
        assert r2(gold, predicted) == pytest.approx(100 * sklearn.metrics.r2_score(gold, predicted))


@pytest.mark.parametrize(("scale", "shift"), [(1e-150, 0), (1e150, 0), (1e-6, 1e3)])
def test_a_correlation_is_the_same_for_very_small_and_large_values(scale: float, shift: float) -> None:
    gold, predicted = np.array([0.0, 1, 2, 3, 4]), np.array([0.5, 0.3, 2.5, 2.4, 5])
    expected = pearson(gold, predicted)
    assert pearson(gold * scale + shift, predicted * scale + shift) == pytest.approx(expected, rel=1e-4)


def test_a_model_that_always_says_the_same_correlates_with_nothing() -> None:
    gold = np.array([0.1, 0.2, 0.4])
    for constant in (0.0, 2.1, 0.1 + 0.2):
        assert pearson(gold, np.full(3, constant)) == 0
        assert spearman(gold, np.full(3, constant)) == 0
    # What a float32 model gives for the same input may differ in the last bit of its mean.
    assert pearson(gold, np.full(3, np.float64(np.float32(0.3)))) == 0


def test_labels_that_are_all_zero_correlate_with_nothing() -> None:
    for constant in (0.0, 2.0):
        assert pearson(np.full(3, constant), np.array([0.1, 0.2, 0.4])) == 0
        assert spearman(np.full(3, constant), np.array([0.1, 0.2, 0.4])) == 0


def test_a_perfect_correlation_is_never_rounded_beyond_100_percent() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        values = draw.normal(size=7)
        assert 100 - 1e-9 <= pearson(values, 3 * values + 1) <= 100
        assert -100 <= pearson(values, 1 - 3 * values) <= -100 + 1e-9


def test_matthews_of_very_many_examples_does_not_overflow() -> None:
    gold = np.arange(3_000_000) % 2
    predicted = np.where(np.arange(3_000_000) // 2 % 10 == 0, 1 - gold, gold)
    assert matthews(gold, predicted) == pytest.approx(80.0)


@given(st.lists(st.tuples(*[st.frozensets(st.integers(0, 2))] * 2), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_metrics_of_label_sets_are_those_of_scikit_learn(sets: list[tuple[frozenset[int], frozenset[int]]]) -> None:
    examples = [TextExample(str(number), "a", None, tuple(gold)) for number, (gold, _) in enumerate(sets)]
    metrics = measure_label_sets(3)(examples, [tuple(predicted) for _, predicted in sets])
    flags = [np.array([[number in one[side] for number in range(3)] for one in sets]) for side in (0, 1)]
    for name, average in (("f1", "micro"), ("macro_f1", "macro")):
        peer = quietly(sklearn.metrics.f1_score, *flags, average=average, zero_division=0)
        assert metrics[name] == pytest.approx(peer)
    assert metrics["exact_match"] == pytest.approx(quietly(sklearn.metrics.accuracy_score, *flags))


def test_choices_are_also_scored_by_group() -> None:
    examples = [
        ChoiceExample("a", "", "q", ("x", "y"), 0, "middle"),
        ChoiceExample("b", "", "q", ("x", "y"), 1, "high"),
        ChoiceExample("c", "", "q", ("x", "y"), 1, "high"),
    ]
    metrics = measure_choices(examples, [0, 1, 0])
    assert metrics == {"accuracy": 200 / 3, "accuracy_middle": 100.0, "accuracy_high": 50.0}
    assert measure_choices([ChoiceExample("a", "", "q", ("x", "y"), 0)], [0]) == {"accuracy": 100.0}
    assert measure_choices([TextExample("a", "x", None, 1)], [0]) == {"accuracy": 0.0}


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_macro_f1_is_known_of_classes_and_of_labels(kind: Kind) -> None:
    gold, predicted = [0, 1, 1, 2, 1, 2], [0, 1, 0, 0, 2, 2]

    def as_labels(classes: list[int]) -> list[int] | list[tuple[int, ...]]:
        return [(one,) for one in classes] if kind == "multi_label" else classes

    examples = [TextExample(str(number), "x", None, label) for number, label in enumerate(as_labels(gold))]
    peer = quietly(sklearn.metrics.f1_score, gold, predicted, average="macro")
    assert macro_f1_of(made_task(kind), examples, as_labels(predicted)) == pytest.approx(peer)


def test_metrics_have_the_names_of_their_functions() -> None:
    examples = [TextExample("a", "x", None, 1), TextExample("b", "y", None, 0)]
    assert measure_classes(accuracy, f1)(examples, [1, 1]) == {"accuracy": 50.0, "f1": 200 / 3}
    values = [TextExample("a", "x", None, 1.5), TextExample("b", "y", None, 0.5)]
    assert measure_values(pearson)(values, [3.0, 1.0]) == {"pearson": pytest.approx(100)}


def test_no_metric_is_ever_undefined() -> None:
    for size in (1, 2, 5):
        same = np.zeros(size, np.int64)
        for metric in (accuracy, f1, macro_f1, matthews):
            assert math.isfinite(metric(same, same))
        for value in (pearson, spearman, r2):
            assert math.isfinite(value(same.astype(float), same.astype(float)))


def test_a_model_that_gives_no_numbers_scores_worse_than_one_that_gives_the_mean() -> None:
    examples = [TextExample(str(number), "x", None, float(number)) for number in range(3)]
    for wrong in (math.nan, math.inf):
        assert measure_values(pearson, spearman, r2)(examples, [0.0, 1.0, wrong]) == dict.fromkeys(
            ("pearson", "spearman", "r2"), -100.0
        )


def test_examples_without_labels_cannot_be_scored() -> None:
    with pytest.raises(UserError, match="'a' has no label"):
        measure_classes(accuracy)([TextExample("a", "x", None, None)], [1])
    with pytest.raises(UserError, match="'a' has no label"):
        measure_classes(accuracy)([QuestionExample("a", "x", "y", (Answer("x", 0),))], [1])
    with pytest.raises(UserError, match="'a' has no answers"):
        measure_answers(True)([QuestionExample("a", "x", "y", (), is_labelled=False)], [""])


def test_every_example_needs_a_prediction() -> None:
    with pytest.raises(UserError, match="1 prediction for 2 examples"):
        measure_classes(accuracy)([TextExample("a", "x", None, 1)] * 2, [1])
    with pytest.raises(UserError, match="0 predictions for 1 example:"):
        measure_answers(False)([QuestionExample("a", "x", "y", (Answer("x", 0),))], [])


def test_the_right_predictions_of_every_kind_score_100() -> None:
    measures = {
        "classification": measure_classes(accuracy, macro_f1, matthews),
        "regression": measure_values(r2, pearson, spearman),
        "multi_label": measure_label_sets(2),
        "multiple_choice": measure_choices,
        "question_answering": measure_answers(True),
        "tagging": measure_tags(True),
    }
    assert measures.keys() == EXAMPLES.keys()
    for kind, measure in measures.items():
        scores = measure(EXAMPLES[kind], [gold_prediction(example) for example in EXAMPLES[kind]])
        assert scores == pytest.approx(dict.fromkeys(scores, 100.0)), kind
