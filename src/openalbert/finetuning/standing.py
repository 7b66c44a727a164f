"""How a run has done so far: what decides which weights are kept, and whether it ends early. A checkpoint holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Standing:
    """The scores of a run's evaluations, as far as they matter later; a higher one is better."""

    first: float | None = None
    """The score of the first evaluation."""
    best: float | None = None
    best_tie_breaks: list[float] = field(default_factory=list)
    """Of the best evaluation: what decides between equal scores."""
    best_at: int = -1
    """The step of the best evaluation."""
    since_best: int = 0
    """Evaluations since the score last rose; a tie that was broken is no rise."""
    evaluated_at: int = -1
    """The step of the last evaluation."""
    has_ended: bool = False
    """Whether the run ended before its budget was spent: nothing more is to be learned."""

    def take(self, score: float, step: int, tie_breaks: Sequence[float] = ()) -> None:
        """Note an evaluation. Of equal scores the one with the higher tie breaks is the best, compared in their order;
        where those are equal as well, the earlier one."""
        self.evaluated_at = step
        self.first = score if self.first is None else self.first
        has_risen = self.best is None or score > self.best
        if has_risen or (score == self.best and list(tie_breaks) > self.best_tie_breaks):
            self.best, self.best_tie_breaks, self.best_at = score, list(tie_breaks), step
        self.since_best = 0 if has_risen else self.since_best + 1

    def is_best_at(self, step: int) -> bool:
        """Whether the weights of this step were evaluated last, and never better before."""
        return self.evaluated_at == self.best_at == step

    def is_out_of(self, patience: int | None) -> bool:
        """Whether so many evaluations in a row were no better than the best.

        A score that has not risen yet may still be about to: most runs begin with the majority class.
        """
        return patience is not None and self.since_best >= patience and self.best != self.first

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))
