"""Optimizer settings (section 4.1). No torch, because the command line reads them before torch is loaded."""

import math
from dataclasses import dataclass
from typing import Literal

from openalbert.errors import UserError

PAPER_BATCH = 4096

NewtonSchulz = Literal["quintic", "polar-express"]
OPTIMIZER_NAMES = {"lamb": "LAMB", "adamw": "AdamW", "muon": "Muon"}

_OF_LAMB = ("bias_correction", "adapt_everything", "clamp_norm")
_OF_MUON = ("matrix_learning_rate", "momentum", "rest", "newton_schulz", "newton_schulz_iterations")


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer and its hyperparameters. The defaults are the paper's LAMB."""

    kind: Literal["lamb", "adamw", "muon"] = "lamb"
    """lamb as ALBERT used it for pretraining; adamw, with bias correction, as for fine-tuning; or muon for the matrices
    of the layers, with one of the two for everything else"""
    learning_rate: float | None = 0.00176
    """the highest learning rate, which the schedule scales; the paper's is for its batch of 4096. With muon it applies
    to everything but the matrices of the layers. Not given in fine-tuning: by task and trained weights"""
    betas: tuple[float, float] = (0.9, 0.999)
    """how much of the running mean of the gradient, and of its square, is kept at each step"""
    epsilon: float = 1e-6
    """added to the root of the mean square to avoid division by zero"""
    weight_decay: float = 0.01
    """decay of every matrix; layer norms and biases are never decayed"""
    clip_norm: float = 1.0
    """gradients are scaled down to this global norm"""
    bias_correction: bool = False
    """LAMB variant: bias correction of the running means"""
    adapt_everything: bool = False
    """LAMB variant: use a trust ratio for layer norms and biases too"""
    clamp_norm: bool = False
    """LAMB variant: clamp the norm of a weight to 10"""
    matrix_learning_rate: float = 0.01
    """Muon: the highest learning rate of the matrices of the layers; scaled like learning_rate"""
    momentum: float = 0.95
    """Muon: Nesterov momentum"""
    rest: Literal["lamb", "adamw"] = "lamb"
    """Muon: the optimizer of embeddings, heads, layer norms and biases"""
    newton_schulz: NewtonSchulz = "quintic"
    """Muon: the polynomials that orthogonalize an update, Jordan's quintic or Polar Express"""
    newton_schulz_iterations: int = 5
    """Muon: number of iterations"""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "matrix_learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UserError(f"{name} is {value}: give a number of 0 or more")
        for name, value in (("epsilon", self.epsilon), ("clip_norm", self.clip_norm)):
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}: give a number above 0")
        if not all(0 < beta < 1 for beta in self.betas):
            raise UserError(f"betas are {self.betas[0]} and {self.betas[1]}: give two numbers between 0 and 1")
        if not 0 < self.momentum < 1:
            raise UserError(f"momentum is {self.momentum}: give a number between 0 and 1")
        if self.newton_schulz_iterations < 1:
            raise UserError(f"newton_schulz_iterations is {self.newton_schulz_iterations}: give 1 or more")
        if self.kind == "muon" and self.learning_rate == 0:
            raise UserError("learning_rate is 0 but muon needs a rate above 0 for everything but the matrices")
        has_lamb = "lamb" in (self.kind, self.rest if self.kind == "muon" else None)
        if not has_lamb and (given := self._given(_OF_LAMB)):
            used = "adamw" if self.kind == "adamw" else "muon with adamw for the rest"
            raise UserError(f"{given[0]} is a variant of lamb but the optimizer is {used}: leave it out or use lamb")
        if self.kind != "muon" and (given := self._given(_OF_MUON)):
            raise UserError(f"{given[0]} belongs to muon but the optimizer is {self.kind}: leave it out or use muon")

    @property
    def highest_rate(self) -> float:
        """The learning rate of a run, which has one once it starts."""
        if self.learning_rate is None:
            raise UserError("learning_rate is not given: give a number of 0 or more")
        return self.learning_rate

    def _given(self, names: tuple[str, ...]) -> list[str]:
        """The settings that are not at their default."""
        return [name for name in names if getattr(self, name) != getattr(type(self), name)]


# For ALBERT at batches of 256: of the rates that were tried, the best (results/muon-h200).
MUON = OptimizerSettings(kind="muon", learning_rate=0.006, matrix_learning_rate=0.01)


def scaled_learning_rate(rate: float, batch: int, reference_batch: int = PAPER_BATCH) -> float:
    """The learning rate for another batch size by the square-root rule: gradient noise is proportional to 1/√batch."""
    if batch < 1 or reference_batch < 1:
        raise UserError(f"batch is {batch} and its reference is {reference_batch}: a batch has 1 sequence or more")
    return rate * math.sqrt(batch / reference_batch)


def scaling_sentence(rate: float, batch: int, reference_batch: int = PAPER_BATCH) -> str:
    """Explain what `scaled_learning_rate` did."""
    scaled = scaled_learning_rate(rate, batch, reference_batch)
    return (
        f"learning rate {scaled:.4g} for batch {batch}: "
        f"{rate:.4g} at batch {reference_batch} times the square root of {batch}/{reference_batch}"
    )
