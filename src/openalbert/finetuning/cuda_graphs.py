"""The encoder's forward and backward pass as CUDA graphs: small batches wait for Python no longer, hundreds of small
operations start as two.

A graph is for one size of batch. Batches are therefore filled up to a few sizes (`packing.filled`), and the lengths of
their sequences are numbers on the device, which the graph reads anew every time.
"""

import gc
import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from openalbert.errors import UserError
from openalbert.finetuning.batches import PackedBatch
from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import Encoded
from openalbert.model.packing import Packed
from openalbert.train.device import Device, Speed

MOST_GRAPHS = 64  # sizes; more would only cost memory and time to record
MEMORY_FRACTION = 0.1  # of what is free, for what graphs keep: each has gradients of its own
MOST_TOKENS = 16_384  # in a batch; larger ones keep the device busy without graphs
SHORTEST_LONGEST = 128  # the attention kernel's bound on the length of a sequence is a power of two, from here on


Passes = Callable[..., tuple[Tensor, ...]]


def is_recorded(speed: Speed, device: Device) -> bool:
    """Whether a run's batches are recorded: wherever they can be, unless the user wishes otherwise."""
    if speed.compile == "layer":
        raise UserError(
            "speed.compile is 'layer', but packed batches are all different, and a layer would be compiled again and "
            "again: leave it out, or have the passes recorded with 'whole'"
        )
    can_be = device.is_cuda and device.precision == "bf16" and not speed.recompute
    if speed.compile == "whole" and not can_be:
        raise UserError("speed.compile is 'whole', which needs a GPU, bf16 and no --speed.recompute")
    return can_be and speed.compile != "none"


class Recording:
    """Graphs of a model's encoder, recorded when a batch of their size first comes up."""

    def __init__(self, model: AlbertModel) -> None:
        gc.collect()  # the graphs of an earlier run hold on to each other, and to memory, until then
        self.model = model
        kinds = {head.kind for head in model.head_list}
        self.wants_tokens, self.wants_pooled = "span" in kinds, bool(kinds - {"span"})
        self._graphs: dict[tuple[int, int, int, int], Passes] = {}
        self._most = _most_graphs(model)
        # One graph runs at a time, backward pass and all, so that they can work in the same memory.
        self._memory = torch.cuda.graph_pool_handle()

    def encode(self, batch: PackedBatch, depth: int) -> Encoded | None:
        """The batch encoded; None for one of a size that graphs are not for."""
        size = len(batch.tokens)
        if not batch.is_filled or size > MOST_TOKENS:
            return None
        longest = max(SHORTEST_LONGEST, 1 << (max(batch.lengths) - 1).bit_length())
        key = (size, len(batch.lengths), longest, depth)
        inputs = (batch.tokens, batch.segments, Packed.of(batch.lengths, batch.tokens.device).starts)
        if key not in self._graphs and len(self._graphs) < self._most:
            self._record(key, inputs, longest, depth)
        weights = tuple(self.model.encoder.parameters())
        if key in self._graphs:
            outputs = self._graphs[key](*inputs, *weights)
        else:
            # The same operations, one by one, to the same bits: a run that goes on may have recorded other sizes.
            with _autocast_without_cache(batch.tokens.device):
                outputs = self.passes(longest, depth)(*inputs, *weights)
        # What nobody wants is not there; whoever asks for it all the same is told by the shape.
        hidden = outputs[0] if self.wants_tokens else outputs[0].new_empty(0, outputs[0].shape[1])
        pooled = outputs[-1] if self.wants_pooled else outputs[0].new_empty(0, outputs[0].shape[1])
        return Encoded(hidden, pooled)

    def _record(self, key: tuple[int, int, int, int], inputs: tuple[Tensor, ...], longest: int, depth: int) -> None:
        # Stand-ins with the weights' memory but no history of their own: whatever an earlier step has left alive of
        # the weights' part in it, on another stream, would break the recording.
        stand_ins = tuple(weight.detach().requires_grad_() for weight in self.model.encoder.parameters())
        sample = (*(tensor.clone() for tensor in inputs), *stand_ins)
        device = inputs[0].device
        is_cuda = device.type == "cuda"
        stream = torch.cuda.current_stream() if is_cuda else None
        # What is drawn while it is recorded must not be missing afterwards: a run that goes on records elsewhere.
        dice = torch.cuda.get_rng_state(device) if is_cuda else None
        try:
            with _autocast_without_cache(device), warnings.catch_warnings():
                # The passes that go before the recording, on a stream of their own, are still alive. Nothing waits.
                warnings.filterwarnings("ignore", "The AccumulateGrad node's stream does not match")
                recorded = torch.cuda.make_graphed_callables(
                    self.passes(longest, depth), sample, allow_unused_input=True, pool=self._memory
                )
            self._graphs[key] = cast(Passes, recorded)
        except RuntimeError as error:
            # Out of memory, most likely, which looks like many things in the middle of a recording. Whatever else is
            # wrong will be so again without a graph.
            if stream is not None:
                torch.cuda.set_stream(stream)
            self._graphs.clear()
            self._most = 0
            gc.collect()
            warnings.warn(f"no more CUDA graphs in this run, which is slower: {error}", stacklevel=2)
        if dice is not None:
            torch.cuda.set_rng_state(dice, device)

    def passes(self, longest: int, depth: int) -> Passes:
        """What is recorded, tensors in and tensors out: tokens, segments, where sequences start, and all weights."""
        encoder = self.model.encoder
        names = [name for name, _ in encoder.named_parameters()]

        def encode(tokens: Tensor, segments: Tensor, starts: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            layout = Packed(starts, (longest,), total=len(tokens))
            # Where nobody asks for single tokens, the last layer works on [CLS] only.
            how = {"depth": depth, "at": None if self.wants_tokens else tokens.new_empty(0)}
            given = dict(zip(names, weights, strict=True))
            encoded = torch.func.functional_call(encoder, given, (tokens, segments, layout), how)
            wanted = ((self.wants_tokens, encoded.hidden), (self.wants_pooled, encoded.pooled))
            return tuple(tensor for is_wanted, tensor in wanted if is_wanted)

        return encode


def _most_graphs(model: AlbertModel) -> int:
    weights = list(model.encoder.parameters())
    if weights[0].device.type != "cuda":
        return MOST_GRAPHS
    of_one = sum(weight.numel() * weight.element_size() for weight in weights)
    free, _ = torch.cuda.mem_get_info(weights[0].device)
    return min(MOST_GRAPHS, int(MEMORY_FRACTION * free / of_one))


def _autocast_without_cache(device: torch.device) -> torch.autocast:
    """Autocast as it is here, but without its cache: a weight cast outside of a graph would never be cast again."""
    kind = device.type
    is_on = torch.is_autocast_enabled(kind)
    return torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=is_on, cache_enabled=False)
