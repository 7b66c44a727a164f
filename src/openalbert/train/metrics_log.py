"""Metrics and log of a run: metrics.jsonl, a bar, a notebook's line or plain lines, TensorBoard on request."""

import json
import math
import os
import statistics
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.formatting import NOTHING, throughput
from openalbert.progress import ProgressLine
from openalbert.run_files import METRICS, TENSORBOARD
from openalbert.train.loop import Step, TrainState

LATEST_STEPS = 32  # from whose pace the time that is left is estimated


class Window:
    """Sums over the steps since the last record; a checkpoint holds them, so that the next record is the same after a
    resume."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self.losses: dict[str, list[float]] = {name: list(sums) for name, sums in state.get("losses", {}).items()}
        self.loss, self.norm = float(state.get("loss", 0.0)), float(state.get("norm", 0.0))
        self.steps = int(state.get("steps", 0))

    def add(self, step: Step) -> None:
        """Add a step; of a skipped one only the names of its losses, since its values would distort the mean."""
        for name, values in step.losses.items():
            sums = self.losses.setdefault(name, [0.0, 0.0, 0.0])
            for number, value in enumerate(() if step.is_skipped else values):
                sums[number] += value
        if step.is_skipped:
            return
        self.loss += step.loss
        self.norm += step.grad_norm
        self.steps += 1

    def metrics(self) -> dict[str, float | None]:
        """Means over the steps of the window; None where all of them were skipped."""
        metrics = {"loss": _mean(self.loss, self.steps)}
        for name, (total, count, right) in self.losses.items():
            metrics[f"{name}_loss"] = _mean(total, count)
            metrics[f"{name}_acc"] = _mean(right, count)
        return metrics | {"grad_norm": _mean(self.norm, self.steps)}


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


class TimeLeft:
    """How long a run will still take, by the pace of its latest steps.

    The first step of a process is left out: it waits for the first batch, for memory and for compilation.
    """

    def __init__(self, work: Callable[[float], float] = lambda progress: progress) -> None:
        """`work` is how much of a run's work is done at a progress through its budget, in any unit."""
        self.work = work
        self._before: tuple[float, float] | None = None
        self._paces: deque[float] = deque(maxlen=LATEST_STEPS)

    def after(self, progress: float, seconds: float) -> float | None:
        """The seconds that are left after a step that ended at these; None after the first."""
        done = self.work(progress)
        if self._before is not None and done > self._before[0]:
            self._paces.append((seconds - self._before[1]) / (done - self._before[0]))
        self._before = (done, seconds)
        return statistics.median(self._paces) * (self.work(1.0) - done) if self._paces else None


