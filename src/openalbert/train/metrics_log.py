"""What a run logs: metrics.jsonl always, TensorBoard on request, and a bar, a notebook's line or plain lines."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress

from openalbert.errors import UserError
from openalbert.formatting import NOTHING, throughput
from openalbert.progress import notebook_line, plain_column, plain_console
from openalbert.train.estimate import TimeLeft
from openalbert.train.state import Step, TrainState

METRICS = "metrics.jsonl"
SECONDS_BETWEEN_LINES = 10.0


class Window:
    """Sums over the steps since the last record; a checkpoint holds them, so that a resumed record is the same."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self.losses: dict[str, list[float]] = {name: list(sums) for name, sums in state.get("losses", {}).items()}
        self.loss, self.norm = float(state.get("loss", 0.0)), float(state.get("norm", 0.0))
        self.steps = int(state.get("steps", 0))

    def add(self, step: Step) -> None:
        """Take in a step; of one that was skipped only the names of its losses, for its values are not worth a mean."""
        for name, figures in step.losses.items():
            sums = self.losses.setdefault(name, [0.0, 0.0, 0.0])
            for number, figure in enumerate(() if step.is_skipped else figures):
                sums[number] += figure
        if step.is_skipped:
            return
        self.loss += step.loss
        self.norm += step.grad_norm
        self.steps += 1

    def figures(self) -> dict[str, float | None]:
        """Means over the steps of the window; None where there is nothing to take a mean of: all steps were skipped."""
        figures = {"loss": _mean(self.loss, self.steps)}
        for name, (total, count, right) in self.losses.items():
            figures[f"{name}_loss"] = _mean(total, count)
            figures[f"{name}_acc"] = _mean(right, count)
        return figures | {"grad_norm": _mean(self.norm, self.steps)}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


class MetricsLog:
    """The record of a run. Only the main process has one that writes."""

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

        `deepens` is whether the depth changes on the way, and is to be shown; `work` is how much of the run's work is
        done at a progress through its budget.
        """
        self.deepens = deepens
        self.folder, self.writes = folder, writes
        self.flops_per_token, self.peak = flops_per_token, peak
        self.window = Window()
        self.note = ""
        """Shown on every line of progress: the last score, say."""
        self.rate = 0.0
        """Tokens a second, as last measured."""
        self._measured = (0, 0.0)
        self._time_left = TimeLeft(work)
        self._seconds_left: float | None = None
        self._line_printed = 0.0
        self._bar: Progress | None = None
        self._notebook = notebook_line() if writes else None
        self._board = _open_tensorboard(folder / "tensorboard") if writes and tensorboard else None

    @property
    def size(self) -> int:
        """Bytes of metrics.jsonl: what a checkpoint notes, and a resumed run cuts the file back to."""
        path = self.folder / METRICS
        return path.stat().st_size if path.exists() else 0

    def resume(self, size: int, window: dict[str, Any], train_state: TrainState) -> None:
        """Go on from a checkpoint: what was recorded after it will be recorded again."""
        self.window = Window(window)
        self._measured = (train_state.tokens, train_state.seconds)
        path = self.folder / METRICS
        if not self.writes:
            return
        if self.size < size:
            raise UserError(f"{path}: it is shorter than the checkpoint says: it was changed; start over with --fresh")
        if path.exists():
            os.truncate(path, size)

    def record(self, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, and have it on the disk at the latest when a checkpoint notes it.

        A value that is None is left out. TensorBoard gets a NaN in its place, without which it would draw a line on to
        the next value.
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

    def take(self, step: Step, train_state: TrainState, done: float) -> None:
        """Count a step in, and tell what a person should know of it.

        `done` is the share of the run with this step in it; the step's own progress is the one before it, by which its
        learning rate was set.
        """
        self.window.add(step)
        for what, text in step.remarks:
            self.record({"kind": "event", "step": step.number, "what": what, "text": text})
            self.log(text)
        tokens, seconds = train_state.tokens - self._measured[0], train_state.seconds - self._measured[1]
        if seconds > 0:
            self.rate = tokens / seconds
        self._seconds_left = self._time_left.after(done, train_state.seconds)
        self._show(step, done)

    def write_window(self, step: Step, train_state: TrainState) -> None:
        """Record the means since the last record, and begin a new window."""
        figures = {"kind": "train", "step": step.number, "tokens": train_state.tokens, "progress": step.progress}
        figures |= self.window.figures()
        figures |= {
            "lr": step.learning_rate,
            "depth": step.depth,
            "skipped": train_state.skipped,
            "seconds": train_state.seconds,
            "tokens_per_second": self.rate,
        }
        if self.peak is not None:
            figures["mfu"] = self._mfu(self.peak, step.depth)
        self.record(figures)
        self.window = Window()
        self._measured = (train_state.tokens, train_state.seconds)

    def _mfu(self, peak: float, depth: int) -> float:
        """Model FLOPs utilization, of the measured matmul rate."""
        return self.rate * self.flops_per_token(depth) / peak

    def log(self, sentence: str) -> None:
        """Tell the user something, above the bar."""
        if not self.writes:
            return
        if self._bar is not None:
            self._bar.console.print(sentence)
        else:
            print(sentence, file=sys.stderr, flush=True)

    def _show(self, step: Step, done: float) -> None:
        if not self.writes:
            return
        if sys.stderr.isatty():
            if self._bar is None:
                columns = (plain_column("training"), BarColumn(bar_width=20), plain_column("{task.fields[line]}"))
                self._bar = Progress(*columns, console=plain_console(stderr=True))
                self._task = self._bar.add_task("training", total=1.0, line="")
                self._bar.start()
            self._bar.update(self._task, completed=done, line=self._line(step))
        elif self._notebook is not None:
            self._notebook.show(f"{100 * done:5.1f} %  {self._line(step)}", is_last=done == 1)
        elif time.monotonic() - self._line_printed >= SECONDS_BETWEEN_LINES:
            self._line_printed = time.monotonic()
            print(f"{100 * done:5.1f} %  {self._line(step)}", file=sys.stderr, flush=True)

    def _line(self, step: Step) -> str:
        figures = self.window.figures()
        words = [f"step {step.number:,}", f"loss {_written(figures['loss'], '.3f')}"]
        for name in ("mlm_acc", "sop_acc", "nsp_acc"):
            if name in figures:
                words.append(f"{name} {_written(figures[name], '.1%').replace('%', ' %')}")
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
        """End the bar and let TensorBoard write what it holds."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
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
