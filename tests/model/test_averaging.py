"""The layer that averages, and models of fewer layers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from openalbert.interop.names import family_of
from openalbert.model.albert import AlbertModel
from openalbert.model.averaging import MEAN_WEIGHT, with_depth
from openalbert.model.config import Head, Sharing
from openalbert.model.presets import PRESETS

LENGTHS = (5, 9, 2)
IDS = torch.arange(sum(LENGTHS)) * 7 % 900 + 5


def made(num_layers: int, sharing: Sharing) -> AlbertModel:
    torch.manual_seed(0)
    config = replace(PRESETS["albert-micro"], vocab_size=1000, initializer_range=0.3, num_layers=num_layers)
    return AlbertModel(replace(config, sharing=sharing), (Head("classification", ("a", "b")),)).eval()


@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(4, 4), Sharing(2, 1)])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("averages", [True, False])
def test_the_last_layer_gives_the_norm_of_a_token_plus_the_mean(sharing: Sharing, depth: int, averages: bool) -> None:
    model = made(4, sharing)
    changed = with_depth(model, depth, averages=averages)
    with torch.no_grad():
        states = model.encode_packed(IDS, LENGTHS, depth=depth).hidden.split(LENGTHS)
        found = changed.encode_packed(IDS, LENGTHS).hidden.split(LENGTHS)
    for before, after in zip(states, found, strict=True):
        expected = F.layer_norm(before + MEAN_WEIGHT * before.mean(0), before.shape[1:]) if averages else before
        torch.testing.assert_close(after, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("depth", range(1, 25))
def test_transformers_can_express_the_model_of_any_depth(depth: int) -> None:
    model = with_depth(made(24, Sharing(1, 1)), depth, averages=True)
    assert family_of(model.config) == "albert"
    assert model.config.sharing.ffn <= depth // 2 + 2