class MetricsLog:
    """The metrics and log of a run. Only the main process writes."""

    def __init__(
        self,
        folder: Path,
        writes: bool,
        tensorboard: bool,
        flops_per_token: Callable[[int], float],
        peak: float | None,
        deepens: bool = False,
        work: Callable[[float], float] = lambda progress: progress,
    ) -> None:
        """`flops_per_token` gives the model FLOPs at a depth; `peak`, if known, is the matmul rate of all devices.

        `deepens` is whether the depth changes during the run, and is shown; `work` is how much of the run's work is
        done at a progress through its budget.
        """
        self.deepens = deepens
        self.folder, self.writes = folder, writes
        self.flops_per_token, self.peak = flops_per_token, peak
        self.window = Window()
        self.note = ""
        """Shown on every line of progress, such as the last score."""
        self.rate = 0.0
        """Tokens a second, as last measured."""
        self._measured = (0, 0.0)
        self._time_left = TimeLeft(work)
        self._seconds_left: float | None = None
        self._progress = ProgressLine("training")
        self._board = _open_tensorboard(folder / TENSORBOARD) if writes and tensorboard else None

    @property
    def size(self) -> int:
        """Bytes of metrics.jsonl, to which a resumed run truncates the file."""
        path = self.folder / METRICS
        return path.stat().st_size if path.exists() else 0

    def resume(self, size: int, window: dict[str, Any], train_state: TrainState) -> None:
        """Continue from a checkpoint: what was recorded after it will be recorded again."""
        self.window = Window(window)
        self._measured = (train_state.tokens, train_state.seconds)
        path = self.folder / METRICS
        if not self.writes:
            return
        if self.size < size:
            raise UserError(
                f"{path}: it is shorter than when the checkpoint was saved, so it was changed: start over with --fresh"
            )
        if path.exists():
            os.truncate(path, size)

    def record(self, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl; a checkpoint syncs it to disk.

        A value that is None is left out. TensorBoard gets a NaN in its place, without which it would connect the values
        around it.
        """
        if not self.writes:
            return
        known = {name: value for name, value in values.items() if value is not None}
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(known) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float | None) and name != "step":
                    scalar = math.nan if value is None else value
                    self._board.add_scalar(f"{values['kind']}/{name}", scalar, values["step"])

    def event(self, step: int, kind: str, text: str) -> None:
        """Record something that happened, and log it."""
        self.record({"kind": "event", "step": step, "what": kind, "text": text})
        self.log(text)

    def add_step(self, step: Step, train_state: TrainState, done: float) -> None:
        """Count a step in, and log its events.

        `done` is the progress after this step; the step's own progress is the one before it, by which its learning rate
        was set.
        """
        self.window.add(step)
        for kind, text in step.remarks:
            self.event(step.number, kind, text)
        tokens, seconds = train_state.tokens - self._measured[0], train_state.seconds - self._measured[1]
        if seconds > 0:
            self.rate = tokens / seconds
        self._seconds_left = self._time_left.after(done, train_state.seconds)
        if self.writes and (done == 1 or self._progress.is_due()):
            text = self._line(step)
            self._progress.show(text, f"{100 * done:5.1f} %  {text}", done)

    def write_window(self, step: Step, train_state: TrainState) -> None:
        """Record the means since the last record, and start a new window."""
        metrics = {"kind": "train", "step": step.number, "tokens": train_state.tokens, "progress": step.progress}
        metrics |= self.window.metrics()
        metrics |= {
            "lr": step.learning_rate,
            "depth": step.depth,
            "skipped": train_state.skipped,
            "seconds": train_state.seconds,
            "tokens_per_second": self.rate,
        }
        if self.peak is not None:
            metrics["mfu"] = self._mfu(self.peak, step.depth)
        self.record(metrics)
        self.window = Window()
        self._measured = (train_state.tokens, train_state.seconds)

    def _mfu(self, peak: float, depth: int) -> float:
        """Model FLOPs utilization, of the measured matmul rate."""
        return self.rate * self.flops_per_token(depth) / peak

    def log(self, sentence: str) -> None:
        """Print a line for the user, above the progress bar."""
        if self.writes:
            self._progress.print(sentence)

    def _line(self, step: Step) -> str:
        metrics = self.window.metrics()
        words = [f"step {step.number:,}", f"loss {_written(metrics['loss'], '.3f')}"]
        for name in ("mlm_acc", "sop_acc", "nsp_acc"):
            if name in metrics:
                words.append(f"{name} {_written(metrics[name], '.1%').replace('%', ' %')}")
        words.append(throughput(self.rate))
        if self.peak is not None:
            words.append(f"MFU {100 * self._mfu(self.peak, step.depth):.0f} %")
        words.append(f"lr {step.learning_rate:.2e}")
        if self.deepens:
            words.append(f"depth {step.depth}")
        if self.note:
            words.append(self.note)
        if self._seconds_left is not None:
            left = int(self._seconds_left)
            words.append(f"eta {left // 3600}:{left % 3600 // 60:02d}:{left % 60:02d}")
        return "  ".join(words)

    def close(self) -> None:
        """Stop the progress bar and flush TensorBoard."""
        self._progress.close()
        if self._board is not None:
            self._board.close()


def _written(value: float | None, form: str) -> str:
    return NOTHING if value is None else f"{value:{form}}"


def _open_tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("TensorBoard is not installed: pip install 'openalbert[tensorboard]'") from None
    return SummaryWriter(str(folder))
