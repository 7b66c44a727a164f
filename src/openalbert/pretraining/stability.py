"""Two ways in which pretraining goes wrong without a crash, noticed and told once: it never leaves the plateau of word
frequencies, or it loses what it had learned."""

import math
from dataclasses import dataclass
from typing import Any

PLATEAU_PROGRESS = 0.2  # from here on a loss at the word frequencies is worth a word
PLATEAU_STEPS = 100  # and not before so many steps: every model begins with the frequencies
PLATEAU_MARGIN = 0.25  # nats under the unigram entropy that a model which learns more than frequencies has
LOST = 1.0  # nats over the lowest mean so far
LOST_STEPS = 100  # of which a mean is taken: fewer may be hard text, or noise


@dataclass
class Watch:
    """The MLM loss from record to record; a checkpoint holds what was seen of it."""

    unigram_entropy: float
    is_growing: bool = False
    """Whether the depth grows: then growing it is no advice."""
    lowest: float = math.inf
    """Of the means so far, at this depth."""
    depth: int = 0
    sum_of_losses: float = 0.0
    """Over the steps since the last mean was taken."""
    steps: int = 0
    is_plateau_told: bool = False
    is_lost_told: bool = False

    def look(self, loss: float, steps: int, depth: int, step: int, progress: float) -> tuple[str, str] | None:
        """What a person should know of the mean loss of the last so many steps: a kind and a sentence."""
        return self._is_lost(loss, steps, depth) or self._is_on_the_plateau(loss, step, progress)

    def _is_lost(self, loss: float, steps: int, depth: int) -> tuple[str, str] | None:
        if self.depth != depth:  # with more layers it may go up at first
            self.depth, self.lowest, self.sum_of_losses, self.steps = depth, math.inf, 0.0, 0
        self.sum_of_losses += loss * steps
        self.steps += steps
        if self.steps < LOST_STEPS:
            return None
        mean, before = self.sum_of_losses / self.steps, self.lowest
        self.lowest, self.sum_of_losses, self.steps = min(before, mean), 0.0, 0
        if mean <= before + LOST or self.is_lost_told:
            return None
        self.is_lost_told = True
        return "lost", (
            f"the MLM loss has risen from {before:.3f} to {mean:.3f}: what was learned is being lost. Begin "
            "again with a lower --optimizer.learning-rate; weights that were trained before bear a quarter of the rate "
            "that they were trained with"
        )

    def _is_on_the_plateau(self, loss: float, step: int, progress: float) -> tuple[str, str] | None:
        is_early = progress < PLATEAU_PROGRESS or step < PLATEAU_STEPS
        if is_early or self.is_plateau_told or loss < self.unigram_entropy - PLATEAU_MARGIN:
            return None
        self.is_plateau_told = True
        advice = "" if self.is_growing else "start shallow with --depth-schedule, or "
        return "plateau", (
            f"the MLM loss {loss:.3f} is no better than word frequencies ({self.unigram_entropy:.3f}): "
            f"{advice}take a smaller batch or a higher learning rate"
        )

    def state(self) -> dict[str, Any]:
        """What was seen of the loss, as JSON values."""
        return {name: value for name, value in vars(self).items() if name not in ("unigram_entropy", "is_growing")}
