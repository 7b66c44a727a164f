"""Pooled embeddings of packed batches equal those of each sequence alone."""

import pytest
import torch
from tests.finetuning.made_sequences import VOCABULARY

from openalbert.model.albert import AlbertModel
from openalbert.model.pooling import Pooling, embed_packed, mean_of_each
from openalbert.model.presets import PRESETS

LENGTHS = (3, 9, 1, 5)


@pytest.fixture(scope="module")
def model() -> AlbertModel:
    from dataclasses import replace

    torch.manual_seed(0)
    return AlbertModel(replace(PRESETS["albert-micro"], vocab_size=VOCABULARY, initializer_range=0.3)).eval().double()


@pytest.mark.parametrize("layer", [1, 2, None])
@pytest.mark.parametrize("pooling", ["mean", "weighted", "cls"])
def test_an_embedding_does_not_depend_on_the_sequences_packed_with_it(
    model: AlbertModel, pooling: Pooling, layer: int | None
) -> None:
    torch.manual_seed(1)
    ids, weights = torch.randint(5, VOCABULARY, (sum(LENGTHS),)), torch.rand(VOCABULARY, dtype=torch.float64)
    found = embed_packed(model, ids, LENGTHS, pooling=pooling, layer=layer, weights=weights)
    for embedding, alone in zip(found, ids.split(LENGTHS), strict=True):
        hidden = model.encode(alone[None], depth=layer).hidden[0]
        of_tokens = {"mean": torch.ones(len(alone)).double(), "weighted": weights[alone]}
        expected = hidden[0]
        if pooling != "cls":
            of_each = of_tokens[pooling][:, None]
            expected = (hidden * of_each).sum(0) / of_each.sum()
        torch.testing.assert_close(embedding, expected, rtol=1e-10, atol=1e-10)


def test_the_mean_has_the_gradient_of_a_mean() -> None:
    hidden = torch.randn(sum(LENGTHS), 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: mean_of_each(given, LENGTHS), (hidden,))


def test_the_mean_of_half_precision_is_in_single_precision() -> None:
    hidden = torch.full((3000, 1), 0.1, dtype=torch.float16)
    assert mean_of_each(hidden, (3000,)).item() == pytest.approx(float(hidden[0, 0]), rel=1e-5)
