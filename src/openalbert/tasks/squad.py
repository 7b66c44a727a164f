"""SQuAD 1.1 and 2.0: the answer to a question is a span of the passage; in 2.0 there may be none.

(Rajpurkar et al., 2016 and 2018.) The reader also serves custom questions, in SQuAD's JSON or in a table. Exact match
and F1 are those of the official scorers of 1.1 and 2.0, to the last digit.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from openalbert.errors import UserError
from openalbert.tasks.data.row_files import (
    Exclusions,
    Row,
    Table,
    as_text,
    check_no_rows_excluded,
    read_json,
    read_table,
    table_of,
    whole_number,
)
from openalbert.tasks.data.source import TaskSource, build_task, open_splits
from openalbert.tasks.metrics import Measure, check_same_number
from openalbert.tasks.task import Answer, Example, QuestionExample, Reading, Task

COLUMNS = ("id", "context", "question", "answers", "answer_start")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def open_squad(source: TaskSource, version: str) -> Task:
    """The task of a version, from its folder or from files in its format."""
    name, may_have_no_answer = ("squad1", False) if version == "1.1" else ("squad2", True)
    files = {split: (f"{split}-v{version}.json*", f"{split}*v{version}.json*") for split in ("train", "dev", "test")}
    opened = open_splits(name, source, read_questions, files, ("squad", name))

    def parse(table: Table, labelled: bool) -> Reading:
        return questions(table, labelled, may_have_no_answer)

    return build_task(
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
        return read_table(path)  # one object per line, or an error that names the broken line
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
    """Examples from rows with SQuAD's columns (or those in `columns`): id, context, question, answers.

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
            answers = tuple(_locate(passage, answer, row, moved) for answer in given if answer.text in passage)
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
        check_no_rows_excluded(table.name, excluded.counted())
    remarks = [*table.remarks, *(f"{count:,} {reason}" for reason, count in moved.counted().items())]
    if unanswered:
        remarks.append(f"{len(unanswered):,} of {len(examples):,} questions have no answer (first: {unanswered[0]})")
    return Reading(tuple(examples), excluded.counted(), tuple(remarks))


def _free_id(number: int, taken: set[str]) -> str:
    """A unique id for a question that has none."""
    name = str(number)
    while name in taken:
        name = f"_{name}"
    return name


def has_no_answer(row: Row, columns: Mapping[str, str]) -> bool:
    """Whether a row has a question that its passage does not answer."""
    names = {name: columns.get(name, name) for name in COLUMNS}
    if not row.text(names["context"]).strip() or not row.text(names["question"]).strip():
        return False
    return _is_impossible(row) or not _answers(row, names)


def _is_impossible(row: Row) -> bool:
    return row.text("is_impossible").strip().lower() in ("true", "1")


def _answers(row: Row, names: Mapping[str, str]) -> list[Answer]:
    """The answers in the row; start -1 where none is given."""
    given = row.values.get(names["answers"])
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        starts = given.get("answer_start") or [None] * len(given["text"])
        given = [{"text": text, "answer_start": start} for text, start in zip(given["text"], starts, strict=False)]
    elif not isinstance(given, list):
        given = [{"text": given, "answer_start": row.values.get(names["answer_start"])}]
    answers: list[Answer] = []
    for one in given:
        answer = one if isinstance(one, dict) else {"text": one}
        text = as_text(answer.get("text"), f"{row.place}: an answer")
        start = as_text(answer.get("answer_start"), f"{row.place}: an answer_start").strip()
        number = whole_number(start) if start else -1
        if number is None:
            raise UserError(f"{row.place}: the answer_start '{start[:40]}' is not a whole number of at most 18 digits")
        if text.strip():
            answers.append(Answer(text, number))
    return answers


def _locate(passage: str, answer: Answer, row: Row, moved: Exclusions) -> Answer:
    """The answer at its answer_start, else at the occurrence nearest to it, else at the first."""
    if answer.start < 0:
        return Answer(answer.text, passage.index(answer.text))
    if passage.startswith(answer.text, answer.start):
        return answer
    after = passage.find(answer.text, answer.start)
    before = passage.rfind(answer.text, 0, min(answer.start + len(answer.text), len(passage)))
    places = [place for place in (before, after) if place >= 0]
    moved.add("answers are not at their answer_start: the nearest occurrence is taken", row.place)
    return Answer(answer.text, min(places, key=lambda place: abs(place - answer.start)))


def measure_answers(may_have_no_answer: bool) -> Measure:
    """Measures texts of answers as SQuAD's scorers do, by the rules of 2.0 where questions may have no answer."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        check_same_number(examples, predictions)
        gold: list[tuple[str, ...]] = []
        for example in examples:
            if not isinstance(example, QuestionExample) or not example.is_labelled:
                raise UserError(f"the example '{example.id}' has no answers to compare with: nothing can be scored")
            gold.append(tuple(answer.text for answer in example.answers))
        return score_answers(gold, cast("Sequence[str]", predictions), may_have_no_answer)

    return measure


def normalized(answer: str) -> str:
    """An answer as it is compared: lower case, without ASCII punctuation and articles, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def overlap(gold: str, predicted: str, empty_is_right: bool) -> float:
    """F1 of the words of two normalized answers, in any order.

    Where either has no words, 2.0 counts a match if neither has any; 1.1 counts none.
    """
    wanted, given = gold.split(), predicted.split()
    if empty_is_right and not (wanted and given):
        return float(wanted == given)
    same = sum((Counter(wanted) & Counter(given)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(given), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score_answers(
    gold: Sequence[tuple[str, ...]], predicted: Sequence[str], may_have_no_answer: bool
) -> dict[str, float]:
    """Exact match and F1 in percent, of each prediction and the gold answer that it matches best.

    By the rule of 2.0, "" is the right prediction for a question without gold answers, and the metrics are also given
    for the questions with and without an answer. The null threshold is fitted to maximize these metrics.
    """
    exact: list[float] = []
    f1: list[float] = []
    for answers, prediction in zip(gold, predicted, strict=True):
        given, wanted = normalized(prediction), {normalized(answer) for answer in answers}
        if may_have_no_answer:
            wanted = (wanted - {""}) or {""}
        exact.append(float(given in wanted))
        f1.append(max((overlap(answer, given, may_have_no_answer) for answer in wanted), default=0.0))
    metrics = {"exact_match": _percent(exact), "f1": _percent(f1)}
    if may_have_no_answer:
        for name, has_answer in (("has_answer", True), ("no_answer", False)):
            chosen = [number for number, answers in enumerate(gold) if bool(answers) == has_answer]
            if chosen:
                metrics[f"{name}_exact_match"] = _percent([exact[number] for number in chosen])
                metrics[f"{name}_f1"] = _percent([f1[number] for number in chosen])
    return metrics


def _percent(scores: Iterable[float]) -> float:
    # In order, as in the official scorers: `sum` rounds differently from Python 3.12 on.
    total, count = 0.0, 0
    for score in scores:
        total += score
        count += 1
    return 100.0 * total / count
