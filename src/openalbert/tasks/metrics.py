"""Figures that say how well a task is done, in percent, and all of them better when higher.

Where a figure is not defined (a correlation with a constant, no class ever predicted) it is 0, never NaN: a run that
has collapsed must compare as worse than every other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Float64, Int64

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.squad_score import score_answers
from openalbert.tasks.task import ChoiceExample, Example, QuestionExample, Task, TextExample

Classes: TypeAlias = Int64[np.ndarray, "examples"]
Values: TypeAlias = Float64[np.ndarray, "examples"]
Measure: TypeAlias = Callable[[Sequence[Example], Sequence[object]], dict[str, float]]
NO_NUMBERS = -100.0  # every figure of values that are none: as bad as a correlation can be


def accuracy(gold: Classes, predicted: Classes) -> float:
    """How many are right."""
    return 100.0 * int((gold == predicted).sum()) / len(gold)


def f1(gold: Classes, predicted: Classes) -> float:
    """Harmonic mean of precision and recall of class 1, the positive one of two."""
    return _f1(gold == 1, predicted == 1)


def macro_f1(gold: Classes, predicted: Classes) -> float:
    """F1 of each class that occurs, in the labels or in the predictions, and their mean."""
    classes = np.union1d(gold, predicted)
    return sum(_f1(gold == one, predicted == one) for one in classes) / len(classes)


def matthews(gold: Classes, predicted: Classes) -> float:
    """Matthews' correlation, of two classes or more."""
    _, both = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
    gold, predicted = both[: len(gold)], both[len(gold) :]
    size = int(both.max()) + 1
    # Python's integers: the products go beyond 64 bits for large sets.
    true = [int(count) for count in np.bincount(gold, minlength=size)]
    guessed = [int(count) for count in np.bincount(predicted, minlength=size)]
    total, right = len(gold), int((gold == predicted).sum())
    covariance = right * total - sum(t * g for t, g in zip(true, guessed, strict=True))
    spread = (total**2 - sum(t * t for t in true)) * (total**2 - sum(g * g for g in guessed))
    return 100.0 * covariance / math.sqrt(spread) if spread else 0.0


def pearson(gold: Values, predicted: Values) -> float:
    """Linear correlation."""
    x, y = gold - gold.mean(), predicted - predicted.mean()
    # Scaled first, so that squares of very small or large values stay within the range of floats.
    largest_x, largest_y = float(np.abs(x).max()), float(np.abs(y).max())
    tiny = 1e-13  # of the mean: below it a spread is nothing but rounding
    if largest_x <= tiny * abs(float(gold.mean())) or largest_y <= tiny * abs(float(predicted.mean())):
        return 0.0
    x, y = x / largest_x, y / largest_y
    norm = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return 100.0 * max(-1.0, min(1.0, float(x @ y) / norm))


def spearman(gold: Values, predicted: Values) -> float:
    """Correlation of the ranks; equal values share the mean of theirs."""
    return pearson(_ranks(gold), _ranks(predicted))


def r2(gold: Values, predicted: Values) -> float:
    """How much of the variance is explained: 100 for no error, 0 for the mean, below for worse."""
    total = float(((gold - gold.mean()) ** 2).sum())
    return 100.0 * (1 - float(((gold - predicted) ** 2).sum()) / total) if total else 0.0


def _f1(gold: npt.NDArray[np.bool_], predicted: npt.NDArray[np.bool_]) -> float:
    found = int((gold & predicted).sum())
    return 200.0 * found / (int(gold.sum()) + int(predicted.sum())) if found else 0.0


def _ranks(values: Values) -> Values:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts).astype(np.float64)
    ranks: Values = (last - (counts - 1) / 2)[place]
    return ranks


def measure_classes(*figures: Callable[[Classes, Classes], float]) -> Measure:
    """Scores class numbers."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        gold = np.array(_labels(examples, predictions), np.int64)
        predicted = np.array(predictions, np.int64)
        return {figure.__name__: figure(gold, predicted) for figure in figures}

    return measure


def measure_values(*figures: Callable[[Values, Values], float]) -> Measure:
    """Scores values."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        gold = np.array(_labels(examples, predictions), np.float64)
        predicted = np.array(predictions, np.float64)
        # Of a model that has come apart: comparisons with NaN are never true, so it could pass for the best.
        is_number = bool(np.isfinite(predicted).all())
        return {figure.__name__: figure(gold, predicted) if is_number else NO_NUMBERS for figure in figures}

    return measure


def measure_label_sets(num_labels: int) -> Measure:
    """Scores tuples of class numbers: `f1` over all decisions, `macro_f1` over labels, `exact_match` of whole sets."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        gold = _flags(cast("list[tuple[int, ...]]", _labels(examples, predictions)), num_labels)
        predicted = _flags(cast("Sequence[tuple[int, ...]]", predictions), num_labels)
        each = [_f1(gold[:, one], predicted[:, one]) for one in range(num_labels)]
        return {
            "f1": _f1(gold, predicted),
            "macro_f1": sum(each) / num_labels,
            "exact_match": 100.0 * int((gold == predicted).all(axis=1).sum()) / len(gold),
        }

    return measure


def macro_f1_of(task: Task, examples: Sequence[Example], predictions: Sequence[object]) -> float:
    """Macro-F1 of a task of classes or labels, whether it is among the metrics that the task reports or not."""
    if task.kind == "multi_label":
        return measure_label_sets(len(task.labels))(examples, predictions)["macro_f1"]
    return measure_classes(macro_f1)(examples, predictions)["macro_f1"]


def measure_choices(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
    """Scores numbers of options: `accuracy`, and the same for each group of examples (RACE's middle and high)."""
    gold = np.array(_labels(examples, predictions), np.int64)
    predicted = np.array(predictions, np.int64)
    figures = {"accuracy": accuracy(gold, predicted)}
    groups = np.array([example.group if isinstance(example, ChoiceExample) else "" for example in examples])
    for group in np.unique(groups):
        if group:
            figures[f"accuracy_{group}"] = accuracy(gold[groups == group], predicted[groups == group])
    return figures


def measure_answers(may_have_no_answer: bool) -> Measure:
    """Scores texts of answers as SQuAD's scorers do, of version 2.0 where there may be none."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        _same_number(examples, predictions)
        gold: list[tuple[str, ...]] = []
        for example in examples:
            if not isinstance(example, QuestionExample) or not example.is_labelled:
                raise UserError(f"the example '{example.id}' has no answers to compare with: nothing can be scored")
            gold.append(tuple(answer.text for answer in example.answers))
        return score_answers(gold, cast("Sequence[str]", predictions), may_have_no_answer)

    return measure


def _labels(examples: Sequence[Example], predictions: Sequence[object]) -> list[Any]:
    _same_number(examples, predictions)
    labels: list[Any] = []
    for example in examples:
        label = example.label if isinstance(example, (TextExample, ChoiceExample)) else None
        if label is None:
            raise UserError(f"the example '{example.id}' has no label to compare with: nothing can be scored")
        labels.append(label)
    return labels


def _same_number(examples: Sequence[Example], predictions: Sequence[object]) -> None:
    if len(examples) != len(predictions) or not examples:
        raise UserError(
            f"{counted(len(predictions), 'prediction')} for {counted(len(examples), 'example')}: one for each is needed"
        )


def _flags(sets: Sequence[tuple[int, ...]], num_labels: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros((len(sets), num_labels), np.bool_)
    for row, numbers in enumerate(sets):
        flags[row, list(numbers)] = True
    return flags
