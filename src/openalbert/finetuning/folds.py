"""Cross-validation: what the runs on the folds come to, and the predictions for every example by a model that did not
learn from it."""

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from jaxtyping import Int64

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.data import EncodedSplit, TaskData
from openalbert.finetuning.evaluation.baselines import read_predictions
from openalbert.finetuning.evaluation.intervals import Interval, intervals, paired_interval
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_outputs
from openalbert.finetuning.evaluation.submission import format_prediction, prediction_record
from openalbert.finetuning.predict import Outputs, probabilities
from openalbert.finetuning.seeds import summarize
from openalbert.finetuning.settings import Finetune
from openalbert.formatting import aligned, counted, listed, two_decimals
from openalbert.model.config import TOKEN_HEADS
from openalbert.report.error_analysis import ErrorAnalysis
from openalbert.report.scores import baseline_rows, describe_gain, written_scores
from openalbert.run_files import CROSS_VALIDATION, FOLD_LOGITS, FOLD_PREFIX, OUT_OF_FOLD
from openalbert.tasks.data.holdout import fold_numbers
from openalbert.tasks.label_checks import find_constant_label
from openalbert.tasks.metrics import LOSS, gold_prediction
from openalbert.tasks.task import Reading, Task, TextExample

MOST_NAMED = 5


@dataclass(frozen=True)
class CrossValidated:
    """What the folds came to, for the run that learns from all examples."""

    estimate: dict[str, Any]
    """Scores, intervals and baselines of the folds, for scores.json."""
    analysis: ErrorAnalysis
    """Of the out-of-fold predictions."""
    ends_at: float
    """The fraction of the run's budget after which its weights are the model: where the folds were best."""


def check_folds(settings: Finetune, task: Task, whole: Reading) -> list[str]:
    """Refuse folds that leave nothing to learn, before any is trained; returns a remark on classes that are rare."""
    assert settings.folds is not None
    if task.kind == "similarity":
        raise UserError(
            "--folds is not for similarity: embeddings of different models cannot be compared; leave it out"
        )
    folds = fold_numbers(whole, settings.folds, settings.source.heldout_seed)
    for number in range(1, settings.folds + 1):
        rest = [example for example, fold in zip(whole.examples, folds, strict=True) if fold != number]
        if (alike := find_constant_label(task, rest)) is not None:
            raise UserError(f"{whole.origin}: without fold {number}, {alike}: give fewer folds, or more rows")
    if task.kind != "classification":
        return []
    classes = np.array([one.label for one in whole.examples if isinstance(one, TextExample)], np.int64)
    counts = np.bincount(classes, minlength=len(task.labels))
    rare = [number for number in np.argsort(counts, kind="stable") if counts[number] < settings.folds]
    if not rare:
        return []
    named = listed([f"{task.labels[number]} {counts[number]}" for number in rare], MOST_NAMED)
    return [f"WARNING: fewer examples than the {settings.folds} folds, so that some folds have none: {named}"]


def save_logits(folder: Path, outputs: Outputs) -> None:
    """Keep the logits of a run's fold."""
    atomic_io.write_bytes(folder / FOLD_LOGITS, safetensors.numpy.save(outputs.logits))


def pool_folds(
    settings: Finetune, task_data: TaskData, whole: Reading, results: Sequence[dict[str, Any]]
) -> tuple[Evaluation, Int64[np.ndarray, "examples"]]:
    """All examples with the logits of the fold that each is in, decided as there, and the folds."""
    assert settings.folds is not None
    task = task_data.task
    folds = fold_numbers(whole, settings.folds, settings.source.heldout_seed)
    data = task_data.encode(OUT_OF_FOLD, whole)
    logits: dict[str, np.ndarray] = {}
    for number in range(1, settings.folds + 1):
        of_fold = safetensors.numpy.load_file(settings.out / f"{FOLD_PREFIX}{number}" / FOLD_LOGITS)
        for kind, rows in of_fold.items():
            owner = _fold_of_rows(data, kind, folds)
            logits.setdefault(kind, np.zeros((len(owner), rows.shape[1]), np.float32))[owner == number] = rows
    outputs = Outputs(logits)
    thresholds = [result["null_threshold"] for result in results]
    if not task.may_have_no_answer:
        return evaluate_outputs(task, data, outputs), folds
    found = evaluate_outputs(
        task,
        data,
        outputs,
        null_threshold=statistics.median(thresholds),
        threshold_origin="the median; each fold is decided with its own",
    )
    predictions: list[object] = [
        one.text(thresholds[fold - 1]) for one, fold in zip(found.answers, folds.tolist(), strict=True)
    ]
    return replace(found, predictions=predictions, metrics=task.measure(whole.examples, predictions)), folds


