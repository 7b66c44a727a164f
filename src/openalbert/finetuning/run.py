"""One fine-tuning run: steps, scores between them, the best weights kept, a collapse noticed, a model at the end."""

import contextlib
import json
import math
import shutil
import sys
from dataclasses import replace
from typing import Any

import torch

from openalbert.errors import UserError
from openalbert.finetuning.batches import Packing, num_units, tokens_in_memory
from openalbert.finetuning.collapse import FROM_PROGRESS, RATE_FACTOR, baseline_loss
from openalbert.finetuning.cuda_graphs import Recording, is_recorded
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.judge import Judge
from openalbert.finetuning.losses import finetuning
from openalbert.finetuning.outcome import REPORT, SCORES, look_at, write_outcome
from openalbert.finetuning.run_facts import check_data, first_run_info
from openalbert.finetuning.scoring import score_part
from openalbert.finetuning.settings import Finetune, plan
from openalbert.finetuning.standing import Standing
from openalbert.model.cost import training_flops_per_token
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import DepthSchedule, DepthStage
from openalbert.report.report import write_report
from openalbert.tasks.label_checks import describe_never_predicted
from openalbert.train import checkpoint
from openalbert.train.checkpointer import Checkpointer, load_weights
from openalbert.train.device import Device, measure_matmul_peak
from openalbert.train.estimate import DRY_STEPS, DryTimes, Needs, StepTimes, estimate_table, measured
from openalbert.train.loop import LoopConfig, training_steps
from openalbert.train.machine import machine, note_move
from openalbert.train.metrics_log import MetricsLog
from openalbert.train.run_dir import CHECKPOINTS, MODEL, is_done, read_run_info, write_run_info
from openalbert.train.signals import Stop
from openalbert.train.state import PATIENCE, TrainState


def log_from_main(device: Device, sentence: str) -> None:
    """Tell the user something where no journal is open; only the main process speaks."""
    if device.is_main:
        print(sentence, file=sys.stderr, flush=True)


