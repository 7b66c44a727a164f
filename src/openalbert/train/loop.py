"""The training loop as an iterator: what happens between two steps is ordinary code of whoever iterates.

One step is a whole global batch, whatever the number of processes and of micro-batches: each loss is divided by the
predictions of the whole batch, so that the gradient is the same, to rounding, for any split.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.optim.optimizer import TrainingOptimizer, clip_gradients, find_lamb, set_learning_rate
from openalbert.optim.schedule import Budget, DepthSchedule, Schedule
from openalbert.train.device import Device
from openalbert.train.micro_batch import Learning, Passes, RecordedPasses
from openalbert.train.state import Arriving, Step, TrainState, send

Batch = TypeVar("Batch")


@runtime_checkable
class Source(Protocol[Batch]):
    """What gives the loop its batches: for each step from `start` on, this process's micro-batches."""

    def stream(self, *, start: int, rank: int, world: int, parts: int) -> Iterator[list[Batch]]:
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
    source: Source[Batch],
    learning: Learning[Batch],
    loop_config: LoopConfig,
    device: Device,
    train_state: TrainState,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """Take steps until the budget is spent. `running` goes along, and is where to go on from.

    A device that works on by itself is given the next step's passes before this step's figures are read, so that it
    never stands still; whether a step is taken it decides itself. Between two steps the weights are always those of
    the step that is told of; gradients, if there are any, are the next one's.
    """
    schedule = loop_config.schedule.within(loop_config.budget)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    remarks: list[tuple[str, str]] = []
    batches = source.stream(start=train_state.step, rank=device.rank, world=device.world, parts=train_state.parts)
    parts = next(batches)
    names = list(learning.predictions(parts[0]))
    passes = Passes(learning, device)
    if learning.is_recorded:
        passes = RecordedPasses(learning, device, model, lambda text: remarks.append(("no_graph", text)))
    if (lamb := find_lamb(optimizer)) is not None:
        # One process with other arithmetic than the rest would drift away from them.
        lamb.may_use_kernel = not device.any_rank(not lamb.has_kernel())
    weights = torch.tensor([learning.weights.get(name, 1.0) for name in names], device=device.torch_device).double()
    began = time.perf_counter() - train_state.seconds
    model.train()

    def tell(arriving: Arriving) -> Iterator[Step]:
        """Read the figures of a step, and hand it to whoever iterates, who has all the time there is."""
        nonlocal began
        step = arriving.read(names, train_state)
        paused = time.perf_counter()
        yield step
        began += time.perf_counter() - paused  # although a device that works on may have had some of it
        model.train()

    arriving: Arriving | None = None
    try:
        while True:
            if arriving is not None and not device.works_on_by_itself:
                yield from tell(arriving)
                arriving = None
            number = train_state.step + int(arriving is not None)
            if loop_config.budget.is_spent(replace(train_state.spent, steps=number)):
                break
            depth = train_state.depth_ahead or loop_config.depths.depth(loop_config.budget.progress(train_state.spent))
            seeds = _dropout_seeds(loop_config.seed, number, device, parts) if learning.drops_out else None
            sums, is_out_of_memory = _accumulate(parts, passes, weights, depth, seeds)
            if arriving is not None:
                yield from tell(arriving)
                arriving = None
                if loop_config.budget.is_spent(train_state.spent):
                    break
            if device.any_rank(is_out_of_memory):
                optimizer.zero_grad()
                batches.close()  # type: ignore[attr-defined]
                remarks.append(("out_of_memory", _split_further(train_state, parts, device)))
                batches = source.stream(
                    start=train_state.step, rank=device.rank, world=device.world, parts=train_state.parts
                )
                parts = next(batches)
                continue
            if train_state.depth not in (None, depth):
                remarks.append(("depth", f"from now on {depth} layers are run, up to here {train_state.depth}"))
                train_state.forget()  # another depth, another loss
            train_state.depth = depth
            progress = loop_config.budget.progress(train_state.spent)
            # The next depth is settled before this step's tokens and seconds are known, on every device alike.
            next_progress = loop_config.budget.progress(replace(train_state.spent, steps=train_state.step + 1))
            train_state.depth_ahead = loop_config.depths.depth(next_progress)
            rate = schedule.learning_rate(loop_config.highest_rate, progress)
            set_learning_rate(optimizer, rate)
            _sum_gradients(parameters, device)
            norm = clip_gradients(parameters, loop_config.clip_norm)
            # The clock is the main process's: whether the budget is spent must be decided alike by all processes.
            seconds = time.perf_counter() - began if device.is_main else 0.0
            flags = [torch.full_like(norm, flag, dtype=torch.float64) for flag in (stop_asked(), seconds)]
            totals = device.sum_over_ranks(torch.cat((sums, torch.stack(flags))))
            loss = (weights * totals[1:-2:3] / totals[2:-2:3].clamp(min=1)).sum()
            limit = train_state.loss_limit() if loop_config.skips_spikes else math.inf
            is_wrong = ~(torch.isfinite(loss) & torch.isfinite(norm) & (loss <= limit))
            figures = send(torch.cat((totals, torch.stack((norm.double(), loss, is_wrong.double())))))
            arriving = Arriving(figures, rate, depth, progress, tuple(remarks), limit)
            remarks.clear()
            optimizer.found_inf = is_wrong.float()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
            parts = next(batches)
        if arriving is not None:
            yield from tell(arriving)
    finally:
        optimizer.zero_grad()  # of a step that was begun and is not wanted
        batches.close()  # type: ignore[attr-defined]


