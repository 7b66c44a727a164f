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
from openalbert.model.cost import training_flops_per_token
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import DepthSchedule, DepthStage
from openalbert.tasks.collapse import FROM_PROGRESS, RATE_FACTOR, baseline_loss
from openalbert.tasks.judge import Judge
from openalbert.tasks.learning import finetuning
from openalbert.tasks.material import Material
from openalbert.tasks.outcome import REPORT, SCORES, look_at, write_outcome
from openalbert.tasks.packing import Packing, num_units, tokens_in_memory
from openalbert.tasks.recording import Recording, is_recorded
from openalbert.tasks.report import write_report
from openalbert.tasks.run_facts import check_data, first_facts
from openalbert.tasks.scoring import score_part
from openalbert.tasks.settings import Finetune, plan
from openalbert.tasks.standing import Standing
from openalbert.tasks.targets import never_predicted_told
from openalbert.train import checkpoint
from openalbert.train.claim import CHECKPOINTS, MODEL, is_done, read_facts, write_facts
from openalbert.train.device import Device, measure_matmul_peak
from openalbert.train.estimate import DRY_STEPS, DryTimes, Needs, StepTimes, measured, side_by_side
from openalbert.train.interruption import Stop
from openalbert.train.journal import Journal
from openalbert.train.machine import machine, note_move
from openalbert.train.running import PATIENCE, Running
from openalbert.train.saving import Saving
from openalbert.train.setup import load_weights
from openalbert.train.steps import Pace, training_steps


def say_plainly(device: Device, sentence: str) -> None:
    """Tell the user something where no journal is open; only the main process speaks."""
    if device.is_main:
        print(sentence, file=sys.stderr, flush=True)


