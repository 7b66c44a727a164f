"""What a run will take, before it is run: tokens, steps, hours, memory and disk; and what it took, beside that."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from openalbert.model.cost import memory, parameters_by_part
from openalbert.optim.schedule import DepthSchedule
from openalbert.train.device import Device
from openalbert.train.settings import Pretrain

TIMED_STEPS = range(3, 9)  # on which an estimate rests: after compiling, before anybody waits


class StepTimes:
    """How long a run's first steps take."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def add(self, seconds: float) -> float | None:
        """Note when a step ended; gives the seconds of a step, once they are known, and only then."""
        if len(self._ends) == TIMED_STEPS.stop:
            return None
        self._ends.append(seconds)
        if len(self._ends) < TIMED_STEPS.stop:
            return None
        return (self._ends[-1] - self._ends[TIMED_STEPS.start - 1]) / len(TIMED_STEPS)


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
    settings: Pretrain, micro_batch: int, step_seconds: float, step_tokens: float, depth: int, device: Device
) -> Needs:
    """The needs of a run, one of whose steps at this depth took so long and saw so many tokens."""
    budget = settings.budget
    # A step's time goes with the depth it runs at.
    mean_seconds = step_seconds * mean_depth(settings.depths, by_time=budget.minutes is not None) / depth
    if budget.steps is not None:
        steps = float(budget.steps)
    elif budget.tokens is not None:
        steps = budget.tokens / step_tokens
    else:
        steps = (budget.minutes or 0.0) * 60 / mean_seconds
    needed = memory(
        settings.model, micro_batch, settings.objective.max_length, device.precision, settings.speed.recompute
    )
    parameters = sum(parameters_by_part(settings.model).values())
    # A checkpoint is weights and two moments; the last few, the best and one being written; then the model folder.
    disk = 12 * parameters * (settings.keep_last + 2) + 4 * parameters
    return Needs(
        round(steps), round(steps * step_tokens), steps * mean_seconds / 3600, device.memory_before + needed.total, disk
    )


def mean_depth(depths: DepthSchedule, by_time: bool) -> float:
    """The depth of a mean step. Stages are shares of the steps, or of the time: then a shallow one has more steps."""
    ends = [*(stage.start for stage in depths.stages[1:]), 1.0]
    shares = [(stage.depth, end - stage.start) for stage, end in zip(depths.stages, ends, strict=True)]
    if by_time:
        return 1 / sum(share / depth for depth, share in shares)
    return sum(depth * share for depth, share in shares)


def measured(folder: Path, steps: int, tokens: int, seconds: float, device: Device) -> Needs:
    """What a run really took."""
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Needs(steps, tokens, seconds / 3600, device.peak_memory(), disk)


def side_by_side(estimated: dict[str, int | float], truth: dict[str, int | float] | None = None) -> str:
    """The figures as a table for people."""
    formats: dict[str, Callable[[int | float], str]] = {
        "steps": "{:,.0f}".format,
        "tokens": "{:,.0f}".format,
        "hours": _duration,
        "memory_bytes": _size,
        "disk_bytes": _size,
    }
    lines = [f"{'':10s}{'estimate':>18s}" + (f"{'truth':>18s}" if truth else "")]
    for name, form in formats.items():
        label = "time" if name == "hours" else name.removesuffix("_bytes")
        line = f"{label:10s}{form(estimated[name]):>18s}"
        lines.append(line + (f"{form(truth[name]):>18s}" if truth else ""))
    return "\n".join(lines)


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.2f} hours"
    return f"{60 * hours:.1f} minutes" if hours >= 1 / 60 else f"{3600 * hours:.1f} seconds"


def _size(number: int | float) -> str:
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
