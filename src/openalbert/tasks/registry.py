"""All tasks by name: `open_task("sst2", Source(data=…))`."""

from collections.abc import Callable
from dataclasses import dataclass

from openalbert.errors import UserError, suggestion
from openalbert.tasks.custom.classification import open_classification
from openalbert.tasks.custom.multi_label import open_multi_label
from openalbert.tasks.custom.multiple_choice import open_multiple_choice
from openalbert.tasks.custom.question_answering import open_question_answering
from openalbert.tasks.custom.regression import open_regression
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.glue.cola import COLA
from openalbert.tasks.glue.files import Glue
from openalbert.tasks.glue.mnli import MNLI
from openalbert.tasks.glue.mrpc import MRPC
from openalbert.tasks.glue.qnli import QNLI
from openalbert.tasks.glue.qqp import QQP
from openalbert.tasks.glue.rte import RTE
from openalbert.tasks.glue.sst2 import SST2
from openalbert.tasks.glue.stsb import STSB
from openalbert.tasks.glue.wnli import WNLI
from openalbert.tasks.race import open_race
from openalbert.tasks.squad import open_squad
from openalbert.tasks.task import Kind, Known, Task

__all__ = ["GLUE", "TASKS", "Definition", "Known", "TaskSource", "open_task"]


@dataclass(frozen=True)
class Definition:
    """One task by name: what kind it is, what it asks, and how it is opened."""

    kind: Kind
    about: str
    open: Callable[[TaskSource, Known], Task]


GLUE = {task.name: task for task in (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI)}


def _glue(task: Glue) -> Definition:
    return Definition(task.kind, task.about, lambda source, known: task.open(source, known.labels))


TASKS: dict[str, Definition] = {
    **{name: _glue(task) for name, task in GLUE.items()},
    "squad1": Definition(
        "question_answering", "where in the passage is the answer?", lambda source, _: open_squad(source, "1.1")
    ),
    "squad2": Definition(
        "question_answering", "where is the answer, if there is one?", lambda source, _: open_squad(source, "2.0")
    ),
    "race": Definition(
        "multiple_choice", "which option answers an exam's question?", lambda source, _: open_race(source, "all")
    ),
    "race_middle": Definition(
        "multiple_choice", "the same, middle school only", lambda source, _: open_race(source, "middle")
    ),
    "race_high": Definition(
        "multiple_choice", "the same, high school only", lambda source, _: open_race(source, "high")
    ),
    "classification": Definition(
        "classification",
        "a class for each of your texts or pairs",
        open_classification,
    ),
    "regression": Definition(
        "regression",
        "a value for each of your texts or pairs",
        open_regression,
    ),
    "multi_label": Definition(
        "multi_label",
        "any number of labels for each of your texts or pairs",
        open_multi_label,
    ),
    "multiple_choice": Definition(
        "multiple_choice",
        "which of your options is right?",
        open_multiple_choice,
    ),
    "question_answering": Definition(
        "question_answering",
        "where in your passage is the answer, if it may be there?",
        open_question_answering,
    ),
}


def open_task(name: str, source: TaskSource, known: Known | None = None) -> Task:
    """A task with its examples from a source; nothing but what own files say of labels and columns is read before it is
    asked for. `known` is what a model was taught already."""
    if name not in TASKS:
        raise UserError(f"'{name}' is not a task: {suggestion(name, TASKS)}")
    return TASKS[name].open(source, known or Known())
