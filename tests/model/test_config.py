"""The configuration refuses what cannot be, and every count of the paper's tables is exact."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.config import LARGEST, PRETRAINING_HEADS, AlbertConfig, Head, Sharing, block_of_layer
from openalbert.model.cost import encoder_parameters, parameters_by_component
from openalbert.model.presets import PAPER_TOKENS, PRESETS, preset

MICRO = preset("albert-micro")

# Vocabulary 30,000, 512 positions, 2 segments: encoder with pooler, and with both heads.
COUNTS = {
    "albert-base": (11_683_584, 11_813_810),
    "albert-large": (17_683_968, 17_847_474),
    "albert-xlarge": (58_724_864, 59_021_490),
    "albert-xxlarge": (222_595_584, 223_158_450),
    "albert-base-v2": (11_683_584, 11_813_810),
    "albert-large-v2": (17_683_968, 17_847_474),
    "albert-xlarge-v2": (58_724_864, 59_021_490),
    "bert-base": (109_081_344, 109_705_010),
    "bert-large": (334_607_360, 335_691_058),
    "bert-xlarge": (1_275_291_648, 1_279_526_194),
}
# The paper's Table 1, with dropout as in Google's configurations: (L, H, E, heads, feed-forward size, dropout).
SIZES = {
    "albert-base": (12, 768, 128, 12, 3072, 0.1),
    "albert-large": (24, 1024, 128, 16, 4096, 0.1),
    "albert-xlarge": (24, 2048, 128, 32, 8192, 0.1),
    "albert-xxlarge": (12, 4096, 128, 64, 16384, 0.0),
    "albert-base-v2": (12, 768, 128, 12, 3072, 0.0),
    "albert-large-v2": (24, 1024, 128, 16, 4096, 0.0),
    "albert-xlarge-v2": (24, 2048, 128, 32, 8192, 0.0),
    "bert-base": (12, 768, 768, 12, 3072, 0.1),
    "bert-large": (24, 1024, 1024, 16, 4096, 0.1),
    "bert-xlarge": (24, 2048, 2048, 32, 8192, 0.1),
}
# The cells of the paper's Tables 3 and 4: (E, distinct attention blocks, distinct feed-forward blocks).
CELLS = {
    (64, 1, 1): 9_681_408,
    (64, 12, 12): 87_648_000,
    (128, 1, 1): 11_683_584,
    (128, 1, 12): 63_647_232,
    (128, 12, 1): 37_686_528,
    (128, 12, 12): 89_650_176,
    (256, 1, 1): 15_687_936,
    (256, 12, 12): 93_654_528,
    (768, 1, 1): 31_114_752,
    (768, 1, 12): 83_078_400,
    (768, 12, 1): 57_117_696,
    (768, 12, 12): 109_081_344,
}


def count(config: AlbertConfig, heads: tuple[Head, ...] = ()) -> int:
    with torch.device("meta"):
        return AlbertModel(config, heads).num_parameters()


@pytest.mark.parametrize("name", COUNTS)
def test_every_preset_of_the_paper_has_its_exact_number_of_parameters(name: str) -> None:
    assert (count(preset(name)), count(preset(name), PRETRAINING_HEADS)) == COUNTS[name]


@pytest.mark.parametrize("name", SIZES)
def test_every_preset_of_the_paper_has_the_sizes_of_its_table(name: str) -> None:
    one = preset(name)
    assert one.attention_dropout == one.hidden_dropout
    sizes = (one.num_layers, one.hidden_size, one.embedding_size, one.num_heads, one.ffn_size, one.hidden_dropout)
    assert sizes == SIZES[name]
    is_bert = name.startswith("bert")
    assert one.sharing == (Sharing(one.num_layers, one.num_layers) if is_bert else Sharing(1, 1))


def test_the_papers_models_read_125_000_batches_of_4096_sequences_of_512_tokens() -> None:
    assert PAPER_TOKENS == 262_144_000_000


def test_the_micro_bert_is_the_micro_albert_without_sharing_and_factorizing() -> None:
    changed = {"embedding_size": 64, "sharing": Sharing(2, 2), "hidden_dropout": 0.1, "attention_dropout": 0.1}
    assert preset("bert-micro") == replace(MICRO, **changed)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_of_the_embedding_and_sharing_tables_has_its_exact_number_of_parameters(
    cell: tuple[int, int, int],
) -> None:
    embedding, attention, ffn = cell
    config = replace(preset("albert-base"), embedding_size=embedding, sharing=Sharing(attention, ffn))
    assert count(config) == CELLS[cell]


@pytest.mark.parametrize("name", PRESETS)
def test_the_parts_add_up_to_the_whole(name: str) -> None:
    parts = parameters_by_component(PRESETS[name])
    assert encoder_parameters(parts) == count(PRESETS[name])
    assert sum(parts.values()) == count(PRESETS[name], PRETRAINING_HEADS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": 100}, "does not divide"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"hidden_dropout": 1.0}, "hidden_dropout is 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout is -0.1"),
        ({"sharing": Sharing(attention=13)}, "sharing.attention is 13"),
        ({"sharing": Sharing(ffn=0)}, "sharing.ffn is 0"),
        ({"initializer_range": 0.0}, "initializer_range is 0.0"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon is 0.0"),
        ({"initializer_range": float("inf")}, "initializer_range is inf"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan"),
        ({"vocab_size": 10**20}, "vocab_size is 1.*at most"),
    ],
)
def test_impossible_values_are_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        AlbertConfig(**change)


def test_a_misspelt_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'albert-xlarge'"):
        preset("albert-xlagre")


def test_a_classifier_without_classes_is_refused() -> None:
    with pytest.raises(UserError, match="names of its classes"):
        Head("classification")


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="the label 'b' occurs twice"):
        Head("classification", ("a", "b", "b"))


def test_two_heads_of_one_kind_are_refused() -> None:
    with pytest.raises(UserError, match="one head of each kind"):
        AlbertModel(preset("albert-micro"), (Head("span"), Head("span")))


def test_layers_are_dealt_to_parts_in_consecutive_groups() -> None:
    assert [block_of_layer(layer, 3, 6) for layer in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [block_of_layer(layer, 1, 4) for layer in range(4)] == [0, 0, 0, 0]
    assert [block_of_layer(layer, 5, 12) for layer in range(12)] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]


def test_the_largest_sizes_can_still_be_counted() -> None:
    config = replace(MICRO, vocab_size=LARGEST, embedding_size=LARGEST, hidden_size=LARGEST, ffn_size=LARGEST)
    assert sum(parameters_by_component(config).values()) > 9 * LARGEST**2
