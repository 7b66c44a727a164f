"""Custom similarity: pairs of similar texts, triplets with a negative, or pairs with a score.

Each file is read by its own columns: a model can learn from triplets and be scored on pairs with scores.
"""

from typing import Literal

from openalbert.errors import UserError
from openalbert.tasks.custom.column_guess import LABELS, SUBJECTS, guess_columns, is_id
from openalbert.tasks.custom.column_profile import profile
from openalbert.tasks.custom.columns import Columns, Layout, flag, normalize_name
from openalbert.tasks.custom.files import open_files
from openalbert.tasks.data.labels import parse_value
from openalbert.tasks.data.row_files import Exclusions, Table, describe_empty_rows
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.metrics import measure_similarity
from openalbert.tasks.task import Reading, SimilarityExample, Task, TaskMetadata

Form = Literal["pairs", "triplets", "scored pairs"]
MAIN_METRICS: dict[Form, str] = {"pairs": "mrr", "triplets": "accuracy", "scored pairs": "spearman"}
ANCHORS = ("anchor", "query", "question", "sent0")
POSITIVES = ("positive", "pos", "positivetext", "paraphrase", "sent1")
SCORES = frozenset(map(normalize_name, (*LABELS, *SUBJECTS, "similarity", "similarity_score", "relatedness", "sim")))


def open_similarity(source: TaskSource, metadata: TaskMetadata) -> Task:
    """The task; its main metric is that of the file that is scored on."""
    files = open_files("similarity", source, metadata, lambda table: _find_columns(table, source, True, None).roles)

    def parse(table: Table, labelled: bool) -> Reading:
        return _read(table, _find_columns(table, source, labelled, files.layout), labelled)

    scored = next((split for split in ("dev", "train") if split in files.splits), None)
    form: Form = "pairs"
    if scored is not None:
        form = _form(_find_columns(files.splits[scored](), source, True, files.layout))
    return files.task(parse, measure_similarity, MAIN_METRICS[form])


def _find_columns(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Columns:
    """Find the roles `text`, `second`, and where there is one `negative`, or `label` for a score."""
    columns = Columns(table, layout)
    columns.find_ids(source.id_column)
    score = _score_column(columns, source) if labelled else None
    negative = columns.find("negative", source.negative_column if labelled else None)
    _find_texts(columns, source)
    if score is not None and negative is not None:
        raise UserError(
            f"{table.name} has a score in '{score}' and a negative in '{negative}': a row is a triplet or a pair with "
            "a score, so take one of the columns out of the file"
        )
    if labelled and score is None and negative is None:
        # Pairs that are not similar must not be learned as if they were.
        flags = [name for name in columns.guessable if columns.profile(name).is_value and not is_id(name)]
        flags = [name for name in flags if columns.profile(name).distinct == 2]
        if flags:
            raise columns.missing("label", flags)
    return columns


def _form(columns: Columns) -> Form:
    """What the rows are."""
    return "triplets" if "negative" in columns.roles else "scored pairs" if "label" in columns.roles else "pairs"


def _score_column(columns: Columns, source: TaskSource) -> str | None:
    """The column of the scores: named by the user, or that of the layout, or known by its name."""
    score = columns.given("label", source.label_column)
    if score is None:
        found = [name for name in columns.guessable if normalize_name(name) in SCORES]
        if len(found) > 1:
            raise columns.missing("label", found)
        score = columns.take("label", found[0], guessed=True) if found else None
    if score is not None and not columns.profile(score).is_value:
        cells = [value for row in columns.table.rows if (value := row.values.get(score)) not in (None, "")]
        some = next((f"has '{str(cell)[:40]}'" for cell in cells if not profile([cell]).is_value), "is empty")
        raise UserError(
            f"{columns.table.name}: '{score}' {some}, but a score of similarity is a number. To learn from "
            "pairs that are similar, keep those rows alone, and take the column out"
        )
    return score


def _find_texts(columns: Columns, source: TaskSource) -> None:
    """Anchor and positive by those names; else found as other tasks find a pair of texts."""
    texts = {normalize_name(name): name for name in columns.guessable if columns.profile(name).can_be_text}
    anchor, positive = (next((texts[name] for name in names if name in texts), None) for names in (ANCHORS, POSITIVES))
    is_given = source.text_column is not None or source.second_column is not None
    is_given = is_given or columns.layout.get("text") in columns.free
    if anchor is not None and positive is not None and not is_given:
        columns.take("text", anchor, guessed=True)
        columns.take("second", positive, guessed=True)
        return
    guess_columns(columns, source, "values", labelled=False, finds_label=False)
    if "second" not in columns.roles:
        raise UserError(
            f"{columns.table.name}: similarity needs two texts a row, but only '{columns['text']}' was found: name "
            f"both with {flag('text')} and {flag('second')}"
        )


def _read(table: Table, columns: Columns, labelled: bool) -> Reading:
    """An example from each row with its texts and its score; from every row where nothing but texts is needed."""
    examples: list[SimilarityExample] = []
    excluded, empty = Exclusions(table.excluded), Exclusions()
    names = [columns[role] for role in ("text", "second", "negative") if role in columns.roles]
    score_column = columns.get("label")
    for number, (row, row_id) in enumerate(zip(table.rows, columns.ids, strict=True), 1):
        first, second, *negative = (row.visible_text(name) for name in names)
        score = parse_value(row, score_column) if score_column is not None else None
        if not labelled:
            if not (first and second):
                empty.add("without a text", row.place)
            examples.append(SimilarityExample(row_id, first, second, is_labelled=False, row=number))
        elif not all((first, second, *negative)):
            excluded.add("without a text", row.place)
        elif score_column is not None and score is None:
            excluded.add("without a score", row.place)
        elif negative and negative[0] in (first, second):
            excluded.add("whose negative is one of its other texts", row.place)
        else:
            third = negative[0] if negative else None
            examples.append(SimilarityExample(row_id, first, second, third, score, row=number))
    remarks = (*columns.remarks, *describe_empty_rows(empty))
    if labelled:
        remarks += (f"{table.name}: read as {_form(columns)}",)
    return Reading(tuple(examples), excluded.counted(), remarks, layout=columns.roles)


def check_has_contrast(reading: Reading) -> None:
    """Refuse examples without contrast: no negatives, and none within a batch."""
    examples = [example for example in reading.examples if isinstance(example, SimilarityExample)]
    if any(example.negative is not None for example in examples):
        return
    scores = {example.score for example in examples}
    if scores != {None}:
        if len(scores) < 2:
            raise UserError(
                f"{reading.origin}: all scores are {scores.pop():g}: there is no contrast to learn from. Pairs that "
                "are all similar are learned without a column of scores"
            )
    elif len({example.first for example in examples}) < 2:
        raise UserError(
            f"{reading.origin}: all pairs have the same first text, but the texts of the other pairs of a batch are "
            "the negatives of a pair: more pairs are needed, or a column of negatives"
        )
