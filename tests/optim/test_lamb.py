"""LAMB against plain float64 arithmetic, written from the formulas and from the public variants' own descriptions."""

import copy
import importlib.util
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from openalbert.optim.lamb import Lamb
from openalbert.optim.optimizer import clip_gradients, optimizer_tensors, parameter_groups

Array = np.ndarray[Any, np.dtype[np.float64]]
RATE, DECAY, EPSILON = 0.00176, 0.01, 1e-6
SHAPES = {"word": (30, 8), "dense": (16, 12), "norm_gain": (12,), "dense_bias": (16,), "large": (64, 64)}
MATRICES = ("word", "dense", "large")
FLAGS = [dict(zip(("bias_correction", "adapt_everything", "clamp_norm"), values, strict=True))
         for values in itertools.product((False, True), repeat=3)]  # fmt: skip


def start() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.02, shape) for name, shape in SHAPES.items()}
    weights["norm_gain"] = np.ones(SHAPES["norm_gain"])
    weights["large"] = rng.normal(0, 0.5, SHAPES["large"])  # norm 32, so that the clamp at 10 matters
    return weights


def gradients_at(weights: dict[str, Array], step: int) -> dict[str, Array]:
    """A quadratic bowl with noise: the gradient follows the weights, so that an error feeds back."""
    rng = np.random.default_rng([2, step])
    return {name: 0.3 * (value - 0.1) + rng.normal(0, 0.05, value.shape) for name, value in weights.items()}


def clipped(gradients: dict[str, Array]) -> dict[str, Array]:
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    return {name: gradient * min(1.0, 1.0 / norm) for name, gradient in gradients.items()}


def oracle(steps: int, bias_correction: bool = False, adapt_everything: bool = False, clamp_norm: bool = False,
           rate: float = RATE) -> dict[str, Array]:  # fmt: skip
    weights = start()
    m = {name: np.zeros_like(weight) for name, weight in weights.items()}
    v = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step in range(steps):
        for name, gradient in clipped(gradients_at(weights, step)).items():
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            mean, square = m[name], v[name]
            if bias_correction:
                mean, square = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
            update = mean / (np.sqrt(square) + EPSILON)
            if name in MATRICES:
                update = update + DECAY * weights[name]
            ratio = 1.0
            if name in MATRICES or adapt_everything:
                weight_norm = np.sqrt((weights[name] ** 2).sum())
                if clamp_norm:
                    weight_norm = min(weight_norm, 10.0)
                update_norm = np.sqrt((update**2).sum())
                if weight_norm > 0 and update_norm > 0:
                    ratio = weight_norm / update_norm
            weights[name] = weights[name] - rate * ratio * update
    return weights


def as_parameters(weights: dict[str, Array], dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.tensor(weight, dtype=dtype)) for name, weight in weights.items()}


def lamb(parameters: dict[str, nn.Parameter], **settings: Any) -> Lamb:
    groups = [
        {"params": [p for name, p in parameters.items() if name in MATRICES], "weight_decay": DECAY, "adapted": True},
        {
            "params": [p for name, p in parameters.items() if name not in MATRICES],
            "weight_decay": 0.0,
            "adapted": False,
        },
    ]
    return Lamb(groups, lr=settings.pop("lr", RATE), **settings)


def run(parameters: dict[str, nn.Parameter], optimizer: Lamb, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        weights = {name: parameter.detach().double().numpy() for name, parameter in parameters.items()}
        for name, gradient in gradients_at(weights, step).items():
            parameters[name].grad = torch.tensor(gradient, dtype=parameters[name].grad_dtype)
        clip_gradients(parameters.values(), 1.0)
        optimizer.step()


def distance(parameters: dict[str, nn.Parameter], expected: dict[str, Array]) -> float:
    """The largest relative error of a tensor, and of the way it has come: the second is the stricter."""
    errors = []
    for name, origin in start().items():
        error = np.linalg.norm(parameters[name].detach().double().numpy() - expected[name])
        errors += [error / np.linalg.norm(expected[name]), error / np.linalg.norm(expected[name] - origin)]
    return float(max(errors))


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(k for k, on in flags.items() if on) or "albert")
@pytest.mark.parametrize("capturable", [False, True], ids=["float", "capturable"])
def test_lamb_follows_an_fp64_oracle_for_a_hundred_steps(flags: dict[str, bool], capturable: bool) -> None:
    parameters = as_parameters(start())
    run(parameters, lamb(parameters, capturable=capturable, **flags), steps=100)
    assert distance(parameters, oracle(100, **flags)) < 1e-4


