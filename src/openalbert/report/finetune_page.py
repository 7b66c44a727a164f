"""The page of fine-tuning runs: scores compared with the paper's, curves, error analysis and all metadata."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from openalbert.formatting import NOTHING, count, counted, duration, moment, number, percent_of, present, two_decimals
from openalbert.model.presets import PAPER_TOKENS
from openalbert.report import charts
from openalbert.report.error_analysis import error_section, read_error_analyses
from openalbert.report.html import Markup, document, element, joined, table
from openalbert.report.pretrain_page import about, curves_section, differences, notes, swatch, tile, unfinished
from openalbert.report.run_reader import RunRecord, fold_folders, read_finetuning_runs, read_values
from openalbert.report.scores import ScoreRow, baseline_rows, describe_gain, is_worth_it, metrics_of
from openalbert.report.summary import (
    hardware,
    initialized_from,
    last_step,
    pretraining_of,
    tokens_seen,
    training_seconds,
)
from openalbert.run_files import FOLD_PREFIX, FOLDS, SCORES, SEED_PREFIX, SEEDS
from openalbert.tasks.metrics import rank_of
from openalbert.tasks.paper_scores import compare_dev_sets, reported


def finetuning_page(folders: Sequence[Path], now: datetime) -> str:
    """The page of some fine-tuning runs."""
    runs = read_finetuning_runs(folders)
    figures, values = charts.draw(runs)
    is_one_folder, is_one_run = len(folders) == 1, len(runs) == 1
    name = folders[0].resolve().name
    title = f"{runs[0].task} · {name}" if is_one_folder else f"{len(runs)} fine-tuning runs compared"
    best = _best(runs)
    analyses = read_error_analyses(best.folder) if best is not None and is_one_folder else ()
    if is_one_folder and fold_folders(folders[0]):
        analyses = read_error_analyses(folders[0])
    sections = [
        *([_baselines_section(runs, folders[0])] if is_one_folder else []),
        *([_paper_section(runs, folders[0])] if is_one_folder else []),
        *([curves_section(runs, figures)] if any(map(_has_steps, runs)) else []),
        *map(error_section, analyses),
        *([] if is_one_folder else [differences(runs)]),
        *(about(run, is_one_run, _data(run), _remarks(run)) for run in _first_of_each(runs)),
    ]
    headline = _headline(runs[0], now) if is_one_run else _several(runs, folders, now)
    return document(title, headline, sections, values, now)


def _first_of_each(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """One run of each folder: runs that differ by their seed alone have the same data and settings."""
    first: dict[str, RunRecord] = {}
    for run in runs:
        is_one_of_several = run.folder.name.startswith((SEED_PREFIX, FOLD_PREFIX))
        folder = run.folder.parent if is_one_of_several else run.folder
        first.setdefault(str(folder), run)
    return list(first.values())


def _has_steps(run: RunRecord) -> bool:
    """Whether it was trained step by step: a head alone is fitted at once, and there is no curve to draw."""
    return run.settings.get("trainable") != "head"


def _best(runs: Sequence[RunRecord]) -> RunRecord | None:
    """The run with the best main metric on the split that decides; of several, none that collapsed."""
    done = [run for run in runs if run.by_split and not (len(runs) > 1 and run.scores.get("collapsed"))]
    return max(done, key=lambda run: rank_of(run.scores)) if done else None


def _headline(run: RunRecord, now: datetime) -> list[Markup]:
    parameters = present(run.info("parameters"))
    what = f"{parameters:,.0f} parameters, " if parameters is not None else ""
    examples = run.info("data", "train_examples")
    state = "finished" if run.is_finished else "unfinished"
    steps = f"{counted(last_step(run), 'step')}, " if _has_steps(run) else ""
    sentence = (
        f" {what}fine-tuned from {initialized_from(run) or 'weights drawn at random'} on "
        f"{count(examples)} example{'' if examples == 1 else 's'}: {steps}"
        f"{count(tokens_seen(run))} tokens in {duration(training_seconds(run))} of training, on {hardware(run)}. "
        f"Before that it was {pretraining_of(run)}."
    )
    if run.info("started"):
        sentence += f" Started {moment(run.info('started'))}."
    scores = []
    if run.by_split:
        main_metric, intervals = str(run.scores.get("main_metric")), run.scores.get("intervals", {})
        scores = [tiles(run.task, run.shape, run.by_split, main_metric, intervals)]
        if _has_steps(run) and (step := present(run.scores.get("step"))) is not None:
            scores.append(element("p", f"The model folder has the weights of step {step:,.0f}.", class_="remark"))
        for split, early in (run.scores.get("exits") or {}).items():
            sentence_on_exits = (
                f"With early exit, {main_metric.replace('_', ' ')} on {split} is {early['score']:.2f} at "
                f"{early['mean_depth']:.1f} layers on average; at full depth it is {early['full_score']:.2f}."
            )
            scores.append(element("p", sentence_on_exits, class_="remark"))
    return [element("p", element("span", state, class_="state"), sentence), *notes(_warnings([run], now)), *scores]


def _warnings(runs: Sequence[RunRecord], now: datetime) -> list[str]:
    sentences = []
    for run in runs:
        of_run = unfinished(run, now)
        if run.scores.get("collapsed"):
            of_run.append(f"This run collapsed, and its scores are no result: {run.scores['collapsed']}.")
        elif attempts := run.scores.get("attempts"):
            times = "once" if len(attempts) == 1 else f"{len(attempts)} times"
            reason = attempts[-1]["reason"]
            of_run.append(f"It collapsed {times} and was run again at a lower learning rate: {reason}.")
        if (gain := run.scores.get("gain")) and not is_worth_it(gain) and len(runs) == 1:
            of_run.append(f"{describe_gain(gain)}.")
        before = f"{run.name}: " if len(runs) > 1 else ""
        sentences += [f"{before}{sentence}" for sentence in [*of_run, *run.remarks]]
    return sentences


def tiles(
    task: str,
    shape: str,
    by_split: Mapping[str, Mapping[str, float]],
    main_metric: str,
    intervals: Mapping[str, Mapping[str, Sequence[float]]],
) -> Markup:
    """The metrics of each split, the main one first, with their intervals and the paper's."""
    paper = reported(task, shape)[:1]
    shown = []
    for split, scores in by_split.items():
        for metric in metrics_of([scores], main_metric):
            ends = intervals.get(split, {}).get(metric)
            levels = [f"{row.model}: {row.scores[metric]:.1f}" for row in paper if metric in row.scores]
            levels += [f"95 % interval: {ends[0]:.1f} to {ends[1]:.1f}"] if ends is not None else []
            shown.append(tile(f"{metric.replace('_', ' ')} on {split}", f"{scores[metric]:.2f}", levels))
    return element("dl", *shown, class_="tiles")


