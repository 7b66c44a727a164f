"""The page of a report, section by section. Everything in it stands in one file and asks nothing of a network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from openalbert.formatting import NOTHING, count, duration, moment, percent, present, rate
from openalbert.report import charts
from openalbert.report.html import Markup, element, joined, table
from openalbert.report.run_reader import RunRecord
from openalbert.report.sections import about, data_of, differences, sample, swatch
from openalbert.report.summary import (
    current_evaluations,
    final_results,
    hardware,
    judged_by,
    last_step,
    length,
    tokens_seen,
    training_seconds,
    verdict,
)
from openalbert.version import __version__


def page(runs: Sequence[RunRecord], now: datetime) -> str:
    """The whole page of some pretraining runs."""
    pictures, data = charts.draw(runs)
    title = f"{runs[0].model_name} · {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs compared"
    sections = [
        pictures_section(runs, pictures),
        *([differences(runs)] if len(runs) > 1 else []),
        *(about(run, len(runs) == 1, data_of(run)) for run in runs),
    ]
    return document(title, _headline(runs, now), sections, [run.name for run in runs], data, now)


def document(
    title: str,
    headline: Sequence[Markup],
    sections: Sequence[Markup],
    run_names: Sequence[str],
    pictures: Sequence[dict[str, Any]],
    now: datetime,
) -> str:
    """A page: one file with style and script in it; `pictures` is what the script has to know of each picture."""
    style, script = (
        resources.files(__package__).joinpath(name).read_text("utf-8") for name in ("report.css", "report.js")
    )
    known = {
        "runs": list(run_names),
        "colours": charts.NUM_COLOURS,
        "places": [charts.LEFT, charts.RIGHT, charts.WIDTH],
        "pictures": list(pictures),
    }
    # Within a script element nothing is unescaped: a "<" could end it, so none is written.
    values = json.dumps(known, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # The browser itself refuses any network access, and any script but this one.
        Markup(
            '<meta http-equiv="Content-Security-Policy" '
            f"content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">"
        ),
        element("title", f"{title} – openalbert"),
        element("style", Markup(style)),
    )
    body = joined(
        element("header", element("h1", title), *headline),
        element("main", *sections),
        element("footer", f"Written by openalbert {__version__} on {moment(now.isoformat())}. Needs no network."),
        element("script", Markup(values), type="application/json", id="curves"),
        element("script", Markup(script)),
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _headline(runs: Sequence[RunRecord], now: datetime) -> list[Markup]:
    notes = [
        f"{run.name}: {remark}" if len(runs) > 1 else remark
        for run in runs
        for remark in [*_open_end(run, now), *run.remarks]
    ]
    warnings = [element("ul", *(element("li", note) for note in notes), class_="notes")] if notes else []
    if len(runs) > 1:
        return [_final_table(runs), *warnings]
    run = runs[0]
    state = "finished" if run.is_finished else "no end recorded"
    parameters = present(run.info("parameters"))
    what = f"{parameters:,.0f} parameters. " if parameters is not None else ""
    when = f"Started {moment(run.info('started'))}. " if run.info("started") else ""
    return [
        element(
            "p", element("span", state, class_="state"), f" {what}{when}{_capital(length(run))}, on {hardware(run)}."
        ),
        *([element("p", sentence)] if (sentence := verdict(run)) else []),
        *warnings,
        *_tiles(run),
    ]


def _open_end(run: RunRecord, now: datetime) -> list[str]:
    """What is to be said of a run that has not come to its end, or was not evaluated."""
    sentences = []
    if not run.is_finished:
        progress = run.train.last("progress")
        done = f" ({percent(progress)} of its budget)" if progress is not None else ""
        ago = f", written {duration(max(0.0, now.timestamp() - run.written))} before this page" if run.written else ""
        where = (
            f"the last record is of step {last_step(run):,}{done}{ago}" if len(run.train) else "nothing is recorded yet"
        )
        sentences.append(f"The run is still going, or was stopped: {where}.")
    if len(run.train) and not len(current_evaluations(run)):
        sentences.append("No evaluation on held-out text is recorded: the final figures are of training batches.")
    return sentences


def _tiles(run: RunRecord) -> list[Markup]:
    records = judged_by(run)
    if not len(records):
        return []
    held_out = len(current_evaluations(run)) > 0
    tiles = [
        element(
            "div",
            element("dt", result.name),
            element("dd", result.written, class_="big"),
            *(element("dd", f"{name} {level}", class_="beside") for name, level in result.levels.items()),
            class_="tile",
        )
        for result in final_results(run)
    ]
    on = f"On {count(records.last('examples'))} held-out examples" if held_out else "On training batches"
    where = f"{on}, at step {int(records.last('step') or 0):,}."
    return [element("dl", *tiles, class_="tiles"), element("p", where, class_="remark")]


def _final_table(runs: Sequence[RunRecord]) -> Markup:
    names = list(dict.fromkeys(result.name for run in runs for result in final_results(run)))
    rows = []
    for index, run in enumerate(runs):
        written = {result.name: result.written for result in final_results(run)}
        rows.append(
            [
                joined(swatch(index), run.name),
                *(written.get(name, NOTHING) for name in names),
                f"{last_step(run):,}",
                count(tokens_seen(run)),
                duration(training_seconds(run)),
                rate(run.train.median("tokens_per_second")),
                hardware(run),
            ]
        )
    for level in ("unigram plateau", "chance"):
        shared = [_shared_level(runs, name, level) for name in names]
        if any(shared):
            rows.append([level, *shared, *[""] * 5])
    return table(["run", *names, "steps", "tokens", "training time", "tokens/s (median)", "on"], rows)


def _shared_level(runs: Sequence[RunRecord], name: str, level: str) -> str:
    """The plateau or chance level of a figure, if it is the same for all runs."""
    found = {result.levels.get(level, "") for run in runs for result in final_results(run) if result.name == name}
    return found.pop() if len(found) == 1 else ""


def pictures_section(runs: Sequence[RunRecord], pictures: Sequence[Markup]) -> Markup:
    """The pictures under a bar that says what they are drawn over, and what each line is."""
    if not pictures:
        return element("section", element("h2", "Curves"), element("p", "There is nothing to draw yet."))
    choice = [
        joined(
            element(
                "label",
                Markup(
                    f'<input type="radio" name="x" id="x-{axis}" value="{axis}"{" checked" if axis == "steps" else ""}>'
                ),
                f" {axis}",
            )
        )
        for axis in charts.AXES
    ]
    legend = [element("li", swatch(index), run.name) for index, run in enumerate(runs) if len(runs) > 1]
    if any(len(run.train) for run in runs):
        legend.append(element("li", sample("training"), "training, means since the record before"))
    if any(len(run.evaluation) for run in runs):
        legend.append(element("li", sample("held-out"), "held out"))
    if any(run.events for run in runs):
        legend.append(element("li", sample("mark"), "an event, listed below"))
    bar = element(
        "div",
        element("fieldset", element("span", "Across:", class_="soft"), *choice),
        element("ul", *legend, class_="legend"),
        class_="bar",
    )
    depths = {charts.constant_depth(run) for run in runs if len(run.train)}
    depth = depths.pop() if len(depths) == 1 else None
    note = [element("p", f"Depth: {depth} layers throughout.", class_="remark")] if depth is not None else []
    return element("section", element("h2", "Curves"), bar, element("div", *pictures, class_="pictures"), *note)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def now() -> datetime:
    """The present moment, in the reader's own time zone."""
    return datetime.now(UTC).astimezone()
