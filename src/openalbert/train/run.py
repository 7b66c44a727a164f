"""What pretraining and fine-tuning runs have in common: folder, signals, log, run_info.json, checkpoints, estimate.

The loop is not here: each kind of run iterates over `steps` in ordinary code of its own.
"""

import contextlib
import json
import platform
import shlex
import shutil
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.interop.huggingface import CONFIG
from openalbert.model.albert import AlbertModel
from openalbert.optim.optimizer import TrainingOptimizer
from openalbert.optim.schedule import Budget
from openalbert.run_files import CHECKPOINTS, METRICS, MODEL, RUN, RUN_INFO, TENSORBOARD
from openalbert.settings import flat, from_file, to_dict, to_json
from openalbert.train.checkpoint import Checkpointer, LoadedCheckpoint
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Device, Speed, measure_matmul_peak
from openalbert.train.estimate import DRY_STEPS, DryTimes, Needs, StepTimes, estimate_table, measured
from openalbert.train.loop import BatchSource, LoopConfig, Step, TrainingTask, TrainState, training_steps
from openalbert.train.metrics_log import MetricsLog
from openalbert.version import __version__

SIGNALS = (signal.SIGTERM, signal.SIGINT)
Batch = TypeVar("Batch")
CALL: ContextVar[str] = ContextVar("CALL", default="")
"""The call of a Python function that started this run; empty where the command line did."""


# --- the folder: locked for one run at a time, never mixed with another run -----------------------------------------


@runtime_checkable
class RunSettings(Protocol):
    """What the settings of pretraining and of fine-tuning have in common."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> Path:
        """Folder of the run."""

    @property
    def dry_run(self) -> bool:
        """Whether to write nothing."""

    @property
    def fresh(self) -> bool:
        """Whether to start over."""

    @property
    def tensorboard(self) -> bool:
        """Whether to write TensorBoard files."""

    @property
    def speed(self) -> Speed:
        """How fast it goes."""


@contextlib.contextmanager
def locked(settings: RunSettings, device: Device, verb: str = "pretrain") -> Iterator[None]:
    """Lock the folder for this run: workers of a killed torchrun live on, and would write there too.

    A dry run locks nothing, but fails if the folder could not be written to.
    """
    with contextlib.ExitStack() as held:
        problem = None
        if device.is_main:
            try:
                atomic_io.check_writable(settings.out)
                if not settings.dry_run:
                    atomic_io.make_folder(settings.out)
                    held.enter_context(atomic_io.locked(settings.out, verb))
            except UserError as error:
                problem = error
        device.raise_together(problem)
        yield


def claim_folder(
    settings: RunSettings,
    device: Device,
    free: tuple[str, ...],
    others: tuple[str, ...] = (),
    check: Callable[[], None] = lambda: None,
) -> None:
    """Refuse to mix two runs in one folder, or clear it where the user asked for that.

    `free` are settings that may change when a run is resumed; `others` are patterns of further files of the run;
    `check` raises any other reason not to resume, before anything is written.
    """
    problem = None
    if device.is_main:
        try:
            _claim(settings, free, others, check)
        except UserError as error:
            problem = error
    # Every process waits for this: none may find a checkpoint that is about to be cleared away.
    device.raise_together(problem)


def _claim(settings: RunSettings, free: tuple[str, ...], others: tuple[str, ...], check: Callable[[], None]) -> None:
    path = settings.out / RUN
    if settings.fresh:
        # The settings go last: killed in between, what is left is still known as the other run's.
        for pattern in (*others, CHECKPOINTS, METRICS, MODEL, RUN_INFO, TENSORBOARD, RUN):
            for target in settings.out.glob(pattern):
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    # A start that was refused, or ended before the first step, left nothing that could be mixed up.
    if path.exists() and any(found for name in (*others, CHECKPOINTS, METRICS) for found in settings.out.glob(name)):
        try:
            before = from_file(path, type(settings))
            changed = differences(before, settings, free)
        except UserError as error:
            changed = [str(error)]
        if changed:
            raise UserError(
                f"{settings.out} holds a run with other settings ({'; '.join(changed)}): "
                "give another --out, or --fresh to start over"
            )
    check()
    atomic_io.write_text(path, to_json(replace(settings, fresh=False)))


def differences(before: RunSettings, now: RunSettings, free: tuple[str, ...]) -> list[str]:
    """Which settings differ, as sentences, apart from those that are `free` to change."""
    same = {name: getattr(before, name) for name in free}
    old, new = flat(to_dict(before)), flat(to_dict(replace(now, **same)))
    return [
        f"{name} was {old.get(name)}, now {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)
    ]


def read_run_info(folder: Path) -> dict[str, Any]:
    """run_info.json of a run; empty before its start."""
    path = folder / RUN_INFO
    run_info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return run_info


def write_run_info(folder: Path, run_info: dict[str, Any], device: Device) -> None:
    """Write run_info.json, on the main process."""
    if device.is_main:
        atomic_io.write_text(folder / RUN_INFO, json.dumps(run_info, indent=2) + "\n")


def is_done(folder: Path) -> bool:
    """Whether the run has ended and its model is there: `actual` is the last that it writes."""
    return (folder / MODEL / CONFIG).exists() and "actual" in read_run_info(folder)


def machine(device: Device) -> dict[str, Any]:
    """Versions, hardware and precision of this start of a run, for run_info.json."""
    return {
        "openalbert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.describe(),
        "precision": device.precision,
        "world_size": device.world,
    }


def timestamp() -> str:
    """The time now, for run_info.json."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def record_move(run_info: dict[str, Any], here: dict[str, Any], peak: float | None, step: int) -> None:
    """Add the machine that a run is resumed on to run_info, if it differs from the one before.

    A value that run_info does not have counts as the same. Moves whose steps were lost are removed: nothing of them is
    in the weights.
    """
    run_info["moves"] = [move for move in run_info.get("moves", []) if move["step"] < step]
    before = {**run_info, **(run_info["moves"][-1] if run_info["moves"] else {})}
    if any(before.get(name, value) != value for name, value in here.items()):
        run_info["moves"].append({"step": step, "started": timestamp(), **here, "matmul_peak_flops": peak})


# --- a run ------------------------------------------------------------------------------------------------------------


class Stop:
    """SIGTERM and SIGINT as a request: the run stops after its step, with a checkpoint."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._listen()
        return self

    def _listen(self) -> None:
        # Python allows it in the main thread only: a run in another one is not stopped by signals.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._take)

    def asked(self) -> bool:
        """Whether the run is to stop. Called once a step."""
        # Triton's compiler sets a handler of its own, below Python. It passes a signal on, but a second one at that
        # moment ends the process at once, and `timeout` and schedulers send two. So ours is set again.
        self._listen()
        return self.signal is not None

    def _take(self, number: int, _: FrameType | None) -> None:
        # Ctrl-C twice: exit at once, with the last checkpoint. SIGTERM may come twice, from a scheduler and torchrun.
        if self.signal is not None and number == signal.SIGINT:
            sys.exit(128 + number)
        self.signal = self.signal or number

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM, also where another process received the signal."""
        return 128 + (self.signal or signal.SIGTERM)


Settings = TypeVar("Settings", bound=RunSettings)


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
            before_batch=self.before_batch,
        )

    def before_batch(self, progress: float) -> None:
        """Called before each step's batch is taken."""

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
