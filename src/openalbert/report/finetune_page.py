"""The page of fine-tuning runs: scores beside the paper's, curves, a closer look at what went wrong, and all facts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from openalbert import formatting
from openalbert.formatting import NOTHING, count, counted, duration, moment, number, percent, percent_of
from openalbert.interop.run_files import SEED_PREFIX, SEEDS
from openalbert.model.presets import PAPER_TOKENS
from openalbert.report import charts
from openalbert.report.charts import Line, Picture
from openalbert.report.error_page import error_section
from openalbert.report.finetuning_reader import (
    FinetuningRecord,
    initialized_from,
    pretrained,
    read_finetuning_runs,
    read_values,
)
from openalbert.report.html import Markup, element, joined, table
from openalbert.report.pretrain_page import document, pictures_section
from openalbert.report.run_reader import RunRecord
from openalbert.report.sections import about, differences, swatch
from openalbert.report.summary import hardware, last_step, tokens_seen, training_seconds
from openalbert.tasks.paper_scores import on_what, reported
from openalbert.tasks.selection import rank_of


def finetuning_page(folders: Sequence[Path], now: datetime) -> str:
    """The whole page."""
    records = read_finetuning_runs(folders)
    runs = [record.run for record in records]
    pictures, data = charts.draw(runs, _pictures_for(records))
    name = folders[0].resolve().name
    alone = len(records) == 1
    title = f"{len(runs)} fine-tuning runs compared" if len(folders) > 1 else f"{records[0].task} · {name}"
    best = _best(records)
    looks = best.analyses if best is not None and len(folders) == 1 else ()
    sections = [
        *([_beside_the_paper(records, folders)] if len(folders) == 1 else []),
        pictures_section(runs, pictures),
        *(error_section(one) for one in looks),
        *([differences(runs)] if len(folders) > 1 else []),
        *(about(one.run, alone, _data(one.run), _remarks(one.run)) for one in _first_of_each(records)),
    ]
    headline = _headline(records[0], now) if alone else _several(records, folders, now)
    return document(title, headline, sections, [run.name for run in runs], data, now)


def _first_of_each(records: Sequence[FinetuningRecord]) -> list[FinetuningRecord]:
    """Runs that differ by their seed alone have the same data and settings: one of them says it."""
    seen: dict[str, FinetuningRecord] = {}
    for record in records:
        folder = record.run.folder
        seen.setdefault(str(folder.parent if folder.name.startswith(SEED_PREFIX) else folder), record)
    return list(seen.values())


def _best(records: Sequence[FinetuningRecord]) -> FinetuningRecord | None:
    """The run with the best main figure on the split that decides; of several, none that collapsed."""
    done = [
        record for record in records if record.by_split and not (len(records) > 1 and record.scores.get("collapsed"))
    ]
    return max(done, key=lambda record: rank_of(record.scores)) if done else None


def _pictures_for(records: Sequence[FinetuningRecord]) -> list[Picture]:
    known = {picture.name: picture for picture in charts.PICTURES}
    metrics = list(dict.fromkeys(name for record in records for name in record.metrics))
    of_heads = [
        name
        for name in dict.fromkeys(name for record in records for name in record.run.train.columns)
        if name.endswith("_acc") and name not in known and name not in metrics
    ]
    first = Picture("loss", "Training loss", "", formatting.number, lines=_baseline)
    scored = [Picture(name, _readable(name), "% on the dev set", formatting.number) for name in metrics]
    right = [
        Picture(name, f"Right in training, {name.removesuffix('_acc').replace('_', ' ')}", "%", percent, "percent")
        for name in of_heads
        if any(record.run.train.has(name) and np.nanmax(record.run.train.columns[name]) > 0 for record in records)
    ]
    rest = [known[name] for name in ("lr", "grad_norm", "tokens_per_second", "mfu")]
    return [*scored[:1], first, *scored[1:], *right, *rest]


def _baseline(run: RunRecord) -> list[Line]:
    level = formatting.present(run.info("baseline_loss"))
    return [] if level is None else [Line("without the text", level)]


def _readable(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _headline(record: FinetuningRecord, now: datetime) -> list[Markup]:
    run = record.run
    parameters = formatting.present(run.info("parameters"))
    what = f"{parameters:,.0f} parameters, " if parameters is not None else ""
    examples = run.info("data", "train_examples")
    state = "finished" if run.is_finished else "no end recorded"
    sentence = (
        f" {what}tuned from {initialized_from(run) or 'weights drawn at random'} on "
        f"{count(examples)} example{'' if examples == 1 else 's'}: {counted(last_step(run), 'step')}, "
        f"{count(tokens_seen(run))} "
        f"tokens in {duration(training_seconds(run))} of training, on {hardware(run)}. "
        f"Before that it was {pretrained(run)}."
    )
    if run.info("started"):
        sentence += f" Started {moment(run.info('started'))}."
    return [element("p", element("span", state, class_="state"), sentence), *_notes([record], now), *_tiles(record)]


def _notes(records: Sequence[FinetuningRecord], now: datetime) -> list[Markup]:
    said = []
    for record in records:
        run, before = record.run, f"{record.run.name}: " if len(records) > 1 else ""
        if not run.is_finished:
            ago = (
                f", written {duration(max(0.0, now.timestamp() - run.written))} before this page" if run.written else ""
            )
            said.append(
                f"{before}The run is still going, or was stopped: the last record is of step {last_step(run):,}{ago}."
            )
        if record.scores.get("collapsed"):
            said.append(f"{before}This run collapsed, and its scores are no result: {record.scores['collapsed']}.")
        elif attempts := record.scores.get("attempts"):
            times = "once" if len(attempts) == 1 else f"{len(attempts)} times"
            said.append(f"{before}It collapsed {times} and was tried again at a lower rate: {attempts[-1]['reason']}.")
        said += [f"{before}{remark}" for remark in run.remarks]
    return [element("ul", *(element("li", note) for note in said), class_="notes")] if said else []


def _tiles(record: FinetuningRecord) -> list[Markup]:
    if not record.by_split:
        return []
    step = formatting.present(record.scores.get("step"))
    where = f"The weights of step {step:,.0f}, which the model folder has." if step is not None else ""
    main_metric, intervals = str(record.scores.get("main_metric")), record.scores.get("intervals", {})
    shown = tiles(record.task, record.shape, record.by_split, main_metric, intervals)
    return [shown, element("p", where, class_="remark")]


def tiles(
    task: str,
    shape: str,
    by_split: Mapping[str, Mapping[str, float]],
    main_metric: str,
    intervals: Mapping[str, Mapping[str, Sequence[float]]],
) -> Markup:
    """The figures of each split, the main one first, with their intervals and the paper's beside them."""
    rows = reported(task, shape)[:1]
    shown = []
    for split, scores in by_split.items():
        for metric in sorted(scores, key=lambda name: name != main_metric):
            ends = intervals.get(split, {}).get(metric)
            beside = [f"{row.model}: {row.scores[metric]:.1f}" for row in rows if metric in row.scores]
            beside += [f"95 % interval: {ends[0]:.1f} to {ends[1]:.1f}"] if ends is not None else []
            shown.append(
                element(
                    "div",
                    element("dt", f"{metric.replace('_', ' ')} on {split}"),
                    element("dd", f"{scores[metric]:.2f}", class_="big"),
                    *(element("dd", text, class_="beside") for text in beside),
                    class_="tile",
                )
            )
    return element("dl", *shown, class_="tiles")


