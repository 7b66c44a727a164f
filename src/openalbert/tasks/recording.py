"""The encoder's forward and backward pass as CUDA graphs: small batches wait for Python no longer, hundreds of small
operations start as two.

A graph is for one size of batch. Batches are therefore filled up to a few sizes (`packing.filled`), and the lengths of
their sequences are numbers on the device, which the graph reads anew every time.
"""

import torch
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import AlbertEncoder, Encoded
from openalbert.model.layout import Packed
from openalbert.tasks.packing import PackedBatch
from openalbert.train.device import Device, Speed

MOST_GRAPHS = 64  # sizes; more would only cost memory and time to record
MOST_TOKENS = 16_384  # in a batch; larger ones keep the device busy without graphs
SHORTEST_LONGEST = 128  # the attention kernel's bound on the length of a sequence is a power of two, from here on


def is_recorded(speed: Speed, dropout: float, device: Device) -> bool:
    """Whether a run's batches are to be recorded; what cannot be done is refused."""
    if speed.compile == "layer":
        raise UserError(
            "speed.compile is 'layer', but packed batches are all different, and a layer would be compiled again and "
            "again: leave it out, or have the whole step recorded with 'whole'"
        )
    # Only the kernel for packed sequences can be recorded: it knows neither dropout nor fp32.
    is_packed = device.is_cuda and device.precision == "bf16" and dropout == 0
    if speed.compile == "whole" and (not is_packed or speed.recompute):
        raise UserError("speed.compile is 'whole', which needs a GPU, bf16, --dropout 0 and no --speed.recompute")
    return speed.compile == "whole"


class _Encoding(nn.Module):
    """What is recorded: tensors in, tensors out."""

    def __init__(
        self, encoder: AlbertEncoder, longest: int, depth: int, wants_tokens: bool, wants_pooled: bool
    ) -> None:
        super().__init__()
        self.encoder, self.longest, self.depth = encoder, longest, depth
        self.wants_tokens, self.wants_pooled = wants_tokens, wants_pooled

    def forward(self, tokens: Tensor, segments: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """Hidden states of all tokens and the pooled [CLS] of all sequences, as far as somebody wants them."""
        # On a GPU a layout's lengths say nothing but which is the longest.
        encoded = self.encoder(tokens, segments, Packed(starts, (self.longest,)), depth=self.depth)
        wanted = ((self.wants_tokens, encoded.hidden), (self.wants_pooled, encoded.pooled))
        return tuple(tensor for is_wanted, tensor in wanted if is_wanted)


class Recording:
    """Graphs of a model's encoder, recorded when a batch of their size first comes up."""

    def __init__(self, model: AlbertModel) -> None:
        self.model = model
        kinds = {head.kind for head in model.head_list}
        self.wants_tokens, self.wants_pooled = "span" in kinds, bool(kinds - {"span"})
        self._graphs: dict[tuple[int, int, int, int], nn.Module] = {}

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
        outputs: tuple[Tensor, ...] = self._graphs[key](*inputs)
        # What nobody wants is not there; whoever asks for it all the same is told by the shape.
        hidden = outputs[0] if self.wants_tokens else outputs[0].new_empty(0, outputs[0].shape[1])
        pooled = outputs[-1] if self.wants_pooled else outputs[0].new_empty(0, outputs[0].shape[1])
        return Encoded(hidden, pooled)

    def _recorded(self, inputs: tuple[Tensor, ...], longest: int, depth: int) -> nn.Module:
        module = _Encoding(self.model.encoder, longest, depth, self.wants_tokens, self.wants_pooled)
        kind = inputs[0].device.type
        # A weight that was cast outside of the graph would never be cast again.
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            sample = tuple(tensor.clone() for tensor in inputs)
            recorded = torch.cuda.make_graphed_callables(module, sample, allow_unused_input=True)
        assert isinstance(recorded, nn.Module)
        return recorded
