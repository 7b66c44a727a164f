"""What a model knows, against independent computations: pretraining's evaluation, transformers' hidden states."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pretraining.made_shards import made_shards

from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.presets import PRESETS
from openalbert.objectives.ngram_masking import NgramMasking
from openalbert.pretraining.batches import Batches
from openalbert.pretraining.loss import evaluate, pretraining
from openalbert.studies.budgets import Intrinsic, tiny
from openalbert.studies.intrinsic import layer_distances, masked_lm, sentence_task
from openalbert.text.shards import ShardSet, open_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
SETTINGS = replace(tiny().intrinsic, examples=30)


@pytest.fixture(scope="module")
def heldout(easy_shards: Path) -> ShardSet:
    return open_shards(easy_shards, "heldout")


@pytest.fixture(scope="module")
def model() -> AlbertModel:
    torch.manual_seed(1)
    config = replace(PRESETS["albert-micro"], vocab_size=300, initializer_range=0.2, num_layers=3)
    return AlbertModel(config, PRETRAINING_HEADS).eval()


def test_mlm_accuracy_is_that_of_pretrainings_own_evaluation_example_by_example(
    model: AlbertModel, heldout: ShardSet
) -> None:
    found = masked_lm(model, heldout, SETTINGS, CPU)
    objective = SETTINGS.objective
    in_order = replace(objective, sentence_order=replace(objective.sentence_order, objective="none"))
    batches = Batches(heldout, in_order, 1, seed=0)
    assert len(found.total) == min(30, batches.examples_per_epoch)
    own = evaluate(pretraining(model), model, batches, len(found.total), 3, CPU)
    assert found.accuracy == pytest.approx(100 * own.losses["mlm"][1])
    first = evaluate(pretraining(model), model, batches, 7, 3, CPU)
    assert found.right[:7].sum() / found.total[:7].sum() == pytest.approx(first.losses["mlm"][1])


def test_no_heldout_example_counts_twice(model: AlbertModel, heldout: ShardSet) -> None:
    found = masked_lm(model, heldout, replace(SETTINGS, examples=10**6), CPU)
    assert len(found.total) < 10**4


def test_sop_accuracy_of_a_model_trained_on_it_is_that_of_its_own_head(model: AlbertModel, heldout: ShardSet) -> None:
    right = sentence_task(model, heldout, heldout, "sop", SETTINGS, CPU, is_trained=True)
    batches = Batches(heldout, SETTINGS.objective, 1, seed=0)
    own = evaluate(pretraining(model), model, batches, len(right), 3, CPU)
    assert right.mean() == pytest.approx(own.losses["sop"][1])


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """Documents of two sentences, the first always of one word, the second of another: their order can be read."""
    text = "\n\n".join(["Ka ka ka ka ka.\nMi mi mi mi mi."] * 120) + "\n"
    return open_shards(made_shards(tmp_path_factory.mktemp("ordered"), text))


def test_a_probe_learns_the_order_on_a_frozen_encoder_that_is_not_changed(
    model: AlbertModel, ordered: ShardSet
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = replace(SETTINGS, probe_steps=30, probe_batch=32, probe_rate=0.01)
    learned = sentence_task(model, ordered, ordered, "sop", settings, CPU, is_trained=False)
    untrained = sentence_task(model, ordered, ordered, "sop", replace(settings, probe_steps=0), CPU, is_trained=False)
    assert learned.mean() > 0.9
    assert untrained.mean() < 0.7
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_two_models_are_probed_with_equal_draws(model: AlbertModel, ordered: ShardSet) -> None:
    torch.manual_seed(3)
    first = sentence_task(model, ordered, ordered, "nsp", SETTINGS, CPU, is_trained=False)
    torch.manual_seed(4)
    second = sentence_task(model, ordered, ordered, "nsp", SETTINGS, CPU, is_trained=False)
    np.testing.assert_array_equal(first, second)


def test_layer_distances_are_those_of_the_hidden_states_of_transformers(
    model: AlbertModel, heldout: ShardSet, tmp_path: Path
) -> None:
    from transformers import AlbertModel as Theirs

    settings = Intrinsic(SETTINGS.objective, layer_examples=24)
    found = layer_distances(model, heldout, settings, CPU).of_layers()
    huggingface.save(model, tmp_path / "model", Tokenizer.load(heldout.tokenizer_folder))
    theirs = Theirs.from_pretrained(tmp_path / "model").eval()
    objective = replace(
        settings.objective,
        masked_lm=NgramMasking(mask_fraction=0.0, random_fraction=0.0),
        sentence_order=replace(settings.objective.sentence_order, objective="none"),
    )
    batch = Batches(heldout, objective, 24, seed=0).at(0)
    with torch.no_grad():
        states = theirs(
            batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask.long(), output_hidden_states=True
        ).hidden_states
    for layer in range(3):
        pairs = [
            (states[layer][row, place].double().numpy(), states[layer + 1][row, place].double().numpy())
            for row in range(24)
            for place in range(int(batch.lengths[row]))
        ]
        distance = np.mean([np.sqrt(((after - before) ** 2).sum()) for before, after in pairs])
        cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in pairs]
        assert found["distance"][layer] == pytest.approx(distance, rel=1e-4)
        assert found["angle"][layer] == pytest.approx(np.degrees(np.arccos(cosines)).mean(), rel=1e-4)