def _accumulate(
    parts: Sequence[Batch], passes: Passes[Batch], weights: Tensor, depth: int, seeds: list[int] | None
) -> tuple[Tensor, bool]:
    """Forward and backward of all micro-batches: tokens, then for each loss its sum, predictions and right answers."""
    counted = [passes.learning.predictions(part).values() for part in parts]
    counts = torch.stack([torch.stack(list(of_part)) for of_part in counted]).sum(0)
    counts = passes.device.sum_over_ranks(counts.double())
    # Weighted by the predictions of the whole batch: one gradient for any split of it.
    shares = weights / counts.clamp(min=1)
    sums = torch.zeros(1 + 3 * len(counts), dtype=torch.float64, device=weights.device)
    try:
        for number, part in enumerate(parts):
            if seeds is not None:
                torch.manual_seed(seeds[number])
            sums += passes(part, depth, shares)
    except torch.OutOfMemoryError:
        return sums, True
    return sums, False


def _dropout_seeds(seed: int, step: int, device: Device, parts: Sequence[Batch]) -> list[int]:
    """A seed for each micro-batch that hangs on (seed, step, rank, part) alone: a resumed run draws the same."""
    first = ((seed * 1_000_003 + step) * 4099 + device.rank) * 65_537
    return [(first + part) % 2**63 for part in range(len(parts))]


def _split_further(train_state: TrainState, parts: Sequence[Any], device: Device) -> str:
    """Halve the micro-batch, or come as near to it as the batch divides; the global batch stays what it is."""
    if device.is_cuda:
        torch.cuda.empty_cache()
    size = len(parts[0].ids) if hasattr(parts[0], "ids") else len(parts[0])
    share = size * train_state.parts
    if size == 1:
        raise UserError(
            "the device has not enough memory for a single example: shorten it (--objective.max-length, in fine-tuning "
            "--max-length), "
            "take a smaller model, or switch on --speed.recompute"
        )
    train_state.parts = next(count for count in range(2 * train_state.parts, share + 1) if share % count == 0)
    return (
        f"out of memory with {size} examples at a time: from now on {share // train_state.parts}, "
        f"in {train_state.parts} micro-batches; the global batch stays the same"
    )


def _sum_gradients(parameters: Sequence[nn.Parameter], device: Device) -> None:
    """One reduction a step: all gradients as one flat tensor, summed over the processes."""
    if device.world == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = device.sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
