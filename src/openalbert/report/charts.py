"""The pictures of a report: SVG drawn here, for each picture once over steps, over tokens and over minutes.

The page shows one of the three at a time. A script adds the values under the pointer; without it they are whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from openalbert import formatting
from openalbert.report.html import Markup, element, joined
from openalbert.report.run_reader import Records, RunRecord
from openalbert.report.scale import Scale, scale_for, thin, ticks

AXES = ("steps", "tokens", "minutes")
WIDTH, HEIGHT = 440.0, 264.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 416.0, 14.0, 220.0
DOT = 4  # room for a dot that stands on an edge
MOST_POINTS = 1_200  # of one curve: about three for each point of a picture's width
MOST_POINTS_OF_A_PAGE = 24_000  # keeps a page with many runs well under 2 MB
MOST_MARKS = 60
NUM_COLOURS, NUM_DASHES = 7, 3  # of report.css: the eighth run has the first one's colour again, dashed


@dataclass(frozen=True)
class Line:
    """A level to compare with: chance, or the entropy of single words."""

    label: str
    value: float


@dataclass(frozen=True)
class Picture:
    """What is drawn in one picture."""

    name: str
    """The field of the records."""
    title: str
    unit: str
    write: Callable[[object], str]
    """How a value is written."""
    hover: str = "number"
    """How the script writes it: number, percent or rate."""
    log: bool = False
    from_zero: bool = False
    stairs: bool = False
    """Does the value stay as it is until it changes?"""
    lines: Callable[[RunRecord], Sequence[Line]] = field(default=lambda run: ())


def _loss_lines(run: RunRecord) -> list[Line]:
    entropy = formatting.present(run.info("unigram_entropy"))
    return [] if entropy is None else [Line("unigram entropy", entropy)]


def _sentence_pictures(task: str) -> tuple[Picture, Picture]:
    """Accuracy and loss of sentence-order or next-sentence prediction."""
    name = task.upper()
    accuracy_lines = lambda run: [Line("chance", 0.5)]  # noqa: E731
    loss_lines = lambda run: [Line("chance", math.log(2))]  # noqa: E731
    return (
        Picture(f"{task}_acc", f"{name} accuracy", "% right", formatting.percent, "percent", lines=accuracy_lines),
        Picture(f"{task}_loss", f"{name} loss", "nats per pair", formatting.number, lines=loss_lines),
    )


PICTURES = (
    Picture("mlm_loss", "MLM loss", "nats per masked token", formatting.number, lines=_loss_lines),
    Picture("mlm_acc", "MLM accuracy", "% right", formatting.percent, "percent", from_zero=True),
    *_sentence_pictures("sop"),
    *_sentence_pictures("nsp"),
    Picture("lr", "Learning rate", "", formatting.number, from_zero=True),
    Picture("grad_norm", "Gradient norm", "before clipping, logarithmic", formatting.number, log=True),
    Picture("depth", "Depth", "layers", formatting.count, from_zero=True, stairs=True),
    Picture("tokens_per_second", "Throughput", "tokens per second", formatting.rate, "rate", from_zero=True),
    Picture("mfu", "Model FLOPs utilization (MFU)", "%", formatting.percent, "percent", from_zero=True),
)


@dataclass(frozen=True)
class Curve:
    """One line of a picture, thinned."""

    run: int
    held_out: bool
    x: dict[str, Float64[np.ndarray, "n"]]
    """Its places on each of the three axes."""
    y: Float64[np.ndarray, "n"]


def draw(
    runs: Sequence[RunRecord], pictures: Sequence[Picture] = PICTURES
) -> tuple[list[Markup], list[dict[str, Any]]]:
    """The pictures of these runs, and what the script has to know of each to name values under the pointer."""
    shown = [picture for picture in pictures if _is_shown(picture, runs)]
    number = sum(
        len(records) > 0 and picture.name in records.columns and records.has(picture.name)
        for picture in shown
        for run in runs
        for records in (run.train, run.evaluation)
    )
    most = min(MOST_POINTS, MOST_POINTS_OF_A_PAGE // max(1, number))
    drawn = [_draw(number, picture, runs, most) for number, picture in enumerate(shown)]
    return [figure for figure, _ in drawn], [data for _, data in drawn]


def constant_depth(run: RunRecord) -> int | None:
    """The depth of a run that keeps to one, which needs no picture."""
    depths = run.train.columns["depth"]
    return int(depths[0]) if len(depths) and np.isfinite(depths).all() and (depths == depths[0]).all() else None


def _is_shown(picture: Picture, runs: Sequence[RunRecord]) -> bool:
    if picture.name == "depth" and len({constant_depth(run) for run in runs if len(run.train)} - {None}) <= 1:
        return any(constant_depth(run) is None and run.train.has("depth") for run in runs)
    return any(
        records.has(picture.name)
        for run in runs
        for records in (run.train, run.evaluation)
        if picture.name in records.columns
    )


def _curves(picture: Picture, runs: Sequence[RunRecord], most: int) -> list[Curve]:
    curves = []
    for number, run in enumerate(runs):
        for records, held_out in ((run.train, False), (run.evaluation, True)):
            if picture.name in records.columns and records.has(picture.name):
                kept = thin(records.columns[picture.name], most)
                curves.append(Curve(number, held_out, _places(run, records, kept), records.columns[picture.name][kept]))
    return curves


def _places(run: RunRecord, records: Records, kept: Any) -> dict[str, Float64[np.ndarray, "n"]]:
    steps = records.columns["step"][kept]
    return {"steps": steps, "tokens": records.columns["tokens"][kept], "minutes": run.seconds_at(steps) / 60}


def _draw(number: int, picture: Picture, runs: Sequence[RunRecord], most: int) -> tuple[Markup, dict[str, Any]]:
    curves = _curves(picture, runs, most)
    lines = _distinct_lines(picture, runs)
    values = np.concatenate([curve.y for curve in curves])
    shown, remark = _without_spikes(picture, values)
    levels = np.array([line.value for line in lines])
    y = scale_for(np.concatenate([shown, levels]), BOTTOM, TOP, log=picture.log, from_zero=picture.from_zero)
    axes = {}
    for axis in AXES:
        ends = np.concatenate([curve.x[axis] for curve in curves])
        finite = ends[np.isfinite(ends)]
        axes[axis] = Scale(0.0, float(finite.max()) if len(finite) and finite.max() > 0 else 1.0, LEFT, RIGHT)
    clip = f"inside-{number}"
    body = joined(
        element(
            "clipPath",
            element("rect", x=LEFT - DOT, y=TOP - DOT, width=RIGHT - LEFT + 2 * DOT, height=BOTTOM - TOP + DOT),
            id=clip,
        ),
        _vertical_axis(picture, y, values),
        *(_level(line, y) for line in lines),
        *(_over(axis, scale, curves, y, picture, runs, clip) for axis, scale in axes.items()),
        *(_level_name(line, y) for line in lines),
        element("line", class_="pointer", x1=LEFT, x2=LEFT, y1=TOP, y2=BOTTOM, visibility="hidden"),
    )
    picture_of = element(
        "svg", body, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=_in_words(picture, curves, runs)
    )
    caption = element("figcaption", element("b", picture.title), f" {picture.unit}" if picture.unit else "")
    note = [element("p", remark, class_="remark")] if remark else []
    data = {
        "write": picture.hover,
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
    return element("figure", caption, picture_of, *note, data_picture=number), data


def _distinct_lines(picture: Picture, runs: Sequence[RunRecord]) -> list[Line]:
    """Each level once: runs on the same data have the same."""
    found: dict[str, Line] = {}
    for run in runs:
        for line in picture.lines(run):
            if math.isfinite(line.value):
                found.setdefault(f"{line.label} {line.value:.3g}", line)
    return list(found.values())


def _without_spikes(picture: Picture, values: Float64[np.ndarray, "n"]) -> tuple[Float64[np.ndarray, "_"], str]:
    """The values that decide a picture's height: a spike that would flatten all the rest is cut, and said."""
    finite = values[np.isfinite(values)]
    lost = len(values) - len(finite)
    many = f"{lost:,} drawn points have no finite value: the line has gaps there. "
    remark = {0: "", 1: "1 drawn point has no finite value: the line has a gap there. "}.get(lost, many)
    if not picture.log and len(finite) >= 20:
        low, usual, high = finite.min(), np.quantile(finite, 0.98), finite.max()
        if high - usual > 4 * (usual - low) > 0:
            within = finite[finite <= usual + 0.2 * (usual - low)]
            remark += f"The picture is cut at the top: the highest value is {picture.write(float(high))}."
            return within, remark
    return finite, remark.strip()


