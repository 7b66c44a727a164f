"""SQuAD 1.1 and 2.0: the answer to a question is a stretch of the passage; in 2.0 there may be none.

(Rajpurkar et al., 2016 and 2018.) The same reading serves a user's own questions, in SQuAD's JSON or in a table.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.tasks.data.fields import check_none_lost
from openalbert.tasks.data.source import TaskSource, assemble, openings
from openalbert.tasks.data.tables import Exclusions, Row, Table, as_text, read_json, read_table, table_of, whole_number
from openalbert.tasks.metrics import measure_answers
from openalbert.tasks.task import Answer, QuestionExample, Reading, Task

PATTERNS = {
    "1.1": {
        "train": ("train-v1.1.json*", "train*v1.1.json*"),
        "dev": ("dev-v1.1.json*",),
        "test": ("test-v1.1.json*",),
    },
    "2.0": {
        "train": ("train-v2.0.json*", "train*v2.0.json*"),
        "dev": ("dev-v2.0.json*",),
        "test": ("test-v2.0.json*",),
    },
}


COLUMNS = ("id", "context", "question", "answers", "answer_start")


def open_squad(source: TaskSource, version: str) -> Task:
    """The task of a version, from its folder or from files of its form."""
    name, may_have_no_answer = ("squad1", False) if version == "1.1" else ("squad2", True)
    opened = openings(name, source, read_questions, PATTERNS[version], ("squad", name))

    def parse(table: Table, labelled: bool) -> Reading:
        return questions(table, labelled, may_have_no_answer)

    return assemble(
        name,
        "question_answering",
        source,
        opened,
        parse,
        measure_answers(may_have_no_answer),
        "f1",
        may_have_no_answer=may_have_no_answer,
    )


def read_questions(path: Path) -> Table:
    """A row for each question: of SQuAD's JSON, or of a table."""
    plain = path.with_suffix("") if path.suffix in (".gz", ".bz2", ".xz", ".zst") else path
    if plain.suffix.lower() != ".json":
        return read_table(path)
    try:
        whole = read_json(path)
    except UserError:
        return read_table(path)  # an object a line, or else it says which line is broken
    if not isinstance(whole, dict) or "data" not in whole:
        return read_table(path)
    return table_of(str(path), list(_flat(path, whole)))


def _flat(path: Path, whole: Mapping[str, Any]) -> Iterator[Row]:
    number = 0
    for article in _each(whole, "data", str(path)):
        title = as_text(article.get("title"), f"{path}: a title")
        place = f"{path}, article '{title}'"
        for paragraph in _each(article, "paragraphs", place):
            for question in _each(paragraph, "qas", place):
                number += 1
                yield Row(
                    f"{path}, question", number, {"title": title, "context": paragraph.get("context"), **question}
                )


def _each(parent: Mapping[str, Any], name: str, place: str) -> list[dict[str, Any]]:
    children = parent.get(name)
    if not isinstance(children, list) or not all(isinstance(child, dict) for child in children):
        raise UserError(f"{place} has no list of objects under '{name}', as SQuAD's JSON has it")
    return children


def questions(
    table: Table, labelled: bool, may_have_no_answer: bool, columns: Mapping[str, str] | None = None
) -> Reading:
    """Examples from rows with SQuAD's names (or those in `columns`): id, context, question, answers.

    Answers are SQuAD's list of objects, a dataset's object of two lists, or a text with or without answer_start.
    """
    names = {name: (columns or {}).get(name, name) for name in COLUMNS}
    for role in ("context", "question", *(("answers",) if labelled else ())):
        table.column((names[role],), role)
    given_ids = {row.text(names["id"]) for row in table.rows}
    seen: set[str] = set()
    examples: list[QuestionExample] = []
    excluded = Exclusions(table.excluded)
    moved = Exclusions()
    unanswered: list[str] = []
    for number, row in enumerate(table.rows):
        row_id = row.text(names["id"]) or _free_id(number, given_ids)
        passage, question = row.text(names["context"]), row.text(names["question"])
        answers: tuple[Answer, ...] = ()
        if row_id in seen:
            excluded.add("with the id of another question", f"{row.place}, '{row_id}'")
            continue
        if labelled:
            if not passage.strip() or not question.strip():
                excluded.add("without a passage or a question", row.place)
                continue
            given = [] if _is_impossible(row) else _answers(row, names)
            answers = tuple(_stands(passage, answer, row, moved) for answer in given if answer.text in passage)
            if 0 < len(answers) < len(given):
                moved.add("questions have answers that are not in the passage, and keep the others", row.place)
            if not answers and (given or not may_have_no_answer):
                reason = "whose answer is not in the passage" if given else "without an answer"
                excluded.add(reason, row.place)
                continue
            if not answers:
                unanswered.append(row.place)
        seen.add(row_id)
        title = row.text("title")
        examples.append(
            QuestionExample(row_id, passage, question, answers, title, is_labelled=labelled, row=number + 1)
        )
    if not labelled:
        check_none_lost(table.name, excluded.counted())
    remarks = [*table.remarks, *(f"{count:,} {reason}" for reason, count in moved.counted().items())]
    if unanswered:
        remarks.append(f"{len(unanswered):,} of {len(examples):,} questions have no answer (first: {unanswered[0]})")
    return Reading(tuple(examples), excluded.counted(), tuple(remarks))


def _free_id(number: int, taken: set[str]) -> str:
    """An id for a question that has none, and that no other has."""
    name = str(number)
    while name in taken:
        name = f"_{name}"
    return name


def has_no_answer(row: Row, columns: Mapping[str, str]) -> bool:
    """Whether a row asks something, and says that its passage does not answer."""
    names = {name: columns.get(name, name) for name in COLUMNS}
    if not row.text(names["context"]).strip() or not row.text(names["question"]).strip():
        return False
    return _is_impossible(row) or not _answers(row, names)


def _is_impossible(row: Row) -> bool:
    return row.text("is_impossible").strip().lower() in ("true", "1")


def _answers(row: Row, names: Mapping[str, str]) -> list[Answer]:
    """The answers as they are given; start -1 where none is told."""
    given = row.values.get(names["answers"])
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        starts = given.get("answer_start") or [None] * len(given["text"])
        given = [{"text": text, "answer_start": start} for text, start in zip(given["text"], starts, strict=False)]
    elif not isinstance(given, list):
        given = [{"text": given, "answer_start": row.values.get(names["answer_start"])}]
    answers: list[Answer] = []
    for one in given:
        told = one if isinstance(one, dict) else {"text": one}
        text = as_text(told.get("text"), f"{row.place}: an answer")
        start = as_text(told.get("answer_start"), f"{row.place}: an answer_start").strip()
        number = whole_number(start) if start else -1
        if number is None:
            raise UserError(
                f"{row.place}: the answer_start '{start[:40]}' is not a whole number that a text has room for"
            )
        if text.strip():
            answers.append(Answer(text, number))
    return answers


def _stands(passage: str, answer: Answer, row: Row, moved: Exclusions) -> Answer:
    """The answer where it stands: where it is said to, else nearest to that place, else where it stands first."""
    if answer.start < 0:
        return Answer(answer.text, passage.index(answer.text))
    if passage.startswith(answer.text, answer.start):
        return answer
    after = passage.find(answer.text, answer.start)
    before = passage.rfind(answer.text, 0, min(answer.start + len(answer.text), len(passage)))
    places = [place for place in (before, after) if place >= 0]
    moved.add("answers do not stand at their answer_start, and are taken where they stand nearest", row.place)
    return Answer(answer.text, min(places, key=lambda place: abs(place - answer.start)))
