"""The two parts of a transformer layer, each with the layer norm that follows it: what layers may share."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from openalbert.model.config import Activation, AlbertConfig
from openalbert.model.layout import Layout, Rows


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The nonlinearity by name."""
    if activation == "relu":
        return F.relu(x)
    if activation == "gelu_tanh" and torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled():
        faster: Tensor = _GeluBySigmoid.apply(x)  # type: ignore[no-untyped-call]
        return faster
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


class _GeluBySigmoid(torch.autograd.Function):
    """GELU with tanh, by 1 + tanh(z) = 2 sigmoid(2z): compiled for a GPU the forward pass is a fifth faster so, the
    backward pass is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.gelu_backward(gradient, *ctx.saved_tensors, approximate="tanh")
        return found


def add_and_norm(x: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
    """The residual sum and its layer norm.

    Autocast norms in fp32 and would hand on fp32. What the next part reads is bf16 all the same, so that is what is
    kept: half the memory traffic between the matrix products, which is what a layer of this width waits for.
    """
    normed: Tensor = norm(x + added)
    return normed.to(added.dtype)


class StackedLinear(nn.Linear):
    """Several linear maps of one input as one matrix product.

    To the optimizer they stay several: LAMB scales each matrix by a norm of its own, as in Google's code, and finds
    out by `stacked` how many there are.
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
        self, x: Float[Tensor, "*tokens hidden"], layout: Layout, rows: Rows | None = None
    ) -> Float[Tensor, "*rows hidden"]:
        """Every token (or only those of `rows`) takes in what it attends to in its own sequence."""
        dropout = self.attention_dropout if self.training else 0.0
        if rows is None:
            query, key, value = self._heads(F.linear(x, self.qkv.weight, self.qkv.bias), 3)
            mixed = layout.attend(query, key, value, dropout)
        else:
            # Keys and values come from all tokens, queries only from the rows that somebody will look at.
            hidden_size = x.shape[-1]
            key, value = self._heads(F.linear(x, self.qkv.weight[hidden_size:], self.qkv.bias[hidden_size:]), 2)
            x = rows.take(x)
            (query,) = self._heads(F.linear(x, self.qkv.weight[:hidden_size], self.qkv.bias[:hidden_size]), 1)
            mixed = rows.attend(cast(Any, layout), query, key, value, dropout)
        added = F.dropout(self.output(mixed.flatten(-2)), self.hidden_dropout, self.training)
        return add_and_norm(x, added, self.norm)

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

    def forward(self, x: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """Every token by itself."""
        # Google drops out here too, before the residual; Hugging Face's ALBERT does not.
        added = F.dropout(self.down(activate(self.up(x), self.activation)), self.hidden_dropout, self.training)
        return add_and_norm(x, added, self.norm)