def _baselines_section(runs: Sequence[RunRecord], folder: Path) -> Markup:
    """The scores above those of the baselines, and what the model buys; nothing where there are no baselines."""
    finished = [run for run in runs if run.by_split]
    outcome = finished[0].scores if finished else {}
    if not outcome.get("baselines"):
        return Markup("")
    model, by_split, intervals = "this model", finished[0].by_split, outcome.get("intervals", {})
    of_folds = read_values(folder / SCORES) if fold_folders(folder) else {}
    if of_folds:
        model, outcome = f"mean of {counted(len(runs), 'fold')}", of_folds
        by_split, intervals = of_folds["scores"], of_folds["intervals"]
    elif len(runs) > 1:
        model, by_split, intervals = *_medians(runs, folder), {}
    metrics, body = metrics_of(by_split.values(), str(outcome.get("main_metric"))), []
    for split, scores in by_split.items():
        own = ScoreRow(model, scores, intervals.get(split, {}))
        body += [[f"{row.name}, {split}", *row.cells(metrics)] for row in (own, *baseline_rows(outcome, split))]
    is_of_one = len(runs) == 1 or bool(of_folds)
    sentences = [f"{describe_gain(outcome['gain'])}."] if is_of_one and outcome.get("gain") else []
    if note := outcome["baselines"].get("note"):
        sentences.append(f"Of the baselines, {note}.")
    return element(
        "section",
        element("h2", "Compared with baselines"),
        element("div", table(["", *(metric.replace("_", " ") for metric in metrics)], body), class_="wrapping"),
        *(element("p", sentence, class_="remark") for sentence in sentences),
    )