def test_every_flag_leads_elsewhere_by_far_more_than_the_oracle_allows() -> None:
    ends = [oracle(100, **flags) for flags in FLAGS]
    for one, other in itertools.combinations(ends, 2):
        assert distance(as_parameters(one, torch.float64), other) > 1e-3


def pytorch_lamb(w: Array, g: Array, state: dict[str, Any], decay: float) -> Array:
    """The variant with clamped norms: every tensor adapted, no bias correction."""
    state["m"] = state.get("m", 0.0) * 0.9 + g * (1 - 0.9)
    state["v"] = state.get("v", 0.0) * 0.999 + g * g * (1 - 0.999)
    weight_norm = np.clip(np.sqrt(np.square(w).sum()), 0, 10)
    adam_step = state["m"] / (np.sqrt(state["v"]) + EPSILON)
    if decay:
        adam_step = adam_step + decay * w
    adam_norm = np.sqrt(np.square(adam_step).sum())
    trust = 1.0 if weight_norm == 0 or adam_norm == 0 else weight_norm / adam_norm
    return w - RATE * trust * adam_step


def nvlamb(w: Array, g: Array, state: dict[str, Any], decay: float) -> Array:
    """The variant of the fused kernels: bias correction, every tensor adapted, free norms."""
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
    next_m_unbiased = state["m"] / (1.0 - math.pow(0.9, t))
    next_v_unbiased = state["v"] / (1.0 - math.pow(0.999, t))
    u = next_m_unbiased / (np.sqrt(next_v_unbiased) + EPSILON) + decay * w
    p_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
    return w - (RATE * (p_norm / u_norm) if p_norm != 0 and u_norm != 0 else RATE) * u


@pytest.mark.parametrize(
    ("public", "flags"),
    [
        (pytorch_lamb, {"adapt_everything": True, "clamp_norm": True}),
        (nvlamb, {"adapt_everything": True, "bias_correction": True}),
    ],
)
def test_the_flags_together_are_the_public_variants(
    public: Callable[[Array, Array, dict[str, Any], float], Array], flags: dict[str, bool]
) -> None:
    weights = start()
    states: dict[str, dict[str, Any]] = {name: {} for name in weights}
    for step in range(100):
        gradients = clipped(gradients_at(weights, step))
        weights = {
            name: public(weight, gradients[name], states[name], DECAY if name in MATRICES else 0.0)
            for name, weight in weights.items()
        }
    parameters = as_parameters(start())
    run(parameters, lamb(parameters, **flags), steps=100)
    assert distance(parameters, weights) < 1e-4


@pytest.mark.parametrize("flags", [{}, {"adapt_everything": True, "bias_correction": True}])
@pytest.mark.parametrize("width", [8, 13])
@pytest.mark.parametrize("scales", [(0.02, 4.0), (0.02, 0.3, 4.0)], ids=["two", "three"])
def test_a_stacked_parameter_equals_separate_ones(
    scales: tuple[float, ...], width: int, flags: dict[str, bool]
) -> None:
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(width, width, generator=generator) * scale for scale in scales]
    biases = [torch.randn(width, generator=generator) * scale for scale in scales]
    separate = [nn.Parameter(part.clone()) for part in parts], [nn.Parameter(bias.clone()) for bias in biases]
    fused = nn.Parameter(torch.cat(parts)), nn.Parameter(torch.cat(biases))
    for parameter in fused:
        parameter.stacked = len(scales)

    def optimizer(matrices: list[nn.Parameter], others: list[nn.Parameter]) -> Lamb:
        return Lamb([{"params": matrices}, {"params": others, "weight_decay": 0.0, "adapted": False}], lr=0.01, **flags)

    one, several = optimizer([fused[0]], [fused[1]]), optimizer(*separate)
    for _ in range(20):
        for whole, pieces in zip(fused, separate, strict=True):
            whole.grad = torch.randn(whole.shape, generator=generator)
            for piece, gradient in zip(pieces, whole.grad.chunk(len(scales)), strict=True):
                piece.grad = gradient.clone()
        one.step()
        several.step()
    for whole, pieces, origin in zip(fused, separate, (parts, biases), strict=True):
        if width % 8 == 0:  # whole vectors of the processor: the same instructions for every element
            assert torch.equal(whole, torch.cat(list(pieces)))
        torch.testing.assert_close(whole, torch.cat(list(pieces)), rtol=1e-6, atol=1e-7)
        assert not torch.equal(whole, torch.cat(origin))


