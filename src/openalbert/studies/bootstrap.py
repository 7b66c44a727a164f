"""How certain a number is: a bootstrap over examples with the noise of seeds, paired where two variants are compared.

In each resample the examples are drawn with replacement, the same for all variants. A mean of n seeds also deviates
from that of seeds trained anew: by Student's t with n - 1 degrees of freedom, times its standard error. Resampling the
seeds instead would give far too narrow intervals, since three seeds have only ten different resamples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from openalbert.finetuning.evaluation.intervals import RESAMPLES, resample
from openalbert.studies.study import AVERAGE

LEAST_MLM_ACCURACY = 25.0  # percent: below it a model has hardly left the plateau, and nothing is compared
LEAST_SEEDS = 2  # one run does not show how far another would be from it
Verdict = Literal["reproduced", "contradicted", "not decidable"]


class Interval(NamedTuple):
    """A value and its 95 % interval, in percent."""

    value: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Observations:
    """What one run predicted of the examples of one metric."""

    metric: str
    """accuracy, matthews, f1, pearson, spearman; or `ratio`, the sum of `prediction` over the sum of `label`."""
    label: Float64[np.ndarray, "examples"]
    prediction: Float64[np.ndarray, "examples"]

    def score(self, weights: Float64[np.ndarray, "resamples examples"]) -> Float64[np.ndarray, "resamples"]:
        """The metric in percent, with each example counted as often as its weight says."""
        label, prediction = self.label, self.prediction
        if self.metric in ("matthews", "f1"):
            return _by_confusion(self.metric, label > 0, prediction > 0, weights)
        if self.metric in ("pearson", "spearman"):
            pair = (label, prediction) if self.metric == "pearson" else (_ranks(label), _ranks(prediction))
            return 100 * _correlation(*pair, weights)
        right = prediction if self.metric == "ratio" else (label == prediction).astype(np.float64)
        total = label if self.metric == "ratio" else np.ones(len(label))
        return np.asarray(100 * (weights @ right) / np.maximum(weights @ total, 1e-12))

    @property
    def value(self) -> float:
        """The metric of all examples."""
        return float(self.score(np.ones((1, len(self.label))))[0])


def _by_confusion(
    metric: str, label: np.ndarray, prediction: np.ndarray, weights: Float64[np.ndarray, "resamples examples"]
) -> Float64[np.ndarray, "resamples"]:
    tp, tn = (weights @ (label & prediction).astype(float), weights @ (~label & ~prediction).astype(float))
    fp, fn = (weights @ (~label & prediction).astype(float), weights @ (label & ~prediction).astype(float))
    if metric == "f1":
        return np.asarray(100 * 2 * tp / np.maximum(2 * tp + fp + fn, 1e-12))
    bottom = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return np.where(bottom > 0, 100 * (tp * tn - fp * fn) / np.where(bottom > 0, bottom, 1.0), 0.0)


def _correlation(
    x: Float64[np.ndarray, "examples"],
    y: Float64[np.ndarray, "examples"],
    weights: Float64[np.ndarray, "resamples examples"],
) -> Float64[np.ndarray, "resamples"]:
    total = weights.sum(1)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    covariance = weights @ (x * y) / total - mean_x * mean_y
    spread = (weights @ (x * x) / total - mean_x**2) * (weights @ (y * y) / total - mean_y**2)
    return np.where(spread > 0, covariance / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)


def _ranks(values: Float64[np.ndarray, "examples"]) -> Float64[np.ndarray, "examples"]:
    """Ranks, with the mean of equal ones."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2)[place]


@lru_cache(maxsize=8)
def _weights(name: str, examples: int) -> Float64[np.ndarray, "resamples examples"]:
    """How often each example is in each resample; the same for all variants."""
    rows = resample(name, np.zeros(examples, np.int64))
    return np.stack([np.bincount(row, minlength=examples) for row in rows]).astype(np.float64)


def _noise_of_seeds(values: Float64[np.ndarray, "seeds"]) -> Float64[np.ndarray, "resamples"]:
    """How far the mean of as many other seeds may be from this one; zero where a single seed says nothing of it."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return np.zeros(RESAMPLES)
    quantiles = np.random.default_rng(0).permutation((np.arange(RESAMPLES) + 0.5) / RESAMPLES)
    return np.asarray(values.std(ddof=1) / math.sqrt(len(values)) * stdtrit(len(values) - 1, quantiles))


BySeed = Mapping[int, Mapping[str, Observations]]
"""The observations of a variant: by seed, then by metric or task."""


def interval(one: BySeed, names: Sequence[str], other: BySeed | None = None) -> Interval | None:
    """The mean of some metrics over the seeds, or how much higher it is than another variant's, with its interval.

    Of two variants, the seeds that both have are compared. None where there are none.
    """
    seeds = [
        seed
        for seed in one
        if all(name in one[seed] and (other is None or name in other.get(seed, {})) for name in names)
    ]
    if not seeds or not names:
        return None
    values, resampled = np.zeros(len(seeds)), np.zeros((RESAMPLES, len(seeds)))
    for name in names:
        for number, seed in enumerate(seeds):
            mine = one[seed][name]
            weights = _weights(name, len(mine.label))
            values[number] += mine.value / len(names)
            resampled[:, number] += mine.score(weights) / len(names)
            if other is not None:
                theirs = other[seed][name]
                values[number] -= theirs.value / len(names)
                resampled[:, number] -= theirs.score(weights) / len(names)
    low, high = np.percentile(resampled.mean(1) + _noise_of_seeds(values), (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high), len(seeds))


def spread(one: BySeed, names: Sequence[str]) -> float | None:
    """The standard deviation between seeds; None for a single one."""
    values = [
        float(np.mean([found[name].value for name in names]))
        for found in one.values()
        if all(n in found for n in names)
    ]
    return float(np.std(values, ddof=1)) if len(values) > 1 and names else None


def verdict(difference: Interval | None, margin: float, mlm: Sequence[float | None]) -> Verdict:
    """Whether an ordering holds: only where the interval of the difference excludes its limit, 0 or the margin.

    `mlm` are the MLM accuracies of both: below a quarter a model has learned too little to be compared. A single seed
    decides nothing: how far two runs of one variant are apart is not known.
    """
    if difference is None or difference.seeds < LEAST_SEEDS:
        return "not decidable"
    if any(value is None or value < LEAST_MLM_ACCURACY for value in mlm):
        return "not decidable"
    if difference.low > -margin:
        return "reproduced"
    return "contradicted" if difference.high < -margin else "not decidable"


def names_of(metric: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """The observations that a metric is the mean of; none where it is that of tasks, and nothing was fine-tuned."""
    return tuple(tasks) if metric == AVERAGE else (metric,)
