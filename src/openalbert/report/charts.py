"""The charts of a run: SVG for the page, and a matplotlib figure for a notebook.

Each SVG is drawn three times, over steps, tokens and minutes; the page shows one of them at a time. report.js adds the
values under the pointer. The reasons for drawing SVG here are in docs/decisions/charts.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64, Int64

from openalbert import formatting
from openalbert.report.html import Markup, element, joined
from openalbert.report.run_reader import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("steps", "tokens", "minutes")
WIDTH, HEIGHT = 440.0, 264.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 416.0, 14.0, 220.0
DOT = 4  # room for a dot on an edge
MOST_POINTS = 1_200  # of one curve: about three for each unit of a chart's width
MOST_POINTS_OF_A_PAGE = 24_000  # keeps a page with many runs well under 2 MB
MOST_MARKS = 60
KEPT_OF_A_STRETCH = 5
NUM_COLOURS, NUM_DASHES = 7, 3  # of report.css: the eighth run has the first one's colour again, dashed
WRITE = {
    "number": formatting.number,
    "percent": formatting.percent,
    "rate": formatting.rate,
    "count": formatting.count,
}


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with: chance, or the unigram entropy."""

    label: str
    value: float


@dataclass(frozen=True)
class Chart:
    """One field of the records, and how it is drawn."""

    name: str
    """The field."""
    title: str
    unit: str
    kind: Literal["number", "percent", "rate", "count"] = "number"
    """How values are written."""
    is_log: bool = False
    from_zero: bool = False
    is_step: bool = False
    """Whether the value is constant between changes."""
    levels: Callable[[RunRecord], Sequence[Level]] = field(default=lambda run: ())


def _level_of(label: str, key: str) -> Callable[[RunRecord], Sequence[Level]]:
    """A level that run_info.json has."""

    def levels(run: RunRecord) -> list[Level]:
        value = formatting.present(run.info(key))
        return [] if value is None else [Level(label, value)]

    return levels


def _sentence_charts(task: str) -> tuple[Chart, Chart]:
    name = task.upper()
    return (
        Chart(f"{task}_acc", f"{name} accuracy", "%", "percent", levels=lambda run: [Level("chance", 0.5)]),
        Chart(f"{task}_loss", f"{name} loss", "nats per pair", levels=lambda run: [Level("chance", math.log(2))]),
    )


LR = Chart("lr", "Learning rate", "", from_zero=True)
GRAD_NORM = Chart("grad_norm", "Gradient norm", "before clipping, logarithmic", is_log=True)
THROUGHPUT = Chart("tokens_per_second", "Throughput", "tokens per second", "rate", from_zero=True)
MFU = Chart("mfu", "Model FLOPs utilization (MFU)", "%", "percent", from_zero=True)
PRETRAINING_CHARTS = (
    Chart("mlm_loss", "MLM loss", "nats per masked token", levels=_level_of("unigram entropy", "unigram_entropy")),
    Chart("mlm_acc", "MLM accuracy", "%", "percent", from_zero=True),
    Chart("distillation_loss", "Distillation loss", "nats per masked token"),
    *_sentence_charts("sop"),
    *_sentence_charts("nsp"),
    LR,
    GRAD_NORM,
    Chart("depth", "Depth", "layers", "count", from_zero=True, is_step=True),
    THROUGHPUT,
    MFU,
)


def charts_for(runs: Sequence[RunRecord]) -> list[Chart]:
    """The charts that these runs have values for; runs are all of pretraining or all of fine-tuning."""
    charts = list(PRETRAINING_CHARTS)
    if any(run.is_finetuning for run in runs):
        names = dict.fromkeys(name for run in runs for name in run.task_metrics)
        metrics = [Chart(name, _readable(name), "% on the dev set") for name in names]
        loss = Chart("loss", "Training loss", "", levels=_level_of("constant prediction", "baseline_loss"))
        heads = dict.fromkeys(name for run in runs for name in run.train.columns if name.endswith("_acc"))
        accuracies = [
            Chart(name, f"Training accuracy, {name.removesuffix('_acc').replace('_', ' ')}", "%", "percent")
            for name in heads
            if name not in names and any(run.train.has(name) and np.nanmax(run.train.columns[name]) > 0 for run in runs)
        ]
        charts = [*metrics[:1], loss, *metrics[1:], *accuracies, LR, GRAD_NORM, THROUGHPUT, MFU]
    both = [records for run in runs for records in (run.train, run.evaluation)]
    depths = {constant_depth(run) for run in runs if run.train.has("depth")}
    hidden = "depth" if len(depths) == 1 and None not in depths else ""  # one depth throughout needs no chart
    return [chart for chart in charts if chart.name != hidden and any(records.has(chart.name) for records in both)]


