"""Metrics of classes, values, label sets and choices, in percent, all better when higher; and how runs are ranked.

Where a metric is not defined (a correlation with a constant, no class ever predicted) it is 0, never NaN: a run that
has collapsed must compare as worse than every other. SQuAD's metrics are in `tasks/squad.py`.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Float64, Int64

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.task import (
    ChoiceExample,
    Example,
    QuestionExample,
    SimilarityExample,
    TaggingExample,
    Task,
    TextExample,
)

Classes: TypeAlias = Int64[np.ndarray, "examples"]
Values: TypeAlias = Float64[np.ndarray, "examples"]
Measure: TypeAlias = Callable[[Sequence[Example], Sequence[object]], dict[str, float]]
NO_NUMBERS = -100.0  # every metric of predictions that are not finite: as bad as a correlation can be
LOSS = "loss"
"""The only metric that is better when lower; `Task.measure` does not return it."""


def accuracy(gold: Classes, predicted: Classes) -> float:
    """The fraction of correct predictions."""
    return 100.0 * int((gold == predicted).sum()) / len(gold)


def f1(gold: Classes, predicted: Classes) -> float:
    """Harmonic mean of precision and recall of class 1, the second of two (see `describe_positive_class`)."""
    return _f1(gold == 1, predicted == 1)


def describe_positive_class(name: str) -> str:
    """A message on which class `f1` counts as the positive one."""
    return f"f1 is that of the class '{name}'"


def macro_f1(gold: Classes, predicted: Classes) -> float:
    """Mean F1 of the classes that occur in the labels or in the predictions."""
    classes = np.union1d(gold, predicted)
    return sum(_f1(gold == one, predicted == one) for one in classes) / len(classes)


def matthews(gold: Classes, predicted: Classes) -> float:
    """Matthews' correlation coefficient, for two or more classes."""
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
    """Correlation of the ranks; equal values have their mean rank."""
    return pearson(_ranks(gold), _ranks(predicted))


def r2(gold: Values, predicted: Values) -> float:
    """The fraction of the variance that is explained: 0 for predicting the mean, negative for worse."""
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


def measure_classes(*metrics: Callable[[Classes, Classes], float]) -> Measure:
    """Measures class numbers."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        gold = np.array(_labels(examples, predictions), np.int64)
        predicted = np.array(predictions, np.int64)
        return {metric.__name__: metric(gold, predicted) for metric in metrics}

    return measure


def measure_values(*metrics: Callable[[Values, Values], float]) -> Measure:
    """Measures values."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        return _measured(np.array(_labels(examples, predictions), np.float64), predictions, metrics)

    return measure


def _measured(
    gold: Values, predictions: Sequence[object], metrics: Sequence[Callable[[Values, Values], float]]
) -> dict[str, float]:
    predicted = np.array(predictions, np.float64)
    # A diverged model predicts NaN. Comparisons with NaN are never true, so it could pass for the best.
    is_number = bool(np.isfinite(predicted).all())
    return {metric.__name__: metric(gold, predicted) if is_number else NO_NUMBERS for metric in metrics}


def measure_label_sets(num_labels: int) -> Measure:
    """Measures tuples of class numbers: `f1` over all decisions, `macro_f1` over labels, `exact_match` of sets."""

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
    """Macro-F1 of a task of classes or labels, also where the task does not report it."""
    if task.kind == "multi_label":
        return measure_label_sets(len(task.labels))(examples, predictions)["macro_f1"]
    return measure_classes(macro_f1)(examples, predictions)["macro_f1"]


