"""The cost of a model: parameters by component, FLOPs per token, memory of a training step. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Head

Precision = Literal["bf16", "tf32", "fp32"]

ENCODER_COMPONENTS = (
    "word embedding",
    "position and segment embedding",
    "embedding map",
    "attention",
    "feed-forward",
    "pooler",
)


def parameters_by_component(config: AlbertConfig, heads: Sequence[Head] = PRETRAINING_HEADS) -> dict[str, int]:
    """Number of parameters of each component of the encoder and of each head."""
    embedding, hidden = config.embedding_size, config.hidden_size
    norm = 2 * hidden
    attention = 4 * _linear(hidden, hidden) + norm
    ffn = _linear(hidden, config.ffn_size) + _linear(config.ffn_size, hidden) + norm
    counts = (
        config.vocab_size * embedding,
        (config.max_positions + config.num_segments) * embedding + 2 * embedding,
        _linear(embedding, hidden) if config.maps_embedding else 0,
        config.sharing.attention * attention,
        config.sharing.ffn * ffn,
        _linear(hidden, hidden),
    )
    by_component = dict(zip(ENCODER_COMPONENTS, counts, strict=True))
    for head in heads:
        if head.kind == "masked_lm":
            # The output matrix is tied to the word embedding; only the bias is its own.
            by_component["masked-LM head"] = _linear(hidden, embedding) + 2 * embedding + config.vocab_size
        else:
            by_component[f"{head.kind.replace('_', '-')} head"] = _linear(hidden, head.num_outputs)
    return by_component


def _linear(width_in: int, width_out: int) -> int:
    return width_in * width_out + width_out


def encoder_parameters(by_component: dict[str, int]) -> int:
    """Parameters of the encoder with pooler, without heads, as in the paper's tables."""
    return sum(by_component[component] for component in ENCODER_COMPONENTS)


def has_masked_lm(heads: Sequence[Head]) -> bool:
    """Whether there is a masked-LM head."""
    return any(head.kind == "masked_lm" for head in heads)


def forward_flops_per_token(
    config: AlbertConfig, length: int, masked_fraction: float = 0.15, depth: int | None = None
) -> float:
    """Model FLOPs of the forward pass: a multiply-add counts as two, attention is included, every layer is computed at
    every position, and the vocabulary is scored at the masked positions only.

    `depth` is the number of layers that run; None means all.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    layer = 8 * hidden * hidden + 4 * hidden * config.ffn_size + 4 * length * hidden
    embedding_map = 2 * embedding * hidden if config.maps_embedding else 0
    masked_lm = (2 * hidden * embedding + 2 * embedding * config.vocab_size) * masked_fraction
    return (depth or config.num_layers) * layer + embedding_map + masked_lm


def training_flops_per_token(
    config: AlbertConfig, length: int, masked_fraction: float = 0.15, depth: int | None = None
) -> float:
    """Model FLOPs of a training step: the forward pass, and twice that for the gradients of inputs and of weights.

    Model FLOPs utilization (MFU) is this number times tokens per second, divided by the matmul rate of the device. The
    formula is the same for all implementations, whatever they skip or recompute.
    """
    return 3 * forward_flops_per_token(config, length, masked_fraction, depth)


def executed_training_flops(
    config: AlbertConfig, length: int, *, computed: int, scored: int, depth: int | None = None
) -> int:
    """FLOPs of the matrix products that a pretraining step executes for one sequence, forward and backward pass.

    The last layer computes only `computed` positions, with keys and values from all; the vocabulary is scored at
    `scored` positions. Our step computes the masked positions and [CLS] and scores the masked ones; transformers
    computes and scores all. Recomputation in the backward pass is not counted.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    keys_and_values = 4 * hidden * hidden * length
    query_and_output = 4 * hidden * hidden + 4 * length * hidden
    ffn = 4 * hidden * config.ffn_size
    full_layer = keys_and_values + length * (query_and_output + ffn)
    last_layer = keys_and_values + computed * (query_and_output + ffn)
    embedding_map = 2 * embedding * hidden * length if config.maps_embedding else 0
    masked_lm = (2 * hidden * embedding + 2 * embedding * config.vocab_size) * scored
    pooler_and_order = 2 * hidden * hidden + 2 * hidden * 2
    layers = ((depth or config.num_layers) - 1) * full_layer + last_layer
    return 3 * (layers + embedding_map + masked_lm + pooler_and_order)


@dataclass(frozen=True)
class Memory:
    """Bytes of one training step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.gradients + self.optimizer + self.activations


def memory(
    config: AlbertConfig,
    batch: int,
    length: int,
    precision: Precision = "bf16",
    recompute: bool = False,
    heads: Sequence[Head] = PRETRAINING_HEADS,
    *,
    has_muon: bool = False,
    masked_fraction: float = 0.15,
) -> Memory:
    """Peak memory of a training step of `batch` sequences.

    Weights, gradients and LAMB's two moments are fp32; with bf16 the matrix products use bf16 copies of the weights.
    Muon has one moment instead of two for the matrices of the layers.
    """
    parameters = sum(parameters_by_component(config, heads).values())
    width = 2 if precision == "bf16" else 4
    weights = parameters * (4 + 2 if precision == "bf16" else 4)
    return Memory(
        weights=weights,
        gradients=4 * parameters,
        optimizer=8 * parameters - (4 * layer_matrix_parameters(config) if has_muon else 0),
        activations=activation_bytes(
            config, batch * length, width, recompute, masked_fraction if has_masked_lm(heads) else 0.0
        ),
    )


def teacher_memory(
    config: AlbertConfig, batch: int, length: int, precision: Precision = "bf16", masked_fraction: float = 0.15
) -> Memory:
    """Memory that a teacher adds to a training step: its fp32 weights, the activations of one layer, and its scores and
    both models' probabilities at the masked positions, which the student's backward pass needs."""
    width = 2 if precision == "bf16" else 4
    layer = width * (8 * config.hidden_size + 2 * config.ffn_size)
    scores = masked_fraction * (width + 8) * config.vocab_size
    return Memory(
        weights=4 * sum(parameters_by_component(config).values()),
        gradients=0,
        optimizer=0,
        activations=round(batch * length * (layer + scores)),
    )


def layer_matrix_parameters(config: AlbertConfig) -> int:
    """Parameters of the attention and feed-forward matrices, without biases and layer norms."""
    attention = 4 * config.hidden_size * config.hidden_size
    ffn = 2 * config.hidden_size * config.ffn_size
    return config.sharing.attention * attention + config.sharing.ffn * ffn


def activation_bytes(
    config: AlbertConfig, tokens: int, width: int, recompute: bool, masked_fraction: float = 0.15
) -> int:
    """Activations that the backward pass needs, with attention that stores no length x length matrix."""
    hidden, ffn = config.hidden_size, config.ffn_size
    # Input, query, key, value, attention's result, and input and output of the first layer norm, then the second's
    # input: 8 of the hidden size. Before and after the nonlinearity: 2 of the feed-forward size.
    layer = width * (8 * hidden + 2 * ffn)
    if config.hidden_dropout > 0:
        layer += 2 * hidden  # one byte of dropout mask per element
    layers = config.num_layers * layer
    if recompute:
        layers = config.num_layers * width * hidden + layer
    embedding = width * 3 * config.embedding_size
    masked = masked_fraction * (width * (hidden + 3 * config.embedding_size) + (width + 4) * config.vocab_size)
    return round(tokens * (layers + embedding + masked))
