"""Linear maps in fp32 on a CPU, by oneDNN where torch's own choice, MKL, is slow.

On an AMD processor with AVX-512 MKL takes about twice as long (results/cpu-linear); oneDNN comes with torch too. Which
of both computes depends on the processor alone and not on a measurement, so that equal runs on one machine give equal
weights.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

PROCESSOR = Path("/proc/cpuinfo")


class Linear(nn.Linear):
    """A linear map by the faster library."""

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """Apply the map."""
        return apply_linear(x, self.weight, self.bias)


def apply_linear(
    x: Float[Tensor, "*tokens inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
) -> Float[Tensor, "*tokens outputs"]:
    """As `F.linear`, forward and backward."""
    if weight.dtype != torch.float32 or not _is_for_onednn(x):
        return F.linear(x, weight, bias)
    result: Tensor = _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def fill_rows(hidden: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "rows hidden"]:
    """The states of packed tokens, and zeros up to a number of rows that oneDNN takes as it is: one copy for all."""
    return _padded_rows(hidden) if _is_for_onednn(hidden) else hidden


def _is_for_onednn(x: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and prefers_onednn()
    )


@functools.cache
def prefers_onednn() -> bool:
    """Whether this processor has AVX-512 and is not Intel's, and this torch has both libraries."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not has_both or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if "AVX512" not in torch.backends.cpu.get_cpu_capability() or not PROCESSOR.exists():
        return False
    return "GenuineIntel" not in PROCESSOR.read_text(encoding="utf-8", errors="replace")


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x times the transpose of the weights, by oneDNN; strides are free."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _padded_rows(x: Tensor) -> Tensor:
    """The rows of x, and zeros up to one of few numbers of rows: eight for each power of two.

    oneDNN keeps code for every shape that it has seen, 0.4 MB each, and packed batches have all sizes.
    """
    rows = x.reshape(-1, x.shape[-1])
    step = 1 << max(3, len(rows).bit_length() - 4)
    missing = -len(rows) % step
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


class _OneDnnLinear(torch.autograd.Function):
    """Three matrix products: one forward, two backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _with_rows_of(x, _multiply(_padded_rows(x), weight, bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = _padded_rows(gradient)
        return (
            _with_rows_of(x, _multiply(rows, weight.t())) if of_x else None,
            _multiply(rows.t(), _padded_rows(x).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _with_rows_of(x: Tensor, result: Tensor) -> Tensor:
    """A result without the rows that were added, in the shape of x."""
    return result[: x.numel() // x.shape[-1]].view(*x.shape[:-1], result.shape[-1])
