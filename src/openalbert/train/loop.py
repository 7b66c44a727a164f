"""The training loop as an iterator: what happens between two steps is ordinary code of the caller.

One step is a whole global batch, whatever the number of processes and of micro-batches: each loss is divided by the
predictions of the whole batch, so that the gradient is the same, to rounding, for any split.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.objectives.score import Score
from openalbert.optim.optimizer import TrainingOptimizer, clip_gradients, find_lamb, set_learning_rate
from openalbert.optim.schedule import Budget, DepthSchedule, Schedule
from openalbert.train.cuda_graphs import CapturedForwardBackward, ForwardBackward
from openalbert.train.device import Device
from openalbert.train.state import PendingStep, Step, TrainState, start_transfer

Batch = TypeVar("Batch")


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


def training_steps(
    model: nn.Module,
    optimizer: TrainingOptimizer,
    source: BatchSource[Batch],
    task: TrainingTask[Batch],
    loop_config: LoopConfig,
    device: Device,
    train_state: TrainState,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """Take steps until the budget is spent, starting at `train_state`, which is updated in place.

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

    batches = open_stream()
    micro_batches = next(batches)
    names = list(task.predictions(micro_batches[0]))
    forward = partial(task.forward, device=device)
    passes = ForwardBackward(forward)
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
            depth = train_state.next_depth or loop_config.depths.depth(loop_config.budget.progress(train_state.spent))
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
            # The next depth is settled before this step's tokens and seconds are known, on every device alike.
            next_progress = loop_config.budget.progress(replace(train_state.spent, steps=train_state.step + 1))
            train_state.next_depth = loop_config.depths.depth(next_progress)
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


def _accumulate(
    micro_batches: Sequence[Batch],
    task: TrainingTask[Batch],
    passes: ForwardBackward[Batch],
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
