"""The page of pretraining runs, and the sections that it shares with the page of fine-tuning runs."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from openalbert.formatting import NOTHING, count, duration, moment, number, percent, present, rate, size
from openalbert.report import charts
from openalbert.report.html import Markup, document, element, joined, table
from openalbert.report.run_reader import RunRecord
from openalbert.report.summary import (
    compare_with_unigram,
    current_evaluations,
    earlier_data,
    epochs,
    final_results,
    hardware,
    last_checkpoint,
    last_step,
    length,
    machines,
    over_all_starts,
    scored_records,
    tokens_seen,
    training_seconds,
)
from openalbert.settings import flat

MOST_EVENTS = 100
NOT_COMPARED = ("out",)  # differs between any two runs
EVENTS = {
    "skipped": "step skipped",
    "spikes": "too many loss spikes to skip",
    "out_of_memory": "out of memory",
    "no_graph": "no CUDA graph",
    "plateau": "plateau",
    "depth": "depth changed",
    "masking_rate": "masking rate changed",
    "collapsed": "collapsed",
    "early_stop": "stopped early",
    "new_data": "new data",
    "new_heldout": "new held-out data",
}


def pretraining_page(runs: Sequence[RunRecord], now: datetime) -> str:
    """The page of some pretraining runs."""
    figures, values = charts.draw(runs)
    title = f"{runs[0].model_name} · {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs compared"
    sections = [
        curves_section(runs, figures),
        *([differences(runs)] if len(runs) > 1 else []),
        *(about(run, len(runs) == 1, _data(run)) for run in runs),
    ]
    return document(title, _headline(runs, now), sections, values, now)


def _headline(runs: Sequence[RunRecord], now: datetime) -> list[Markup]:
    warnings = notes(
        [
            f"{run.name}: {remark}" if len(runs) > 1 else remark
            for run in runs
            for remark in [*unfinished(run, now), *_without_evaluation(run), *run.remarks]
        ]
    )
    if len(runs) > 1:
        return [_final_table(runs), *warnings]
    run = runs[0]
    state = "finished" if run.is_finished else "unfinished"
    parameters = present(run.info("parameters"))
    what = f"{parameters:,.0f} parameters. " if parameters is not None else ""
    when = f"Started {moment(run.info('started'))}. " if run.info("started") else ""
    return [
        element("p", element("span", state, class_="state"), f" {what}{when}{length(run)}, on {hardware(run)}."),
        *([element("p", sentence)] if (sentence := compare_with_unigram(run)) else []),
        *warnings,
        *_tiles(run),
    ]


def unfinished(run: RunRecord, now: datetime) -> list[str]:
    """A sentence on a run that has not come to its end; none for one that has."""
    if run.is_finished:
        return []
    progress = run.train.last("progress")
    done = f" ({percent(progress)} of its budget)" if progress is not None else ""
    ago = f", written {duration(max(0.0, now.timestamp() - run.written))} before this page" if run.written else ""
    last = f"the last record is of step {last_step(run):,}{done}{ago}" if len(run.train) else "nothing is logged yet"
    step = last_checkpoint(run)
    resumes = "" if step is None else f"; its last checkpoint is of step {step:,}, from which it would resume"
    return [f"The run is in progress or was stopped: {last}{resumes}."]


def notes(sentences: Sequence[str]) -> list[Markup]:
    """A box of warnings; nothing where there are none."""
    return [element("ul", *(element("li", sentence) for sentence in sentences), class_="notes")] if sentences else []


def _without_evaluation(run: RunRecord) -> list[str]:
    if not len(run.train) or len(current_evaluations(run)):
        return []
    return ["There is no evaluation on held-out text: the final metrics are of training batches."]


def _tiles(run: RunRecord) -> list[Markup]:
    records = scored_records(run)
    if not len(records):
        return []
    held_out = len(current_evaluations(run)) > 0
    tiles = [
        tile(result.name, result.text, [f"{name} {level}" for name, level in result.levels.items()])
        for result in final_results(run)
    ]
    on = f"On {count(records.last('examples'))} held-out examples" if held_out else "On training batches"
    where = f"{on}, at step {int(records.last('step') or 0):,}."
    return [element("dl", *tiles, class_="tiles"), element("p", where, class_="remark")]


def tile(name: str, value: str, levels: Sequence[str]) -> Markup:
    """A metric in a box, with the levels to compare it with."""
    lines = [element("dd", level, class_="level") for level in levels]
    return element("div", element("dt", name), element("dd", value, class_="big"), *lines, class_="tile")


def _final_table(runs: Sequence[RunRecord]) -> Markup:
    names = list(dict.fromkeys(result.name for run in runs for result in final_results(run)))
    rows = []
    for index, run in enumerate(runs):
        texts = {result.name: result.text for result in final_results(run)}
        rows.append(
            [
                joined(swatch(index), run.name),
                *(texts.get(name, NOTHING) for name in names),
                f"{last_step(run):,}",
                count(tokens_seen(run)),
                duration(training_seconds(run)),
                rate(run.train.median("tokens_per_second")),
                hardware(run),
            ]
        )
    for level in ("unigram model", "chance"):
        shared = [_shared_level(runs, name, level) for name in names]
        if any(shared):
            rows.append([level, *shared, *[""] * 5])
    return table(["run", *names, "steps", "tokens", "training time", "tokens/s (median)", "on"], rows)


def _shared_level(runs: Sequence[RunRecord], name: str, level: str) -> str:
    """The unigram or chance level of a metric, if it is the same for all runs."""
    found = {result.levels.get(level, "") for run in runs for result in final_results(run) if result.name == name}
    return found.pop() if len(found) == 1 else ""


def curves_section(runs: Sequence[RunRecord], figures: Sequence[Markup]) -> Markup:
    """The charts under a bar with the choice of the horizontal axis and the legend."""
    if not figures:
        return element("section", element("h2", "Curves"), element("p", "There is nothing to draw yet."))
    choice = []
    for axis in charts.AXES:
        checked = " checked" if axis == charts.AXES[0] else ""
        button = Markup(f'<input type="radio" name="x" id="x-{axis}" value="{axis}"{checked}>')
        choice.append(element("label", button, f" {axis}"))
    legend = [element("li", swatch(index), run.name) for index, run in enumerate(runs) if len(runs) > 1]
    if any(run.train.has(chart.name) for chart in charts.charts_for(runs) for run in runs):
        legend.append(element("li", _sample("training"), "training, averaged since the last record"))
    if any(len(run.evaluation) for run in runs):
        legend.append(element("li", _sample("held-out"), "held out"))
    if any(run.events for run in runs):
        legend.append(element("li", _sample("mark"), "event, listed below"))
    bar = element(
        "div",
        element("fieldset", element("span", "Over:", class_="soft"), *choice),
        element("ul", *legend, class_="legend"),
        class_="bar",
    )
    depths = {charts.constant_depth(run) for run in runs if len(run.train)}
    depth = depths.pop() if len(depths) == 1 else None
    note = [element("p", f"Depth: {depth} layers throughout.", class_="remark")] if depth is not None else []
    return element("section", element("h2", "Curves"), bar, element("div", *figures, class_="charts"), *note)


def swatch(index: int) -> Markup:
    """A sample of a run's line, to stand before its name."""
    line = element("path", d="M0 6h30", class_=f"held-out {charts.look(index)}")
    return element("svg", line, class_="swatch", viewBox="0 0 30 12", aria_hidden="true")


