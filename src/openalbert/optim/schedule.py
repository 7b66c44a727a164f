"""The schedule of the learning rate, as a function of the fraction of the budget that is spent.

The paper's is that of section 4.1 as in Google's code. Needs no torch.
"""

import math
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
