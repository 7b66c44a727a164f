"""What a run will take, estimated from its first steps, compared with what it took: time, memory and disk."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from openalbert.formatting import duration, size
from openalbert.optim.schedule import Budget
from openalbert.train.depth_schedule import DepthSchedule
from openalbert.train.device import Device

TIMED_STEPS = range(3, 9)  # that an estimate is based on: after compiling, before anybody waits
DRY_WARM_UP = 2  # steps of a dry run that are not timed
DRY_STEPS = 9  # that a dry run takes at most
DRY_SECONDS = 10.0  # after which a dry run ends, if at least one step was timed


class StepTimes:
    """How long a run's first steps take: the median, which ignores a single step that had to wait."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def add(self, seconds: float) -> float | None:
        """Add the time when a step ended; returns the seconds of a step once, as soon as they are known."""
        if len(self._ends) == TIMED_STEPS.stop:
            return None
        self._ends.append(seconds)
        if len(self._ends) < TIMED_STEPS.stop:
            return None
        return statistics.median(after - before for before, after in pairwise(self._ends[TIMED_STEPS.start - 1 :]))


class DryTimes:
    """How long the few steps of a dry run take."""

    def __init__(self) -> None:
        self._ends = [0.0]

    def add(self, seconds: float) -> float:
        """Add the time when a step ended; returns how long the step took."""
        self._ends.append(seconds)
        return self._ends[-1] - self._ends[-2]

    @property
    def are_enough(self) -> bool:
        """Whether they suffice for an estimate: a few steps where they are fast, one where they are slow."""
        steps = len(self._ends) - 1
        return steps >= DRY_STEPS or (steps > DRY_WARM_UP and self._ends[-1] >= DRY_SECONDS)

    @property
    def median(self) -> float:
        """The seconds of a step after the warm-up; of the last step if there are no others."""
        first = min(DRY_WARM_UP, len(self._ends) - 2)
        return statistics.median(after - before for before, after in pairwise(self._ends[first:]))


@dataclass(frozen=True)
class Needs:
    """What a run takes, or took."""

    steps: int
    tokens: int
    hours: float
    memory_bytes: int
    disk_bytes: int

    def as_dict(self) -> dict[str, int | float]:
        """As JSON values."""
        return asdict(self)


def estimate(
    budget: Budget,
    depths: DepthSchedule,
    cost: Callable[[int], float],
    *,
    step_seconds: float,
    step_tokens: float,
    depth: int,
    memory_bytes: int,
    disk_bytes: int,
) -> Needs:
    """The needs of a run, given the time and the tokens of one step at some depth.

    `cost` is what a step at a depth costs, in any unit.
    """
    mean_seconds = step_seconds * mean_cost(depths, cost, by_time=budget.minutes is not None) / cost(depth)
    if budget.steps is not None:
        steps = float(budget.steps)
    elif budget.tokens is not None:
        steps = budget.tokens / step_tokens
    else:
        steps = (budget.minutes or 0.0) * 60 / mean_seconds
    return Needs(round(steps), round(steps * step_tokens), steps * mean_seconds / 3600, memory_bytes, disk_bytes)


def checkpoint_bytes(weights: int, optimizer: int, num_checkpoints: int) -> int:
    """Disk that a run needs: checkpoints of weights and optimizer state, and one model folder."""
    return (weights + optimizer) * num_checkpoints + weights


def mean_cost(depths: DepthSchedule, cost: Callable[[int], float], by_time: bool) -> float:
    """The cost of a mean step. Stages are fractions of the steps, or of the time: then a shallow one has more steps."""
    if by_time:
        return 1 / sum(fraction / cost(depth) for depth, fraction in _stages(depths))
    return work_until(1.0, depths, cost)


def work_until(progress: float, depths: DepthSchedule, cost: Callable[[int], float]) -> float:
    """The work that is done at a progress through the steps of a run, of which all would cost 1 at a cost of 1."""
    return sum(cost(depth) * fraction for depth, fraction in _stages(depths, progress))


def _stages(depths: DepthSchedule, progress: float = 1.0) -> list[tuple[int, float]]:
    """Each depth that is run up to a progress, and the fraction of the whole run that it is run for up to there."""
    ends = [*(stage.start for stage in depths.stages[1:]), 1.0]
    return [
        (stage.depth, min(end, progress) - stage.start)
        for stage, end in zip(depths.stages, ends, strict=True)
        if stage.start < progress
    ]


def measured(folder: Path, steps: int, tokens: int, seconds: float, device: Device) -> Needs:
    """What a run took."""
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Needs(steps, tokens, seconds / 3600, device.peak_memory(), disk)


def estimate_table(estimated: dict[str, int | float], actual: dict[str, int | float] | None = None) -> str:
    """Estimate and, if given, actual values as a table."""
    formats: dict[str, Callable[[int | float], str]] = {
        "steps": "{:,.0f}".format,
        "tokens": "{:,.0f}".format,
        "hours": lambda hours: duration(3600 * hours),
        "memory_bytes": size,
        "disk_bytes": size,
    }
    lines = [f"{'':10s}{'estimate':>18s}" + (f"{'actual':>18s}" if actual else "")]
    for name, form in formats.items():
        label = "time" if name == "hours" else name.removesuffix("_bytes")
        line = f"{label:10s}{form(estimated[name]):>18s}"
        lines.append(line + (f"{form(actual[name]):>18s}" if actual else ""))
    return "\n".join(lines)