def _sample(kind: str) -> Markup:
    """A kind of line, for the legend."""
    paths = [element("path", d="M15 12v-9" if kind == "mark" else "M0 6h30", class_=kind)]
    if kind == "held-out":
        paths.append(element("path", d="M15 6h0", class_="dots"))
    return element("svg", *paths, class_="swatch", viewBox="0 0 30 12", aria_hidden="true")


def _written(run: RunRecord) -> dict[str, str]:
    return {name: _plain(value) for name, value in flat(run.settings).items()}


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, list) and all(isinstance(one, int | float | str) for one in value):
        return ", ".join(map(str, value)) or "(none)"
    if value is None:
        return "(not given)"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def differences(runs: Sequence[RunRecord]) -> Markup:
    """The settings in which runs differ."""
    settings = [_written(run) for run in runs]
    names = list(dict.fromkeys(name for one in settings for name in one if name not in NOT_COMPARED))
    rows = [
        [name, *(one.get(name, NOTHING) for one in settings)]
        for name in names
        if len({one.get(name) for one in settings}) > 1
    ]
    shown = (
        table(["setting", *(joined(swatch(index), run.name) for index, run in enumerate(runs))], rows)
        if rows
        else element("p", "All settings are the same.")
    )
    return element("section", element("h2", "Settings that differ"), shown)


def about(run: RunRecord, alone: bool, data: Markup, remarks: Sequence[Markup] = ()) -> Markup:
    """Data, hardware, estimate, events, command and settings of one run; `remarks` are on its data."""
    heading = [] if alone else [element("h2", run.name)]
    level = "h2" if alone else "h3"
    return element(
        "section",
        *heading,
        element(
            "div",
            element("div", element(level, "Data"), data),
            element("div", element(level, "Hardware and throughput"), _hardware(run)),
            element("div", element(level, "Estimated and actual"), _estimate(run)),
            class_="columns",
        ),
        *remarks,
        element(level, "Events"),
        _events(run),
        element(level, "Command"),
        _command(run),
        element(level, "Settings"),
        _settings(run),
    )


