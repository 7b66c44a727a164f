"""Custom questions whose answers are spans of a passage, in SQuAD's JSON or in a table."""

from dataclasses import replace

from openalbert.tasks.custom.columns import Columns, Layout, find_layout, has_labels
from openalbert.tasks.custom.text import open_custom_splits
from openalbert.tasks.data.source import TaskSource, build_task
from openalbert.tasks.data.tables import Table
from openalbert.tasks.squad import has_no_answer, measure_answers, questions, read_questions
from openalbert.tasks.task import Reading, Task, TaskMetadata


def open_question_answering(source: TaskSource, metadata: TaskMetadata) -> Task:
    """The task. Whether questions may have no answer is known of a model, else seen in the training or the dev file."""
    opened = open_custom_splits("question_answering", source, read_questions)
    layout = find_layout(metadata, opened, lambda table: find_question_columns(table, source, True, None)[1])
    may_have_no_answer = metadata.may_have_no_answer
    if may_have_no_answer is None:
        first = next((split for split in ("train", "dev") if split in opened), None)
        may_have_no_answer = False
        if first is not None:
            table = opened[first]()
            columns, *_ = find_question_columns(table, source, True, layout)
            may_have_no_answer = any(has_no_answer(row, columns) for row in table.rows)
    without = may_have_no_answer

    def parse(table: Table, labelled: bool) -> Reading:
        columns, roles, remarks = find_question_columns(table, source, labelled, layout)
        reading = questions(table, labelled, without, columns)
        return replace(reading, remarks=(*remarks, *reading.remarks), layout=roles)

    return build_task(
        "question_answering",
        "question_answering",
        source,
        opened,
        parse,
        measure_answers(without),
        "f1",
        may_have_no_answer=without,
        has_labels=lambda table: has_labels(table, layout),
    )


def find_question_columns(
    table: Table, source: TaskSource, labelled: bool, layout: Layout | None
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """The table's names for SQuAD's columns, its columns by role, and messages on guesses."""
    columns = Columns(table, layout)
    found = {
        "id": columns.find("id", source.id_column),
        "question": columns.find("question", source.question_column),
        "answers": columns.find("answer", source.answer_column if labelled else None),
        "answer_start": columns.find("answer_start", None),
        "context": columns.find("passage", source.passage_column),
    }
    for role, name in (("question", "question"), ("passage", "context"), ("answer", "answers")):
        if found[name] is None and (labelled or role != "answer"):
            raise columns.missing(role)
    # SQuAD's reader takes these by name: the article, and whether there is no answer.
    for name in ("title", *(("is_impossible",) if labelled else ())):
        if name in columns.free:
            columns.take(name, name)
    return {name: column for name, column in found.items() if column is not None}, columns.roles, columns.remark()
