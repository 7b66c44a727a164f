"""Custom questions with options, one of them right, with or without a passage."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.custom.columns import Columns, Layout, columns_named, normalize_name
from openalbert.tasks.custom.files import open_files
from openalbert.tasks.data.row_files import Exclusions, Row, Table, as_text, whole_number
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.metrics import measure_choices
from openalbert.tasks.race import LETTERS
from openalbert.tasks.task import AnswerFormat, ChoiceExample, Reading, Task, TaskMetadata

SEPARATORS = ("|", ";")
OPTION_NAME = re.compile(r"(?:option|choice|ending|answer)?([a-h]|[0-9])$")


@dataclass(frozen=True)
class Choices:
    """The options and answers of the rows of a table of questions."""

    columns: Columns
    counts_from: int | None
    """The first number of the columns of the options, 0 or 1; None where they are not numbered."""
    options: list[tuple[str, ...]]
    answers: list[str]
    """As in the file; "" where there is none, or none is needed."""

    @property
    def answered(self) -> list[tuple[tuple[str, ...], str]]:
        """Options and answer of each row that has both."""
        rows = zip(self.options, self.answers, strict=True)
        return [(given, right) for given, right in rows if right and len(given) > 1]


@dataclass(frozen=True)
class SeenFormat:
    """A format of answers, and where it was seen."""

    format: AnswerFormat
    seen: str


def open_multiple_choice(source: TaskSource, metadata: TaskMetadata) -> Task:
    """The task. The format of the answers is that of the model, else of the training file, else of the dev file.

    It is used for all files that it fits. Guessed for each file, one in which the last option is never right would be
    read from 0 where the others count from 1.
    """
    files = open_files(
        "multiple_choice", source, metadata, lambda table: find_choice_columns(table, source, True, None).roles
    )
    seen = None
    if metadata.answer_format is not None:
        seen = SeenFormat(metadata.answer_format, "the model's training file")
    elif (first := files.labelled_table()) is not None:
        seen = SeenFormat(_guess_format(_choices(first, source, True, files.layout)), first.name)

    def parse(table: Table, labelled: bool) -> Reading:
        return _questions(table, source, seen if labelled else None, files.layout)

    def has_labels(table: Table) -> bool:
        return seen is not None and files.has_labels(table)

    task = files.task(parse, measure_choices, "accuracy", has_labels=has_labels)
    return replace(task, answer_format=seen.format if seen is not None else None)


def find_choice_columns(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Columns:
    """Find the roles `question`, `options` (or `option 1` and so on), and where they are known `passage`, `answer`."""
    columns = Columns(table, layout)
    columns.find_ids(source.id_column)
    option_names = columns_named(table, source.options_columns, "--options-columns")
    in_layout = option_columns(columns.layout)
    if not option_names and len(in_layout) > 1 and set(in_layout) <= set(table.columns):
        option_names = in_layout
    if not option_names:
        found = columns.find("options", None)
        option_names = (found,) if found is not None else _guess_option_columns(table)
    if not option_names:
        raise columns.missing("options")
    for number, name in enumerate(option_names):
        columns.take("options" if len(option_names) == 1 else f"option {number + 1}", name)
    columns.find("answer", source.answer_column if labelled else None)
    columns.find("question", source.question_column)
    columns.find("passage", source.passage_column)
    for role in ("question", *(("answer",) if labelled else ())):
        if role not in columns.roles:
            raise columns.missing(role)
    return columns


def option_columns(roles: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the options, one for each; or the one that has all of them."""
    return tuple(column for role, column in roles.items() if role == "options" or role.startswith("option "))


