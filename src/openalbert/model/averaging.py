"""A last layer that adds twice the mean of all tokens to each one, so that a head on [CLS] reads the whole text.

It is an ordinary layer with set weights: all attention scores are 0, so attention is the mean; values are the identity
and the output is twice it; the feed-forward block gives 0. A frozen encoder's [CLS] was trained to predict the order
of sentences, and knows less of a text's topic than the mean of its tokens does.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch

from openalbert.model.albert import AlbertModel
from openalbert.model.config import Sharing, block_of_layer
from openalbert.model.layer import Attention

MEAN_WEIGHT = 2.0  # at full depth a little better than 1 (results/laptop/features.json)


@torch.no_grad()
def with_depth(model: AlbertModel, depth: int, *, averages: bool = False) -> AlbertModel:
    """A model of the first `depth` layers, and with `averages` one more, that averages; the heads are the same.

    Hugging Face's ALBERT has groups of nearly equal size. For a last layer of its own, the shared block is stored once
    for each two layers.
    """
    config = model.config
    layers = depth + averages
    used = (
        blocks[: block_of_layer(depth - 1, len(blocks), config.num_layers) + 1]
        for blocks in (model.encoder.attention, model.encoder.ffn)
    )
    is_shared = all(map(_are_equal, used))
    groups = (layers // 2 + 1 if averages else 1) if is_shared else layers
    made = AlbertModel(replace(config, num_layers=layers, sharing=Sharing(groups, groups)), model.head_list)
    weights = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        if not name.startswith(("encoder.attention.", "encoder.ffn.")):
            parameter.copy_(weights[name])
    for kind in ("attention", "ffn"):
        own, given = getattr(made.encoder, kind), getattr(model.encoder, kind)
        for layer in range(depth):
            source = given[block_of_layer(layer, len(given), config.num_layers)]
            own[block_of_layer(layer, groups, layers)].load_state_dict(source.state_dict())
    if averages:
        _set_averaging(made.encoder.attention[-1], made.encoder.ffn[-1])
    return made.train(model.training)


@torch.no_grad()
def is_averaging(model: AlbertModel) -> bool:
    """Whether the last layer is one that `with_depth` added."""
    blocks = model.encoder.attention[-1], model.encoder.ffn[-1]
    expected = copy.deepcopy(blocks)
    _set_averaging(*expected)
    return all(_are_equal(pair) for pair in zip(blocks, expected, strict=True))


def _set_averaging(attention: torch.nn.Module, ffn: torch.nn.Module) -> None:
    for block in (attention, ffn):
        for name, parameter in block.named_parameters():
            parameter.fill_(1.0 if name == "norm.weight" else 0.0)
    assert isinstance(attention, Attention)
    torch.nn.init.eye_(attention.output.weight).mul_(MEAN_WEIGHT)
    torch.nn.init.eye_(attention.qkv.weight[2 * attention.qkv.in_features :])


def _are_equal(blocks: Iterable[torch.nn.Module]) -> bool:
    """Whether blocks have the same weights: a shared one is stored several times before an averaging layer."""
    first, *others = (block.state_dict() for block in blocks)
    return all(torch.equal(tensor, other[name]) for other in others for name, tensor in first.items())