def _paper_section(runs: Sequence[RunRecord], folder: Path) -> Markup:
    first = runs[0]
    model, scores = "this model", first.by_split
    if len(runs) > 1:
        model, scores = _medians(runs, folder)
    sizes = {split: present(first.info("data", "scored", split)) for split in scores}
    numbers = {split: None if size is None else int(size) for split, size in sizes.items()}
    return compared_with_the_paper(first.task, model, scores, numbers, first.shape, pretraining_of(first))


def _medians(runs: Sequence[RunRecord], folder: Path) -> tuple[str, Mapping[str, Mapping[str, float]]]:
    """What several runs come to: the median of seeds, the mean of folds; and the metrics of each split."""
    which, what = ("mean", "fold") if fold_folders(folder) else ("median", "run")
    summary = read_values(folder / (FOLDS if what == "fold" else SEEDS)).get("metrics", {})
    scores = {split: {name: one[which] for name, one in metrics.items()} for split, metrics in summary.items()}
    return f"{which} of {counted(len(runs), what)}", scores


def compared_with_the_paper(
    task: str,
    model: str,
    by_split: Mapping[str, Mapping[str, float]],
    num_examples: Mapping[str, int | None],
    shape: str,
    pretraining: str = "",
) -> Markup:
    """The scores above the paper's; nothing for a task that the paper does not have."""
    paper = reported(task, shape)
    if not paper or not by_split:
        return Markup("")
    metrics = list(dict.fromkeys(name for row in paper for name in row.scores))
    rows = [(f"{model}, {split}", count(num_examples[split]), scores) for split, scores in by_split.items()]
    body = [
        [name, number, *(f"{scores[metric]:.1f}" if metric in scores else NOTHING for metric in metrics)]
        for name, number, scores in [*rows, *((row.model, NOTHING, row.scores) for row in paper)]
    ]
    this = f"This one was {pretraining}. " if pretraining else ""
    note = f"The paper's models were pretrained on {count(PAPER_TOKENS)} tokens or more. {this}"
    note += compare_dev_sets(task, num_examples)
    head = ["", "examples", *(metric.replace("_", " ") for metric in metrics)]
    return element(
        "section",
        element("h2", "Compared with the paper"),
        element("div", table(head, body), class_="wrapping"),
        element("p", note, class_="remark"),
    )


def _several(runs: Sequence[RunRecord], folders: Sequence[Path], now: datetime) -> list[Markup]:
    """A row for each run, and for several seeds their median, mean and spread."""
    finals: list[Mapping[str, float]] = [next(iter(run.by_split.values()), {}) for run in runs]
    metrics = list(dict.fromkeys(name for final in finals for name in final))
    rows = []
    for index, (run, final) in enumerate(zip(runs, finals, strict=True)):
        note = "collapsed" if run.scores.get("collapsed") else "run again" if run.scores.get("attempts") else ""
        rows.append(
            [
                joined(swatch(index), run.name),
                run.task,
                *(f"{final[metric]:.2f}" if metric in final else NOTHING for metric in metrics),
                number(run.scores.get("learning_rate"), 2),
                f"{last_step(run):,}",
                duration(training_seconds(run)),
                note,
            ]
        )
    sentences = []
    if len(folders) == 1 and fold_folders(folders[0]):
        rows += _fold_rows(read_values(folders[0] / FOLDS), read_values(folders[0] / SCORES), metrics)
        sentences.append(
            "Each run was scored on its own fold of the training examples and learned from the others. The model "
            "folder has a model that learned from all of them; the error analysis is of the predictions for each "
            "fold by the model that did not learn from it."
        )
    elif len(folders) == 1:
        rows += _seed_rows(runs, read_values(folders[0] / SEEDS), metrics)
        best = _best(runs)
        if best is not None:
            sentences.append(f"The best is {best.name}: the model folder has its weights, the error analysis is of it.")
        elif all(run.by_split for run in runs):
            sentences.append("All runs collapsed: there is no result.")
    head = ["run", "task", *(metric.replace("_", " ") for metric in metrics), "lr", "steps", "training time", ""]
    paragraphs = [element("p", sentence) for sentence in sentences]
    return [table(head, rows, numbers_from=2), *paragraphs, *notes(_warnings(runs, now))]