class Run:
    """One run: everything built, and the body of the loop in reading order."""

    def __init__(self, settings: Finetune, material: Material, device: Device, peak: float | None = None) -> None:
        self.settings, self.material, self.device, self.folder = settings, material, device, settings.out
        self.task, self.sequences = material.task, material.train.encoding.sequences
        self.baseline = baseline_loss(self.sequences, material.class_weights)
        self.is_recorded = is_recorded(settings.speed, device)
        writes = device.is_main and not settings.dry_run
        # What a CPU could do depends on what else runs there: a fraction of that says nothing.
        self.peak = peak or (measure_matmul_peak(device) if device.is_cuda else None)
        length = max(1, round(len(self.sequences.ids) / len(self.sequences.example)))
        self.journal = Journal(
            self.folder,
            writes,
            settings.tensorboard,
            lambda depth: training_flops_per_token(material.config, length, masked_share=0.0, depth=depth),
            None if self.peak is None else self.peak * device.world,
        )
        self.facts: dict[str, Any] = {}

    def carry_out(self, stop: Stop) -> dict[str, Any]:
        """Train until it is done, and once more at a lower rate if it collapsed; gives the scores."""
        if is_done(self.folder):
            check_data(self.folder, read_facts(self.folder), self.material)
            scores: dict[str, Any] = json.loads((self.folder / SCORES).read_text(encoding="utf-8"))
            if self.device.is_main and not (self.folder / REPORT).exists():  # it was killed on its last metres
                write_report([self.folder], self.folder / REPORT)
            self._remove_checkpoints()
            self.say(f"{self.folder}: this run is done; its model is in {self.folder / MODEL}")
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
            self.journal.close()

    @property
    def _attempts(self) -> list[dict[str, Any]]:
        """What was tried before and collapsed."""
        attempts: list[dict[str, Any]] = self.facts.get("attempts", [])
        return attempts

    # The run itself.

    def _build(self) -> None:
        """Model, optimizer and batches as they are before the first step of an attempt."""
        settings, device = self.settings, self.device
        self.plan = plan(settings, len(self.material.train.examples), num_units(self.sequences))
        if not self.facts:
            self.facts = read_facts(self.folder)
        self.rate = settings.optimizer.learning_rate * RATE_FACTOR ** len(self._attempts)
        self.model = self.material.make_model(settings.seed, settings.from_scratch)
        self.model.encoder.recomputes_activations = settings.speed.recompute
        self.model.to(device.torch_device)
        weights = self.material.class_weights
        on_device = None if weights is None else torch.from_numpy(weights).float().to(device.torch_device)
        self.learning = finetuning(self.model, Recording(self.model) if self.is_recorded else None, on_device)
        self.optimizer = make_optimizer(self.model, settings.optimizer)  # the pace has the attempt's own rate
        self.packing = Packing(
            self.sequences,
            self.plan.batch_size,
            settings.seed,
            tokens_at_a_time=tokens_in_memory(self.material.config, device, settings.speed.recompute),
            units_at_a_time=settings.speed.micro_batch,
            device=device.torch_device,
            fills=self.is_recorded,
        )
        self.pace = Pace(
            self.plan.budget,
            settings.schedule,
            self.rate,
            settings.optimizer.clip_norm,
            DepthSchedule((DepthStage(self.model.config.num_layers),)),
            settings.seed,
        )
        self.running = Running()
        self.judge = Judge(self.material, self.baseline, device, self.journal)
        self.saving = Saving(self.folder, self.model, self.optimizer, self.journal, device, settings.speed.micro_batch)

    def _train(self, stop: Stop) -> str | None:
        """Take steps until the budget is spent or nothing more is to be hoped for; gives the reason if it collapsed."""
        timed = StepTimes()
        steps = training_steps(
            self.model,
            self.optimizer,
            self.packing,
            self.learning,
            self.pace,
            self.device,
            self.running,
            stop_asked=stop.asked,
        )
        standing, reason = self.judge.standing, None
        try:
            for step in () if standing.has_ended else steps:
                done = self.pace.budget.progress(self.running.spent)
                self.journal.take(step, self.running, done)
                self._time(timed)
                if step.every(self.settings.log_every) or done == 1:
                    self.journal.write_window(step, self.running)
                is_due = step.every(self.plan.evaluate_every)
                if is_due:
                    self.judge.evaluate(self.model, self.running)
                    # The last attempt goes on to its end: there is nothing that could be done better.
                    if len(self._attempts) < self.settings.retries and step.progress >= FROM_PROGRESS:
                        reason = self.judge.collapse(self.model, self.running)
                    standing.has_ended = reason is not None or self.judge.is_out_of_patience(
                        self.settings.patience, step.number
                    )
                if is_due or step.every(self.plan.save_every) or step.stop_asked:
                    self._save()
                if step.stop_asked:
                    self.say(f"stopped at step {step.number:,} with a checkpoint; the same command goes on from here")
                    sys.exit(stop.exit_code)
                if standing.has_ended:
                    break
        except UserError:
            if self.running.skipped_in_a_row < PATIENCE:
                raise
            return f"{PATIENCE} steps in a row had a loss or gradient that is no finite number"
        finally:
            steps.close()  # type: ignore[attr-defined]
        if standing.evaluated_at != self.running.step:
            self.judge.evaluate(self.model, self.running)
            self._save()
        return reason or self.judge.collapse(self.model, self.running)

    def _resume(self) -> None:
        """Go on from the newest sound checkpoint of this attempt, if there is one."""
        found = self.saving.latest()
        if found and found.state["attempt"] != len(self._attempts):
            found = None  # of an attempt that collapsed; the run was killed before it was removed
            self._remove_checkpoints()
        if not self.facts or not (found or self._attempts):
            self.facts = first_facts(self.material, self.plan, self.model, self.device) | {
                "matmul_peak_flops": self.peak,
                "baseline_loss": self.baseline,
            }
        check_data(self.folder, self.facts, self.material, found.state.get("fingerprint") if found else None)
        self.facts["data"]["fingerprints"] = self.material.fingerprints
        if found:
            self.running = self.saving.go_on(found, parts=1)
            self.judge.standing, self.journal.note = Standing(**found.state["standing"]), found.state["note"]
            self.facts["restarts"] += 1
        else:
            self.journal.resume(self._attempts[-1]["metrics_bytes"] if self._attempts else 0, {}, self.running)
        self._introduce()
        note_move(self.facts, machine(self.device), self.peak, self.running.step)
        write_facts(self.folder, self.facts, self.device)
        self.device.wait_for_all()

    def _introduce(self) -> None:
        chosen = self.plan.sentence(self.settings, len(self.material.train.examples), self.packing.num_units)
        self.say(
            f"{self.task.name}, seed {self.settings.seed}: {self.model.num_parameters():,} parameters on "
            f"{self.device.describe()}, {self.device.precision}; {chosen}; learning rate {self.rate:.3g}"
        )

    def _time(self, timed: StepTimes) -> None:
        """Estimate what the run will take from its first steps."""
        seconds = timed.add(self.running.seconds)
        if seconds is None or "estimate" in self.facts:
            return
        self.facts["estimate"] = self._estimate(seconds).as_dict()
        write_facts(self.folder, self.facts, self.device)

    def _estimate(self, step_seconds: float) -> Needs:
        """Time and tokens of the run if all its steps are like those that were taken; evaluations not counted."""
        budget = self.plan.budget
        steps = budget.steps or round((budget.minutes or 0.0) * 60 / step_seconds)
        parameters = self.model.num_parameters()
        # A checkpoint is weights and two moments: the last, the best, and one being written; then the model folder.
        disk = 12 * parameters * 3 + 4 * parameters
        tokens = round(steps * self.running.tokens / max(1, self.running.step))
        return Needs(steps, tokens, steps * step_seconds / 3600, self.device.peak_memory(), disk)

    def _start_over(self, reason: str) -> None:
        """Note a collapse and prepare the next attempt. The note is on the disk before anything is removed."""
        lower = self.rate * RATE_FACTOR
        text = f"collapsed at step {self.running.step:,}: {reason}. Tried again with learning rate {lower:.3g}"
        self.journal.record({"kind": "event", "step": self.running.step, "what": "collapsed", "text": text})
        self.say(text)
        attempt = {"learning_rate": self.rate, "step": self.running.step, "reason": reason}
        self._attempts.append({**attempt, "metrics_bytes": self.journal.size})
        write_facts(self.folder, self.facts, self.device)
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
            "note": self.journal.note,
        }
        self.saving.save(self.running, own, keep_last=1, is_best=standing.is_best_at(self.running.step))

    def _finish(self, collapsed: str | None) -> dict[str, Any]:
        """The best weights, scored on everything there is to score on; model folder, scores, truth."""
        step, decisive = self.running.step, self.judge.split
        best = checkpoint.best(self.folder / CHECKPOINTS) if self.settings.keep == "best" else None
        if best is not None and best.step != step:
            load_weights(self.model, best.read()[0]["model"], str(best.folder))
            step = best.step
        kept = self.judge.scored(self.model, step)
        threshold = kept.null_threshold
        if self.material.units is not None:
            self.material.units.to_values(self.model)
        scored = {
            split: kept
            if split == decisive
            else score_part(
                self.model, self.task, part, self.device, threshold, class_weights=self.material.class_weights
            )
            for split, part in self.material.scored.items()
        }
        findings = look_at(self.material, scored) if self.device.is_main else []
        scores: dict[str, Any] = {
            "task": self.task.name,
            "main_metric": self.task.main_metric,
            "seed": self.settings.seed,
            "learning_rate": self.rate,
            "step": step,
            "steps": self.running.step,
            "scores": {split: found.figures for split, found in scored.items()},
            "num_examples": {split: len(part.examples) for split, part in self.material.scored.items()},
            "intervals": {one.split: one.intervals for one in findings},
            "never_predicted": {one.split: one.never_predicted for one in findings},
            "losses": {split: found.loss if math.isfinite(found.loss) else None for split, found in scored.items()},
            "ranking": self.judge.ranking(kept),
            "null_threshold": threshold if self.material.threshold is not None else None,
            "collapsed": collapsed,
            "attempts": [{k: v for k, v in one.items() if k != "metrics_bytes"} for one in self._attempts],
        }
        if collapsed is not None:
            self.say(f"this run collapsed, and its scores are no result: {collapsed}")
        elif (same := self.judge.sameness(kept, self.running.step)) is not None:
            self.say(f"{same}: it has hardly begun to learn; train for longer, or raise --optimizer.learning-rate")
        for one in findings:
            for told in never_predicted_told(one.kind, one.never_predicted, one.num_examples):
                self.say(f"WARNING: {one.split}: {told}")
        if self.device.is_main:
            write_outcome(self.folder, self.model, self.material, self.settings.stride, scores, findings)
            running = self.running
            truth = measured(self.folder, running.step, running.tokens, running.seconds, self.device).as_dict()
            self.facts["truth"] = truth
            write_facts(self.folder, self.facts, self.device)
            write_report([self.folder], self.folder / REPORT)
            if "estimate" in self.facts:
                self.say(side_by_side(self.facts["estimate"], truth))
            self.say(
                f"done: the model of step {step:,} is in {self.folder / MODEL}, the page is {self.folder / REPORT}"
            )
        # What could be gone on from is no longer needed, and is several times as large as the model.
        self._remove_checkpoints()
        return scores

    def dry_run(self) -> None:
        """A few steps, the last of them timed, and what the whole run would take."""
        self._build()
        self._introduce()
        self.pace = replace(self.pace, budget=replace(self.pace.budget, steps=DRY_STEPS[1], minutes=None))
        times = DryTimes()
        steps = training_steps(
            self.model, self.optimizer, self.packing, self.learning, self.pace, self.device, self.running
        )
        with contextlib.closing(steps):  # type: ignore[type-var]
            for step in steps:
                self.say(f"step {step.number}: loss {step.loss:.3f}, {times.add(self.running.seconds):.2f} s")
                if times.are_enough:
                    break
        self.say(side_by_side(self._estimate(times.median).as_dict()))

    def say(self, sentence: str) -> None:
        """Tell the user something; only the main process speaks."""
        if self.device.is_main and not self.settings.dry_run:
            self.journal.say(sentence)
        elif self.device.is_main:
            print(sentence, flush=True)
