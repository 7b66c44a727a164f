"""All tasks by name: `open_task("sst2", Source(data=…))`."""

from collections.abc import Callable
from dataclasses import dataclass

from openalbert.errors import UserError, suggestion
from openalbert.tasks.glue.cola import COLA
from openalbert.tasks.glue.mnli import MNLI
from openalbert.tasks.glue.mrpc import MRPC
from openalbert.tasks.glue.qnli import QNLI
from openalbert.tasks.glue.qqp import QQP
from openalbert.tasks.glue.rte import RTE
from openalbert.tasks.glue.sst2 import SST2
from openalbert.tasks.glue.stsb import STSB
from openalbert.tasks.glue.wnli import WNLI
from openalbert.tasks.own.classification import open_classification
from openalbert.tasks.source import Source
from openalbert.tasks.squad import open_squad
from openalbert.tasks.task import Kind, Task

__all__ = ["GLUE", "TASKS", "Definition", "Source", "open_task"]


@dataclass(frozen=True)
class Definition:
    """One task by name: what kind it is, what it asks, and how it is opened."""

    kind: Kind
    about: str
    open: Callable[[Source, tuple[str, ...] | None], Task]


GLUE = {task.name: task for task in (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI)}

TASKS: dict[str, Definition] = {
    **{name: Definition(task.kind, task.about, task.open) for name, task in GLUE.items()},
    "squad1": Definition(
        "question_answering", "where in the passage is the answer?", lambda s, _: open_squad(s, "1.1")
    ),
    "squad2": Definition(
        "question_answering", "where is the answer, if there is one?", lambda s, _: open_squad(s, "2.0")
    ),
    "classification": Definition("classification", "classes of your own texts or pairs", open_classification),
}


def open_task(name: str, source: Source, labels: tuple[str, ...] | None = None) -> Task:
    """A task with its examples from a source; nothing but the names of own labels is read before it is asked for.

    `labels` are those that a model already has: what it was trained on need not be at hand to score it.
    """
    if name not in TASKS:
        raise UserError(f"'{name}' is not a task: {suggestion(name, TASKS)}")
    return TASKS[name].open(source, labels)
