"""What a loss reports: sums that add up over micro-batches and ranks, so that means are taken once, over everything."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Score(NamedTuple):
    """Cross entropy and right answers, summed over predictions."""

    loss_sum: Float[Tensor, ""]
    """Cross entropy in nats, fp32; the loss of a step is this divided by the predictions of the whole step."""
    predictions: Int[Tensor, ""]
    correct: Int[Tensor, ""]

    @property
    def mean(self) -> Float[Tensor, ""]:
        """Mean cross entropy; 0 where nothing was predicted."""
        return self.loss_sum / self.predictions.clamp(min=1)

    @property
    def accuracy(self) -> Float[Tensor, ""]:
        """Share of right answers; 0 where nothing was predicted."""
        return self.correct / self.predictions.clamp(min=1)


def score(
    logits: Float[Tensor, "*rows classes"], labels: Int[Tensor, "*rows"], valid: Bool[Tensor, "*rows"] | None = None
) -> Score:
    """Score predictions, those that are `valid` or else all."""
    if valid is None:
        valid = torch.ones_like(labels, dtype=torch.bool)
    flat = logits.flatten(0, -2).float()
    # Rows to leave out become rows that cross entropy ignores: the shapes stay fixed.
    targets = torch.where(valid, labels, -100).flatten()
    loss_sum = F.cross_entropy(flat, targets, ignore_index=-100, reduction="sum")
    correct = (flat.detach().argmax(-1) == targets).sum()
    return Score(loss_sum, valid.sum(), correct)
