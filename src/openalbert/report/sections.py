"""What stands beside the pictures of a report: data, hardware, estimate and truth, events, settings."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from openalbert.formatting import NOTHING, count, duration, number, percent, present, rate, size
from openalbert.report import charts
from openalbert.report.html import Markup, element, joined, table
from openalbert.report.run_reader import RunRecord
from openalbert.report.summary import (
    earlier_data,
    hardware,
    over_all_starts,
    passes,
    places,
    tokens_seen,
    training_seconds,
)

MOST_EVENTS = 100
NOT_COMPARED = ("out",)  # differs between any two runs, and says nothing
EVENTS = {
    "skipped": "step skipped",
    "spikes": "too many spikes to skip",
    "out_of_memory": "out of memory",
    "no_graph": "no CUDA graph",
    "plateau": "plateau",
    "depth": "depth changed",
    "collapsed": "collapsed",
    "early_stop": "ended early",
    "new_data": "new data",
    "new_heldout": "new held-out data",
}


def swatch(index: int) -> Markup:
    """The line of a run, before its name."""
    line = element("path", d="M0 6h30", class_=f"held-out {charts.look(index)}")
    return element("svg", line, class_="swatch", viewBox="0 0 30 12", aria_hidden="true")


def sample(kind: str) -> Markup:
    """What a kind of line looks like, for the legend."""
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


def differences(runs: Sequence[RunRecord]) -> Markup:
    """The settings in which runs differ, and no others."""
    settings = [flat(run.settings) for run in runs]
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
    """All that is known of one run beside its curves; `data` and `remarks` tell what it read."""
    heading = [] if alone else [element("h2", run.name)]
    level = "h2" if alone else "h3"
    return element(
        "section",
        *heading,
        element(
            "div",
            element("div", element(level, "Data"), data),
            element("div", element(level, "Hardware and throughput"), hardware_of(run)),
            element("div", element(level, "Estimate beside truth"), estimate_of(run)),
            class_="columns",
        ),
        *remarks,
        element(level, "Events"),
        events_of(run),
        element(level, "The same run again"),
        command_of(run),
        element(level, "Settings"),
        settings_of(run),
    )


def settings_of(run: RunRecord) -> Markup:
    """All settings, folded."""
    settings = flat(run.settings)
    return element(
        "details",
        element("summary", f"All {len(settings)} settings"),
        table(["setting", "value"], [list(pair) for pair in settings.items()], numbers_from=2),
    )


def data_of(run: RunRecord) -> Markup:
    """What a pretraining run read."""
    seen = passes(run)
    rows = [
        ["folder", str(run.info("data", "folder") or NOTHING)],
        ["training tokens", count(run.info("data", "train_tokens"))],
        ["training documents", count(run.info("data", "train_documents"))],
        ["of one sentence, too few for a pair", _unusable(run)],
        ["held-out tokens", count(run.info("data", "heldout_tokens"))],
        ["examples in an epoch", count(run.info("data", "examples_per_epoch"))],
        ["tokens seen", count(tokens_seen(run))],
        ["passes over the training tokens", number(seen, 3)],
        *(
            ["data before that", f"{count(earlier.get('train_tokens'))} tokens, {count(earlier.get('steps'))} steps"]
            for earlier in earlier_data(run)
        ),
        ["vocabulary", f"{count(run.info('vocab_size'))} pieces"],
        ["entropy of single tokens", f"{number(run.info('unigram_entropy'))} nats"],
        ["tokenizer", str(run.info("data", "tokenizer") or NOTHING)[:12]],
    ]
    return table(["", ""], rows)


def _unusable(run: RunRecord) -> str:
    """The training documents that the objective cannot use."""
    documents, tokens = (run.info("data", f"unusable_{name}") for name in ("documents", "tokens"))
    return f"{count(documents)} documents, {count(tokens)} tokens" if documents else count(documents)


def hardware_of(run: RunRecord) -> Markup:
    """What it ran on, and how fast."""
    peaks = [present(place.get("matmul_peak_flops")) for place in places(run.run_info)]
    told = ", then ".join(f"{count(peak)}FLOP/s" for peak in peaks if peak is not None)
    rows = [
        ["device", hardware(run)],
        ["matmul rate, measured", told or NOTHING],
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


def estimate_of(run: RunRecord) -> Markup:
    """What it was said to take, and what it took."""
    if not isinstance(run.info("estimate"), dict):
        return element("p", "No estimate is recorded.", class_="soft")
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
    note = [] if run.is_finished else [element("p", "The truth comes at the end of the run.", class_="remark")]
    return joined(table(["", "estimate", "actual", "ratio"], rows), *note)


def events_of(run: RunRecord) -> Markup:
    """What happened that is worth a sentence."""
    parts: list[Markup] = []
    restarts = present(run.info("restarts")) or 0
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


def command_of(run: RunRecord) -> Markup:
    """The command line that does the same again."""
    command = run.info("command")
    if isinstance(command, str) and command:
        return element("pre", command)
    return element("p", "The command line was not recorded; run.json has every setting.", class_="soft")
