"""The nonlinearities by name, and GELU in the form that compiles best."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from openalbert.model.config import Activation


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The nonlinearity by name."""
    if activation == "relu":
        return F.relu(x)
    if activation == "gelu_tanh" and torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled():
        faster: Tensor = _GeluBySigmoid.apply(x)  # type: ignore[no-untyped-call]
        return faster
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


class _GeluBySigmoid(torch.autograd.Function):
    """Forward by the sigmoid; compiled, the way back is faster as torch has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return gelu_by_sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.gelu_backward(gradient, *ctx.saved_tensors, approximate="tanh")
        return found


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """GELU with tanh, by 1 + tanh(z) = 2 sigmoid(2z): compiled for a GPU it is a fifth faster."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
