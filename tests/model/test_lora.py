"""Low-rank adapters: they compute what the merged matrices compute, and nothing else is trained."""

from dataclasses import replace

import pytest
import torch

from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head, Sharing
from openalbert.model.lora import SCALE, AdaptedLinear, add_adapters, merge_adapters
from openalbert.model.presets import PRESETS

LENGTHS = (5, 9, 2)
IDS = torch.arange(sum(LENGTHS)) * 7 % 900 + 5


def config(sharing: Sharing | None = None) -> AlbertConfig:
    micro = replace(PRESETS["albert-micro"], vocab_size=1000, initializer_range=0.2, hidden_dropout=0.0)
    return replace(micro, attention_dropout=0.0, classifier_dropout=0.0, sharing=sharing or Sharing())


def made(sharing: Sharing | None = None, *, adapted: bool = True, drawn: bool = True) -> AlbertModel:
    torch.manual_seed(0)
    model = AlbertModel(config(sharing), (Head("classification", ("a", "b", "c")),)).eval()
    if adapted:
        add_adapters(model.encoder, 2)
    if adapted and drawn:
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                torch.nn.init.normal_(module.lora_up, std=0.1)
    return model


def logits(model: AlbertModel, at: torch.Tensor | None = None) -> torch.Tensor:
    return model.scores("classification", model.encode_packed(IDS, LENGTHS, at=at))


@pytest.mark.parametrize("sharing", [Sharing(), Sharing(2, 1), Sharing(2, 2)])
@pytest.mark.parametrize("first_only", [False, True])
def test_merged_adapters_compute_the_same(sharing: Sharing, first_only: bool) -> None:
    model = made(sharing)
    at = torch.empty(0, dtype=torch.int64) if first_only else None
    before = logits(model, at)
    merge_adapters(model.encoder)
    torch.testing.assert_close(logits(model, at), before, atol=1e-5, rtol=1e-5)
    plain = made(sharing, adapted=False)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert not torch.allclose(logits(plain), before, atol=1e-3)


def test_new_adapters_change_nothing() -> None:
    assert torch.equal(logits(made(drawn=False)), logits(made(adapted=False)))


def test_only_adapters_have_gradients_in_the_encoder_and_they_follow_from_those_of_the_matrices() -> None:
    model, merged = made(), made()
    merge_adapters(merged.encoder)
    for one in (model, merged):
        logits(one).logsumexp(1).sum().backward()
    trained = {name for name, parameter in model.encoder.named_parameters() if parameter.grad is not None}
    assert len(trained) == 8
    assert all("lora_" in name for name in trained)
    for kind, name in (("attention", "qkv"), ("attention", "output"), ("ffn", "up"), ("ffn", "down")):
        adapted, plain = (getattr(getattr(one.encoder, kind)[0], name) for one in (model, merged))
        # The chain rule for W + scale · up · down, with the gradient of one shared matrix over all depths.
        torch.testing.assert_close(adapted.lora_up.grad, SCALE * plain.weight.grad @ adapted.lora_down.T)
        torch.testing.assert_close(adapted.lora_down.grad, SCALE * adapted.lora_up.T @ plain.weight.grad)
