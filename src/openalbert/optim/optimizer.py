"""Optimizers from settings: parameter groups, gradient clipping (section 4.1), and their state by name."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW

from openalbert.errors import UserError
from openalbert.optim.lamb import Lamb
from openalbert.optim.muon import Muon, MuonWithRest
from openalbert.optim.settings import OptimizerSettings

TrainingOptimizer: TypeAlias = Lamb | AdamW | MuonWithRest

# Google's code excludes names that match "LayerNorm", "layer_norm" or "bias", among them the output bias of the masked
# LM. This is the same rule for our modules: test_the_split_is_that_of_googles_name_patterns.
_NORM_NAMES = ("layernorm", "layer_norm")
_LAYER_MODULES = {"attention", "ffn"}  # names of the modules that hold the blocks of the layers
# AdamW's names for what the paper and LAMB call m and v.
_ADAMW_NAMES = {"exp_avg": "m", "exp_avg_sq": "v", "step": "step"}


def make_optimizer(model: nn.Module, settings: OptimizerSettings, *, capturable: bool = False) -> TrainingOptimizer:
    """The optimizer for a model that is on its device already.

    With `capturable` everything that changes between steps is on the device, so that the step can be captured as a CUDA
    graph.
    """
    if settings.kind != "muon":
        return _make_lamb_or_adamw(settings.kind, parameter_groups(model, settings.weight_decay), settings, capturable)
    matrices = layer_matrices(model)
    if not matrices:
        raise UserError("muon trains the matrices of the layers but all of them are frozen: use lamb or adamw")
    muon = Muon(
        # The schedule sets one rate, `learning_rate` times a factor; the matrices' rate is relative to it.
        [{"params": list(matrices.values()), "relative_rate": settings.matrix_learning_rate / settings.highest_rate}],
        lr=settings.matrix_learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        newton_schulz=settings.newton_schulz,
        newton_schulz_iterations=settings.newton_schulz_iterations,
        capturable=capturable,
    )
    groups = parameter_groups(model, settings.weight_decay, without=matrices)
    return MuonWithRest(muon, _make_lamb_or_adamw(settings.rest, groups, settings, capturable))


def _make_lamb_or_adamw(
    kind: Literal["lamb", "adamw"], groups: list[dict[str, Any]], settings: OptimizerSettings, capturable: bool
) -> Lamb | AdamW:
    """LAMB, or torch's fused AdamW.

    AdamW has bias correction. Google's AdamWeightDecay, which the paper fine-tuned with, has none: its early steps are
    up to six times as long, a known cause of fine-tuning runs that collapse. Otherwise the two take the same step:
    test_adamw_is_googles_but_for_the_bias_correction.
    """
    if kind == "lamb":
        return Lamb(
            groups,
            lr=settings.highest_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            bias_correction=settings.bias_correction,
            adapt_everything=settings.adapt_everything,
            clamp_norm=settings.clamp_norm,
            capturable=capturable,
        )
    for group in groups:
        del group["adapted"]  # a key of Lamb
    device = groups[0]["params"][0].device
    rate = torch.tensor(settings.highest_rate, device=device) if capturable else settings.highest_rate
    optimizer = AdamW(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, capturable=capturable, fused=True)
    # torch makes the state at a parameter's first gradient; made here, as in Lamb, a checkpoint is always complete.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
    return optimizer


def split_parameters(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The trainable parameters by name: those that are decayed and adapted, then layer norms and biases.

    A shared parameter appears once, under its first name.
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
        raise UserError("the model has no trainable parameter: all are frozen")
    return matrices, others


def parameter_groups(model: nn.Module, weight_decay: float, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """The groups for torch.optim; LAMB's key `adapted` says whether a trust ratio is used.

    The parameters named in `without` are left to another optimizer.
    """
    _mark_stacked(model)
    matrices, others = ({name: kind[name] for name in kind if name not in without} for kind in split_parameters(model))
    groups = [
        {"params": list(matrices.values()), "weight_decay": weight_decay, "adapted": True},
        {"params": list(others.values()), "weight_decay": 0.0, "adapted": False},
    ]
    return [group for group in groups if group["params"]]


def layer_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable matrices of the attention and feed-forward blocks by name: those that Muon trains.

    Embeddings are tables rather than maps. The embedding map, the pooler and the heads are maps, but each is used once
    in a forward pass, so they stay with the embeddings.
    """
    _mark_stacked(model)
    matrices, _ = split_parameters(model)
    return {name: matrix for name, matrix in matrices.items() if _LAYER_MODULES & set(name.split("."))}


def _mark_stacked(model: nn.Module) -> None:
    """Copy the attribute `stacked` from a module to its parameters: the number of linear maps in one matrix.

    Done here and not in the model, because copying or moving a model drops attributes of parameters.
    """
    for module in model.modules():
        if hasattr(module, "stacked"):
            for parameter in module.parameters(recurse=False):
                parameter.stacked = module.stacked  # type: ignore[attr-defined]


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], clip_norm: float) -> Float[Tensor, ""]:
    """Scale all gradients down to a joint norm of `clip_norm` and return the norm they had.

    Nothing here waits for the device. The scale has no epsilon, as in TensorFlow and unlike torch's own clipping. A
    norm that is not finite makes every gradient NaN or 0: check it before the step.
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


def set_learning_rate(optimizer: TrainingOptimizer, rate: float) -> None:
    """Set the rate of the next step, in place where it is a tensor, so that a CUDA graph sees it.

    A group with a `relative_rate` (Muon's) gets that multiple of the rate.
    """
    for group in optimizer.param_groups:
        own_rate = rate * group.get("relative_rate", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own_rate)
        else:
            group["lr"] = own_rate


def find_lamb(optimizer: TrainingOptimizer) -> Lamb | None:
    """The optimizer, or the one that Muon is combined with, if it is LAMB."""
    candidate = optimizer.rest if isinstance(optimizer, MuonWithRest) else optimizer
    return candidate if isinstance(candidate, Lamb) else None


def optimizer_tensors(optimizer: TrainingOptimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state of the optimizer by name: `embedding.word.weight.m` and so on.

    The tensors are the optimizer's own, not copies. The learning rate is not included: the schedule sets it.
    """
    tensors: dict[str, Tensor] = {}
    state = optimizer.state
    for name, parameter in model.named_parameters():
        for key, value in state.get(parameter, {}).items():
            tensors[f"{name}.{_ADAMW_NAMES.get(key, key)}"] = value
    for index, group in enumerate(optimizer.param_groups):
        if "step" in group:
            tensors[f"group{index}.step"] = group["step"]
    return tensors


def load_optimizer_tensors(
    optimizer: TrainingOptimizer, model: nn.Module, tensors: Mapping[str, Tensor], where: str = "optimizer state"
) -> None:
    """Load what `optimizer_tensors` returned; `where` names its origin. Nothing changes unless all of it fits."""
    own = optimizer_tensors(optimizer, model)
    wrong = own.keys() ^ tensors.keys() or {
        name for name in own if (own[name].shape, own[name].dtype) != (tensors[name].shape, tensors[name].dtype)
    }
    if wrong:
        raise UserError(f"{where}: '{min(wrong)}' does not fit: it was saved from another model or optimizer")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