def _choices(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Choices:
    columns = find_choice_columns(table, source, labelled, layout)
    names, answer = option_columns(columns.roles), columns.get("answer") if labelled else None
    options = [read_options(row, names, source.label_separator) for row in table.rows]
    answers = [row.text(answer).strip() if answer is not None else "" for row in table.rows]
    return Choices(columns, first_number(names), options, answers)


def _guess_option_columns(table: Table) -> tuple[str, ...]:
    """Columns that are an option each by their names: option1, choice_b, A."""
    found: list[tuple[str, str]] = []
    for column in table.columns:
        match = OPTION_NAME.match(normalize_name(column))
        if match:
            found.append((match[1], column))
    return tuple(column for _, column in sorted(found)) if len(found) > 1 else ()


def first_number(names: Sequence[str]) -> int | None:
    """The first number of columns that are numbered in order: 1 for option1, option2; None where they are not."""
    endings = [name[len(name.rstrip("0123456789")) :] for name in names]
    if len(names) < 2:
        return None
    return next((first for first in (0, 1) if endings == [str(first + place) for place in range(len(names))]), None)


def _questions(table: Table, source: TaskSource, seen: SeenFormat | None, layout: Layout | None) -> Reading:
    """The examples of a table, with labels where the format of the answers is given."""
    labelled = seen is not None
    choices = _choices(table, source, labelled, layout)
    columns, passage_column = choices.columns, choices.columns.get("passage")
    examples: list[ChoiceExample] = []
    excluded, odd = Exclusions(table.excluded), Exclusions()
    used = _choose_format(choices, seen, table) if seen is not None else None
    rows = zip(table.rows, columns.ids, choices.options, choices.answers, strict=True)
    for number, (row, row_id, given, right) in enumerate(rows, 1):
        if len(given) < 2:
            if not labelled:
                # Every row needs a prediction, so it cannot be excluded.
                raise UserError(
                    f"{row.place} has {counted(len(given), 'option')}, and at least two are needed: repair the row, or "
                    "remove it"
                )
            excluded.add("with fewer than two options", row.place)
        elif labelled and not right:
            excluded.add("without an answer", row.place)
        else:
            if not all(given):
                # Without it the letters and numbers of the following options would shift.
                odd.add("with an empty option, which is kept", row.place)
            texts = [option for option in given if option]
            if labelled and len(set(texts)) < len(texts):
                odd.add("with equal options, of which one at most counts as right", row.place)
            label = _label(row, given, right, used) if used is not None else None
            passage = row.text(passage_column) if passage_column is not None else ""
            examples.append(ChoiceExample(row_id, passage, row.text(columns["question"]), given, label, row=number))
    names = option_columns(columns.roles)
    where = "the column" if len(names) == 1 else "the columns"
    remarks = (*columns.remarks, f"{table.name}: the options are in {where} {', '.join(names)}")
    if used is not None:
        remarks += (f"{table.name}: answer format: {used.format}{used.seen}",)
    remarks += tuple(f"{counted(count, 'question')} {reason}" for reason, count in odd.counted().items())
    return Reading(tuple(examples), excluded.counted(), remarks, layout=columns.roles)


def read_options(row: Row, names: tuple[str, ...], separator: str | None) -> tuple[str, ...]:
    """The options of a row, from a column for each or from one for all; empty ones at the end are left out."""
    if len(names) > 1:
        return strip_options([row.text(name) for name in names])
    given = row.values.get(names[0])
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        given = given["text"]  # datasets with a list of texts and one of letters
    if isinstance(given, list):
        return tuple(as_text(option, f"{row.place}: an option").strip() for option in given)
    text = row.text(names[0])
    used = separator or next((one for one in SEPARATORS if one in text), SEPARATORS[0])
    texts = text.strip().split(used)
    # A separator on both sides frames the options, as in a Markdown table.
    return strip_options(texts[1:] if len(texts) > 2 and texts[0] == texts[-1] == "" else texts)


def strip_options(texts: Sequence[str]) -> tuple[str, ...]:
    """Options without the empty ones at the end, as of a question that has fewer than others."""
    options = [text.strip() for text in texts]
    while options and not options[-1]:
        options.pop()
    return tuple(options)


def _choose_format(choices: Choices, other: SeenFormat, table: Table) -> SeenFormat:
    """The format for a table, with a remark in `seen`: that of another file if it fits every row, else one that does.

    Only numbers from 0 and from 1 can be mistaken for each other.
    """
    if other.seen == table.name:
        return SeenFormat(other.format, _ambiguity(choices, other.format))
    same = SeenFormat(other.format, f", as in {other.seen}")
    if _fits(choices, other.format):
        return same
    guessed = _guess_format(choices)
    if not _fits(choices, guessed):
        return same
    return SeenFormat(guessed, f", but in {other.seen} it is {other.format}{_ambiguity(choices, guessed)}")


def _ambiguity(choices: Choices, answer_format: AnswerFormat) -> str:
    """A remark where numbers from 0 and from 1 both fit; the numbers of the columns decide, if they have any."""
    numbers: tuple[AnswerFormat, AnswerFormat] = ("number from 0", "number from 1")
    if answer_format not in numbers or not all(_fits(choices, number) for number in numbers):
        return ""
    taken = numbers.index(answer_format)
    how = ", like the columns of the options" if choices.counts_from == taken else ""
    return (
        f"{how}; from {1 - taken} would fit as well: if that is meant, write letters (A is the first) or the texts of "
        "the options"
    )


def _guess_format(choices: Choices) -> AnswerFormat:
    """The first format that fits every row."""
    answered = choices.answered
    if _fits(choices, "option text"):
        return "option text"
    if all(len(right) == 1 and right.upper() in LETTERS for _, right in answered):
        return "letter"
    if all(right.isdecimal() for _, right in answered):
        from_1 = choices.counts_from == 1 or any(whole_number(right) == len(given) for given, right in answered)
        return "number from 1" if from_1 and _fits(choices, "number from 1") else "number from 0"
    return "option text"


def _fits(choices: Choices, answer_format: AnswerFormat) -> bool:
    return all(_find_option(given, right, answer_format) is not None for given, right in choices.answered)


def _find_option(options: tuple[str, ...], right: str, answer_format: AnswerFormat) -> int | None:
    """The number of the right option, from 0; None where the answer is none of them."""
    found = -1
    if answer_format == "option text":
        found = options.index(right) if right in options else -1
    elif answer_format == "letter":
        found = LETTERS.find(right.upper()) if len(right) == 1 else -1
    elif (number := whole_number(right)) is not None:
        found = number - (answer_format == "number from 1")
    return found if 0 <= found < len(options) else None


def _label(row: Row, options: tuple[str, ...], right: str, used: SeenFormat) -> int:
    number = _find_option(options, right, used.format)
    if number is None:
        advice = "write the text of the option, its letter (A is the first), or its number from 0"
        raise UserError(
            f"{row.place}: the answer '{right[:40]}', read as {used.format}{used.seen}, is none of the {len(options)} "
            f"options: {'use one format in all files' if used.seen else advice}"
        )
    return number
