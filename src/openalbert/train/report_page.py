"""The page of a report, section by section. Everything in it stands in one file and asks nothing of a network."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from openalbert import __version__
from openalbert.train import curves
from openalbert.train.figures import NOTHING, count, duration, moment, number, percent, present, rate, size
from openalbert.train.markup import Markup, element, joined, table
from openalbert.train.results import (
    final_results,
    hardware,
    judged_by,
    last_step,
    length,
    passes,
    tokens_seen,
    training_seconds,
    verdict,
)
from openalbert.train.run_folder import Run

MOST_EVENTS = 100
NOT_COMPARED = ("out",)  # differs between any two runs, and says nothing
EVENTS = {
    "skipped": "step skipped",
    "out_of_memory": "out of memory",
    "plateau": "plateau",
    "depth": "depth changed",
}


def page(runs: Sequence[Run], now: datetime) -> str:
    """The whole page."""
    pictures, data = curves.draw(runs)
    title = f"{runs[0].model_name} · {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs compared"
    style, script = (
        resources.files(__package__).joinpath(name).read_text("utf-8") for name in ("report.css", "report.js")
    )
    known = {
        "runs": [run.name for run in runs],
        "colours": curves.NUM_COLOURS,
        "places": [curves.LEFT, curves.RIGHT, curves.WIDTH],
        "pictures": data,
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
        element("header", element("h1", title), *_headline(runs, now)),
        element(
            "main",
            _pictures(runs, pictures),
            *([_differences(runs)] if len(runs) > 1 else []),
            *(_about(run, alone=len(runs) == 1) for run in runs),
        ),
        element("footer", f"Written by openalbert {__version__} on {moment(now.isoformat())}. Needs no network."),
        element("script", Markup(values), type="application/json", id="curves"),
        element("script", Markup(script)),
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _headline(runs: Sequence[Run], now: datetime) -> list[Markup]:
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
    parameters = present(run.fact("parameters"))
    what = f"{parameters:,.0f} parameters. " if parameters is not None else ""
    when = f"Started {moment(run.fact('started'))}. " if run.fact("started") else ""
    return [
        element(
            "p", element("span", state, class_="state"), f" {what}{when}{_capital(length(run))}, on {hardware(run)}."
        ),
        *([element("p", sentence)] if (sentence := verdict(run)) else []),
        *warnings,
        *_tiles(run),
    ]


def _open_end(run: Run, now: datetime) -> list[str]:
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
    if len(run.train) and not len(run.evaluation):
        sentences.append("No evaluation on held-out text is recorded: the final figures are of training batches.")
    return sentences


def _tiles(run: Run) -> list[Markup]:
    records = judged_by(run)
    if not len(records):
        return []
    held_out = len(run.evaluation) > 0
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
    examples = run.evaluation.last("examples")
    on = f"On {count(examples)} held-out examples" if held_out else "On training batches"
    where = f"{on}, at step {int(records.last('step') or 0):,}."
    return [element("dl", *tiles, class_="tiles"), element("p", where, class_="remark")]


def _final_table(runs: Sequence[Run]) -> Markup:
    names = list(dict.fromkeys(result.name for run in runs for result in final_results(run)))
    rows = []
    for index, run in enumerate(runs):
        written = {result.name: result.written for result in final_results(run)}
        rows.append(
            [
                joined(_swatch(index), run.name),
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


def _shared_level(runs: Sequence[Run], name: str, level: str) -> str:
    """The plateau or chance level of a figure, if it is the same for all runs."""
    found = {result.levels.get(level, "") for run in runs for result in final_results(run) if result.name == name}
    return found.pop() if len(found) == 1 else ""


def _pictures(runs: Sequence[Run], pictures: Sequence[Markup]) -> Markup:
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
        for axis in curves.AXES
    ]
    legend = [element("li", _swatch(index), run.name) for index, run in enumerate(runs) if len(runs) > 1]
    if any(len(run.train) for run in runs):
        legend.append(element("li", _sample("training"), "training, means since the record before"))
    if any(len(run.evaluation) for run in runs):
        legend.append(element("li", _sample("held-out"), "held out"))
    if any(run.events for run in runs):
        legend.append(element("li", _sample("mark"), "an event, listed below"))
    bar = element(
        "div",
        element("fieldset", element("span", "Across:", class_="soft"), *choice),
        element("ul", *legend, class_="legend"),
        class_="bar",
    )
    depths = {curves.constant_depth(run) for run in runs if len(run.train)}
    depth = depths.pop() if len(depths) == 1 else None
    note = [element("p", f"Depth: {depth} layers throughout.", class_="remark")] if depth is not None else []
    return element("section", element("h2", "Curves"), bar, element("div", *pictures, class_="pictures"), *note)


def _swatch(index: int) -> Markup:
    return element(
        "svg",
        element("path", d="M0 6h30", class_="held-out" + (" again" if index >= curves.NUM_COLOURS else "")),
        class_=f"swatch run-{index % curves.NUM_COLOURS}",
        viewBox="0 0 30 12",
        aria_hidden="true",
    )


def _sample(kind: str) -> Markup:
    paths = [element("path", d="M15 12v-9" if kind == "mark" else "M0 6h30", class_=kind)]
    if kind == "held-out":
        paths.append(element("path", d="M15 6h0", class_="dots"))
    return element("svg", *paths, class_="swatch", viewBox="0 0 30 12", aria_hidden="true")


def flat(values: dict[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings as one list of paths, as the command line writes them."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found.update(flat(value, f"{before}{name}."))
        else:
            found[f"{before}{name}"] = _plain(value)
    return found


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, list) and all(isinstance(part, int | float | str) for part in value):
        return ", ".join(map(str, value)) or "(none)"
    if value is None:
        return "(not given)"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _differences(runs: Sequence[Run]) -> Markup:
    settings = [flat(run.settings) for run in runs]
    names = list(dict.fromkeys(name for one in settings for name in one if name not in NOT_COMPARED))
    rows = [
        [name, *(one.get(name, NOTHING) for one in settings)]
        for name in names
        if len({one.get(name) for one in settings}) > 1
    ]
    shown = (
        table(["setting", *(joined(_swatch(index), run.name) for index, run in enumerate(runs))], rows)
        if rows
        else element("p", "All settings are the same.")
    )
    return element("section", element("h2", "Settings that differ"), shown)


def _about(run: Run, alone: bool) -> Markup:
    heading = [] if alone else [element("h2", run.name)]
    level = "h2" if alone else "h3"
    return element(
        "section",
        *heading,
        element(
            "div",
            element("div", element(level, "Data"), _data(run)),
            element("div", element(level, "Hardware and throughput"), _hardware(run)),
            element("div", element(level, "Estimate beside truth"), _estimate(run)),
            class_="columns",
        ),
        element(level, "Events"),
        _events(run),
        element(level, "The same run again"),
        _command(run),
        element(level, "Settings"),
        element(
            "details",
            element("summary", f"All {len(flat(run.settings))} settings"),
            table(["setting", "value"], [list(pair) for pair in flat(run.settings).items()], numbers_from=2),
        ),
    )


def _data(run: Run) -> Markup:
    seen = passes(run)
    rows = [
        ["folder", str(run.fact("data", "folder") or NOTHING)],
        ["training tokens", count(run.fact("data", "train_tokens"))],
        ["training documents", count(run.fact("data", "train_documents"))],
        ["held-out tokens", count(run.fact("data", "heldout_tokens"))],
        ["examples in an epoch", count(run.fact("data", "examples_per_epoch"))],
        ["tokens seen", count(tokens_seen(run))],
        ["passes over the training tokens", number(seen, 3)],
        ["vocabulary", f"{count(run.fact('vocab_size'))} pieces"],
        ["entropy of single tokens", f"{number(run.fact('unigram_entropy'))} nats"],
        ["tokenizer", str(run.fact("data", "tokenizer") or NOTHING)[:12]],
    ]
    return table(["", ""], rows)


def _hardware(run: Run) -> Markup:
    peak = present(run.fact("matmul_peak_flops"))
    rows = [
        ["device", hardware(run)],
        ["matmul peak, measured", f"{count(peak)}FLOP/s" if peak is not None else NOTHING],
        ["tokens per second, median", rate(run.train.median("tokens_per_second"))],
        ["share of the peak, median", percent(run.train.median("share_of_peak"))],
        ["training time", duration(training_seconds(run))],
        ["restarts", count(run.fact("restarts"))],
        ["steps skipped", count(run.train.last("skipped"))],
        ["openalbert", str(run.fact("openalbert") or NOTHING)],
        ["torch", str(run.fact("torch") or NOTHING)],
        ["Python", str(run.fact("python") or NOTHING)],
    ]
    if run.fact("precision"):
        rows.insert(1, ["precision", str(run.fact("precision"))])
    return table(["", ""], rows)


def _estimate(run: Run) -> Markup:
    if not isinstance(run.fact("estimate"), dict):
        return element("p", "No estimate is recorded.", class_="soft")
    rows = []
    for key, name, write in (
        ("steps", "steps", count),
        ("tokens", "tokens", count),
        ("hours", "training time", lambda hours: duration(None if present(hours) is None else 3600 * hours)),
        ("memory_bytes", "memory", size),
        ("disk_bytes", "disk", size),
    ):
        before, after = run.fact("estimate", key), run.fact("truth", key)
        first, second = present(before), present(after)
        ratio = f"{second / first:.2f}" if first and second is not None else NOTHING
        rows.append([name, write(before), write(after), ratio])
    note = [] if run.is_finished else [element("p", "The truth comes at the end of the run.", class_="remark")]
    return joined(table(["", "estimate", "truth", "ratio"], rows), *note)


def _events(run: Run) -> Markup:
    parts: list[Markup] = []
    restarts = present(run.fact("restarts")) or 0
    if restarts:
        parts.append(element("p", f"The run was taken up again {restarts:.0f} time{'s' if restarts != 1 else ''}."))
    if not run.events:
        parts.append(element("p", "None: no step was skipped, and memory was enough.", class_="soft"))
        return joined(*parts)
    kinds = Counter(EVENTS.get(event.what, event.what) for event in run.events)
    parts.append(element("p", "; ".join(f"{name}: {times:,}" for name, times in kinds.items()) + "."))
    rows = [[f"{event.step:,}", EVENTS.get(event.what, event.what), event.text] for event in run.events[:MOST_EVENTS]]
    listed = table(["step", "what", ""], rows, numbers_from=3)
    if len(run.events) > MOST_EVENTS:
        listed = joined(
            listed,
            element("p", f"The first {MOST_EVENTS} of {len(run.events):,}; metrics.jsonl has all.", class_="remark"),
        )
    if len(rows) > 12:
        listed = element("details", element("summary", "The list"), listed)
    return joined(*parts, listed)


def _command(run: Run) -> Markup:
    command = run.fact("command")
    if isinstance(command, str) and command:
        return element("pre", command)
    return element("p", "The command line was not recorded; run.json has every setting.", class_="soft")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def now() -> datetime:
    """The present moment, in the reader's own time zone."""
    return datetime.now(UTC).astimezone()
