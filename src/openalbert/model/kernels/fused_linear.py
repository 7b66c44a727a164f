"""Linear maps fused with the operation after them, with our own backward pass, for bf16 training on a GPU.

It makes fewer passes over a layer's widest tensors. Compiled by torch, the backward pass through GELU or attention and
the gradient of the preceding bias (a sum over all tokens) are separate passes; here one kernel does both
(triton_kernels.py). Weight gradients leave the matrix product in fp32: those of shared weights are summed over all
layers without rounding the summands. Each map takes a bf16 copy of its weights, made once for all layers that share it.

Attention's kernel gets no mask, which would make its forward pass half as slow again. Instead each padding token gets
the mean of its sequence's keys and a value of 0, and its contribution is removed from the result afterwards: its weight
follows from its score and the logsumexp, and is at most the mean weight of the real tokens, so that the subtraction
loses little precision (each sequence has a real token, at least [CLS]). Then its keys are set to 0 for the backward
pass (masked_attention.py). Sequences without padding are unchanged. Attention without a mask or with dropout uses
torch's own; the last layer, where only some rows are computed, uses masked_attention.py.

Each pass is a custom op: torch's compiler needs only its fake, and tests can replace it.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from openalbert.model.kernels import masked_attention


def can_fuse(hidden_size: int, ffn_size: int, num_heads: int, length: int) -> bool:
    """Whether this machine compiles the kernels and their result is right, tried on sequences of this length."""
    with torch.random.fork_rng(["cuda"]):
        torch.manual_seed(0)
        sizes = ((2, length, hidden_size), (3 * hidden_size,), (3 * hidden_size, hidden_size), (ffn_size, hidden_size))
        x, of_qkv, qkv, up = (torch.randn(size, device="cuda") for size in sizes)
        # Attention scores must not grow with the width: otherwise rounding alone would count as wrong in wide models.
        of_qkv, qkv, up = 0.05 * of_qkv, 1.4 * hidden_size**-0.5 * qkv, 1.4 * hidden_size**-0.5 * up
    mask = torch.arange(length, device="cuda") < torch.tensor([[length], [max(1, length // 2)]], device="cuda")
    of_up, is_real = torch.zeros(ffn_size, device="cuda"), mask[:, :, None]

    def ours(x: Tensor, qkv: Tensor, of_qkv: Tensor, up: Tensor, of_up: Tensor) -> Tensor:
        mixed = linear_attend(x, qkv, qkv.detach().bfloat16(), of_qkv, mask, num_heads)
        return linear_gelu(x + 20 * mixed, up, up.detach().bfloat16(), of_up)

    def theirs(x: Tensor, qkv: Tensor, of_qkv: Tensor, up: Tensor, of_up: Tensor) -> Tensor:
        query, key, value = _heads(F.linear(x, qkv, of_qkv), num_heads, 3)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return F.gelu(F.linear(x + 20 * mixed.transpose(1, 2).flatten(2), up, of_up), approximate="tanh")

    results = []
    for compute in (ours, theirs):
        leaves = [leaf.detach().requires_grad_() for leaf in (x, qkv, of_qkv, up, of_up)]
        try:
            out = compute(*leaves) * is_real
            results.append((out, *torch.autograd.grad(out.float().square().sum(), leaves)))
        except Exception:  # a compiler raises many kinds
            return False
    return all(
        ((left.float() - right).norm() <= 0.05 * right.norm()).item() for left, right in zip(*results, strict=True)
    )


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """GELU with tanh, by 1 + tanh(z) = 2 sigmoid(2z): a fifth faster when compiled for a GPU."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def linear(
    x: Float[Tensor, "*tokens from"],
    weight: Float[Tensor, "to from"],
    bf16_weight: Float[Tensor, "to from"],
    bias: Float[Tensor, " to"],
) -> Float[Tensor, "*tokens to"]:
    """A linear map whose weight gradient is not rounded to bf16."""
    mapped: Tensor = _Linear.apply(x.to(bf16_weight.dtype).flatten(0, -2), weight, bf16_weight, bias)  # type: ignore[no-untyped-call]
    return mapped.view(*x.shape[:-1], len(weight))


def linear_gelu(
    x: Float[Tensor, "*tokens hidden"],
    weight: Float[Tensor, "ffn hidden"],
    bf16_weight: Float[Tensor, "ffn hidden"],
    bias: Float[Tensor, " ffn"],
) -> Float[Tensor, "*tokens ffn"]:
    """A linear map, then GELU with tanh."""
    mapped: Tensor = _LinearGelu.apply(x.to(bf16_weight.dtype).flatten(0, -2), weight, bf16_weight, bias)  # type: ignore[no-untyped-call]
    return mapped.view(*x.shape[:-1], len(weight))