def test_without_the_mark_a_stacked_parameter_would_learn_otherwise() -> None:
    weight = torch.cat([torch.full((4, 4), scale) for scale in (0.01, 1.0, 10.0)])
    marked, plain = nn.Parameter(weight.clone()), nn.Parameter(weight.clone())
    marked.stacked = 3
    for parameter in (marked, plain):
        parameter.grad = torch.ones(12, 4)
        Lamb([parameter]).step()
    assert not torch.allclose(marked, plain, rtol=1e-3)


def test_a_copied_optimizer_still_knows_its_stacked_parameters() -> None:
    parameter = nn.Parameter(torch.cat([torch.full((4, 4), scale) for scale in (0.01, 1.0, 10.0)]))
    parameter.stacked = 3
    optimizer = Lamb([parameter])
    other = copy.deepcopy(optimizer)
    [own] = other.param_groups[0]["params"]
    for weight, learner in ((parameter, optimizer), (own, other)):
        weight.grad = torch.ones(12, 4)
        learner.step()
    assert torch.equal(parameter, own)


@pytest.mark.parametrize("width", [4, 3])
def test_a_stack_whose_rows_do_not_divide_is_refused(width: int) -> None:
    parameter = nn.Parameter(torch.zeros(8, width))
    parameter.stacked = 3
    with pytest.raises(ValueError, match="cannot be 3 stacked"):
        Lamb([parameter])


def test_a_zero_norm_of_weight_or_update_gives_ratio_one() -> None:
    zero = nn.Parameter(torch.zeros(2, 2))
    zero.grad = torch.full((2, 2), 0.5)
    Lamb([zero], lr=0.1, weight_decay=0.01).step()
    expected = -0.1 * 0.05 / (math.sqrt(0.001 * 0.25) + EPSILON)
    torch.testing.assert_close(zero.detach(), torch.full((2, 2), expected))

    still = nn.Parameter(torch.ones(2, 2))
    still.grad = torch.zeros(2, 2)
    Lamb([still], lr=0.1, weight_decay=0.0).step()
    assert torch.equal(still, torch.ones(2, 2))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_zero_gradients_and_zero_weights_never_give_nan(flags: dict[str, bool]) -> None:
    parameters = as_parameters({name: np.zeros(shape) for name, shape in SHAPES.items()})
    parameters["dense"].data.fill_(0.5)
    optimizer = lamb(parameters, **flags)
    for _ in range(3):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        norm = clip_gradients(parameters.values(), 1.0)
        optimizer.step()
        assert norm == 0
    assert all(torch.isfinite(parameter).all() for parameter in parameters.values())


def test_layer_norms_and_biases_are_neither_decayed_nor_adapted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    before = copy.deepcopy(model)
    optimizer = Lamb(parameter_groups(model, weight_decay=0.01), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    # With no gradient only the decay is left, and a trust ratio makes it a step of lr·‖w‖ along the weight.
    torch.testing.assert_close(model[0].weight, before[0].weight * 0.9)
    for name in ("0.bias", "1.weight", "1.bias"):
        assert torch.equal(model.get_parameter(name), before.get_parameter(name))

    optimizer.zero_grad()
    model[1].weight.grad = torch.full((4,), 2.0)
    optimizer.step()
    plain_adam_step = 0.1 * 0.2 / (math.sqrt(0.001 * 4.0) + EPSILON)
    torch.testing.assert_close(model[1].weight.detach(), torch.full((4,), 1.0 - plain_adam_step))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_learning_rate_of_zero_leaves_the_weights_alone(flags: dict[str, bool]) -> None:
    parameters = as_parameters(start())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    run(parameters, lamb(parameters, lr=0.0, **flags), steps=5)
    assert all(torch.equal(parameters[name], before[name]) for name in before)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    used.grad = torch.ones(2, 2)
    Lamb([used, unused]).step()
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))


