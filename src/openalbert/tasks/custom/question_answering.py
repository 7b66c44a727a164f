"""Custom questions whose answers are spans of a passage, in SQuAD's JSON or in a table."""

from openalbert.tasks.custom.columns import Columns, Layout
from openalbert.tasks.custom.files import open_files
from openalbert.tasks.data.row_files import Table
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.squad import has_no_answer, measure_answers, questions, read_questions
from openalbert.tasks.task import Reading, Task, TaskMetadata

SQUAD_NAMES = {"id": "id", "question": "question", "answer": "answers", "answer_start": "answer_start",
               "passage": "context"}  # fmt: skip
"""SQuAD's names for the roles of columns."""


def open_question_answering(source: TaskSource, metadata: TaskMetadata) -> Task:
    """The task. Whether questions may have no answer is known of a model, else seen in the training or the dev file."""

    def find(table: Table, labelled: bool, layout: Layout | None) -> Columns:
        return find_question_columns(table, source, labelled, layout)

    files = open_files(
        "question_answering", source, metadata, lambda table: find(table, True, None).roles, read_questions
    )
    may_have_no_answer = metadata.may_have_no_answer
    if may_have_no_answer is None:
        seen = files.labelled_table()
        names = _squad_names(find(seen, True, files.layout)) if seen is not None else {}
        may_have_no_answer = seen is not None and any(has_no_answer(row, names) for row in seen.rows)
    without = may_have_no_answer

    def parse(table: Table, labelled: bool) -> Reading:
        columns = find(table, labelled, files.layout)
        return columns.describe(questions(table, labelled, without, _squad_names(columns)))

    return files.task(parse, measure_answers(without), "f1", may_have_no_answer=without)


def find_question_columns(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Columns:
    """Find the roles `question` and `passage`, and where they are known `answer`, `answer_start` and `id`."""
    columns = Columns(table, layout)
    named = {
        "id": source.id_column,
        "question": source.question_column,
        "answer": source.answer_column if labelled else None,
        "answer_start": None,
        "passage": source.passage_column,
    }
    for role, name in named.items():
        columns.find(role, name)
    for role in ("question", "passage", *(("answer",) if labelled else ())):
        if role not in columns.roles:
            raise columns.missing(role)
    # SQuAD's reader takes these by name: the article, and whether there is no answer.
    for name in ("title", *(("is_impossible",) if labelled else ())):
        if name in columns.free:
            columns.take(name, name)
    return columns


def _squad_names(columns: Columns) -> dict[str, str]:
    """The columns by SQuAD's names."""
    return {name: columns[role] for role, name in SQUAD_NAMES.items() if role in columns.roles}
