"""The unit of work: one variant with one seed. Its folder is named by its content: studies share what they train.

The name of the folder depends on what is learned: the settings of pretraining, the text and the seed, and the unit that
it is initialized from. Evaluation and fine-tuning have names of their own within it, so that a change of them retrains
nothing else. How fast a run goes, and where its files are, does not count.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.settings import FREE_TO_CHANGE as FREE_IN_FINETUNING
from openalbert.finetuning.settings import Finetune
from openalbert.pretraining.settings import FREE_TO_CHANGE, Pretrain
from openalbert.settings import to_dict
from openalbert.studies.budgets import Budget, Intrinsic, finetuning_of
from openalbert.studies.study import Variant
from openalbert.text.shards import heldout_split, open_shards, read_manifest

UNIT, FAILED, LOG, PRETRAIN = "unit.json", "failed.json", "log.txt", "pretrain"
PRETRAINING = "pretraining"  # the first stage
VERSION = 1  # of what a unit does; a change makes all earlier results void
NAME_LENGTH = 16


@dataclass(frozen=True)
class Unit:
    """One variant with one seed, and everything that is measured of it."""

    key: str
    """The name of its folder."""
    variant: str
    seed: int
    pretrain: Pretrain
    """With `out` in its folder."""
    intrinsic: Intrinsic
    heldout: Path
    """Shards with held-out text."""
    heldout_content: str
    """What text that is, by checksums."""
    finetune: tuple[Finetune, ...] = ()
    after: str = ""
    """The key of the unit that it is initialized from."""
    speed_run: Pretrain | None = None
    """The run of which a few steps measure the speed."""
    is_timed: bool = False
    store: Path = Path("variants")

    @property
    def folder(self) -> Path:
        """Where its results are."""
        return self.store / self.key

    @property
    def run_folder(self) -> Path:
        """The folder of its pretraining run."""
        return self.folder / PRETRAIN

    @property
    def stages(self) -> dict[str, str]:
        """What is measured, by the name of its file: its title for the log."""
        intrinsic = {**to_dict(self.intrinsic), "heldout": self.heldout_content, "version": VERSION}
        found = {f"intrinsic-{_name(intrinsic)}": "intrinsic"}
        found |= {self.task_stage(settings): title_of(settings) for settings in self.finetune}
        if self.speed_run is not None:
            found[self.speed_stage] = "speed"
        return found

    @property
    def intrinsic_stage(self) -> str:
        """The name of the files on held-out accuracy."""
        return next(iter(self.stages))

    @property
    def speed_stage(self) -> str:
        """The name of the file on speed."""
        assert self.speed_run is not None
        return f"speed-{_name(_learned(self.speed_run, FREE_TO_CHANGE))}"

    def task_stage(self, settings: Finetune) -> str:
        """The name of the files on a task."""
        values = _learned(settings, (*FREE_IN_FINETUNING, "model", "seed"))
        source = values["source"]
        # Published data are what they are; of files of one's own the content counts.
        source.pop("data")
        source |= {split: _checksum(path) for split, path in settings.source.files.items()}
        return f"{settings.task}-{_name(values)}"


def title_of(settings: Finetune) -> str:
    """A task's name, with that of its file where it is one's own."""
    file = settings.source.train
    return settings.task if file is None else f"{settings.task} {file.stem}"


def make_units(
    variants: Sequence[Variant],
    budget: Budget,
    tasks: Sequence[str],
    task_data: Path | None,
    seeds: int,
    store: Path,
) -> list[Unit]:
    """All units of a study: every variant with the first seed, then with the second, and so on."""
    contents: dict[Path, str] = {}
    heldout_contents: dict[Path, str] = {}
    finetune = tuple(finetuning_of(task, budget.finetune, task_data) for task in tasks)
    units = []
    for seed in range(1, seeds + 1):
        keys: dict[str, str] = {}
        for variant in variants:
            pretrain = replace(variant.pretrain, seed=seed)
            if pretrain.data not in contents:
                contents[pretrain.data] = content_of(pretrain.data)
            heldout = pretrain.heldout or budget.base.pretrain.data
            if heldout not in heldout_contents:
                heldout_contents[heldout] = content_of(heldout, heldout_split(heldout))
            values = _learned(pretrain, (*FREE_TO_CHANGE, "preset"))
            after = keys.get(variant.after, "")
            key = _name(
                {
                    **values,
                    "content": contents[pretrain.data],
                    "teacher": pretrain.distill,
                    "after": after,
                    "version": VERSION,
                }
            )
            keys[variant.name] = key
            warm_start = str(store / after / PRETRAIN) if after else pretrain.warm_start
            units.append(
                Unit(
                    key=key,
                    variant=variant.name,
                    seed=seed,
                    pretrain=replace(pretrain, out=store / key / PRETRAIN, warm_start=warm_start),
                    intrinsic=budget.intrinsic,
                    heldout=heldout,
                    heldout_content=heldout_contents[heldout],
                    finetune=tuple(replace(one, seed=seed) for one in finetune),
                    after=after,
                    speed_run=variant.speed_run if seed == 1 else None,
                    is_timed=variant.is_timed,
                    store=store,
                )
            )
    return units


def content_of(shards: Path, split: str = "train") -> str:
    """What text a split of shards holds, by checksums, and in which vocabulary."""
    opened = open_shards(shards, split)
    return f"{opened.sha256} {opened.manifest.tokenizer}"


def check_heldout(unit: Unit) -> None:
    """Refuse shards without held-out text before anything is trained."""
    manifest = read_manifest(unit.heldout)
    if unit.pretrain.heldout is None and "heldout" not in manifest.splits:
        raise UserError(
            f"{unit.heldout} has no held-out text to evaluate on: prepare it with --heldout 0.01, or give --heldout"
        )


def _learned(settings: Any, free: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in to_dict(settings).items() if name not in free}


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _name(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:NAME_LENGTH]


# Results of a stage: numbers as JSON, and what was right of each example as arrays.


@dataclass(frozen=True)
class Measured:
    """What a stage measured."""

    values: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def write_measured(folder: Path, stage: str, measured: Measured) -> None:
    """Write a stage's results. The JSON is last, and has the checksum of the arrays: both are complete or neither."""
    values = dict(measured.values)
    if measured.arrays:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **measured.arrays)  # type: ignore[arg-type]
        atomic_io.write_bytes(folder / f"{stage}.npz", buffer.getvalue())
        values["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    atomic_io.write_text(folder / f"{stage}.json", json.dumps(values, indent=1) + "\n")


def read_measured(folder: Path, stage: str) -> Measured | None:
    """A stage's results; None where there are none. Damaged ones are an error."""
    path = folder / f"{stage}.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        arrays = {}
        if "sha256" in values:
            content = (folder / f"{stage}.npz").read_bytes()
            if hashlib.sha256(content).hexdigest() != values["sha256"]:
                raise ValueError("its checksum does not match")
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the results are damaged ({error})") from None
    return Measured(values, arrays)


def is_done(unit: Unit) -> bool:
    """Whether everything of a unit is measured, and its files are sound."""
    try:
        return all(read_measured(unit.folder, stage) is not None for stage in unit.stages)
    except UserError:
        return False


def failures(unit: Unit) -> dict[str, str]:
    """Why stages of a unit failed, by their names; empty where none did."""
    path = unit.folder / FAILED
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        return {PRETRAINING: "the record of a failure is damaged"}
    return {str(stage): str(reason) for stage, reason in found.items()}
