import copy
import re
import subprocess
import sys
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
from openalbert.model.presets import preset
from openalbert.optim.lamb import Lamb
from openalbert.optim.optimizer import (
    clip_gradients,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    parameter_groups,
    set_learning_rate,
    split_parameters,
)
from openalbert.optim.settings import OptimizerSettings, scaled_learning_rate, scaling_sentence
from openalbert.settings import from_json, to_json

LAMB = OptimizerSettings()
CORRECTED = replace(LAMB, bias_correction=True)
ADAMW = OptimizerSettings(kind="adamw", learning_rate=1e-3)
EVERY = pytest.mark.parametrize("settings", [LAMB, CORRECTED, ADAMW], ids=["lamb", "corrected", "adamw"])


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3), nn.Linear(3, 3))
    model[2].weight.stacked = 3
    return model


def train(model: nn.Sequential, optimizer: Any, steps: range) -> None:
    for step in steps:
        inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        set_learning_rate(optimizer, 0.01 / (1 + step))
        optimizer.zero_grad()
        # The last layer sleeps at first, as a layer does that a growing depth has not reached.
        outputs = model[:3](inputs) if step < 3 else model(inputs)
        outputs.square().mean().backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()


@EVERY
@pytest.mark.parametrize("capturable", [False, True])
def test_a_restored_optimizer_goes_on_to_the_bit(settings: OptimizerSettings, capturable: bool, tmp_path: Path) -> None:
    undisturbed = small_model()
    optimizer = make_optimizer(undisturbed, settings, capturable=capturable)
    train(undisturbed, optimizer, range(5))
    save_file(optimizer_tensors(optimizer, undisturbed), tmp_path / "optimizer.safetensors")
    resumed = small_model()
    resumed.load_state_dict(undisturbed.state_dict())
    train(undisturbed, optimizer, range(5, 10))

    other = make_optimizer(resumed, settings, capturable=capturable)
    load_optimizer_tensors(other, resumed, load_file(tmp_path / "optimizer.safetensors"))
    train(resumed, other, range(5, 10))
    for (name, one), (_, two) in zip(undisturbed.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, two), name
    expected, came = optimizer_tensors(optimizer, undisturbed), optimizer_tensors(other, resumed)
    assert all(torch.equal(expected[name], came[name]) for name in expected)


@EVERY
def test_without_the_state_the_run_goes_elsewhere(settings: OptimizerSettings) -> None:
    undisturbed, forgetful = small_model(), small_model()
    optimizer = make_optimizer(undisturbed, settings)
    train(undisturbed, optimizer, range(5))
    forgetful.load_state_dict(undisturbed.state_dict())
    train(undisturbed, optimizer, range(5, 10))
    train(forgetful, make_optimizer(forgetful, settings), range(5, 10))
    assert not torch.equal(undisturbed[0].weight, forgetful[0].weight)


@EVERY
def test_the_state_is_named_and_complete_before_the_first_step(settings: OptimizerSettings) -> None:
    model = small_model()
    optimizer = make_optimizer(model, settings)
    before = optimizer_tensors(optimizer, model)
    assert {f"{name}.{key}" for name, _ in model.named_parameters() for key in "mv"} <= set(before)
    assert before["0.weight.m"].shape == model[0].weight.shape
    assert not any(tensor.requires_grad or tensor.any() for tensor in before.values())
    addresses = {name: tensor.data_ptr() for name, tensor in before.items()}
    train(model, optimizer, range(4))
    # Written in place only: a captured CUDA graph goes on reading and writing the same memory.
    assert addresses == {name: tensor.data_ptr() for name, tensor in optimizer_tensors(optimizer, model).items()}


@EVERY
def test_frozen_parameters_have_no_state_and_none_is_missed(settings: OptimizerSettings) -> None:
    model = small_model()
    model[0].requires_grad_(False)
    optimizer = make_optimizer(model, settings)
    tensors = optimizer_tensors(optimizer, model)
    assert {name.split(".")[0] for name in tensors if not name.startswith("group")} == {"1", "2", "3"}
    load_optimizer_tensors(optimizer, model, {name: torch.ones_like(tensor) for name, tensor in tensors.items()})
    assert all(bool((tensor == 1).all()) for tensor in optimizer_tensors(optimizer, model).values())


