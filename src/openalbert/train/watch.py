"""Two ways in which pretraining goes wrong without a crash, noticed and told once: it never leaves the plateau of word
frequencies, or it loses what it had learned."""

from dataclasses import dataclass
from typing import Any

PLATEAU_PROGRESS = 0.2  # from here on a loss at the word frequencies is worth a word
PLATEAU_STEPS = 100  # and not before so many steps: every model begins with the frequencies
PLATEAU_MARGIN = 0.25  # nats under the unigram entropy that a model which learns more than frequencies has
LOST = 1.0  # nats over the lowest loss so far: no noise, no hard text


@dataclass
class Watch:
    """The masked-LM loss from record to record; a checkpoint holds what was seen of it."""

    unigram_entropy: float
    lowest: float | None = None
    depth: int = 0
    is_plateau_told: bool = False
    is_loss_told: bool = False

    def look(self, loss: float, depth: int, step: int, progress: float) -> tuple[str, str] | None:
        """What a person should know of the mean loss since the last record: a kind and a sentence."""
        if self.depth != depth:
            self.depth, self.lowest = depth, None  # with more layers it may go up at first
        before = loss if self.lowest is None else self.lowest
        self.lowest = min(before, loss)
        if loss > before + LOST and not self.is_loss_told:
            self.is_loss_told = True
            return "lost", (
                f"the masked-LM loss has risen from {before:.3f} to {loss:.3f}: what was learned is being lost. Begin "
                "again with a lower --optimizer.learning-rate; weights that were trained before bear a quarter of the "
                "rate that they were trained with"
            )
        is_early = progress < PLATEAU_PROGRESS or step < PLATEAU_STEPS
        if is_early or self.is_plateau_told or loss < self.unigram_entropy - PLATEAU_MARGIN:
            return None
        self.is_plateau_told = True
        return "plateau", (
            f"the masked-LM loss {loss:.3f} is no better than word frequencies ({self.unigram_entropy:.3f}): start "
            "shallow with --depth-schedule, or take a smaller batch or a higher learning rate"
        )

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))
