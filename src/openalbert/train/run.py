"""What pretraining and fine-tuning runs have in common: log, run_info.json, checkpoints, estimate, dry run.

The loop is not here: each kind of run iterates over `steps` in ordinary code of its own.
"""

import contextlib
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, TypeVar

from openalbert.model.albert import AlbertModel
from openalbert.optim.optimizer import TrainingOptimizer
from openalbert.optim.schedule import Budget, DepthSchedule, DepthStage
from openalbert.train.checkpoint import Checkpointer, LoadedCheckpoint
from openalbert.train.device import Device, measure_matmul_peak
from openalbert.train.estimate import DRY_STEPS, DryTimes, Needs, StepTimes, estimate_table, measured
from openalbert.train.loop import BatchSource, LoopConfig, TrainingTask, training_steps
from openalbert.train.metrics_log import MetricsLog
from openalbert.train.run_dir import RunSettings, machine, record_move, timestamp, write_run_info
from openalbert.train.signals import Stop
from openalbert.train.state import Step, TrainState

Settings = TypeVar("Settings", bound=RunSettings)
Batch = TypeVar("Batch")
CALL: ContextVar[str] = ContextVar("CALL", default="")
"""The call of a Python function that started this run; empty where the command line did."""


class TrainingRun(ABC, Generic[Settings, Batch]):
    """The base of a run; a subclass builds what is declared here, and holds the loop."""

    model: AlbertModel
    optimizer: TrainingOptimizer
    batches: BatchSource[Batch]
    task: TrainingTask[Batch]
    loop_config: LoopConfig
    train_state: TrainState

    def __init__(
        self,
        settings: Settings,
        device: Device,
        flops_per_token: Callable[[int], float],
        *,
        peak: float | None = None,
        deepens: bool = False,
        work: Callable[[float], float] = lambda progress: progress,
    ) -> None:
        """`peak` is the matmul rate of the device, if it was measured before; for the others see `MetricsLog`."""
        self.settings, self.device, self.folder = settings, device, settings.out
        # What a CPU could do depends on its other load: a utilization relative to it would mean nothing.
        self.peak = peak or (measure_matmul_peak(device) if device.is_cuda else None)
        self.metrics_log = MetricsLog(
            self.folder,
            device.is_main and not settings.dry_run,
            settings.tensorboard,
            flops_per_token,
            None if self.peak is None else self.peak * device.world,
            deepens=deepens,
            work=work,
        )
        self.run_info: dict[str, Any] = {}
        self._step_times = StepTimes()

    @abstractmethod
    def estimate(self, step_seconds: float, depth: int) -> Needs:
        """What the whole run takes, if a step at this depth takes so long."""

    def machine(self) -> dict[str, Any]:
        """Versions, hardware and precision of this start."""
        return machine(self.device)

    def first_run_info(self) -> dict[str, Any]:
        """What is known before the first step; a subclass adds its own."""
        return {
            **self.machine(),
            "matmul_peak_flops": self.peak,
            "started": timestamp(),
            "command": CALL.get() or shlex.join(["openalbert", *sys.argv[1:]]),
            "parameters": self.model.num_parameters(),
            "restarts": 0,
        }

    def log(self, sentence: str) -> None:
        """Print a line for the user, from the main process; on stdout in a dry run, which has no other output."""
        if self.device.is_main and not self.settings.dry_run:
            self.metrics_log.log(sentence)
        elif self.device.is_main:
            print(sentence, flush=True)

    def steps(self, stop: Stop) -> Iterator[Step]:
        """The steps from `train_state` on, until the budget is spent."""
        self._step_times = StepTimes()
        return training_steps(
            self.model,
            self.optimizer,
            self.batches,
            self.task,
            self.loop_config,
            self.device,
            self.train_state,
            stop_asked=stop.asked,
        )

    @property
    def checkpointer(self) -> Checkpointer:
        """Saves and restores this run."""
        micro_batch = self.settings.speed.micro_batch
        return Checkpointer(self.folder, self.model, self.optimizer, self.metrics_log, self.device, micro_batch)

    def restore(self, found: LoadedCheckpoint | None, metrics_bytes: int = 0) -> None:
        """Restore a checkpoint; without one, start metrics.jsonl after its first `metrics_bytes`."""
        if found is None:
            self.metrics_log.resume(metrics_bytes, {}, self.train_state)
            return
        self.train_state = self.checkpointer.restore(found, self.train_state.micro_batches)
        self.run_info["restarts"] += 1

    def write_start(self) -> None:
        """Write run_info.json, with the machine if it is another one than before."""
        record_move(self.run_info, self.machine(), self.peak, self.train_state.step)
        self.write_run_info()
        self.device.wait_for_all()

    def write_run_info(self) -> None:
        """Write run_info.json, on the main process."""
        write_run_info(self.folder, self.run_info, self.device)

    def estimate_from(self, step: Step) -> bool:
        """Count the time of a step; returns whether the estimate was made now, from the first steps of the run."""
        seconds = self._step_times.add(self.train_state.seconds)
        if seconds is None or "estimate" in self.run_info:
            return False
        self.run_info["estimate"] = self.estimate(seconds, step.depth).as_dict()
        self.write_run_info()
        return True

    def exit_if_asked(self, step: Step, stop: Stop) -> None:
        """Exit after a step at which the user asked to stop; its checkpoint has been saved."""
        if step.stop_asked:
            self.log(f"stopped at step {step.number:,} with a checkpoint; the same command resumes from here")
            sys.exit(stop.exit_code)

    def write_actual(self) -> None:
        """Add what the run took to run_info.json, on the main process."""
        state = self.train_state
        took = measured(self.folder, state.step, state.tokens, state.seconds, self.device)
        self.run_info["actual"] = took.as_dict()
        self.write_run_info()

    def log_actual(self) -> None:
        """Log the estimate and what the run took."""
        if "estimate" in self.run_info:
            self.log(estimate_table(self.run_info["estimate"], self.run_info["actual"]))

    def time_dry_run(self) -> Needs:
        """Take a few steps at full depth, the last of them timed, and log what the whole run would take."""
        depth = self.model.config.num_layers
        budget = Budget(steps=min(DRY_STEPS, self.loop_config.budget.steps or DRY_STEPS))
        loop_config = replace(
            self.loop_config,
            budget=budget,
            schedule=self.loop_config.schedule.within(self.loop_config.budget),
            depths=DepthSchedule((DepthStage(depth),)),
        )
        times = DryTimes()
        steps = training_steps(
            self.model, self.optimizer, self.batches, self.task, loop_config, self.device, self.train_state
        )
        with contextlib.closing(steps):  # type: ignore[type-var]
            for step in steps:
                self.log(f"step {step.number}: loss {step.loss:.3f}, {times.add(self.train_state.seconds):.2f} s")
                if times.are_enough:
                    break
        needs = self.estimate(times.median, depth)
        self.log(estimate_table(needs.as_dict()))
        return needs
