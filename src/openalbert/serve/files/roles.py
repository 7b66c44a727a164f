"""Which columns of a file a model reads: as the user names them, as in its training file, or guessed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openalbert.errors import UserError
from openalbert.formatting import counted, were
from openalbert.serve.files.rows import TextLines
from openalbert.serve.inputs import Input, roles_of
from openalbert.serve.masks import MASK
from openalbert.serve.predictor import Predictor
from openalbert.tasks.custom.columns import SETTINGS, Columns, Layout, flag, role_name
from openalbert.tasks.custom.multiple_choice import find_choice_columns, option_columns, read_options
from openalbert.tasks.custom.question_answering import find_question_columns
from openalbert.tasks.custom.tagging import find_words
from openalbert.tasks.custom.text import find_text_columns
from openalbert.tasks.data.row_files import Row, Table
from openalbert.tasks.data.source import TaskSource

PAIR = "\t"  # between the values of a line of text


@dataclass(frozen=True)
class InputColumns:
    """The columns that are read. Not given: those of the training file."""

    text_column: str | None = None
    """The column of the text, or of the first of two. Not given: that of the training file."""
    second_column: str | None = None
    """The column of the second text of a pair."""
    question_column: str | None = None
    """The column of the question."""
    passage_column: str | None = None
    """The column of the passage that a question is about."""
    options_columns: tuple[str, ...] = ()
    """The columns of the options of multiple_choice, one for each; or the column that has all of them."""
    label_separator: str | None = None
    """The separator between options in one column."""


@dataclass(frozen=True)
class RowReader:
    """How the input of a row is read."""

    read: Callable[[Row], Input]
    remarks: tuple[str, ...] = ()
    """Messages on columns that were guessed."""


def find_roles(model: Predictor, table: Table, named: InputColumns) -> RowReader:
    """Find the columns of a table; one that the model was trained on and the table lacks is an error."""
    columns = {name: getattr(named, name) for name in InputColumns.__dataclass_fields__}
    source = TaskSource(**columns)
    layout = Layout(model.task.layout) if model.task is not None and model.task.layout else None
    if model.kind == "tagging":
        role, column = find_words(table, source, layout)
        return RowReader(_reader({role: column}))
    if layout is not None:
        _check_columns(model, Columns(table, layout), columns)
    if model.kind == "question_answering":
        found = find_question_columns(table, source, False, layout)
        roles = {"question": found["question"], "passage": found["passage"]}
        return RowReader(_reader(roles), _guesses(table, roles, columns, layout))
    if model.kind == "multiple_choice":
        choice = find_choice_columns(table, source, False, layout)
        roles, names = _some_of(choice, "question", "passage"), option_columns(choice.roles)
        read = _reader(roles)

        def with_options(row: Row) -> Input:
            return {**read(row), "options": read_options(row, names, named.label_separator)}

        options = {"options": ", ".join(names)}
        return RowReader(with_options, _guesses(table, {**roles, **options}, columns, layout))
    labelling = {"regression": "values", "multi_label": "sets"}.get(model.kind or "", "classes")
    texts = find_text_columns(table, source, labelling, False, layout)  # type: ignore[arg-type]
    roles = _some_of(texts, "text", "second")
    if model.of_pairs is not None and model.of_pairs != ("second" in roles):
        if model.of_pairs:
            raise UserError(
                f"{model.name} was trained on pairs of texts, but only '{roles['text']}' of {table.name} is read: name "
                "the column of the second text with --second-column"
            )
        raise UserError(
            f"{model.name} was trained on single texts, but '{roles['text']}' and '{roles['second']}' of {table.name} "
            "are a pair: name the one to read with --text-column"
        )
    return RowReader(_reader(roles), _guesses(table, roles, columns, layout))


def _some_of(columns: Columns, *roles: str) -> dict[str, str]:
    return {role: columns[role] for role in roles if role in columns.roles}


def _guesses(
    table: Table, roles: Mapping[str, str], named: Mapping[str, Any], layout: Layout | None
) -> tuple[str, ...]:
    """A message on the columns that neither the user nor the training file names."""
    known = {"options" if role.startswith("option") else role for role in (layout.columns if layout else ())}
    guessed = [role for role in roles if role not in known and not named.get(SETTINGS[role])]
    columns = ", ".join(f"the {role_name(role)} from '{roles[role]}'" for role in guessed)
    settings = ", ".join(map(flag, guessed))
    return (f"{table.name}: {columns} (guessed; change with {settings})",) if guessed else ()


def _reader(roles: Mapping[str, str]) -> Callable[[Row], Input]:
    return lambda row: {role: row.values.get(column) for role, column in roles.items()}


def _check_columns(model: Predictor, columns: Columns, named: Mapping[str, Any]) -> None:
    """Refuse a table without a column of the training file, unless the user names another for it."""
    table = columns.table
    for role in roles_of(model.kind):
        setting = f"{role}_column"
        if role not in columns.layout or role == "options" or named.get(setting):
            continue
        if columns.given(role, None) is None:
            there = ", ".join(f"'{column}'" for column in table.columns)
            raise UserError(
                f"{table.name} has no column '{columns.layout[role]}', the {role_name(role)} that {model.name} "
                "was trained on: "
                f"name the column to read with {flag(role)}; there {'is' if len(table.columns) == 1 else 'are'} {there}"
            )


def lines_for(model: Predictor) -> TextLines:
    """How lines of text are read: the two texts of a pair, a question and its passage, or a question and its options
    are separated by tabs."""
    roles = roles_of(model.kind)
    if model.kind == "multiple_choice":
        return TextLines(("question", "options"), lambda line: _question(line.split(PAIR)))
    if model.of_pairs is False or model.kind == "tagging":
        return TextLines(("text",), lambda line: {"text": line})
    if model.of_pairs or model.kind == "question_answering":
        return TextLines(roles, lambda line: dict(zip(roles, (*line.split(PAIR, 1), ""), strict=False)))
    return TextLines(roles, lambda line: dict(zip(roles, line.split(PAIR, 1), strict=False)))


def words_for(model: Predictor, words: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """What the words of a command line are: texts; or two by two pairs, or a question and its passage; or a question
    and its options. Of a pretrained model, texts without [MASK] are pairs."""
    roles = roles_of(model.kind)
    if model.kind == "multiple_choice":
        return [_question(words)]
    has_masks = any(MASK in word for word in words)
    if model.kind == "question_answering" or model.of_pairs or (model.kind is None and not has_masks):
        if len(words) % 2:
            raise UserError(
                f"{counted(len(words), 'text')} {were(len(words))} given, but {model.name} reads "
                f"{' and '.join(role_name(role) for role in roles)}: give both, each in quotes"
                + (f"; or a text with {MASK}" if model.kind is None else "")
            )
        return [dict(zip(roles, words[place : place + 2], strict=True)) for place in range(0, len(words), 2)]
    return [{"text": word} for word in words]


def _question(values: Sequence[str]) -> dict[str, Any]:
    question, *options = values
    return {"question": question, "options": options}
