"""Runs read back from their folders: settings, run info, metrics and, of fine-tuning runs, scores.

A run may still be in progress, or may have been killed while it wrote: what cannot be read is skipped and noted in
`RunRecord.remarks`.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from openalbert.errors import UserError
from openalbert.interop.config_json import read_config
from openalbert.run_files import FOLD_PREFIX, METRICS, MODEL, RUN, RUN_INFO, SCORES, SEED_PREFIX
from openalbert.settings import from_dict
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.paper_scores import shape_of

CONFIG = Path(MODEL) / "config.json"
FIELDS = {
    "train": (
        "step tokens progress loss mlm_loss mlm_acc sop_loss sop_acc nsp_loss nsp_acc "
        "lr grad_norm depth skipped seconds tokens_per_second mfu"
    ).split(),
    "evaluation": "step tokens examples mlm_loss mlm_acc perplexity sop_loss sop_acc nsp_loss nsp_acc".split(),
}
"""Columns that are always there. Other fields with numbers are added as they are found."""
NOT_METRICS = ("kind", "step", "tokens", "split", "seconds", "examples")


@dataclass(frozen=True)
class Records:
    """Records of one kind as columns, in order of steps: NaN where a record lacks a field."""

    columns: dict[str, Float64[np.ndarray, "_"]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def has(self, name: str) -> bool:
        """Whether any record has a finite value of this name."""
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())

    def last(self, name: str) -> float | None:
        """The value of the last record, which may be NaN; None where no record has a finite one."""
        return float(self.columns[name][-1]) if self.has(name) else None

    def median(self, name: str) -> float | None:
        """The median of all finite values."""
        finite = self.columns[name][np.isfinite(self.columns[name])]
        return float(np.median(finite)) if len(finite) else None

    def where(self, kept: Bool[np.ndarray, "_"]) -> "Records":
        """Some of the records."""
        return Records({name: column[kept] for name, column in self.columns.items()})


@dataclass(frozen=True)
class Event:
    """An event of a run: a skipped step, a change of depth, a collapse."""

    step: int
    what: str
    text: str


@dataclass(frozen=True)
class RunRecord:
    """A pretraining or fine-tuning run, read back from its folder."""

    name: str
    folder: Path
    settings: dict[str, Any]
    run_info: dict[str, Any]
    train: Records
    evaluation: Records
    events: tuple[Event, ...]
    remarks: tuple[str, ...]
    """Sentences on what is missing or damaged."""
    written: float | None
    """When the metrics were last written to, in seconds since 1970."""
    scores: Mapping[str, Any]
    """scores.json of a fine-tuning run; empty for a pretraining run and while a run is in progress."""

    def info(self, *path: str) -> Any:
        """A value of run_info.json, None where there is none."""
        value: Any = self.run_info
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end: the actual time and memory are the last values that it writes."""
        return isinstance(self.info("actual"), dict)

    @property
    def model_name(self) -> str:
        """The preset of a pretraining run."""
        return str(self.settings.get("preset") or "a model of its own")

    @property
    def is_finetuning(self) -> bool:
        """Whether this is a fine-tuning run."""
        return "task" in self.settings

    @property
    def task(self) -> str:
        """The name of a fine-tuning run's task."""
        return str(self.info("task", "name") or self.settings.get("task") or "a task")

    @property
    def task_metrics(self) -> list[str]:
        """The metrics of a fine-tuning run's evaluations, the main one first."""
        main = str(self.info("task", "main_metric"))
        names = [name for name in self.evaluation.columns if name not in NOT_METRICS and "_loss" not in name]
        return sorted(filter(self.evaluation.has, names), key=lambda name: name != main)

    @property
    def by_split(self) -> Mapping[str, Mapping[str, float]]:
        """The final metrics of a fine-tuning run for each split."""
        found = self.scores.get("scores")
        return found if isinstance(found, dict) else {}

    @property
    def shape(self) -> str:
        """The paper's model that a fine-tuning run's model has the shape of, "" for none."""
        try:
            return shape_of(read_config(read_values(self.folder / CONFIG), str(CONFIG)))
        except UserError:
            return ""

    def seconds_at(self, steps: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Training time at these steps, interpolated between records."""
        return self._at(steps, "seconds")

    def tokens_at(self, steps: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Tokens seen at these steps, interpolated between records."""
        return self._at(steps, "tokens")

    def _at(self, steps: Float64[np.ndarray, "n"], name: str) -> Float64[np.ndarray, "n"]:
        known = np.isfinite(self.train.columns[name])
        if not known.any():
            return np.full(len(steps), np.nan)
        places = np.concatenate([[0.0], self.train.columns["step"][known]])
        amounts = np.concatenate([[0.0], self.train.columns[name][known]])
        return np.asarray(np.interp(steps, places, amounts), np.float64)

    def metrics_table(self) -> dict[str, list[Any]]:
        """The train and evaluation records as columns, ready for `pandas.DataFrame`: `kind`, `step`, then each metric
        that any record has, NaN where a record lacks it. `seconds` is the training time up to the step."""
        kinds = {"train": self.train, "evaluation": self.evaluation}
        names = dict.fromkeys(name for records in kinds.values() for name in records.columns if records.has(name))
        steps = np.concatenate([records.columns["step"] for records in kinds.values()])
        order = np.argsort(steps, kind="stable")
        labels = np.repeat(list(kinds), [len(records) for records in kinds.values()])
        table: dict[str, list[Any]] = {"kind": labels[order].tolist(), "step": steps[order].astype(np.int64).tolist()}
        for name in names:
            columns = [records.columns.get(name, np.full(len(records), np.nan)) for records in kinds.values()]
            if name == "seconds":
                columns[1] = self.seconds_at(self.evaluation.columns["step"])
            if name != "step":
                table[name] = np.concatenate(columns)[order].tolist()
        return table


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """The runs of these folders, each under a name that no other has."""
    whole = [Path(os.path.abspath(folder)) for folder in folders]  # noqa: PTH100  (resolve() would follow links)
    repeated = {str(folder) for folder in whole if whole.count(folder) > 1}
    if repeated:
        raise UserError(f"{min(repeated)} is named twice: name each run once")
    names = [folder.name for folder in whole]
    return [read_run(folder, folder.name if names.count(folder.name) == 1 else str(folder)) for folder in whole]


def read_run(folder: Path, name: str | None = None) -> RunRecord:
    """The run of a folder."""
    settings, run_info, path = _settings(folder), read_values(folder / RUN_INFO), folder / METRICS
    remarks = []
    if not run_info:
        remarks.append(f"{RUN_INFO} is missing or damaged: hardware, data and unigram entropy are not known.")
    if not path.exists():
        remarks.append(f"There is no {METRICS} yet: nothing has been logged.")
    metrics = _Metrics(path if path.exists() else Path(os.devnull))
    return RunRecord(
        name=name or folder.name,
        folder=folder,
        settings=settings,
        run_info=run_info,
        train=metrics.records("train"),
        evaluation=metrics.records("evaluation"),
        events=tuple(metrics.events),
        remarks=(*remarks, *metrics.remarks),
        written=path.stat().st_mtime if path.exists() else None,
        scores=read_values(folder / SCORES),
    )


def read_finetuning_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """The fine-tuning runs of these folders; a folder of several seeds or folds gives the run of each."""
    each = []
    for folder in folders:
        each += _seeds(folder) or fold_folders(folder) or [folder]
    return [
        replace(run, name=f"{folder.parent.name}/{folder.name}") if len(folders) > 1 and folder not in folders else run
        for folder, run in zip(each, read_runs(each), strict=True)
    ]


def seed_folders(folder: Path) -> list[Path]:
    """The runs of several seeds that a folder holds, by their seed."""
    return sorted(
        (path.parent for path in folder.glob(f"{SEED_PREFIX}*/{RUN}")), key=lambda path: (len(path.name), path.name)
    )


def fold_folders(folder: Path) -> list[Path]:
    """The runs on the folds of cross-validation that a folder holds, by their number."""
    found = (path.parent for path in folder.glob(f"{FOLD_PREFIX}*/{RUN}"))
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _seeds(folder: Path) -> list[Path]:
    """The runs of the seeds that the last call asked for, without those that an earlier call left."""
    found = seed_folders(folder)
    asked = read_values(folder / RUN)
    first, count = asked.get("seed"), asked.get("seeds")
    if not isinstance(first, int) or not isinstance(count, int):
        return found
    return [path for path in found if path.name in {f"{SEED_PREFIX}{first + number}" for number in range(count)}]


def is_finetuning(folder: Path) -> bool:
    """Whether this folder holds a fine-tuning run."""
    return "task" in read_values(folder / RUN)


def examples_of(model: Path) -> TaskSource | None:
    """The data of a fine-tuning run, by its folder or that of its model; None where they are not known."""
    for folder in (model, model.parent):
        source = read_values(folder / RUN).get("source")
        if isinstance(source, dict):
            with contextlib.suppress(UserError):
                return from_dict(source, TaskSource, str(folder / RUN))
    return None


def read_values(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none, or a damaged one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def settings_tree(run: RunRecord) -> Any:
    """The settings of a run with their values as attributes: `settings.optimizer.learning_rate`."""
    return json.loads(json.dumps(run.settings), object_hook=lambda values: SimpleNamespace(**values))


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / RUN
    if not path.is_file():
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist: give the folder of a run, as `openalbert pretrain` writes it")
        within = sorted(child.name for child in folder.iterdir() if (child / RUN).is_file())
        meant = f"did you mean one of these in it: {', '.join(within[:5])}?" if within else "give the folder of a run"
        raise UserError(f"{folder} is no run, it has no {RUN}: {meant}")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON, so this run cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path}: a JSON object of settings was expected")
    return settings


class _Metrics:
    """The content of metrics.jsonl. Of steps that were logged again after a restart or a collapse, the later record."""

    def __init__(self, path: Path) -> None:
        self.remarks: list[str] = []
        self.events: list[Event] = []
        self._rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in FIELDS}
        self._before_collapse = dict.fromkeys(FIELDS, 0)  # how many of the rows were written before the last collapse
        self._replaced: Counter[tuple[str, str]] = Counter()
        damaged: list[int] = []
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _record(line)
                if record is not None:
                    self._add(record)
                elif not line.endswith(b"\n"):
                    self.remarks.append(
                        f"The last line of {METRICS} is cut off, by a kill or because the run is writing it: it is "
                        "skipped."
                    )
                elif line.strip():
                    damaged.append(number)
        if damaged:
            what = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged):,} lines, the first is {damaged[0]}"
            self.remarks.append(f"{METRICS} is damaged ({what}): what cannot be read is skipped.")
        for kind in FIELDS:
            for why in ("collapse", "restart"):
                if number := self._replaced[kind, why]:
                    were = "record was" if number == 1 else "records were"
                    self.remarks.append(f"{number:,} {kind} {were} written again after a {why}: the later count.")

    def _add(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "event":
            self.events.append(Event(record["step"], str(record.get("what", "")), str(record.get("text", ""))))
            if record.get("what") == "collapsed":
                self._before_collapse = {name: len(rows) for name, rows in self._rows.items()}
            return
        rows = self._rows[kind]
        while rows and rows[-1]["step"] >= record["step"]:
            rows.pop()
            self._replaced[kind, "collapse" if len(rows) < self._before_collapse[kind] else "restart"] += 1
        self._before_collapse[kind] = min(self._before_collapse[kind], len(rows))
        rows.append(record)

    def records(self, kind: str) -> Records:
        """All records of one kind."""
        rows = self._rows[kind]
        found = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name not in NOT_METRICS]
        return Records({name: _column(rows, name) for name in dict.fromkeys([*FIELDS[kind], *found])})


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for a line that is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(record, dict) and record.get("kind") in (*FIELDS, "event")
    return record if is_record and type(record.get("step")) is int else None


def _column(rows: list[dict[str, Any]], name: str) -> Float64[np.ndarray, "_"]:
    values = [row.get(name) for row in rows]
    if not set(map(type, values)) <= {float, int, NoneType}:
        values = [value if type(value) in (float, int) else None for value in values]
    return np.array(values, np.float64)  # None becomes NaN