def _vertical_axis(picture: Picture, y: Scale, values: Float64[np.ndarray, "n"]) -> Markup:
    parts = []
    levels = np.unique(values[np.isfinite(values)]).tolist()
    # Of something that goes in stairs, the few values that it takes are the ones to name.
    for value in (levels if len(levels) <= 6 else ticks(y, whole=True)) if picture.stairs else ticks(y):
        place = round(y.place(value), 1)
        parts.append(element("line", x1=LEFT, x2=RIGHT, y1=place, y2=place))
        parts.append(element("text", _tick_text(picture.hover, value), x=LEFT - 6, y=place + 4, text_anchor="end"))
    return element("g", *parts, class_="axis")


def _tick_text(kind: str, value: float) -> str:
    if kind == "percent":
        return f"{100 * value:.6g}"
    if kind == "rate":
        return formatting.rate(value).replace(".00", "").replace(".0 ", " ")
    return f"{value:,.6g}".replace("e-0", "e-").replace("-", "−")


def _level(line: Line, y: Scale) -> Markup:
    place = round(y.place(line.value), 1)
    return element("line", class_="level", x1=LEFT, x2=RIGHT, y1=place, y2=place)


def _level_name(line: Line, y: Scale) -> Markup:
    """Drawn over the curves, or they would cross it out."""
    place = round(y.place(line.value), 1)
    below = place - TOP < 14  # no room for it above the line
    name = line.label if line.label == "chance" else f"{line.label} {formatting.number(line.value, 3)}"
    return element("text", name, class_="level", x=RIGHT - 3, y=place + (13 if below else -5), text_anchor="end")


