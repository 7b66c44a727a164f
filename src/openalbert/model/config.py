"""Everything the paper varies about the model, as one frozen configuration. Needs no torch."""

import math
from dataclasses import dataclass, field
from typing import Literal

from openalbert.errors import UserError

Activation = Literal["gelu_tanh", "gelu_erf", "relu"]
EmbeddingMap = Literal["where_sizes_differ", "always"]
LARGEST = 10**8  # of any size: far beyond every model, and a matrix of two such sizes can still be counted in 64 bits
HeadKind = Literal[
    "masked_lm",
    "sentence_order",
    "classification",
    "regression",
    "multi_label",
    "multiple_choice",
    "span",
    "answerability",
]


def _refuse(wrong: bool, sentence: str) -> None:
    if wrong:
        raise UserError(sentence)


@dataclass(frozen=True)
class Sharing:
    """How many distinct copies of each part the layers draw on. One copy means that every layer shares it.

    With L layers the paper's table is: all (1, 1), attention only (1, L), feed-forward only (L, 1), none (L, L);
    groups of layers are (g, g). A layer norm belongs to the part it follows.
    """

    attention: int = 1
    """Distinct attention parts: 1 shares one among all layers, as many as there are layers shares nothing."""
    ffn: int = 1
    """Distinct feed-forward parts, counted in the same way."""


def block_of_layer(layer: int, num_parts: int, num_layers: int) -> int:
    """Which of `num_parts` copies a layer uses: consecutive layers share one, in groups as equal as can be."""
    return layer * num_parts // num_layers


@dataclass(frozen=True)
class AlbertConfig:
    """One ALBERT, or one BERT: BERT is the ALBERT with embedding_size = hidden_size and nothing shared.

    The defaults are ALBERT-base, version 1.
    """

    vocab_size: int = 30000
    """Number of pieces in the vocabulary (V)."""
    embedding_size: int = 128
    """Width of the word, position and segment embeddings (E)."""
    hidden_size: int = 768
    """Width of the layers (H)."""
    num_layers: int = 12
    """How many layers a token passes (L)."""
    num_heads: int = 12
    """Attention heads of a layer; the paper makes each 64 wide."""
    ffn_size: int = 3072
    """Inner width of the feed-forward part; the paper's is 4 times the hidden size."""
    sharing: Sharing = field(default_factory=Sharing)
    """How many distinct copies of each part the layers draw on."""
    max_positions: int = 512
    """The longest input in tokens."""
    num_segments: int = 2
    """Segment types: first and second segment of an input."""
    activation: Activation = "gelu_tanh"
    """Nonlinearity of feed-forward part and masked-LM head. Google's GELU is the tanh approximation."""
    hidden_dropout: float = 0.1
    """Dropout after the embedding, the attention part and the feed-forward part."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities."""
    classifier_dropout: float = 0.1
    """Dropout before the heads used in fine-tuning."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal that fresh weights are drawn from."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance in every layer norm."""
    embedding_map: EmbeddingMap = "where_sizes_differ"
    """Whether a linear map follows the embedding where E = H too, as Hugging Face's ALBERT has it."""

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
            share = getattr(self, name)
            _refuse(not 0 <= share < 1, f"{name} is {share}: it is a share, at least 0 and below 1")
        for name in ("attention", "ffn"):
            parts = getattr(self.sharing, name)
            _refuse(
                not 1 <= parts <= self.num_layers,
                f"sharing.{name} is {parts}: {self.num_layers} layers can draw on 1 to {self.num_layers} parts",
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
        """Whether a linear map E to H follows the embedding; without one the embedding is as wide as the layers."""
        return self.embedding_size != self.hidden_size or self.embedding_map == "always"


@dataclass(frozen=True)
class Head:
    """One job on top of the encoder."""

    kind: HeadKind
    """What the head computes. A span model that may also say "no answer" has two heads: span and answerability."""
    labels: tuple[str, ...] = ()
    """Names of the classes, for classification and multi_label; the names of the values for regression."""

    def __post_init__(self) -> None:
        _refuse(
            self.kind in ("classification", "multi_label") and len(self.labels) < 1,
            f"a {self.kind} head needs the names of its classes in labels",
        )
        twice = next((label for label in self.labels if self.labels.count(label) > 1), None)
        _refuse(twice is not None, f"the label '{twice}' stands twice in labels: each class needs its own name")

    @property
    def num_outputs(self) -> int:
        """How many numbers the head gives for each example, token or choice."""
        if self.kind in ("classification", "multi_label", "regression"):
            return max(1, len(self.labels))
        return 2 if self.kind in ("sentence_order", "span") else 1


PRETRAINING_HEADS = (Head("masked_lm"), Head("sentence_order"))
