"""Low-rank adapters (LoRA, arXiv 2106.09685) on the linear maps of the layers, and merging them into the weights.

Where layers share their blocks, they share the adapters too: one adapter acts at every depth, and merging gives a model
of the same shape.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from openalbert.model.encoder import AlbertEncoder
from openalbert.model.kernels.cpu_linear import Linear
from openalbert.model.layer import StackedLinear

SCALE = 2.0  # of the update, as in LoRA's alpha / rank; it only rescales the learning rate of the adapters
MAPS = {"attention": ("qkv", "output"), "ffn": ("up", "down")}


class AdaptedLinear(StackedLinear):
    """A linear map whose matrix is fixed, plus a trained update of low rank: W + scale · up · down.

    The update is never formed in training: `down` and then `up` cost a hundredth of the map itself, and W needs no
    gradient, which is a third of the cost of a step.
    """

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.stacked = linear.stacked if isinstance(linear, StackedLinear) else 1
        self.weight, self.bias = linear.weight, linear.bias
        # Stacked maps get as much rank together as they would have one by one.
        rank = min(rank * self.stacked, self.in_features)
        bound = 1 / math.sqrt(self.in_features)
        self.lora_down = nn.Parameter(torch.empty_like(self.weight[:rank]).uniform_(-bound, bound))
        self.lora_up = nn.Parameter(self.weight.new_zeros(self.out_features, rank))

    def forward(
        self, x: Float[Tensor, "*tokens inputs"], first: int = 0, last: int | None = None
    ) -> Float[Tensor, "*tokens outputs"]:
        """Apply the maps from `first` up to `last`, all of them if not given."""
        up = self.lora_up[self._rows(first, last)]
        return super().forward(x, first, last) + F.linear(SCALE * F.linear(x, self.lora_down), up)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One matrix that computes the same."""
        linear = (
            StackedLinear(self.stacked, self.in_features, self.out_features // self.stacked)
            if self.stacked > 1
            else Linear(self.in_features, self.out_features)
        ).to(self.weight)
        linear.weight.copy_(self.weight + SCALE * self.lora_up @ self.lora_down)
        linear.bias.copy_(self.bias)
        return linear


def add_adapters(encoder: AlbertEncoder, rank: int) -> None:
    """Give each linear map of the layers an adapter, whose update is 0 at first; only adapters are left to train."""
    encoder.requires_grad_(False)
    for block, name, linear in _maps(encoder):
        setattr(block, name, AdaptedLinear(linear, rank))


def merge_adapters(encoder: AlbertEncoder) -> None:
    """Replace each adapted map by one ordinary matrix."""
    for block, name, linear in _maps(encoder):
        if isinstance(linear, AdaptedLinear):
            setattr(block, name, linear.merged())


def _maps(encoder: AlbertEncoder) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Each linear map of the layers, with the block that holds it and its name there."""
    return [
        (block, name, getattr(block, name))
        for kind, names in MAPS.items()
        for block in getattr(encoder, kind)
        for name in names
    ]
