"""Early exit in a model folder: the heads of every depth (exits.safetensors), and the fitted rule (exits.json).

They are files of their own, so that the rest of the folder stays a model that everybody loads.
"""

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.interop.weights import WEIGHTS, read_checksum, read_tensors, write_tensors
from openalbert.model.albert import AlbertModel
from openalbert.model.config import HeadKind
from openalbert.model.heads import make_exits
from openalbert.settings import from_json, to_json

HEADS = "exits.safetensors"
RULE = "exits.json"
ASKING = 0.15
"""What it takes to ask after a layer whether an example leaves, in layers: a pooler, a head, a batch cut anew."""


@dataclass(frozen=True)
class ExitRule:
    """When an example leaves: after so many layers in a row at which it is settled, or all at the same depth."""

    kind: Literal["confidence", "patience", "depth"]
    """Settled by confidence: the probability of the decision is at least the threshold. By patience (PABEE): the
    decision is that of the layer before. By depth no example is asked."""
    threshold: float = 0.0
    """Of confidence: the least probability. Of patience, for values: the largest change that counts as none."""
    patience: int = 1
    """The number of layers in a row."""
    depth: int | None = None
    """Of depth: that of all examples."""

    def __post_init__(self) -> None:
        if self.patience < 1 or not math.isfinite(self.threshold):
            raise UserError(f"no rule of early exit has a patience of {self.patience}, a threshold of {self.threshold}")
        if (self.kind == "depth") != (self.depth is not None) or (self.depth is not None and self.depth < 1):
            raise UserError(f"no rule of early exit by {self.kind} has a depth of {self.depth}")

    @property
    def asks(self) -> bool:
        """Whether examples leave at depths of their own."""
        return self.kind != "depth" and self != NEVER

    def __str__(self) -> str:
        if self.kind == "depth":
            return f"layer {self.depth}"
        rows = "1 layer" if self.patience == 1 else f"{self.patience} layers in a row"
        if self.kind == "confidence":
            return f"confidence of {self.threshold:.4g} at {rows}"
        within = f" within {self.threshold:.3g}" if self.threshold else ""
        return f"the same decision{within} at {rows} after the first"


NEVER = ExitRule("confidence", threshold=2.0)
"""No probability is above 1: all layers are computed."""


@dataclass(frozen=True)
class ExitPoint:
    """What a rule gave on the examples that it was fitted on."""

    rule: ExitRule
    mean_depth: float
    """Layers computed for an example, on average."""
    score: float
    """The main metric, in percent."""
    error: float = 0.0
    """The standard error of its difference from the score at full depth, in points."""

    @property
    def cost(self) -> float:
        """The time of an example, in layers."""
        return self.mean_depth * (1 + ASKING if self.rule.asks else 1)


@dataclass(frozen=True)
class ExitInfo:
    """How a model's examples leave early, fitted on training examples held out."""

    head: HeadKind
    """The head that decides."""
    num_layers: int
    metric: str
    """What was measured."""
    num_examples: int
    """How many examples were held out."""
    full_score: float
    """The metric there at full depth."""
    chosen: ExitPoint
    points: tuple[ExitPoint, ...]
    """The best rules for each mean depth, shallow first; the last one is full depth."""
    weights: str = ""
    """Checksums of the weights that it was fitted for."""

    def __post_init__(self) -> None:
        if not self.points:
            raise UserError("there are no points, of which the last one is full depth")

    @property
    def highest(self) -> ExitPoint:
        """The rule with the highest score; of several the one that is surest of it."""
        return max(self.points, key=lambda point: (point.score, -point.error, point.mean_depth))

    def cheapest(self, max_drop: float) -> ExitPoint:
        """The rule with the lowest cost whose loss plus its standard error is at most `max_drop` points.

        A rule that was lucky on few examples loses more on others. Where none is as sure, it is the one with the
        highest score.
        """
        sure = [point for point in self.points[:-1] if self.loss(point) <= max_drop]
        return min(sure, key=lambda point: point.cost, default=self.highest)

    def loss(self, point: ExitPoint) -> float:
        """The points that a rule may lose: what it lost on the examples held out, and one standard error."""
        return self.full_score - point.score + point.error

    def at_speedup(self, speedup: float) -> ExitPoint:
        """The deepest rule that computes at most 1 / speedup of the layers and is as good as any of these.

        As good: within a standard error. Deeper rules differ less from full depth.
        """
        fast = [point for point in self.points if point.mean_depth <= self.num_layers / speedup]
        if not fast:
            fastest = self.num_layers / min(point.mean_depth for point in self.points)
            raise UserError(
                f"a speed-up of {speedup:g} is not reached: the fastest rule gives {fastest:.2f}; a depth is as fast "
                "as you like, at a score of its own"
            )
        best = max(fast, key=lambda point: point.score)
        return max((one for one in fast if one.score >= best.score - best.error), key=lambda one: one.mean_depth)