def test_adamw_counts_its_steps_in_fp32_whatever_torchs_default_is() -> None:
    model = small_model()
    torch.set_default_dtype(torch.bfloat16)  # in which 256 + 1 is 256
    try:
        tensors = optimizer_tensors(make_optimizer(model, ADAMW), model)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def damaged(tensors: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    if how == "missing":
        del changed["0.weight.m"], changed["0.bias.v"]
    elif how == "extra":
        changed["9.weight.m"] = torch.zeros(2)
    elif how == "shape":
        changed["0.weight.v"] = torch.zeros(6, 8)
    else:
        changed["0.weight.v"] = changed["0.weight.v"].double()
    return changed


@EVERY
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("missing", r"there: '0\.bias\.v' does not fit"),
        ("extra", r"there: '9\.weight\.m' does not fit"),
        ("shape", r"'0\.weight\.v' does not fit"),
        ("dtype", r"'0\.weight\.v' does not fit"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(
    settings: OptimizerSettings, how: str, sentence: str
) -> None:
    model = small_model()
    optimizer = make_optimizer(model, settings)
    train(model, optimizer, range(4))
    given = damaged(optimizer_tensors(make_optimizer(model, settings), model), how)
    before = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, model).items()}
    with pytest.raises(UserError, match=sentence):
        load_optimizer_tensors(optimizer, model, given, where="there")
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimizer_tensors(optimizer, model).items())


def test_the_state_of_another_optimizer_is_refused() -> None:
    model = small_model()
    tensors = optimizer_tensors(make_optimizer(model, LAMB), model)
    for settings in (CORRECTED, ADAMW):
        with pytest.raises(UserError, match="does not fit: it was saved from another model or optimizer"):
            load_optimizer_tensors(make_optimizer(model, settings), model, tensors)


def test_the_settings_reach_the_optimizer() -> None:
    settings = OptimizerSettings("lamb", 0.5, (0.8, 0.9), 1e-3, 0.2, 2.0, True, True, True)
    optimizer = make_optimizer(small_model(), settings)
    assert isinstance(optimizer, Lamb)
    for group, decay in zip(optimizer.param_groups, (0.2, 0.0), strict=True):
        assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.8, 0.9), 1e-3, decay)
        assert group["bias_correction"]
        assert group["adapt_everything"]
        assert group["clamp_norm"]


@pytest.mark.parametrize("settings", [LAMB, ADAMW], ids=["lamb", "adamw"])
@pytest.mark.parametrize("capturable", [False, True])
def test_the_learning_rate_is_set_in_place_where_it_is_a_tensor(settings: OptimizerSettings, capturable: bool) -> None:
    optimizer = make_optimizer(small_model(), settings, capturable=capturable)
    before = [group["lr"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.25)
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.25, 0.25]
    assert all(isinstance(rate, Tensor) == capturable for rate in before)
    # torch refuses to have a step recorded as a CUDA graph unless every group says that it may.
    assert all(group["capturable"] is capturable for group in optimizer.param_groups)
    if capturable:
        assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, before, strict=True))


@pytest.mark.parametrize("settings", [LAMB, ADAMW], ids=["lamb", "adamw"])
def test_the_learning_rate_is_a_plain_number_unless_a_cuda_graph_is_to_read_it(settings: OptimizerSettings) -> None:
    optimizer = make_optimizer(small_model(), settings)
    assert [group["lr"] for group in optimizer.param_groups] == [settings.learning_rate] * 2
    assert all(type(group["lr"]) is float and not group["capturable"] for group in optimizer.param_groups)


