"""`openalbert pretrain`: the main job. It shows what it does, survives what happens, and ends with a model folder."""

import contextlib
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import DepthSchedule, DepthStage
from openalbert.optim.settings import scaling_sentence
from openalbert.pretraining.batches import Batches
from openalbert.pretraining.data_record import (
    RECORDED,
    check_same_data,
    check_same_on_all_ranks,
    data_record,
    take_over,
)
from openalbert.pretraining.estimate import estimate_run, step_cost
from openalbert.pretraining.history import history, initialization
from openalbert.pretraining.loss import evaluate, pretraining, unigram_entropy
from openalbert.pretraining.settings import FREE_TO_CHANGE, Pretrain
from openalbert.pretraining.setup import compiled_part, first_parts, fitted, is_recorded, make_model, open_heldout
from openalbert.pretraining.stability import Watch
from openalbert.report.model_card import pretrained_card
from openalbert.text.shards import open_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train import checkpoint
from openalbert.train.checkpointer import Checkpointer
from openalbert.train.device import Device, measure_matmul_peak, open_device
from openalbert.train.estimate import (
    DRY_STEPS,
    DryTimes,
    StepTimes,
    estimate_table,
    measured,
    work_until,
)
from openalbert.train.loop import LoopConfig, training_steps
from openalbert.train.machine import command, machine, note_move, now
from openalbert.train.metrics_log import MetricsLog
from openalbert.train.run_dir import CHECKPOINTS, MODEL, claim_folder, is_done, locked, read_run_info, write_run_info
from openalbert.train.signals import Stop
from openalbert.train.state import Step, TrainState


def pretrain(settings: Pretrain) -> None:
    """Carry out a run, or go on with it."""
    if not settings.preset:
        raise UserError("name the model right after the verb, such as `openalbert pretrain albert-base`")
    with Stop() as stop, open_device(settings.speed) as device, locked(settings, device):
        run = PretrainingRun(settings, device)
        check_same_on_all_ranks(run.data, device)
        if settings.dry_run:
            if not settings.fresh:
                run.check_data()
            run.dry_run()
            return
        claim_folder(run.settings, device, FREE_TO_CHANGE, check=run.check_data)
        if is_done(settings.out):
            run.log(f"{settings.out}: this run is done; its model is in {settings.out / MODEL}")
        else:
            run.train(stop)