def linear_attend(
    x: Float[Tensor, "batch length hidden"],
    weight: Float[Tensor, "three_hidden hidden"],
    bf16_weight: Float[Tensor, "three_hidden hidden"],
    bias: Float[Tensor, " three_hidden"],
    mask: Bool[Tensor, "batch length"],
    num_heads: int,
) -> Float[Tensor, "batch length hidden"]:
    """Map every token to query, key and value, then attend to the keys where the mask is true."""
    mixed: Tensor = _LinearAttend.apply(x.to(bf16_weight.dtype), weight, bf16_weight, bias, mask, num_heads)  # type: ignore[no-untyped-call]
    return mixed


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bf16_weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bf16_weight)
        return F.linear(x, bf16_weight, bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, bf16_weight = ctx.saved_tensors
        return gradient @ bf16_weight, weight_gradient(gradient, x), None, gradient.sum(0, dtype=torch.float32)


class _LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bf16_weight: Tensor, bias: Tensor) -> Tensor:
        before = F.linear(x, bf16_weight, bias.to(x.dtype))
        ctx.save_for_backward(x, bf16_weight, before)
        return gelu_by_sigmoid(before)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, bf16_weight, before = ctx.saved_tensors
        of_before, of_bias = gelu_backward(gradient.contiguous(), before)
        return of_before @ bf16_weight, weight_gradient(of_before, x), None, of_bias


class _LinearAttend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bf16_weight: Tensor, bias: Tensor, mask: Tensor, num_heads: int
    ) -> Tensor:
        mixed: Tensor
        mixed, qkv, logsumexp = map_and_attend(x, bf16_weight, bias.to(x.dtype), mask, num_heads)
        ctx.num_heads = num_heads
        ctx.save_for_backward(x, bf16_weight, mask, mixed, qkv, logsumexp)
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, bf16_weight, mask, mixed, qkv, logsumexp = ctx.saved_tensors
        of_qkv, of_bias = attend_backward(gradient.contiguous(), mixed, qkv, logsumexp, mask, ctx.num_heads)
        return (of_qkv @ bf16_weight).view_as(x), weight_gradient(of_qkv, x.flatten(0, 1)), None, of_bias, None, None


@torch.library.custom_op("openalbert::weight_gradient", mutates_args=())
def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of a linear map's weights, in fp32 as the matrix product accumulates it."""
    result: Tensor = torch.mm(gradient.t(), x, out_dtype=torch.float32)
    return result


@weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(gradient.shape[1], x.shape[1], dtype=torch.float32)


@torch.library.custom_op("openalbert::gelu_backward", mutates_args=())
def gelu_backward(gradient: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Backward pass of GELU: the gradient of its input, and the sum of that over the rows."""
    from openalbert.model.kernels import triton_kernels

    return triton_kernels.gelu_backward(gradient, before)


@gelu_backward.register_fake
def _(gradient: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(before), before.new_empty(before.shape[1], dtype=torch.float32)


@torch.library.custom_op("openalbert::map_and_attend", mutates_args=())
def map_and_attend(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The output of attention; query, key and value (0 for keys and values of padding); the logsumexp of the scores."""
    from openalbert.model.kernels import triton_kernels

    batch, length, hidden_size = x.shape
    qkv = F.linear(x, weight, bias)
    triton_kernels.stand_in(qkv, mask)
    query, key, value = _heads(qkv, num_heads, 3)
    mixed, _, (logsumexp, *_) = masked_attention.kernel_forward(query, key, value, None)
    mixed = mixed.transpose(1, 2).reshape(x.shape).contiguous()
    logsumexp = logsumexp.reshape(batch, num_heads, length, 1).contiguous()
    triton_kernels.leave_out(qkv, mixed, logsumexp, mask, num_heads)
    triton_kernels.forget_padding(qkv.view(batch * length, -1)[:, hidden_size : 2 * hidden_size], mask)
    return mixed, qkv, logsumexp


@map_and_attend.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, hidden_size = x.shape
    logsumexp = x.new_empty(batch, num_heads, length, 1, dtype=torch.float32)
    return x.new_empty(x.shape), x.new_empty(batch, length, 3 * hidden_size), logsumexp


@torch.library.custom_op("openalbert::attend_backward", mutates_args=())
def attend_backward(
    gradient: Tensor, mixed: Tensor, qkv: Tensor, logsumexp: Tensor, mask: Tensor, num_heads: int
) -> tuple[Tensor, Tensor]:
    """Backward pass of attention: the gradient of query, key and value as one matrix, and its sum over the rows."""
    from openalbert.model.kernels import triton_kernels

    (of_mixed,), (mixed,) = _heads(gradient, num_heads, 1), _heads(mixed, num_heads, 1)
    seed = torch.empty((), dtype=torch.int64, device=qkv.device)  # for dropout, unused
    query, key, value = _heads(qkv, num_heads, 3)
    longest = (qkv.shape[1], qkv.shape[1])
    found = masked_attention.kernel_backward(of_mixed, query, key, value, mixed, longest, [logsumexp, seed, seed])
    return triton_kernels.join(*found, mask)


@attend_backward.register_fake
def _(
    gradient: Tensor, mixed: Tensor, qkv: Tensor, logsumexp: Tensor, mask: Tensor, num_heads: int
) -> tuple[Tensor, Tensor]:
    of_bias = qkv.new_empty(qkv.shape[2], dtype=torch.float32)
    return qkv.new_empty(qkv.shape[0] * qkv.shape[1], qkv.shape[2]), of_bias


def _heads(x: Tensor, num_heads: int, count: int) -> tuple[Tensor, ...]:
    """(batch, length, count x hidden) as `count` views of (batch, heads, length, size)."""
    return x.view(*x.shape[:2], count, num_heads, -1).permute(2, 0, 3, 1, 4).unbind()