def _fold_rows(summary: Mapping[str, Any], outcome: Mapping[str, Any], metrics: Sequence[str]) -> list[list[str]]:
    """Mean, 95 % interval and spread over the folds; nothing while they are trained."""
    of_split: Mapping[str, Any] = next(iter(summary.get("metrics", {}).values()), {})
    if not of_split:
        return []
    intervals: Mapping[str, Any] = next(iter(outcome.get("intervals", {}).values()), {})
    mean, spread = ([of_split.get(metric, {}).get(line) for metric in metrics] for line in ("mean", "spread"))
    ends = [intervals.get(metric) for metric in metrics]
    lines = {
        "mean": [*map(two_decimals, mean)],
        "95 % interval": [NOTHING if one is None else f"{one[0]:.2f} to {one[1]:.2f}" for one in ends],
        "spread": [*map(two_decimals, spread)],
    }
    return [[element("b", line), "", *cells, "", "", "", ""] for line, cells in lines.items()]


def _seed_rows(runs: Sequence[RunRecord], summary: Mapping[str, Any], metrics: Sequence[str]) -> list[list[str]]:
    collapsed = sum(bool(run.scores.get("collapsed")) for run in runs)
    of_all = f"of all {len(runs)} runs, {collapsed} of which collapsed" if collapsed else ""
    lines = [("metrics", line, of_all) for line in ("median", "mean", "spread")]
    if 0 < collapsed < len(runs):
        lines.append(("metrics_without_collapsed", "median", "without the collapsed"))
    rows: list[list[str]] = []
    for key, line, note in lines:
        of_split: Mapping[str, Any] = next(iter(summary.get(key, {}).values()), {})
        values = [of_split.get(metric, {}).get(line) for metric in metrics]
        if of_split:
            rows.append([element("b", line), "", *map(two_decimals, values), "", "", "", note])
    return rows


def _data(run: RunRecord) -> Markup:
    examples = present(run.info("data", "train_examples"))
    truncated = present(run.info("data", "train_truncated"))
    of_all = f" ({percent_of(int(truncated), int(examples))})" if truncated is not None and examples else ""
    scored = run.info("data", "scored")
    rows = [
        ["initialized from", f"{initialized_from(run) or 'weights drawn at random'}, {pretraining_of(run)}"],
        ["training examples", count(examples)],
        ["sequences", count(run.info("data", "train_sequences"))],
        ["tokens", count(run.info("data", "train_tokens"))],
        ["too long and truncated", count(truncated) + of_all],
        *([["long and read in windows", count(windows)]] if (windows := run.info("data", "train_in_windows")) else []),
        *([f"scored on: {split}", count(size)] for split, size in (scored.items() if isinstance(scored, dict) else ())),
        ["batch size", count(run.info("batch_size"))],
    ]
    return table(["", ""], rows)


def _remarks(run: RunRecord) -> list[Markup]:
    remarks = run.info("data", "remarks")
    if not isinstance(remarks, list) or not remarks:
        return []
    lines = [element("li", str(remark)) for remark in remarks]
    return [element("details", element("summary", "How the data were read"), element("ul", *lines))]
