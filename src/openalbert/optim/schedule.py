"""Schedules of the learning rate and the depth, as functions of the fraction of the budget that is spent.

The paper's schedule is that of section 4.1 as in Google's code; growing the depth is the warm start from a shallower
model of appendix A.1, within one run. Needs no torch.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from openalbert.errors import UserError


@dataclass(frozen=True)
class Spent:
    """What a run has spent so far, including before it was resumed."""

    steps: int = 0
    """optimizer steps taken"""
    tokens: int = 0
    """tokens seen, over all devices"""
    minutes: float = 0.0
    """minutes of training; the time between a stop and a resume does not count"""


@dataclass(frozen=True)
class Budget:
    """The length of a run in steps, tokens or minutes: exactly one of them."""

    steps: int | None = None
    """number of optimizer steps"""
    tokens: int | None = None
    """number of tokens to see, over all devices"""
    minutes: float | None = None
    """minutes of training, wall clock"""

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            came = " and ".join(given) or "none of them"
            raise UserError(f"a budget is in steps, tokens or minutes but {came} came: give exactly one")
        for unit, amount in given.items():
            if not (math.isfinite(amount) and amount > 0):
                raise UserError(f"the budget is {amount} {unit}: give a finite number above 0")

    def _given(self) -> dict[str, int | float]:
        amounts = {"steps": self.steps, "tokens": self.tokens, "minutes": self.minutes}
        return {unit: amount for unit, amount in amounts.items() if amount is not None}

    @property
    def unit(self) -> str:
        """What the budget counts: steps, tokens or minutes."""
        return next(iter(self._given()))

    def progress(self, spent: Spent) -> float:
        """The fraction of the budget that is spent, from 0 to 1."""
        [(unit, amount)] = self._given().items()
        return min(float(getattr(spent, unit) / amount), 1.0)

    def is_spent(self, spent: Spent) -> bool:
        """Whether the run is over."""
        return self.progress(spent) >= 1.0

    def __str__(self) -> str:
        [(unit, amount)] = self._given().items()
        return f"{amount:,.15g} {unit.removesuffix('s') if amount == 1 else unit}"


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a run, as a fraction of the highest one, by the progress through the budget."""

    kind: Literal["paper", "linear", "constant"] = "paper"
    """paper: warm-up, then a linear decay counted from the start, with a small drop between them; linear: warm-up, then
    a linear decay that begins where the warm-up ends; constant: warm-up, then no decay"""
    warmup_fraction: float = 0.025
    """fraction of the budget over which the learning rate rises from 0; the paper's is 3,125 of 125,000 steps"""
    warmup_steps: int | None = None
    """the same in steps, for a budget in steps; it replaces warmup_fraction"""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_fraction < 1:
            raise UserError(
                f"warmup_fraction is {self.warmup_fraction}: give a fraction of the run, at least 0 and below 1"
            )
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise UserError(f"warmup_steps is {self.warmup_steps}: give 0 or more")

    def within(self, budget: Budget) -> "Schedule":
        """The same schedule with its warm-up as a fraction of this budget."""
        if self.warmup_steps is None:
            return self
        if budget.steps is None:
            raise UserError(
                f"warmup_steps is {self.warmup_steps} but the budget is in {budget.unit}: give warmup_fraction instead"
            )
        if self.warmup_steps >= budget.steps:
            raise UserError(
                f"warmup_steps is {self.warmup_steps} but the run has {budget.steps} steps: shorten the warm-up"
            )
        return replace(self, warmup_fraction=self.warmup_steps / budget.steps, warmup_steps=None)

    def factor(self, progress: float) -> float:
        """The fraction of the highest learning rate at this progress through the budget, from 0 to 1.

        A step uses the progress before it, as in Google's code: with a warm-up, the first step has a rate of 0.
        """
        if self.warmup_steps is not None:
            raise ValueError("the warm-up is in steps: call within(budget) first")
        if not 0 <= progress <= 1:
            raise ValueError(f"progress is {progress}: it is a fraction of the budget, from 0 to 1")
        if progress < self.warmup_fraction:
            return progress / self.warmup_fraction
        if self.kind == "paper":
            return 1 - progress
        if self.kind == "linear":
            return (1 - progress) / (1 - self.warmup_fraction)
        return 1.0

    def learning_rate(self, highest: float, progress: float) -> float:
        """The learning rate at this progress."""
        return highest * self.factor(progress)


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
