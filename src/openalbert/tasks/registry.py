"""All tasks by name: `open_task("sst2", TaskSource(data=…))`."""

from collections.abc import Callable
from dataclasses import dataclass

from openalbert.errors import UserError, suggestion
from openalbert.tasks.custom.multiple_choice import open_multiple_choice
from openalbert.tasks.custom.question_answering import open_question_answering
from openalbert.tasks.custom.similarity import open_similarity
from openalbert.tasks.custom.tagging import open_tagging
from openalbert.tasks.custom.text import open_classification, open_multi_label, open_regression
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.glue import GLUE, GlueTask
from openalbert.tasks.race import open_race
from openalbert.tasks.squad import open_squad
from openalbert.tasks.task import Kind, Task, TaskMetadata

__all__ = ["GLUE", "TASKS", "TaskMetadata", "TaskSource", "TaskSpec", "open_task"]


@dataclass(frozen=True)
class TaskSpec:
    """One task by name: its kind, the question it asks, and the function that opens it."""

    kind: Kind
    about: str
    open: Callable[[TaskSource, TaskMetadata], Task]


def _glue(task: GlueTask) -> TaskSpec:
    return TaskSpec(task.kind, task.about, lambda source, metadata: task.open(source, metadata.labels))


TASKS: dict[str, TaskSpec] = {
    **{name: _glue(task) for name, task in GLUE.items()},
    "squad1": TaskSpec(
        "question_answering", "where in the passage is the answer?", lambda source, _: open_squad(source, "1.1")
    ),
    "squad2": TaskSpec(
        "question_answering", "where is the answer, if there is one?", lambda source, _: open_squad(source, "2.0")
    ),
    "race": TaskSpec(
        "multiple_choice", "which option answers an exam's question?", lambda source, _: open_race(source, "all")
    ),
    "race_middle": TaskSpec(
        "multiple_choice", "the same, middle school only", lambda source, _: open_race(source, "middle")
    ),
    "race_high": TaskSpec("multiple_choice", "the same, high school only", lambda source, _: open_race(source, "high")),
    "classification": TaskSpec("classification", "a class for each of your texts or pairs", open_classification),
    "regression": TaskSpec("regression", "a value for each of your texts or pairs", open_regression),
    "multi_label": TaskSpec("multi_label", "any number of labels for each of your texts or pairs", open_multi_label),
    "multiple_choice": TaskSpec("multiple_choice", "which of your options is right?", open_multiple_choice),
    "question_answering": TaskSpec(
        "question_answering", "where in your passage is the answer, if it may be there?", open_question_answering
    ),
    "similarity": TaskSpec("similarity", "how similar are two of your texts?", open_similarity),
    "tagging": TaskSpec("tagging", "a tag for each word: entities, parts of speech", open_tagging),
}


def open_task(name: str, source: TaskSource, metadata: TaskMetadata | None = None) -> Task:
    """A task with its examples from a source. `metadata` is that of a fine-tuned model.

    Files are read when a split is asked for; only custom tasks read labels and columns of the training file before.
    """
    if name not in TASKS:
        raise UserError(f"'{name}' is not a task: {suggestion(name, TASKS)}")
    if source.positive_class is not None and name != "classification":
        raise UserError(f"--positive-class is for two classes of your own, but the task is {name}: leave it out")
    return TASKS[name].open(source, metadata or TaskMetadata())
