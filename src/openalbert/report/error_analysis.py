"""The error analysis of a split: metrics by class, the confusion matrix and the worst mistakes, and their section.

It is written as error_analysis.json into a run, so that its page can be drawn without the data and the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.formatting import NOTHING, counted, listed, percent_of, were
from openalbert.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, scale_for, ticks
from openalbert.report.html import Markup, element, joined, table
from openalbert.report.scores import written_scores
from openalbert.run_files import ERROR_ANALYSIS
from openalbert.settings import from_json, to_json
from openalbert.tasks.label_checks import describe_never_predicted
from openalbert.tasks.task import Kind

OPEN_AT_FIRST = 10  # mistakes that are shown before a fold
DENSE_FROM = 9  # classes from which on a confusion matrix has small cells
MOST_NAMED = 10  # classes in a sentence
TAG_LOOKS = {"gold": "actual type", "predicted": "predicted type", "both": "right type"}
MISTAKE_ORDER: dict[Kind, str] = {
    "classification": "Sorted by margin: the probability of the predicted class minus that of the actual one.",
    "multiple_choice": "Sorted by margin: the probability of the predicted option minus that of the actual one.",
    "multi_label": "Sorted by the sum of the probability errors of the wrong labels.",
    "question_answering": "Sorted by the probability of the predicted answer minus twice its F1.",
    "regression": "Sorted by absolute error.",
    "similarity": "Sorted by rank: of the positive among all texts, or by how wrongly a pair with a score is placed.",
    "tagging": "Sorted by the probabilities of the wrong tags, minus those of the actual ones, summed over the words.",
}


@dataclass(frozen=True)
class Mark:
    """A span of a text to highlight: an actual or a predicted answer or entity."""

    kind: str
    """gold or predicted."""
    start: int
    end: int
    label: str = ""
    """The type of an entity, which is written after it."""


@dataclass(frozen=True)
class Shown:
    """A text of an example."""

    name: str
    """What it is to the example: text, second text, passage, question, option."""
    text: str
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """An example with a wrong prediction."""

    id: str
    texts: tuple[Shown, ...]
    gold: str
    """The actual label or answer."""
    predicted: str
    """The predicted label or answer."""
    confidence: str
    """The probabilities of both, or the error."""
    row: int | None = None
    """The number of its row in its file, from 1, the header not counted; None where that is not known."""

    @property
    def place(self) -> str:
        """Its id and row in its file; an id that only counts the rows is left out."""
        if self.row is None:
            return f"id {self.id}"
        return f"row {self.row:,}" if self.id == str(self.row - 1) else f"id {self.id}, row {self.row:,}"


@dataclass(frozen=True)
class Group:
    """Metrics of some of the examples: of a class, of a kind of question."""

    name: str
    num_examples: int
    metrics: dict[str, float]
    """In percent."""


@dataclass(frozen=True)
class ErrorAnalysis:
    """The error analysis of one split."""

    task: str
    kind: Kind
    split: str
    main_metric: str
    scores: dict[str, float]
    """The task's metrics, in percent."""
    num_examples: int
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % interval of each metric that has one: on few examples."""
    never_predicted: dict[str, int] = field(default_factory=dict)
    """Classes that occur and were never predicted, with the number of their examples."""
    num_models: int = 1
    """More than one: an ensemble."""
    num_truncated: int = 0
    """Examples that were longer than the model's input."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Why rows were excluded, and how many."""
    null_threshold: str = ""
    """Where a question may have no answer: above which null score it has none, and how that number was fitted."""
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """For classes: how often each class (row) was predicted as each (column)."""
    values: tuple[tuple[float, float], ...] = ()
    """For regression: actual and predicted value of some examples."""
    grouped_by: str = ""
    """What the groups are: class, option, first word of the question."""
    groups: tuple[Group, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    """The worst first, see MISTAKE_ORDER."""
    num_mistakes: int = 0


def write_error_analyses(folder: Path, analyses: Sequence[ErrorAnalysis]) -> None:
    """Write the error analyses of some splits into a run; the first one is of the split that decides."""
    atomic_io.write_text(folder / ERROR_ANALYSIS, to_json(_Several(tuple(analyses))))


def read_error_analyses(folder: Path) -> tuple[ErrorAnalysis, ...]:
    """The error analyses of a run; none where it has not come to its end."""
    path = folder / ERROR_ANALYSIS
    if not path.is_file():
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError:
        raise UserError(f"{path}: not UTF-8: the file is damaged") from None
    return from_json(text, _Several, str(path)).splits


@dataclass(frozen=True)
class _Several:
    splits: tuple[ErrorAnalysis, ...]


def never_predicted_sentences(analysis: ErrorAnalysis) -> list[str]:
    """The classes that occur and were never predicted: a sentence each, or one on all of them where they are many."""
    missing = sorted(analysis.never_predicted.items(), key=lambda one: -one[1])
    if len(missing) <= 3:
        return describe_never_predicted(analysis.kind, analysis.never_predicted, analysis.num_examples)
    named = listed([f"{name} ({count:,})" for name, count in missing], MOST_NAMED)
    return [f"{len(missing):,} of {len(analysis.labels):,} classes were never predicted (examples): {named}"]


def error_section(analysis: ErrorAnalysis) -> Markup:
    """The error analysis of one split, for the page."""
    models = f", {analysis.num_models} models averaged" if analysis.num_models > 1 else ""
    scores = written_scores(analysis.scores, analysis.main_metric, analysis.intervals).replace("_", " ")
    never = never_predicted_sentences(analysis)
    blocks = []
    if analysis.confusion:
        blocks.append(element("div", element("h3", "Confusion matrix"), confusion(analysis)))
    if analysis.groups:
        blocks.append(element("div", element("h3", f"By {analysis.grouped_by}"), _groups(analysis)))
    if analysis.values:
        blocks.append(element("div", element("h3", "Predicted vs. actual"), scatter(analysis.values)))
    is_dense = len(analysis.confusion) >= DENSE_FROM
    return element(
        "section",
        element("h2", f"Error analysis: {analysis.split}"),
        element("p", f"{counted(analysis.num_examples, 'example')}{models}: {scores}."),
        *([element("ul", *(element("li", sentence) for sentence in never), class_="notes")] if never else []),
        *_remarks(analysis),
        *([element("div", *blocks, class_=None if is_dense else "columns")] if blocks else []),
        _mistakes(analysis),
    )


def _remarks(analysis: ErrorAnalysis) -> list[Markup]:
    sentences = []
    if analysis.num_truncated:
        number = analysis.num_truncated
        of_all = percent_of(number, max(1, analysis.num_examples))
        sentences.append(
            f"{counted(number, 'example')} ({of_all}) {were(number)} too long for the model and truncated."
        )
    sentences += [f"{count:,} excluded: {reason}." for reason, count in analysis.excluded.items()]
    if analysis.intervals:
        tags = analysis.kind == "tagging"
        how = "a bootstrap over texts" if tags else "Wilson's for accuracy, a bootstrap over examples for the others"
        sentences.append(f"In brackets: 95 % intervals ({how}).")
    if analysis.null_threshold:
        sentences.append(f"A question has no answer above this null score: {analysis.null_threshold}.")
    return [element("p", sentence, class_="soft") for sentence in sentences]


def confusion(analysis: ErrorAnalysis) -> Markup:
    """A row for each actual class, a column for each predicted one, shaded by the fraction of the row.

    With many classes the cells are small, zeros are blank and the fractions are shown under the pointer.
    """
    is_dense = len(analysis.confusion) >= DENSE_FROM
    head = element(
        "tr",
        element("th", "actual ↓  predicted →", scope="col", class_="corner"),
        *(element("th", label, scope="col") for label in analysis.labels),
    )
    rows = []
    for number, (label, counts) in enumerate(zip(analysis.labels, analysis.confusion, strict=True)):
        total = sum(counts)
        cells = []
        for column, count in enumerate(counts):
            fraction = count / total if total else 0.0
            percent = f"{100 * fraction:.1f} %"
            cells.append(
                element(
                    "td",
                    f"{count:,}" if count or not is_dense else "",
                    *([] if is_dense else [element("small", percent)]),
                    class_="hit" if column == number else "miss",
                    style=f"--fraction:{fraction:.3f}",
                    title=f"{label} as {analysis.labels[column]}: {percent}" if is_dense and count else None,
                )
            )
        rows.append(element("tr", element("th", label, scope="row"), *cells))
    look = "matrix dense" if is_dense else "matrix"
    body = element("table", element("thead", head), element("tbody", *rows), class_=look)
    return element("div", body, class_="scroll")


def _groups(analysis: ErrorAnalysis) -> Markup:
    names = list(dict.fromkeys(name for group in analysis.groups for name in group.metrics))
    rows = [
        [group.name, f"{group.num_examples:,}"]
        + [f"{group.metrics[name]:.1f}" if name in group.metrics else NOTHING for name in names]
        for group in analysis.groups
    ]
    counted_are = "entities" if analysis.grouped_by == "type" else "words" if analysis.kind == "tagging" else "examples"
    return table([analysis.grouped_by, counted_are, *(name.replace("_", " ") for name in names)], rows)


def scatter(values: Sequence[tuple[float, float]]) -> Markup:
    """A dot for each example, the predicted value over the actual one, and the diagonal."""
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
    lines.append(element("text", "actual", x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle", class_="unit"))
    places = zip(across(finite[:, 0]).tolist(), up(finite[:, 1]).tolist(), strict=True)
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    picture = element(
        "svg",
        element("g", *lines, class_="axis"),
        element("line", class_="level", x1=LEFT, y1=BOTTOM, x2=RIGHT, y2=TOP),
        element("path", class_="run-0 cloud", d=dots),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"Predicted vs. actual values, {counted(len(finite), 'example')}.",
    )
    return element("figure", element("figcaption", "predicted"), picture, class_="single")


def _mistakes(analysis: ErrorAnalysis) -> Markup:
    if not analysis.mistakes:
        return joined(element("h3", "Mistakes"), element("p", "None."))
    is_of_values = analysis.kind == "regression" or "spearman" in analysis.scores
    title = "Largest errors" if is_of_values else "Worst mistakes"
    note = f"{len(analysis.mistakes):,} of {analysis.num_mistakes:,}. {MISTAKE_ORDER[analysis.kind]}"
    if any(mistake.row is not None for mistake in analysis.mistakes):
        note += " Rows are counted from 1, without the file's header."
        note += " In a CoNLL file they are sentences." * (analysis.kind == "tagging")
    legend = []
    if any(text.marks for mistake in analysis.mistakes for text in mistake.texts):
        looks = {"gold": "actual only", "predicted": "predicted only", "gold predicted": "both"}
        shown_looks = [joined(element("mark", word, class_=look), " ") for look, word in looks.items()]
        if analysis.kind == "tagging":
            shown_looks += [joined(element("small", word, class_=f"tag {look}")) for look, word in TAG_LOOKS.items()]
        legend.append(element("p", *shown_looks))
    shown = [_mistake(mistake) for mistake in analysis.mistakes]
    rest = shown[OPEN_AT_FIRST:]
    more = [element("details", element("summary", f"{len(rest):,} more"), *rest)] if rest else []
    return joined(element("h3", title), element("p", note, class_="soft"), *legend, *shown[:OPEN_AT_FIRST], *more)


def _mistake(mistake: Mistake) -> Markup:
    labels = element(
        "p",
        element("span", "actual: ", class_="soft"),
        element("b", mistake.gold, class_="gold"),
        element("span", " predicted: ", class_="soft"),
        element("b", mistake.predicted, class_="predicted"),
        class_="labels",
    )
    alone = len(mistake.texts) == 1
    texts = [
        element("p", *([] if alone else [element("span", f"{shown.name}: ", class_="soft")]), marked(shown))
        for shown in mistake.texts
    ]
    footer = element("p", f"{mistake.confidence} · {mistake.place}", class_="remark")
    return element("article", labels, *texts, footer, class_="mistake")


def marked(shown: Shown) -> Markup:
    """A text with its marks; where an actual and a predicted one overlap, the span has both looks.

    The label of an entity is written after it.
    """
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
        pieces += _labels_at(shown.marks, end)
    return element("span", *pieces, class_="text")


def _labels_at(marks: Sequence[Mark], end: int) -> list[Markup]:
    """The labels of the entities that end here; one that is predicted right is written once."""
    ending = [mark for mark in marks if mark.label and mark.end == end]
    right = {(mark.start, mark.label) for mark in ending if mark.kind == "gold"}
    right &= {(mark.start, mark.label) for mark in ending if mark.kind == "predicted"}
    found = []
    for mark in ending:
        is_right = (mark.start, mark.label) in right
        if is_right and mark.kind == "predicted":
            continue
        look = "both" if is_right else mark.kind
        found.append(element("small", mark.label, class_=f"tag {look}", title=TAG_LOOKS[look]))
    return found


def _covers(mark: Mark, start: int, end: int) -> bool:
    return mark.start <= start and end <= mark.end