def _settings(run: RunRecord) -> Markup:
    settings = _written(run)
    return element(
        "details",
        element("summary", f"All {len(settings)} settings"),
        table(["setting", "value"], [list(pair) for pair in settings.items()], numbers_from=2),
    )


def _data(run: RunRecord) -> Markup:
    rows = [
        ["folder", str(run.info("data", "folder") or NOTHING)],
        ["training tokens", count(run.info("data", "train_tokens"))],
        ["training documents", count(run.info("data", "train_documents"))],
        ["single-sentence documents, not used", _unusable(run)],
        ["held-out tokens", count(run.info("data", "heldout_tokens"))],
        ["examples in an epoch", count(run.info("data", "examples_per_epoch"))],
        ["tokens seen", count(tokens_seen(run))],
        ["epochs over the training tokens", number(epochs(run), 3)],
        *(
            ["earlier dataset", f"{count(earlier.get('train_tokens'))} tokens, {count(earlier.get('steps'))} steps"]
            for earlier in earlier_data(run)
        ),
        ["vocabulary", f"{count(run.info('vocab_size'))} pieces"],
        ["unigram entropy", f"{number(run.info('unigram_entropy'))} nats"],
        ["tokenizer", str(run.info("data", "tokenizer") or NOTHING)[:12]],
    ]
    return table(["", ""], rows)


def _unusable(run: RunRecord) -> str:
    documents, tokens = (run.info("data", f"unusable_{name}") for name in ("documents", "tokens"))
    return f"{count(documents)} documents, {count(tokens)} tokens" if documents else count(documents)


def _hardware(run: RunRecord) -> Markup:
    peaks = [present(machine.get("matmul_peak_flops")) for machine in machines(run.run_info)]
    measured = ", then ".join(f"{count(peak)}FLOP/s" for peak in peaks if peak is not None)
    rows = [
        ["device", hardware(run)],
        ["matmul rate, measured", measured or NOTHING],
        ["tokens per second, median", rate(run.train.median("tokens_per_second"))],
        ["model FLOPs utilization (MFU), median", percent(run.train.median("mfu"))],
        ["training time", duration(training_seconds(run))],
        ["restarts", count(run.info("restarts"))],
        ["steps skipped", count(run.train.last("skipped"))],
        ["openalbert", over_all_starts(run.run_info, "openalbert") or NOTHING],
        ["torch", over_all_starts(run.run_info, "torch") or NOTHING],
        ["Python", over_all_starts(run.run_info, "python") or NOTHING],
    ]
    if run.info("precision"):
        rows.insert(1, ["precision", over_all_starts(run.run_info, "precision") or NOTHING])
    return table(["", ""], rows)


def _estimate(run: RunRecord) -> Markup:
    if not isinstance(run.info("estimate"), dict):
        return element("p", "There is no estimate.", class_="soft")
    rows = []
    for key, name, write in (
        ("steps", "steps", count),
        ("tokens", "tokens", count),
        ("hours", "time", lambda hours: duration(None if present(hours) is None else 3600 * hours)),
        ("memory_bytes", "memory", size),
        ("disk_bytes", "disk", size),
    ):
        before, after = run.info("estimate", key), run.info("actual", key)
        first, second = present(before), present(after)
        ratio = f"{second / first:.2f}" if first and second is not None else NOTHING
        rows.append([name, write(before), write(after), ratio])
    note = (
        []
        if run.is_finished
        else [element("p", "The actual values are written at the end of the run.", class_="remark")]
    )
    return joined(table(["", "estimate", "actual", "ratio"], rows), *note)


def _events(run: RunRecord) -> Markup:
    pieces: list[Markup] = []
    restarts = present(run.info("restarts")) or 0
    if restarts:
        pieces.append(element("p", f"The run was resumed {restarts:.0f} time{'s' if restarts != 1 else ''}."))
    if not run.events:
        pieces.append(element("p", "None.", class_="soft"))
        return joined(*pieces)
    kinds = Counter(EVENTS.get(event.what, event.what) for event in run.events)
    pieces.append(element("p", "; ".join(f"{name}: {times:,}" for name, times in kinds.items()) + "."))
    rows = [[f"{event.step:,}", EVENTS.get(event.what, event.what), event.text] for event in run.events[:MOST_EVENTS]]
    listed = table(["step", "what", ""], rows, numbers_from=3)
    if len(run.events) > MOST_EVENTS:
        listed = joined(
            listed,
            element("p", f"The first {MOST_EVENTS} of {len(run.events):,}; metrics.jsonl has all.", class_="remark"),
        )
    if len(rows) > 12:
        listed = element("details", element("summary", "The list"), listed)
    return joined(*pieces, listed)


def _command(run: RunRecord) -> Markup:
    command = run.info("command")
    if isinstance(command, str) and command:
        return element("pre", command)
    return element("p", "The command line is not known; run.json has every setting.", class_="soft")