class FinetuningRun:
    """One run: everything built, and the body of the loop in reading order."""

    def __init__(self, settings: Finetune, task_data: TaskData, device: Device, peak: float | None = None) -> None:
        self.settings, self.task_data, self.device, self.folder = settings, task_data, device, settings.out
        self.task, self.sequences = task_data.task, task_data.train.encoding.sequences
        self.baseline = baseline_loss(self.sequences, task_data.class_weights)
        self.is_recorded = is_recorded(settings.speed, device)
        writes = device.is_main and not settings.dry_run
        # What a CPU could do depends on what else runs there: a fraction of that says nothing.
        self.peak = peak or (measure_matmul_peak(device) if device.is_cuda else None)
        length = max(1, round(len(self.sequences.ids) / len(self.sequences.example)))
        self.metrics_log = MetricsLog(
            self.folder,
            writes,
            settings.tensorboard,
            lambda depth: training_flops_per_token(task_data.config, length, masked_fraction=0.0, depth=depth),
            None if self.peak is None else self.peak * device.world,
        )
        self.run_info: dict[str, Any] = {}

    def carry_out(self, stop: Stop) -> dict[str, Any]:
        """Train until it is done, and once more at a lower rate if it collapsed; gives the scores."""
        if is_done(self.folder):
            check_data(self.folder, read_run_info(self.folder), self.task_data)
            scores: dict[str, Any] = json.loads((self.folder / SCORES).read_text(encoding="utf-8"))
            if self.device.is_main and not (self.folder / REPORT).exists():  # it was killed on its last metres
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

    @property
    def _attempts(self) -> list[dict[str, Any]]:
        """What was tried before and collapsed."""
        attempts: list[dict[str, Any]] = self.run_info.get("attempts", [])
        return attempts

    # The run itself.

    def _build(self) -> None:
        """Model, optimizer and batches as they are before the first step of an attempt."""
        settings, device = self.settings, self.device
        self.plan = plan(settings, len(self.task_data.train.examples), num_units(self.sequences))
        if not self.run_info:
            self.run_info = read_run_info(self.folder)
        self.rate = settings.optimizer.learning_rate * RATE_FACTOR ** len(self._attempts)
        self.model = self.task_data.make_model(settings.seed, settings.from_scratch)
        self.model.encoder.recomputes_activations = settings.speed.recompute
        self.model.to(device.torch_device)
        weights = self.task_data.class_weights
        on_device = None if weights is None else torch.from_numpy(weights).float().to(device.torch_device)
        self.learning = finetuning(self.model, Recording(self.model) if self.is_recorded else None, on_device)
        self.optimizer = make_optimizer(self.model, settings.optimizer)  # the pace has the attempt's own rate
        self.packing = Packing(
            self.sequences,
            self.plan.batch_size,
            settings.seed,
            tokens_at_a_time=tokens_in_memory(self.task_data.config, device, settings.speed.recompute),
            units_at_a_time=settings.speed.micro_batch,
            device=device.torch_device,
            fills=self.is_recorded,
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
        self.judge = Judge(self.task_data, self.baseline, device, self.metrics_log)
        self.checkpointer = Checkpointer(
            self.folder, self.model, self.optimizer, self.metrics_log, device, settings.speed.micro_batch
        )

    def _train(self, stop: Stop) -> str | None:
        """Take steps until the budget is spent or nothing more is to be hoped for; gives the reason if it collapsed."""
        timed = StepTimes()
        steps = training_steps(
            self.model,
            self.optimizer,
            self.packing,
            self.learning,
            self.loop_config,
            self.device,
            self.train_state,
            stop_asked=stop.asked,
        )
        standing, reason = self.judge.standing, None
        try:
            for step in () if standing.has_ended else steps:
                done = self.loop_config.budget.progress(self.train_state.spent)
                self.metrics_log.take(step, self.train_state, done)
                self._time(timed)
                if step.every(self.settings.log_every) or done == 1:
                    self.metrics_log.write_window(step, self.train_state)
                is_due = step.every(self.plan.evaluate_every)
                if is_due:
                    self.judge.evaluate(self.model, self.train_state)
                    # The last attempt goes on to its end: there is nothing that could be done better.
                    if len(self._attempts) < self.settings.retries and step.progress >= FROM_PROGRESS:
                        reason = self.judge.collapse(self.model, self.train_state)
                    standing.has_ended = reason is not None or self.judge.is_out_of_patience(
                        self.settings.patience, step.number
                    )
                if is_due or step.every(self.plan.save_every) or step.stop_asked:
                    self._save()
                if step.stop_asked:
                    self.log(f"stopped at step {step.number:,} with a checkpoint; the same command goes on from here")
                    sys.exit(stop.exit_code)
                if standing.has_ended:
                    break
        except UserError:
            if self.train_state.skipped_in_a_row < PATIENCE:
                raise
            return f"{PATIENCE} steps in a row had a loss or gradient that is no finite number"
        finally:
            steps.close()  # type: ignore[attr-defined]
        if standing.evaluated_at != self.train_state.step:
            self.judge.evaluate(self.model, self.train_state)
            self._save()
        return reason or self.judge.collapse(self.model, self.train_state)

    def _resume(self) -> None:
        """Go on from the newest sound checkpoint of this attempt, if there is one."""
        found = self.checkpointer.latest()
        if found and found.state["attempt"] != len(self._attempts):
            found = None  # of an attempt that collapsed; the run was killed before it was removed
            self._remove_checkpoints()
        if not self.run_info or not (found or self._attempts):
            self.run_info = first_run_info(self.task_data, self.plan, self.model, self.device) | {
                "matmul_peak_flops": self.peak,
                "baseline_loss": self.baseline,
            }
        check_data(self.folder, self.run_info, self.task_data, found.state.get("fingerprint") if found else None)
        self.run_info["data"]["fingerprints"] = self.task_data.fingerprints
        if found:
            self.train_state = self.checkpointer.restore(found, parts=1)
            self.judge.standing, self.metrics_log.note = Standing(**found.state["standing"]), found.state["note"]
            self.run_info["restarts"] += 1
        else:
            self.metrics_log.resume(self._attempts[-1]["metrics_bytes"] if self._attempts else 0, {}, self.train_state)
        self.run_info["learning_rate"] = self.rate
        self._introduce()
        note_move(self.run_info, machine(self.device), self.peak, self.train_state.step)
        write_run_info(self.folder, self.run_info, self.device)
        self.device.wait_for_all()

    def _introduce(self) -> None:
        chosen = self.plan.sentence(self.settings, len(self.task_data.train.examples), self.packing.num_units)
        self.log(
            f"{self.task.name}, seed {self.settings.seed}: {self.model.num_parameters():,} parameters on "
            f"{self.device.describe()}, {self.device.precision}; {chosen}; learning rate {self.rate:.3g}"
        )

    def _time(self, timed: StepTimes) -> None:
        """Estimate what the run will take from its first steps."""
        seconds = timed.add(self.train_state.seconds)
        if seconds is None or "estimate" in self.run_info:
            return
        self.run_info["estimate"] = self._estimate(seconds).as_dict()
        write_run_info(self.folder, self.run_info, self.device)

    def _estimate(self, step_seconds: float) -> Needs:
        """Time and tokens of the run if all its steps are like those that were taken; evaluations not counted."""
        budget = self.plan.budget
        steps = budget.steps or round((budget.minutes or 0.0) * 60 / step_seconds)
        parameters = self.model.num_parameters()
        # A checkpoint is weights and two moments: the last, the best, and one being written; then the model folder.
        disk = 12 * parameters * 3 + 4 * parameters
        tokens = round(steps * self.train_state.tokens / max(1, self.train_state.step))
        return Needs(steps, tokens, steps * step_seconds / 3600, self.device.peak_memory(), disk)

    def _start_over(self, reason: str) -> None:
        """Note a collapse and prepare the next attempt. The note is on the disk before anything is removed."""
        lower = self.rate * RATE_FACTOR
        text = f"collapsed at step {self.train_state.step:,}: {reason}. Tried again with learning rate {lower:.3g}"
        self.metrics_log.record({"kind": "event", "step": self.train_state.step, "what": "collapsed", "text": text})
        self.log(text)
        attempt = {"learning_rate": self.rate, "step": self.train_state.step, "reason": reason}
        self._attempts.append({**attempt, "metrics_bytes": self.metrics_log.size})
        write_run_info(self.folder, self.run_info, self.device)
        self.device.wait_for_all()
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        if self.device.is_main:
            shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        self.device.wait_for_all()

    def _save(self) -> None:
        """Write a checkpoint."""
        standing = self.judge.standing
        own = {
            "attempt": len(self._attempts),
            "standing": standing.state(),
            "note": self.metrics_log.note,
        }
        self.checkpointer.save(self.train_state, own, keep_last=1, is_best=standing.is_best_at(self.train_state.step))

    def _finish(self, collapsed: str | None) -> dict[str, Any]:
        """The best weights, scored on everything there is to score on; model folder, scores, truth."""
        step, decisive = self.train_state.step, self.judge.split
        best = checkpoint.best(self.folder / CHECKPOINTS) if self.settings.keep == "best" else None
        if best is not None and best.step != step:
            load_weights(self.model, best.read()[0]["model"], str(best.folder))
            step = best.step
        kept = self.judge.scored(self.model, step)
        threshold = kept.null_threshold
        if self.task_data.units is not None:
            self.task_data.units.to_values(self.model)
        scored = {
            split: kept
            if split == decisive
            else score_part(
                self.model, self.task, part, self.device, threshold, class_weights=self.task_data.class_weights
            )
            for split, part in self.task_data.scored.items()
        }
        analyses = look_at(self.task_data, scored) if self.device.is_main else []
        scores: dict[str, Any] = {
            "task": self.task.name,
            "main_metric": self.task.main_metric,
            "seed": self.settings.seed,
            "learning_rate": self.rate,
            "step": step,
            "steps": self.train_state.step,
            "scores": {split: found.figures for split, found in scored.items()},
            "num_examples": {split: len(part.examples) for split, part in self.task_data.scored.items()},
            "intervals": {one.split: one.intervals for one in analyses},
            "never_predicted": {one.split: one.never_predicted for one in analyses},
            "losses": {split: found.loss if math.isfinite(found.loss) else None for split, found in scored.items()},
            "ranking": self.judge.ranking(kept),
            "null_threshold": threshold if self.task_data.threshold is not None else None,
            "collapsed": collapsed,
            "attempts": [{k: v for k, v in one.items() if k != "metrics_bytes"} for one in self._attempts],
        }
        if collapsed is not None:
            self.log(f"this run collapsed, and its scores are no result: {collapsed}")
        elif (same := self.judge.sameness(kept, self.train_state.step)) is not None:
            self.log(f"{same}: it has hardly begun to learn; train for longer, or raise --optimizer.learning-rate")
        for one in analyses:
            for told in describe_never_predicted(one.kind, one.never_predicted, one.num_examples):
                self.log(f"WARNING: {one.split}: {told}")
        if self.device.is_main:
            write_outcome(self.folder, self.model, self.task_data, self.settings.stride, scores, analyses)
            train_state = self.train_state
            actual = measured(
                self.folder, train_state.step, train_state.tokens, train_state.seconds, self.device
            ).as_dict()
            self.run_info["actual"] = actual
            write_run_info(self.folder, self.run_info, self.device)
            write_report([self.folder], self.folder / REPORT)
            if "estimate" in self.run_info:
                self.log(estimate_table(self.run_info["estimate"], actual))
            self.log(
                f"done: the model of step {step:,} is in {self.folder / MODEL}, the page is {self.folder / REPORT}"
            )
        # What could be gone on from is no longer needed, and is several times as large as the model.
        self._remove_checkpoints()
        return scores

    def dry_run(self) -> None:
        """A few steps, the last of them timed, and what the whole run would take."""
        self._build()
        self._introduce()
        self.loop_config = replace(
            self.loop_config, budget=replace(self.loop_config.budget, steps=DRY_STEPS[1], minutes=None)
        )
        times = DryTimes()
        steps = training_steps(
            self.model, self.optimizer, self.packing, self.learning, self.loop_config, self.device, self.train_state
        )
        with contextlib.closing(steps):  # type: ignore[type-var]
            for step in steps:
                self.log(f"step {step.number}: loss {step.loss:.3f}, {times.add(self.train_state.seconds):.2f} s")
                if times.are_enough:
                    break
        self.log(estimate_table(self._estimate(times.median).as_dict()))

    def log(self, sentence: str) -> None:
        """Tell the user something; only the main process speaks."""
        if self.device.is_main and not self.settings.dry_run:
            self.metrics_log.log(sentence)
        elif self.device.is_main:
            print(sentence, flush=True)