def _beside_the_paper(records: Sequence[FinetuningRecord], folders: Sequence[Path]) -> Markup:
    first = records[0]
    who, found = "this model", first.by_split
    if len(records) > 1:
        who = f"median of {counted(len(records), 'run')}"
        summary = read_values(folders[0] / SEEDS).get("metrics", {})
        found = {split: {name: one["median"] for name, one in metrics.items()} for split, metrics in summary.items()}
    sizes = {split: formatting.present(first.run.info("data", "scored", split)) for split in found}
    numbers = {split: None if size is None else int(size) for split, size in sizes.items()}
    return beside_the_paper(first.task, who, found, numbers, first.shape, pretrained(first.run))


def beside_the_paper(
    task: str,
    who: str,
    by_split: Mapping[str, Mapping[str, float]],
    num_examples: Mapping[str, int | None],
    shape: str,
    pretraining: str = "",
) -> Markup:
    """The scores over the paper's own; nothing for a task that it does not have."""
    paper = reported(task, shape)
    if not paper or not by_split:
        return Markup("")
    metrics = list(dict.fromkeys(name for row in paper for name in row.scores))
    rows = [(f"{who}, {split}", count(num_examples[split]), scores) for split, scores in by_split.items()]
    body = [
        [name, number, *(f"{scores[metric]:.1f}" if metric in scores else NOTHING for metric in metrics)]
        for name, number, scores in [*rows, *((row.model, NOTHING, row.scores) for row in paper)]
    ]
    read = f"This one was {pretraining}. " if pretraining else ""
    note = f"The paper's models read {count(PAPER_TOKENS)} tokens in pretraining or more. {read}"
    note += on_what(task, num_examples)
    head = ["", "examples", *(metric.replace("_", " ") for metric in metrics)]
    return element(
        "section",
        element("h2", "Beside the paper"),
        element("div", table(head, body), class_="wrapping"),
        element("p", note, class_="remark"),
    )


