"""LAMB as ALBERT was trained with it (section 4.1; You et al., arXiv 1904.00962), multi-tensor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from openalbert.optim.lamb_kernel import Gradients, Table, Tables

NORM_CLAMP = 10.0  # the limit in public LAMBs that clamp the norm of a weight
CHUNK = 8192  # elements per program of a kernel, a multiple of 4
DEVICE_TYPE = "cuda"  # where the kernels run
FOREVER = 1e9  # a step count at which bias correction is 1


class Lamb(Optimizer):
    """Adam's direction plus decay, scaled per tensor to the norm of the weight: w ← w − lr·ratio·update.

    update = m / (√v + epsilon) + decay·w and ratio = ‖w‖ / ‖update‖, or 1 where either norm is 0. A group with
    `adapted` false (layer norms and biases) keeps ratio 1. There is no bias correction. All this is as in Google's
    code: test_lamb_follows_an_fp64_oracle_for_a_hundred_steps. The flags are variants of other public LAMBs.

    A parameter with the attribute `stacked` = n counts as n tensors of equal size along the first axis: query, key and
    value are one matrix for speed, but each has its own ratio.

    `found_inf`, as in torch's fused optimizers, is a number on the device: while it is 1, a step changes no finite
    number. So a step can be skipped without synchronizing with the device.

    The state (m, v) is fp32 even for bf16 weights, is allocated at once, and is only written in place; nothing in
    `step` waits for the device. With `capturable` the learning rate is a tensor on the device too, so that one CUDA
    graph of the step serves all steps: set it with `set_learning_rate`. Move the model to its device first.

    For fp32 weights on a GPU the step uses Triton kernels (lamb_kernel), equal up to rounding: test_lamb_on_gpu.
    Otherwise, or with `may_use_kernel` = False, it uses torch's foreach functions.
    """

    found_inf: Float[Tensor, ""] | None = None
    may_use_kernel: bool = True
    _tables: "Tables | None" = None

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.00176,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        adapted: bool = True,
        bias_correction: bool = False,
        adapt_everything: bool = False,
        clamp_norm: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapted": adapted,
            "bias_correction": bias_correction,
            "adapt_everything": adapt_everything,
            "clamp_norm": clamp_norm,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters and allocate their state, so that a checkpoint is complete from the first step on."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        devices = {parameter.device for parameter in group["params"]}
        if len(devices) != 1:
            places = ", ".join(sorted(map(str, devices))) or "none, for it is empty"
            raise ValueError(f"the parameters of a group must be on one device, but these are on {places}")
        (device,) = devices
        if group["capturable"]:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, copy=True)
        if group["bias_correction"]:
            group["step"] = torch.zeros((), dtype=torch.int64, device=device)
        # Kept with the group, since a copy of a parameter loses its attributes.
        group["stacked"] = [getattr(parameter, "stacked", 1) for parameter in group["params"]]
        for parameter, count in zip(group["params"], group["stacked"], strict=True):
            if parameter.shape[:1].numel() % count:
                raise ValueError(f"a parameter of shape {tuple(parameter.shape)} cannot be {count} stacked ones")
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            for key in ("m", "v"):
                self.state[parameter][key] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load settings and state in place; torch's own method would make tensors in the precision of the weights."""
        before = [dict(group) for group in self.param_groups]
        states = [[self.state[parameter] for parameter in group["params"]] for group in before]
        super().load_state_dict(state_dict)
        for group, own, own_states, given in zip(
            self.param_groups, before, states, state_dict["param_groups"], strict=True
        ):
            for parameter, number, state in zip(group["params"], given["params"], own_states, strict=True):
                saved = state_dict["state"].get(number, {})
                if state.keys() != saved.keys():
                    raise ValueError(f"the state has {sorted(saved)} of a parameter, but LAMB's has {sorted(state)}")
                for key, tensor in state.items():
                    tensor.copy_(saved[key])
                self.state[parameter] = state
            for key in ("lr", "step"):
                if isinstance(given.get(key), Tensor):
                    device = group["params"][0].device
                    is_tensor = isinstance(own.get(key), Tensor)
                    group[key] = own[key].copy_(given[key]) if is_tensor else given[key].to(device, copy=True)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; the others are unchanged, without decay."""
        for number, group in enumerate(self.param_groups):
            pairs = zip(group["params"], group["stacked"], strict=True)
            learning = [(parameter, count) for parameter, count in pairs if parameter.grad is not None]
            if learning:
                self._update(number, [parameter for parameter, _ in learning], [count for _, count in learning])

    def _update(self, number: int, parameters: list[nn.Parameter], stacked: list[int]) -> None:
        group = self.param_groups[number]
        states = [self.state[parameter] for parameter in parameters]
        m, v = [state["m"] for state in states], [state["v"] for state in states]
        gradients = [in_precision_of(mean, parameter.grad) for parameter, mean in zip(parameters, m, strict=True)]
        is_adapted = group["adapted"] or group["adapt_everything"]
        if group["bias_correction"]:
            group["step"] += 1 if self.found_inf is None else (self.found_inf <= 0).long()
        tables = self._find_table(number, parameters, gradients, m, v, stacked)
        if tables is not None:
            table, places = tables
            table.step(
                places,
                self.found_inf,
                group["lr"],
                group["step"] if group["bias_correction"] else None,
                betas=group["betas"],
                epsilon=group["eps"],
                decay=group["weight_decay"],
                is_adapted=is_adapted,
                highest_norm=NORM_CLAMP if group["clamp_norm"] else math.inf,
            )
            torch.autograd.graph.increment_version(parameters)  # autograd does not see what Triton writes
            return

        weights = [in_precision_of(mean, parameter) for parameter, mean in zip(parameters, m, strict=True)]
        rate, step = group["lr"], torch.full((), FOREVER, device=weights[0].device)
        if self.found_inf is not None:
            rate = (self.found_inf <= 0) * rate
        if group["bias_correction"]:
            step = torch.zeros_like(step) + group["step"]

        # torch's fused Adam with rate −1 adds m / (√v + epsilon) to its argument: one pass instead of ten.
        updates = torch._foreach_mul(weights, group["weight_decay"])
        torch._fused_adam_(
            updates,
            gradients,
            m,
            v,
            [],
            [step] * len(updates),
            lr=-1.0,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=None if self.found_inf is None else (self.found_inf > 0).float(),
        )
        if is_adapted:
            weight_tensors, update_tensors = unstacked(weights, stacked), unstacked(updates, stacked)
            scales = _trust_ratios(weight_tensors, update_tensors, group["clamp_norm"]) * rate
            if self.found_inf is not None:  # 0, even where a ratio is not finite
                scales = scales.masked_fill(self.found_inf > 0, 0.0)
            # The scales are on the device: this is the one pass that launches a kernel for each tensor.
            torch._foreach_addcmul_(weight_tensors, update_tensors, list(scales.unbind()), value=-1.0)
        else:
            torch._foreach_mul_(updates, rate)
            torch._foreach_sub_(weights, updates)

        copies = [pair for pair in zip(parameters, weights, strict=True) if pair[0] is not pair[1]]
        if copies:
            torch._foreach_copy_([parameter for parameter, _ in copies], [weight for _, weight in copies])

    def has_kernel(self) -> bool:
        """Whether Triton works on the weights' device: it is tried. All processes of a run must agree."""
        device = self.param_groups[0]["params"][0].device
        if device.type == DEVICE_TYPE and self._tables is None:
            try:
                from openalbert.optim.lamb_kernel import Tables

                self._tables = Tables(device)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # Triton, its compiler, driver or cache folder may be missing
                return False
        return self._tables is not None

    def _find_table(
        self,
        number: int,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        m: Sequence[Tensor],
        v: Sequence[Tensor],
        stacked: Sequence[int],
    ) -> "tuple[Table, Gradients] | None":
        """What the kernels need for a step of the group; None if the step uses foreach."""
        if not (self.may_use_kernel and kernel_fits(weights, gradients, m, v)):
            return None
        if self._tables is None:
            if torch.cuda.is_current_stream_capturing():  # too late to compile
                return None
            self.may_use_kernel = self.has_kernel()
        return self._tables.find(number, weights, gradients, m, v, stacked) if self._tables is not None else None


