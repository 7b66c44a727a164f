"""95 % intervals of metrics and of differences between two models, by Wilson's formula or a bootstrap over examples."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from jaxtyping import Int64

from openalbert.objectives.keyed_random import below, bits
from openalbert.tasks.tags import Tags, count_matches, gold_tags, mark_entities, tag_scores
from openalbert.tasks.task import Example, Task, TextExample

MAX_FOR_INTERVALS = 2_000  # examples: on more, the seed changes a score by more than the interval
RESAMPLES = 1_000
RESAMPLES_FOR_ERRORS = 100
Z = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations

Interval = tuple[float, float]


def intervals(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], metrics: Mapping[str, float]
) -> dict[str, Interval]:
    """The 95 % interval of each metric, in percent; none where there are many examples.

    Wilson's for accuracy, and for the others the percentiles of a bootstrap over examples, drawn with a key of the
    task, so that the same predictions have the same interval. Each class keeps its number of examples: without a rare
    class a resample would measure something else. A metric that is the same in every resample has no interval.
    """
    if not 1 < len(examples) < MAX_FOR_INTERVALS:
        return {}
    found = {name: ends for name, ends in _bootstrap(task, examples, predictions).items() if name in metrics}
    if "accuracy" in metrics and task.kind != "tagging":  # there it is of words, which depend on each other
        found["accuracy"] = wilson(round(metrics["accuracy"] * len(examples) / 100), len(examples))
    return {name: found[name] for name in metrics if name in found}


def paired_interval(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], others: Sequence[object], metric: str
) -> Interval | None:
    """The 95 % interval of the difference in a metric between two models, by a bootstrap over the same examples.

    None where there are many examples, and where the difference is the same in every resample.
    """
    if not 1 < len(examples) < MAX_FOR_INTERVALS:
        return None
    differences = _differences(task, examples, predictions, others, metric, RESAMPLES)
    low, high = np.percentile(differences, (2.5, 97.5)).tolist()
    return (low, high) if low < high else None


def paired_error(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], others: Sequence[object], metric: str
) -> float:
    """The standard error of the difference in a metric between two sets of predictions for the same examples.

    By a bootstrap of few resamples: standard errors need fewer than intervals.
    """
    return float(np.std(_differences(task, examples, predictions, others, metric, RESAMPLES_FOR_ERRORS)))


def _differences(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[object],
    others: Sequence[object],
    metric: str,
    num_resamples: int,
) -> list[float]:
    """Of each resample the difference in the metric."""
    differences = []
    for row in resample(task.name, _strata(task, examples), num_resamples).tolist():
        drawn = [examples[one] for one in row]
        one, other = (task.measure(drawn, [given[place] for place in row])[metric] for given in (predictions, others))
        differences.append(one - other)
    return differences


def wilson(right: int, total: int) -> Interval:
    """Wilson's score interval of a proportion, in percent."""
    fraction, over = right / total, Z * Z / total
    middle = (fraction + over / 2) / (1 + over)
    reach = Z / (1 + over) * math.sqrt(fraction * (1 - fraction) / total + over / (4 * total))
    # Its ends are exactly 0 and 1 there, but for rounding.
    low = 0.0 if right == 0 else max(0.0, middle - reach)
    high = 1.0 if right == total else min(1.0, middle + reach)
    return 100 * low, 100 * high


def _bootstrap(task: Task, examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, Interval]:
    rows = resample(task.name, _strata(task, examples))
    values: dict[str, list[float]] = {}
    if task.kind == "question_answering":
        # Means over questions, each of which takes a while to compare: each is measured once.
        each = [task.measure([one], [given]) for one, given in zip(examples, predictions, strict=True)]
        for name in dict.fromkeys(name for one in each for name in one):
            of_one = np.array([one.get(name, np.nan) for one in each])[rows]
            there = np.isfinite(of_one).sum(1)
            values[name] = list(np.nansum(of_one, axis=1)[there > 0] / there[there > 0])
    elif task.kind == "tagging":
        counts = count_matches(gold_tags(examples), cast("Sequence[Tags]", predictions))
        sums = np.stack([column[rows].sum(1) for column in counts.T], axis=1)
        values = {name: found.tolist() for name, found in tag_scores(sums, mark_entities(task.labels)).items()}
    else:
        for row in rows.tolist():
            drawn = task.measure([examples[one] for one in row], [predictions[one] for one in row])
            for name, value in drawn.items():
                values.setdefault(name, []).append(value)
    ends = {name: np.percentile(found, (2.5, 97.5)).tolist() for name, found in values.items() if np.ptp(found) > 0}
    return {name: (low, high) for name, (low, high) in ends.items()}


def _strata(task: Task, examples: Sequence[Example]) -> Int64[np.ndarray, "examples"]:
    """The class of each example, where each has one; 0 for all where they have not."""
    if task.kind != "classification":
        return np.zeros(len(examples), np.int64)
    return np.array([example.label for example in examples if isinstance(example, TextExample)], np.int64)


def resample(
    key: str, strata: Int64[np.ndarray, "examples"], num_resamples: int = RESAMPLES
) -> Int64[np.ndarray, "resamples examples"]:
    """The numbers of the examples of each resample, drawn with replacement within each stratum.

    The first ones are the same whatever their number.
    """
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)
    order = np.argsort(strata, kind="stable")
    _, first, count = np.unique(strata[order], return_index=True, return_counts=True)
    drawn = bits(number, np.arange(num_resamples * len(strata), dtype=np.int64)).reshape(num_resamples, -1)
    columns = [start + below(drawn[:, start : start + size], size) for start, size in zip(first, count, strict=True)]
    found: Int64[np.ndarray, "resamples examples"] = order[np.concatenate(columns, axis=1)]
    return found