def write_exit_heads(folder: Path, model: AlbertModel, dtype: torch.dtype) -> None:
    """Write the heads of every depth next to a model's weights."""
    assert model.exits is not None
    write_tensors(folder / HEADS, {name: tensor.to(dtype) for name, tensor in model.exits.named_parameters()})


def read_exit_heads(folder: Path, model: AlbertModel) -> None:
    """Add the heads of every depth to a model, where its folder has them and a rule that belongs to them."""
    path = folder / HEADS
    if not path.is_file():
        return
    tensors = read_tensors(path)
    task_heads = [head for head in model.head_list if head.kind not in ("masked_lm", "sentence_order")]
    if not task_heads:
        raise UserError(f"{path}: heads for early exit, but the model has no head for a task: {_remedy(folder)}")
    model.exits = make_exits(task_heads[0], model.config)
    own = dict(model.exits.named_parameters())
    if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
        raise UserError(f"{path}: heads for early exit of another model: {_remedy(folder)}")
    info, head, num_layers = read_exit_info(folder), task_heads[0].kind, model.config.num_layers
    if info is not None and (info.head, info.num_layers) != (head, num_layers):
        raise UserError(
            f"{folder / RULE} is for a {info.head} head and {info.num_layers} layers, but the model has {head} and "
            f"{num_layers} layers: {_remedy(folder)}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def read_exit_arrays(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights and biases of the exits, by depth, where a folder has them."""
    path = folder / HEADS
    if not path.is_file():
        return None
    tensors = {name: tensor.float().numpy() for name, tensor in read_tensors(path).items()}
    depths = range(len(tensors) // 2)
    weight, bias = (np.stack([tensors[f"{depth}.dense.{what}"] for depth in depths]) for what in ("weight", "bias"))
    return weight, bias


def copy_exits(source: Path, target: Path) -> None:
    """Copy the exits of a model folder, and the rule, into a folder with the same weights in another form."""
    info = read_exit_info(source)
    if info is not None:
        shutil.copyfile(source / HEADS, target / HEADS)
        write_exit_info(target, info)


def write_exit_info(folder: Path, info: ExitInfo) -> None:
    """Write exits.json into a model folder, for the weights that are there."""
    atomic_io.write_text(folder / RULE, to_json(replace(info, weights=_weights_of(folder))))


def read_exit_info(folder: Path) -> ExitInfo | None:
    """The content of exits.json; None where the model has no exits. A rule of other weights is refused."""
    path = folder / RULE
    if not path.is_file():
        if (folder / HEADS).is_file():
            raise UserError(f"{path} is missing, the rule for {HEADS}: {_remedy(folder)}")
        return None
    try:
        info = from_json(path.read_bytes(), ExitInfo, str(path))
    except UserError as error:
        raise UserError(f"{error}: {_remedy(folder)}") from None
    if info.weights != _weights_of(folder):
        raise UserError(f"{path}: the rule was fitted for other weights: {_remedy(folder)}")
    return info


def _remedy(folder: Path) -> str:
    files = " and ".join(name for name in (HEADS, RULE) if (folder / name).is_file())
    return f"copy the folder again, or remove {files}"


def _weights_of(folder: Path) -> str:
    """What identifies the weights of a folder and of its exits."""
    return f"{read_checksum(folder / WEIGHTS)} {read_checksum(folder / HEADS)}"
