"""Exported folders: a model as ONNX graphs over one file of weights, its tokenizer and task, and a manifest.

`model.onnx` is the whole model, for any program that runs ONNX. The other graphs are its pieces: with the layer as a
graph of its own, the loop over layers is outside, where it can end at any depth.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openalbert.atomic_io import new_folder
from openalbert.errors import UserError, explain_full_disk
from openalbert.interop.config_json import write_config
from openalbert.interop.exits import copy_exits
from openalbert.interop.huggingface import CONFIG, EXPORT
from openalbert.interop.onnx_graph import (
    OPSET,
    blocks_of,
    embedding_graph,
    head_graph,
    import_onnx,
    layer_graph,
    pooler_graph,
    rows_graph,
    whole_graph,
)
from openalbert.interop.quantization import WEIGHTS_FILE, Part, Weights, check_quantized
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head
from openalbert.settings import from_json, to_json
from openalbert.version import __version__

WHOLE_GRAPH, EMBEDDING, POOLER = "model.onnx", "embedding.onnx", "pooler.onnx"
Precision = Literal["fp32", "int8"]
COPIED = ("spiece.model", "normalization.json", "tokenizer.json", "tokenizer_config.json", "task.json")
"""The files of a model folder that an export needs too."""
ORIGINAL_CARD = "original-model-card.md"  # README.md of the model that was exported


@dataclass(frozen=True)
class Manifest:
    """export.json: what an exported folder holds."""

    precision: Precision
    kept: tuple[Part, ...]
    """Parts of an int8 model whose matrices stayed in fp32."""
    config: AlbertConfig
    heads: tuple[Head, ...]
    layers: tuple[str, ...]
    """The graph of each layer; layers with the same weights have the same one."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of every file."""
    num_parameters: int = 0
    """Those of equal layers count once."""
    opset: int = OPSET
    openalbert: str = __version__

    def __post_init__(self) -> None:
        if len(self.layers) != self.config.num_layers:
            raise UserError(f"{len(self.layers)} graphs of layers, but the model has {self.config.num_layers} layers")


def rows_graph_of(layer: str) -> str:
    """The file of a layer's graph for some rows only."""
    return layer.replace("layer", "layer-rows")


def head_file(kind: str) -> str:
    """The file of a head's graph."""
    return f"head-{kind}.onnx"


def is_exported(folder: Path) -> bool:
    """Whether a folder holds an exported model."""
    return (folder / EXPORT).is_file()


def write_export(model: AlbertModel, folder: Path, *, source: Path, int8: bool, keep: Sequence[Part] = ()) -> Manifest:
    """Export a model; the tokenizer and the task are copied from `source`, its folder.

    An existing export is replaced when the new one is complete.
    """
    import_onnx()
    check_replaceable(folder)
    config, heads = model.config, model.head_list
    parameters = {name: parameter.detach().float().cpu().numpy() for name, parameter in model.named_parameters()}
    weights, blocks = Weights(parameters, int8, keep), blocks_of(config, parameters)
    graphs = {WHOLE_GRAPH: whole_graph(weights, config, heads, blocks), EMBEDDING: embedding_graph(weights, config)}
    layers = []
    for attention, ffn in blocks:
        name = f"layer-{attention}-{ffn}.onnx"
        layers.append(name)
        if name not in graphs:
            graphs[name] = layer_graph(weights, config, (attention, ffn))
            graphs[rows_graph_of(name)] = rows_graph(weights, config, (attention, ffn))
    graphs[POOLER] = pooler_graph(weights, config)
    graphs |= {head_file(head.kind): head_graph(weights, config, head) for head in heads}
    if int8:
        check_quantized(graphs.values(), keep)
    with explain_full_disk(folder, "nothing is left of it"), new_folder(folder) as aside:
        (aside / WEIGHTS_FILE).write_bytes(weights.content())
        for name, graph in graphs.items():
            (aside / name).write_bytes(graph.SerializeToString(deterministic=True))
        values = write_config(config, heads, "float32")
        (aside / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, aside / name)
        if (source / "README.md").is_file():
            shutil.copyfile(source / "README.md", aside / ORIGINAL_CARD)
        copy_exits(source, aside)
        sums = {path.name: _sha256(path) for path in sorted(aside.iterdir())}
        precision: Precision = "int8" if int8 else "fp32"
        manifest = Manifest(precision, tuple(keep), config, heads, tuple(layers), sums, weights.num_parameters)
        (aside / EXPORT).write_text(to_json(manifest), encoding="utf-8")
    return manifest


def check_replaceable(target: Path) -> None:
    """Refuse to replace a folder that holds something other than an export."""
    if target.is_dir() and not is_exported(target) and any(target.iterdir()):
        raise UserError(
            f"{target} holds other things than an exported model, which would be deleted: give another name"
        )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an exported folder, whose files are checked against it."""
    path = folder / EXPORT
    try:
        manifest = from_json(path.read_bytes(), Manifest, str(path))
    except UserError as error:
        raise UserError(f"{error}: copy the whole folder again, or export the model again") from None
    for name, expected in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise UserError(f"{folder}: {name} is missing: copy the whole folder again, or export the model again")
        if _sha256(file) != expected:
            raise UserError(
                f"{file}: its content is not what was exported (its SHA-256 differs from that in {EXPORT}): copy the "
                "whole folder again, or export the model again"
            )
    return manifest


def size_of(folder: Path) -> int:
    """The bytes that loading the model reads: the weights and the whole graph."""
    return sum((folder / name).stat().st_size for name in (WHOLE_GRAPH, WEIGHTS_FILE))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