def test_bf16_gradients_of_fp32_weights_are_averaged_in_fp32() -> None:
    parameters = as_parameters(start())
    for parameter in parameters.values():
        parameter.grad_dtype = torch.bfloat16
    optimizer = lamb(parameters)
    run(parameters, optimizer, steps=100)
    assert all(tensor.dtype == torch.float32 for state in optimizer.state.values() for tensor in state.values())
    # Rounding a gradient to 8 bits is noise of a few thousandths, which averages out; bf16 state would not.
    assert distance(parameters, oracle(100)) < 0.005


def test_bf16_weights_keep_fp32_state() -> None:
    parameters = as_parameters(start(), torch.bfloat16)
    optimizer = lamb(parameters, lr=0.1)
    run(parameters, optimizer, steps=10)
    assert all(parameter.dtype == torch.bfloat16 for parameter in parameters.values())
    assert all(tensor.dtype == torch.float32 for state in optimizer.state.values() for tensor in state.values())
    expected = oracle(10, rate=0.1)
    for name in MATRICES:
        error = np.linalg.norm(parameters[name].detach().double().numpy() - expected[name])
        assert error < 0.03 * np.linalg.norm(expected[name])


def test_the_state_dict_holds_plain_tensors_and_numbers_and_restores_exactly() -> None:
    first = as_parameters(start())
    optimizer = lamb(first, bias_correction=True)
    run(first, optimizer, steps=5)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        assert {key: type(value) for key, value in state.items()} == {"m": Tensor, "v": Tensor}
    for group in saved["param_groups"]:
        assert all(isinstance(value, int | float | bool | Tensor | list | tuple) for value in group.values())

    second = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in first.items()}
    resumed = lamb(second, bias_correction=True)
    resumed.load_state_dict(saved)
    run(first, optimizer, steps=5, first=5)
    run(second, resumed, steps=5, first=5)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capturable", [False, True])
def test_a_loaded_state_keeps_its_precision_and_its_place(dtype: torch.dtype, capturable: bool) -> None:
    first, second = (as_parameters(start(), dtype) for _ in range(2))
    optimizer, resumed = (lamb(one, bias_correction=True, capturable=capturable) for one in (first, second))
    run(first, optimizer, steps=5)
    before = [*(tensor for state in resumed.state.values() for tensor in state.values())]
    before += [group[key] for group in resumed.param_groups for key in ("lr", "step") if capturable or key == "step"]
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    after = [*(tensor for state in resumed.state.values() for tensor in state.values())]
    after += [group[key] for group in resumed.param_groups for key in ("lr", "step") if capturable or key == "step"]
    assert all(one is other for one, other in zip(before, after, strict=True))
    for one, other in zip(first.values(), second.values(), strict=True):
        for key in ("m", "v"):
            assert torch.equal(optimizer.state[one][key], resumed.state[other][key])
            assert resumed.state[other][key].dtype == torch.float32
    assert [group["step"] for group in resumed.param_groups] == [5, 5]


def test_a_learning_rate_saved_as_a_tensor_is_taken_over_even_by_an_optimizer_that_had_a_number() -> None:
    saved = Lamb([nn.Parameter(torch.ones(2))], lr=0.25, capturable=True).state_dict()
    resumed = Lamb([nn.Parameter(torch.ones(2))], lr=0.5)
    resumed.load_state_dict(saved)
    rate = resumed.param_groups[0]["lr"]
    assert torch.equal(rate, torch.tensor(0.25))
    assert rate is not saved["param_groups"][0]["lr"]


def test_the_state_of_another_optimizer_is_refused() -> None:
    parameters = list(as_parameters(start()).values())
    with pytest.raises(ValueError, match="but LAMB's has"):
        Lamb(parameters).load_state_dict(torch.optim.SGD(parameters).state_dict())


def test_a_group_that_is_empty_or_on_two_devices_is_refused() -> None:
    here, elsewhere = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match="one device, but these are on none, for it is empty"):
        Lamb([{"params": [here]}, {"params": []}])
    with pytest.raises(ValueError, match="one device, but these are on cpu, meta"):
        Lamb([here, elsewhere])


def test_the_state_lies_where_the_parameters_lie() -> None:
    parameter = nn.Parameter(torch.ones(2, 2, device="meta"))
    optimizer = Lamb([parameter], bias_correction=True, capturable=True)
    [group] = optimizer.param_groups
    for tensor in (group["lr"], group["step"], *optimizer.state[parameter].values()):
        assert tensor.device.type == "meta"


