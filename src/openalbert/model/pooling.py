"""One vector for each sequence of a packed batch: the mean over its tokens, weighted or not, or its [CLS]."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.packing import Packed

Pooling = Literal["mean", "weighted", "cls"]
"""The mean over all tokens of a text, [CLS] and [SEP] included, as in sentence-transformers; the mean over its words,
in which rare ones weigh more; or the vector of [CLS]."""


def embed_packed(
    model: AlbertModel,
    ids: Integer[Tensor, "tokens"],
    lengths: Sequence[int],
    segments: Integer[Tensor, "tokens"] | None = None,
    *,
    pooling: Pooling = "mean",
    layer: int | None = None,
    weights: Float[Tensor, "vocabulary"] | None = None,
) -> Float[Tensor, "sequences hidden"]:
    """The embeddings of a packed batch, from the output of a layer; by default the last one. They are not normalized.

    Layers after that one are not computed. `weights` are those of the pieces of the vocabulary, for the weighted mean.
    """
    if pooling == "cls":
        firsts = torch.tensor((0, *lengths[:-1]), device=ids.device).cumsum(0)
        return _at_least_fp32(model.encode_packed(ids, lengths, segments, depth=layer, at=firsts).hidden)
    hidden = model.encode_packed(ids, lengths, segments, depth=layer).hidden
    if pooling == "mean":
        return mean_of_each(hidden, lengths)
    assert weights is not None, "a weighted mean needs weights"
    return mean_of_each(hidden, lengths, weights[ids.long()])


def mean_of_each(
    hidden: Float[Tensor, "tokens hidden"], lengths: Sequence[int], weights: Float[Tensor, "tokens"] | None = None
) -> Float[Tensor, "sequences hidden"]:
    """The mean over the tokens of each sequence, in fp32 at least."""
    counts = Packed.of(lengths, hidden.device).starts.diff()  # copied without waiting for the device
    sequence = torch.arange(len(lengths), device=hidden.device).repeat_interleave(counts, output_size=len(hidden))
    hidden = _at_least_fp32(hidden)
    total = counts.to(hidden.dtype)
    if weights is not None:
        hidden = hidden * weights[:, None]
        total = weights.new_zeros(len(lengths)).index_add(0, sequence, weights)
    return hidden.new_zeros(len(lengths), hidden.shape[1]).index_add(0, sequence, hidden) / total[:, None]


def _at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
