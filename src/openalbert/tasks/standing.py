"""How a run has done so far: what decides which weights are kept, and whether it ends early. A checkpoint holds it."""

from dataclasses import dataclass
from typing import Any


@dataclass
class Standing:
    """The scores of a run's evaluations, as far as they matter later."""

    first: float | None = None
    """The score of the first evaluation."""
    best: float | None = None
    since_best: int = 0
    """Evaluations since the best one."""
    evaluated_at: int = -1
    """The step of the last evaluation."""
    has_ended: bool = False
    """Whether the run ended before its budget was spent: nothing more is to be learned."""

    def take(self, score: float, step: int) -> None:
        """Note an evaluation; of equal scores the earlier one is the best."""
        self.evaluated_at = step
        self.first = score if self.first is None else self.first
        is_best = self.best is None or score > self.best
        self.best = score if is_best else self.best
        self.since_best = 0 if is_best else self.since_best + 1

    def is_best_at(self, step: int) -> bool:
        """Whether the weights of this step were evaluated, and never better before."""
        return self.evaluated_at == step and self.since_best == 0

    def is_out_of(self, patience: int | None) -> bool:
        """Whether so many evaluations in a row were no better than the best.

        A score that has not risen yet may still be about to: most runs begin with the majority class.
        """
        return patience is not None and self.since_best >= patience and self.best != self.first

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))
