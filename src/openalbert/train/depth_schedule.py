"""The depth schedule: layers are added while a model trains.

It is the warm start from a shallower model of the paper's appendix A.1, within one run. Needs no torch.
"""

from bisect import bisect_right
from dataclasses import dataclass

from openalbert.errors import UserError


@dataclass(frozen=True)
class DepthStage:
    """The number of layers from one point of the budget on."""

    depth: int
    """number of layers"""
    start: float = 0.0
    """fraction of the budget at which it begins"""


@dataclass(frozen=True)
class DepthSchedule:
    """The number of layers over a run: with shared layers a shallow start costs less and learns faster."""

    stages: tuple[DepthStage, ...]
    """from shallow to deep, in the order in which they run"""

    @staticmethod
    def parse(text: str, num_layers: int) -> "DepthSchedule":
        """Parse `3,6@0.25,12@0.5`: first 3 layers, 6 from a quarter of the budget on, all 12 from half of it on."""
        stages = tuple(_stage(word, text) for word in text.split(","))
        return DepthSchedule(stages).checked(num_layers)

    def checked(self, num_layers: int) -> "DepthSchedule":
        """The same schedule, if it is valid for a model with this many layers."""
        name = f"depth schedule '{self}'"
        if not self.stages or self.stages[0].start != 0:
            raise UserError(f"{name}: the first depth starts at 0: write it without a fraction, as in '3,12@0.5'")
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if not before.start < after.start < 1:
                raise UserError(
                    f"{name}: depth {after.depth} begins at {after.start}, after one that begins at {before.start}: "
                    "the fractions must rise and stay below 1"
                )
            if not before.depth < after.depth:
                raise UserError(f"{name}: depth {after.depth} follows depth {before.depth}: the depths must rise")
        if self.stages[0].depth < 1:
            raise UserError(f"{name}: depth {self.stages[0].depth} is not a depth: give 1 layer or more")
        if self.stages[-1].depth != num_layers:
            raise UserError(
                f"{name}: it ends at depth {self.stages[-1].depth} but the model has {num_layers} layers: "
                f"end it with {num_layers}"
            )
        return self

    def depth(self, progress: float) -> int:
        """The number of layers at this progress through the budget."""
        return self.stages[bisect_right(self.stages, progress, key=lambda stage: stage.start) - 1].depth

    def __str__(self) -> str:
        return ",".join(f"{stage.depth}@{stage.start!r}" if stage.start else str(stage.depth) for stage in self.stages)


def _stage(word: str, text: str) -> DepthStage:
    depth, at, start = word.strip().partition("@")
    try:
        return DepthStage(int(depth), float(start) if at else 0.0)
    except ValueError:
        raise UserError(
            f"depth schedule '{text}': '{word}' is not understood: write depths with the fraction of the run "
            "at which each begins, as in '3,6@0.25,12@0.5'"
        ) from None
