"""From settings to an optimizer, and its state as named tensors: what a checkpoint holds, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from openalbert.errors import UserError
from openalbert.optim.groups import parameter_groups
from openalbert.optim.lamb import Lamb
from openalbert.optim.settings import OptimizerSettings

# AdamW's own names for what the paper and LAMB call m and v.
_ADAMW_NAMES = {"exp_avg": "m", "exp_avg_sq": "v", "step": "step"}


def make_optimizer(model: nn.Module, settings: OptimizerSettings, *, capturable: bool = False) -> Lamb | AdamW:
    """The optimizer for a model that is on its device already.

    With `capturable` all that changes from step to step lies on the device, for a CUDA graph of the step.

    AdamW is torch's fused one, with bias correction. Google's AdamWeightDecay, which the paper fine-tuned with, has
    none: its early steps are up to six times as long, which is a known cause of fine-tuning runs that collapse.
    Apart from that the two take the same step: test_adamw_is_googles_but_for_the_bias_correction.
    """
    groups = parameter_groups(model, settings.weight_decay)
    if settings.kind == "lamb":
        return Lamb(
            groups,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            bias_correction=settings.bias_correction,
            adapt_everything=settings.adapt_everything,
            clamp_norm=settings.clamp_norm,
            capturable=capturable,
        )
    for group in groups:
        del group["adapted"]  # a word of LAMB
    device = groups[0]["params"][0].device
    rate = torch.tensor(settings.learning_rate, device=device) if capturable else settings.learning_rate
    optimizer = AdamW(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, capturable=capturable, fused=True)
    # torch makes the state at a parameter's first gradient; made at once, as in Lamb, a checkpoint is always complete.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
    return optimizer


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of the next step, in place where it lies on the device, so that a CUDA graph sees it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_tensors(optimizer: Lamb | AdamW, model: nn.Module) -> dict[str, Tensor]:
    """All that the optimizer carries from step to step, by name: `embedding.word.weight.m` and the like.

    The tensors are the optimizer's own, not copies. The learning rate is not among them: the schedule gives it.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}.{_ADAMW_NAMES.get(key, key)}"] = value
    for index, group in enumerate(optimizer.param_groups):
        if "step" in group:
            tensors[f"group{index}.step"] = group["step"]
    return tensors


def load_optimizer_tensors(
    optimizer: Lamb | AdamW, model: nn.Module, tensors: Mapping[str, Tensor], where: str = "optimizer state"
) -> None:
    """Take over what `optimizer_tensors` gave; `where` names its origin. Unless all of it fits, nothing is changed."""
    own = optimizer_tensors(optimizer, model)
    missing = [name for name in own if name not in tensors]
    extra = [name for name in tensors if name not in own]
    if missing:
        raise UserError(f"{where}: {_listed(missing)} missing: it was saved from another model or optimizer")
    if extra:
        raise UserError(f"{where}: {_listed(extra)} unknown here: it was saved from another model or optimizer")
    for name, tensor in own.items():
        given = tensors[name]
        if (given.shape, given.dtype) != (tensor.shape, tensor.dtype):
            raise UserError(
                f"{where}: '{name}' is {given.dtype} of shape {list(given.shape)} but {tensor.dtype} of shape "
                f"{list(tensor.shape)} was expected: it was saved from another model or optimizer"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"'{names[0]}'{more}"