def _readable(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def constant_depth(run: RunRecord) -> int | None:
    """The depth of a run that never changes it."""
    depths = run.train.columns["depth"]
    return int(depths[0]) if len(depths) and np.isfinite(depths).all() and (depths == depths[0]).all() else None


def plot_run(run: RunRecord) -> "Figure":
    """A matplotlib figure of a run's losses, accuracies or task metrics, learning rate and throughput over its steps.

    It displays in a notebook as the value of a cell; elsewhere use its `savefig`.
    """
    from matplotlib import pyplot

    charts = charts_for([run])
    columns = max(1, min(3, len(charts)))
    rows = max(1, math.ceil(len(charts) / columns))
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.4 * columns, 2.8 * rows), squeeze=False, layout="constrained"
    )
    pyplot.close(figure)  # a notebook shows the returned figure, and would show an open one a second time
    for chart, axis in zip(charts, axes.flat, strict=False):
        scale = 100 if chart.kind == "percent" else 1
        style = "steps-post" if chart.is_step else "default"
        for records, label, marker in ((run.train, "training", ""), (run.evaluation, "held out", ".")):
            if records.has(chart.name):
                y = scale * records.columns[chart.name]
                axis.plot(records.columns["step"], y, label=label, marker=marker, drawstyle=style)
        for level in chart.levels(run):
            axis.axhline(scale * level.value, color="gray", linestyle="--", linewidth=1, label=level.label)
        axis.set(title=chart.title, xlabel="steps", ylabel=chart.unit)
        if chart.is_log:
            axis.set_yscale("log")
        elif chart.from_zero:
            axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    for axis in axes.flat[len(charts) :]:
        axis.set_axis_off()
    return figure


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to places in a chart."""

    low: float
    high: float
    start: float
    """The place of `low`."""
    end: float
    """The place of `high`."""
    log: bool = False

    def __call__(self, values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """The places of these values; NaN for those that have none, on a logarithmic scale 0 and below."""
        values = np.where(np.isfinite(values) & ((values > 0) | (not self.log)), values, np.nan)
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        inner = np.log(values) if self.log else values
        return self.start + (inner - low) * ((self.end - self.start) / (high - low))

    def place(self, value: float) -> float:
        """The place of one value."""
        return float(self(np.array([value]))[0])


def scale_for(
    values: Float64[np.ndarray, "n"], start: float, end: float, *, log: bool = False, from_zero: bool = False
) -> Scale:
    """A scale that holds all finite values (on a logarithmic one, those above 0), with a margin at its ends."""
    finite = values[np.isfinite(values) & ((values > 0) | (not log))]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (1.0, 1.0)
    if log:
        return Scale(low / 1.15, high * 1.15, start, end, log=True)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        # A single value is drawn against 0, so that a percentage has no axis below 0 or far above 100.
        return Scale(min(1.05 * low, 0.0), max(1.05 * high, 0.0) or float(low == 0), start, end)
    room = (high - low) * 0.05
    return Scale(low if from_zero and low == 0 else low - room, high + room, start, end)


def ticks(scale: Scale, wanted: int = 5, whole: bool = False) -> list[float]:
    """About `wanted` round values within a scale: multiples of 1, 2 or 5 times a power of ten."""
    if scale.log:
        return _log_ticks(scale, wanted)
    span = scale.high - scale.low
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= wanted)
    step = max(1.0, step) if whole else step
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    # Rounded to the step's digits: 0.1 + 0.2 has seventeen.
    digits = max(0, -math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def _log_ticks(scale: Scale, wanted: int) -> list[float]:
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        within = [value for value in found if scale.low <= value <= scale.high]
        if len(within) < 2:
            break  # less than a decade: equal steps are better
        if len(within) <= wanted:
            return within
    if len(within) < 2:
        return ticks(Scale(scale.low, scale.high, scale.start, scale.end), wanted)
    return within[:: math.ceil(len(within) / wanted)]


def thin(values: Float64[np.ndarray, "n"], most: int) -> Int64[np.ndarray, "kept"]:
    """The indices of about `most` values that represent all of them: no peak, dip or gap is lost.

    The curve is cut into equal stretches; of each the first, the last, the lowest, the highest and one non-finite value
    are kept.
    """
    if len(values) <= max(most, KEPT_OF_A_STRETCH):
        return np.arange(len(values))
    borders = np.linspace(0, len(values), max(1, most // KEPT_OF_A_STRETCH) + 1).astype(np.int64)
    kept = []
    for start, end in pairwise(borders.tolist()):
        stretch = values[start:end]
        finite = np.isfinite(stretch)
        kept += [start, end - 1]
        if finite.any():
            kept += [
                start + int(np.where(finite, stretch, np.inf).argmin()),
                start + int(np.where(finite, stretch, -np.inf).argmax()),
            ]
        if not finite.all():
            kept.append(start + int((~finite).argmax()))
    return np.unique(np.array(kept, np.int64))


@dataclass(frozen=True)
class Curve:
    """One line of a chart, thinned."""

    run: int
    held_out: bool
    x: dict[str, Float64[np.ndarray, "n"]]
    """Its positions on each of the three axes."""
    y: Float64[np.ndarray, "n"]


def draw(runs: Sequence[RunRecord]) -> tuple[list[Markup], dict[str, Any]]:
    """The charts of these runs as SVG, and the values that report.js shows under the pointer."""
    charts = charts_for(runs)
    both = [records for run in runs for records in (run.train, run.evaluation)]
    number = sum(records.has(chart.name) for chart in charts for records in both)
    most = min(MOST_POINTS, MOST_POINTS_OF_A_PAGE // max(1, number))
    drawn = [_draw(number, chart, runs, most) for number, chart in enumerate(charts)]
    values = {
        "runs": [run.name for run in runs],
        "colours": NUM_COLOURS,
        "frame": [LEFT, RIGHT, WIDTH],
        "charts": [data for _, data in drawn],
    }
    return [figure for figure, _ in drawn], values


def _curves(chart: Chart, runs: Sequence[RunRecord], most: int) -> list[Curve]:
    curves = []
    for number, run in enumerate(runs):
        for records, held_out in ((run.train, False), (run.evaluation, True)):
            if records.has(chart.name):
                kept = thin(records.columns[chart.name], most)
                steps = records.columns["step"][kept]
                tokens = records.columns["tokens"][kept]
                x = {"steps": steps, "tokens": tokens, "minutes": run.seconds_at(steps) / 60}
                curves.append(Curve(number, held_out, x, records.columns[chart.name][kept]))
    return curves


def _draw(number: int, chart: Chart, runs: Sequence[RunRecord], most: int) -> tuple[Markup, dict[str, Any]]:
    curves = _curves(chart, runs, most)
    levels = _distinct_levels(chart, runs)
    values = np.concatenate([curve.y for curve in curves])
    shown, remark = _without_spikes(chart, values)
    all_values = np.concatenate([shown, np.array([level.value for level in levels])])
    y = scale_for(all_values, BOTTOM, TOP, log=chart.is_log, from_zero=chart.from_zero)
    axes = {}
    for axis in AXES:
        ends = np.concatenate([curve.x[axis] for curve in curves])
        finite = ends[np.isfinite(ends)]
        axes[axis] = Scale(0.0, float(finite.max()) if len(finite) and finite.max() > 0 else 1.0, LEFT, RIGHT)
    clip = f"inside-{number}"
    frame = element("rect", x=LEFT - DOT, y=TOP - DOT, width=RIGHT - LEFT + 2 * DOT, height=BOTTOM - TOP + DOT)
    lines, labels = [], []
    for level in levels:
        place = round(y.place(level.value), 1)
        name = level.label if level.label == "chance" else f"{level.label} {formatting.number(level.value, 3)}"
        baseline = place + (13 if place - TOP < 14 else -5)  # below the line where there is no room above it
        lines.append(element("line", class_="level", x1=LEFT, x2=RIGHT, y1=place, y2=place))
        labels.append(element("text", name, class_="level", x=RIGHT - 3, y=baseline, text_anchor="end"))
    svg = element(
        "svg",
        element("clipPath", frame, id=clip),
        _vertical_axis(chart, y, values),
        *lines,
        *(_over(axis, scale, curves, y, chart, runs, clip) for axis, scale in axes.items()),
        *labels,  # after the curves, which would cross them out
        element("line", class_="pointer", x1=LEFT, x2=LEFT, y1=TOP, y2=BOTTOM, visibility="hidden"),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=_in_words(chart, curves, runs),
    )
    caption = element("figcaption", element("b", chart.title), f" {chart.unit}" if chart.unit else "")
    note = [element("p", remark, class_="remark")] if remark else []
    data = {
        "kind": chart.kind,
        "ends": {axis: scale.high for axis, scale in axes.items()},
        "curves": [
            {
                "run": curve.run,
                "heldOut": curve.held_out,
                **{axis: _numbers(curve.x[axis]) for axis in AXES},
                "y": _numbers(curve.y),
            }
            for curve in curves
        ],
    }
    return element("figure", caption, svg, *note, data_chart=number), data


def _distinct_levels(chart: Chart, runs: Sequence[RunRecord]) -> list[Level]:
    """Each level once: runs on the same data have the same."""
    found: dict[str, Level] = {}
    for run in runs:
        for level in chart.levels(run):
            if math.isfinite(level.value):
                found.setdefault(f"{level.label} {level.value:.3g}", level)
    return list(found.values())


def _without_spikes(chart: Chart, values: Float64[np.ndarray, "n"]) -> tuple[Float64[np.ndarray, "_"], str]:
    """The values that set a chart's height, without spikes that would flatten all the rest, and a remark on them."""
    finite = values[np.isfinite(values)]
    lost = len(values) - len(finite)
    many = f"{lost:,} drawn points have no finite value: the line has gaps there. "
    remark = {0: "", 1: "1 drawn point has no finite value: the line has a gap there. "}.get(lost, many)
    if not chart.is_log and len(finite) >= 20:
        low, usual, high = finite.min(), np.quantile(finite, 0.98), finite.max()
        if high - usual > 4 * (usual - low) > 0:
            within = finite[finite <= usual + 0.2 * (usual - low)]
            return (
                within,
                remark + f"The chart is cut at the top: the highest value is {WRITE[chart.kind](float(high))}.",
            )
    return finite, remark.strip()


