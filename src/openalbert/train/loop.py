"""The training loop as an iterator: what happens between two steps is ordinary code of the caller.

One step is a whole global batch, whatever the number of processes and of micro-batches: each loss is divided by the
predictions of the whole batch, so that the gradient is the same, to rounding, for any split.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.optim.optimizer import TrainingOptimizer, clip_gradients, find_lamb, set_learning_rate
from openalbert.optim.schedule import Budget, Schedule, Spent
from openalbert.train.cuda_graphs import CapturedForwardBackward
from openalbert.train.depth_schedule import DepthSchedule
from openalbert.train.device import Device

WINDOW = 128  # steps that the loss of a step is compared with
SIGMAS = 6.0  # a loss so many standard deviations above their mean is a spike
MAX_SPIKES = 0.05  # more spikes than this fraction of the window are no accidents: none is skipped until they are past
PATIENCE = 16  # so many steps in a row that are not finite end the run

Batch = TypeVar("Batch")


# --- what a loss returns, and what the loop is given -----------------------------------------------------------------


class Score(NamedTuple):
    """Cross entropy and correct predictions, summed."""

    loss_sum: Float[Tensor, ""]
    """Cross entropy in nats, fp32; the loss of a step is this divided by the predictions of the step."""
    predictions: Int[Tensor, ""]
    correct: Int[Tensor, ""]

    @property
    def mean(self) -> Float[Tensor, ""]:
        """Mean cross entropy; 0 where nothing was predicted."""
        return self.loss_sum / self.predictions.clamp(min=1)


def score(
    logits: Float[Tensor, "*rows classes"], labels: Int[Tensor, "*rows"], valid: Bool[Tensor, "*rows"] | None = None
) -> Score:
    """Score the predictions that are `valid`; by default all."""
    if valid is None:
        valid = torch.ones_like(labels, dtype=torch.bool)
    flat = logits.flatten(0, -2).float()
    # Invalid rows get a label that cross entropy ignores, so that shapes stay fixed.
    targets = torch.where(valid, labels, -100).flatten()
    loss_sum = F.cross_entropy(flat, targets, ignore_index=-100, reduction="sum")
    correct = (flat.detach().argmax(-1) == targets).sum()
    return Score(loss_sum, valid.sum(), correct)


@dataclass(frozen=True)
class TrainingTask(Generic[Batch]):
    """What a model is trained to do with a batch: its predictions and their losses."""

    predictions: Callable[[Batch], dict[str, Tensor]]
    """How many predictions of each kind a batch holds, known before any is made."""
    scores: Callable[[Batch, int], dict[str, Score]]
    """Each loss, summed over its predictions, with the model run at a given depth."""
    tokens: Callable[[Batch], Tensor]
    """How many real tokens a batch holds."""
    has_dropout: bool
    """Whether the model draws random numbers in training."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each loss; 1 for those that are not named."""
    is_captured: bool = False
    """Whether both passes are captured as a CUDA graph: batches must be dataclasses of tensors, of one size."""

    def forward(self, batch: Batch, depth: int, loss_scales: Tensor, *, device: Device) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and the metrics: tokens, then for each loss its sum, predictions and right answers."""
        with device.autocast():
            scores = self.scores(batch, depth)
        scaled = [score.loss_sum * scale for score, scale in zip(scores.values(), loss_scales, strict=True)]
        metrics = [value.detach().double() for score in scores.values() for value in score]
        return torch.stack(scaled).sum(), torch.stack([self.tokens(batch).double(), *metrics])


@runtime_checkable
class BatchSource(Protocol[Batch]):
    """Where the loop gets its batches: for each step from `start` on, the micro-batches of this process."""

    def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[Batch]]:
        """Batches in order, prepared ahead."""
        ...


@dataclass(frozen=True)
class LoopConfig:
    """How a run moves through its budget."""

    budget: Budget
    schedule: Schedule
    highest_rate: float
    clip_norm: float
    depths: DepthSchedule
    seed: int
    skips_spikes: bool = False
    """Whether a step is skipped whose loss is far above those before it: for pretraining, whose batches are all alike.
    In fine-tuning it may be the one with the rare class. A step that is not finite is always skipped."""


# --- a run's state, and a step of it ----------------------------------------------------------------------------------


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
    next_progress: float | None = None
    """The progress through the budget that decides how the next step is taken; None before the first."""
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
                spikes = sum(train_state.recent_spikes)
                text = (
                    f"{spikes} of the last {WINDOW} steps were skipped as spikes of the loss, too many for accidents: "
                    "none is skipped until these are past. Look at the data if the loss does not come down"
                )
                remarks += (("spikes", text),)
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


# --- the loop ---------------------------------------------------------------------------------------------------------


def training_steps(
    model: nn.Module,
    optimizer: TrainingOptimizer,
    source: BatchSource[Batch],
    task: TrainingTask[Batch],
    loop_config: LoopConfig,
    device: Device,
    train_state: TrainState,
    stop_asked: Callable[[], bool] = lambda: False,
    before_batch: Callable[[float], None] = lambda progress: None,
) -> Iterator[Step]:
    """Take steps until the budget is spent, starting at `train_state`, which is updated in place.

    `before_batch` is called before each step's batch is taken, with the progress that decides its depth.

    An asynchronous device is given the next step's passes before this step's metrics are read, so that it is never
    idle; the device itself decides whether an update is skipped. Between two steps the weights are always those of the
    step that was yielded; gradients, if there are any, are the next one's.
    """
    schedule = loop_config.schedule.within(loop_config.budget)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    remarks: list[tuple[str, str]] = []

    def open_stream() -> Iterator[list[Batch]]:
        return source.stream(
            start=train_state.step, rank=device.rank, world=device.world, micro_batches=train_state.micro_batches
        )

    if train_state.next_progress is None:
        train_state.next_progress = loop_config.budget.progress(train_state.spent)
    before_batch(train_state.next_progress)
    batches = open_stream()
    micro_batches = next(batches)
    names = list(task.predictions(micro_batches[0]))
    forward = partial(task.forward, device=device)
    passes: Callable[[Batch, int, Tensor], Tensor] = partial(forward_backward, forward)
    if task.is_captured:
        passes = CapturedForwardBackward(
            forward, model, device.torch_device, lambda text: remarks.append(("no_graph", text))
        )
    if (lamb := find_lamb(optimizer)) is not None:
        # One process with other arithmetic than the rest would drift away from them.
        lamb.may_use_kernel = not device.any_rank(not lamb.has_kernel())
    weights = torch.tensor([task.weights.get(name, 1.0) for name in names], device=device.torch_device).double()
    started = time.perf_counter() - train_state.seconds
    model.train()

    def finish(pending: PendingStep) -> Iterator[Step]:
        """Read the metrics of a step and yield it; the time that the caller takes does not count."""
        nonlocal started
        step = pending.read(names, train_state)
        paused = time.perf_counter()
        yield step
        started += time.perf_counter() - paused  # although an asynchronous device may have used some of it
        model.train()

    pending: PendingStep | None = None
    try:
        while True:
            if pending is not None and not device.is_asynchronous:
                yield from finish(pending)
                pending = None
            number = train_state.step + int(pending is not None)
            if loop_config.budget.is_spent(replace(train_state.spent, steps=number)):
                break
            depth = loop_config.depths.depth(train_state.next_progress)
            seeds = _dropout_seeds(loop_config.seed, number, device, len(micro_batches)) if task.has_dropout else None
            sums, is_out_of_memory = _accumulate(micro_batches, task, passes, weights, depth, seeds, device)
            if pending is not None:
                yield from finish(pending)
                pending = None
                if loop_config.budget.is_spent(train_state.spent):
                    break
            if device.any_rank(is_out_of_memory):
                optimizer.zero_grad()
                batches.close()  # type: ignore[attr-defined]
                remarks.append(("out_of_memory", _split_further(train_state, micro_batches, device)))
                batches = open_stream()
                micro_batches = next(batches)
                continue
            if train_state.depth not in (None, depth):
                remarks.append(("depth", f"from now on {depth} layers are run, up to here {train_state.depth}"))
                train_state.reset_window()  # another depth, another loss
            train_state.depth = depth
            progress = loop_config.budget.progress(train_state.spent)
            # It is settled before this step's tokens and seconds are known, on every device alike.
            train_state.next_progress = loop_config.budget.progress(
                replace(train_state.spent, steps=train_state.step + 1)
            )
            before_batch(train_state.next_progress)
            rate = schedule.learning_rate(loop_config.highest_rate, progress)
            set_learning_rate(optimizer, rate)
            _sum_gradients(parameters, device)
            norm = clip_gradients(parameters, loop_config.clip_norm)
            # The clock is the main process's: whether the budget is spent must be decided alike by all processes.
            seconds = time.perf_counter() - started if device.is_main else 0.0
            flags = [torch.full_like(norm, flag, dtype=torch.float64) for flag in (stop_asked(), seconds)]
            totals = device.sum_over_ranks(torch.cat((sums, torch.stack(flags))))
            loss = (weights * totals[1:-2:3] / totals[2:-2:3].clamp(min=1)).sum()
            limit = train_state.loss_limit() if loop_config.skips_spikes else math.inf
            is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm) & (loss <= limit))
            metrics = start_transfer(torch.cat((totals, torch.stack((norm.double(), loss, is_bad.double())))))
            pending = PendingStep(metrics, rate, depth, progress, tuple(remarks), limit)
            remarks.clear()
            optimizer.found_inf = is_bad.float()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
            micro_batches = next(batches)
        if pending is not None:
            yield from finish(pending)
    finally:
        optimizer.zero_grad()  # of a step that was started but not taken
        batches.close()  # type: ignore[attr-defined]


def forward_backward(
    forward: Callable[[Batch, int, Tensor], tuple[Tensor, Tensor]], micro_batch: Batch, depth: int, loss_scales: Tensor
) -> Tensor:
    """Add to the gradients of the weights; returns the metrics of the micro-batch."""
    loss, metrics = forward(micro_batch, depth, loss_scales)
    loss.backward()
    return metrics


def _accumulate(
    micro_batches: Sequence[Batch],
    task: TrainingTask[Batch],
    passes: Callable[[Batch, int, Tensor], Tensor],
    weights: Tensor,
    depth: int,
    seeds: list[int] | None,
    device: Device,
) -> tuple[Tensor, bool]:
    """Forward and backward of all micro-batches: the sum of their metrics, and whether memory ran out."""
    counted = [torch.stack(list(task.predictions(micro_batch).values())) for micro_batch in micro_batches]
    counts = device.sum_over_ranks(torch.stack(counted).sum(0).double())
    # Divided by the predictions of the whole batch: one gradient for any split of it.
    loss_scales = weights / counts.clamp(min=1)
    sums = torch.zeros(1 + 3 * len(counts), dtype=torch.float64, device=weights.device)
    try:
        for number, micro_batch in enumerate(micro_batches):
            if seeds is not None:
                torch.manual_seed(seeds[number])
            sums += passes(micro_batch, depth, loss_scales)
    except torch.OutOfMemoryError:
        return sums, True
    return sums, False


def _dropout_seeds(seed: int, step: int, device: Device, count: int) -> list[int]:
    """Seeds that depend on (seed, step, rank, number of the micro-batch) alone: a resumed run draws the same."""
    first = ((seed * 1_000_003 + step) * 4099 + device.rank) * 65_537
    return [(first + number) % 2**63 for number in range(count)]


def _split_further(train_state: TrainState, micro_batches: Sequence[Any], device: Device) -> str:
    """Halve the micro-batch, or come as near to it as the batch divides; the global batch stays what it is."""
    if device.is_cuda:
        torch.cuda.empty_cache()
    first = micro_batches[0]
    size = len(first.ids) if hasattr(first, "ids") else len(first)
    examples = size * train_state.micro_batches
    if size == 1:
        raise UserError(
            "the device has not enough memory for a single example: shorten it (--objective.max-length, in fine-tuning "
            "--max-length), take a smaller model, or switch on --speed.recompute"
        )
    train_state.micro_batches = next(
        count for count in range(2 * train_state.micro_batches, examples + 1) if examples % count == 0
    )
    return (
        f"out of memory with {size} examples at a time: from now on {examples // train_state.micro_batches}, "
        f"in {train_state.micro_batches} micro-batches; the global batch stays the same"
    )


def _sum_gradients(parameters: Sequence[nn.Parameter], device: Device) -> None:
    """One reduction a step: all gradients as one flat tensor, summed over the processes."""
    if device.world == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = device.sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
