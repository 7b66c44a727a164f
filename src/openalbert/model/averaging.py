"""A last layer that adds twice the mean of all tokens to each one, so that a head on [CLS] reads the whole text.

It is an ordinary layer with set weights: all attention scores are 0, so attention is the mean; values are the identity
and the output is twice it; the feed-forward block gives 0. A frozen encoder's [CLS] was trained to tell the order of
sentences, and knows less of a text's topic than the mean of its tokens does.
"""

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
    is_shared = config.sharing == Sharing(1, 1)
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
        for name, parameter in own[-1].named_parameters() if averages else ():
            parameter.fill_(1.0 if name == "norm.weight" else 0.0)
    if averages:
        last = made.encoder.attention[-1]
        assert isinstance(last, Attention)
        torch.nn.init.eye_(last.output.weight).mul_(MEAN_WEIGHT)
        torch.nn.init.eye_(last.qkv.weight[2 * config.hidden_size :])
    return made.train(model.training)
