"""The model configuration: every hyperparameter that the paper varies. Needs no torch."""

import math
from dataclasses import dataclass, field
from typing import Literal

from openalbert.errors import UserError

Activation = Literal["gelu_tanh", "gelu_erf", "relu"]
EmbeddingMap = Literal["where_sizes_differ", "always"]
LARGEST = 10**8  # limit for any size; the elements of a matrix of two such sizes still fit into 64 bits
HeadKind = Literal[
    "masked_lm",
    "sentence_order",
    "classification",
    "regression",
    "multi_label",
    "multiple_choice",
    "span",
    "answerability",
    "tagging",
]
TOKEN_HEADS = ("span", "tagging")
"""The kinds of task heads that score every token; the others score sequences."""


def _refuse(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise UserError(message)


@dataclass(frozen=True)
class Sharing:
    """The number of distinct attention and feed-forward blocks. 1 means that all layers share one block.

    With L layers the paper's table is: all (1, 1), attention only (1, L), feed-forward only (L, 1), none (L, L);
    groups of layers are (g, g). A layer norm belongs to the block it follows.
    """

    attention: int = 1
    """Distinct attention blocks: 1 is shared by all layers; the number of layers means no sharing."""
    ffn: int = 1
    """Distinct feed-forward blocks, counted in the same way."""


def block_of_layer(layer: int, num_blocks: int, num_layers: int) -> int:
    """The index of the block that a layer uses: consecutive layers share one, in groups of nearly equal size."""
    return layer * num_blocks // num_layers


@dataclass(frozen=True)
class AlbertConfig:
    """Configuration of an ALBERT or a BERT; BERT is ALBERT with embedding_size = hidden_size and no sharing.

    The defaults are ALBERT-base, version 1.
    """

    vocab_size: int = 30000
    """Number of pieces in the vocabulary (V)."""
    embedding_size: int = 128
    """Width of the word, position and segment embeddings (E)."""
    hidden_size: int = 768
    """Width of the layers (H)."""
    num_layers: int = 12
    """Number of layers (L)."""
    num_heads: int = 12
    """Attention heads per layer; in the paper each has size 64."""
    ffn_size: int = 3072
    """Inner width of the feed-forward block; in the paper 4 times the hidden size."""
    sharing: Sharing = field(default_factory=Sharing)
    """Number of distinct attention and feed-forward blocks."""
    max_positions: int = 512
    """Longest input in tokens."""
    num_segments: int = 2
    """Segment types: first and second segment of an input."""
    activation: Activation = "gelu_tanh"
    """Nonlinearity of the feed-forward block and the masked-LM head. Google's GELU is the tanh approximation."""
    hidden_dropout: float = 0.1
    """Dropout after the embedding, the attention block and the feed-forward block."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities."""
    classifier_dropout: float = 0.1
    """Dropout before the fine-tuning heads."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal distribution for initial weights."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance in every layer norm."""
    embedding_map: EmbeddingMap = "where_sizes_differ"
    """Whether a linear map follows the embedding even where E = H, as in Hugging Face's ALBERT."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "embedding_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "ffn_size",
            "max_positions",
            "num_segments",
        ):
            size = getattr(self, name)
            _refuse(size < 1, f"{name} is {size}: it must be at least 1")
            _refuse(size > LARGEST, f"{name} is {size}: it must be at most {LARGEST}")
        for name in ("hidden_dropout", "attention_dropout", "classifier_dropout"):
            rate = getattr(self, name)
            _refuse(not 0 <= rate < 1, f"{name} is {rate}: it must be at least 0 and below 1")
        for name in ("attention", "ffn"):
            blocks = getattr(self.sharing, name)
            _refuse(
                not 1 <= blocks <= self.num_layers,
                f"sharing.{name} is {blocks}: {self.num_layers} layers can have 1 to {self.num_layers} distinct blocks",
            )
        _refuse(
            self.hidden_size % self.num_heads != 0,
            f"hidden_size {self.hidden_size} does not divide into {self.num_heads} heads: change one of the two",
        )
        for name in ("initializer_range", "layer_norm_epsilon"):
            number = getattr(self, name)
            _refuse(not 0 < number < math.inf, f"{name} is {number}: it must be above 0, and finite")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def maps_embedding(self) -> bool:
        """Whether a linear map from E to H follows the embedding."""
        return self.embedding_size != self.hidden_size or self.embedding_map == "always"


@dataclass(frozen=True)
class Head:
    """One output head on top of the encoder."""

    kind: HeadKind
    """What the head computes. A span model that can also predict "no answer" has two heads: span and answerability."""
    labels: tuple[str, ...] = ()
    """Class names for classification, multi_label and tagging; names of the values for regression."""

    def __post_init__(self) -> None:
        _refuse(
            self.kind in ("classification", "multi_label", "tagging") and len(self.labels) < 1,
            f"a {self.kind} head needs the names of its classes in labels",
        )
        twice = next((label for label in self.labels if self.labels.count(label) > 1), None)
        _refuse(twice is not None, f"the label '{twice}' occurs twice in labels: each class needs its own name")

    @property
    def num_outputs(self) -> int:
        """How many numbers the head gives for each example, token or choice."""
        if self.kind in ("classification", "multi_label", "regression", "tagging"):
            return max(1, len(self.labels))
        return 2 if self.kind in ("sentence_order", "span") else 1


PRETRAINING_HEADS = (Head("masked_lm"), Head("sentence_order"))
