"""A user's own questions with options, one of them right, on a passage or on none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.custom.columns import Columns, Layout, counts_from, layout_of, option_columns
from openalbert.tasks.custom.text import own_openings
from openalbert.tasks.data.source import TaskSource, assemble
from openalbert.tasks.data.tables import Exclusions, Row, Table, as_text, whole_number
from openalbert.tasks.metrics import measure_choices
from openalbert.tasks.race import LETTERS
from openalbert.tasks.task import ChoiceExample, Known, Reading, Task, Writing

SEPARATORS = ("|", ";")


@dataclass(frozen=True)
class Choices:
    """Where the questions of a table are, and their options and answers, a row each."""

    question: str
    passage: str | None
    ids: list[str]
    counts_from: int | None
    """From where the columns of the options are numbered, 0 or 1; None where they are not."""
    options: list[tuple[str, ...]]
    answers: list[str]
    """As they are written; "" where there is none, or none is needed."""
    remarks: tuple[str, ...]
    layout: Mapping[str, str]
    """All columns that have a role, by it."""

    @property
    def told(self) -> list[tuple[tuple[str, ...], str]]:
        """Options and answer of each row that has both."""
        rows = zip(self.options, self.answers, strict=True)
        return [(given, right) for given, right in rows if right and len(given) > 1]


@dataclass(frozen=True)
class Written:
    """How it is written which option is right, and where that was seen."""

    writing: Writing
    seen: str


def open_multiple_choice(source: TaskSource, known: Known) -> Task:
    """The task. How the right option is written is known of a model, or seen in the training file, or else in what is
    scored on.

    It holds for all files that it fits: guessed anew, one in which no last option is right would be read from 0 beside
    one that counts from 1.
    """
    opened = own_openings("multiple_choice", source)
    layout = layout_of(known, opened, lambda table: _choices(table, source, True, None).layout)
    first = next((split for split in ("train", "dev") if split in opened), None)
    written = None
    if known.writing is not None:
        written = Written(known.writing, "the file that the model learned from")
    elif first is not None:
        table = opened[first]()
        written = Written(_writing(_choices(table, source, True, layout)), table.name)

    def parse(table: Table, labelled: bool) -> Reading:
        return _questions(table, source, written if labelled else None, layout)

    task = assemble("multiple_choice", "multiple_choice", source, opened, parse, measure_choices, "accuracy")
    return replace(task, writing=written.writing if written is not None else None)


def _choices(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Choices:
    columns = Columns(table, layout)
    ids, id_remark = columns.ids(source.id_column)
    option_names = source.options_columns
    for name in option_names:
        table.column((name,), "option (--options-columns)")
    known = tuple(column for role, column in columns.layout.items() if role.startswith("option "))
    if not option_names and known and set(known) <= set(table.columns):
        option_names = known
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
    where = "the column" if len(option_names) == 1 else "the columns"
    listed = f"{table.name}: the options stand in {where} {', '.join(option_names)}"
    remarks = (*table.remarks, *columns.remark(), listed, *((id_remark,) if id_remark else ()))
    numbered = counts_from(option_names)
    return Choices(question, passage, ids, numbered, options, answers, remarks, columns.roles)


def _questions(table: Table, source: TaskSource, written: Written | None, layout: Layout | None) -> Reading:
    """The examples of a table, with labels where it is known how they are written."""
    choices = _choices(table, source, written is not None, layout)
    examples: list[ChoiceExample] = []
    excluded, odd = Exclusions(table.excluded), Exclusions()
    how = _read_as(choices, written, table) if written is not None else None
    rows = zip(table.rows, choices.ids, choices.options, choices.answers, strict=True)
    for number, (row, row_id, given, right) in enumerate(rows, 1):
        if len(given) < 2:
            if written is None:
                # Left out, it would be missing among the predictions, of which each row needs one.
                raise UserError(
                    f"{row.place} has {counted(len(given), 'option')}, and two are the fewest to choose from: mend the "
                    "row, or take it out"
                )
            excluded.add("with fewer than two options", row.place)
        elif written is not None and not right:
            excluded.add("without an answer", row.place)
        else:
            if not all(given):
                # Taken out, it would move the letters and numbers of those behind it.
                odd.add("with an empty option, which stays among the others", row.place)
            seen = [option for option in given if option]
            if written is not None and len(set(seen)) < len(seen):
                odd.add("with options that are alike, of which one at most counts as right", row.place)
            label = _number(row, given, right, how) if how is not None else None
            on = row.text(choices.passage) if choices.passage is not None else ""
            examples.append(ChoiceExample(row_id, on, row.text(choices.question), given, label, row=number))
    remarks = choices.remarks
    if how is not None:
        remarks += (f"{table.name}: the answer is read as {how.writing}{how.seen}",)
    remarks += tuple(f"{counted(count, 'question')} {reason}" for reason, count in odd.counted().items())
    return Reading(tuple(examples), excluded.counted(), remarks, layout=choices.layout)


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


def _read_as(choices: Choices, written: Written, table: Table) -> Written:
    """How a table is read, with a remark in `seen`: as another that is known where that fits every row, else in the way
    that does. Only numbers from 0 and from 1 can be taken for each other."""
    if written.seen == table.name:
        return Written(written.writing, _doubt(choices, written.writing))
    like = Written(written.writing, f", as in {written.seen}")
    if _fits(choices, written.writing):
        return like
    own = _writing(choices)
    if not _fits(choices, own):
        return like
    return Written(own, f", but in {written.seen} it is {written.writing}{_doubt(choices, own)}")


def _doubt(choices: Choices, writing: Writing) -> str:
    """What to say where numbers fit from 0 and from 1: by the columns' own numbers, or by nothing."""
    numbers: tuple[Writing, Writing] = ("its number from 0", "its number from 1")
    if writing not in numbers or not all(_fits(choices, number) for number in numbers):
        return ""
    taken = numbers.index(writing)
    how = ", like the columns of the options" if choices.counts_from == taken else ""
    return (
        f"{how}; from {1 - taken} would fit as well: if it counts so, write letters (A is the first) or the options "
        "themselves"
    )


