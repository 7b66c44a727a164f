"""Checkpoints of a run: whole or not there, every bit checked, the last few and the best one kept.

A checkpoint is a folder `step-00000100` with one safetensors file for each group of tensors, `state.json`, and
`sha256sums` in the form that `sha256sum --check` reads. It is sound if the sums, computed again over every file that is
there, give that text back byte for byte: so a change in the list itself is found as surely as a change in a file.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from openalbert.atomic_io import PARTIAL, new_folder, sync
from openalbert.errors import UserError
from openalbert.interop.weights import read_tensors, write_tensors

STATE = "state.json"
SUMS = "sha256sums"
TENSORS = ".safetensors"

# `durable.new_folder` moves a folder of the same name aside for the moment between two renames. Killed right there, the
# old checkpoint still stands under this longer name, and may be the only one.
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
            raise UserError(f"{damage}: remove the folder, and the run goes on from the checkpoint before")
        tensors = {path.stem: read_tensors(path) for path in sorted(self.folder.glob(f"*{TENSORS}"))}
        return tensors, self.state()

    def state(self) -> dict[str, Any]:
        """The state alone, not checked."""
        state: dict[str, Any] = self._record()["state"]
        return state

    def damage(self) -> str | None:
        """What is wrong with the files, as half a sentence; None if every bit is as it was written."""
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
            return f"{self.folder / SUMS}: does not fit the files beside it"
        return f"{self.folder / wrong[0]}: does not fit its sha256 sum in {SUMS}"

    @property
    def is_best(self) -> bool:
        """Whether it says that it was the best when it was written; to be believed if there is no damage."""
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

    `tensors` has groups ("model", "optimizer"), from any device; `state` is what JSON can say. One process of a run
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
        # Only sound ones count, lest a damaged one push out the last that could be gone on from.
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
    return "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != SUMS)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