def measure_choices(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
    """Measures numbers of options: `accuracy`, also for each group of examples (RACE's middle and high)."""
    gold = np.array(_labels(examples, predictions), np.int64)
    predicted = np.array(predictions, np.int64)
    metrics = {"accuracy": accuracy(gold, predicted)}
    groups = np.array([example.group if isinstance(example, ChoiceExample) else "" for example in examples])
    for group in np.unique(groups):
        if group:
            metrics[f"accuracy_{group}"] = accuracy(gold[groups == group], predicted[groups == group])
    return metrics


class Retrieved(NamedTuple):
    """Where the positive of an anchor is found among all texts of its split."""

    rank: int
    """1 where no other text is as near to the anchor."""
    cosine: float
    """Of the anchor and its positive."""
    negative: float | None
    """The cosine of the anchor and its negative, where it has one."""
    nearest: int | None = None
    """Which text of the split is nearest to the anchor, apart from its positive: the number of its sequence."""


def measure_similarity(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
    """Measures cosines of pairs with scores by `spearman` and `pearson`.

    What was retrieved for pairs without scores is measured by `accuracy` of triplets (the positive is nearer than the
    negative), `mrr`, the mean of 1 / rank, and `accuracy_at_1`, the fraction of rank 1.
    """
    check_same_number(examples, predictions)
    found = [one for one in predictions if isinstance(one, Retrieved)]
    if not found:
        gold = np.array([example.score for example in examples if isinstance(example, SimilarityExample)], np.float64)
        return _measured(gold, predictions, (spearman, pearson))
    ranks = np.array([one.rank for one in found])
    nearer = [one.cosine > one.negative for one in found if one.negative is not None]
    metrics = {"accuracy": 100.0 * float(np.mean(nearer))} if nearer else {}
    return metrics | {"mrr": 100.0 * float((1 / ranks).mean()), "accuracy_at_1": 100.0 * float((ranks == 1).mean())}


def gold_prediction(example: Example) -> object:
    """The right prediction for a labelled example, as `Task.measure` takes it."""
    if isinstance(example, QuestionExample):
        return example.answers[0].text if example.answers else ""
    if isinstance(example, SimilarityExample):
        best = Retrieved(1, 1.0, None if example.negative is None else 0.0)
        return best if example.score is None else example.score
    return example.tags if isinstance(example, TaggingExample) else example.label


def metric_names(task: Task, examples: Sequence[Example]) -> tuple[str, ...]:
    """The metrics of a task on labelled examples, the loss last."""
    return (*task.measure(examples, [gold_prediction(example) for example in examples]), LOSS)


def with_metric(task: Task, metric: str, examples: Sequence[Example]) -> Task:
    """The task with another main metric, which must be one of its metrics or the loss."""
    names = metric_names(task, examples)
    if metric not in names:
        raise UserError(f"--metric is '{metric}', which {task.name} does not have: give one of {', '.join(names)}")
    return replace(task, main_metric=metric)


def ranking(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], metrics: Mapping[str, float], loss: float
) -> tuple[float, ...]:
    """The key by which evaluations are compared, higher is better: main metric, macro-F1, negative loss.

    On a small or imbalanced set accuracy is often equal. Then a model that predicts the rare classes too is better, and
    after that the one with the lower loss.
    """
    lower_is_better = -loss if math.isfinite(loss) else -sys.float_info.max
    if task.main_metric == LOSS:
        return (lower_is_better,)
    ties = (macro_f1_of(task, examples, predictions),) if task.kind in ("classification", "multi_label") else ()
    return (metrics[task.main_metric], *ties, lower_is_better)


def rank_of(result: Mapping[str, Any]) -> tuple[float, ...]:
    """The `ranking` in the scores.json of a finished run; its main metric alone where there is none."""
    if result.get("ranking"):
        return tuple(cast("list[float]", result["ranking"]))
    scores = next(iter(result["scores"].values()))
    return (float(scores.get(result["main_metric"], -math.inf)),)


def _labels(examples: Sequence[Example], predictions: Sequence[object]) -> list[Any]:
    check_same_number(examples, predictions)
    labels: list[Any] = []
    for example in examples:
        label = example.label if isinstance(example, (TextExample, ChoiceExample)) else None
        if label is None:
            raise UserError(f"the example '{example.id}' has no label to compare with: nothing can be scored")
        labels.append(label)
    return labels


def check_same_number(examples: Sequence[Example], predictions: Sequence[object]) -> None:
    """Refuse anything but one prediction for each example."""
    if len(examples) != len(predictions) or not examples:
        raise UserError(
            f"{counted(len(predictions), 'prediction')} for {counted(len(examples), 'example')}: one for each is needed"
        )


def _flags(sets: Sequence[tuple[int, ...]], num_labels: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros((len(sets), num_labels), np.bool_)
    for row, numbers in enumerate(sets):
        flags[row, list(numbers)] = True
    return flags
