"""A run's folder as its reader sees it: settings, facts, and of the metrics all that is whole.

A run may still be going, or may have been killed while it wrote: what cannot be read is left out and said in a remark.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from openalbert.errors import UserError
from openalbert.interop.run_files import METRICS, RUN, RUN_INFO

LINES_AT_ONCE = 20_000
TRAIN_FIELDS = (
    "step tokens progress loss mlm_loss mlm_acc sop_loss sop_acc nsp_loss nsp_acc "
    "lr grad_norm depth skipped seconds tokens_per_second mfu"
).split()
EVALUATION_FIELDS = ("step tokens examples mlm_loss mlm_acc perplexity sop_loss sop_acc nsp_loss nsp_acc").split()


@dataclass(frozen=True)
class Records:
    """Records of one kind as columns, in order of steps: NaN where a record lacks a field."""

    columns: dict[str, Float64[np.ndarray, "_"]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def has(self, name: str) -> bool:
        """Is there any figure of this name?"""
        return bool(np.isfinite(self.columns[name]).any())

    def last(self, name: str) -> float | None:
        """What the last record says, which may be that it is not a number; None where no record ever gave a figure."""
        return float(self.columns[name][-1]) if self.has(name) else None

    def median(self, name: str) -> float | None:
        """The middle of all finite values."""
        finite = self.columns[name][np.isfinite(self.columns[name])]
        return float(np.median(finite)) if len(finite) else None

    def where(self, kept: Bool[np.ndarray, "_"]) -> "Records":
        """Some of the records."""
        return Records({name: column[kept] for name, column in self.columns.items()})


@dataclass(frozen=True)
class Event:
    """Something worth a sentence that happened in a run."""

    step: int
    what: str
    text: str


@dataclass(frozen=True)
class RunRecord:
    """All that a run's folder tells."""

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

    def info(self, *path: str) -> Any:
        """A value of run_info.json, None where there is none."""
        value: Any = self.run_info
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def is_finished(self) -> bool:
        """Did the run come to its end? The truth beside the estimate is the last thing it writes."""
        return isinstance(self.info("actual"), dict)

    @property
    def model_name(self) -> str:
        """The preset that the run began from."""
        return str(self.settings.get("preset") or "a model of its own")

    def seconds_at(self, steps: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Training time at these steps, between two records in proportion."""
        return self._at(steps, "seconds")

    def tokens_at(self, steps: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Tokens seen at these steps, between two records in proportion."""
        return self._at(steps, "tokens")

    def _at(self, steps: Float64[np.ndarray, "n"], name: str) -> Float64[np.ndarray, "n"]:
        known = np.isfinite(self.train.columns[name])
        if not known.any():
            return np.full(len(steps), np.nan)
        places = np.concatenate([[0.0], self.train.columns["step"][known]])
        amounts = np.concatenate([[0.0], self.train.columns[name][known]])
        return np.asarray(np.interp(steps, places, amounts), np.float64)


def read_runs(
    folders: Sequence[Path], advance: Callable[[float], None] = lambda size: None, more_fields: Sequence[str] = ()
) -> list[RunRecord]:
    """The runs of these folders, each under a name that no other has; `advance` is told of bytes read.

    `more_fields` are those that records may have beside the ones of pretraining.
    """
    whole = [Path(os.path.abspath(folder)) for folder in folders]  # noqa: PTH100  (resolve() would follow links)
    repeated = {str(folder) for folder in whole if whole.count(folder) > 1}
    if repeated:
        raise UserError(f"{min(repeated)} is named twice: name each run once")
    names = [folder.name for folder in whole]
    return [
        read_run(folder, folder.name if names.count(folder.name) == 1 else str(folder), advance, more_fields)
        for folder in whole
    ]


def read_run(
    folder: Path,
    name: str | None = None,
    advance: Callable[[float], None] = lambda size: None,
    more_fields: Sequence[str] = (),
) -> RunRecord:
    """The run of a folder; a folder that is none is refused."""
    remarks: list[str] = []
    settings = _settings(folder)
    run_info = _run_info(folder / RUN_INFO, remarks)
    fields = {
        kind: tuple(dict.fromkeys((*known, *more_fields)))
        for kind, known in (("train", TRAIN_FIELDS), ("evaluation", EVALUATION_FIELDS))
    }
    reader = _Metrics(remarks, advance, fields)
    metrics = folder / METRICS
    written = None
    try:
        written = metrics.stat().st_mtime
        reader.read(metrics)
    except FileNotFoundError:
        remarks.append(f"There is no {METRICS} yet: nothing has been recorded.")
    return RunRecord(
        name=name or folder.name,
        folder=folder,
        settings=settings,
        run_info=run_info,
        train=reader.records("train"),
        evaluation=reader.records("evaluation"),
        events=tuple(reader.events),
        remarks=tuple(remarks),
        written=written,
    )


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
        raise UserError(f"{path} is not JSON, so nothing is known of this run: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path}: a JSON object of settings was expected")
    return settings


def _run_info(path: Path, remarks: list[str]) -> dict[str, Any]:
    try:
        run_info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        remarks.append(f"There is no {RUN_INFO}: the hardware, the data and the unigram plateau are not known.")
        return {}
    except ValueError:
        run_info = None
    if not isinstance(run_info, dict):
        remarks.append(f"{RUN_INFO} is damaged: the hardware, the data and the unigram plateau are not known.")
        return {}
    return run_info


@dataclass
class _Metrics:
    """What the lines of metrics.jsonl come to, a block of lines at a time, so that a long run fits into memory."""

    remarks: list[str]
    advance: Callable[[float], None]
    fields: dict[str, tuple[str, ...]]
    """What is kept of each kind of record."""
    events: list[Event] = field(default_factory=list)
    blocks: dict[str, list[dict[str, Float64[np.ndarray, "_"]]]] = field(default_factory=dict)
    collapses: dict[str, list[int]] = field(default_factory=dict)
    """For each kind: how many of its records were written before each collapse, after which a run begins again."""

    def read(self, path: Path) -> None:
        damaged: list[int] = []
        cut = False
        lines_before = 0
        with path.open("rb") as file:
            while lines := list(islice(file, LINES_AT_ONCE)):
                records = []
                for number, record in _parsed(lines):
                    if record is not None:
                        records.append(record)
                    elif number == len(lines) - 1 and not lines[-1].endswith(b"\n"):
                        cut = True  # only the very last line of a file can lack its end
                    else:
                        damaged.append(lines_before + number + 1)
                self._add(records)
                lines_before += len(lines)
                self.advance(float(sum(map(len, lines))))
        if cut:
            self.remarks.append(
                f"The last line of {METRICS} is cut off, by a kill or since the run is writing it: it is left out."
            )
        if damaged:
            what = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged):,} lines, the first is {damaged[0]}"
            self.remarks.append(f"{METRICS} is damaged ({what}): what cannot be read is left out.")

    def _add(self, records: list[dict[str, Any]]) -> None:
        for kind, names in self.fields.items():
            if any(record.get("what") == "collapsed" for record in records):
                before = sum(len(block["step"]) for block in self.blocks.get(kind, []))
                for record in records:
                    before += record["kind"] == kind
                    if record.get("what") == "collapsed":
                        self.collapses.setdefault(kind, []).append(before)
            some = [record for record in records if record["kind"] == kind]
            if some:
                self.blocks.setdefault(kind, []).append({name: _column(some, name) for name in names})
        for record in records:
            if record["kind"] == "event":
                self.events.append(Event(int(record["step"]), str(record.get("what", "")), str(record.get("text", ""))))

    def records(self, kind: str) -> Records:
        """Everything of one kind; of steps that were recorded again after a restart or collapse, the later record."""
        blocks = self.blocks.get(kind, [])
        records = Records(
            {name: np.concatenate([np.zeros(0), *(block[name] for block in blocks)]) for name in self.fields[kind]}
        )
        if not len(records):
            return records
        steps = records.columns["step"]
        later = np.append(np.minimum.accumulate(steps[::-1])[::-1][1:], np.inf)
        kept = steps < later
        of_a_collapse = _ended_by(self.collapses.get(kind, []), steps)
        for again, why in ((~kept & of_a_collapse, "collapse"), (~kept & ~of_a_collapse, "restart")):
            if number := np.count_nonzero(again):
                were = "record was" if number == 1 else "records were"
                self.remarks.append(f"{number:,} {kind} {were} written again after a {why}: the later count.")
        return records.where(kept)


