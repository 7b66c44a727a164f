"""Which parameters are decayed and adapted and which are not, and the clipping that all of them share (section 4.1)."""

from collections.abc import Collection, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openalbert.errors import UserError

# Google's code leaves out what matches "LayerNorm", "layer_norm" or "bias"; the output bias of the masked LM is
# one of them. Ours has the same rule in the words of modules: test_the_split_is_that_of_googles_name_patterns.
_NORM_NAMES = ("layernorm", "layer_norm")
_LAYER_MODULES = {"attention", "ffn"}  # the names under which the model keeps what its layers are made of


def split(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The trainable parameters by name: first what is decayed and adapted, then layer norms and biases.

    A parameter that several modules share appears once, under its first name.
    """
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.LayerNorm)
        for parameter in module.parameters(recurse=False)
    }
    matrices: dict[str, nn.Parameter] = {}
    others: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_norm = id(parameter) in norms or any(norm in name.lower() for norm in _NORM_NAMES)
            is_bias = name.endswith("bias") or parameter.ndim < 2
            (others if is_norm or is_bias else matrices)[name] = parameter
    if not matrices and not others:
        raise UserError("the model has no parameter to train: all of them are frozen")
    return matrices, others


def parameter_groups(model: nn.Module, weight_decay: float, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """The groups of `split` as torch.optim wants them; `adapted` is LAMB's: whether a trust ratio is taken.

    The parameters that are named in `without` are left to another optimizer.
    """
    mark_stacked(model)
    matrices, others = ({name: found[name] for name in found if name not in without} for found in split(model))
    groups = [
        {"params": list(matrices.values()), "weight_decay": weight_decay, "adapted": True},
        {"params": list(others.values()), "weight_decay": 0.0, "adapted": False},
    ]
    return [group for group in groups if group["params"]]


def layer_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable matrices of attention and feed-forward, of all layers, by name: those that Muon is for.

    Embeddings and what scores them are tables rather than maps. The embedding map, the pooler and the heads are maps,
    but each is used once in a forward pass, and they are left with the embeddings.
    """
    mark_stacked(model)
    matrices, _ = split(model)
    return {name: matrix for name, matrix in matrices.items() if _LAYER_MODULES & set(name.split("."))}


def mark_stacked(model: nn.Module) -> None:
    """Mark the parameters of a module with the attribute `stacked`, which holds so many linear maps in one matrix.

    Done here and not in the model, because copying or moving a model drops such marks.
    """
    for module in model.modules():
        if hasattr(module, "stacked"):
            for parameter in module.parameters(recurse=False):
                parameter.stacked = module.stacked  # type: ignore[attr-defined]


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], clip_norm: float) -> Float[Tensor, ""]:
    """Scale all gradients down to a joint norm of `clip_norm` and return the norm they had.

    Nothing here waits for the device. The scale has no epsilon, as in TensorFlow and unlike torch's own clipping. A
    norm that is not finite makes every gradient NaN or 0: look at it before the step.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        raise ValueError("no parameter has a gradient: run backward() before clipping")
    # bf16 gradients are summed in fp32: their squares would lose most of their digits otherwise.
    norms = torch._foreach_norm(gradients, 2, dtype=torch.promote_types(gradients[0].dtype, torch.float32))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    # A norm of 0 gives an infinite quotient, which the clamp turns into 1.
    torch._foreach_mul_(gradients, (clip_norm / norm).clamp(max=1.0))
    return norm
