"""Reads Google's ALBERT and BERT checkpoints: the configuration, and the tensors in Hugging Face's names and shapes.

huggingface.py converts the result into our model.
"""

import itertools
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from openalbert.errors import UserError, suggestion
from openalbert.interop.config_json import EXPERIMENTS
from openalbert.interop.google.names import ALBERT_MAP, HUGGING_FACE_NAMES, Family, Pair, TensorGroup
from openalbert.interop.google.tensor_bundle import TensorBundle, TensorEntry, index_of

Tensors = dict[str, Float32[np.ndarray, "..."]]

_HUB = "module/"  # the scope that TF-Hub puts around a module's variables
# What training leaves in a checkpoint besides the weights.
_OPTIMIZER = re.compile(
    r".*/(adam|lamb)_[mv]|.*/(Adam|AdamWeightDecayOptimizer|LAMBOptimizer)(_1)?|beta[12]_power|global_step"
)
# The beam-search head of Google's run_squad_v2, taken from XLNet; Hugging Face's ALBERT has none.
_BEAM_SPAN = re.compile(r"(start_logits|end_logits|answer_class)/.*")


# The configuration.

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
_REQUIRED: dict[Family, tuple[str, ...]] = {"albert": (*_SIZES, "embedding_size"), "bert": _SIZES}
# The defaults of Google's constructors.
_DEFAULTS: dict[Family, dict[str, int | float | str]] = {
    "albert": {
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
    },
    "bert": {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
    },
}
# The published code ignores these keys, and any other value means another architecture.
_NEUTRAL: dict[Family, dict[str, Any]] = {
    "albert": {key: only.value for key, only in EXPERIMENTS.items()},
    "bert": {"directionality": "bidi"},
}
# Keys that do not matter here: a fine-tuning setting, and the pooler of another code base in Chinese BERT.
_IGNORED = re.compile(r"classifier_dropout_prob|pooler_\w+")
_ACTIVATIONS = ("gelu", "relu")


def family(config: dict[str, Any]) -> Family:
    """Which of the two models Google's configuration describes: only ALBERT's has an embedding size."""
    return "albert" if "embedding_size" in config else "bert"


def read_config(path: Path) -> dict[str, Any]:
    """Google's albert_config.json or bert_config.json, checked, with its defaults filled in.

    `hidden_act: gelu` means what Google's code computes under that name: `hugging_face_config` translates it.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: expected Google's albert_config.json or bert_config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a JSON object with Google's keys, found {type(config).__name__}")
    if "model_type" in config or "architectures" in config:
        raise UserError(f"{path}: this is a Hugging Face configuration, not Google's: give the folder it lies in")
    kind = family(config)
    required, defaults, neutral = _REQUIRED[kind], _DEFAULTS[kind], _NEUTRAL[kind]
    if missing := [key for key in required if key not in config]:
        raise UserError(f"{path}: {', '.join(missing)} missing from the configuration of {kind.upper()}")
    checked: dict[str, Any] = {}
    for key, value in config.items():
        if key in required or isinstance(defaults.get(key), int):
            if type(value) is not int or value < 1:
                raise UserError(f"{path}: {key} should be a whole number above 0, found {value!r}")
            checked[key] = value
        elif isinstance(defaults.get(key), float):
            if type(value) not in (int, float) or not 0 <= value < 1:
                raise UserError(f"{path}: {key} should be a number from 0 to below 1, found {value!r}")
            checked[key] = float(value)
        elif key == "hidden_act":
            if value not in _ACTIVATIONS:
                raise UserError(f"{path}: hidden_act should be one of {', '.join(_ACTIVATIONS)}, found {value!r}")
            checked[key] = value
        elif key in neutral:
            if value != neutral[key]:
                raise UserError(f"{path}: {key} should be {neutral[key]!r}, found {value!r}: no published model has it")
        elif not _IGNORED.fullmatch(key):
            known = [*required, *defaults, *neutral]
            raise UserError(f"{path}: '{key}' is not a key of Google's {kind.upper()}: {suggestion(key, known)}")
    checked = defaults | checked
    if checked["hidden_size"] % checked["num_attention_heads"]:
        raise UserError(f"{path}: hidden_size should be a multiple of num_attention_heads")
    if checked.get("num_hidden_groups", 1) > checked["num_hidden_layers"]:
        raise UserError(f"{path}: num_hidden_groups should not exceed num_hidden_layers")
    return checked


def hugging_face_config(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with the keys of Hugging Face's config.json."""
    kind = family(config)
    # Google's ALBERT computes the tanh form under the name gelu. Its BERT code computed the erf form when the first
    # models were published and the tanh form from 2019 on; the file does not say which, so BERT is read as elsewhere.
    activation = "gelu_new" if kind == "albert" and config["hidden_act"] == "gelu" else config["hidden_act"]
    return config | {"model_type": kind, "hidden_act": activation, "layer_norm_eps": 1e-12}


# The tensors.


def is_checkpoint(path: Path) -> bool:
    """Whether this is a TensorFlow checkpoint: its prefix, one of its files, or a folder that holds one."""
    if path.is_dir():
        return any(path.glob("*.index"))
    return path.name != "" and (path.suffix == ".index" or index_of(path).is_file())


_NUM_NAMED = 20  # in an error