def _ended_by(collapses: Sequence[int], steps: Float64[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Which records a collapse made void: it comes before the first of their step, or of an earlier one, that follows.

    `collapses` are how many records were written before each.
    """
    found = np.zeros(len(steps), bool)
    is_open = np.ones(len(steps), bool)
    # Only where steps do not rise can a record be the first of a step that was there.
    for place in np.flatnonzero(np.diff(steps) <= 0) + 1:
        void = is_open[:place] & (steps[:place] >= steps[place])
        last = max((border for border in collapses if border <= place), default=0)
        found[:last] |= void[:last]
        is_open[:place] &= ~void
    return found


def _parsed(lines: list[bytes]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each line's number and record, None for a line that is no record; empty lines are passed over."""
    try:
        # One call for a whole block is twice as fast as one for each line.
        together = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        together = []
    if len(together) == len(lines) and all(map(_is_record, together)):
        yield from enumerate(together)
        return
    for number, line in enumerate(lines):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            yield number, record if _is_record(record) else None


def _is_record(record: object) -> bool:
    # Whole steps below 2**53 are exact as floats too; others no run can reach.
    return (
        type(record) is dict
        and record.get("kind") in ("train", "evaluation", "event")
        and type(record.get("step")) is int
        and 0 <= record["step"] < 2**53
    )


def _column(records: list[dict[str, Any]], name: str) -> Float64[np.ndarray, "_"]:
    values = [record.get(name) for record in records]
    if all(type(value) is float or type(value) is int or value is None for value in values):
        try:
            return np.array(values, np.float64)
        except OverflowError:
            pass
    return np.array([_as_float(value) for value in values], np.float64)


def _as_float(value: object) -> float:
    try:
        return float(value) if type(value) in (int, float) else np.nan  # type: ignore[arg-type]
    except OverflowError:
        return np.inf
