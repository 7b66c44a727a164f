"""The encoder's forward and backward pass as CUDA graphs: small batches wait for Python no longer, hundreds of small
operations start as two.

A graph is for one size of batch. Batches are therefore filled up to a few sizes (`packing.filled`), and the lengths of
their sequences are numbers on the device, which the graph reads anew every time.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import Encoded
from openalbert.model.layout import Packed
from openalbert.tasks.packing import PackedBatch
from openalbert.train.device import Device, Speed

MOST_GRAPHS = 64  # sizes; more would only cost memory and time to record
MOST_TOKENS = 16_384  # in a batch; larger ones keep the device busy without graphs
SHORTEST_LONGEST = 128  # the attention kernel's bound on the length of a sequence is a power of two, from here on


def is_recorded(speed: Speed, dropout: float, device: Device) -> bool:
    """Whether a run's batches are recorded: wherever they can be, unless the user wishes otherwise."""
    if speed.compile == "layer":
        raise UserError(
            "speed.compile is 'layer', but packed batches are all different, and a layer would be compiled again and "
            "again: leave it out, or have the passes recorded with 'whole'"
        )
    # Only the kernel for packed sequences can be recorded: it knows neither dropout nor fp32.
    can_be = device.is_cuda and device.precision == "bf16" and dropout == 0 and not speed.recompute
    if speed.compile == "whole" and not can_be:
        raise UserError("speed.compile is 'whole', which needs a GPU, bf16, --dropout 0 and no --speed.recompute")
    return can_be and speed.compile != "none"


class Recording:
    """Graphs of a model's encoder, recorded when a batch of their size first comes up."""

    def __init__(self, model: AlbertModel) -> None:
        self.model = model
        kinds = {head.kind for head in model.head_list}
        self.wants_tokens, self.wants_pooled = "span" in kinds, bool(kinds - {"span"})
        self._graphs: dict[tuple[int, int, int, int], Callable[..., tuple[Tensor, ...]]] = {}
        # One graph runs at a time, backward pass and all, so that they can work in the same memory.
        self._memory = torch.cuda.graph_pool_handle()

    def encode(self, batch: PackedBatch, depth: int) -> Encoded | None:
        """The batch encoded; None for one that there is no graph for, and none to be made."""
        size = len(batch.tokens)
        longest = max(SHORTEST_LONGEST, 1 << (max(batch.lengths) - 1).bit_length())
        key = (size, len(batch.lengths), longest, depth)
        is_new = key not in self._graphs
        if not batch.is_filled or size > MOST_TOKENS or (is_new and len(self._graphs) >= MOST_GRAPHS):
            return None
        layout = Packed.of(batch.lengths, batch.tokens.device)
        inputs = (batch.tokens, batch.segments, layout.starts)
        if is_new:
            self._graphs[key] = self._recorded(inputs, longest, depth)
        outputs = self._graphs[key](*inputs, *self.model.encoder.parameters())
        # What nobody wants is not there; whoever asks for it all the same is told by the shape.
        hidden = outputs[0] if self.wants_tokens else outputs[0].new_empty(0, outputs[0].shape[1])
        pooled = outputs[-1] if self.wants_pooled else outputs[0].new_empty(0, outputs[0].shape[1])
        return Encoded(hidden, pooled)

    def _recorded(self, inputs: tuple[Tensor, ...], longest: int, depth: int) -> Callable[..., tuple[Tensor, ...]]:
        # Stand-ins with the weights' memory but no history of their own: whatever an earlier step has left alive of
        # the weights' part in it, on another stream, would break the recording.
        stand_ins = tuple(weight.detach().requires_grad_() for weight in self.model.encoder.parameters())
        sample = (*(tensor.clone() for tensor in inputs), *stand_ins)
        kind = inputs[0].device.type
        # A weight that was cast outside of the graph would never be cast again.
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            recorded = torch.cuda.make_graphed_callables(
                self.passes(longest, depth), sample, allow_unused_input=True, pool=self._memory
            )
        return cast(Callable[..., tuple[Tensor, ...]], recorded)

    def passes(self, longest: int, depth: int) -> Callable[..., tuple[Tensor, ...]]:
        """What is recorded, tensors in and tensors out: tokens, segments, where sequences start, and all weights."""
        encoder = self.model.encoder
        names = [name for name, _ in encoder.named_parameters()]

        def encode(tokens: Tensor, segments: Tensor, starts: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            # On a GPU a layout's lengths say nothing but which is the longest.
            layout = Packed(starts, (longest,))
            given = dict(zip(names, weights, strict=True))
            encoded = torch.func.functional_call(encoder, given, (tokens, segments, layout), {"depth": depth})
            wanted = ((self.wants_tokens, encoded.hidden), (self.wants_pooled, encoded.pooled))
            return tuple(tensor for is_wanted, tensor in wanted if is_wanted)

        return encode
