"""FLOPs and memory: the arithmetic of the reference, and what autograd really keeps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.model.cost import (
    Memory,
    Precision,
    activation_bytes,
    executed_training_flops,
    memory,
    training_flops_per_token,
)
from openalbert.model.kernels import cpu_linear
from openalbert.model.presets import preset
from openalbert.pretraining.batches import Objective, PretrainingBatch
from openalbert.pretraining.loss import pretraining_scores

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


def kept_bytes(model: AlbertModel, ids: Tensor, at: Tensor, with_scores: bool = False) -> int:
    """What autograd holds for the backward pass, each storage once, parameters not counted.

    The scores of the vocabulary themselves are not held, but they are there at the peak: counted on request.
    """
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
        if with_scores:
            pack(scores)
    return sum(kept.values())


@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(6, 6)])
def test_the_estimate_of_activations_is_near_what_autograd_keeps(sharing: Sharing) -> None:
    config = replace(preset("albert-base-v2"), num_layers=6, sharing=sharing, vocab_size=2000)
    model = AlbertModel(config, PRETRAINING_HEADS)
    ids, at = torch.randint(5, 2000, (2, 128)), torch.randint(0, 128, (2, 19))
    found = kept_bytes(model, ids, at)
    assert activation_bytes(config, ids.numel(), 4, recompute=False) == pytest.approx(found, rel=0.2)


@pytest.mark.parametrize(
    "change", [{"num_layers": 4}, {"embedding_size": 320}, {"vocab_size": 1500}, {"hidden_dropout": 0.1}], ids=str
)
def test_the_estimate_grows_with_each_size_as_what_autograd_keeps_does(
    change: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A GPU's dropout keeps a byte for each number, a CPU's keeps a float.
    def dropout(x: Tensor, p: float, *_: bool) -> Tensor:
        return torch.native_dropout(x, p, True)[0] if p else x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    before = replace(preset("albert-tiny"), num_layers=3, vocab_size=500, embedding_size=64)
    ids, at = torch.randint(5, 500, (2, 64)), torch.arange(64).expand(2, 64)
    found, estimated = [], []
    for config in (before, replace(before, **change)):  # type: ignore[arg-type]
        model = AlbertModel(config, PRETRAINING_HEADS).train()
        found.append(kept_bytes(model, ids, at, with_scores=True))
        estimated.append(activation_bytes(config, ids.numel(), 4, recompute=False, masked_fraction=1.0))
    assert estimated[1] - estimated[0] == pytest.approx(found[1] - found[0], rel=0.25)


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


def small(sharing: Sharing) -> AlbertConfig:
    config = replace(preset("albert-tiny"), num_layers=3, vocab_size=500, sharing=sharing)
    return config if sharing.ffn == 1 else replace(config, embedding_size=config.hidden_size)


def counted_flops(loss: Callable[[], Tensor]) -> int:
    """What torch's own counter sees of a forward and a backward pass; attention as plain matrix products.

    It does not know oneDNN's products, so torch's own are taken on every processor.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_linear, "prefers_onednn", lambda: False)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            loss().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(3, 3)])
def test_executed_flops_are_what_torch_counts_in_our_pretraining_step(sharing: Sharing) -> None:
    config, batch, length = small(sharing), 2, 64
    objective = Objective(length)
    ids, masked = torch.randint(5, 500, (batch, length)), objective.num_predictions
    at = torch.arange(masked).expand(batch, masked).contiguous()
    lengths, valid = torch.full((batch,), length), torch.ones(batch, masked, dtype=torch.bool)
    examples = PretrainingBatch(ids, torch.zeros_like(ids), lengths, at, ids[:, :masked], valid, lengths % 2)
    model = AlbertModel(config, PRETRAINING_HEADS)
    found = counted_flops(
        lambda: torch.stack([score.mean for score in pretraining_scores(model, examples, 3).values()]).sum()
    )
    assert found == batch * executed_training_flops(config, length, computed=masked + 1, scored=masked)


@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(3, 3)])
def test_executed_flops_of_transformers_are_what_torch_counts_in_its_pretraining_model(sharing: Sharing) -> None:
    config, batch, length = small(sharing), 2, 64
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.ffn_size,
    }
    if sharing.ffn == 1:
        albert = transformers.AlbertConfig(embedding_size=config.embedding_size, **sizes)
        model, order = transformers.AlbertForPreTraining(albert), "sentence_order_label"
    else:
        model, order = transformers.BertForPreTraining(transformers.BertConfig(**sizes)), "next_sentence_label"
    ids = torch.randint(5, 500, (batch, length))
    labels = torch.where(torch.arange(length) < 9, ids, -100)
    found = counted_flops(lambda: model(input_ids=ids, labels=labels, **{order: torch.zeros(batch).long()}).loss)
    assert found == batch * executed_training_flops(config, length, computed=length, scored=length)


@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(3, 3)])
def test_model_flops_are_what_torch_counts_with_a_full_last_layer_and_scores_at_the_masked_positions(
    sharing: Sharing,
) -> None:
    config, batch, length, masked = small(sharing), 2, 64, 10
    model = AlbertModel(config, PRETRAINING_HEADS)
    ids = torch.randint(5, 500, (batch, length))

    def loss() -> Tensor:
        encoded = model.encode(ids)
        some = replace(encoded, hidden=encoded.hidden[:, :masked].contiguous())
        return model.scores("masked_lm", some).sum()

    pooler = 2 * batch * config.hidden_size**2  # a forward pass at one position, which the formula leaves out
    model_flops = batch * length * training_flops_per_token(config, length, masked / length)
    assert counted_flops(loss) == round(model_flops) + pooler


def test_the_memory_of_a_step_is_the_sum_of_its_parts() -> None:
    assert Memory(weights=1, gradients=20, optimizer=300, activations=4000).total == 4321


@pytest.mark.parametrize(("precision", "of_weights", "width"), [("bf16", 6, 2), ("tf32", 4, 4), ("fp32", 4, 4)])
def test_every_parameter_has_fp32_weights_gradients_and_two_moments_and_a_copy_in_bf16(
    precision: Precision, of_weights: int, width: int
) -> None:
    config, parameters = preset("albert-base"), 11_813_810
    found = memory(config, 3, 128, precision)
    assert (found.weights, found.gradients, found.optimizer) == tuple(
        size * parameters for size in (of_weights, 4, 4 + 4)
    )
    assert found.activations == activation_bytes(config, 3 * 128, width, recompute=False)
