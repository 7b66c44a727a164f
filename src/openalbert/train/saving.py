"""What a run carries from step to step, to the disk and back: weights, optimizer, running figures, the journal's place.

Pretraining and fine-tuning each add what only they carry; all that a checkpoint needs beside it is here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from openalbert import durable
from openalbert.model.albert import AlbertModel
from openalbert.optim.optimizer import TrainingOptimizer, load_optimizer_tensors, optimizer_tensors
from openalbert.train import checkpoint
from openalbert.train.claim import CHECKPOINTS
from openalbert.train.device import Device
from openalbert.train.journal import METRICS, Journal
from openalbert.train.running import Running
from openalbert.train.setup import load_weights


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was read."""

    folder: Path
    tensors: Mapping[str, dict[str, Tensor]]
    state: Mapping[str, Any]
    """What every run carries, and under names of its own what the run gave to `save`."""


@dataclass(frozen=True)
class Saving:
    """The checkpoints of a run that is going on."""

    folder: Path
    """The run's."""
    model: AlbertModel
    optimizer: TrainingOptimizer
    journal: Journal
    device: Device
    micro_batch: int | None
    """Examples of a micro-batch, as the user wishes."""

    @property
    def _cut_for(self) -> list[int | None]:
        """What the number of micro-batches hangs on; as long as it is the same, so are the bits."""
        return [self.device.world, self.micro_batch]

    def save(self, running: Running, own: Mapping[str, Any], *, keep_last: int, is_best: bool) -> None:
        """Write a checkpoint; `own` is what else this kind of run carries, as JSON can say it."""
        if self.device.is_main:
            metrics = self.folder / METRICS
            if metrics.exists():
                durable.sync(metrics)
            state = {
                "running": running.state(),
                "cut_for": self._cut_for,
                "window": self.journal.window.state(),
                "metrics_bytes": self.journal.size,
                **own,
            }
            tensors = {
                "model": {name: parameter.detach() for name, parameter in self.model.named_parameters()},
                "optimizer": optimizer_tensors(self.optimizer, self.model),
            }
            folder = self.folder / CHECKPOINTS
            checkpoint.save(folder, running.step, tensors, state, keep_last=keep_last, is_best=is_best)
        self.device.wait_for_all()

    def latest(self) -> Saved | None:
        """The newest sound checkpoint; the user hears of damaged ones that were passed over."""
        found, damaged = checkpoint.latest(self.folder / CHECKPOINTS)
        for sentence in damaged:
            self.journal.say(sentence)
        return Saved(found.folder, *found.read()) if found else None

    def go_on(self, saved: Saved, parts: int) -> Running:
        """Take everything over from a checkpoint, and have the journal go on from there.

        `parts` is what a step is cut into where the checkpoint's number belongs to other processes or wishes.
        """
        where = str(saved.folder)
        load_weights(self.model, saved.tensors["model"], where)
        load_optimizer_tensors(self.optimizer, self.model, saved.tensors["optimizer"], where)
        running = Running(**saved.state["running"])
        if saved.state["cut_for"] != self._cut_for:
            running.parts = parts
        self.journal.resume(saved.state["metrics_bytes"], saved.state["window"], running)
        self.journal.say(f"going on from step {running.step:,} ({saved.folder.name})")
        return running
