"""Fine-tuning runs as their folders tell of them: settings, records, scores, findings."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.formatting import count, percent
from openalbert.interop.config_json import read_config
from openalbert.interop.pretraining_json import NONE, Pretraining
from openalbert.interop.run_files import METRICS, MODEL, RUN, RUN_INFO, SCORES, SEED_PREFIX
from openalbert.model.presets import PAPER_TOKENS
from openalbert.report.error_analysis import ErrorAnalysis, read_error_analyses
from openalbert.report.run_reader import RunRecord, read_runs
from openalbert.settings import from_dict
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.paper_scores import shape_of

CONFIG = Path(MODEL) / "config.json"
NOT_FIGURES = ("kind", "step", "tokens", "split", "seconds")


@dataclass(frozen=True)
class FinetuningRecord:
    """A fine-tuning run as its folder tells of it."""

    run: RunRecord
    scores: Mapping[str, Any]
    """scores.json: what the run came to; nothing while it is going."""
    analyses: tuple[ErrorAnalysis, ...]
    metrics: tuple[str, ...]
    """The figures of its evaluations, the main one first."""

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.run.info("task", "name") or self.run.settings.get("task") or "a task")

    @property
    def by_split(self) -> Mapping[str, Mapping[str, float]]:
        """The final figures of each split."""
        found = self.scores.get("scores")
        return found if isinstance(found, dict) else {}

    @property
    def shape(self) -> str:
        """The paper's model that this one has the shape of, "" for none."""
        try:
            return shape_of(read_config(read_values(self.run.folder / CONFIG), str(CONFIG)))
        except UserError:
            return ""


def examples_of(model: Path) -> TaskSource | None:
    """Where the examples of a fine-tuning run were, by its folder or that of its model; None where nobody knows."""
    for folder in (model, model.parent):
        source = read_values(folder / RUN).get("source")
        if isinstance(source, dict):
            with contextlib.suppress(UserError):
                return from_dict(source, TaskSource, str(folder / RUN))
    return None


def initialized_from(run: RunRecord) -> str:
    """The name of the model that a run began with, without its path; "" where its weights were drawn at random."""
    folder = Path(str(run.info("model") or "a model that is not recorded"))
    if run.settings.get("from_scratch"):
        return ""
    return folder.parent.name if folder.name == CONFIG.parent.name else folder.name


def pretrained(run: RunRecord) -> str:
    """How much pretraining the weights have had that a run began with, to stand behind "was"."""
    try:
        known = NONE if run.settings.get("from_scratch") else from_dict(run.info("pretraining"), Pretraining, RUN_INFO)
    except UserError:
        known = None
    return amount_in_words(known)


def amount_in_words(known: Pretraining | None) -> str:
    """How much pretraining some weights have had, to stand behind "was"."""
    if known is None:
        return "pretrained on an unknown amount of text"
    if known == NONE:
        return "not pretrained"
    share = f"{percent(known.tokens / PAPER_TOKENS)} of the paper's {count(PAPER_TOKENS)}"
    more = f", not counting what {known.unknown_start} had read, which is unknown" if known.unknown_start else ""
    return f"pretrained on {count(known.tokens)} tokens ({share}{more})"


def is_finetuning(folder: Path) -> bool:
    """Does this folder hold a fine-tuning run?"""
    return "task" in read_values(folder / RUN)


def read_finetuning_runs(folders: Sequence[Path]) -> list[FinetuningRecord]:
    """The runs of these folders; one of several seeds gives the run of each."""
    each = []
    for folder in folders:
        each += _seeds(folder) or [folder]
    fields = {folder: _metric_names(folder / METRICS) for folder in each}
    more = list(dict.fromkeys(name for names in fields.values() for name in names))
    runs = read_runs(each, more_fields=more)
    records = []
    for folder, run in zip(each, runs, strict=True):
        if len(folders) > 1 and folder not in folders:
            run = replace(run, name=f"{folder.parent.name}/{folder.name}")
        main = str(run.info("task", "main_metric"))
        metrics = sorted((name for name in fields[folder] if "_loss" not in name), key=lambda name: name != main)
        metrics = [name for name in metrics if run.evaluation.has(name)]
        records.append(FinetuningRecord(run, read_values(folder / SCORES), read_error_analyses(folder), tuple(metrics)))
    return records


def seed_folders(folder: Path) -> list[Path]:
    """The runs of several seeds that a folder holds, by their seed."""
    return sorted(
        (path.parent for path in folder.glob(f"{SEED_PREFIX}*/{RUN}")), key=lambda path: (len(path.name), path.name)
    )


def _seeds(folder: Path) -> list[Path]:
    """The runs of several seeds that the last call asked for: what an earlier one left beyond them does not count."""
    found = seed_folders(folder)
    asked = read_values(folder / RUN)
    first, count = asked.get("seed"), asked.get("seeds")
    if not isinstance(first, int) or not isinstance(count, int):
        return found
    return [path for path in found if path.name in {f"{SEED_PREFIX}{first + number}" for number in range(count)}]


def read_values(path: Path) -> dict[str, Any]:
    """The JSON object of a file; nothing where there is none, or a damaged one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _metric_names(path: Path) -> list[str]:
    """The figures that the records of a run have, whatever its task is."""
    names: dict[str, None] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # what is damaged is told where the records themselves are read
        if isinstance(record, dict) and record.get("kind") in ("train", "evaluation"):
            names |= dict.fromkeys(
                name for name, value in record.items() if name not in NOT_FIGURES and isinstance(value, int | float)
            )
    return list(names)
