"""A micro-batch's way through the model and back: one operation after the other, or all of them as one CUDA graph.

A large batch keeps a GPU busy, yet between two operations it stands still for a moment, some thousand times a step. A
graph starts as a whole.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from openalbert.objectives.score import Score
from openalbert.train.device import Device

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Learning(Generic[Batch]):
    """What is asked of a batch."""

    predictions: Callable[[Batch], dict[str, Tensor]]
    """How many predictions of each kind a batch holds, known before any is made."""
    scores: Callable[[Batch, int], dict[str, Score]]
    """Each loss, summed over its predictions, with the model run at a given depth."""
    tokens: Callable[[Batch], Tensor]
    """How many real tokens a batch holds."""
    drops_out: bool
    """Whether the model draws random numbers in training."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """How much each loss counts; 1 for those that are not named."""
    is_recorded: bool = False
    """Whether the passes are recorded as a CUDA graph: batches must be dataclasses of tensors, of one size."""


class Passes(Generic[Batch]):
    """Forward and backward, one operation after the other."""

    def __init__(self, learning: Learning[Batch], device: Device) -> None:
        self.learning, self.device = learning, device

    def __call__(self, part: Batch, depth: int, shares: Tensor) -> Tensor:
        """Add to the gradients of the weights; tokens, then for each loss its sum, predictions and right answers."""
        loss, figures = self.forward(part, depth, shares)
        loss.backward()
        return figures

    def forward(self, part: Batch, depth: int, shares: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimised, each loss by its share, and the figures."""
        with self.device.autocast():
            scores = self.learning.scores(part, depth)
        loss = torch.stack([score.loss_sum * share for score, share in zip(scores.values(), shares, strict=True)]).sum()
        figures = [figure.detach().double() for score in scores.values() for figure in score]
        return loss, torch.stack([self.learning.tokens(part).double(), *figures])


@dataclass(frozen=True)
class _Tape:
    """What was recorded: where the graph reads, what it writes, and how to start it."""

    key: tuple[Any, ...]
    inputs: list[Tensor]
    figures: Tensor
    weights: list[nn.Parameter]
    gradients: list[Tensor]
    replay: Callable[[], None]


class RecordedPasses(Passes[Batch]):
    """The same as a graph, recorded when a batch of its size is first run at its depth."""

    def __init__(
        self, learning: Learning[Batch], device: Device, model: nn.Module, tell: Callable[[str], None]
    ) -> None:
        super().__init__(learning, device)
        self.model, self.tell = model, tell
        self._tape: _Tape | None = None
        self._is_off = False

    def __call__(self, part: Batch, depth: int, shares: Tensor) -> Tensor:
        """Add to the gradients of the weights; tokens, then for each loss its sum, predictions and right answers."""
        inputs = [*_tensors(part), shares]
        key = (depth, *(tensor.shape for tensor in inputs))
        if not self._is_off and (self._tape is None or self._tape.key != key):
            self._tape = None  # and its memory with it: a depth that is left does not come again
            self._tape = self._record(key, part, depth, inputs)
        tape = self._tape
        if tape is None:
            return super().__call__(part, depth, shares)
        # The gradients of an earlier micro-batch lie where the graph is about to write.
        earlier = [None if weight.grad is None else weight.grad.clone() for weight in tape.weights]
        torch._foreach_copy_(tape.inputs, inputs)
        tape.replay()
        for weight, gradient, before in zip(tape.weights, tape.gradients, earlier, strict=True):
            weight.grad = gradient if before is None else gradient.add_(before)
        return tape.figures.clone()

    def _record(self, key: tuple[Any, ...], part: Batch, depth: int, inputs: list[Tensor]) -> _Tape | None:
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        own = [tensor.clone() for tensor in inputs]
        own_part, own_shares = type(part)(*own[:-1]), own[-1]

        def passes() -> tuple[Tensor, tuple[Tensor | None, ...]]:
            with _stand_ins(self.model) as stand_in:
                loss, figures = self.forward(own_part, depth, own_shares)
                found = torch.autograd.grad(loss, [stand_in[weight] for weight in weights], allow_unused=True)
            return figures, tuple(map(_laid_out, found, weights))

        device = self.device.torch_device
        # What is drawn while it is recorded must not be missing afterwards: a run that goes on records elsewhere.
        with torch.random.fork_rng([device] if self.device.is_cuda else []):
            # Where memory runs out the caller takes smaller parts, which are recorded anew.
            warm_up(passes)
            try:
                (figures, gradients), replay = record(passes)
                # A graph keeps its memory to itself: what the optimizer needs must find room beside it.
                torch.empty(sum(weight.nbytes for weight in weights), dtype=torch.uint8, device=device)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._is_off = True
                self.tell(f"this run goes on without a CUDA graph, which is slower: {error}")
                return None
        learned = [(weight, found) for weight, found in zip(weights, gradients, strict=True) if found is not None]
        return _Tape(key, own, figures, [weight for weight, _ in learned], [found for _, found in learned], replay)


def warm_up(passes: Callable[[], Any]) -> None:
    """Run once what is to be recorded, so that whatever is compiled or set up then is not recorded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        passes()
    torch.cuda.synchronize()
    # A graph has memory of its own: what was needed just now would be kept beside it.
    gc.collect()
    torch.cuda.empty_cache()


Recorded = TypeVar("Recorded")


def record(passes: Callable[[], Recorded]) -> tuple[Recorded, Callable[[], None]]:
    """What the passes give, and what fills it anew."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on using the GPU meanwhile: batches are prepared in one.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        recorded = passes()
    return recorded, graph.replay


@contextlib.contextmanager
def _stand_ins(model: nn.Module) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Put parameters with the weights' memory but no history in their place.

    Whatever an earlier step has left alive of the weights' part in it, on another stream, would break a recording.
    """
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]
    stand_in = {weight: nn.Parameter(weight.detach(), weight.requires_grad) for weight in model.parameters()}
    try:
        for module, name, weight in places:
            module._parameters[name] = stand_in[weight]
        yield stand_in
    finally:
        for module, name, weight in places:
            module._parameters[name] = weight


def _laid_out(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    """In its weight's order in memory, as `backward` would leave it: the optimizer reads both side by side."""
    if gradient is None or gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)


def _tensors(part: Any) -> list[Tensor]:
    return [getattr(part, tensor.name) for tensor in fields(part)]