def _over(
    axis: str, x: Scale, curves: Sequence[Curve], y: Scale, picture: Picture, runs: Sequence[RunRecord], clip: str
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
    paths = [_path(curve, x(curve.x[axis]), y(_drawable(curve.y, y)), picture.stairs) for curve in curves]
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


def _drawable(values: Float64[np.ndarray, "n"], y: Scale) -> Float64[np.ndarray, "n"]:
    """The values that have a place: on a logarithmic scale 0 and below have none."""
    return np.where(np.isfinite(values) & ((values > 0) | (not y.log)), values, np.nan)


def _path(curve: Curve, x: Float64[np.ndarray, "n"], y: Float64[np.ndarray, "n"], stairs: bool) -> Markup:
    # Spikes far above the picture are drawn to just above it: a renderer need not cope with huge numbers.
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
            words.append(f"L{across:.1f} {before:.1f}L{place}" if stairs else f"L{place}")
        dots.append(f"M{place}h0")
        broken, before = False, down
    colour = look(curve.run)
    line = element("path", class_=f"{colour} {'held-out' if curve.held_out else 'training'}", d="".join(words))
    if (curve.held_out and len(dots) <= 60) or len(dots) == 1:
        return joined(line, element("path", class_=f"{colour} dots", d="".join(dots)))
    return line


def look(run: int) -> str:
    """The classes that tell a run from others: its colour, and from the eighth on a dash."""
    dash = run // NUM_COLOURS % (NUM_DASHES + 1)
    return f"run-{run % NUM_COLOURS}" + (f" dash-{dash}" if dash else "")


def _marks(run: RunRecord, number: int, axis: str, x: Scale) -> list[Markup]:
    """Small ticks at the bottom where something happened; the page's table says what."""
    steps = np.unique(np.array([event.step for event in run.events], np.float64))
    steps = steps[thin(steps, MOST_MARKS)]
    places = {"steps": steps, "tokens": run.tokens_at(steps), "minutes": run.seconds_at(steps) / 60}[axis]
    words = [f"M{place:.1f} {BOTTOM:g}v-7" for place in x(places).tolist() if LEFT <= place <= RIGHT]
    if not words:
        return []
    return [element("path", class_=f"run-{number % NUM_COLOURS} mark", d="".join(words))]


def _in_words(picture: Picture, curves: Sequence[Curve], runs: Sequence[RunRecord]) -> str:
    """The picture for those who do not see it."""
    parts = []
    for curve in curves:
        finite = curve.y[np.isfinite(curve.y)]
        kind = "held out" if curve.held_out else "training"
        first, last = picture.write(float(finite[0])), picture.write(float(finite[-1]))
        parts.append(f"{runs[curve.run].name}, {kind}, from {first} to {last}")
    return f"{picture.title}: {'; '.join(parts)}."


def _numbers(values: Float64[np.ndarray, "n"]) -> list[int | float | None]:
    """Numbers for the script, with the digits it shows; what is not finite is null."""
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> int | float:
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.5g}")
