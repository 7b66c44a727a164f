"""FLOPs and memory: the arithmetic of the reference, and what autograd really keeps."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.cost import Memory, activation_bytes, memory, training_flops_per_token
from openalbert.model.presets import preset
from openalbert.model.sharing import Sharing

# Forward and backward at length 512, 77 predictions, in GFLOP a token: worked out by hand from the layer sizes.
GFLOPS = {
    "albert-base": 0.570,
    "albert-large": 1.967,
    "albert-xlarge": 7.56,
    "albert-xxlarge": 14.8,
    "bert-base": 0.588,
}


@pytest.mark.parametrize("name", GFLOPS)
def test_flops_per_token_are_the_arithmetic_of_the_layers(name: str) -> None:
    found = training_flops_per_token(preset(name), 512, 77 / 512) / 1e9
    assert found == pytest.approx(GFLOPS[name], rel=0.003)


def kept_bytes(model: AlbertModel, ids: Tensor, at: Tensor) -> int:
    """What autograd holds for the backward pass, each storage once, parameters not counted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encoded = model.encode(ids, at=at)
        scores = model.scores("masked_lm", encoded).flatten(0, 1)
        torch.nn.functional.cross_entropy(scores, at.flatten())
    return sum(kept.values())


@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(6, 6)])
def test_the_estimate_of_activations_is_near_what_autograd_keeps(sharing: Sharing) -> None:
    config = replace(preset("albert-base-v2"), num_layers=6, sharing=sharing, vocab_size=2000)
    model = AlbertModel(config, PRETRAINING_HEADS)
    ids, at = torch.randint(5, 2000, (2, 128)), torch.randint(0, 128, (2, 19))
    found = kept_bytes(model, ids, at)
    assert activation_bytes(config, ids.numel(), 4, recompute=False) == pytest.approx(found, rel=0.2)


def test_recomputing_really_keeps_far_less() -> None:
    model = AlbertModel(replace(preset("albert-tiny"), num_layers=6, vocab_size=500), PRETRAINING_HEADS).train()
    ids, at = torch.randint(5, 500, (2, 128)), torch.randint(0, 128, (2, 19))
    kept = kept_bytes(model, ids, at)
    model.encoder.recomputes_activations = True
    assert kept_bytes(model, ids, at) < kept / 3


def test_the_estimate_of_recomputing_is_far_less() -> None:
    config = preset("albert-large")
    kept, again = (memory(config, 8, 512, recompute=recompute).activations for recompute in (False, True))
    assert again < kept / 7


def test_the_memory_of_a_step_is_the_sum_of_its_parts() -> None:
    assert Memory(weights=1, gradients=20, optimizer=300, activations=4000).total == 4321
