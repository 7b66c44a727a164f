"""One vector for each sequence of a packed batch: the mean over its tokens, or its [CLS]."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from openalbert.model.albert import AlbertModel

Pooling = Literal["mean", "cls"]
"""The mean over all tokens of a text, [CLS] and [SEP] included, as in sentence-transformers; or the vector of [CLS]."""


def embed_packed(
    model: AlbertModel,
    ids: Integer[Tensor, "tokens"],
    lengths: Sequence[int],
    segments: Integer[Tensor, "tokens"] | None = None,
    *,
    pooling: Pooling = "mean",
    layer: int | None = None,
) -> Float[Tensor, "sequences hidden"]:
    """The embeddings of a packed batch, from the output of a layer; by default the last one. They are not normalized.

    Layers after that one are not computed.
    """
    if pooling == "cls":
        firsts = torch.tensor((0, *lengths[:-1]), device=ids.device).cumsum(0)
        return _at_least_fp32(model.encode_packed(ids, lengths, segments, depth=layer, at=firsts).hidden)
    return mean_of_each(model.encode_packed(ids, lengths, segments, depth=layer).hidden, lengths)


def mean_of_each(
    hidden: Float[Tensor, "tokens hidden"], lengths: Sequence[int]
) -> Float[Tensor, "sequences hidden"]:
    """The mean over the tokens of each sequence, in fp32 at least."""
    counts = torch.tensor(lengths, device=hidden.device)
    sequence = torch.arange(len(lengths), device=hidden.device).repeat_interleave(counts, output_size=len(hidden))
    hidden = _at_least_fp32(hidden)
    sums = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add(0, sequence, hidden)
    return sums / counts[:, None]


def _at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