def _fold_of_rows(data: EncodedSplit, kind: str, folds: Int64[np.ndarray, "examples"]) -> Int64[np.ndarray, "rows"]:
    """The fold of each row of logits: of an example, of a sequence, or for spans and tags of a token."""
    sequences = data.encoding.sequences
    if sequences.long_texts != "truncate":
        return folds
    of_sequence = folds[sequences.example]
    return np.repeat(of_sequence, sequences.lengths) if kind in TOKEN_HEADS else of_sequence


def summarize_folds(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean, spread and 95 % interval of every metric over the folds."""
    summary = summarize(list(results))
    del summary["best_seed"]
    summary["runs"] = [{"fold": number, **result} for number, result in enumerate(results, 1)]
    for metrics in summary["metrics"].values():
        for name, one in metrics.items():
            values = [next(iter(result["scores"].values()))[name] for result in results]
            one["interval_between_folds"] = corrected_interval(values, *bounds(name))
    return summary


def bounds(metric: str) -> tuple[float, float]:
    """The lowest and the highest value that a metric can have, in percent."""
    if metric in (LOSS, "r2"):
        return (0.0, math.inf) if metric == LOSS else (-math.inf, 100.0)
    return (-100.0 if metric in ("matthews", "pearson", "spearman") else 0.0), 100.0


def corrected_interval(
    values: Sequence[float], lowest: float = -math.inf, highest: float = math.inf
) -> tuple[float, float] | None:
    """The 95 % interval of a mean over folds; None where all are equal.

    Folds are not independent: any two share most of their training examples. Nadeau and Bengio (2003) therefore add the
    ratio of test to training examples to 1 / k in the variance of the mean; it is 1 / (k - 1) here.
    """
    from scipy.special import stdtrit

    k, spread = len(values), statistics.stdev(values)
    if not spread:
        return None
    reach = float(stdtrit(k - 1, 0.975)) * spread * math.sqrt(1 / k + 1 / (k - 1))
    mean = statistics.fmean(values)
    return max(lowest, mean - reach), min(highest, mean + reach)


def estimate(
    settings: Finetune,
    summary: dict[str, Any],
    pooled: Evaluation,
    analysis: ErrorAnalysis,
    folds: Int64[np.ndarray, "examples"],
) -> dict[str, Any]:
    """The scores of cross-validation for scores.json of the final model: the mean over the folds.

    Its interval is the wider of two: from the spread between folds, and over the examples. Few folds may be alike by
    chance, and the second does not know how much a model depends on its training examples.
    """
    split, results = summary["split"], summary["runs"]
    metrics = summary["metrics"].get(split, {})
    ends = {name: _wider(one["interval_between_folds"], analysis.intervals.get(name)) for name, one in metrics.items()}
    found = {
        "scores": {CROSS_VALIDATION: {name: one["mean"] for name, one in metrics.items()}},
        "num_examples": {CROSS_VALIDATION: len(folds)},
        "intervals": {CROSS_VALIDATION: {name: one for name, one in ends.items() if one is not None}},
        "folds": len(results),
        "baselines": None,
        "gain": None,
    }
    rows = _mean_baselines(results, split)
    if not rows:
        return found
    task, examples = pooled.task, pooled.data.examples
    metric = next(iter(pooled.metrics)) if summary["main_metric"] == LOSS else summary["main_metric"]
    predictions = [_pooled_predictions(settings, task, split, place, folds) for place in range(len(rows))]
    for row, given in zip(rows, predictions, strict=True):
        over_examples = intervals(task, examples, given, task.measure(examples, given))
        ends = row["intervals"][CROSS_VALIDATION]
        row["intervals"][CROSS_VALIDATION] = {
            name: wider
            for name in row["scores"][CROSS_VALIDATION]
            if (wider := _wider(ends.get(name), over_examples.get(name))) is not None
        }
    best = max(range(len(rows)), key=lambda place: float(rows[place]["scores"][CROSS_VALIDATION][metric]))
    gains = [result["scores"][split][metric] - baseline_rows(result, split)[best].scores[metric] for result in results]
    paired = paired_interval(task, examples, pooled.predictions, predictions[best], metric)
    found["baselines"] = {"note": results[0]["baselines"]["note"], "rows": rows}
    found["gain"] = {
        "split": CROSS_VALIDATION,
        "metric": metric,
        "over": rows[best]["name"],
        "points": statistics.fmean(gains),
        "interval": _wider(corrected_interval(gains), paired),
        "num_examples": len(folds),
    }
    return found


def _wider(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _mean_baselines(results: Sequence[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """The baselines' means over the folds; none where a fold has not measured them."""
    rows = [baseline_rows(result, split) for result in results]
    names = [row.name for row in rows[0]]
    if any([row.name for row in of_fold] != names for of_fold in rows):
        return []
    found = []
    for place, name in enumerate(names):
        values = {metric: [of_fold[place].scores[metric] for of_fold in rows] for metric in rows[0][place].scores}
        ends = {metric: corrected_interval(each, *bounds(metric)) for metric, each in values.items()}
        found.append(
            {
                "name": name,
                "scores": {CROSS_VALIDATION: {metric: statistics.fmean(each) for metric, each in values.items()}},
                "intervals": {CROSS_VALIDATION: {metric: one for metric, one in ends.items() if one is not None}},
            }
        )
    return found


def _pooled_predictions(
    settings: Finetune, task: Task, split: str, row: int, folds: Int64[np.ndarray, "examples"]
) -> list[object]:
    """The out-of-fold predictions of a baseline."""
    given: list[object] = [None] * len(folds)
    for number in range(1, (settings.folds or 0) + 1):
        of_fold = read_predictions(settings.out / f"{FOLD_PREFIX}{number}", task, row, split)
        for place, prediction in zip(np.flatnonzero(folds == number).tolist(), of_fold, strict=True):
            given[place] = prediction
    return given


def folds_table(summary: dict[str, Any], final: dict[str, Any]) -> str:
    """A line for each fold, then mean, spread and the baselines; and what it all comes to."""
    split = summary["split"]
    metrics = list(summary["runs"][0]["scores"][split])
    rows = [["run", "examples", "step", *metrics, ""]]
    for result in summary["runs"]:
        values = [f"{result['scores'][split][metric]:.2f}" for metric in metrics]
        number, size = f"fold {result['fold']}", f"{result['num_examples'][split]:,}"
        rows.append([number, size, str(result["step"]), *values, "collapsed" if result["collapsed"] else ""])
    for line in ("mean", "spread"):
        of_folds = summary["metrics"].get(split, {})
        rows.append([line, "", "", *(two_decimals(of_folds.get(metric, {}).get(line)) for metric in metrics), ""])
    for row in baseline_rows(final, CROSS_VALIDATION):
        rows.append([row.name, "", "", *(two_decimals(row.scores.get(metric)) for metric in metrics), "baseline"])
    lines = [aligned(rows, (0, -1)), folds_sentence(final)]
    return "\n".join([*lines, *([describe_gain(final["gain"])] if final["gain"] else [])])


def folds_sentence(final: dict[str, Any]) -> str:
    """The estimate in a sentence."""
    scores, ends = final["scores"][CROSS_VALIDATION], final["intervals"][CROSS_VALIDATION]
    if not scores:
        return "All folds collapsed: there is no result"
    shown = written_scores(scores, final["main_metric"], ends)
    examples = counted(final["num_examples"][CROSS_VALIDATION], "example")
    return (
        f"Cross-validation over {final['folds']} folds of {examples}: {shown} (the mean; in brackets: 95 % intervals)"
    )


def write_out_of_fold(
    folder: Path, evaluation: Evaluation, whole: Reading, folds: Int64[np.ndarray, "examples"]
) -> tuple[Path, Path]:
    """Write the out-of-fold predictions as JSON lines and as CSV: a line for each row of the training file, in order.

    A row that gave no example has no prediction. Where rows have no numbers, there is a line for each example.
    """
    task, likely = (
        evaluation.task,
        probabilities(evaluation.task, evaluation.data.encoding, evaluation.outputs, evaluation.answers),
    )
    records: list[dict[str, object]] = []
    for number, (example, prediction) in enumerate(zip(whole.examples, evaluation.predictions, strict=True)):
        given = prediction_record(task, example, prediction, likely[number] if len(likely) else None)
        place = {} if example.row is None else {"row": example.row}
        records.append(
            {**place, "fold": int(folds[number]), "label": format_prediction(task, gold_prediction(example)), **given}
        )
    if whole.num_rows is not None and all("row" in record for record in records):
        by_row = {record["row"]: record for record in records}
        records = [by_row.get(row, {"row": row, "prediction": None}) for row in range(1, whole.num_rows + 1)]
    lines, table = folder / f"{OUT_OF_FOLD}.jsonl", folder / f"{OUT_OF_FOLD}.csv"
    atomic_io.write_text(lines, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    columns = [name for name in ("row", "id", "fold", "label", "prediction") if any(name in one for one in records)]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*columns, *(["probability"] if len(likely) else [])])
    for record in records:
        cells = [_cell(record.get(name)) for name in columns]
        writer.writerow([*cells, *([_cell(_probability(record))] if len(likely) else [])])
    atomic_io.write_text(table, text.getvalue())
    return lines, table


def _probability(record: dict[str, object]) -> object:
    """The probability of what was predicted; None where it is of several labels, or of no answer at all."""
    by_name, prediction = record.get("probabilities"), record.get("prediction")
    if isinstance(by_name, dict):
        return by_name.get(prediction) if isinstance(prediction, str) else None
    return record.get("answer_probability" if prediction else "no_answer_probability")


def _cell(value: object) -> object:
    return ";".join(map(str, value)) if isinstance(value, list) else value
