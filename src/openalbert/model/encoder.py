"""The encoder: factorized embedding (section 3.1 of the paper), layers with shared blocks, and the pooler.

The attention block and the feed-forward block of a layer, each with the layer norm after it, are the units of sharing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openalbert.errors import UserError
from openalbert.model.config import Activation, AlbertConfig, block_of_layer
from openalbert.model.kernels.fused_linear import gelu_by_sigmoid, linear, linear_attend, linear_gelu
from openalbert.model.packing import Layout, Padded, Rows

Bf16Copies: TypeAlias = tuple[Tensor, Tensor]
"""bf16 copies of a block's two weight matrices, made once for all layers that share them. With them, the block runs
our fused kernels."""


@dataclass(frozen=True)
class Encoded:
    """The encoder's output for a batch, padded (batch x length) or packed (tokens)."""

    hidden: Float[Tensor, "*tokens hidden"]
    """Output of the last layer for all tokens, or for the requested ones."""
    pooled: Float[Tensor, "sequences hidden"]
    """One vector per sequence, from its [CLS]."""
    states: tuple[Float[Tensor, "*all_tokens hidden"], ...] = ()
    """On request: the input of the first layer, then the output of each layer."""


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
        self.map = nn.Linear(config.embedding_size, config.hidden_size) if config.maps_embedding else nn.Identity()

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


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply a nonlinearity by name."""
    if activation == "relu":
        return F.relu(x)
    if activation == "gelu_tanh" and torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled():
        faster: Tensor = _GeluBySigmoid.apply(x)  # type: ignore[no-untyped-call]
        return faster
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


class _GeluBySigmoid(torch.autograd.Function):
    """Compiled, the sigmoid form is faster in the forward pass, and torch's own in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return gelu_by_sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.gelu_backward(gradient, *ctx.saved_tensors, approximate="tanh")
        return result


