"""What a run carries from step to step, and what one step was like, by the metrics that the device sends."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openalbert.errors import UserError
from openalbert.optim.schedule import Spent

WINDOW = 128  # steps that the loss of a step is compared with
SIGMAS = 6.0  # a loss so many standard deviations above their mean is a spike
MAX_SPIKES = 0.05  # more spikes than this fraction of the window are no accidents: none is skipped until they are past
PATIENCE = 16  # so many steps in a row that are not finite end the run


@dataclass
class TrainState:
    """The few numbers that a run carries from step to step besides weights and optimizer; a checkpoint holds them."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    depth: int | None = None
    """Layers that the last step ran; None before the first."""
    next_depth: int | None = None
    """Layers that the next step will run; None before the first."""
    micro_batches: int = 1
    """Micro-batches of a step on each process."""
    recent: list[float] = field(default_factory=list)
    """The losses of the last steps, a skipped spike's clipped to the limit that it passed."""
    recent_spikes: list[bool] = field(default_factory=list)
    """Which of the last steps were skipped as spikes."""

    @property
    def spent(self) -> Spent:
        """What has been spent of any budget."""
        return Spent(self.step, self.tokens, self.seconds / 60)

    @property
    def has_many_spikes(self) -> bool:
        """Whether so many of the last steps were skipped as spikes that they must be what the data is like."""
        return sum(self.recent_spikes) > MAX_SPIKES * WINDOW

    def loss_limit(self) -> float:
        """The loss above which the next step is a spike; infinite while too little is known, or too many were."""
        if len(self.recent) < WINDOW or self.has_many_spikes:
            return math.inf
        return float(np.mean(self.recent) + SIGMAS * np.std(self.recent, ddof=1))

    def add_loss(self, loss: float, limit: float) -> None:
        """Add a finite loss to the window; that of a spike is clipped: if more of them follow, the limit rises."""
        self.recent = [*self.recent, min(loss, limit)][-WINDOW:]
        self.recent_spikes = [*self.recent_spikes, loss > limit][-WINDOW:]

    def reset_window(self) -> None:
        """Empty the window: from here on the loss is another one."""
        self.recent, self.recent_spikes = [], []

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Step:
    """What one step was like."""

    number: int
    """Steps taken, this one included."""
    losses: dict[str, tuple[float, int, int]]
    """Each loss summed over its predictions, how many they were, and how many were right."""
    loss: float
    """What was minimized: the weighted sum of the mean losses."""
    grad_norm: float
    learning_rate: float
    depth: int
    progress: float
    is_skipped: bool
    stop_asked: bool
    """Whether any process was asked to stop: all processes see it at the same step."""
    remarks: tuple[tuple[str, str], ...] = ()
    """Events to report: a kind and a sentence."""

    def every(self, count: int | None) -> bool:
        """Whether something that happens every `count` steps is due."""
        return bool(count) and self.number % (count or 1) == 0


@dataclass(frozen=True)
class PendingStep:
    """A step whose metrics the device has yet to send."""

    metrics: Callable[[], list[float]]
    learning_rate: float
    depth: int
    progress: float
    remarks: tuple[tuple[str, str], ...]
    loss_limit: float
    """The loss above which it was skipped; infinite where only a step that is not finite is."""

    def read(self, names: list[str], train_state: TrainState) -> Step:
        """Wait for the metrics and update `train_state` for a step that was taken, or skipped."""
        tokens, *sums, stopping, train_state.seconds, grad_norm, loss, is_skipped = self.metrics()
        losses = {name: (sums[3 * i], int(sums[3 * i + 1]), int(sums[3 * i + 2])) for i, name in enumerate(names)}
        remarks = self.remarks
        if is_skipped:
            reason = self._reason(loss, grad_norm, train_state)
            remarks += (("skipped", f"step {train_state.step + 1} was skipped: {reason}"),)
            train_state.skipped += 1
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        train_state.skipped_in_a_row = 0 if is_finite else train_state.skipped_in_a_row + 1
        if is_finite:
            train_state.add_loss(loss, self.loss_limit)
            if is_skipped and train_state.has_many_spikes:
                remarks += (("spikes", _many_spikes(train_state)),)
        train_state.step += 1
        train_state.tokens += int(tokens)
        return Step(
            train_state.step,
            losses,
            loss,
            grad_norm,
            self.learning_rate,
            self.depth,
            self.progress,
            is_skipped > 0,
            stopping > 0,
            remarks,
        )

    def _reason(self, loss: float, grad_norm: float, train_state: TrainState) -> str:
        """Why the step was skipped."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            mean = np.mean(train_state.recent)
            return (
                f"its loss {loss:.3f} is more than {SIGMAS:g} standard deviations above {mean:.3f}, "
                f"the mean of {WINDOW} steps"
            )
        if train_state.skipped_in_a_row >= PATIENCE:
            raise UserError(
                f"{PATIENCE} steps in a row had a loss or gradient that is no finite number: "
                "lower the learning rate, or lengthen the warm-up, and start from the last checkpoint (on a GPU, if "
                "only the gradient is not finite, try --speed.deterministic too, which computes attention in another "
                "way)"
            )
        return f"its loss is {loss} and its gradient norm {grad_norm}"


def start_transfer(values: Tensor) -> Callable[[], list[float]]:
    """Start copying numbers to the host; the returned function waits for them, and for no later work of the device."""
    if not values.is_cuda:
        return values.tolist
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        numbers: list[float] = host.tolist()
        return numbers

    return read


def _many_spikes(train_state: TrainState) -> str:
    """Why spikes are not skipped for a while."""
    return (
        f"{sum(train_state.recent_spikes)} of the last {WINDOW} steps were skipped as spikes of the loss, too many for "
        "accidents: none is skipped until these are past. Look at the data if the loss does not come down"
    )
