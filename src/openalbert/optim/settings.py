"""The settings of an optimizer, without torch: the command line reads them before torch is loaded (section 4.1)."""

import math
from dataclasses import dataclass
from typing import Literal

from openalbert.errors import UserError

PAPER_BATCH = 4096


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimizer learns, and with what numbers. The defaults are the paper's LAMB."""

    kind: Literal["lamb", "adamw"] = "lamb"
    """lamb as ALBERT used it for pretraining, or adamw, with bias correction, as for fine-tuning"""
    learning_rate: float = 0.00176
    """the highest learning rate, which the schedule scales; the paper's belongs to its batch of 4096"""
    betas: tuple[float, float] = (0.9, 0.999)
    """how much of the running mean of the gradient, and of its square, is kept at each step"""
    epsilon: float = 1e-6
    """added to the root of the mean square, against a division by zero"""
    weight_decay: float = 0.01
    """decay of every matrix; layer norms and biases are never decayed"""
    clip_norm: float = 1.0
    """the gradients of all parameters together are scaled down to this norm"""
    bias_correction: bool = False
    """LAMB variant: correct the running means for their start at zero"""
    adapt_everything: bool = False
    """LAMB variant: take a trust ratio for layer norms and biases too"""
    clamp_norm: bool = False
    """LAMB variant: count the norm of a weight as 10 at most"""

    def __post_init__(self) -> None:
        for name, value in (("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)):
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"{name} is {value}: give a number of 0 or more")
        for name, value in (("epsilon", self.epsilon), ("clip_norm", self.clip_norm)):
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}: give a number above 0")
        if not all(0 < beta < 1 for beta in self.betas):
            raise UserError(f"betas are {self.betas[0]} and {self.betas[1]}: give two numbers between 0 and 1")
        flags = ("bias_correction", "adapt_everything", "clamp_norm")
        given = [flag for flag in flags if getattr(self, flag)]
        if self.kind == "adamw" and given:
            raise UserError(f"{given[0]} is a variant of lamb but the optimizer is adamw: leave it out or take lamb")


def scaled_learning_rate(rate: float, batch: int, reference_batch: int = PAPER_BATCH) -> float:
    """The learning rate for another batch, by the square-root rule: with LAMB the noise of a step goes as 1/√batch."""
    if batch < 1 or reference_batch < 1:
        raise UserError(f"batch is {batch} and its reference is {reference_batch}: a batch has 1 sequence or more")
    return rate * math.sqrt(batch / reference_batch)


def scaling_sentence(rate: float, batch: int, reference_batch: int = PAPER_BATCH) -> str:
    """What `scaled_learning_rate` did, for the user to read."""
    scaled = scaled_learning_rate(rate, batch, reference_batch)
    return (
        f"learning rate {scaled:.4g} for batch {batch}: "
        f"{rate:.4g} at batch {reference_batch} times the square root of {batch}/{reference_batch}"
    )
