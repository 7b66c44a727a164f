"""The encoder: factorized embedding (section 3.1 of the paper), layers with shared blocks, and the pooler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig, block_of_layer
from openalbert.model.kernels.cpu_linear import Linear, fill_rows
from openalbert.model.layer import Attention, Bf16Copies, FeedForward
from openalbert.model.packing import Layout, Rows


@dataclass(frozen=True)
class Encoded:
    """The encoder's output for a batch, padded (batch x length) or packed (tokens)."""

    hidden: Float[Tensor, "*tokens hidden"]
    """Output of the last layer for all tokens, or for the requested ones."""
    pooled: Float[Tensor, "sequences hidden"]
    """One vector per sequence, from its [CLS]."""
    states: tuple[Float[Tensor, "*all_tokens hidden"], ...] = ()
    """On request: the input of the first layer, then the output of each layer."""
    pooled_states: tuple[Float[Tensor, "sequences hidden"], ...] = ()
    """With the states: the pooled [CLS] of every layer but the last."""


class FactorizedEmbedding(nn.Module):
    """V x H becomes V x E and E x H: word, position and segment embeddings and their layer norm have size E; one linear
    map takes them to H.

    Where E = H there is no map: this is BERT's embedding.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.word = _table(config.vocab_size, config.embedding_size)
        self.position = _table(config.max_positions, config.embedding_size)
        self.segment = _table(config.num_segments, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_epsilon)
        # As in Google's code, dropout comes before the map, and there is none after it.
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.map = Linear(config.embedding_size, config.hidden_size) if config.maps_embedding else nn.Identity()

    def forward(
        self, ids: Int[Tensor, "*tokens"], segments: Int[Tensor, "*tokens"], positions: Int[Tensor, "*#tokens"]
    ) -> Float[Tensor, "*tokens hidden"]:
        """Embed tokens."""
        embedded = self.word(ids) + self.position(positions) + self.segment(segments)
        mapped: Tensor = self.map(self.dropout(self.norm(embedded)))
        return mapped


def _table(rows: int, size: int) -> nn.Embedding:
    """An embedding that the model will initialize: torch's own initialization is slow and loads its compiler."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
    return table


def run_layer(
    attention: nn.Module,
    ffn: nn.Module,
    hidden: Tensor,
    layout: Layout,
    rows: Rows | None,
    attention_copies: Bf16Copies | None,
    ffn_copies: Bf16Copies | None,
) -> Tensor:
    """One layer: the attention block, then the feed-forward block."""
    out: Tensor = ffn(attention(hidden, layout, rows, attention_copies), ffn_copies)
    return out


class AlbertEncoder(nn.Module):
    """ALBERT up to its pooler. Depth is a run-time number, since shared layers can be repeated any number of times."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = FactorizedEmbedding(config)
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.sharing.attention))
        self.ffn = nn.ModuleList(FeedForward(config) for _ in range(config.sharing.ffn))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.recomputes_activations = False
        """In training, store only the input of each layer and recompute the rest in the backward pass."""
        self.run_layer = run_layer
        """The function that runs a layer, eager or compiled. One compiled layer serves every depth."""
        self.is_fused = False
        """In training, whether linear maps and attention use our own kernels (fused_linear.py)."""
        self.attend_masked: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
        """In training, attention over a padded batch if it is not torch's own."""

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

        With `at` (batch x asked for padded batches, token numbers for packed ones) the last layer computes only these
        positions and [CLS]; the result there is the same.
        """
        depth = self.config.num_layers if depth is None else depth
        if not 1 <= depth <= self.config.num_layers:
            raise UserError(
                f"depth is {depth}, but it must be from 1 to {self.config.num_layers}, the number of layers"
            )
        if at is not None and all_states:
            raise UserError("all_states needs all positions: give either all_states or at")
        hidden = self.embedding(ids, segments, layout.positions(ids))
        if ids.dim() == 1:
            hidden = fill_rows(hidden)
        states = [hidden]
        copies = self._bf16_copies(depth)
        for layer in range(depth - 1):
            hidden = self._layer(layer, hidden, layout, copies)
            states.append(hidden)
        if at is None:
            hidden = self._layer(depth - 1, hidden, layout, copies)[: len(ids)]
            states.append(hidden)
            pooled = self.pool(layout.first(hidden))
            if not all_states:
                return Encoded(hidden, pooled)
            states = [state[: len(ids)] for state in states]
            return Encoded(
                hidden, pooled, tuple(states), tuple(self.pool(layout.first(state)) for state in states[1:-1])
            )
        rows = layout.first_and_asked(at)
        first, hidden = rows.split(self._layer(depth - 1, hidden, layout, copies, rows))
        return Encoded(hidden, self.pool(first))

    def _bf16_copies(self, depth: int) -> dict[nn.Module, Bf16Copies]:
        if not (self.is_fused and torch.is_grad_enabled()):
            return {}
        blocks = dict.fromkeys(block for layer in range(depth) for block in self.blocks(layer))
        return {block: block.bf16_copies() for block in blocks}

    def blocks(self, layer: int) -> tuple[Attention, FeedForward]:
        """The attention and the feed-forward block of a layer."""
        attention = self.attention[block_of_layer(layer, len(self.attention), self.config.num_layers)]
        ffn = self.ffn[block_of_layer(layer, len(self.ffn), self.config.num_layers)]
        return cast(Attention, attention), cast(FeedForward, ffn)

    def _layer(
        self, layer: int, hidden: Tensor, layout: Layout, copies: dict[nn.Module, Bf16Copies], rows: Rows | None = None
    ) -> Tensor:
        attention, ffn = self.blocks(layer)
        arguments = (attention, ffn, hidden, layout, rows, copies.get(attention), copies.get(ffn))
        if self.recomputes_activations and self.training:
            out: Tensor = checkpoint(self.run_layer, *arguments, use_reentrant=False)
            return out
        return self.run_layer(*arguments)

    def pool(self, first: Float[Tensor, "sequences hidden"]) -> Float[Tensor, "sequences hidden"]:
        """The pooled vector of each sequence, from its [CLS]."""
        return torch.tanh(self.pooler(first))
