"""Reads Google's ALBERT and BERT checkpoints: configuration and tensors, in Hugging Face's keys, names and shapes.

Names are those of google-research/albert (modeling.py, run_pretraining.py, classifier_utils.py, squad_utils.py) and
google-research/bert. What is missing, unknown or of another shape is found when huggingface.py builds the model.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from openalbert.errors import UserError
from openalbert.interop.names import Family
from openalbert.interop.tensor_bundle import TensorBundle, index_of

Tensors = dict[str, Float32[np.ndarray, "..."]]

# The defaults of Google's constructors.
_DEFAULTS: dict[Family, dict[str, int | float | str]] = {
    "albert": {"hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "bert": {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
}

_HUB = "module/"  # the scope that TF-Hub puts around a module's variables
# What training leaves in a checkpoint besides the weights.
_OPTIMIZER = re.compile(
    r".*/(adam|lamb)_[mv]|.*/(Adam|AdamWeightDecayOptimizer|LAMBOptimizer)(_1)?|beta[12]_power|global_step"
)
# Google's modules -> Hugging Face's; a layer's own are in _LAYER.
_MODULES: dict[Family, dict[str, str]] = {
    "albert": {
        "bert/embeddings": "albert.embeddings",
        "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
        "bert/encoder/embedding_hidden_mapping_in": "albert.encoder.embedding_hidden_mapping_in",
        "bert/pooler/dense": "albert.pooler",
        "cls/predictions/transform/dense": "predictions.dense",
        "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
        "cls/predictions": "predictions",
        "cls/seq_relationship": "sop_classifier.classifier",
    },
    "bert": {
        "bert/embeddings": "bert.embeddings",
        "bert/embeddings/LayerNorm": "bert.embeddings.LayerNorm",
        "bert/pooler/dense": "bert.pooler.dense",
        "cls/predictions/transform/dense": "cls.predictions.transform.dense",
        "cls/predictions/transform/LayerNorm": "cls.predictions.transform.LayerNorm",
        "cls/predictions": "cls.predictions",
        "cls/seq_relationship": "cls.seq_relationship",
    },
}
_HEADS = {"": "classifier", "cls/squad": "qa_outputs"}
_LAYER: dict[Family, tuple[str, str, dict[str, str]]] = {
    "albert": (
        r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/(.+)",
        "albert.encoder.albert_layer_groups.{}.albert_layers.{}.",
        {
            "attention_1/self/query": "attention.query",
            "attention_1/self/key": "attention.key",
            "attention_1/self/value": "attention.value",
            "attention_1/output/dense": "attention.dense",
            "LayerNorm": "attention.LayerNorm",
            "ffn_1/intermediate/dense": "ffn",
            "ffn_1/intermediate/output/dense": "ffn_output",
            "LayerNorm_1": "full_layer_layer_norm",
        },
    ),
    "bert": (
        r"bert/encoder/layer_(\d+)/(.+)",
        "bert.encoder.layer.{}.",
        {
            "attention/self/query": "attention.self.query",
            "attention/self/key": "attention.self.key",
            "attention/self/value": "attention.self.value",
            "attention/output/dense": "attention.output.dense",
            "attention/output/LayerNorm": "attention.output.LayerNorm",
            "intermediate/dense": "intermediate.dense",
            "output/dense": "output.dense",
            "output/LayerNorm": "output.LayerNorm",
        },
    ),
}
_KERNEL = "kernel"  # the transpose of PyTorch's weight
_TENSORS = {
    _KERNEL: "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
    "word_embeddings": "word_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
}


def is_checkpoint(path: Path) -> bool:
    """Whether this is a TensorFlow checkpoint: its prefix, one of its files, or a folder that holds one."""
    if path.is_dir():
        return any(path.glob("*.index"))
    return path.name != "" and (path.suffix == ".index" or index_of(path).is_file())


def read_config(path: Path) -> dict[str, Any]:
    """Google's albert_config.json or bert_config.json in the keys of Hugging Face's config.json.

    Only ALBERT's has an embedding size. Google's ALBERT computes the tanh form under the name gelu. Its BERT code
    computed the erf form when the first models were published and the tanh form from 2019 on; the file does not say
    which, so BERT is read as elsewhere.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file: {error}") from None
    if not isinstance(config, dict) or "model_type" in config:
        raise UserError(f"{path}: this is not Google's configuration; a Hugging Face folder is given by its name")
    family: Family = "albert" if "embedding_size" in config else "bert"
    config = _DEFAULTS[family] | config | {"model_type": family, "layer_norm_eps": 1e-12}
    if family == "albert" and config["hidden_act"] == "gelu":
        config["hidden_act"] = "gelu_new"
    return config


def read_tensors(path: Path, family: Family) -> tuple[Tensors, list[str]]:
    """All weights of a checkpoint under Hugging Face's names, in Hugging Face's shapes, as float32.

    Also returns the names of the variables that are no weights: optimizer state and the step.
    """
    bundle = TensorBundle.open(path)
    tensors: Tensors = {}
    skipped = [name for name in bundle.entries if _OPTIMIZER.fullmatch(name)]
    for name in sorted(set(bundle.entries).difference(skipped)):
        theirs = hugging_face_name(name.removeprefix(_HUB), family)
        if theirs is None:
            raise UserError(f"{bundle.prefix}: '{name}' is not a variable of Google's {family.upper()}")
        tensor = bundle.read(name).astype(np.float32, copy=False)
        tensors[theirs] = np.ascontiguousarray(tensor.T) if name.endswith(f"/{_KERNEL}") else tensor
    return tensors, skipped


def hugging_face_name(name: str, family: Family) -> str | None:
    """Hugging Face's name of one of Google's variables; None where there is none."""
    module, _, tensor = name.rpartition("/")
    pattern, prefix, of_layer = _LAYER[family]
    if layer := re.fullmatch(pattern, module):
        *numbers, module = layer.groups()
        prefix, found = prefix.format(*numbers), of_layer.get(module)
    else:
        prefix, found = "", (_MODULES[family] | _HEADS).get(module)
    return None if found is None or tensor not in _TENSORS else f"{prefix}{found}.{_TENSORS[tensor]}"