def _vertical_axis(chart: Chart, y: Scale, values: Float64[np.ndarray, "n"]) -> Markup:
    parts = []
    levels = np.unique(values[np.isfinite(values)]).tolist()
    # Of a value that changes in steps, the few values that it takes are the ticks.
    for value in (levels if len(levels) <= 6 else ticks(y, whole=True)) if chart.is_step else ticks(y):
        place = round(y.place(value), 1)
        parts.append(element("line", x1=LEFT, x2=RIGHT, y1=place, y2=place))
        parts.append(element("text", _tick_text(chart.kind, value), x=LEFT - 6, y=place + 4, text_anchor="end"))
    return element("g", *parts, class_="axis")


def _tick_text(kind: str, value: float) -> str:
    if kind == "percent":
        return f"{100 * value:.6g}"
    if kind == "rate":
        return formatting.rate(value).replace(".00", "").replace(".0 ", " ")
    return f"{value:,.6g}".replace("e-0", "e-").replace("-", "−")


def _over(
    axis: str, x: Scale, curves: Sequence[Curve], y: Scale, chart: Chart, runs: Sequence[RunRecord], clip: str
) -> Markup:
    """The curves over one of the three axes, with that axis."""
    unit, size = _unit(axis, x.high)
    below = [element("line", class_="base", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)]
    inner = Scale(x.low, x.high / size, x.start, x.end)
    for value in ticks(inner, 5, whole=axis == "steps" and size == 1):
        place = round(inner.place(value), 1)
        below.append(element("line", class_="base", x1=place, x2=place, y1=BOTTOM, y2=BOTTOM + 4))
        below.append(element("text", f"{value:,.6g}", x=place, y=BOTTOM + 17, text_anchor="middle"))
    below.append(element("text", unit, x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle", class_="unit"))
    paths = [_path(curve, x(curve.x[axis]), y(curve.y), chart.is_step) for curve in curves]
    marks = [mark for number, run in enumerate(runs) for mark in _marks(run, number, axis, x)]
    return element(
        "g",
        element("g", *below, class_="axis"),
        element("g", *paths, clip_path=f"url(#{clip})"),
        *marks,
        class_=f"by-{axis}",
    )


def _unit(axis: str, high: float) -> tuple[str, float]:
    """What an axis counts, in a unit that gives short numbers, and how many of `axis` that unit is."""
    if axis == "minutes":
        units = ((2880.0, "days of training", 1440.0), (300.0, "hours of training", 60.0))
        return next(((unit, size) for above, unit, size in units if high > above), ("minutes of training", 1.0))
    for size, word in ((1e9, "billion "), (1e6, "million "), (1e4, "thousand ")):
        if high >= 2 * size:
            return f"{word}{axis}", 1e3 if size == 1e4 else size
    return axis, 1.0


def _path(curve: Curve, x: Float64[np.ndarray, "n"], y: Float64[np.ndarray, "n"], is_step: bool) -> Markup:
    # Spikes far above the chart end just above it: a renderer need not cope with huge numbers.
    y = np.clip(y, -HEIGHT, 2 * HEIGHT)
    words: list[str] = []
    dots: list[str] = []
    broken = True
    before = 0.0
    for across, down in zip(x.tolist(), y.tolist(), strict=True):
        if not (math.isfinite(across) and math.isfinite(down)):
            if not broken and words[-1].startswith("M"):
                words[-1] += "h0"  # alone between two gaps: a dot
            broken = True
            continue
        place = f"{across:.1f} {down:.1f}"
        if broken:
            words.append(f"M{place}")
        else:
            words.append(f"L{across:.1f} {before:.1f}L{place}" if is_step else f"L{place}")
        dots.append(f"M{place}h0")
        broken, before = False, down
    colour = look(curve.run)
    line = element("path", class_=f"{colour} {'held-out' if curve.held_out else 'training'}", d="".join(words))
    if (curve.held_out and len(dots) <= 60) or len(dots) == 1:
        return joined(line, element("path", class_=f"{colour} dots", d="".join(dots)))
    return line


def look(run: int) -> str:
    """The CSS classes of a run: its colour, and from the eighth on a dash."""
    dash = run // NUM_COLOURS % (NUM_DASHES + 1)
    return f"run-{run % NUM_COLOURS}" + (f" dash-{dash}" if dash else "")


def _marks(run: RunRecord, number: int, axis: str, x: Scale) -> list[Markup]:
    """Small ticks at the bottom at the steps of events."""
    steps = np.unique(np.array([event.step for event in run.events], np.float64))
    steps = steps[thin(steps, MOST_MARKS)]
    places = {"steps": steps, "tokens": run.tokens_at(steps), "minutes": run.seconds_at(steps) / 60}[axis]
    words = [f"M{place:.1f} {BOTTOM:g}v-7" for place in x(places).tolist() if LEFT <= place <= RIGHT]
    if not words:
        return []
    return [element("path", class_=f"run-{number % NUM_COLOURS} mark", d="".join(words))]


def _in_words(chart: Chart, curves: Sequence[Curve], runs: Sequence[RunRecord]) -> str:
    """The chart as text, for screen readers."""
    parts = []
    for curve in curves:
        finite = curve.y[np.isfinite(curve.y)]
        kind = "held out" if curve.held_out else "training"
        first, last = WRITE[chart.kind](float(finite[0])), WRITE[chart.kind](float(finite[-1]))
        parts.append(f"{runs[curve.run].name}, {kind}, from {first} to {last}")
    return f"{chart.title}: {'; '.join(parts)}."


def _numbers(values: Float64[np.ndarray, "n"]) -> list[int | float | None]:
    """Numbers for report.js, with the digits that it shows; what is not finite is null."""

    def shortened(value: float) -> int | float:
        return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.5g}")

    return [shortened(value) if math.isfinite(value) else None for value in values.tolist()]
