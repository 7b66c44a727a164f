"""A user's own questions with options, one of them right, on a passage or on none."""

from collections.abc import Sequence
from typing import Literal

from openalbert.errors import UserError
from openalbert.tasks.metrics import measure_choices
from openalbert.tasks.own.columns import Columns, option_columns
from openalbert.tasks.own.texts import own_openings
from openalbert.tasks.race import LETTERS
from openalbert.tasks.source import Source, assemble
from openalbert.tasks.tables import Exclusions, Row, Table, as_text
from openalbert.tasks.task import ChoiceExample, Reading, Task
from openalbert.tasks.wording import counted

Writing = Literal["the option itself", "its letter", "its number from 0", "its number from 1"]
SEPARATORS = ("|", ";")


def open_multiple_choice(source: Source) -> Task:
    """The task."""
    opened = own_openings("multiple_choice", source)

    def parse(table: Table, labelled: bool) -> Reading:
        return _questions(table, source, labelled)

    return assemble("multiple_choice", "multiple_choice", source, opened, parse, measure_choices, "accuracy")


def _questions(table: Table, source: Source, labelled: bool) -> Reading:
    columns = Columns(table)
    ids, id_remark = columns.ids(source.id_column)
    option_names = source.options_columns
    for name in option_names:
        table.column((name,), "option (--options-columns)")
    if not option_names:
        found = columns.find("options", None)
        option_names = (found,) if found is not None else option_columns(table)
    if not option_names:
        raise columns.missing("options")
    for number, name in enumerate(option_names):
        columns.take("options" if len(option_names) == 1 else f"option {number + 1}", name)
    answer = columns.find("answer", source.answer_column if labelled else None)
    question = columns.find("question", source.question_column)
    passage = columns.find("passage", source.passage_column)
    if question is None:
        raise columns.missing("question")
    if labelled and answer is None:
        raise columns.missing("answer")
    options = [_options(row, option_names, source.label_separator) for row in table.rows]
    answers = [row.text(answer).strip() if answer is not None and labelled else "" for row in table.rows]
    writing = _writing(options, answers)
    examples: list[ChoiceExample] = []
    excluded, blank = Exclusions(table.excluded), Exclusions()
    for row, row_id, given, right in zip(table.rows, ids, options, answers, strict=True):
        if len(given) < 2:
            if not labelled:
                # Left out, it would be missing among the predictions, of which each row needs one.
                raise UserError(
                    f"{row.place} has {counted(len(given), 'option')}, and two are the fewest to choose from: mend the "
                    "row, or take it out"
                )
            excluded.add("with fewer than two options", row.place)
        elif labelled and not right:
            excluded.add("without an answer", row.place)
        else:
            if not all(given):
                # Taken out, it would move the letters and numbers of those behind it.
                blank.add("with an empty option, which stays among the others", row.place)
            label = _number(row, given, right, writing) if labelled else None
            on = row.text(passage) if passage is not None else ""
            examples.append(ChoiceExample(row_id, on, row.text(question), given, label))
    told = (f"{table.name}: the answer is read as {writing}",) if labelled else ()
    told += tuple(f"{counted(count, 'question')} {reason}" for reason, count in blank.counted().items())
    listed = f"{table.name}: the options are {', '.join(option_names)}"
    remarks = (*table.remarks, *columns.remark(), listed, *told, *((id_remark,) if id_remark else ()))
    return Reading(tuple(examples), excluded.counted(), remarks)


def _options(row: Row, names: tuple[str, ...], separator: str | None) -> tuple[str, ...]:
    if len(names) > 1:
        return _up_to_the_last([row.text(name) for name in names])
    given = row.values.get(names[0])
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        given = given["text"]  # as datasets write options with their letters
    if isinstance(given, list):
        return tuple(as_text(option, f"{row.place}: an option").strip() for option in given)
    text = row.text(names[0])
    sign = separator or next((sign for sign in SEPARATORS if sign in text), SEPARATORS[0])
    parts = text.strip().split(sign)
    # The sign on both sides frames the options, as in a table that is drawn.
    return _up_to_the_last(parts[1:] if len(parts) > 2 and parts[0] == parts[-1] == "" else parts)


def _up_to_the_last(texts: Sequence[str]) -> tuple[str, ...]:
    """Options without the empty ones at the end, which a question leaves that has fewer than others."""
    options = [text.strip() for text in texts]
    while options and not options[-1]:
        options.pop()
    return tuple(options)


def _writing(options: Sequence[tuple[str, ...]], answers: Sequence[str]) -> Writing:
    """How the file writes which option is right: the first way that fits every row."""
    told = [(given, right) for given, right in zip(options, answers, strict=True) if right and len(given) > 1]
    if all(right in given for given, right in told):
        return "the option itself"
    if all(len(right) == 1 and right.upper() in LETTERS for _, right in told):
        return "its letter"
    if all(right.isdecimal() for _, right in told):
        counts_from_1 = all(1 <= int(right) <= len(given) for given, right in told)
        return "its number from 1" if counts_from_1 and any(int(r) == len(g) for g, r in told) else "its number from 0"
    return "the option itself"


def _number(row: Row, options: tuple[str, ...], right: str, writing: Writing) -> int:
    if writing == "the option itself":
        number = options.index(right) if right in options else -1
    elif writing == "its letter":
        number = LETTERS.index(right.upper())
    else:
        number = int(right) - (writing == "its number from 1")
    if not 0 <= number < len(options):
        raise UserError(
            f"{row.place}: the answer '{right}', read as {writing}, is none of the {len(options)} options: "
            "write the option itself, its letter (A is the first), or its number from 0"
        )
    return number
