"""One fine-tuning run: train, retry after a collapse, keep the best weights, write scores and model."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.batches import PackedBatch, Packing, num_units, tokens_in_memory
from openalbert.finetuning.collapse_detection import FROM_PROGRESS, RATE_FACTOR, REHEARSAL, baseline_loss
from openalbert.finetuning.data import EncodedSplit, TaskData
from openalbert.finetuning.early_stopping import EarlyStopping, EvaluationHistory
from openalbert.finetuning.evaluation.baselines import gain_over, without_predictions
from openalbert.finetuning.evaluation.error_analysis import analyze_errors
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_split
from openalbert.finetuning.exit_rules import FittedExits, fit_and_score
from openalbert.finetuning.folds import CrossValidated, save_logits
from openalbert.finetuning.frozen import FrozenStates
from openalbert.finetuning.losses import finetuning
from openalbert.finetuning.settings import Finetune, plan
from openalbert.finetuning.similarity import similarity_training
from openalbert.finetuning.trainable import describe, make_model, merge
from openalbert.interop import huggingface
from openalbert.interop.exits import write_exit_info
from openalbert.interop.task_json import TaskInfo, write_task_info
from openalbert.model.cost import training_flops_per_token
from openalbert.optim.optimizer import make_optimizer
from openalbert.report.error_analysis import ErrorAnalysis, write_error_analyses
from openalbert.report.model_card import finetuned_card
from openalbert.report.report import write_report
from openalbert.run_files import CHECKPOINTS, MODEL, REPORT, SCORES
from openalbert.settings import to_dict
from openalbert.tasks.label_checks import describe_never_predicted
from openalbert.tasks.task import are_pairs
from openalbert.train import checkpoint
from openalbert.train.cuda_graphs import CapturedEncoder, is_encoder_captured
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Device
from openalbert.train.estimate import Needs, checkpoint_bytes
from openalbert.train.loop import PATIENCE, LoopConfig, TrainState
from openalbert.train.run import Stop, TrainingRun, is_done, read_run_info


class FinetuningRun(TrainingRun[Finetune, PackedBatch]):
    """One run: everything built, and the body of the loop in reading order."""

    batches: Packing
    advice = "train for longer, or raise --optimizer.learning-rate"
    """For a run that has hardly learned anything."""

    @property
    def is_trial(self) -> bool:
        """Whether there were too few steps to learn anything."""
        return self.train_state.step < REHEARSAL

    def __init__(
        self,
        settings: Finetune,
        task_data: TaskData,
        device: Device,
        peak: float | None = None,
        *,
        baselines: dict[str, Any] | None = None,
        cross_validated: CrossValidated | None = None,
        reason: str = "",
        frozen: FrozenStates | None = None,
    ) -> None:
        """`reason` is why these weights are trained; `frozen` holds what the encoder gives where it is not trained."""
        self.baselines, self.cross_validated = baselines, cross_validated
        self.task_data, self.sequences = task_data, task_data.train.encoding.sequences
        self.reason, self.frozen = reason, frozen
        self.baseline = baseline_loss(self.sequences, task_data.class_weights)
        # With exits, the states of every layer are needed, which a captured encoder does not return.
        is_plain = not task_data.has_exits and task_data.task.kind != "similarity"
        is_whole = settings.trainable not in ("head", "lora")
        self.is_captured = is_plain and is_whole and is_encoder_captured(settings.speed, device)
        self.kept_step: int | None = None
        """The step whose weights became the model, once the run has ended."""
        length = max(1, round(len(self.sequences.ids) / len(self.sequences.example)))
        super().__init__(
            settings,
            device,
            lambda depth: training_flops_per_token(task_data.config, length, masked_fraction=0.0, depth=depth),
            peak=peak,
        )

    def train(self, stop: Stop) -> dict[str, Any]:
        """Train until done, again at a lower learning rate after a collapse; returns the scores."""
        if is_done(self.folder):
            check_data(self.folder, read_run_info(self.folder), self.task_data)
            scores: dict[str, Any] = json.loads((self.folder / SCORES).read_text(encoding="utf-8"))
            if self.device.is_main and not (self.folder / REPORT).exists():  # killed just before its end
                write_report([self.folder], self.folder / REPORT)
            self._remove_checkpoints()
            self.log(f"{self.folder}: this run is done; its model is in {self.folder / MODEL}")
            return scores
        try:
            while True:
                self._build()
                self._resume()
                reason = self._train(stop)
                if reason is None or len(self._attempts) >= self.settings.retries:
                    break
                self._start_over(reason)
            return self._finish(reason)
        finally:
            self.metrics_log.close()

    def log_done(self) -> None:
        """The last line of a run that was trained just now: where its results are."""
        if self.kept_step is not None:
            model, page = self.folder / MODEL, self.folder / REPORT
            self.log(f"done: the model of step {self.kept_step:,} is in {model}, the page is {page}")

    def dry_run(self) -> None:
        """Take a few steps and log what the whole run would take; nothing is written."""
        self._build()
        self._introduce()
        self.time_dry_run()

    @property
    def _attempts(self) -> list[dict[str, Any]]:
        """Earlier attempts, all of which collapsed."""
        attempts: list[dict[str, Any]] = self.run_info.get("attempts", [])
        return attempts

    def _build(self) -> None:
        """Model, optimizer and batches as they are before the first step of an attempt."""
        settings, device = self.settings, self.device
        self.plan = plan(settings, len(self.task_data.train.examples), num_units(self.sequences))
        if not self.run_info:
            self.run_info = read_run_info(self.folder)
        self.rate = settings.optimizer.highest_rate * RATE_FACTOR ** len(self._attempts)
        self.model = make_model(self.task_data, settings)
        self.model.encoder.recomputes_activations = settings.speed.recompute
        self.model.to(device.torch_device)
        weights = self.task_data.class_weights
        on_device = None if weights is None else torch.from_numpy(weights).float().to(device.torch_device)
        if self.task_data.task.kind == "similarity":
            self.task = similarity_training(self.model, settings.temperature, device)
        else:
            self.task = finetuning(self.model, CapturedEncoder(self.model) if self.is_captured else None, on_device)
        # Its learning rate is set at every step, from that of the attempt in loop_config.
        self.optimizer = make_optimizer(self.model, settings.optimizer)
        self.batches = Packing(
            self.sequences,
            self.plan.batch_size,
            settings.seed,
            tokens_at_a_time=tokens_in_memory(self.task_data.config, device, settings.speed.recompute),
            units_at_a_time=settings.speed.micro_batch,
            device=device.torch_device,
            fills=self.is_captured,
        )
        self.loop_config = LoopConfig(
            self.plan.budget,
            settings.schedule,
            self.rate,
            settings.optimizer.clip_norm,
            DepthSchedule((DepthStage(self.model.config.num_layers),)),
            settings.seed,
        )
        self.train_state = TrainState()
        self.early_stopping = EarlyStopping(self.task_data, self.baseline, device, self.metrics_log)

    def _train(self, stop: Stop) -> str | None:
        """Take steps until the budget is spent or the run ends early; returns the reason if it collapsed."""
        steps = self.steps(stop)
        history, reason = self.early_stopping.history, None
        try:
            for step in () if history.has_ended else steps:
                done = self.loop_config.budget.progress(self.train_state.spent)
                self.metrics_log.add_step(step, self.train_state, done)
                self.estimate_from(step)
                if step.every(self.settings.log_every) or done == 1:
                    self.metrics_log.write_window(step, self.train_state)
                is_due = step.every(self.plan.evaluate_every)
                is_last = self.cross_validated is not None and done >= self.cross_validated.ends_at
                if is_due or is_last:
                    self.early_stopping.evaluate(self.model, self.train_state)
                    # The last attempt is trained to its end: there is none after it.
                    if len(self._attempts) < self.settings.retries and step.progress >= FROM_PROGRESS:
                        reason = self.early_stopping.describe_collapse(self.model, self.train_state)
                    history.has_ended = reason is not None or self.early_stopping.is_out_of_patience(
                        self.settings.patience, step.number
                    )
                    history.has_ended |= is_last
                if is_due or is_last or step.every(self.plan.save_every) or step.stop_asked:
                    self._save()
                self.exit_if_asked(step, stop)
                if history.has_ended:
                    break
        except UserError:
            if self.train_state.skipped_in_a_row < PATIENCE:
                raise
            return f"{PATIENCE} steps in a row had a loss or gradient that is no finite number"
        finally:
            steps.close()  # type: ignore[attr-defined]
        if history.evaluated_at != self.train_state.step:
            self.early_stopping.evaluate(self.model, self.train_state)
            self._save()
        return reason or self.early_stopping.describe_collapse(self.model, self.train_state)

    def _resume(self) -> None:
        """Resume from the newest sound checkpoint of this attempt, if there is one."""
        found = self.checkpointer.latest()
        if found and found.state["attempt"] != len(self._attempts):
            found = None  # of an attempt that collapsed; the run was killed before it was removed
            self._remove_checkpoints()
        if not self.run_info or not (found or self._attempts):
            self.run_info = self.first_run_info()
        check_data(self.folder, self.run_info, self.task_data)
        self.restore(found, self._attempts[-1]["metrics_bytes"] if self._attempts else 0)
        if found:
            self.early_stopping.history = EvaluationHistory(**found.state["evaluation_history"])
            self.metrics_log.note = found.state["note"]
        self.run_info["learning_rate"] = self.rate
        self._introduce()
        self.write_start()

    def _introduce(self) -> None:
        chosen = self.plan.sentence(self.settings, len(self.task_data.train.examples), self.batches.num_units)
        self.log(
            f"{self.task_data.task.name}, seed {self.settings.seed}: {self.model.num_parameters():,} parameters on "
            f"{self.device.describe()}, {self.device.precision}; {chosen}; learning rate {self.rate:.3g}; "
            + describe(self.model, self.settings.trainable, self.reason)
        )

    def first_run_info(self) -> dict[str, Any]:
        """What is known before the first step."""
        data, task, sequences = self.task_data, self.task_data.task, self.sequences
        return {
            **super().first_run_info(),
            "task": {"name": task.name, "kind": task.kind, "main_metric": task.main_metric},
            "model": str(data.folder),
            "pretraining": to_dict(data.pretraining) if data.pretraining is not None else None,
            "batch_size": self.plan.batch_size,
            "budget": str(self.plan.budget),
            "evaluate_every": self.plan.evaluate_every,
            "baseline_loss": self.baseline,
            "data": {
                "train_examples": len(data.train.examples),
                "train_sequences": len(sequences.example),
                "train_tokens": len(sequences.ids),
                "train_truncated": sequences.num_truncated,
                "train_in_windows": sequences.num_in_windows,
                "scored": {split: len(part.examples) for split, part in data.scored.items()},
                "columns": dict(data.layout),
                "remarks": list(data.remarks),
                "fingerprints": data.fingerprints,
            },
            "attempts": [],
        }

    def estimate(self, step_seconds: float, depth: int) -> Needs:
        """What the run takes if all its steps are like those that were taken."""
        budget, state = self.plan.budget, self.train_state
        steps = budget.steps or round((budget.minutes or 0.0) * 60 / step_seconds)
        trained = 4 * sum(parameter.numel() for parameter in checkpoint.trained_parameters(self.model).values())
        # A checkpoint is trained weights and two moments: the last, the best, and one being written.
        disk = checkpoint_bytes(trained, 2 * trained, 3) + 4 * self.model.num_parameters() - trained
        tokens = round(steps * state.tokens / max(1, state.step))
        seconds = steps * step_seconds
        if budget.minutes is None:  # which evaluations are part of
            seconds += self._evaluation_seconds(step_seconds, steps)
        return Needs(steps, tokens, seconds / 3600, self.device.peak_memory(), disk)

    def _evaluation_seconds(self, step_seconds: float, steps: int) -> float:
        """What the evaluations take, at a third of the time of a step for each token: there is no backward pass."""
        threshold = self.task_data.threshold if self.task_data.task.may_have_no_answer else None
        scored = [self.early_stopping.data, *([threshold] if threshold else [])]
        tokens = sum(len(split.encoding.sequences.ids) for split in scored)
        evaluations = -(-steps // self.plan.evaluate_every)
        return evaluations * tokens * step_seconds / 3 / (self.train_state.tokens / max(1, self.train_state.step))

    def _start_over(self, reason: str) -> None:
        """Record a collapse and prepare the next attempt. The record is on disk before anything is removed."""
        lower = self.rate * RATE_FACTOR
        text = f"collapsed at step {self.train_state.step:,}: {reason}. Tried again with learning rate {lower:.3g}"
        self.metrics_log.event(self.train_state.step, "collapsed", text)
        attempt = {"learning_rate": self.rate, "step": self.train_state.step, "reason": reason}
        self._attempts.append({**attempt, "metrics_bytes": self.metrics_log.size})
        self.write_run_info()
        self.device.wait_for_all()
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        if self.device.is_main:
            shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        self.device.wait_for_all()

    def _fit_exits(self) -> FittedExits | None:
        """When examples leave early, fitted on the held-out ones, and what that gives on the splits that are scored."""
        data = self.task_data
        if not data.has_exits or data.threshold is None:
            return None
        scored = {} if self.cross_validated else data.scored  # the last run after folds has seen all of its examples
        return fit_and_score(self.model, data.task, data.threshold, scored, self.device, self.settings.exit_drop)

    def _evaluate_like(self, decisive: Evaluation, data: EncodedSplit) -> Evaluation:
        """Evaluate another split with the null threshold of the one that selected the weights."""
        return evaluate_split(
            [self.model],
            self.task_data.task,
            data,
            self.device,
            null_threshold=decisive.null_threshold,
            threshold_origin=decisive.threshold_origin,
            class_weights=self.task_data.class_weights,
            frozen=self.frozen,
        )

    def _save(self) -> None:
        """Write a checkpoint."""
        history = self.early_stopping.history
        own = {
            "attempt": len(self._attempts),
            "evaluation_history": history.state(),
            "note": self.metrics_log.note,
        }
        self.checkpointer.save(self.train_state, own, keep_last=1, is_best=history.is_best_at(self.train_state.step))

    def _finish(self, collapsed: str | None) -> dict[str, Any]:
        """Score the best weights on every split; write model folder, scores and what the run took."""
        step, task = self.train_state.step, self.task_data.task
        best = checkpoint.best(self.folder / CHECKPOINTS) if self.settings.keep != "last" else None
        if best is not None and best.step != step:
            checkpoint.load_weights(self.model, best.read()[0]["model"], str(best.folder))
            step = best.step
        kept = self.early_stopping.evaluation_at(self.model, step)
        merge(self.model)
        if self.task_data.standardization is not None:
            self.task_data.standardization.fold_into(self.model)
        scored = {} if self.cross_validated else self.task_data.scored
        evaluations = {
            split: kept if split == self.early_stopping.split else self._evaluate_like(kept, data)
            for split, data in scored.items()
        }
        exits = self._fit_exits()
        analyses = [analyze_errors(one) for one in evaluations.values()] if self.device.is_main else []
        if self.cross_validated:
            analyses = [self.cross_validated.analysis]
        scores: dict[str, Any] = {
            "task": task.name,
            "main_metric": task.main_metric,
            "seed": self.settings.seed,
            "learning_rate": self.rate or None,
            "step": step,
            "steps": self.train_state.step,
            "budget_fraction": min(1.0, step / (self.plan.budget.steps or max(1, self.train_state.step))),
            "scores": {split: one.metrics for split, one in evaluations.items()},
            "num_examples": {split: len(data.examples) for split, data in self.task_data.scored.items()},
            "intervals": {one.split: one.intervals for one in analyses},
            "never_predicted": {one.split: one.never_predicted for one in analyses},
            "losses": {split: one.loss if math.isfinite(one.loss) else None for split, one in evaluations.items()},
            "ranking": self.early_stopping.ranking(kept),
            "null_threshold": kept.null_threshold,
            "exits": None if exits is None else exits.scores,
            "baselines": without_predictions(self.baselines) if self.baselines else None,
            "gain": gain_over(self.baselines, kept) if self.baselines else None,
            "collapsed": collapsed,
            "attempts": [{k: v for k, v in one.items() if k != "metrics_bytes"} for one in self._attempts],
            **(self.cross_validated.estimate if self.cross_validated else {}),
        }
        if collapsed is not None:
            self.log(f"this run collapsed, and its scores are no result: {collapsed}")
        elif (same := self.early_stopping.describe_constant_predictions(kept, self.is_trial)) is not None:
            self.log(f"{same}: it has hardly learned anything; {self.advice}")
        for one in analyses:
            for sentence in describe_never_predicted(one.kind, one.never_predicted, one.num_examples):
                self.log(f"WARNING: {one.split}: {sentence}")
        if self.device.is_main:
            if self.settings.source.fold is not None and not self.cross_validated:
                save_logits(self.folder, kept.outputs)
            atomic_io.write_text(self.folder / SCORES, json.dumps(scores, indent=2) + "\n")
            write_error_analyses(self.folder, analyses)
            self._write_model(scores, analyses)
            if exits is not None:
                write_exit_info(self.folder / MODEL, exits.info)
                for sentence in exits.sentences():
                    self.log(sentence)
            self.write_actual()
            write_report([self.folder], self.folder / REPORT)
            self.log_actual()
        self.kept_step = step
        # Checkpoints are no longer needed, and several times as large as the model.
        self._remove_checkpoints()
        return scores

    def _write_model(self, scores: dict[str, Any], analyses: Sequence[ErrorAnalysis]) -> None:
        """Write the model folder, with its card and task.json."""
        data, task, pairs = self.task_data, self.task_data.task, are_pairs(self.task_data.train.examples)
        card = finetuned_card(
            self.model,
            task,
            self.folder,
            scores["scores"],
            outcome=scores,
            collapsed=scores["collapsed"] or "",
            of_pairs=pairs,
            analyses=analyses,
        )
        huggingface.save(self.model, self.folder / MODEL, data.tokenizer, card=card, pretraining=data.pretraining)
        split, metrics = next(iter(scores["scores"].items()))
        task_info = TaskInfo(
            task=task.name,
            kind=task.kind,
            max_length=data.max_length,
            stride=self.settings.stride,
            null_threshold=scores["null_threshold"],
            split=split,
            scores=metrics,
            metric=task.main_metric,
            of_pairs=pairs,
            answer_format=task.answer_format,
            layout=dict(data.layout),
            separator=data.separator,
            max_answer_tokens=data.train.max_answer_tokens,
            pooling="mean" if task.kind == "similarity" else None,
            long_texts=data.train.encoding.sequences.long_texts,
        )
        write_task_info(self.folder / MODEL, task_info)


def check_data(folder: Path, run_info: dict[str, Any], task_data: TaskData) -> None:
    """Refuse examples that are not those that the run started with."""
    before, now = run_info["data"].get("fingerprints", {}), task_data.fingerprints
    changed = [split for split in {**before, **now} if before.get(split) != now.get(split)]
    if changed:
        what = "training examples" if "train" in changed else f"examples to score on ({', '.join(changed)})"
        raise UserError(
            f"{folder} holds a run that started with other {what}: the file was changed since. Give another --out, or "
            "--fresh to start over"
        )
