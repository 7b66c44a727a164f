import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.presets import preset
from openalbert.optim.groups import clip_gradients, parameter_groups, split
from openalbert.optim.lamb import Lamb


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
    matrices, others = split(Albert())
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
    matrices, others = split(model)
    assert (list(matrices), list(others)) == (["dense.weight"], ["layer_norm.weight"])


def test_a_layer_norm_over_two_axes_is_known_by_its_kind_whatever_its_name() -> None:
    matrices, others = split(nn.ModuleDict({"scale": nn.LayerNorm((2, 3)), "dense": nn.Linear(3, 2)}))
    assert (set(matrices), set(others)) == ({"dense.weight"}, {"scale.weight", "scale.bias", "dense.bias"})


def test_frozen_parameters_are_in_no_group_and_a_frozen_model_is_refused() -> None:
    model = Albert()
    model.word.weight.requires_grad_(False)
    matrices, _ = split(model)
    assert "word.weight" not in matrices
    with pytest.raises(UserError, match="no parameter to train"):
        split(model.requires_grad_(False))


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
    matrices, others = split(model)
    assert (set(matrices), set(others)) == ({"matrix"}, {"wide_bias", "gain"})