class PretrainingRun:
    """One run: everything built, and the body of the loop in reading order."""

    def __init__(self, settings: Pretrain, device: Device) -> None:
        self.device, self.folder = device, settings.out
        self.shards = open_shards(settings.data)
        self.settings = fitted(settings, self.shards)
        self.compiled = compiled_part(settings, device)
        self.model = make_model(self.settings, device)
        self.learning = pretraining(
            self.model,
            is_compiled=self.compiled != "none",
            is_recorded=is_recorded(settings, device),
            order_weight=settings.objective.sentence_order.weight,
            sentence_task=settings.objective.sentence_order.objective,
        )
        self.optimizer = make_optimizer(self.model, settings.optimizer)
        self.batches = Batches(
            self.shards,
            settings.objective,
            settings.batch_size,
            settings.seed,
            device=device.torch_device,
            compiled=self.compiled == "whole",
        )
        self.heldout = open_heldout(settings, self.shards, device)
        self.data = data_record(settings.data, self.batches, self.heldout)
        self.loop_config = LoopConfig(
            settings.budget,
            settings.schedule,
            settings.learning_rate,
            settings.optimizer.clip_norm,
            settings.depths,
            settings.seed,
            skips_spikes=True,
        )
        self.train_state = TrainState(parts=first_parts(self.settings, device))
        self.best: float | None = None
        self.evaluated_at = -1
        self.is_best = False
        self.watch: Watch
        self.run_info: dict[str, Any] = {}
        # What a CPU could do depends on what else runs there: a fraction of that says nothing.
        self.peak = measure_matmul_peak(device) if device.is_cuda else None
        writes = device.is_main and not settings.dry_run
        cost = step_cost(self.settings)
        self.metrics_log = MetricsLog(
            self.folder,
            writes,
            settings.tensorboard,
            cost,
            None if self.peak is None else self.peak * device.world,
            deepens=len(settings.depths.stages) > 1,
            work=partial(work_until, depths=settings.depths, cost=cost) if settings.budget.minutes is None else float,
        )
        self.checkpointer = Checkpointer(
            self.folder, self.model, self.optimizer, self.metrics_log, device, settings.speed.micro_batch
        )

    def _machine(self) -> dict[str, Any]:
        return {**machine(self.device), "is_fused": self.model.encoder.is_fused}

    def _first_run_info(self) -> dict[str, Any]:
        settings = self.settings
        return {
            **self._machine(),
            "matmul_peak_flops": self.peak,
            "started": now(),
            "command": command(),
            "parameters": self.model.num_parameters(),
            "vocab_size": settings.model.vocab_size,
            "unigram_entropy": unigram_entropy(self.shards),
            "data": self.data,
            "earlier_data": [],
            **initialization(settings),
            "restarts": 0,
        }

    def check_data(self) -> None:
        """Refuse to resume on other data than the checkpoint's."""
        found, _ = checkpoint.latest(self.folder / CHECKPOINTS)
        if found and not is_done(self.folder):
            before = found.state().get("data", {})
            check_same_data(before, self.data, found.folder, self.settings.allow_new_data)

    # The run itself.

    def train(self, stop: Stop) -> None:
        """Take steps until the budget is spent, and do between them what is due."""
        self._resume()
        settings = self.settings
        self._introduce()
        self._compile()
        timed = StepTimes()
        steps = training_steps(
            self.model,
            self.optimizer,
            self.batches,
            self.learning,
            self.loop_config,
            self.device,
            self.train_state,
            stop_asked=stop.asked,
        )
        try:
            for step in steps:
                self.metrics_log.take(step, self.train_state, self.loop_config.budget.progress(self.train_state.spent))
                self._time(step, timed)
                if step.every(settings.log_every):
                    self._look_at_the_loss(step)
                    self.metrics_log.write_window(step, self.train_state)
                if self.heldout and step.every(settings.evaluate_every or settings.save_every):
                    self._evaluate(step.depth)
                is_new_best = self.evaluated_at == step.number and self.is_best
                if step.every(settings.save_every) or is_new_best or step.stop_asked:
                    self._save()
                if step.stop_asked:
                    self.log(f"stopped at step {step.number:,} with a checkpoint; the same command goes on from here")
                    sys.exit(stop.exit_code)
        finally:
            self.metrics_log.close()
        self._finish()

    def _compile(self) -> None:
        """Have the first batch through once before the clock starts: whatever compiles does so now."""
        if self.compiled == "none":
            return
        started = time.perf_counter()
        part = self.batches.at(self.train_state.step, self.device.rank, self.device.world, 0, self.train_state.parts)
        try:
            with self.device.autocast():
                scores = self.learning.scores(part, self.settings.model.num_layers)
            sum(score.mean for score in scores.values()).backward()  # type: ignore[union-attr]
        except torch.OutOfMemoryError:
            self.log("out of memory while compiling: the first step will tell")
        self.optimizer.zero_grad()
        self.log(f"compiled in {time.perf_counter() - started:.1f} s")

    def _introduce(self) -> None:
        settings, data = self.settings, self.run_info["data"]
        parts = self.train_state.parts * self.device.world
        self.log(
            f"{settings.preset}: {self.run_info['parameters']:,} parameters on {self.device.describe()}, "
            f"{self.device.precision}; {data['train_tokens']:,} tokens, {data['examples_per_epoch']:,} examples an "
            f"epoch; {settings.budget} of batch {settings.batch_size} in {parts} part{'s' if parts > 1 else ''}"
        )
        if data["unusable_documents"]:
            self.log(
                f"{data['unusable_documents']:,} document{'s' if data['unusable_documents'] > 1 else ''} with "
                f"{data['unusable_tokens']:,} tokens cannot be used: "
                f"they have one sentence, and {settings.objective.sentence_order.objective} needs two "
                "(--objective.sentence-order.objective none uses them)"
            )
        rate = settings.optimizer.learning_rate
        self.log(scaling_sentence(rate, settings.batch_size, settings.reference_batch))
        if settings.optimizer.kind == "muon":
            rate = settings.optimizer.matrix_learning_rate
            sentence = scaling_sentence(rate, settings.batch_size, settings.reference_batch)
            self.log(f"Muon for the matrices of the layers: {sentence}")
        self.log(f"word frequencies alone would give a MLM loss of {self.run_info['unigram_entropy']:.3f}")
        encoder = self.model.encoder
        if self.compiled != "none" and encoder.attend_masked is not None and not encoder.is_fused:
            self.log("our kernels did not pass their trial on this GPU: torch's own take their place, a little slower")
        if not self.heldout:
            self.log("no held-out text: prepare the shards with --heldout 0.01, or give --heldout FOLDER, to evaluate")

    def _resume(self) -> None:
        """Go on from the newest sound checkpoint, if there is one."""
        found = self.checkpointer.latest()
        self.run_info = read_run_info(self.folder) if found else {}
        if not self.run_info:
            self.run_info = self._first_run_info()
        events: dict[str, str] = {}
        if found:
            self.train_state = self.checkpointer.restore(found, self.train_state.parts)
            # A change of data after this checkpoint is undone with the steps that it lost.
            self.run_info |= {name: found.state[name] for name in RECORDED}
            events = take_over(self.run_info, self.data, self.batches, self.train_state)
        first = Watch(self.run_info["unigram_entropy"], is_growing=len(self.loop_config.depths.stages) > 1)
        if found:
            self.best, self.evaluated_at = found.state["best"], found.state["evaluated_at"]
            if "new_heldout" in events:
                self.best = None
            self.watch = first if "new_data" in events else replace(first, **found.state["watch"])
            self.run_info["restarts"] = self.run_info.get("restarts", 0) + 1
        else:
            self.watch = first
            self.metrics_log.resume(0, {}, self.train_state)
        for kind, text in events.items():
            self.metrics_log.record({"kind": "event", "step": self.train_state.step, "what": kind, "text": text})
            self.log(text)
        note_move(self.run_info, self._machine(), self.peak, self.train_state.step)
        write_run_info(self.folder, self.run_info, self.device)
        self.device.wait_for_all()

    def _time(self, step: Step, timed: StepTimes) -> None:
        """Estimate what the run will take from its first steps."""
        seconds = timed.add(self.train_state.seconds)
        if seconds is None or "estimate" in self.run_info:
            return
        self.run_info["estimate"] = self._estimate(seconds, step.depth)
        write_run_info(self.folder, self.run_info, self.device)
        self.log(estimate_table(self.run_info["estimate"]))

    def _estimate(self, step_seconds: float, depth: int) -> dict[str, int | float]:
        micro_batch = self.settings.batch_size // self.device.world // self.train_state.parts
        step_tokens = self.train_state.tokens / self.train_state.step
        return estimate_run(self.settings, micro_batch, step_seconds, step_tokens, depth, self.device).as_dict()

    def _look_at_the_loss(self, step: Step) -> None:
        """Say so if the model learns nothing, or loses what it had learned."""
        window = self.metrics_log.window
        loss = window.figures().get("mlm_loss")  # of skipped steps there is none
        if loss is not None and (said := self.watch.look(loss, window.steps, step.depth, step.number, step.progress)):
            kind, text = said
            self.metrics_log.record({"kind": "event", "step": step.number, "what": kind, "text": text})
            self.log(text)

    def _evaluate(self, depth: int) -> None:
        """Record how the model does on held-out text, and whether it was never better."""
        assert self.heldout is not None
        started = time.perf_counter()
        steps = max(1, self.settings.evaluation_examples // self.heldout.batch_size)
        found = evaluate(self.learning, self.model, self.heldout, steps, depth, self.device)
        self.evaluated_at = self.train_state.step
        figures = {
            "kind": "evaluation",
            "step": self.train_state.step,
            "tokens": self.train_state.tokens,
            **found.figures(),
        }
        self.metrics_log.record({**figures, "seconds": time.perf_counter() - started})
        self.log(f"step {self.train_state.step:,}, held-out: {found}")
        loss = sum(loss for loss, _ in found.losses.values())
        self.is_best = self.best is None or loss < self.best
        if self.is_best:
            self.best = loss

    def _save(self) -> None:
        """Write a checkpoint."""
        own = {"best": self.best, "evaluated_at": self.evaluated_at, "watch": self.watch.state()}
        own |= {name: self.run_info[name] for name in RECORDED}
        is_best = self.evaluated_at == self.train_state.step and self.is_best
        self.checkpointer.save(self.train_state, own, keep_last=self.settings.keep_last, is_best=is_best)

    def _finish(self) -> None:
        """The last evaluation and checkpoint, the model folder, and the truth beside the estimate."""
        if self.heldout and self.evaluated_at != self.train_state.step:
            self._evaluate(self.settings.model.num_layers)
        self._save()
        if self.device.is_main:
            tokenizer = Tokenizer.load(self.shards.tokenizer_folder)
            took = measured(
                self.folder, self.train_state.step, self.train_state.tokens, self.train_state.seconds, self.device
            ).as_dict()
            self.run_info["actual"] = took
            write_run_info(self.folder, self.run_info, self.device)
            card = pretrained_card(self.model, self.folder)
            known = history(self.settings, self.run_info)
            huggingface.save(self.model, self.folder / MODEL, tokenizer, card=card, pretraining=known)
            if "estimate" in self.run_info:
                self.log(estimate_table(self.run_info["estimate"], took))
            self.log(
                f"done: the model is in {self.folder / MODEL}, the curves come with `openalbert report {self.folder}`"
            )
        self.device.wait_for_all()

    def dry_run(self) -> None:
        """A few steps at full depth, the last of them timed, and what the whole run would take."""
        depth = self.settings.model.num_layers
        budget = replace(self.loop_config.budget, steps=DRY_STEPS[1], tokens=None, minutes=None)
        loop_config = replace(self.loop_config, budget=budget, depths=DepthSchedule((DepthStage(depth),)))
        self.run_info = self._first_run_info()
        self._introduce()
        self._compile()
        times = DryTimes()
        steps = training_steps(
            self.model, self.optimizer, self.batches, self.learning, loop_config, self.device, self.train_state
        )
        with contextlib.closing(steps):  # type: ignore[type-var]
            for step in steps:
                self.log(f"step {step.number}: loss {step.loss:.3f}, {times.add(self.train_state.seconds):.2f} s")
                if times.are_enough:
                    break
        self.log(estimate_table(self._estimate(times.median, depth)))

    def log(self, sentence: str) -> None:
        """Tell the user something; only the main process speaks."""
        if self.device.is_main and not self.settings.dry_run:
            self.metrics_log.log(sentence)
        elif self.device.is_main:
            print(sentence, flush=True)
