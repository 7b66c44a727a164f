"""What a run carries from step to step, to the disk and back: weights, optimizer, running figures, the journal's place.

Pretraining and fine-tuning each add what only they carry; all that a checkpoint needs beside it is here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.optim.optimizer import TrainingOptimizer, load_optimizer_tensors, optimizer_tensors
from openalbert.train import checkpoint
from openalbert.train.device import Device
from openalbert.train.metrics_log import METRICS, MetricsLog
from openalbert.train.run_dir import CHECKPOINTS
from openalbert.train.state import TrainState


def load_weights(model: AlbertModel, tensors: dict[str, torch.Tensor], where: str) -> None:
    """Take over the weights of a checkpoint."""
    own = dict(model.named_parameters())
    if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
        raise UserError(f"{where}: this checkpoint is of another model: give another --out, or --fresh")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint as it was read."""

    folder: Path
    tensors: Mapping[str, dict[str, Tensor]]
    state: Mapping[str, Any]
    """What every run carries, and under names of its own what the run gave to `save`."""


@dataclass(frozen=True)
class Checkpointer:
    """The checkpoints of a run that is going on."""

    folder: Path
    """The run's."""
    model: AlbertModel
    optimizer: TrainingOptimizer
    metrics_log: MetricsLog
    device: Device
    micro_batch: int | None
    """Examples of a micro-batch, as the user wishes."""

    @property
    def _cut_for(self) -> list[int | None]:
        """What the number of micro-batches hangs on; as long as it is the same, so are the bits."""
        return [self.device.world, self.micro_batch]

    def save(self, train_state: TrainState, own: Mapping[str, Any], *, keep_last: int, is_best: bool) -> None:
        """Write a checkpoint; `own` is what else this kind of run carries, as JSON can say it."""
        if self.device.is_main:
            metrics = self.folder / METRICS
            if metrics.exists():
                atomic_io.sync(metrics)
            state = {
                "running": train_state.state(),
                "cut_for": self._cut_for,
                "window": self.metrics_log.window.state(),
                "metrics_bytes": self.metrics_log.size,
                **own,
            }
            tensors = {
                "model": {name: parameter.detach() for name, parameter in self.model.named_parameters()},
                "optimizer": optimizer_tensors(self.optimizer, self.model),
            }
            folder = self.folder / CHECKPOINTS
            checkpoint.save(folder, train_state.step, tensors, state, keep_last=keep_last, is_best=is_best)
        self.device.wait_for_all()

    def latest(self) -> LoadedCheckpoint | None:
        """The newest sound checkpoint; the user hears of damaged ones that were passed over."""
        found, damaged = checkpoint.latest(self.folder / CHECKPOINTS)
        for sentence in damaged:
            self.metrics_log.log(sentence)
        return LoadedCheckpoint(found.folder, *found.read()) if found else None

    def restore(self, saved: LoadedCheckpoint, parts: int) -> TrainState:
        """Take everything over from a checkpoint, and have the journal go on from there.

        `parts` is what a step is cut into where the checkpoint's number belongs to other processes or wishes.
        """
        where = str(saved.folder)
        load_weights(self.model, saved.tensors["model"], where)
        load_optimizer_tensors(self.optimizer, self.model, saved.tensors["optimizer"], where)
        train_state = TrainState(**saved.state["running"])
        if saved.state["cut_for"] != self._cut_for:
            train_state.parts = parts
        self.metrics_log.resume(saved.state["metrics_bytes"], saved.state["window"], train_state)
        self.metrics_log.log(f"going on from step {train_state.step:,} ({saved.folder.name})")
        return train_state
