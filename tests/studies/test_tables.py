"""The studies hold the paper's tables: its parameter counts, its numbers, and what its variants differ in."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.pretraining.batches import Batches, PretrainingBatch
from openalbert.settings import to_dict
from openalbert.studies.budgets import BUDGETS, budget_of
from openalbert.studies.registry import STUDIES, find_study
from openalbert.studies.study import Study, Variant, longer
from openalbert.text.shards import open_shards

# Encoder with pooler; V = 30000, 512 positions, 2 segments.
SIZES = {
    "albert-base": (11_683_584, 11_813_810),
    "albert-large": (17_683_968, 17_847_474),
    "albert-xlarge": (58_724_864, 59_021_490),
    "albert-xxlarge": (222_595_584, 223_158_450),
    "bert-base": (109_081_344, 109_705_010),
    "bert-large": (334_607_360, 335_691_058),
    "bert-xlarge": (1_275_291_648, 1_279_526_194),
}
BASE_SHAPE = {
    ("all", 64): 9_681_408,
    ("none", 64): 87_648_000,
    ("all", 128): 11_683_584,
    ("attention", 128): 63_647_232,
    ("FFN", 128): 37_686_528,
    ("none", 128): 89_650_176,
    ("all", 256): 15_687_936,
    ("none", 256): 93_654_528,
    ("all", 768): 31_114_752,
    ("attention", 768): 83_078_400,
    ("FFN", 768): 57_117_696,
    ("none", 768): 109_081_344,
}
AVERAGES = {
    "sizes": [82.3, 85.2, None, 80.1, 82.4, 85.5, 88.7],
    "embedding": [81.3, 81.7, 81.8, 82.3, 79.0, 80.1, 79.6, 79.8],
    "sharing": [79.8, 81.6, 79.5, 82.3, 80.1, 81.7, 80.2, 81.6],
    "sentence": [79.0, 79.2, 80.1],
    "time": [87.2, 88.7],
    "data": [80.1, 80.8],
    "dropout": [90.4, 90.7],
    "depth": [52.9, 71.2, 77.2, 81.5, 82.1, 81.8],
    "width": [71.2, 74.6, 76.3, 74.0],
    "deeper": [88.7, 88.7],
    "layers": [None, None],
    "masking": [None] * 7,
    "optimizer": [None] * 6,
}


def variants(study: str, budget: str) -> list[Variant]:
    base = replace(budget_of(budget).base, more_data=Path("more"))  # type: ignore[arg-type]
    return find_study(study).variants_of(base)


def built(variant: Variant) -> AlbertModel:
    objective = variant.pretrain.objective.sentence_order.objective
    with torch.device("meta"):
        return AlbertModel(variant.pretrain.model, PRETRAINING_HEADS[: 1 if objective == "none" else 2])


def encoder_size(variant: Variant) -> int:
    return sum(parameter.numel() for parameter in built(variant).encoder.parameters())


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_variant_of_every_study_can_be_built_at_every_budget(study: str, budget: str) -> None:
    found = variants(study, budget)
    assert len(found) >= 2
    if study != "data":  # differs in its text alone
        assert len({str(to_dict(variant.pretrain)) for variant in found}) == len(found)
    for variant in found:
        assert built(variant).config == variant.pretrain.model


def test_the_seven_models_have_the_exact_parameter_counts_of_the_paper() -> None:
    found = {variant.name: variant for variant in variants("sizes", "paper")}
    assert {name: (encoder_size(one), built(one).num_parameters()) for name, one in found.items()} == SIZES


def test_speed_is_that_of_the_papers_models_at_its_length_also_where_smaller_ones_are_trained() -> None:
    for variant in variants("sizes", "small"):
        assert variant.speed_run is not None
        assert (variant.speed_run.objective.max_length, variant.speed_run.batch_size) == (512, 64)
        assert (variant.speed_run.model.hidden_dropout, variant.speed_run.model.attention_dropout) == (0, 0)
        assert encoder_size(replace(variant, pretrain=variant.speed_run)) == SIZES[variant.name][0]
    assert not [one.name for study in STUDIES for one in variants(study, "small") if study != "sizes" and one.speed_run]


@pytest.mark.parametrize("study", ["embedding", "sharing"])
def test_the_ablations_of_albert_base_have_the_exact_parameter_counts_of_the_paper(study: str) -> None:
    for variant in variants(study, "paper"):
        model = variant.pretrain.model
        blocks = {(1, 1): "all", (1, 12): "attention", (12, 1): "FFN", (12, 12): "none"}
        shared = blocks[model.sharing.attention, model.sharing.ffn]
        assert encoder_size(variant) == BASE_SHAPE[shared, model.embedding_size]
        printed = float(variant.paper_parameters.removesuffix("M")) * 1e6
        assert encoder_size(variant) == pytest.approx(printed, rel=0.04)


@pytest.mark.parametrize("study", ["depth", "width", "deeper", "time", "layers"])
def test_the_other_models_have_the_parameters_that_the_paper_prints(study: str) -> None:
    for variant in variants(study, "paper"):
        printed = float(variant.paper_parameters.removesuffix("M")) * 1e6
        assert encoder_size(variant) == pytest.approx(printed, rel=0.07)


@pytest.mark.parametrize("study", STUDIES)
def test_every_row_has_the_average_that_the_paper_prints(study: str) -> None:
    assert [variant.paper.get("average") for variant in variants(study, "paper")] == AVERAGES[study]


def test_the_intrinsic_accuracies_of_table_5_are_in_the_right_columns() -> None:
    rows = {variant.name: variant.paper for variant in variants("sentence", "paper")}
    assert [rows[name]["mlm"] for name in ("none", "NSP", "SOP")] == [54.9, 54.5, 54.0]
    assert (rows["NSP"]["nsp"], rows["NSP"]["sop"]) == (90.5, 52.0)
    assert (rows["SOP"]["nsp"], rows["SOP"]["sop"]) == (78.9, 86.5)


@pytest.mark.parametrize("study", STUDIES)
def test_every_claim_names_two_variants_and_agrees_with_the_papers_own_numbers(study: str) -> None:
    rows = {variant.name: variant.paper for variant in variants(study, "paper")}
    for claim in STUDIES[study].claims:
        better, worse = rows[claim.better], rows[claim.worse]
        if claim.metric in better and claim.metric in worse:
            assert better[claim.metric] - worse[claim.metric] >= -claim.margin, claim.sentence
            assert claim.margin or better[claim.metric] > worse[claim.metric], claim.sentence


@pytest.mark.parametrize("study", [name for name in STUDIES if name not in ("masking", "sentence", "time", "data")])
def test_variants_differ_in_the_model_or_the_optimizer_alone(study: str) -> None:
    """The same examples in the same order for all: data, objective, seed and batch are equal."""
    free = {"model", "preset", "optimizer", "reference_batch"}
    rests = [{k: v for k, v in to_dict(one.pretrain).items() if k not in free} for one in variants(study, "small")]
    assert all(rest == rests[0] for rest in rests)


def first_batches(variant: Variant, shards: Path) -> list[PretrainingBatch]:
    """Three batches of its run, the last of them in another epoch."""
    run = variant.pretrain
    batches = Batches(open_shards(shards), run.objective, run.batch_size, seed=2)
    return [batches.at(step) for step in (0, 1, batches.examples_per_epoch // run.batch_size + 2)]


def unmasked(batch: PretrainingBatch) -> torch.Tensor:
    rows, places = torch.nonzero(batch.valid, as_tuple=True)
    ids = batch.ids.clone()
    ids[rows, batch.positions[rows, places]] = batch.labels[rows, places]
    return ids


@pytest.mark.parametrize("study", [name for name in STUDIES if name not in ("masking", "sentence", "data")])
def test_all_variants_read_the_same_examples_in_the_same_order_under_the_same_masks(
    study: str, easy_shards: Path
) -> None:
    first, *others = [first_batches(variant, easy_shards) for variant in variants(study, "tiny")]
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert all(torch.equal(value, getattr(theirs, name)) for name, value in vars(mine).items())


def test_maskings_are_compared_on_the_same_examples_in_the_same_order(easy_shards: Path) -> None:
    first, *others = [first_batches(variant, easy_shards) for variant in variants("masking", "tiny")]
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert torch.equal(unmasked(mine), unmasked(theirs))
            assert torch.equal(mine.swapped, theirs.swapped)
    assert not torch.equal(first[0].ids, others[2][0].ids)


def test_sentence_objectives_are_compared_on_equal_amounts_of_text_under_equal_masking() -> None:
    runs = [variant.pretrain for variant in variants("sentence", "small")]
    assert len({(run.tokens, run.batch_size, run.objective.masked_lm, run.objective.max_length) for run in runs}) == 1


def test_depth_is_the_same_in_all_variants_unless_it_is_studied() -> None:
    for study in set(STUDIES) - {"sizes", "time", "depth", "deeper"}:
        assert len({variant.pretrain.model.num_layers for variant in variants(study, "small")}) == 1, study


def test_each_depth_starts_from_the_one_before_it() -> None:
    found = variants("depth", "paper")
    assert [variant.after for variant in found] == ["", *(variant.name for variant in found[:-1])]
    assert [variant.pretrain.model.num_layers for variant in found] == [1, 3, 6, 12, 24, 48]


def test_a_study_with_one_name_twice_or_a_start_from_nowhere_is_refused() -> None:
    base = budget_of("tiny").base
    twice = Study("twice", "", "", lambda base: [Variant("a", base.pretrain)] * 2)
    with pytest.raises(UserError, match="two variants 'a'"):
        twice.variants_of(base)
    nowhere = Study("nowhere", "", "", lambda base: [Variant("a", base.pretrain, after="b")])
    with pytest.raises(UserError, match="not among the variants before"):
        nowhere.variants_of(base)


def test_an_unknown_study_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'sharing'"):
        find_study("sharin")


def test_a_run_is_made_longer_in_its_own_unit() -> None:
    run = budget_of("tiny").base.pretrain
    assert longer(run, 2.5).steps == 30
    assert longer(replace(run, steps=None, minutes=2.0), 1.5).minutes == 3.0