def test_the_learning_rate_stays_a_number_unless_a_cuda_graph_is_asked_for() -> None:
    [group] = Lamb([nn.Parameter(torch.ones(2))], lr=0.25).param_groups
    assert (type(group["lr"]), group["lr"]) == (float, 0.25)


def test_lamb_can_be_imported_and_used_where_its_kernels_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openalbert.optim.lamb_kernel", None)  # importing it fails, as without Triton
    spec = importlib.util.find_spec("openalbert.optim.lamb")
    assert spec is not None
    assert spec.loader is not None
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    parameters = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    for parameter, kind in zip(parameters, (Lamb, anew.Lamb), strict=True):
        parameter.grad = torch.eye(2)
        kind([parameter]).step()
    assert torch.equal(*parameters)


def test_a_copied_optimizer_still_steps() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = copy.deepcopy(Lamb([parameter], clamp_norm=True))
    [own] = optimizer.param_groups[0]["params"]
    own.grad = torch.ones(2, 2)
    optimizer.step()
    assert not torch.equal(own, parameter)


class Calls(TorchDispatchMode):
    """Counts what reaches the device: each foreach call is a launch or two, whatever the number of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_step_never_waits_for_the_device_and_its_calls_do_not_grow_with_the_tensors(flags: dict[str, bool]) -> None:
    counts = []
    for copies in (1, 10):
        weights = {f"{name}{number or ''}": value for number in range(copies) for name, value in start().items()}
        parameters = as_parameters(weights)
        matrices = [parameter for parameter in parameters.values() if parameter.ndim == 2]
        others = [parameter for parameter in parameters.values() if parameter.ndim < 2]
        optimizer = Lamb(
            [{"params": matrices}, {"params": others, "weight_decay": 0.0, "adapted": False}], capturable=True, **flags
        )
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        with Calls() as calls:
            clip_gradients(parameters.values(), 1.0)
            optimizer.step()
        assert not {"_local_scalar_dense", "item", "nonzero", "_to_copy"} & set(calls.names)
        counts.append(calls.names)
    assert counts[0] == counts[1]
    # Beside the fused pass 3 for layer norms and biases, 4 for matrices; 2 for the clipping.
    passes = sum(count for name, count in counts[0].items() if name.startswith("_foreach"))
    assert counts[0]["_fused_adam_"] == 2
    assert passes == 9 + flags["adapt_everything"]


@pytest.mark.parametrize("adapted", [True, False], ids=["adapted", "plain"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_refused_step_changes_nothing_and_an_accepted_one_is_the_same_step(
    flags: dict[str, bool], adapted: bool
) -> None:
    runs = []
    for refusals in (None, (0.0, 1.0, 0.0), (0.0, 2.0, 0.0)):
        parameters = as_parameters(start())
        optimizer = Lamb(list(parameters.values()), adapted=adapted, **flags)
        for number in range(3):
            is_refused = number == 1
            if refusals is None and is_refused:
                continue
            for parameter in parameters.values():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter.grad = torch.full_like(parameter, torch.nan) if is_refused else noise
            optimizer.found_inf = None if refusals is None else torch.tensor(refusals[number])
            optimizer.step()
        runs.append((parameters, optimizer_tensors(optimizer, nn.ParameterDict(parameters))))
    for one, *others in zip(*runs, strict=True):
        assert all(torch.equal(one[name], other[name]) for other in others for name in one)


def test_a_refused_step_spreads_no_broken_number() -> None:
    weight = torch.ones(4, 3)
    weight[1, 1], weight[2, 2] = torch.inf, torch.nan
    parameter = nn.Parameter(weight.clone())
    parameter.grad = torch.full_like(weight, torch.nan)
    optimizer = Lamb([parameter])
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    finite = torch.isfinite(weight)
    assert torch.equal(parameter[finite], weight[finite])


def test_gradients_and_weights_of_any_order_in_memory_take_the_same_step() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, gradient = torch.randn(2, 6, 4, generator=generator)
    steps = []
    for is_transposed, lies_across in itertools.product((False, True), repeat=2):
        parameter = nn.Parameter(weight.T.contiguous().T if is_transposed else weight.clone())
        optimizer = Lamb([parameter], lr=0.1)
        parameter.grad = gradient.T.contiguous().T if lies_across else gradient.clone()
        optimizer.step()
        steps.append(parameter.detach())
    assert all(torch.allclose(steps[0], other, rtol=1e-6) for other in steps[1:])
    assert not torch.equal(steps[0], weight)
