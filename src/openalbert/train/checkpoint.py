"""Checkpoints of a run: written whole or not at all, every bit checked, the last few and the best one kept.

A checkpoint is a folder `step-00000100` with one safetensors file for each group of tensors, `state.json`, and
`sha256sums` in the form that `sha256sum --check` reads. It is sound if the sums, computed again over every file that is
there, give that text byte for byte, so a change in the list itself is found as surely as a change in a file.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from openalbert.atomic_io import PARTIAL, new_folder, sha256_of, sync
from openalbert.errors import UserError
from openalbert.interop.weights import read_tensors, write_tensors
from openalbert.model.albert import AlbertModel
from openalbert.optim.optimizer import TrainingOptimizer, load_optimizer_tensors, optimizer_tensors
from openalbert.run_files import CHECKPOINTS, METRICS
from openalbert.train.device import Device
from openalbert.train.loop import TrainState
from openalbert.train.metrics_log import MetricsLog

STATE = "state.json"
SUMS = "sha256sums"
TENSORS = ".safetensors"

# `atomic_io.new_folder` moves a folder of the same name aside for the moment between two renames. If the process is
# killed right there, the old checkpoint has this longer name, and may be the only one.
_FOLDER = re.compile(rf"step-(\d{{8,}})(\.replaced{re.escape(PARTIAL)})?")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path
    step: int

    def read(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """The tensors by group, on the CPU, and the state, as they were given to `save`; all of it checked."""
        damage = self.damage()
        if damage is not None:
            raise UserError(f"{damage}: remove the folder, and the run resumes from the checkpoint before")
        tensors = {path.stem: read_tensors(path) for path in sorted(self.folder.glob(f"*{TENSORS}"))}
        return tensors, self.state()

    def state(self) -> dict[str, Any]:
        """The state alone, not checked."""
        state: dict[str, Any] = self._record()["state"]
        return state

    def damage(self) -> str | None:
        """What is wrong with the files, as a clause; None if every bit is as it was written."""
        try:
            listed = (self.folder / SUMS).read_bytes()
            found = _sums(self.folder)
            if listed == found.encode():
                of_step = self._record()["step"]
                return None if of_step == self.step else f"{self.folder}: holds step {of_step}, not {self.step}"
        except OSError as error:
            return f"{error.filename or self.folder}: cannot be read ({error.strerror or error})"
        except (ValueError, KeyError, TypeError) as error:
            return f"{self.folder / STATE}: is not the state of a checkpoint ({error!r})"
        lines = set(listed.decode(errors="replace").splitlines())
        wrong = [line.split("  ")[1] for line in found.splitlines() if line not in lines]
        if not wrong:  # every file that is there is right: the list has more, or is itself damaged
            return f"{self.folder / SUMS}: does not match the files in its folder"
        return f"{self.folder / wrong[0]}: does not match its sha256 sum in {SUMS}"

    @property
    def is_best(self) -> bool:
        """Whether it was the best when it was written, by its state.json; meaningful only if there is no damage."""
        try:
            return self._record()["is_best"] is True
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / STATE).read_text())
        return record


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep_last: int,
    is_best: bool,
) -> Checkpoint:
    """Write a checkpoint, then remove those that are neither among the last `keep_last` sound ones nor the best.

    `tensors` has groups ("model", "optimizer"), from any device; `state` holds JSON values. One process of a run
    calls this. A checkpoint of the same step is replaced and stays the best if it was. Whatever fails, nothing that was
    there before is lost.
    """
    if keep_last < 1:
        raise UserError(f"keep_last is {keep_last}, but at least the last checkpoint must be kept: give 1 or more")
    checkpoint = Checkpoint(folder / f"step-{step:08d}", step)
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            sync(folder.parent)
        _recover(folder)
        was_best = checkpoint.is_best and checkpoint.damage() is None
        record = {"step": step, "is_best": is_best or was_best, "state": dict(state)}
        with new_folder(checkpoint.folder) as aside:
            for group, named in tensors.items():
                write_tensors(aside / f"{group}{TENSORS}", dict(named))
            # json writes the shortest decimal that reads back as the same float: nothing is rounded.
            (aside / STATE).write_text(json.dumps(record, indent=1) + "\n")
            (aside / SUMS).write_text(_sums(aside))
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(
            f"{checkpoint.folder}: the checkpoint could not be written ({reason}); the earlier ones are untouched: "
            "make room on the disk and run the same command again"
        ) from error
    _prune(folder, checkpoint, keep_last)
    return checkpoint


def latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint, and a sentence for each damaged one that was passed over on the way to it.

    Nothing is changed on disk: every rank, or a report on a running run, may look at the same time.
    """
    remarks: list[str] = []
    for checkpoint in _all(folder):
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint, remarks
        remarks.append(f"{damage}: this checkpoint is damaged and passed over.")
    if remarks:
        raise UserError(
            f"no checkpoint in {folder} is sound: {' '.join(remarks)} "
            "Put back a copy of one, or start the run over with --fresh"
        )
    return None, remarks


def best(folder: Path) -> Checkpoint | None:
    """The newest sound checkpoint that was the best when it was written."""
    return next((c for c in _all(folder) if c.is_best and c.damage() is None), None)