def _trust_ratios(weights: list[Tensor], updates: list[Tensor], clamp_norm: bool) -> Float[Tensor, " tensors"]:
    weight_norms = torch.stack(torch._foreach_norm(weights))
    update_norms = torch.stack(torch._foreach_norm(updates))
    if clamp_norm:
        weight_norms = weight_norms.clamp(max=NORM_CLAMP)
    no_ratio = (weight_norms == 0) | (update_norms == 0)
    return (weight_norms / update_norms).masked_fill(no_ratio, 1.0)


def unstacked(tensors: Sequence[Tensor], stacked: list[int]) -> list[Tensor]:
    """The separate tensors as views: three for a stacked query, key and value, one for most."""
    return [
        view
        for tensor, count in zip(tensors, stacked, strict=True)
        for view in (tensor.chunk(count) if count > 1 else (tensor,))
    ]


def in_precision_of(state: Tensor, tensor: Tensor | None) -> Tensor:
    """A tensor in the precision and memory layout of its optimizer state."""
    assert tensor is not None
    if tensor.dtype == state.dtype and tensor.stride() == state.stride():
        return tensor
    return torch.empty_like(state).copy_(tensor)


@dataclass(frozen=True)
class Chunks:
    """Tensors cut into chunks for the kernels. A unit has its own trust ratio; a stacked parameter has several."""

    rows: Int64[np.ndarray, "chunks 4"]
    """of each chunk: its tensor, its offset there, its number of elements, and its unit"""
    bounds: Int64[np.ndarray, " bounds"]
    """the first chunk of each unit, and the number of all chunks"""


def cut(sizes: Int64[np.ndarray, " tensors"], stacked: Int64[np.ndarray, " tensors"], chunk: int = CHUNK) -> Chunks:
    """Cut tensors of these sizes, each of `stacked` equal units, so that no chunk lies in two units."""
    tensors = np.repeat(np.arange(len(sizes)), stacked)
    unit_sizes = (sizes // stacked)[tensors]
    begins = (np.arange(len(tensors)) - (np.cumsum(stacked) - stacked)[tensors]) * unit_sizes
    chunks = -(-unit_sizes // chunk)
    bounds = np.concatenate(([0], np.cumsum(chunks)))
    units = np.repeat(np.arange(len(chunks)), chunks)
    before = (np.arange(len(units)) - bounds[units]) * chunk
    left = np.minimum(unit_sizes[units] - before, chunk)
    return Chunks(np.stack((tensors[units], begins[units] + before, left, units), axis=1), bounds)


def kernel_fits(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor]
) -> bool:
    """Whether the kernels support these tensors: all plain fp32, contiguous, on one GPU."""
    device = weights[0].device
    return device.type == DEVICE_TYPE and all(
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device == device
        and tensor.shape == weight.shape
        and tensor.is_contiguous()
        for weight, *others in zip(weights, gradients, m, v, strict=True)
        for tensor in (weight, *others)
    )
