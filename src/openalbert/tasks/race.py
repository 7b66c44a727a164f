"""RACE: questions on passages from English exams of Chinese schools, four options each (Lai et al., 2017).

Middle school (`race_middle`), high school (`race_high`) and both (`race`), from RACE's folders with one file
per passage, JSONL with one passage per line, or a dataset with one question per row.
"""

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.row_files import (
    Exclusions,
    Row,
    Table,
    as_text,
    check_no_rows_excluded,
    read_json,
    read_table,
    table_of,
)
from openalbert.tasks.data.source import TaskSource, build_task, open_splits
from openalbert.tasks.metrics import measure_choices
from openalbert.tasks.task import ChoiceExample, Reading, Task

School = Literal["all", "middle", "high"]
PATTERNS = {split: (split, f"{split}*.jsonl*") for split in ("train", "dev", "test")}
LETTERS = string.ascii_uppercase


def letter(option: int) -> str:
    """The letter of an option, A for the first; its number from 0 beyond the alphabet."""
    return LETTERS[option] if option < len(LETTERS) else str(option)


def open_race(source: TaskSource, school: School) -> Task:
    """The task of one school or both."""
    name = "race" if school == "all" else f"race_{school}"

    def parse(table: Table, labelled: bool) -> Reading:
        return _questions(table, labelled, school)

    opened = open_splits(name, source, read_passages, PATTERNS, ("race",))
    return build_task(name, "multiple_choice", source, opened, parse, measure_choices, "accuracy")


def read_passages(path: Path) -> Table:
    """A row for each passage, with all its questions: a folder of RACE's files, or a JSONL file."""
    if not path.is_dir():
        return read_table(path)
    rows = []
    for number, file in enumerate(sorted(path.rglob("*.txt")), 1):
        passage = read_json(file)
        if not isinstance(passage, dict):
            raise UserError(f"{file} is not a passage of RACE: a JSON object is expected")
        # The files of both schools have the same names.
        rows.append(Row(f"{file}, passage", number, {"school": file.parent.name, **passage}))
    return table_of(str(path), rows)


def _questions(table: Table, labelled: bool, school: School) -> Reading:
    examples: list[ChoiceExample] = []
    excluded = Exclusions(table.excluded)
    in_passage: dict[str, int] = {}
    num_other_school = 0
    for row in table.rows:
        passage_id = (row.text("id") or row.text("example_id")).removesuffix(".txt") or str(row.number)
        if not passage_id.startswith(row.text("school")):
            passage_id = f"{row.text('school')}{passage_id}"
        if passage_id in in_passage and "questions" in row.values:
            excluded.add("passages with the id of another", f"{row.place}, '{passage_id}'")
            continue
        # Passages that were added later have ids which name no school, and are of high school.
        group = "middle" if "middle" in (passage_id[:6], row.text("school")) else "high"
        if school not in ("all", group):
            num_other_school += 1
            continue
        passage = row.text("article")
        for question, options, answer in _each(row, labelled):
            number = in_passage[passage_id] = in_passage.get(passage_id, -1) + 1
            row_id = f"{passage_id}-{number}"
            where = f"{row.place}, '{row_id}'"
            label = LETTERS.find(answer) if len(answer) == 1 else -1
            if labelled and not passage.strip():
                excluded.add("without a passage", where)
            elif len(options) < 2:
                excluded.add("with fewer than two options", where)
            elif labelled and not 0 <= label < len(options):
                raise UserError(
                    f"{where}: the answer '{answer}' is none of {', '.join(LETTERS[: len(options)])}, its options"
                )
            else:
                examples.append(ChoiceExample(row_id, passage, question, options, label if labelled else None, group))
    if num_other_school == len(table.rows):
        given = counted(num_other_school, "passage" if "questions" in table.columns else "question")
        raise UserError(
            f"{table.name} gives no example to race_{school}: it has {given}, and none is of {school} school"
        )
    if not labelled:
        check_no_rows_excluded(table.name, excluded.counted())
    return Reading(tuple(examples), excluded.counted(), table.remarks)


def _each(row: Row, labelled: bool) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The questions of a row with their options and answers: of a whole passage, or of one question."""
    if "questions" in row.values:
        questions, options = row.values["questions"], row.values.get("options")
        answers = row.values.get("answers")
    else:
        questions, options = [row.values.get("question")], [row.values.get("options")]
        answers = [row.values.get("answer")]
    if not labelled and isinstance(questions, list):
        answers = [""] * len(questions)
    if not isinstance(questions, list) or not isinstance(options, list) or not isinstance(answers, list):
        raise UserError(f"{row.place} has no lists of questions, options and answers, as RACE has them")
    if not len(questions) == len(options) == len(answers):
        raise UserError(
            f"{row.place} has {counted(len(questions), 'question')}, {counted(len(options), 'list')} of options and "
            f"{counted(len(answers), 'answer')}: "
            "the numbers must be equal"
        )
    for question, given, answer in zip(questions, options, answers, strict=True):
        if not isinstance(given, list):
            raise UserError(f"{row.place}: the options of a question are not a list")
        texts = tuple(as_text(option, f"{row.place}: an option") for option in given)
        yield as_text(question, f"{row.place}: a question"), texts, as_text(answer, f"{row.place}: an answer").strip()
