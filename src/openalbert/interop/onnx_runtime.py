"""Runs exported models with ONNX Runtime: the loop over layers is here, so depth is a plain number."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float32, Int64

from openalbert.errors import UserError
from openalbert.interop.exits import read_exit_arrays
from openalbert.interop.huggingface import EXPORT
from openalbert.interop.onnx import EMBEDDING, POOLER, head_file, read_manifest, rows_graph_of
from openalbert.interop.onnx_graph import IDS, MASK, SCORE_TOKENS, SEGMENTS
from openalbert.model.config import AlbertConfig, Head, HeadKind

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class ExportedModel:
    """An exported folder, ready to run. Graphs are loaded when they are first needed."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """`threads` are those of one run; by default torch's, which follow --speed.threads and OMP_NUM_THREADS."""
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.threads = threads or torch.get_num_threads()
        self._exits = read_exit_arrays(folder)
        self._widths = {head_file(head.kind): head.num_outputs for head in self.heads if head.kind != "masked_lm"}
        self._sessions: dict[str, InferenceSession] = {}
        self._session(EMBEDDING)  # a runtime that cannot read these graphs shows it at once

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""
        return self.manifest.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """Its heads, with their labels."""
        return self.manifest.heads

    def embed(
        self, ids: Int64[np.ndarray, "batch length"], segments: Int64[np.ndarray, "batch length"]
    ) -> Float32[np.ndarray, "batch length hidden"]:
        """The input of the first layer."""
        return self._run(EMBEDDING, {IDS: ids, SEGMENTS: segments})

    def layer(
        self,
        number: int,
        hidden: Float32[np.ndarray, "batch length hidden"],
        mask: Int64[np.ndarray, "batch length"],
        rows: Int64[np.ndarray, "batch rows"] | None = None,
    ) -> Float32[np.ndarray, "batch rows_or_length hidden"]:
        """The output of one layer, from 0 on; with `rows`, for these tokens of each sequence only."""
        name = self.manifest.layers[number]
        if rows is None:
            return self._run(name, {"hidden": hidden, MASK: mask})
        return self._run(rows_graph_of(name), {"hidden": hidden, MASK: mask, "rows": rows})

    def encode(
        self,
        ids: Int64[np.ndarray, "batch length"],
        segments: Int64[np.ndarray, "batch length"],
        mask: Int64[np.ndarray, "batch length"],
        *,
        rows: Int64[np.ndarray, "batch rows"] | None = None,
        depth: int | None = None,
    ) -> Float32[np.ndarray, "batch rows_or_length hidden"]:
        """The last hidden states of a padded batch (`mask` is 1 for real tokens), of all tokens or of some rows."""
        layers = self.config.num_layers
        depth = layers if depth is None else depth
        if not 1 <= depth <= layers:
            raise UserError(f"depth is {depth}, but it must be from 1 to {layers}, the number of layers")
        longest = ids.shape[1]
        if longest > self.config.max_positions:
            raise UserError(
                f"a sequence has {longest} tokens, but the model has {self.config.max_positions} positions: shorten it"
            )
        hidden = self.embed(ids, segments)
        for number in range(depth - 1):
            hidden = self.layer(number, hidden, mask)
        return self.layer(depth - 1, hidden, mask, rows)

    def pool(self, first: Float32[np.ndarray, "rows hidden"]) -> Float32[np.ndarray, "rows hidden"]:
        """The pooled vectors of the last hidden states of [CLS]."""
        return self._run(POOLER, {"hidden": first})

    def scores(self, kind: HeadKind, hidden: Float32[np.ndarray, "rows hidden"]) -> Float32[np.ndarray, "rows outputs"]:
        """The logits of a head for the last hidden states of tokens, or of [CLS] where the head scores sequences."""
        return self._run(head_file(kind), {"vectors": hidden if kind in SCORE_TOKENS else self.pool(hidden)})

    def depth_scores(
        self, kind: HeadKind, first: Float32[np.ndarray, "rows hidden"], depths: Int64[np.ndarray, "rows"]
    ) -> Float32[np.ndarray, "rows outputs"]:
        """The logits for [CLS] after so many layers: by the exit of that depth, where there is one."""
        if self._exits is None or (depths == self.config.num_layers).all():
            return self.scores(kind, first)
        weight, bias = self._exits
        pooled = self.pool(first)
        own: np.ndarray = self._run(head_file(kind), {"vectors": pooled})
        exits = np.minimum(depths, len(weight)) - 1
        early = np.einsum("roh,rh->ro", weight[exits], pooled) + bias[exits]
        found: np.ndarray = np.where((depths > len(weight))[:, None], own, early)
        return found

    def load_for_exits(self, kind: HeadKind) -> None:
        """Load the graphs of the exit loop now, before a deadline runs."""
        for name in (*self.manifest.layers, POOLER, head_file(kind)):
            self._session(name)

    def load_all(self) -> None:
        """Load every graph now: the folder is not needed any more."""
        for name in self.manifest.files:
            if name.endswith(".onnx"):
                self._session(name)

    def _run(self, name: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        session = self._session(name)
        if (found := {one.name for one in session.get_inputs()}) != set(inputs):
            raise UserError(
                f"{self.folder / name} takes {', '.join(sorted(found))} and not {', '.join(inputs)}, so it is another "
                "graph: copy the whole folder again, or export the model again"
            )
        width = session.get_outputs()[0].shape[-1]
        if (expected := self._widths.get(name, width)) != width:
            raise UserError(
                f"{self.folder / EXPORT} has {expected} outputs for {name}, which has {width}: copy the whole folder "
                "again, or export the model again"
            )
        output: np.ndarray = session.run(None, inputs)[0]
        return output

    def _session(self, name: str) -> "InferenceSession":
        if name not in self._sessions:
            self._sessions[name] = open_session(self.folder / name, self.threads)
        return self._sessions[name]


def open_session(path: Path, threads: int) -> "InferenceSession":
    """An ONNX Runtime session on the CPU."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError("an exported model needs ONNX Runtime: pip install 'openalbert[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, and need not be printed too
    # The graphs take turns. A thread of one that spins between its runs would take the core from those of the next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base
        # The first line: a status, the place in the C++ code, and behind its last parenthesis what is wrong.
        reason = str(error).splitlines()[0].rpartition(" failed:")[2].rpartition(") ")[2]
        raise UserError(
            f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load this graph ({reason}): update it with "
            "pip install 'openalbert[onnx]', or export the model again"
        ) from None
