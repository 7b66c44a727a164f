"""Attention over padded sequences by cuDNN, with a backward pass that needs no mask.

A mask makes cuDNN's kernels a third slower, mostly in the backward pass, where it is not needed. The weight of a key is
exp(score - logsumexp), and the logsumexp of the forward pass excludes the padding, so real keys get the right weights.
The weights of padding by the same formula affect the gradient of queries only through the padding's keys, which are set
to 0 here, and otherwise only the padding's own gradients, which are set to 0 afterwards.

(A padding weight could overflow where the logsumexp of a row is below -88. The training loop skips such a step.)
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def can_attend_masked(head_size: int, length: int) -> bool:
    """Whether this machine's cuDNN supports attention with this head size and length: it is tried."""
    query = torch.zeros(1, 1, length, head_size, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    try:
        attend_masked(query, query, query, torch.ones(1, length, dtype=torch.bool, device="cuda")).sum().backward()
    except RuntimeError:
        return False
    return True


def attend_masked(
    query: Float[Tensor, "batch heads asked size"],
    key: Float[Tensor, "batch heads length size"],
    value: Float[Tensor, "batch heads length size"],
    mask: Bool[Tensor, "batch length"],
) -> Float[Tensor, "batch heads asked size"]:
    """Attention of every query to the keys where the mask is true; for training, in half precision on a GPU."""
    mixed: Tensor = _Masked.apply(query, key, value, mask)  # type: ignore[no-untyped-call]
    return mixed


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, -torch.inf)
        mixed, ctx.of_kernel, kept = kernel_forward(query, key, value, bias[:, None, None])
        ctx.save_for_backward(query, key, value, mask, mixed, *kept)
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, mixed, *kept = ctx.saved_tensors
        padding = ~mask[:, None, :, None]
        of_query, of_key, of_value = kernel_backward(
            gradient, query, key.masked_fill(padding, 0), value, mixed, ctx.of_kernel, kept
        )
        return of_query, of_key.masked_fill(padding, 0), of_value.masked_fill(padding, 0), None


def kernel_forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Any, list[Tensor]]:
    """The kernel's output, and what its backward pass needs: plain numbers, and tensors."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True)
    mixed, logsumexp, _, _, longest_query, longest_key, seed, offset, _ = found
    return mixed, (longest_query, longest_key), [logsumexp, seed, offset]


def kernel_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, of_kernel: Any, kept: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, as if there were no mask."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        gradient, query, key, value, mixed, *kept, None, None, None, *of_kernel, 0.0, False
    )
    return found
