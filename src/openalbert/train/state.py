"""What a run carries from step to step, and what one step was like, by the figures that the device sends."""

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
    """The few figures that a run carries from step to step beside weights and optimizer: a checkpoint holds them."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    depth: int | None = None
    """Layers that the last step ran; None before the first."""
    depth_ahead: int | None = None
    """Layers that the next step will run; None before the first."""
    parts: int = 1
    """Micro-batches of a step on each process."""
    recent: list[float] = field(default_factory=list)
    """The losses of the last steps, a skipped spike's clipped to the limit that it passed."""
    recent_spikes: list[bool] = field(default_factory=list)
    """Which of the last steps were skipped as spikes."""

    @property
    def spent(self) -> Spent:
        """What has been used up of any budget."""
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

    def remember(self, loss: float, limit: float) -> None:
        """Take a finite loss into the window; a spike's too, clipped: if more of them follow, the limit rises."""
        self.recent = [*self.recent, min(loss, limit)][-WINDOW:]
        self.recent_spikes = [*self.recent_spikes, loss > limit][-WINDOW:]

    def forget(self) -> None:
        """Empty the window: what comes now is another loss."""
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
    """What was minimised: the sum of the losses' means, weighted."""
    grad_norm: float
    learning_rate: float
    depth: int
    progress: float
    is_skipped: bool
    stop_asked: bool
    """Whether any process was asked to stop: all of them learn of it at the same step."""
    remarks: tuple[tuple[str, str], ...] = ()
    """What a person should know: a kind and a sentence."""

    def every(self, count: int | None) -> bool:
        """Whether something that happens every `count` steps is due."""
        return bool(count) and self.number % (count or 1) == 0


@dataclass(frozen=True)
class Arriving:
    """A step whose figures the device has yet to send."""

    figures: Callable[[], list[float]]
    learning_rate: float
    depth: int
    progress: float
    remarks: tuple[tuple[str, str], ...]
    loss_limit: float
    """The loss above which it was skipped; infinite where only a step that is not finite is."""

    def read(self, names: list[str], train_state: TrainState) -> Step:
        """Wait for the figures and note in `running` that the step was taken, or that it was not."""
        tokens, *figures, stopping, train_state.seconds, grad_norm, loss, is_skipped = self.figures()
        losses = {name: (figures[i], int(figures[i + 1]), int(figures[i + 2])) for name, i in _places(names)}
        remarks = self.remarks
        if is_skipped:
            reason = self._reason(loss, grad_norm, train_state)
            remarks += (("skipped", f"step {train_state.step + 1} was skipped: {reason}"),)
            train_state.skipped += 1
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        train_state.skipped_in_a_row = 0 if is_finite else train_state.skipped_in_a_row + 1
        if is_finite:
            train_state.remember(loss, self.loss_limit)
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


def send(figures: Tensor) -> Callable[[], list[float]]:
    """Send numbers to the host. What comes back waits for them, and for nothing that the device is given after them."""
    if not figures.is_cuda:
        return figures.tolist
    host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
    host.copy_(figures, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        numbers: list[float] = host.tolist()
        return numbers

    return read


def _places(names: list[str]) -> list[tuple[str, int]]:
    """Where in the list of sums the three figures of each loss begin."""
    return [(name, 3 * number) for number, name in enumerate(names)]


def _many_spikes(train_state: TrainState) -> str:
    """Why spikes are not skipped for a while."""
    return (
        f"{sum(train_state.recent_spikes)} of the last {WINDOW} steps were skipped as spikes of the loss, too many for "
        "accidents: none is skipped until these are past. Look at the data if the loss does not come down"
    )
