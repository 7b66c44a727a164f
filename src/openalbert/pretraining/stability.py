"""Two ways in which pretraining fails without a crash, each reported once: it never leaves the plateau of word
frequencies, or it loses what it had learned."""

import math
from dataclasses import dataclass
from typing import Any

PLATEAU_PROGRESS = 0.2  # from here on a loss at the word frequencies is reported
PLATEAU_STEPS = 100  # and not before so many steps: every model learns the frequencies first
PLATEAU_MARGIN = 0.25  # nats under the unigram entropy that a model which learns more than frequencies has
LOST = 1.0  # nats over the lowest mean so far
LOST_STEPS = 100  # of which a mean is taken: fewer may be hard text, or noise


@dataclass
class LossMonitor:
    """The MLM loss from record to record; a checkpoint holds its state."""

    unigram_entropy: float
    is_growing: bool = False
    """Whether the depth grows: then growing it is no advice."""
    lowest: float = math.inf
    """Of the means so far, at this depth."""
    depth: int = 0
    sum_of_losses: float = 0.0
    """Over the steps since the last mean was taken."""
    steps: int = 0
    has_reported_plateau: bool = False
    has_reported_loss: bool = False

    def check(self, loss: float, steps: int, depth: int, step: int, progress: float) -> tuple[str, str] | None:
        """The kind and text of a warning, given the mean loss of the last so many steps; None if all is well."""
        return self._check_lost(loss, steps, depth) or self._check_plateau(loss, step, progress)

    def _check_lost(self, loss: float, steps: int, depth: int) -> tuple[str, str] | None:
        if self.depth != depth:  # with more layers it may go up at first
            self.depth, self.lowest, self.sum_of_losses, self.steps = depth, math.inf, 0.0, 0
        self.sum_of_losses += loss * steps
        self.steps += steps
        if self.steps < LOST_STEPS:
            return None
        mean, before = self.sum_of_losses / self.steps, self.lowest
        self.lowest, self.sum_of_losses, self.steps = min(before, mean), 0.0, 0
        if mean <= before + LOST or self.has_reported_loss:
            return None
        self.has_reported_loss = True
        return "lost", (
            f"the MLM loss has risen from {before:.3f} to {mean:.3f}: what was learned is being lost. Start "
            "over with a lower --optimizer.learning-rate; pretrained weights tolerate about a quarter of the rate that "
            "they were trained with"
        )

    def _check_plateau(self, loss: float, step: int, progress: float) -> tuple[str, str] | None:
        is_early = progress < PLATEAU_PROGRESS or step < PLATEAU_STEPS
        if is_early or self.has_reported_plateau or loss < self.unigram_entropy - PLATEAU_MARGIN:
            return None
        self.has_reported_plateau = True
        advice = "" if self.is_growing else "start shallow with --depth-schedule, or "
        return "plateau", (
            f"the MLM loss {loss:.3f} is no better than word frequencies ({self.unigram_entropy:.3f}): "
            f"{advice}take a smaller batch or a higher learning rate"
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, as JSON values."""
        return {name: value for name, value in vars(self).items() if name not in ("unigram_entropy", "is_growing")}
