"""Reads Google's ALBERT and BERT checkpoints without TensorFlow: configuration and tensors, in Hugging Face's keys,
names and shapes.

Names are those of google-research/albert (modeling.py, run_pretraining.py, classifier_utils.py, squad_utils.py) and
google-research/bert. What is missing, unknown or of another shape is found when huggingface.py builds the model.
"""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from openalbert.errors import UserError
from openalbert.interop.names import Family
from openalbert.interop.protobuf import read_fields, read_varint

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


# --- TensorFlow's checkpoint files, format V2 ("tensor bundle") -------------------------------------------------------
# `NAME.index` is a sorted string table, LevelDB's file format: blocks of sorted keys, each key sharing a prefix with
# the previous one, each block followed by its CRC; then a block that lists the blocks, then a footer. The empty key
# holds the number of data files; every other key is a tensor's name, and its value the tensor's place in
# `NAME.data-00000-of-0000N`. What passes its CRC is what TensorFlow wrote.

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)  # the last eight bytes of every string table
_FOOTER_SIZE = 48  # two block handles, padded to 40 bytes, and the magic
_TRAILER_SIZE = 5  # after each block: how it is compressed, and its CRC
_DATA_NAME = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-\d{5}")
_BFLOAT16 = 14
# TensorFlow's type numbers. bfloat16, which numpy lacks, is read as the upper 16 bits of a float32.
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", _BFLOAT16: "<u2", 19: "<f2"}


@dataclass(frozen=True)
class TensorEntry:
    """The index entry of one tensor."""

    name: str
    kind: int
    """TensorFlow's number of its type."""
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    is_whole: bool
    """Whether it is one tensor, and not a partitioned variable."""


class TensorBundle:
    """An open checkpoint: its index, and its tensors one by one."""

    def __init__(self, prefix: Path, num_shards: int, entries: dict[str, TensorEntry]) -> None:
        self.prefix, self.num_shards, self.entries = prefix, num_shards, entries

    @classmethod
    def open(cls, path: Path) -> "TensorBundle":
        """Read the index of a checkpoint, given by its prefix, one of its files, or the folder that holds it alone."""
        index = index_of(path)
        try:
            table = index.read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"{index}: no such file: expected the index of a TensorFlow checkpoint (format V2)"
            ) from None
        try:
            records = dict(_records(table))
            header = dict(read_fields(records.pop(b"")))
            # A key that begins with a zero byte is a slice of a partitioned variable.
            entries = [_entry(key.decode(), value) for key, value in records.items() if not key.startswith(b"\0")]
        except (ValueError, IndexError, KeyError, OverflowError, struct.error):
            raise UserError(f"{index}: not a whole TensorFlow checkpoint index: fetch the file again") from None
        return cls(index.with_suffix(""), int(header[1]), {entry.name: entry for entry in entries})

    def read(self, name: str) -> Shaped[np.ndarray, "..."]:
        """One tensor, checked against its CRC; bfloat16 is widened to float32."""
        entry = self.entries[name]
        if entry.kind not in _TYPES or not entry.is_whole:
            raise UserError(f"{self.prefix}: '{name}' is no whole tensor of numbers, so it cannot be read")
        shard = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        try:
            with shard.open("rb") as file:
                file.seek(entry.offset)
                data = bytearray(file.read(entry.size))
        except FileNotFoundError:
            raise UserError(f"{shard}: no such file: '{name}' of the checkpoint lies in it") from None
        if len(data) < entry.size or _crc32c(data) != entry.crc32c:
            raise UserError(f"{shard}: '{name}' is damaged, its CRC32C does not match the index: fetch the file again")
        array: np.ndarray[Any, Any] = np.frombuffer(data, _TYPES[entry.kind])
        if entry.kind == _BFLOAT16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.reshape(entry.shape)


def index_of(path: Path) -> Path:
    """The index of a checkpoint, given by its prefix, one of its files, or the folder that holds it alone."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise UserError(f"{path}: expected one checkpoint (a file *.index) in the folder, found {names}: name one")
        return found[0]
    if path.suffix == ".index":
        return path
    data = _DATA_NAME.fullmatch(path.name)
    return path.with_name(f"{data['prefix'] if data else path.name}.index")


def _records(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values. The footer has no CRC, so the blocks must fill the file without a gap."""
    footer = len(table) - _FOOTER_SIZE
    if table[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("the mark at its end is missing")
    *meta, at = _handle(table, footer)
    *index, at = _handle(table, at)
    end = 0
    for handle in [*(_handle(value)[:2] for _, value in _block(table, *index)), meta, index]:
        if handle[0] != end:
            raise ValueError("its blocks do not follow one another")
        end = sum(handle) + _TRAILER_SIZE
        if handle is not index:
            yield from _block(table, *handle)
    if end != footer or any(table[at : -len(_MAGIC)]):
        raise ValueError("its blocks do not end where the footer begins")


def _handle(data: bytes, at: int = 0) -> tuple[int, int, int]:
    """Offset and size of a block, and the position after the handle."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return offset, size, at


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    end = offset + size
    compression, crc = struct.unpack_from("<BI", table, end)
    if _crc32c(table[offset : end + 1]) != crc or compression != 0:  # TensorFlow's saver does not compress
        raise ValueError("a block is damaged or compressed")
    (num_restarts,) = struct.unpack_from("<I", table, end - 4)
    end -= 4 + 4 * num_restarts
    key, at = b"", offset
    while at < end:
        shared, at = read_varint(table, at)
        unshared, at = read_varint(table, at)
        length, at = read_varint(table, at)
        key = key[:shared] + table[at : at + unshared]
        at += unshared
        yield key, table[at : at + length]
        at += length


def _entry(name: str, message: bytes) -> TensorEntry:
    """BundleEntryProto: type, shape, data file, offset, size, CRC, and the slices of a partitioned variable."""
    found: dict[int, Any] = {1: 0, 2: b"", 3: 0, 4: 0, 5: 0, 6: 0} | dict(read_fields(message))
    sizes = [dict(read_fields(value)) for number, value in read_fields(found[2]) if number == 2]  # type: ignore[arg-type]
    shape = tuple(int(size.get(1, 0)) for size in sizes)
    return TensorEntry(name, found[1], shape, found[3], found[4], found[5], found[6], is_whole=7 not in found)


def _crc32c(data: bytes | bytearray) -> int:
    """A CRC32C as stored: rotated and shifted, so that a CRC over stored CRCs stays strong."""
    try:
        import google_crc32c
    except ImportError:
        raise UserError(
            'reading TensorFlow checkpoints needs the package google-crc32c: pip install "openalbert[google]"'
        ) from None
    crc: int = google_crc32c.value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
