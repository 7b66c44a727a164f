"""What decides between two evaluations: the metric that is optimized, then macro-F1, then the loss."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from openalbert.errors import UserError
from openalbert.tasks.metrics import macro_f1_of
from openalbert.tasks.task import Example, QuestionExample, Task

LOSS = "loss"
"""The one metric that is better when lower; it is no part of `Task.measure`."""


def metric_names(task: Task, examples: Sequence[Example]) -> tuple[str, ...]:
    """The metrics of a task on some examples with labels, the loss last."""
    gold: list[object] = []
    for example in examples:
        if isinstance(example, QuestionExample):
            gold.append(example.answers[0].text if example.answers else "")
        else:
            gold.append(example.label)
    return (*task.measure(examples, gold), LOSS)


def with_metric(task: Task, metric: str, examples: Sequence[Example]) -> Task:
    """The task with another metric to optimize; one that it does not have is refused."""
    names = metric_names(task, examples)
    if metric not in names:
        raise UserError(f"--metric is '{metric}', which {task.name} does not have: give one of {', '.join(names)}")
    return replace(task, main_metric=metric)


def ranking(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], figures: Mapping[str, float], loss: float
) -> tuple[float, ...]:
    """What an evaluation is compared by, one value after another, each better when higher.

    On a small or imbalanced set accuracy is often equal: then a model that knows all classes is better than one that
    never predicts the rare ones, and after that the one with the lower loss.
    """
    lower_is_better = -loss if math.isfinite(loss) else -sys.float_info.max
    if task.main_metric == LOSS:
        return (lower_is_better,)
    ties = (macro_f1_of(task, examples, predictions),) if task.kind in ("classification", "multi_label") else ()
    return (figures[task.main_metric], *ties, lower_is_better)


def rank_of(result: Mapping[str, Any]) -> tuple[float, ...]:
    """The same of a run that has ended, from its scores.json; one without a ranking has its main metric alone."""
    if result.get("ranking"):
        return tuple(cast("list[float]", result["ranking"]))
    scores = next(iter(result["scores"].values()))
    return (float(scores.get(result["main_metric"], -math.inf)),)
