"""CUDA graphs: operations captured once and replayed as a whole, so that the GPU does not wait for Python between them.

Pretraining captures the forward and backward pass of a micro-batch, and the making of a batch. Fine-tuning captures the
encoder alone, for a few sizes that packed batches are padded to.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.config import TOKEN_HEADS
from openalbert.model.encoder import Encoded
from openalbert.model.packing import Packed
from openalbert.train.device import Device, Speed

MOST_GRAPHS = 64  # sizes of the encoder's input; more cost memory and capture time only
MEMORY_FRACTION = 0.1  # of the free memory, for the encoder's graphs: each has gradients of its own
MOST_TOKENS = 16_384  # in the encoder's input; larger ones keep the GPU busy without graphs
SHORTEST_LONGEST = 128  # the attention kernel's bound on the length of a sequence is a power of two, from here on

Batch = TypeVar("Batch")
Result = TypeVar("Result")


# --- what every capture needs ----------------------------------------------------------------------------------------


def warm_up(function: Callable[[], Any]) -> None:
    """Run a function once before it is captured, so that compilation and set-up are not captured with it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    # A graph has a memory pool of its own: memory cached by the warm-up would be held in addition to it.
    gc.collect()
    torch.cuda.empty_cache()


def capture(function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
    """Capture a function; returns its result and a function that computes it again, in place."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU meanwhile: batches are prepared in one.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = function()
    return result, graph.replay


def keep_random_state(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Undo draws made during a capture: a resumed run captures at other steps and must draw the same numbers."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextlib.contextmanager
def _weights_without_history(model: nn.Module) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Replace the parameters by ones that share their memory but not their autograd history.

    Autograd nodes that an earlier step left alive on another stream would break a capture.
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


# --- the forward and backward pass of a micro-batch ------------------------------------------------------------------


@dataclass(frozen=True)
class _CapturedPasses:
    key: tuple[Any, ...]
    inputs: list[Tensor]
    metrics: Tensor
    weights: list[nn.Parameter]
    gradients: list[Tensor]
    replay: Callable[[], None]


class CapturedForwardBackward(Generic[Batch]):
    """The forward and backward pass as one CUDA graph, captured when a batch of its size is first run at its depth.

    Batches must be dataclasses of tensors.
    """

    def __init__(
        self,
        forward: Callable[[Batch, int, Tensor], tuple[Tensor, Tensor]],
        model: nn.Module,
        device: torch.device,
        warn: Callable[[str], None],
    ) -> None:
        """`forward` takes a micro-batch, the depth and the scale of each loss; it gives the loss and the metrics."""
        self.forward, self.model, self.device, self.warn = forward, model, device, warn
        self._captured: _CapturedPasses | None = None
        self._is_off = False

    def __call__(self, micro_batch: Batch, depth: int, loss_scales: Tensor) -> Tensor:
        """Add to the gradients of the weights; returns the metrics of the micro-batch."""
        inputs = [*(getattr(micro_batch, tensor.name) for tensor in fields(cast(Any, micro_batch))), loss_scales]
        key = (depth, *(tensor.shape for tensor in inputs))
        if not self._is_off and (self._captured is None or self._captured.key != key):
            self._captured = None  # and its memory with it: a run does not return to an earlier depth
            self._captured = self._capture(key, micro_batch, depth, inputs)
        captured = self._captured
        if captured is None:
            loss, metrics = self.forward(micro_batch, depth, loss_scales)
            loss.backward()
            return metrics
        # The gradients of an earlier micro-batch lie where the graph is about to write.
        earlier = [None if weight.grad is None else weight.grad.clone() for weight in captured.weights]
        torch._foreach_copy_(captured.inputs, inputs)
        captured.replay()
        for weight, gradient, before in zip(captured.weights, captured.gradients, earlier, strict=True):
            weight.grad = gradient if before is None else gradient.add_(before)
        return captured.metrics.clone()

    def _capture(
        self, key: tuple[Any, ...], micro_batch: Batch, depth: int, inputs: list[Tensor]
    ) -> _CapturedPasses | None:
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        own = [tensor.clone() for tensor in inputs]
        own_batch, own_scales = type(micro_batch)(*own[:-1]), own[-1]

        def passes() -> tuple[Tensor, tuple[Tensor | None, ...]]:
            with _weights_without_history(self.model) as stand_in:
                loss, metrics = self.forward(own_batch, depth, own_scales)
                found = torch.autograd.grad(loss, [stand_in[weight] for weight in weights], allow_unused=True)
            return metrics, tuple(map(_in_memory_order, found, weights))

        with keep_random_state(self.device):
            # Where memory runs out, the loop takes smaller micro-batches, which are captured anew.
            warm_up(passes)
            try:
                (metrics, gradients), replay = capture(passes)
                # A graph keeps its memory to itself: the optimizer must find room in addition to it.
                torch.empty(sum(weight.nbytes for weight in weights), dtype=torch.uint8, device=self.device)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._is_off = True
                self.warn(f"this run continues without a CUDA graph, which is slower: {error}")
                return None
        trained = [(weight, found) for weight, found in zip(weights, gradients, strict=True) if found is not None]
        return _CapturedPasses(
            key, own, metrics, [weight for weight, _ in trained], [found for _, found in trained], replay
        )


def _in_memory_order(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    """The gradient in its weight's memory layout, as `backward` leaves it: the optimizer reads both in parallel."""
    if gradient is None or gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)


# --- the encoder of packed batches -----------------------------------------------------------------------------------

EncoderFunction = Callable[..., tuple[Tensor, ...]]


