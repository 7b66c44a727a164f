"""The encoder: factorized embedding, layers that share their parts, and the pooler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig, block_of_layer
from openalbert.model.embedding import FactorizedEmbedding
from openalbert.model.layer import Attention, Bf16Copies, FeedForward
from openalbert.model.packing import Layout, Rows


@dataclass(frozen=True)
class Encoded:
    """What the encoder makes of a batch, padded (batch x length) or packed (tokens)."""

    hidden: Float[Tensor, "*tokens hidden"]
    """The last layer's output, of all tokens or of the asked ones."""
    pooled: Float[Tensor, "sequences hidden"]
    """One vector for each sequence, made from its [CLS]."""
    states: tuple[Float[Tensor, "*all_tokens hidden"], ...] = ()
    """On request: what went into the first layer, then what came out of each."""


def run_layer(
    attention: nn.Module,
    ffn: nn.Module,
    hidden: Tensor,
    layout: Layout,
    rows: Rows | None,
    of_attention: Bf16Copies | None,
    of_ffn: Bf16Copies | None,
) -> Tensor:
    """One layer: the attention part, then the feed-forward part."""
    out: Tensor = ffn(attention(hidden, layout, rows, of_attention), of_ffn)
    return out


class AlbertEncoder(nn.Module):
    """ALBERT up to its pooler. Depth is a run-time number: shared layers can be passed any number of times."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = FactorizedEmbedding(config)
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.sharing.attention))
        self.ffn = nn.ModuleList(FeedForward(config) for _ in range(config.sharing.ffn))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.recomputes_activations = False
        """In training, keep only what goes into each layer and compute the rest again on the way back."""
        self.run_layer = run_layer
        """How a layer is run: as it is, or compiled. One compiled layer serves every depth."""
        self.is_fused = False
        """In training, whether linear maps and attention go by kernels of our own (fused_linear.py)."""
        self.attend_masked: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
        """How attention heeds the mask of a padded batch in training, if not by torch's own means."""

    def forward(
        self,
        ids: Int[Tensor, "*tokens"],
        segments: Int[Tensor, "*tokens"],
        layout: Layout,
        depth: int | None = None,
        at: Int[Tensor, "*asked"] | None = None,
        all_states: bool = False,
    ) -> Encoded:
        """Encode a batch, through all layers or the first `depth` of them.

        With `at` (batch x asked for padded batches, token numbers for packed ones) the last layer works only on these
        positions and [CLS]; the result at them is the same.
        """
        depth = self.config.num_layers if depth is None else depth
        if not 1 <= depth <= self.config.num_layers:
            raise UserError(f"depth is {depth}, but this model has 1 to {self.config.num_layers} layers to pass")
        if at is not None and all_states:
            raise UserError("states of all layers need all positions: ask for either all_states or at")
        hidden = self.embedding(ids, segments, layout.positions(ids))
        states = [hidden]
        bf16_copies = self._bf16_copies(depth)
        for layer in range(depth - 1):
            hidden = self._layer(layer, hidden, layout, bf16_copies)
            states.append(hidden)
        if at is None:
            hidden = self._layer(depth - 1, hidden, layout, bf16_copies)
            states.append(hidden)
            return Encoded(hidden, self._pool(layout.first(hidden)), tuple(states) if all_states else ())
        rows = layout.first_and_asked(at)
        first, hidden = rows.split(self._layer(depth - 1, hidden, layout, bf16_copies, rows))
        return Encoded(hidden, self._pool(first))

    def _bf16_copies(self, depth: int) -> dict[nn.Module, Bf16Copies]:
        if not (self.is_fused and torch.is_grad_enabled()):
            return {}
        parts = dict.fromkeys(part for layer in range(depth) for part in self._parts(layer))
        return {part: part.bf16_copies() for part in parts}

    def _parts(self, layer: int) -> tuple[Attention, FeedForward]:
        attention = self.attention[block_of_layer(layer, len(self.attention), self.config.num_layers)]
        ffn = self.ffn[block_of_layer(layer, len(self.ffn), self.config.num_layers)]
        return cast(Attention, attention), cast(FeedForward, ffn)

    def _layer(
        self,
        layer: int,
        hidden: Tensor,
        layout: Layout,
        bf16_copies: dict[nn.Module, Bf16Copies],
        rows: Rows | None = None,
    ) -> Tensor:
        attention, ffn = self._parts(layer)
        given = (attention, ffn, hidden, layout, rows, bf16_copies.get(attention), bf16_copies.get(ffn))
        if self.recomputes_activations and self.training:
            again: Tensor = checkpoint(self.run_layer, *given, use_reentrant=False)
            return again
        return self.run_layer(*given)

    def _pool(self, first: Tensor) -> Tensor:
        return torch.tanh(self.pooler(first))
