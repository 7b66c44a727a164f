"""Values of any size: learned as deviations from their mean in units of their spread, told as they are.

A head begins with answers near 0, and the learning rate moves it by a few units at most: prices in thousands it would
never reach. What the model folder gets is a head that gives the values themselves.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from torch import nn

from openalbert.finetuning.predict import Outputs
from openalbert.model.albert import AlbertModel
from openalbert.tasks.task import Sequences


@dataclass(frozen=True)
class Units:
    """Mean and standard deviation of the values that are learned from."""

    mean: float
    spread: float

    @classmethod
    def of(cls, values: Float64[np.ndarray, "examples"]) -> "Units":
        """Those of some values, which are not all the same."""
        return cls(float(values.mean()), float(values.std()))

    def learned(self, sequences: Sequences, values: Float64[np.ndarray, "examples"]) -> Sequences:
        """The same examples with their values as they are learned.

        The mean is taken from the values as they were read: as 32-bit numbers, times of one hour would be few.
        """
        learned = ((values - self.mean) / self.spread).astype(np.float32)
        return replace(sequences, targets={**sequences.targets, "regression": learned})

    def told(self, outputs: Outputs) -> Outputs:
        """What a model that learns says, in values as they are."""
        values = (outputs.scores["regression"].astype(np.float64) * self.spread + self.mean).astype(np.float32)
        return Outputs({**outputs.scores, "regression": values})

    @torch.no_grad()
    def to_values(self, model: AlbertModel) -> None:
        """Have the head give the values themselves."""
        head = _head(model)
        head.weight.mul_(self.spread)
        head.bias.mul_(self.spread).add_(self.mean)

    @torch.no_grad()
    def from_values(self, model: AlbertModel) -> None:
        """Have a head that gives values give what is learned."""
        head = _head(model)
        head.weight.div_(self.spread)
        head.bias.sub_(self.mean).div_(self.spread)


def _head(model: AlbertModel) -> nn.Linear:
    head = model.heads["regression"].dense
    assert isinstance(head, nn.Linear)
    return head
