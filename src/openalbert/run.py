"""`Run`: what a run's folder holds, for Python and for notebooks."""

import html
import io
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.report.finetuning_reader import FinetuningRecord, is_finetuning, read_finetuning_runs
from openalbert.report.run_reader import RunRecord, read_run

Scores: TypeAlias = dict[str, dict[str, float]]
"""Metrics by split."""
NOT_SCORES = ("step", "tokens", "examples", "seconds")


class Run:
    """A run of `pretrain` or `finetune` as its folder shows it now.

    It may still be going. A run can be given wherever a model is expected.

        >>> import openalbert
        >>> run = openalbert.open_run("runs/mine")
        >>> run.model().num_parameters() == openalbert.load(run).num_parameters()
        True
        >>> [int(step) for step in run.metrics["step"]]
        [5, 10, 10]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    def model(self) -> AlbertModel:
        """The model that the run ended with."""
        return huggingface.load(self.folder)

    def records(self) -> "list[RunRecord]":
        """All that the folder holds, by run: one for each seed."""
        return [one.run if isinstance(one, FinetuningRecord) else one for one in self._read()]

    def _read(self) -> Sequence[FinetuningRecord | RunRecord]:
        return read_finetuning_runs([self.folder]) if is_finetuning(self.folder) else [read_run(self.folder)]

    @property
    def metrics(self) -> Any:
        """The training and evaluation records by step: a pandas DataFrame, or without pandas a dict of columns.

        `kind` is `train` or `evaluation`; several seeds have a column `run`. A value that a record lacks is NaN.
        """
        parts = [(run.name, kind, getattr(run, kind)) for run in self.records() for kind in ("train", "evaluation")]
        names = dict.fromkeys(name for _, _, part in parts for name in part.columns if part.has(name))
        columns: dict[str, Any] = {
            "run": np.repeat([name for name, _, _ in parts], [len(part) for _, _, part in parts]),
            "kind": np.repeat([kind for _, kind, _ in parts], [len(part) for _, _, part in parts]),
        }
        for name in names:
            values = [part.columns.get(name, np.full(len(part), np.nan)) for _, _, part in parts]
            columns[name] = np.concatenate(values)
        if len(parts) == 2:
            del columns["run"]
        if "step" in columns:
            columns["step"] = columns["step"].astype(np.int64)
            order = np.lexsort([columns["step"], *([columns["run"]] if "run" in columns else [])])
            columns = {name: column[order] for name, column in columns.items()}
        try:
            import pandas
        except ImportError:
            return columns
        return pandas.DataFrame(columns)

    @property
    def scores(self) -> Scores:
        """Metrics by split: of the last evaluation in pretraining, of the model that was kept in fine-tuning, where
        several seeds give their median. Empty as long as there are none.
        """
        read = self._read()
        ended = [one.by_split for one in read if isinstance(one, FinetuningRecord) and one.by_split]
        if ended:
            return {
                split: {name: statistics.median(one[split][name] for one in ended) for name in metrics}
                for split, metrics in ended[0].items()
            }
        if isinstance(read[0], FinetuningRecord) or not len(read[0].evaluation):
            return {}
        last = {name: read[0].evaluation.last(name) for name in read[0].evaluation.columns if name not in NOT_SCORES}
        return {"heldout": {name: value for name, value in last.items() if value is not None}}

    def plot(self) -> Figure:
        """Losses, accuracies and the learning rate by step: lines for training, dots for evaluations."""
        first = self._read()[0]
        names: Sequence[str] = ("mlm_loss", "mlm_acc", "sop_acc", "lr")
        if isinstance(first, FinetuningRecord):
            names = ("loss", *first.metrics[:1], "lr")
        figure = _Picture(figsize=(4 * len(names), 3), layout="constrained")
        runs = self.records()
        for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
            for run in runs:
                for part, style in ((run.train, "-"), (run.evaluation, "o-")):
                    if name in part.columns and part.has(name):
                        axes.plot(part.columns["step"], part.columns[name], style, markersize=4, linewidth=1)
            axes.set(xlabel="step", title=name)
        return figure

    def _status(self) -> str:
        runs = self.records()
        ended = sum(run.is_finished for run in runs)
        step = max((run.train.last("step") or 0 for run in runs if len(run.train)), default=0)
        state = "done" if ended == len(runs) else f"{ended} of {len(runs)} done" if len(runs) > 1 else "not done"
        return f"{state}, step {step:,.0f}"

    def __repr__(self) -> str:
        try:
            return f"Run({str(self.folder)!r}): {self._status()}"
        except UserError:
            return f"Run({str(self.folder)!r}): nothing is there"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        try:
            rows = {"run": str(self.folder), "state": self._status()}
            first = self.records()[0]
        except UserError as error:
            return f"<p>{html.escape(str(error))}</p>"
        rows["task" if "task" in first.settings else "model"] = str(first.settings.get("task") or first.model_name)
        for name in ("parameters", "device"):
            if (value := first.info(name)) is not None:
                rows[name] = f"{value:,}" if isinstance(value, int) else str(value)
        for split, metrics in self.scores.items():
            rows[split] = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"


class _Picture(Figure):
    """A figure that a notebook shows, whatever matplotlib's backend is."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()
