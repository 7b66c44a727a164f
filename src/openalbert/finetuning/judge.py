"""How a run does while it learns: scored on the split that decides, its best score remembered, its end foreseen."""

import time

from openalbert.finetuning.collapse import LEAST_EXAMPLES, LEAST_STEPS, REHEARSAL, collapse, sameness
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.scoring import Scored, score_part, threshold_on
from openalbert.finetuning.standing import Standing
from openalbert.model.albert import AlbertModel
from openalbert.tasks.metrics import LOSS, ranking
from openalbert.train.device import Device
from openalbert.train.metrics_log import MetricsLog
from openalbert.train.state import TrainState


class Judge:
    """Scores one attempt of a run, and says what follows."""

    def __init__(self, task_data: TaskData, baseline: float, device: Device, metrics_log: MetricsLog) -> None:
        """`baseline` is the loss of knowing label frequencies."""
        self.task_data, self.baseline, self.device, self.metrics_log = task_data, baseline, device, metrics_log
        self.split, self.part = next(iter(task_data.scored.items()))
        self.standing = Standing()
        self._last: tuple[int, Scored] | None = None
        self._best: tuple[int, Scored] | None = None

    def evaluate(self, model: AlbertModel, train_state: TrainState) -> None:
        """Score the model on the split that decides, and see whether it was never better."""
        started = time.perf_counter()
        found = self._score(model)
        record = {"kind": "evaluation", "step": train_state.step, "tokens": train_state.tokens, "split": self.split}
        seconds = time.perf_counter() - started
        self.metrics_log.record({**record, **found.figures, "evaluation_loss": found.loss, "seconds": seconds})
        metric = self.task_data.task.main_metric
        score, *tie_breaks = map(self.device.from_main, self.ranking(found))
        self.standing.take(score, train_state.step, tie_breaks)
        self._last = (train_state.step, found)
        if self.standing.is_best_at(train_state.step):
            self._best = self._last
        now, best = (f"{-one:.3f}" if metric == LOSS else f"{one:.1f}" for one in (score, self.standing.best or 0.0))
        self.metrics_log.note = f"{self.split} {metric} {now}, best {best}"
        figures = ", ".join(f"{name} {value:.2f}" for name, value in found.figures.items())
        self.metrics_log.log(f"step {train_state.step:,}, {self.split}: {figures}")

    def scored(self, model: AlbertModel, step: int) -> Scored:
        """What a model with the weights of this step says on that split.

        The last evaluation and the best are remembered. A checkpoint does not hold them: after a resume it is predicted
        once more.
        """
        for kept in (self._last, self._best):
            if kept is not None and kept[0] == step:
                return kept[1]
        self._last = (step, self._score(model))
        return self._last[1]

    def _score(self, model: AlbertModel) -> Scored:
        task_data = self.task_data
        threshold = threshold_on(model, task_data.threshold, self.device)
        return score_part(
            model, task_data.task, self.part, self.device, threshold, task_data.units, task_data.class_weights
        )

    def ranking(self, found: Scored) -> tuple[float, ...]:
        """What an evaluation on the split that decides is compared by."""
        return ranking(self.task_data.task, self.part.examples, found.predictions, found.figures, found.loss)

    def is_out_of_patience(self, patience: int | None, step: int) -> bool:
        """Whether so many evaluations in a row were no better than the best; the user is told."""
        if not self.standing.is_out_of(patience):
            return False
        number = self.standing.since_best
        since = "the last evaluation was" if number == 1 else f"{number} evaluations in a row were"
        text = f"ended early at step {step:,}: {since} no better than the best"
        self.metrics_log.record({"kind": "event", "step": step, "what": "early_stop", "text": text})
        self.metrics_log.log(text)
        return True

    def collapse(self, model: AlbertModel, train_state: TrainState) -> str | None:
        """Why the run counts as collapsed, if it does."""
        if train_state.step < LEAST_STEPS:
            return None
        found = self.scored(model, train_state.step)
        return collapse(self.task_data.task, self.baseline, train_state.recent, self.part.examples, found.predictions)

    def sameness(self, found: Scored, steps: int) -> str | None:
        """In what way the predictions are all the same; None if they are not, or after a rehearsal, of which
        nobody expects more.

        However few the steps were, a score that never left 0 can be told.
        """
        if len(self.part.examples) < LEAST_EXAMPLES:
            return None
        same = sameness(self.task_data.task, self.part.examples, found.predictions) if steps >= REHEARSAL else None
        metric = self.task_data.task.main_metric
        if same is None and metric != LOSS and self.standing.best is not None and self.standing.best <= 0:
            return f"{metric} on {self.split} never rose above 0"
        return same
