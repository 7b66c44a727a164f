"""From values to places in a picture: which values stand at an axis, and which points stand for a long curve."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64

KEPT_OF_A_STRETCH = 5


@dataclass(frozen=True)
class Scale:
    """A straight or logarithmic map from values to places."""

    low: float
    high: float
    start: float
    """Where `low` stands."""
    end: float
    """Where `high` stands."""
    log: bool = False

    def __call__(self, values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """The places of these values."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        inner = np.log(values) if self.log else values
        return self.start + (inner - low) * ((self.end - self.start) / (high - low))

    def place(self, value: float) -> float:
        """The place of one value."""
        return float(self(np.array([value]))[0])


def scale_for(
    values: Float64[np.ndarray, "n"], start: float, end: float, *, log: bool = False, from_zero: bool = False
) -> Scale:
    """A scale that holds all finite values (on a logarithmic one, those above 0), with a little room at its ends."""
    finite = values[np.isfinite(values) & ((values > 0) | (not log))]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (1.0, 1.0)
    if log:
        return Scale(low / 1.15, high * 1.15, start, end, log=True)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        # One value alone says how far it is from 0, and no more: nothing below 0 % or far above 100 % is to be read.
        return Scale(min(1.05 * low, 0.0), max(1.05 * high, 0.0) or float(low == 0), start, end)
    room = (high - low) * 0.05
    return Scale(low if from_zero and low == 0 else low - room, high + room, start, end)


def ticks(scale: Scale, wanted: int = 5, whole: bool = False) -> list[float]:
    """Round values within a scale, about so many: 1, 2 and 5 times powers of ten."""
    if scale.log:
        return _log_ticks(scale, wanted)
    span = scale.high - scale.low
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= wanted)
    step = max(1.0, step) if whole else step
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    # Rounded to the step's own digits, or 0.1 + 0.2 would be labelled with all of its seventeen.
    digits = max(0, -math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def _log_ticks(scale: Scale, wanted: int) -> list[float]:
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        within = [value for value in found if scale.low <= value <= scale.high]
        if len(within) < 2:
            break  # less than a decade: values in equal steps say more
        if len(within) <= wanted:
            return within
    if len(within) < 2:
        return ticks(Scale(scale.low, scale.high, scale.start, scale.end), wanted)
    return within[:: math.ceil(len(within) / wanted)]


def thin(values: Float64[np.ndarray, "n"], most: int) -> Int64[np.ndarray, "kept"]:
    """The indices of at most about `most` values that stand for all: no peak, no dip and no gap is lost.

    The curve is cut into equal stretches; of each the first, the last, the lowest, the highest and one that is not a
    number are kept.
    """
    if len(values) <= max(most, KEPT_OF_A_STRETCH):
        return np.arange(len(values))
    borders = np.linspace(0, len(values), max(1, most // KEPT_OF_A_STRETCH) + 1).astype(np.int64)
    kept = []
    for start, end in pairwise(borders.tolist()):
        stretch = values[start:end]
        finite = np.isfinite(stretch)
        kept += [start, end - 1]
        if finite.any():
            kept += [
                start + int(np.where(finite, stretch, np.inf).argmin()),
                start + int(np.where(finite, stretch, -np.inf).argmax()),
            ]
        if not finite.all():
            kept.append(start + int((~finite).argmax()))
    return np.unique(np.array(kept, np.int64))
