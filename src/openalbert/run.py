"""`Run`: what a run's folder holds, for Python and for notebooks."""

import html
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.report.charts import plot_run
from openalbert.report.run_reader import (
    RunRecord,
    fold_folders,
    is_finetuning,
    read_finetuning_runs,
    read_run,
    read_values,
)
from openalbert.run_files import SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores: TypeAlias = dict[str, dict[str, float]]
"""Metrics by split."""
NOT_SCORES = ("step", "tokens", "examples", "seconds")


class Run:
    """A run of `pretrain` or `finetune` as its folder shows it now.

    It may still be going. A run can be given wherever a model is expected.

        >>> import openalbert
        >>> run = openalbert.open_run("runs/mine")
        >>> run.model().num_parameters() == openalbert.load(run).module.num_parameters()
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

    def records(self) -> list[RunRecord]:
        """All that the folder holds: one record, or one for each seed or fold."""
        return read_finetuning_runs([self.folder]) if is_finetuning(self.folder) else [read_run(self.folder)]

    @property
    def metrics(self) -> Any:
        """The training and evaluation records by step: a pandas DataFrame, or without pandas a dict of columns.

        `kind` is `train` or `evaluation`; several seeds have a column `run`. A value that a record lacks is NaN.
        """
        runs = self.records()
        tables = [run.metrics_table() for run in runs]
        columns = tables[0]
        if len(runs) > 1:
            columns = {"run": [run.name for run, table in zip(runs, tables, strict=True) for _ in table["step"]]}
            for name in dict.fromkeys(name for table in tables for name in table):
                columns[name] = [
                    value for table in tables for value in table.get(name, [float("nan")] * len(table["step"]))
                ]
        try:
            import pandas
        except ImportError:
            return columns
        return pandas.DataFrame(columns)

    @property
    def scores(self) -> Scores:
        """Metrics by split: of the last evaluation in pretraining, of the model that was kept in fine-tuning, where
        several seeds give their median and folds their mean. Empty as long as there are none.
        """
        if fold_folders(self.folder):
            return dict(read_values(self.folder / SCORES).get("scores", {}))
        runs = self.records()
        ended = [run.by_split for run in runs if run.by_split]
        if ended:
            return {
                split: {name: statistics.median(one[split][name] for one in ended) for name in metrics}
                for split, metrics in ended[0].items()
            }
        evaluation = runs[0].evaluation
        if runs[0].is_finetuning or not len(evaluation):
            return {}
        last = {name: evaluation.last(name) for name in evaluation.columns if name not in NOT_SCORES}
        return {"heldout": {name: value for name, value in last.items() if value is not None}}

    def plot(self) -> "Figure":
        """A matplotlib figure of losses, accuracies or task metrics, learning rate and throughput over the steps.

        Of several seeds it shows the first.
        """
        return plot_run(self.records()[0])

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
        rows |= {"task": first.task} if first.is_finetuning else {"model": first.model_name}
        for name in ("parameters", "device"):
            if (value := first.info(name)) is not None:
                rows[name] = f"{value:,}" if isinstance(value, int) else str(value)
        for split, metrics in self.scores.items():
            rows[split] = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"
