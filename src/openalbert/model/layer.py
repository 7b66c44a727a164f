"""The attention and feed-forward blocks of a layer, each with the layer norm after it: the units of sharing."""

from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from openalbert.model.config import Activation, AlbertConfig
from openalbert.model.kernels.cpu_linear import Linear, apply_linear
from openalbert.model.kernels.fused_linear import gelu_by_sigmoid, linear, linear_attend, linear_gelu
from openalbert.model.packing import Layout, Padded, Rows

Bf16Copies: TypeAlias = tuple[Tensor, Tensor]
"""bf16 copies of a block's two weight matrices, made once for all layers that share them. With them, the block runs
our fused kernels."""


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


class StackedLinear(Linear):
    """Several linear maps of one input as one matrix product.

    The optimizer treats them as separate: as in Google's code, LAMB scales each matrix by its own norm. It reads their
    number from `stacked`.
    """

    def __init__(self, stacked: int, in_features: int, out_features: int) -> None:
        super().__init__(in_features, stacked * out_features)
        self.stacked = stacked

    def forward(
        self, x: Float[Tensor, "*tokens inputs"], first: int = 0, last: int | None = None
    ) -> Float[Tensor, "*tokens outputs"]:
        """Apply the maps from `first` up to `last`, all of them if not given."""
        if (first, last) == (0, None):  # without slices, whose backward passes would copy the gradient
            return super().forward(x)
        rows = self._rows(first, last)
        return apply_linear(x, self.weight[rows], self.bias[rows])

    def _rows(self, first: int, last: int | None) -> slice:
        """The rows of the matrix that belong to some of the maps."""
        size = self.out_features // self.stacked
        return slice(first * size, None if last is None else last * size)


class Attention(nn.Module):
    """Self-attention, its output projection, and the layer norm after it."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_heads, config.head_size
        self.attention_dropout, self.hidden_dropout = config.attention_dropout, config.hidden_dropout
        self.qkv = StackedLinear(3, config.hidden_size, config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
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
            query, key, value = self._heads(self.qkv(x), 3)
            mixed = layout.attend(query, key, value, dropout).flatten(-2)
        else:
            key, value = self._heads(self.qkv(x, 1), 2)
            x = rows.take(x)
            [query] = self._heads(self.qkv(x, 0, 1), 1)
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
        self.up = Linear(config.hidden_size, config.ffn_size)
        self.down = Linear(config.ffn_size, config.hidden_size)
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