def _all(folder: Path) -> list[Checkpoint]:
    """Every checkpoint, sound or not, newest first; one that was moved aside comes after the one in its place."""
    matches = [(match, path) for path in folder.glob("step-*") if (match := _FOLDER.fullmatch(path.name))]
    matches.sort(key=lambda pair: (-int(pair[0][1]), pair[0][2] is not None))
    return [Checkpoint(path, int(match[1])) for match, path in matches]


def _recover(folder: Path) -> None:
    """Finish or undo what a killed `save` left half done."""
    for checkpoint in _all(folder):
        place = folder / f"step-{checkpoint.step:08d}"
        if checkpoint.folder != place and not place.exists():
            checkpoint.folder.rename(place)
    for path in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def _prune(folder: Path, written: Checkpoint, keep_last: int) -> None:
    kept = [written]
    best_kept = written.is_best
    for checkpoint in _all(folder):
        if checkpoint == written:
            continue
        among_last = len(kept) < keep_last
        marked = not best_kept and checkpoint.is_best
        # Only sound ones count, lest a damaged one push out the last that a run could resume from.
        if (among_last or marked) and checkpoint.damage() is None:
            best_kept = best_kept or checkpoint.is_best
            kept.append(checkpoint)
            continue
        # Renamed first: a folder that is half removed must not look like a damaged checkpoint.
        with contextlib.suppress(OSError):
            doomed = checkpoint.folder.rename(checkpoint.folder.with_name(checkpoint.folder.name + PARTIAL))
            shutil.rmtree(doomed, ignore_errors=True)


def _sums(folder: Path) -> str:
    """The text of `sha256sums` for everything that is in a folder."""
    return "".join(f"{sha256_of(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != SUMS)


def trained_parameters(model: AlbertModel) -> dict[str, torch.nn.Parameter]:
    """The parameters that a checkpoint holds; frozen ones are in the model that the run started from."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def load_weights(model: AlbertModel, tensors: dict[str, torch.Tensor], where: str) -> None:
    """Copy the weights of a checkpoint into a model."""
    own = trained_parameters(model)
    if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
        raise UserError(f"{where}: this checkpoint is of another model: give another --out, or --fresh")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that was read."""

    folder: Path
    tensors: Mapping[str, dict[str, Tensor]]
    state: Mapping[str, Any]
    """What every run carries, and under their own names the values that the run gave to `save`."""


@dataclass(frozen=True)
class Checkpointer:
    """Saves and restores a run: weights, optimizer, train state, and the position in metrics.jsonl."""

    folder: Path
    """The run's."""
    model: AlbertModel
    optimizer: TrainingOptimizer
    metrics_log: MetricsLog
    device: Device
    micro_batch: int | None
    """Examples of a micro-batch, if the user chose them."""

    @property
    def _split_for(self) -> list[int | None]:
        """What the number of micro-batches depends on; as long as it is the same, so are the bits."""
        return [self.device.world, self.micro_batch]

    def save(self, train_state: TrainState, own: Mapping[str, Any], *, keep_last: int, is_best: bool) -> None:
        """Write a checkpoint; `own` is what else this kind of run carries, as JSON values."""
        if self.device.is_main:
            metrics = self.folder / METRICS
            if metrics.exists():
                sync(metrics)
            state = {
                "train_state": asdict(train_state),
                "split_for": self._split_for,
                "window": vars(self.metrics_log.window),
                "metrics_bytes": self.metrics_log.size,
                **own,
            }
            tensors = {
                "model": {name: parameter.detach() for name, parameter in trained_parameters(self.model).items()},
                "optimizer": optimizer_tensors(self.optimizer, self.model),
            }
            folder = self.folder / CHECKPOINTS
            save(folder, train_state.step, tensors, state, keep_last=keep_last, is_best=is_best)
        self.device.wait_for_all()

    def latest(self) -> LoadedCheckpoint | None:
        """The newest sound checkpoint; damaged ones that were passed over are logged."""
        found, damaged = latest(self.folder / CHECKPOINTS)
        for sentence in damaged:
            self.metrics_log.log(sentence)
        return LoadedCheckpoint(found.folder, *found.read()) if found else None

    def restore(self, saved: LoadedCheckpoint, micro_batches: int) -> TrainState:
        """Restore everything from a checkpoint, and continue metrics.jsonl from there.

        `micro_batches` is used where the checkpoint's number is for other processes or another micro-batch size.
        """
        where = str(saved.folder)
        load_weights(self.model, saved.tensors["model"], where)
        load_optimizer_tensors(self.optimizer, self.model, saved.tensors["optimizer"], where)
        known = saved.state["train_state"]
        if unknown := known.keys() - vars(TrainState()).keys():
            raise UserError(
                f"{where}: written by another version of openalbert ({', '.join(sorted(unknown))} is not known): "
                "go on with that version, or start over with --fresh"
            )
        train_state = TrainState(**known)
        if saved.state["split_for"] != self._split_for:
            train_state.micro_batches = micro_batches
        self.metrics_log.resume(saved.state["metrics_bytes"], saved.state["window"], train_state)
        self.metrics_log.log(f"resuming from step {train_state.step:,} ({saved.folder.name})")
        return train_state