def _several(records: Sequence[FinetuningRecord], folders: Sequence[Path], now: datetime) -> list[Markup]:
    """A row for each run, and for several seeds what they come to."""
    metrics = list(dict.fromkeys(name for record in records for name in _final(record)))
    rows = []
    for index, record in enumerate(records):
        final = _final(record)
        attempts = record.scores.get("attempts") or []
        note = "collapsed" if record.scores.get("collapsed") else "tried again" if attempts else ""
        rows.append(
            [
                joined(swatch(index), record.run.name),
                record.task,
                *(f"{final[metric]:.2f}" if metric in final else NOTHING for metric in metrics),
                number(record.scores.get("learning_rate"), 2),
                f"{last_step(record.run):,}",
                duration(training_seconds(record.run)),
                note,
            ]
        )
    if len(folders) == 1:
        summary = read_values(folders[0] / SEEDS)
        collapsed = sum(bool(record.scores.get("collapsed")) for record in records)
        of_all = f"of all {len(records)} runs, {collapsed} of which collapsed" if collapsed else ""
        lines = [("metrics", line, of_all) for line in ("median", "mean", "spread")]
        if 0 < collapsed < len(records):
            lines.append(("metrics_without_collapsed", "median", "without the collapsed"))
        for which, line, note in lines:
            of_split: Mapping[str, Any] = next(iter(summary.get(which, {}).values()), {})
            told = [of_split.get(metric, {}).get(line) for metric in metrics]
            cells = [NOTHING if figure is None else f"{figure:.2f}" for figure in told]
            if of_split:
                rows.append([element("b", line), "", *cells, "", "", "", note])
    head = ["run", "task", *(metric.replace("_", " ") for metric in metrics), "rate", "steps", "training time", ""]
    best = _best(records)
    said = []
    if best is not None and len(folders) == 1:
        said = [
            element("p", f"The best is {best.run.name}: the model folder has its weights, the closer look is at it.")
        ]
    if len(folders) == 1 and best is None and all(record.by_split for record in records):
        said = [element("p", "All runs collapsed: there is no result.")]
    return [table(head, rows, numbers_from=2), *said, *_notes(records, now)]


def _final(record: FinetuningRecord) -> Mapping[str, float]:
    """The figures of the split that decides."""
    return next(iter(record.by_split.values()), {})


def _data(run: RunRecord) -> Markup:
    examples = formatting.present(run.info("data", "train_examples"))
    truncated = formatting.present(run.info("data", "train_truncated"))
    of_all = f" ({percent_of(int(truncated), int(examples))})" if truncated is not None and examples else ""
    scored = run.info("data", "scored")
    rows = [
        ["begun with", f"{initialized_from(run) or 'weights drawn at random'}, {pretrained(run)}"],
        ["training examples", count(examples)],
        ["sequences", count(run.info("data", "train_sequences"))],
        ["tokens", count(run.info("data", "train_tokens"))],
        ["too long, and cut", count(truncated) + of_all],
        *([f"scored on: {split}", count(size)] for split, size in (scored.items() if isinstance(scored, dict) else ())),
        ["batch", count(run.info("batch_size"))],
    ]
    return table(["", ""], rows)


def _remarks(run: RunRecord) -> list[Markup]:
    said = run.info("data", "remarks")
    if not isinstance(said, list) or not said:
        return []
    lines = [element("li", str(remark)) for remark in said]
    return [element("details", element("summary", "How the data were read"), element("ul", *lines))]