def is_encoder_captured(speed: Speed, device: Device) -> bool:
    """Whether a fine-tuning run captures its encoder: wherever possible, unless --speed.compile is none."""
    if speed.compile == "layer":
        raise UserError(
            "speed.compile is 'layer', but packed batches are all different, and a layer would be compiled again and "
            "again: leave it out, or have the encoder captured with 'whole'"
        )
    can_be = device.is_cuda and device.precision == "bf16" and not speed.recompute
    if speed.compile == "whole" and not can_be:
        raise UserError("speed.compile is 'whole', which needs a GPU, bf16 and no --speed.recompute")
    return can_be and speed.compile != "none"


class CapturedEncoder:
    """CUDA graphs of a model's encoder, forward and backward, each captured when an input of its size first comes up.

    A graph is for one number of tokens and of sequences; the lengths of the sequences are read from the device.
    """

    def __init__(self, model: AlbertModel) -> None:
        gc.collect()  # the graphs of an earlier run are in reference cycles and hold memory until then
        self.model = model
        kinds = {head.kind for head in model.head_list}
        self.needs_tokens, self.needs_pooled = bool(kinds & {*TOKEN_HEADS}), bool(kinds - {*TOKEN_HEADS})
        self._graphs: dict[tuple[int, int, int, int], EncoderFunction] = {}
        self._most = _most_graphs(model)
        # One graph runs at a time, backward pass included, so all of them can share one memory pool.
        self._pool = torch.cuda.graph_pool_handle()

    def encode(self, tokens: Tensor, segments: Tensor, lengths: Sequence[int], depth: int) -> Encoded | None:
        """Encode a packed batch; None if it is too large for graphs to pay."""
        size = len(tokens)
        if size > MOST_TOKENS:
            return None
        longest = max(SHORTEST_LONGEST, 1 << (max(lengths) - 1).bit_length())
        key = (size, len(lengths), longest, depth)
        inputs = (tokens, segments, Packed.of(lengths, tokens.device).starts)
        if key not in self._graphs and len(self._graphs) < self._most:
            self._capture(key, inputs, longest, depth)
        weights = tuple(self.model.encoder.parameters())
        if key in self._graphs:
            outputs = self._graphs[key](*inputs, *weights)
        else:
            # The same operations, one by one, to the same bits: a resumed run may have captured other sizes.
            with _autocast_without_cache(tokens.device):
                outputs = self._encoder_function(longest, depth)(*inputs, *weights)
        # An output that no head needs is empty; a head that asks for it anyway fails by its shape.
        hidden = outputs[0] if self.needs_tokens else outputs[0].new_empty(0, outputs[0].shape[1])
        pooled = outputs[-1] if self.needs_pooled else outputs[0].new_empty(0, outputs[0].shape[1])
        return Encoded(hidden, pooled)

    def _capture(self, key: tuple[int, int, int, int], inputs: tuple[Tensor, ...], longest: int, depth: int) -> None:
        # Weights without history, for the same reason as above.
        stand_ins = tuple(weight.detach().requires_grad_() for weight in self.model.encoder.parameters())
        sample = (*(tensor.clone() for tensor in inputs), *stand_ins)
        device = inputs[0].device
        stream = torch.cuda.current_stream() if device.type == "cuda" else None
        with keep_random_state(device):
            try:
                with _autocast_without_cache(device), warnings.catch_warnings():
                    # The warm-up passes, on a stream of their own, are still alive. Nothing waits for them.
                    warnings.filterwarnings("ignore", "The AccumulateGrad node's stream does not match")
                    captured = torch.cuda.make_graphed_callables(
                        self._encoder_function(longest, depth), sample, allow_unused_input=True, pool=self._pool
                    )
                self._graphs[key] = cast(EncoderFunction, captured)
            except RuntimeError as error:
                # Most likely out of memory, which has many error messages in the middle of a capture. Any other error
                # comes again without a graph.
                if stream is not None:
                    torch.cuda.set_stream(stream)
                self._graphs.clear()
                self._most = 0
                gc.collect()
                warnings.warn(f"no more CUDA graphs in this run, which is slower: {error}", stacklevel=2)

    def _encoder_function(self, longest: int, depth: int) -> EncoderFunction:
        """The encoder as a function of tensors: tokens, segments, where sequences start, and all weights."""
        encoder = self.model.encoder
        names = [name for name, _ in encoder.named_parameters()]

        def encode(tokens: Tensor, segments: Tensor, starts: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            layout = Packed(starts, (longest,), total=len(tokens))
            # Where no head needs single tokens, the last layer works on [CLS] only.
            how = {"depth": depth, "at": None if self.needs_tokens else tokens.new_empty(0)}
            given = dict(zip(names, weights, strict=True))
            encoded = torch.func.functional_call(encoder, given, (tokens, segments, layout), how)
            outputs = ((self.needs_tokens, encoded.hidden), (self.needs_pooled, encoded.pooled))
            return tuple(tensor for is_needed, tensor in outputs if is_needed)

        return encode


def _most_graphs(model: AlbertModel) -> int:
    weights = list(model.encoder.parameters())
    if weights[0].device.type != "cuda":
        return MOST_GRAPHS
    of_one = sum(weight.numel() * weight.element_size() for weight in weights)
    free, _ = torch.cuda.mem_get_info(weights[0].device)
    return min(MOST_GRAPHS, int(MEMORY_FRACTION * free / of_one))


def _autocast_without_cache(device: torch.device) -> torch.autocast:
    """Autocast as set here, but without its cache: a weight cast outside of a graph would never be cast again."""
    kind = device.type
    is_on = torch.is_autocast_enabled(kind)
    return torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=is_on, cache_enabled=False)