def add_and_norm(x: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
    """The residual sum and its layer norm.

    Under autocast the norm returns fp32, which the next block would cast to bf16 anyway. Storing bf16 halves the memory
    traffic between the matrix products, which bounds the speed of a layer of this width.
    """
    normed: Tensor = norm(x + added)
    return normed.to(added.dtype)


class StackedLinear(nn.Linear):
    """Several linear maps of one input as one matrix product.

    The optimizer treats them as separate: as in Google's code, LAMB scales each matrix by its own norm. It reads their
    number from `stacked`.
    """

    def __init__(self, stacked: int, in_features: int, out_features: int) -> None:
        super().__init__(in_features, stacked * out_features)
        self.stacked = stacked


class Attention(nn.Module):
    """Self-attention, its output projection, and the layer norm after it."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_heads, config.head_size
        self.attention_dropout, self.hidden_dropout = config.attention_dropout, config.hidden_dropout
        self.qkv = StackedLinear(3, config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)

    def forward(
        self,
        x: Float[Tensor, "*tokens hidden"],
        layout: Layout,
        rows: Rows | None = None,
        copies: Bf16Copies | None = None,
    ) -> Float[Tensor, "*rows hidden"]:
        """Attend within each sequence; only the tokens of `rows` are computed if given."""
        dropout = self.attention_dropout if self.training else 0.0
        if copies and rows is None and isinstance(layout, Padded) and layout.skips_mask_in_backward(dropout):
            mask = cast(Tensor, layout.mask)
            mixed = linear_attend(x, self.qkv.weight, copies[0], self.qkv.bias, mask, self.num_heads)
        elif rows is None:
            query, key, value = self._heads(F.linear(x, self.qkv.weight, self.qkv.bias), 3)
            mixed = layout.attend(query, key, value, dropout).flatten(-2)
        else:
            # Keys and values come from all tokens, queries only from the requested rows.
            hidden_size = x.shape[-1]
            key, value = self._heads(F.linear(x, self.qkv.weight[hidden_size:], self.qkv.bias[hidden_size:]), 2)
            x = rows.take(x)
            (query,) = self._heads(F.linear(x, self.qkv.weight[:hidden_size], self.qkv.bias[:hidden_size]), 1)
            mixed = rows.attend(cast(Any, layout), query, key, value, dropout).flatten(-2)
        added = linear(mixed, self.output.weight, copies[1], self.output.bias) if copies else self.output(mixed)
        added = F.dropout(added, self.hidden_dropout, self.training)
        return add_and_norm(x, added, self.norm)

    def bf16_copies(self) -> Bf16Copies:
        """bf16 copies of the two weight matrices."""
        return self.qkv.weight.detach().bfloat16(), self.output.weight.detach().bfloat16()

    def _heads(self, x: Tensor, count: int) -> tuple[Tensor, ...]:
        return x.view(*x.shape[:-1], count, self.num_heads, self.head_size).unbind(-3)


class FeedForward(nn.Module):
    """Two dense maps with a nonlinearity between them, and the layer norm after them."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.activation, self.hidden_dropout = config.activation, config.hidden_dropout
        self.up = nn.Linear(config.hidden_size, config.ffn_size)
        self.down = nn.Linear(config.ffn_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)

    def forward(
        self, x: Float[Tensor, "*tokens hidden"], copies: Bf16Copies | None = None
    ) -> Float[Tensor, "*tokens hidden"]:
        """Transform every token by itself."""
        if copies:
            up = (self.up.weight, copies[0], self.up.bias)
            is_gelu = self.activation == "gelu_tanh"
            wide = linear_gelu(x, *up) if is_gelu else activate(linear(x, *up), self.activation)
            added = linear(wide, self.down.weight, copies[1], self.down.bias)
        else:
            added = self.down(activate(self.up(x), self.activation))
        # As in Google's code, dropout comes before the residual sum; Hugging Face's ALBERT has none here.
        return add_and_norm(x, F.dropout(added, self.hidden_dropout, self.training), self.norm)

    def bf16_copies(self) -> Bf16Copies:
        """bf16 copies of the two weight matrices."""
        return self.up.weight.detach().bfloat16(), self.down.weight.detach().bfloat16()


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
        states = [hidden]
        copies = self._bf16_copies(depth)
        for layer in range(depth - 1):
            hidden = self._layer(layer, hidden, layout, copies)
            states.append(hidden)
        if at is None:
            hidden = self._layer(depth - 1, hidden, layout, copies)
            states.append(hidden)
            return Encoded(hidden, self._pool(layout.first(hidden)), tuple(states) if all_states else ())
        rows = layout.first_and_asked(at)
        first, hidden = rows.split(self._layer(depth - 1, hidden, layout, copies, rows))
        return Encoded(hidden, self._pool(first))

    def _bf16_copies(self, depth: int) -> dict[nn.Module, Bf16Copies]:
        if not (self.is_fused and torch.is_grad_enabled()):
            return {}
        blocks = dict.fromkeys(block for layer in range(depth) for block in self._blocks(layer))
        return {block: block.bf16_copies() for block in blocks}

    def _blocks(self, layer: int) -> tuple[Attention, FeedForward]:
        attention = self.attention[block_of_layer(layer, len(self.attention), self.config.num_layers)]
        ffn = self.ffn[block_of_layer(layer, len(self.ffn), self.config.num_layers)]
        return cast(Attention, attention), cast(FeedForward, ffn)

    def _layer(
        self, layer: int, hidden: Tensor, layout: Layout, copies: dict[nn.Module, Bf16Copies], rows: Rows | None = None
    ) -> Tensor:
        attention, ffn = self._blocks(layer)
        arguments = (attention, ffn, hidden, layout, rows, copies.get(attention), copies.get(ffn))
        if self.recomputes_activations and self.training:
            out: Tensor = checkpoint(self.run_layer, *arguments, use_reentrant=False)
            return out
        return self.run_layer(*arguments)

    def _pool(self, first: Tensor) -> Tensor:
        return torch.tanh(self.pooler(first))