def _writing(choices: Choices) -> Writing:
    """How a file writes which option is right: the first way that fits every row."""
    told = choices.told
    if _fits(choices, "the option itself"):
        return "the option itself"
    if all(len(right) == 1 and right.upper() in LETTERS for _, right in told):
        return "its letter"
    if all(right.isdecimal() for _, right in told):
        from_1 = choices.counts_from == 1 or any(whole_number(right) == len(given) for given, right in told)
        return "its number from 1" if from_1 and _fits(choices, "its number from 1") else "its number from 0"
    return "the option itself"


def _fits(choices: Choices, writing: Writing) -> bool:
    """Whether every row names one of its options in that way."""
    return all(_option(given, right, writing) is not None for given, right in choices.told)


def _option(options: tuple[str, ...], right: str, writing: Writing) -> int | None:
    """Which option is right, counted from 0; None where it is none of them."""
    number = -1
    if writing == "the option itself":
        number = options.index(right) if right in options else -1
    elif writing == "its letter":
        number = LETTERS.find(right.upper()) if len(right) == 1 else -1
    elif (told := whole_number(right)) is not None:
        number = told - (writing == "its number from 1")
    return number if 0 <= number < len(options) else None


def _number(row: Row, options: tuple[str, ...], right: str, how: Written) -> int:
    number = _option(options, right, how.writing)
    if number is None:
        advice = "write the option itself, its letter (A is the first), or its number from 0"
        raise UserError(
            f"{row.place}: the answer '{right[:40]}', read as {how.writing}{how.seen}, is none of the {len(options)} "
            f"options: {'write both files in one way' if how.seen else advice}"
        )
    return number
