"""Findings for the eye: which class was taken for which, scores by class, the worst mistakes with what was marked."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from openalbert.formatting import NOTHING, counted, percent_of, were
from openalbert.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from openalbert.report.error_analysis import ErrorAnalysis, Mark, Mistake, Shown, written_scores
from openalbert.report.html import Markup, element, joined, table
from openalbert.report.scale import scale_for, ticks
from openalbert.tasks.label_checks import describe_never_predicted

OPEN_AT_FIRST = 10  # mistakes that are shown before a fold


def error_section(analyses: ErrorAnalysis) -> Markup:
    """All that was found on one split."""
    together = f", {analyses.num_models} models averaged" if analyses.num_models > 1 else ""
    found = written_scores(analyses.scores, analyses.main_metric, analyses.intervals).replace("_", " ")
    parts = [
        element("h2", f"{analyses.split}: a closer look"),
        element("p", f"{counted(analyses.num_examples, 'example')}{together}: {found}."),
        *_never_predicted(analyses),
        *_left_out(analyses),
    ]
    beside = []
    if analyses.confusion:
        beside.append(element("div", element("h3", "Which was taken for which"), confusion(analyses)))
    if analyses.parts:
        beside.append(element("div", element("h3", f"By {analyses.parts_title}"), _parts(analyses)))
    if analyses.values:
        beside.append(element("div", element("h3", "Predicted beside right"), scatter(analyses.values)))
    if beside:
        parts.append(element("div", *beside, class_="columns"))
    parts.append(_mistakes(analyses))
    return element("section", *parts)


def _never_predicted(analyses: ErrorAnalysis) -> list[Markup]:
    told = describe_never_predicted(analyses.kind, analyses.never_predicted, analyses.num_examples)
    return [element("ul", *(element("li", element("b", one)) for one in told), class_="notes")] if told else []


def _left_out(analyses: ErrorAnalysis) -> list[Markup]:
    said = []
    if analyses.num_truncated:
        number = analyses.num_truncated
        of_all = percent_of(number, max(1, analyses.num_examples))
        said.append(f"{counted(number, 'example')} ({of_all}) {were(number)} too long for the model, and cut.")
    said += [f"{count:,} left out: {reason}." for reason, count in analyses.excluded.items()]
    if analyses.intervals:
        said.append("In brackets: 95 % intervals, for accuracy Wilson's, for the others a bootstrap over examples.")
    if analyses.null_threshold:
        said.append(f"A question has no answer above this null score: {analyses.null_threshold}.")
    return [element("p", sentence, class_="soft") for sentence in said]


def confusion(analyses: ErrorAnalysis) -> Markup:
    """A row for each class that is right, a column for each that was predicted; the darker, the larger the share."""
    head = element(
        "tr",
        element("th", "right ↓  predicted →", scope="col", class_="corner"),
        *(element("th", label, scope="col") for label in analyses.labels),
    )
    rows = []
    for number, (label, counts) in enumerate(zip(analyses.labels, analyses.confusion, strict=True)):
        total = sum(counts)
        cells = []
        for column, count in enumerate(counts):
            fraction = count / total if total else 0.0
            cells.append(
                element(
                    "td",
                    f"{count:,}",
                    element("small", f"{100 * fraction:.1f} %"),
                    class_="hit" if column == number else "miss",
                    style=f"--share:{fraction:.3f}",
                )
            )
        rows.append(element("tr", element("th", label, scope="row"), *cells))
    body = element("table", element("thead", head), element("tbody", *rows), class_="matrix")
    return element("div", body, class_="scroll")


def _parts(analyses: ErrorAnalysis) -> Markup:
    names = list(dict.fromkeys(name for part in analyses.parts for name in part.figures))
    rows = [
        [part.name, f"{part.num_examples:,}"]
        + [f"{part.figures[name]:.1f}" if name in part.figures else NOTHING for name in names]
        for part in analyses.parts
    ]
    return table([analyses.parts_title, "examples", *(name.replace("_", " ") for name in names)], rows)


def scatter(values: Sequence[tuple[float, float]]) -> Markup:
    """A dot for each example: what is right across, what was predicted upwards; on the line they agree."""
    points = np.array(values, np.float64)
    finite = points[np.isfinite(points).all(1)]
    both = scale_for(finite.ravel(), LEFT, RIGHT)
    across, up = both, scale_for(finite.ravel(), BOTTOM, TOP)
    lines = []
    for value in ticks(both):
        x, y = round(across.place(value), 1), round(up.place(value), 1)
        lines.append(element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        lines.append(element("text", f"{value:g}", x=LEFT - 6, y=y + 4, text_anchor="end"))
        lines.append(element("text", f"{value:g}", x=x, y=BOTTOM + 17, text_anchor="middle"))
    lines.append(element("text", "right", x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle", class_="unit"))
    places = zip(across(finite[:, 0]).tolist(), up(finite[:, 1]).tolist(), strict=True)
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    picture = element(
        "svg",
        element("g", *lines, class_="axis"),
        element("line", class_="level", x1=LEFT, y1=BOTTOM, x2=RIGHT, y2=TOP),
        element("path", class_="run-0 cloud", d=dots),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"Predicted values beside right ones, {counted(len(finite), 'example')}.",
    )
    return element("figure", element("figcaption", "predicted, upwards"), picture, class_="single")


def _mistakes(analyses: ErrorAnalysis) -> Markup:
    if not analyses.mistakes:
        return joined(element("h3", "Mistakes"), element("p", "None."))
    is_value = analyses.kind == "regression"
    title = "The largest errors" if is_value else "The worst mistakes"
    number = f"{len(analyses.mistakes):,} of {analyses.num_mistakes:,}"
    note = "The farthest off first." if is_value else "Those first of which the model was surest."
    if any(mistake.row is not None for mistake in analyses.mistakes):
        note += " Rows are counted from 1 and without the file's header."
    shown = [_mistake(mistake) for mistake in analyses.mistakes]
    legend = []
    if any(text.marks for mistake in analyses.mistakes for text in mistake.texts):
        legend.append(
            element(
                "p",
                element("mark", "right", class_="gold"),
                " ",
                element("mark", "predicted", class_="predicted"),
                " ",
                element("mark", "both", class_="gold predicted"),
            )
        )
    rest = shown[OPEN_AT_FIRST:]
    more = [element("details", element("summary", f"{len(rest):,} more"), *rest)] if rest else []
    return joined(
        element("h3", title), element("p", f"{number}. {note}", class_="soft"), *legend, *shown[:OPEN_AT_FIRST], *more
    )


def _mistake(mistake: Mistake) -> Markup:
    verdict = element(
        "p",
        element("span", "right: ", class_="soft"),
        element("b", mistake.gold, class_="gold"),
        element("span", " predicted: ", class_="soft"),
        element("b", mistake.predicted, class_="predicted"),
        class_="verdict",
    )
    alone = len(mistake.texts) == 1
    texts = [
        element("p", *([] if alone else [element("span", f"{shown.name}: ", class_="soft")]), marked(shown))
        for shown in mistake.texts
    ]
    footer = element("p", f"{mistake.how_sure} · {mistake.place}", class_="remark")
    return element("article", verdict, *texts, footer, class_="mistake")


def marked(shown: Shown) -> Markup:
    """A text with its marks; where a right and a predicted one overlap, the stretch has both looks."""
    text = shown.text
    borders = {0, len(text)}
    for mark in shown.marks:
        borders |= {max(0, min(mark.start, len(text))), max(0, min(mark.end, len(text)))}
    places = sorted(borders)
    pieces: list[str] = []
    for start, end in pairwise(places):
        kinds = sorted({mark.kind for mark in shown.marks if _covers(mark, start, end)})
        piece = text[start:end]
        pieces.append(element("mark", piece, class_=" ".join(kinds)) if kinds else piece)
    return element("span", *pieces, class_="said")


def _covers(mark: Mark, start: int, end: int) -> bool:
    return mark.start <= start and end <= mark.end
