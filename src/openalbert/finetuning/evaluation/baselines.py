"""The baselines of a fine-tuning run, measured before training, and what the model buys over them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.evaluation.intervals import intervals, paired_interval
from openalbert.finetuning.evaluation.split import Evaluation
from openalbert.run_files import BASELINES
from openalbert.tasks.baselines import fit_baselines, has_baselines
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.task import Task


def measure_baselines(task_data: TaskData, folder: Path | None) -> dict[str, Any] | None:
    """The baselines' predictions, metrics and intervals on each split; None for a kind of task that has none.

    They are kept in the folder and read from there as long as the data are the same.
    """
    task = task_data.task
    if not has_baselines(task):
        return None
    basis = {**task_data.fingerprints, "balanced": task_data.class_weights is not None}
    path = None if folder is None else folder / BASELINES
    if path is not None and path.is_file():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if known["basis"] == basis:
            return known
    scored = {split: data.examples for split, data in task_data.scored.items()}
    baselines, note = fit_baselines(
        task, task_data.train.examples, scored, balanced=task_data.class_weights is not None
    )
    rows = []
    for baseline in baselines:
        metrics = {split: task.measure(scored[split], given) for split, given in baseline.predictions.items()}
        ends = {
            split: intervals(task, scored[split], baseline.predictions[split], measured)
            for split, measured in metrics.items()
        }
        rows.append({"name": baseline.name, "scores": metrics, "intervals": ends, "predictions": baseline.predictions})
    found = {"basis": basis, "note": note, "rows": rows}
    if path is not None:
        atomic_io.write_text(path, json.dumps(found) + "\n")
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # as it is read back


def without_predictions(baselines: dict[str, Any]) -> dict[str, Any]:
    """The baselines for scores.json."""
    rows = [{key: value for key, value in row.items() if key != "predictions"} for row in baselines["rows"]]
    return {"note": baselines["note"], "rows": rows}


def gain_over(baselines: dict[str, Any], evaluation: Evaluation) -> dict[str, Any]:
    """How many points the model is above the best baseline on a split, with a 95 % interval on few examples.

    The interval is of the difference on the same examples: two models may differ clearly where the intervals of their
    scores overlap.
    """
    task, split = evaluation.task, evaluation.split
    metric = task.main_metric if task.main_metric != LOSS else next(iter(evaluation.metrics))
    best = max(baselines["rows"], key=lambda row: row["scores"][split][metric])
    given = _predictions(task, best["predictions"][split])
    return {
        "split": split,
        "metric": metric,
        "over": best["name"],
        "points": evaluation.metrics[metric] - best["scores"][split][metric],
        "interval": paired_interval(task, evaluation.data.examples, evaluation.predictions, given, metric),
        "num_examples": len(evaluation.data.examples),
    }


def read_predictions(folder: Path, task: Task, row: int, split: str) -> list[object]:
    """What one of the baselines in a folder predicts for a split."""
    known = json.loads((folder / BASELINES).read_text(encoding="utf-8"))
    return _predictions(task, known["rows"][row]["predictions"][split])


def _predictions(task: Task, written: Sequence[Any]) -> list[object]:
    """Predictions as they were before JSON made lists of tuples."""
    return [tuple(one) for one in written] if task.kind == "multi_label" else list(written)
