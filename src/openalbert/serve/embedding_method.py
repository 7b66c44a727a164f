"""How a model embeds texts: which layer and pooling it takes, and the weights of words."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Float32

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig
from openalbert.model.pooling import Pooling
from openalbert.tasks.task import Kind
from openalbert.text.tokenizer import SPECIAL_PIECES, Tokenizer

SMOOTHING = 1e-3  # SIF weights a / (a + p) of Arora et al. (2017)
OF_SPECIAL_PIECES = 1e-9  # [CLS] and [SEP] weigh nothing, unless a text has no other piece
DEFAULT_FRACTION = 6  # the default layer of a model that was not fine-tuned for similarity: this part of its depth


@dataclass(frozen=True)
class EmbeddingMethod:
    """How an embedding is made of a model's output."""

    pooling: Pooling
    layer: int
    """From 1 to the number of layers."""


def choose_method(
    kind: Kind | None, config: AlbertConfig, pooling: Pooling | None = None, layer: int | None = None
) -> EmbeddingMethod:
    """What the user gives, else what the model is best at.

    A model of similarity was trained for the mean of its last layer. For others a weighted mean of an early layer is
    better, by the measurements in results/embeddings.
    """
    if layer is not None and not 1 <= layer <= config.num_layers:
        raise UserError(
            f"layer is {layer}, but the model has {config.num_layers} layers: give 1 to {config.num_layers}"
        )
    is_untrained = kind != "similarity"
    if pooling not in (None, *get_args(Pooling)):
        raise UserError(f"pooling is {pooling!r}: give one of {', '.join(get_args(Pooling))}, or none")
    if pooling is None and layer is None and is_untrained:
        return EmbeddingMethod("weighted", max(1, config.num_layers // DEFAULT_FRACTION))
    return EmbeddingMethod(pooling or ("weighted" if is_untrained else "mean"), layer or config.num_layers)


def piece_weights(tokenizer: Tokenizer) -> Float32[np.ndarray, "vocabulary"]:
    """The weight of each piece in a weighted mean: rare ones count more.

    Their probabilities are those of the unigram language model that a SentencePiece vocabulary is.
    """
    scores = [tokenizer.processor.get_score(number) for number in range(tokenizer.vocab_size)]
    weights = SMOOTHING / (SMOOTHING + np.exp(scores))
    weights[: len(SPECIAL_PIECES)] = OF_SPECIAL_PIECES
    weights[tokenizer.unk_id] = 1.0
    return weights.astype(np.float32)
