"""Names of the variables in Google's ALBERT and BERT, and Hugging Face's names of the same tensors.

Names and shapes are those of google-research/albert (modeling.py, run_pretraining.py, classifier_utils.py,
squad_utils.py) and google-research/bert.
"""

from dataclasses import dataclass, replace
from typing import Literal

Family = Literal["albert", "bert"]


@dataclass(frozen=True)
class Pair:
    """A variable of Google's and the corresponding tensor of Hugging Face's."""

    google: str
    hugging_face: str
    shape: tuple[str | int, ...]
    """Google's shape: numbers, keys of the configuration, or another name for any one number."""
    transposed: bool = False
    """Google's kernels are the transposes of PyTorch's weights."""


@dataclass(frozen=True)
class TensorGroup:
    """Pairs that occur together; a name may hold the counters {layer}, {group} and {inner}."""

    name: str
    pairs: tuple[Pair, ...]
    required: bool = False


def _dense(google: str, hugging_face: str, inputs: str, outputs: str) -> tuple[Pair, ...]:
    return (
        Pair(f"{google}/kernel", f"{hugging_face}.weight", (inputs, outputs), transposed=True),
        Pair(f"{google}/bias", f"{hugging_face}.bias", (outputs,)),
    )


def _norm(google: str, hugging_face: str, size: str) -> tuple[Pair, ...]:
    return (
        Pair(f"{google}/gamma", f"{hugging_face}.weight", (size,)),
        Pair(f"{google}/beta", f"{hugging_face}.bias", (size,)),
    )


def _output(google: str, hugging_face: str, outputs: str | int) -> tuple[Pair, ...]:
    """A head. Google stores its weights as PyTorch does, one row per output."""
    return (
        Pair(f"{google}output_weights", f"{hugging_face}.weight", (outputs, "hidden_size")),
        Pair(f"{google}output_bias", f"{hugging_face}.bias", (outputs,)),
    )


def _within(google: str, hugging_face: str, *pairs: Pair) -> tuple[Pair, ...]:
    return tuple(
        replace(pair, google=google + pair.google, hugging_face=hugging_face + pair.hugging_face) for pair in pairs
    )


def _embeddings(hugging_face: str, size: str) -> tuple[Pair, ...]:
    return _within(
        "bert/embeddings",
        hugging_face,
        Pair("/word_embeddings", ".word_embeddings.weight", ("vocab_size", size)),
        Pair("/position_embeddings", ".position_embeddings.weight", ("max_position_embeddings", size)),
        Pair("/token_type_embeddings", ".token_type_embeddings.weight", ("type_vocab_size", size)),
        *_norm("/LayerNorm", ".LayerNorm", size),
    )


def _masked_lm(hugging_face: str, transform: str, size: str) -> tuple[Pair, ...]:
    return _within(
        "cls/predictions",
        hugging_face,
        *_dense("/transform/dense", f"{transform}.dense", "hidden_size", size),
        *_norm("/transform/LayerNorm", f"{transform}.LayerNorm", size),
        Pair("/output_bias", ".bias", ("vocab_size",)),
    )


ALBERT_MAP = TensorGroup(
    "embedding map",
    _dense(
        "bert/encoder/embedding_hidden_mapping_in",
        "albert.encoder.embedding_hidden_mapping_in",
        "embedding_size",
        "hidden_size",
    ),
    required=True,
)
_FINE_TUNED = (
    TensorGroup("classifier", _output("", "classifier", "num_labels")),
    TensorGroup("span", _output("cls/squad/", "qa_outputs", 2)),
)

HUGGING_FACE_NAMES: dict[Family, tuple[TensorGroup, ...]] = {
    "albert": (
        TensorGroup("embeddings", _embeddings("albert.embeddings", "embedding_size"), required=True),
        ALBERT_MAP,
        TensorGroup(
            "layers",
            _within(
                "bert/encoder/transformer/group_{group}/inner_group_{inner}",
                "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}",
                *_dense("/attention_1/self/query", ".attention.query", "hidden_size", "hidden_size"),
                *_dense("/attention_1/self/key", ".attention.key", "hidden_size", "hidden_size"),
                *_dense("/attention_1/self/value", ".attention.value", "hidden_size", "hidden_size"),
                *_dense("/attention_1/output/dense", ".attention.dense", "hidden_size", "hidden_size"),
                *_norm("/LayerNorm", ".attention.LayerNorm", "hidden_size"),
                *_dense("/ffn_1/intermediate/dense", ".ffn", "hidden_size", "intermediate_size"),
                *_dense("/ffn_1/intermediate/output/dense", ".ffn_output", "intermediate_size", "hidden_size"),
                *_norm("/LayerNorm_1", ".full_layer_layer_norm", "hidden_size"),
            ),
            required=True,
        ),
        TensorGroup(
            "pooler", _dense("bert/pooler/dense", "albert.pooler", "hidden_size", "hidden_size"), required=True
        ),
        TensorGroup("masked LM", _masked_lm("predictions", "", "embedding_size")),
        TensorGroup("sentence order", _output("cls/seq_relationship/", "sop_classifier.classifier", 2)),
        *_FINE_TUNED,
    ),
    "bert": (
        TensorGroup("embeddings", _embeddings("bert.embeddings", "hidden_size"), required=True),
        TensorGroup(
            "layers",
            _within(
                "bert/encoder/layer_{layer}",
                "bert.encoder.layer.{layer}",
                *_dense("/attention/self/query", ".attention.self.query", "hidden_size", "hidden_size"),
                *_dense("/attention/self/key", ".attention.self.key", "hidden_size", "hidden_size"),
                *_dense("/attention/self/value", ".attention.self.value", "hidden_size", "hidden_size"),
                *_dense("/attention/output/dense", ".attention.output.dense", "hidden_size", "hidden_size"),
                *_norm("/attention/output/LayerNorm", ".attention.output.LayerNorm", "hidden_size"),
                *_dense("/intermediate/dense", ".intermediate.dense", "hidden_size", "intermediate_size"),
                *_dense("/output/dense", ".output.dense", "intermediate_size", "hidden_size"),
                *_norm("/output/LayerNorm", ".output.LayerNorm", "hidden_size"),
            ),
            required=True,
        ),
        TensorGroup(
            "pooler", _dense("bert/pooler/dense", "bert.pooler.dense", "hidden_size", "hidden_size"), required=True
        ),
        TensorGroup("masked LM", _masked_lm("cls.predictions", ".transform", "hidden_size")),
        TensorGroup("next sentence", _output("cls/seq_relationship/", "cls.seq_relationship", 2)),
        *_FINE_TUNED,
    ),
}