def test_adamw_is_googles_but_for_the_bias_correction() -> None:
    model = small_model()
    optimizer = make_optimizer(model, ADAMW)
    weights = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    m = {name: np.zeros_like(weight) for name, weight in weights.items()}
    v = {name: np.zeros_like(weight) for name, weight in weights.items()}
    rng = np.random.default_rng(4)
    for step in range(1, 101):
        for name, parameter in model.named_parameters():
            gradient = rng.normal(0, 0.1, weights[name].shape)
            parameter.grad = torch.tensor(gradient, dtype=torch.float32)
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            update = (m[name] / (1 - 0.9**step)) / (np.sqrt(v[name] / (1 - 0.999**step)) + 1e-6)
            if name in ("0.weight", "2.weight", "3.weight"):
                update = update + 0.01 * weights[name]
            weights[name] = weights[name] - 1e-3 * update
        optimizer.step()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1.0: give a number of 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"epsilon": 0.0}, "epsilon is 0.0: give a number above 0"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"weight_decay": float("inf")}, "weight_decay is inf"),
        ({"epsilon": float("inf")}, "epsilon is inf"),
        ({"clip_norm": float("inf")}, "clip_norm is inf"),
        ({"betas": (0.9, 1.0)}, "betas are 0.9 and 1.0"),
        ({"betas": (0.0, 0.999)}, "betas are 0.0 and 0.999"),
        ({"kind": "adamw", "clamp_norm": True}, "clamp_norm is a variant of lamb but the optimizer is adamw"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        OptimizerSettings(**changes)


def test_a_learning_rate_and_a_decay_of_zero_are_accepted() -> None:
    settings = OptimizerSettings(learning_rate=0.0, weight_decay=0.0)
    assert (settings.learning_rate, settings.weight_decay) == (0, 0)


def test_the_defaults_are_those_of_the_papers_lamb() -> None:
    [group] = Lamb([nn.Parameter(torch.ones(2))]).param_groups
    plain = OptimizerSettings()
    for settings, names in ((vars(plain), ("learning_rate", "epsilon")), (group, ("lr", "eps"))):
        assert [settings[name] for name in names] == [0.00176, 1e-6]
        assert settings["betas"] == (0.9, 0.999)
        assert settings["weight_decay"] == 0.01
        assert not any(settings[flag] for flag in ("bias_correction", "adapt_everything", "clamp_norm"))
    assert plain.kind == "lamb"
    assert plain.clip_norm == 1.0


def test_settings_survive_json() -> None:
    for settings in (LAMB, CORRECTED, ADAMW):
        assert from_json(to_json(settings), OptimizerSettings) == settings


def test_the_learning_rate_goes_with_the_square_root_of_the_batch() -> None:
    assert scaled_learning_rate(0.00176, 4096) == 0.00176
    assert scaled_learning_rate(0.00176, 256) == pytest.approx(0.00044)
    assert scaled_learning_rate(0.001, 32, reference_batch=8) == pytest.approx(0.002)
    assert scaled_learning_rate(0.001, 9, reference_batch=1) == pytest.approx(0.003)
    assert scaling_sentence(0.00176, 256) == (
        "learning rate 0.00044 for batch 256: 0.00176 at batch 4096 times the square root of 256/4096"
    )
    with pytest.raises(UserError, match="batch is 0"):
        scaled_learning_rate(0.00176, 0)


def test_settings_and_schedules_do_not_load_torch() -> None:
    line = "import sys, openalbert.optim.settings, openalbert.optim.schedule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0


class Albert(nn.Module):
    """The parameters of an ALBERT and their kinds, with a tied word matrix and two uses of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(11, 4)
        self.position = nn.Embedding(8, 4)
        self.embedding_norm = nn.LayerNorm(4)
        self.mapping = nn.Linear(4, 6)
        self.qkv = nn.Linear(6, 18)
        self.attention_norm = nn.LayerNorm(6)
        self.layers = nn.ModuleList([self.qkv, self.qkv])
        self.output = nn.Linear(4, 11, bias=False)
        self.output.weight = self.word.weight
        self.output_bias = nn.Parameter(torch.zeros(11))
        self.order = nn.Linear(6, 2)


# The same parameters under Google's names, for its own patterns.
GOOGLE = {
    "word.weight": "bert/embeddings/word_embeddings",
    "position.weight": "bert/embeddings/position_embeddings",
    "embedding_norm.weight": "bert/embeddings/LayerNorm/gamma",
    "embedding_norm.bias": "bert/embeddings/LayerNorm/beta",
    "mapping.weight": "bert/encoder/embedding_hidden_mapping_in/kernel",
    "mapping.bias": "bert/encoder/embedding_hidden_mapping_in/bias",
    "qkv.weight": "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel",
    "qkv.bias": "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/bias",
    "attention_norm.weight": "bert/encoder/transformer/group_0/inner_group_0/LayerNorm/gamma",
    "attention_norm.bias": "bert/encoder/transformer/group_0/inner_group_0/LayerNorm/beta",
    "output_bias": "cls/predictions/output_bias",
    "order.weight": "cls/seq_relationship/output_weights",
    "order.bias": "cls/seq_relationship/output_bias",
}


def test_the_split_is_that_of_googles_name_patterns() -> None:
    matrices, others = split_parameters(Albert())
    assert set(matrices) | set(others) == set(GOOGLE)
    for name, google in GOOGLE.items():
        excluded = any(re.search(pattern, google) for pattern in ("LayerNorm", "layer_norm", "bias"))
        assert (name in others) == excluded, name


def test_a_shared_parameter_appears_once() -> None:
    model = Albert()
    grouped = [parameter for group in parameter_groups(model, 0.01) for parameter in group["params"]]
    assert len({id(parameter) for parameter in grouped}) == len(grouped) == len(GOOGLE)


def test_matrices_are_decayed_and_adapted_and_the_others_are_not() -> None:
    matrices, others = parameter_groups(Albert(), 0.02)
    assert (matrices["weight_decay"], matrices["adapted"]) == (0.02, True)
    assert (others["weight_decay"], others["adapted"]) == (0.0, False)


def test_query_key_and_value_of_the_model_count_as_three_even_after_it_was_copied() -> None:
    config = replace(preset("albert-base"), num_layers=2, hidden_size=64, num_heads=1, ffn_size=64, vocab_size=40)
    model = copy.deepcopy(AlbertModel(config))
    groups = parameter_groups(model, 0.01)
    marks = {name: getattr(parameter, "stacked", 1) for name, parameter in model.named_parameters()}
    assert {name for name, count in marks.items() if count == 3} == {
        name for name in marks if name.endswith(("qkv.weight", "qkv.bias"))
    }
    assert sorted(count for group in Lamb(groups).param_groups for count in group["stacked"]).count(3) == 2


def test_a_norm_by_name_alone_is_a_norm() -> None:
    model = nn.ModuleDict({"layer_norm": nn.Linear(2, 2, bias=False), "dense": nn.Linear(2, 2, bias=False)})
    matrices, others = split_parameters(model)
    assert (list(matrices), list(others)) == (["dense.weight"], ["layer_norm.weight"])


def test_a_layer_norm_over_two_axes_is_known_by_its_kind_whatever_its_name() -> None:
    matrices, others = split_parameters(nn.ModuleDict({"scale": nn.LayerNorm((2, 3)), "dense": nn.Linear(3, 2)}))
    assert (set(matrices), set(others)) == ({"dense.weight"}, {"scale.weight", "scale.bias", "dense.bias"})


def test_frozen_parameters_are_in_no_group_and_a_frozen_model_is_refused() -> None:
    model = Albert()
    model.word.weight.requires_grad_(False)
    matrices, _ = split_parameters(model)
    assert "word.weight" not in matrices
    with pytest.raises(UserError, match="no trainable parameter"):
        split_parameters(model.requires_grad_(False))


def test_an_empty_group_is_left_out() -> None:
    [group] = parameter_groups(nn.Linear(2, 2, bias=False), 0.01)
    assert group["adapted"]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_gradients_are_clipped_to_the_joint_norm_as_tensorflow_does(scale: float) -> None:
    rng = np.random.default_rng(0)
    gradients = [rng.normal(0, scale, shape) for shape in ((5, 3), (7,), (2, 2))]
    parameters = [nn.Parameter(torch.zeros(gradient.shape)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient, dtype=torch.float32)
    unused = nn.Parameter(torch.zeros(3))
    norm = clip_gradients([*parameters, unused], 1.0)
    expected = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    assert float(norm) == pytest.approx(expected, rel=1e-5)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # tf.clip_by_global_norm: t · clip / max(norm, clip)
        np.testing.assert_allclose(parameter.grad, gradient * 1.0 / max(expected, 1.0), rtol=1e-5)
    assert unused.grad is None


def test_gradients_below_the_norm_are_untouched_to_the_bit() -> None:
    parameter = nn.Parameter(torch.zeros(9))
    parameter.grad = torch.full((9,), 0.01)
    clip_gradients([parameter], 1.0)
    assert torch.equal(parameter.grad, torch.full((9,), 0.01))


def test_the_norm_of_bf16_gradients_is_taken_in_fp32() -> None:
    parameter = nn.Parameter(torch.zeros(10_000, dtype=torch.bfloat16))
    parameter.grad = torch.full((10_000,), 0.001, dtype=torch.bfloat16)
    norm = clip_gradients([parameter], 1.0)
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(100 * float(parameter.grad[0]), rel=1e-5)


def test_a_norm_that_is_not_finite_is_returned_as_such() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, torch.inf])
    assert torch.isinf(clip_gradients([parameter], 1.0))
    parameter.grad = torch.tensor([1.0, torch.nan])
    assert torch.isnan(clip_gradients([parameter], 1.0))


def test_clipping_without_any_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="backward"):
        clip_gradients([nn.Parameter(torch.zeros(2))], 1.0)


def test_a_bias_is_known_by_its_name_or_by_its_single_axis() -> None:
    model = nn.ParameterDict({"wide_bias": torch.zeros(1, 4), "gain": torch.ones(4), "matrix": torch.zeros(4, 4)})
    matrices, others = split_parameters(model)
    assert (set(matrices), set(others)) == ({"matrix"}, {"wide_bias", "gain"})
