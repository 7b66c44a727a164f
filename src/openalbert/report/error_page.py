"""Findings for the eye: which class was taken for which, scores by class, the worst mistakes with what was marked."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from openalbert.formatting import NOTHING, counted, share, were
from openalbert.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from openalbert.report.error_analysis import Findings, Mark, Mistake, Shown, written_scores
from openalbert.report.html import Markup, element, joined, table
from openalbert.report.scale import scale_for, ticks
from openalbert.tasks.label_checks import never_predicted_told

OPEN_AT_FIRST = 10  # mistakes that are shown before a fold


def findings_section(findings: Findings) -> Markup:
    """All that was found on one split."""
    together = f", {findings.num_models} models averaged" if findings.num_models > 1 else ""
    found = written_scores(findings.scores, findings.main_metric, findings.intervals).replace("_", " ")
    parts = [
        element("h2", f"{findings.split}: a closer look"),
        element("p", f"{counted(findings.num_examples, 'example')}{together}: {found}."),
        *_never_predicted(findings),
        *_left_out(findings),
    ]
    beside = []
    if findings.confusion:
        beside.append(element("div", element("h3", "Which was taken for which"), confusion(findings)))
    if findings.parts:
        beside.append(element("div", element("h3", f"By {findings.parts_title}"), _parts(findings)))
    if findings.values:
        beside.append(element("div", element("h3", "Predicted beside right"), scatter(findings.values)))
    if beside:
        parts.append(element("div", *beside, class_="columns"))
    parts.append(_mistakes(findings))
    return element("section", *parts)


def _never_predicted(findings: Findings) -> list[Markup]:
    told = never_predicted_told(findings.kind, findings.never_predicted, findings.num_examples)
    return [element("ul", *(element("li", element("b", one)) for one in told), class_="notes")] if told else []


def _left_out(findings: Findings) -> list[Markup]:
    said = []
    if findings.num_truncated:
        number = findings.num_truncated
        of_all = share(number, max(1, findings.num_examples))
        said.append(f"{counted(number, 'example')} ({of_all}) {were(number)} too long for the model, and cut.")
    said += [f"{count:,} left out: {reason}." for reason, count in findings.excluded.items()]
    if findings.intervals:
        said.append("In brackets: 95 % intervals, for accuracy Wilson's, for the others a bootstrap over examples.")
    if findings.null_threshold:
        said.append(f"A question has no answer above this null score: {findings.null_threshold}.")
    return [element("p", sentence, class_="soft") for sentence in said]


def confusion(findings: Findings) -> Markup:
    """A row for each class that is right, a column for each that was predicted; the darker, the larger the share."""
    head = element(
        "tr",
        element("th", "right ↓  predicted →", scope="col", class_="corner"),
        *(element("th", label, scope="col") for label in findings.labels),
    )
    rows = []
    for number, (label, counts) in enumerate(zip(findings.labels, findings.confusion, strict=True)):
        total = sum(counts)
        cells = []
        for column, count in enumerate(counts):
            share = count / total if total else 0.0
            cells.append(
                element(
                    "td",
                    f"{count:,}",
                    element("small", f"{100 * share:.1f} %"),
                    class_="hit" if column == number else "miss",
                    style=f"--share:{share:.3f}",
                )
            )
        rows.append(element("tr", element("th", label, scope="row"), *cells))
    body = element("table", element("thead", head), element("tbody", *rows), class_="matrix")
    return element("div", body, class_="scroll")


def _parts(findings: Findings) -> Markup:
    names = list(dict.fromkeys(name for part in findings.parts for name in part.figures))
    rows = [
        [part.name, f"{part.num_examples:,}"]
        + [f"{part.figures[name]:.1f}" if name in part.figures else NOTHING for name in names]
        for part in findings.parts
    ]
    return table([findings.parts_title, "examples", *(name.replace("_", " ") for name in names)], rows)


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


def _mistakes(findings: Findings) -> Markup:
    if not findings.mistakes:
        return joined(element("h3", "Mistakes"), element("p", "None."))
    is_value = findings.kind == "regression"
    title = "The largest errors" if is_value else "The worst mistakes"
    number = f"{len(findings.mistakes):,} of {findings.num_mistakes:,}"
    note = "The farthest off first." if is_value else "Those first of which the model was surest."
    if any(mistake.row is not None for mistake in findings.mistakes):
        note += " Rows are counted from 1 and without the file's header."
    shown = [_mistake(mistake) for mistake in findings.mistakes]
    legend = []
    if any(text.marks for mistake in findings.mistakes for text in mistake.texts):
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
