"""Muon against plain float64 arithmetic: matrix by matrix, with the polynomials applied to singular values."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.model.cost import layer_matrix_parameters, memory
from openalbert.optim.lamb import Lamb
from openalbert.optim.muon import Muon, MuonWithRest, coefficients, orthogonalize
from openalbert.optim.optimizer import (
    layer_matrices,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
)
from openalbert.optim.settings import NewtonSchulz, OptimizerSettings
from openalbert.settings import from_json, to_json

Array = np.ndarray[Any, np.dtype[np.float64]]
RATE, DECAY, MOMENTUM = 0.02, 0.1, 0.95
SHAPES = {"query": (16, 16), "key": (16, 16), "value": (16, 16), "output": (16, 16), "up": (40, 16), "down": (16, 40)}
JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
# Algorithm 1 of arXiv 2505.16932, its first five polynomials; each is divided by powers of 1.01, and so is its input.
PUBLISHED = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]

MUON = OptimizerSettings(kind="muon", matrix_learning_rate=0.02, learning_rate=0.005)
WITH_ADAMW = replace(MUON, rest="adamw", learning_rate=0.001)
CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=8, hidden_size=16, num_layers=3, num_heads=2, ffn_size=40, max_positions=16
)
UNSHARED = replace(CONFIG, sharing=Sharing(attention=3, ffn=3))
EVERY = pytest.mark.parametrize("settings", [MUON, WITH_ADAMW], ids=["with lamb", "with adamw"])


def start() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(0, 0.1, shape) for name, shape in SHAPES.items()}


def gradients_at(weights: dict[str, Array], step: int) -> dict[str, Array]:
    """A quadratic bowl with noise: the gradient follows the weights, so that an error feeds back."""
    rng = np.random.default_rng([2, step])
    return {name: 0.3 * (value - 0.1) + rng.normal(0, 0.05, value.shape) for name, value in weights.items()}


def oracle_orthogonal(matrix: Array, kind: NewtonSchulz) -> Array:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.sqrt((matrix**2).sum())
    if kind == "quintic":
        for a, b, c in JORDAN:
            values = a * values + b * values**3 + c * values**5
    else:
        values = values / 1.01
        for a, b, c in PUBLISHED:
            scaled = values / 1.01
            values = a * scaled + b * scaled**3 + c * scaled**5
    result: Array = (left * values) @ right
    return result


def oracle(steps: int, kind: NewtonSchulz) -> dict[str, Array]:
    weights = start()
    momentum = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step in range(steps):
        for name, gradient in gradients_at(weights, step).items():
            momentum[name] = MOMENTUM * momentum[name] + gradient
            update = oracle_orthogonal(gradient + MOMENTUM * momentum[name], kind)
            rows, columns = update.shape
            scale = math.sqrt(max(1.0, rows / columns))
            weights[name] = weights[name] - RATE * DECAY * weights[name] - RATE * scale * update
    return weights


def stack(matrices: dict[str, Array]) -> dict[str, Array]:
    """Query, key and value in one matrix, as the model has them."""
    qkv = np.concatenate([matrices["query"], matrices["key"], matrices["value"]])
    return {"qkv": qkv, **{name: matrices[name] for name in ("output", "up", "down")}}


def unstack(parameters: dict[str, nn.Parameter]) -> dict[str, Array]:
    arrays = {name: parameter.detach().double().numpy() for name, parameter in parameters.items()}
    query, key, value = np.split(arrays.pop("qkv"), 3)
    return {"query": query, "key": key, "value": value, **arrays}


def as_parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    parameters = {name: nn.Parameter(torch.tensor(weight, dtype=dtype)) for name, weight in stack(start()).items()}
    parameters["qkv"].stacked = 3  # type: ignore[attr-defined]
    return parameters


def run(parameters: dict[str, nn.Parameter], optimizer: Muon, steps: range) -> None:
    for step in steps:
        for name, gradient in stack(gradients_at(unstack(parameters), step)).items():
            parameters[name].grad = torch.tensor(gradient, dtype=parameters[name].dtype)
        optimizer.step()


def distance(came: dict[str, Array], expected: dict[str, Array]) -> float:
    """The largest error of a matrix, relative to the way that it has come."""
    origin = start()
    return max(
        float(np.linalg.norm(came[name] - expected[name]) / np.linalg.norm(expected[name] - origin[name]))
        for name in expected
    )


@pytest.mark.parametrize("kind", ["quintic", "polar-express"])
@pytest.mark.parametrize("capturable", [False, True], ids=["float", "capturable"])
def test_muon_follows_an_fp64_oracle_for_a_hundred_steps(kind: NewtonSchulz, capturable: bool) -> None:
    parameters = as_parameters()
    optimizer = Muon(parameters.values(), RATE, MOMENTUM, weight_decay=DECAY, newton_schulz=kind, capturable=capturable)
    run(parameters, optimizer, range(100))
    assert distance(unstack(parameters), oracle(100, kind)) < 1e-4


def test_the_two_kinds_of_polynomials_lead_elsewhere_by_far_more_than_the_oracle_allows() -> None:
    assert distance(oracle(100, "quintic"), oracle(100, "polar-express")) > 1e-2


def test_weights_in_fp64_follow_the_oracle_to_rounding() -> None:
    parameters = as_parameters(torch.float64)
    run(parameters, Muon(parameters.values(), RATE, MOMENTUM, weight_decay=DECAY), range(100))
    assert distance(unstack(parameters), oracle(100, "quintic")) < 1e-10


def test_weights_in_bf16_have_their_state_in_fp32_and_take_the_same_step_to_rounding() -> None:
    rounded, exact = as_parameters(torch.bfloat16), as_parameters()
    for name, gradient in stack(gradients_at(start(), 0)).items():
        exact[name].data.copy_(rounded[name].detach())
        rounded[name].grad = torch.tensor(gradient, dtype=torch.bfloat16)
        exact[name].grad = rounded[name].grad.float()  # type: ignore[union-attr]
    optimizers = [Muon(parameters.values(), RATE, MOMENTUM, weight_decay=DECAY) for parameters in (rounded, exact)]
    for optimizer in optimizers:
        optimizer.step()
        assert {state["momentum"].dtype for state in optimizer.state.values()} == {torch.float32}
    for name in exact:
        torch.testing.assert_close(rounded[name].float(), exact[name], rtol=0.01, atol=1e-4)


# How orthogonal an update is.


def with_singular_values(lowest: float, rows: int = 48, columns: int = 64) -> Tensor:
    """Three matrices of very different sizes whose singular values fall to a fraction of the largest."""
    dice = torch.Generator().manual_seed(3)
    left, _ = torch.linalg.qr(torch.randn(3, rows, rows, generator=dice, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(3, columns, columns, generator=dice, dtype=torch.float64))
    values = torch.logspace(0, math.log10(lowest), rows, dtype=torch.float64)
    return torch.tensor([1.0, 1e-6, 1e4], dtype=torch.float64)[:, None, None] * (left * values) @ right[:, :rows]


@pytest.mark.parametrize(("kind", "band"), [("quintic", (0.65, 1.22)), ("polar-express", (0.85, 1.15))])
def test_all_singular_values_come_into_the_known_band(kind: NewtonSchulz, band: tuple[float, float]) -> None:
    for dtype in (torch.float64, torch.float32):
        made = orthogonalize(with_singular_values(0.02).to(dtype), coefficients(kind, 5))
        values = torch.linalg.svdvals(made.double())
        assert band[0] < values.min() <= values.max() < band[1]


def test_more_iterations_of_polar_express_come_nearer_to_one() -> None:
    made = orthogonalize(with_singular_values(1e-3), coefficients("polar-express", 9))
    values = torch.linalg.svdvals(made)
    assert (values - 1).abs().max() < 1e-3
    assert len(coefficients("polar-express", 12)) == 12
    assert len(coefficients("quintic", 3)) == 3


def test_a_matrix_of_zeros_stays_zero_and_so_does_its_weight_apart_from_the_decay() -> None:
    parameters = as_parameters()
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    Muon(parameters.values(), RATE, MOMENTUM, weight_decay=DECAY).step()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - RATE * DECAY))


def test_a_matrix_without_a_gradient_is_left_alone() -> None:
    parameters = as_parameters()
    before = parameters["up"].detach().clone()
    for name, parameter in parameters.items():
        parameter.grad = None if name == "up" else torch.ones_like(parameter)
    optimizer = Muon(parameters.values(), RATE)
    optimizer.step()
    assert torch.equal(parameters["up"], before)
    assert not optimizer.state[parameters["up"]]["momentum"].any()


def test_what_is_no_stack_of_matrices_is_refused() -> None:
    uneven = nn.Parameter(torch.zeros(4, 4))
    uneven.stacked = 3  # type: ignore[attr-defined]
    for parameter in (nn.Parameter(torch.zeros(3)), uneven):
        with pytest.raises(ValueError, match="stacked matrices"):
            Muon([parameter])


# Which parameters go where, in models of this package.


def model_of(config: AlbertConfig = CONFIG) -> AlbertModel:
    torch.manual_seed(0)
    return AlbertModel(config, PRETRAINING_HEADS)


def train(model: AlbertModel, optimizer: Any, steps: range, highest: float = 0.005) -> None:
    for step in steps:
        set_learning_rate(optimizer, highest / (1 + step))
        dice = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=dice) + parameter.detach()
        optimizer.step()


@pytest.mark.parametrize(("config", "copies"), [(CONFIG, 1), (UNSHARED, 3)], ids=["ALBERT", "BERT"])
@EVERY
def test_muon_has_the_matrices_of_every_layer_and_the_other_optimizer_all_else(
    config: AlbertConfig, copies: int, settings: OptimizerSettings
) -> None:
    model = model_of(config)
    optimizer = make_optimizer(model, settings)
    assert isinstance(optimizer, MuonWithRest)
    expected = {
        f"encoder.{module}.weight"
        for copy in range(copies)
        for module in (f"attention.{copy}.qkv", f"attention.{copy}.output", f"ffn.{copy}.up", f"ffn.{copy}.down")
    }
    assert set(layer_matrices(model)) == expected
    names = {parameter: name for name, parameter in model.named_parameters()}
    [group] = optimizer.muon.param_groups
    assert {names[parameter] for parameter in group["params"]} == expected
    assert [count for count in group["stacked"] if count != 1] == [3] * copies
    rest = [parameter for group in optimizer.rest.param_groups for parameter in group["params"]]
    assert {names[parameter] for parameter in rest} == set(names.values()) - expected
    assert len(rest) + len(expected) == len(names)


@pytest.mark.parametrize("config", [CONFIG, UNSHARED], ids=["ALBERT", "BERT"])
def test_the_memory_estimate_counts_the_state_that_muon_and_lamb_have(config: AlbertConfig) -> None:
    model = model_of(config)
    for settings in (MUON, OptimizerSettings()):
        tensors = optimizer_tensors(make_optimizer(model, settings), model)
        estimated = memory(config, 1, 16, "fp32", has_muon=settings.kind == "muon").optimizer
        assert sum(tensor.nbytes for tensor in tensors.values()) == estimated
    assert layer_matrix_parameters(config) == sum(matrix.numel() for matrix in layer_matrices(model).values())


def test_all_but_the_layer_matrices_learn_as_without_muon() -> None:
    one, other = model_of(), model_of()
    train(one, make_optimizer(one, MUON), range(3))
    train(other, make_optimizer(other, OptimizerSettings(learning_rate=0.005)), range(3))
    matrices = layer_matrices(one)
    for (name, left), (_, right) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        # Gradients follow the weights of their own tensor alone.
        assert torch.equal(left, right) == (name not in matrices), name


@pytest.mark.parametrize("capturable", [False, True], ids=["float", "capturable"])
def test_both_rates_follow_the_schedule(capturable: bool) -> None:
    model = model_of()
    optimizer = make_optimizer(model, MUON, capturable=capturable)
    assert isinstance(optimizer, MuonWithRest)
    for factor in (1.0, 0.3, 0.0):
        set_learning_rate(optimizer, MUON.learning_rate * factor)
        [muon_rate] = [float(group["lr"]) for group in optimizer.muon.param_groups]
        assert math.isclose(muon_rate, MUON.matrix_learning_rate * factor, rel_tol=1e-6)
        for group in optimizer.rest.param_groups:
            assert math.isclose(float(group["lr"]), MUON.learning_rate * factor, rel_tol=1e-6)


def test_a_model_without_trainable_layers_is_refused() -> None:
    model = model_of()
    model.encoder.attention.requires_grad_(False)
    model.encoder.ffn.requires_grad_(False)
    with pytest.raises(UserError, match="muon trains the matrices of the layers but all of them are frozen"):
        make_optimizer(model, MUON)


def test_frozen_layers_are_left_out() -> None:
    model = model_of(UNSHARED)
    model.encoder.attention[0].requires_grad_(False)
    names = set(optimizer_tensors(make_optimizer(model, MUON), model))
    assert "encoder.attention.1.qkv.weight.momentum" in names
    assert not any(name.startswith("encoder.attention.0.") for name in names)


# Refused steps.


@EVERY
@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e30])
def test_a_refused_step_changes_nothing_and_the_next_is_as_if_it_had_not_been(
    settings: OptimizerSettings, broken: float
) -> None:
    disturbed, undisturbed = model_of(), model_of()
    optimizers = [make_optimizer(model, settings) for model in (disturbed, undisturbed)]
    for model, optimizer in zip((disturbed, undisturbed), optimizers, strict=True):
        optimizer.found_inf = torch.tensor(0.0)  # type: ignore[union-attr]
        train(model, optimizer, range(3))
    first = optimizers[0]
    held = {**optimizer_tensors(first, disturbed), **dict(disturbed.named_parameters())}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    first.found_inf = torch.tensor(1.0)  # type: ignore[union-attr]
    for parameter in disturbed.parameters():
        parameter.grad = torch.full_like(parameter, broken)
    first.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in held.items())
    first.found_inf = torch.tensor(0.0)  # type: ignore[union-attr]
    for model, optimizer in zip((disturbed, undisturbed), optimizers, strict=True):
        train(model, optimizer, range(3, 6))
    for (name, one), (_, two) in zip(disturbed.named_parameters(), undisturbed.named_parameters(), strict=True):
        assert torch.equal(one, two), name


def test_a_step_that_is_not_refused_is_that_without_the_flag() -> None:
    one, two = as_parameters(), as_parameters()
    flagged, plain = Muon(one.values(), RATE), Muon(two.values(), RATE)
    flagged.found_inf = torch.tensor(0.0)
    run(one, flagged, range(10))
    run(two, plain, range(10))
    assert all(torch.allclose(one[name], two[name], rtol=1e-6, atol=1e-7) for name in one)


# State.


@EVERY
@pytest.mark.parametrize("capturable", [False, True], ids=["float", "capturable"])
def test_a_restored_optimizer_resumes_to_the_bit(settings: OptimizerSettings, capturable: bool, tmp_path: Path) -> None:
    undisturbed = model_of(UNSHARED)
    optimizer = make_optimizer(undisturbed, settings, capturable=capturable)
    tensors = optimizer_tensors(optimizer, undisturbed)
    assert not any(tensor.any() for tensor in tensors.values())  # complete before the first step
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    train(undisturbed, optimizer, range(4))
    # Written in place only: a captured CUDA graph keeps reading and writing the same memory.
    assert addresses == {name: tensor.data_ptr() for name, tensor in optimizer_tensors(optimizer, undisturbed).items()}
    save_file(optimizer_tensors(optimizer, undisturbed), tmp_path / "optimizer.safetensors")
    resumed = model_of(UNSHARED)
    resumed.load_state_dict(undisturbed.state_dict())
    train(undisturbed, optimizer, range(4, 8))

    other = make_optimizer(resumed, settings, capturable=capturable)
    load_optimizer_tensors(other, resumed, load_file(tmp_path / "optimizer.safetensors"))
    train(resumed, other, range(4, 8))
    for (name, one), (_, two) in zip(undisturbed.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, two), name
    expected, came = optimizer_tensors(optimizer, undisturbed), optimizer_tensors(other, resumed)
    assert all(torch.equal(expected[name], came[name]) for name in expected)


def test_a_matrix_has_one_state_tensor_and_the_state_of_lamb_is_refused() -> None:
    model = model_of()
    optimizer = make_optimizer(model, MUON)
    names = [name for name in optimizer_tensors(optimizer, model) if name.startswith("encoder.ffn.0.up.weight.")]
    assert names == ["encoder.ffn.0.up.weight.momentum"]
    of_lamb = optimizer_tensors(make_optimizer(model, OptimizerSettings()), model)
    with pytest.raises(UserError, match="does not fit: it was saved from another model or optimizer"):
        load_optimizer_tensors(optimizer, model, of_lamb)


def test_gradients_of_both_are_dropped_and_the_variants_of_lamb_reach_it() -> None:
    model = model_of()
    optimizer = make_optimizer(model, replace(MUON, bias_correction=True))
    assert isinstance(optimizer, MuonWithRest)
    assert isinstance(optimizer.rest, Lamb)
    train(model, optimizer, range(2))
    assert [int(tensor) for name, tensor in optimizer_tensors(optimizer, model).items() if name.endswith(".step")] == [
        2,
        2,
    ]
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


# Settings.


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"momentum": 0.9}, "momentum belongs to muon but the optimizer is lamb: leave it out or use muon"),
        ({"kind": "adamw", "rest": "adamw"}, "rest belongs to muon but the optimizer is adamw"),
        ({"matrix_learning_rate": 0.02}, "matrix_learning_rate belongs to muon"),
        ({"newton_schulz": "polar-express"}, "newton_schulz belongs to muon"),
        ({"newton_schulz_iterations": 6}, "newton_schulz_iterations belongs to muon"),
        ({"kind": "muon", "rest": "adamw", "clamp_norm": True}, "the optimizer is muon with adamw for the rest"),
        ({"kind": "muon", "momentum": 1.0}, "momentum is 1.0: give a number between 0 and 1"),
        ({"kind": "muon", "momentum": 0.0}, "momentum is 0.0"),
        ({"kind": "muon", "newton_schulz_iterations": 0}, "newton_schulz_iterations is 0: give 1 or more"),
        ({"kind": "muon", "matrix_learning_rate": math.nan}, "matrix_learning_rate is nan: give a number of 0 or more"),
        ({"kind": "muon", "learning_rate": 0.0}, "learning_rate is 0 but muon needs a rate above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        OptimizerSettings(**given)


@EVERY
def test_the_settings_of_muon_read_back_equal(settings: OptimizerSettings) -> None:
    assert from_json(to_json(settings), OptimizerSettings) == settings
