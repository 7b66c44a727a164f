"""Evaluations during training: they decide which weights are kept, and when a run ends before its budget is spent."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openalbert.finetuning.collapse_detection import (
    LEAST_EXAMPLES,
    LEAST_STEPS,
    describe_collapse,
    describe_constant_predictions,
)
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_split, fit_null_threshold
from openalbert.finetuning.frozen import FrozenStates
from openalbert.model.albert import AlbertModel
from openalbert.tasks.metrics import LOSS, ranking
from openalbert.train.device import Device
from openalbert.train.loop import TrainState
from openalbert.train.metrics_log import MetricsLog


@dataclass
class EvaluationHistory:
    """The evaluations of a run as far as they matter later; a checkpoint holds them. A higher score is better."""

    first: float | None = None
    """The score of the first evaluation."""
    best: float | None = None
    best_tie_breaks: list[float] = field(default_factory=list)
    """Of the best evaluation: what decides between equal scores."""
    best_at: int = -1
    """The step of the best evaluation."""
    since_best: int = 0
    """Evaluations since the score last rose; a tie that was broken is no rise."""
    evaluated_at: int = -1
    """The step of the last evaluation."""
    has_ended: bool = False
    """Whether the run ended before its budget was spent."""

    def add(self, score: float, step: int, tie_breaks: Sequence[float] = ()) -> None:
        """Add an evaluation. Ties go to the higher tie breaks, compared in order, and then to the earlier one."""
        self.evaluated_at = step
        self.first = score if self.first is None else self.first
        has_risen = self.best is None or score > self.best
        if has_risen or (score == self.best and list(tie_breaks) > self.best_tie_breaks):
            self.best, self.best_tie_breaks, self.best_at = score, list(tie_breaks), step
        self.since_best = 0 if has_risen else self.since_best + 1

    def is_best_at(self, step: int) -> bool:
        """Whether the last evaluation was at this step and is the best one."""
        return self.evaluated_at == self.best_at == step

    def is_out_of_patience(self, patience: int | None) -> bool:
        """Whether the last `patience` evaluations were no better than the best one.

        A score that has not risen yet may still do so: most runs start by predicting the majority class.
        """
        return patience is not None and self.since_best >= patience and self.best != self.first

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))


class EarlyStopping:
    """Evaluates one attempt of a run on the split that selects the weights."""

    def __init__(
        self,
        task_data: TaskData,
        baseline: float,
        device: Device,
        metrics_log: MetricsLog,
        frozen: FrozenStates | None = None,
    ) -> None:
        """`baseline` is the loss of predicting label frequencies; `frozen` holds what a frozen encoder gave."""
        self.frozen = frozen
        self.task_data, self.baseline, self.device, self.metrics_log = task_data, baseline, device, metrics_log
        self.split, self.data = next(iter(task_data.scored.items()))
        self.history = EvaluationHistory()
        self._last: tuple[int, Evaluation] | None = None
        self._best: tuple[int, Evaluation] | None = None

    def evaluate(self, model: AlbertModel, train_state: TrainState) -> None:
        """Evaluate the model, log its metrics, and remember whether it is the best so far."""
        started = time.perf_counter()
        evaluation = self._evaluate(model)
        record = {"kind": "evaluation", "step": train_state.step, "tokens": train_state.tokens, "split": self.split}
        seconds = time.perf_counter() - started
        self.metrics_log.record(
            {**record, **evaluation.metrics, "evaluation_loss": evaluation.loss, "seconds": seconds}
        )
        metric = self.task_data.task.main_metric
        score, *tie_breaks = map(self.device.from_main, self.ranking(evaluation))
        self.history.add(score, train_state.step, tie_breaks)
        self._last = (train_state.step, evaluation)
        if self.history.is_best_at(train_state.step):
            self._best = self._last
        now, best = (f"{-one:.3f}" if metric == LOSS else f"{one:.1f}" for one in (score, self.history.best or 0.0))
        self.metrics_log.note = f"{self.split} {metric} {now}, best {best}"
        metrics = ", ".join(f"{name} {value:.2f}" for name, value in evaluation.metrics.items())
        self.metrics_log.log(f"step {train_state.step:,}, {self.split}: {metrics}")

    def evaluation_at(self, model: AlbertModel, step: int) -> Evaluation:
        """The evaluation of a model with the weights of this step.

        The last and the best one are remembered. A checkpoint does not hold them: after a resume the split is predicted
        once more.
        """
        for kept in (self._last, self._best):
            if kept is not None and kept[0] == step:
                return kept[1]
        self._last = (step, self._evaluate(model))
        return self._last[1]

    def _evaluate(self, model: AlbertModel) -> Evaluation:
        task_data = self.task_data
        questions = task_data.threshold if task_data.task.may_have_no_answer else None
        threshold, origin = fit_null_threshold(model, questions, self.device)
        return evaluate_split(
            [model],
            task_data.task,
            self.data,
            self.device,
            null_threshold=threshold,
            threshold_origin=origin,
            standardization=task_data.standardization,
            class_weights=task_data.class_weights,
            frozen=self.frozen,
        )

    def ranking(self, evaluation: Evaluation) -> tuple[float, ...]:
        """What evaluations are compared by."""
        task, examples = self.task_data.task, self.data.examples
        return ranking(task, examples, evaluation.predictions, evaluation.metrics, evaluation.loss)

    def is_out_of_patience(self, patience: int | None, step: int) -> bool:
        """Whether the last `patience` evaluations were no better than the best one; it is logged."""
        if not self.history.is_out_of_patience(patience):
            return False
        number = self.history.since_best
        since = "the last evaluation was" if number == 1 else f"{number} evaluations in a row were"
        text = f"ended early at step {step:,}: {since} no better than the best"
        self.metrics_log.record({"kind": "event", "step": step, "what": "early_stop", "text": text})
        self.metrics_log.log(text)
        return True

    def describe_collapse(self, model: AlbertModel, train_state: TrainState) -> str | None:
        """Why the run counts as collapsed, if it does."""
        if train_state.step < LEAST_STEPS:
            return None
        predictions = self.evaluation_at(model, train_state.step).predictions
        task, examples = self.task_data.task, self.data.examples
        return describe_collapse(task, self.baseline, train_state.recent, examples, predictions)

    def describe_constant_predictions(self, evaluation: Evaluation, is_trial: bool) -> str | None:
        """How the predictions are all the same; None if they are not, or after the few steps of a trial run.

        A score that never rose above 0 is reported of a trial run too.
        """
        task, examples = self.task_data.task, self.data.examples
        if len(examples) < LEAST_EXAMPLES:
            return None
        same = None if is_trial else describe_constant_predictions(task, examples, evaluation.predictions)
        metric, best = task.main_metric, self.history.best
        if same is None and metric != LOSS and best is not None and best <= 0:
            return f"{metric} on {self.split} never rose above 0"
        return same