@dataclass(frozen=True)
class Report:
    """What each tensor of a checkpoint became; an unknown one is an error."""

    prefix: Path
    family: Family
    read: dict[str, str]
    """Google's name, as in the file, to Hugging Face's."""
    skipped: tuple[str, ...]
    """Optimizer state and the step."""
    added: tuple[str, ...]
    """What Google leaves out: an identity map where embedding and hidden size are the same."""
    groups: tuple[str, ...]
    """The groups of tensors that were found, by their names in HUGGING_FACE_NAMES."""


def read_tensors(prefix: Path, config: dict[str, Any]) -> tuple[Tensors, Report]:
    """All weights of a checkpoint under Hugging Face's names, in Hugging Face's shapes, as float32."""
    bundle = TensorBundle.open(prefix)
    kind = family(config)
    entries, skipped = _weights(bundle)
    where = str(bundle.prefix)
    if beam := [name for name in entries if _BEAM_SPAN.fullmatch(name)]:
        raise UserError(
            f"{where}: the beam-search head of Google's SQuAD 2.0 model is not read here, since no other code has "
            f"such a head: {', '.join(beam)}"
        )
    chosen: list[tuple[Pair, TensorEntry]] = []
    groups: list[str] = []
    missing: list[str] = []
    same_width = kind == "albert" and config["embedding_size"] == config["hidden_size"]
    for group in HUGGING_FACE_NAMES[kind]:
        pairs = _counted(group, config, where, len(bundle.entries))
        present = [(pair, entries.pop(pair.google)) for pair in pairs if pair.google in entries]
        optional = not group.required or (group is ALBERT_MAP and same_width)
        if present or not optional:
            found = {pair.google for pair, _ in present}
            missing += [pair.google for pair in pairs if pair.google not in found]
            chosen += present
            groups.append(group.name)
    if missing or entries:
        raise UserError(f"{where}: not the {kind.upper()} of its configuration: {_difference(missing, list(entries))}")
    sizes = {key: size for key, size in config.items() if isinstance(size, int)}
    for pair, entry in chosen:
        _check(where, entry, pair, sizes)
    tensors: Tensors = {}
    for pair, entry in chosen:
        tensor = bundle.read(entry.name).astype(np.float32, copy=False)
        tensors[pair.hugging_face] = np.ascontiguousarray(tensor.T) if pair.transposed else tensor
    read = {entry.name: pair.hugging_face for pair, entry in chosen}
    added = _identity_map(config) if same_width and ALBERT_MAP.name not in groups else {}
    tensors |= added
    return tensors, Report(bundle.prefix, kind, read, tuple(skipped), tuple(added), tuple(groups))


def _weights(bundle: TensorBundle) -> tuple[dict[str, TensorEntry], list[str]]:
    """The weights by names without TF-Hub's scope, and the names of the rest."""
    entries: dict[str, TensorEntry] = {}
    skipped = []
    for name, entry in bundle.entries.items():
        if _OPTIMIZER.fullmatch(name):
            skipped.append(name)
            continue
        peeled = name.removeprefix(_HUB)
        if peeled in entries:
            raise UserError(f"{bundle.prefix}: '{peeled}' is there twice, with and without the scope '{_HUB}'")
        entries[peeled] = entry
    return entries, skipped


def _counted(group: TensorGroup, config: dict[str, Any], where: str, num_tensors: int) -> list[Pair]:
    """The pairs of a group, once for each value of the counters in its names."""
    counts = {
        "layer": config["num_hidden_layers"],
        "group": config.get("num_hidden_groups", 1),
        "inner": config.get("inner_group_num", 1),
    }
    used = [name for name in counts if f"{{{name}}}" in group.pairs[0].google]
    num_layers = math.prod(counts[name] for name in used)
    if num_layers > num_tensors:  # checked before names are made for a billion layers
        raise UserError(
            f"{where}: its configuration asks for {num_layers} layers with weights of their own, "
            f"but the checkpoint holds {num_tensors} tensors"
        )
    places = [
        dict(zip(used, numbers, strict=True)) for numbers in itertools.product(*(range(counts[name]) for name in used))
    ]
    return [
        replace(pair, google=pair.google.format(**place), hugging_face=pair.hugging_face.format(**place))
        for place in places
        for pair in group.pairs
    ]


def _check(where: str, entry: TensorEntry, pair: Pair, sizes: dict[str, int]) -> None:
    """Refuse a tensor of another shape or type; a name that is no key takes its value from its first occurrence."""
    if len(entry.shape) == len(pair.shape):
        for name, size in zip(pair.shape, entry.shape, strict=True):
            if isinstance(name, str):
                sizes.setdefault(name, size)
    expected = tuple(size if isinstance(size, int) else sizes.get(size, 0) for size in pair.shape)
    if entry.shape != expected:
        raise UserError(f"{where}: '{entry.name}' should have the shape {expected}, found {entry.shape}")
    if entry.dtype is not None and entry.dtype.kind != "f":
        raise UserError(f"{where}: '{entry.name}' should hold floating-point numbers, found {entry.stored}")


def _difference(missing: list[str], unknown: list[str]) -> str:
    lists = []
    for title, names in (("missing", missing), ("unknown", unknown)):
        if names:
            more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
            lists.append(f"{title} {len(names)} ({', '.join(names[:_NUM_NAMED])}{more})")
    return "; ".join(lists)


def _identity_map(config: dict[str, Any]) -> Tensors:
    """Google leaves the map out where the sizes are the same; Hugging Face always applies one."""
    hidden = config["hidden_size"]
    weight, bias = (pair.hugging_face for pair in ALBERT_MAP.pairs)
    return {weight: np.eye(hidden, dtype=np.float32), bias: np.zeros(hidden, dtype=np.float32)}
