"""Two input forms with one meaning: padded batches with a mask, and packed batches that hold no padding at all.

Everything in the encoder but attention works on single tokens, so a layout is asked for three things only: the position
of each token, attention within each sequence, and the rows that somebody asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openalbert.errors import UserError


@dataclass(frozen=True)
class Padded:
    """Batch x length, the sequences filled up to the longest one; `mask` is true where there is a real token."""

    mask: Bool[Tensor, "batch length"] | None = None
    attend_masked: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    """In training, a faster way to heed the mask than torch's own, where there is one."""

    def positions(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "1 length"]:
        """Each token's place in its sequence."""
        return torch.arange(ids.shape[1], device=ids.device)[None]

    def attend(
        self,
        query: Float[Tensor, "batch asked heads size"],
        key: Float[Tensor, "batch length heads size"],
        value: Float[Tensor, "batch length heads size"],
        dropout: float,
    ) -> Float[Tensor, "batch asked heads size"]:
        """Attention of every query to the real tokens of its sequence."""
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if self.mask is not None and self.attend_masked is not None and self.skips_mask_in_backward(dropout):
            return self.attend_masked(query, key, value, self.mask).transpose(1, 2)
        mask = None if self.mask is None else self.mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return mixed.transpose(1, 2)

    def skips_mask_in_backward(self, dropout: float) -> bool:
        """Whether attention takes the faster way (masked_attention.py, fused_linear.py)."""
        is_there = self.mask is not None and self.attend_masked is not None
        return is_there and dropout == 0 and torch.is_grad_enabled()

    def first_and_asked(self, at: Int[Tensor, "batch asked"]) -> "PaddedRows":
        """The rows of [CLS] and of the asked positions, to be taken out before the last layer."""
        first = torch.zeros(at.shape[0], 1, dtype=at.dtype, device=at.device)
        return PaddedRows(torch.cat((first, at), 1))

    def first(self, hidden: Float[Tensor, "batch length hidden"]) -> Float[Tensor, "batch hidden"]:
        """The first token of each sequence, [CLS]."""
        return hidden[:, 0]


@dataclass(frozen=True)
class PaddedRows:
    """Some rows of a padded batch: [CLS] first, then the asked positions."""

    index: Int[Tensor, "batch rows"]

    def take(self, hidden: Float[Tensor, "batch length hidden"]) -> Float[Tensor, "batch rows hidden"]:
        """Only these rows of every sequence."""
        return hidden.gather(1, self.index[:, :, None].expand(-1, -1, hidden.shape[2]))

    def attend(self, layout: Padded, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Attention of these rows to their whole sequences."""
        return layout.attend(query, key, value, dropout)

    def split(
        self, hidden: Float[Tensor, "batch rows hidden"]
    ) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch asked hidden"]]:
        """[CLS] and the asked positions apart."""
        return hidden[:, 0], hidden[:, 1:]


@dataclass(frozen=True)
class Packed:
    """Sequences one after another in a single row of tokens; sequence i is starts[i] up to starts[i + 1].

    `lengths` says the same as numbers of the host, so that no kernel has to be waited for to learn them.
    """

    starts: Int[Tensor, "sequences_and_end"]
    lengths: tuple[int, ...]
    total: int | None = None
    """Tokens in all, where the lengths do not tell: a GPU needs to know of those only which is the longest."""

    @property
    def num_sequences(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str | None = None) -> "Packed":
        """The layout of sequences of these lengths."""
        if not lengths or min(lengths) < 1:
            raise UserError(
                f"a packed batch needs sequences of at least one token, but the lengths are {list(lengths)}"
            )
        starts = torch.tensor((0, *lengths)).cumsum(0).int()
        if device is not None and torch.device(device).type == "cuda":
            starts = starts.pin_memory()  # or the copy would wait for all that the device has yet to do
        return cls(starts.to(device, non_blocking=True), tuple(lengths))

    def positions(self, ids: Int[Tensor, "tokens"]) -> Int[Tensor, "tokens"]:
        """Each token's place in its sequence."""
        firsts = self._of_each_token(self.starts[:-1].long(), len(ids))
        return torch.arange(len(ids), device=ids.device) - firsts

    # Three views of a padded copy, made once for all layers.

    @cached_property
    def is_real(self) -> Bool[Tensor, "sequences longest"]:
        """Where a padded copy holds real tokens."""
        return torch.arange(max(self.lengths), device=self.starts.device) < self.starts.diff()[:, None]

    @cached_property
    def places(self) -> Int[Tensor, "sequences longest"]:
        """Which token stands at each place of a padded copy; where a sequence has ended, its first one."""
        offsets = torch.arange(max(self.lengths), device=self.starts.device) * self.is_real
        return self.starts[:-1, None].long() + offsets

    @cached_property
    def filled_places(self) -> Int[Tensor, "tokens"]:
        """Where in a padded copy, counted row by row, each token stands."""
        longest, total = max(self.lengths), self.total or sum(self.lengths)
        gaps = torch.arange(self.num_sequences, device=self.starts.device) * longest - self.starts[:-1].long()
        return torch.arange(total, device=self.starts.device) + self._of_each_token(gaps, total)

    def _of_each_token(self, of_sequence: Int[Tensor, "sequences"], total: int) -> Int[Tensor, "tokens"]:
        """A number of each sequence, for all of its tokens; that their count is known spares a look at the device."""
        return of_sequence.repeat_interleave(self.starts.diff().long(), output_size=total)

    def attend(
        self,
        query: Float[Tensor, "tokens heads size"],
        key: Float[Tensor, "tokens heads size"],
        value: Float[Tensor, "tokens heads size"],
        dropout: float,
    ) -> Float[Tensor, "tokens heads size"]:
        """Attention of every token to the tokens of its own sequence."""
        return _attend_within(self, self, query, key, value, dropout)

    def first_and_asked(self, at: Int[Tensor, "asked"]) -> "PackedRows":
        """The rows of [CLS] and of the asked tokens (counted through the whole packed row)."""
        firsts = self.starts[:-1].to(at.dtype)
        if not len(at):  # [CLS] alone: one row of each sequence, which nobody has to be asked about
            each = torch.arange(self.num_sequences + 1, device=at.device)
            return PackedRows(firsts, each[:-1], Packed(each.int(), (1,) * self.num_sequences))
        rows, order = torch.cat((firsts, at)).sort(stable=True)
        starts = torch.searchsorted(rows, self.starts.to(at.dtype)).int()
        lengths = tuple(starts.diff().tolist())
        return PackedRows(rows, order, Packed(starts, lengths))

    def first(self, hidden: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "sequences hidden"]:
        """The first token of each sequence, [CLS]."""
        return hidden[self.starts[:-1].long()]


@dataclass(frozen=True)
class PackedRows:
    """Some rows of a packed batch, in the order of their sequences; `order` leads back to the order asked for."""

    index: Int[Tensor, "rows"]
    order: Int[Tensor, "rows"]
    layout: Packed

    def take(self, hidden: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "rows hidden"]:
        """Only these rows."""
        return hidden[self.index]

    def attend(self, layout: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Attention of these rows to their whole sequences."""
        return _attend_within(self.layout, layout, query, key, value, dropout)

    def split(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> tuple[Float[Tensor, "sequences hidden"], Float[Tensor, "asked hidden"]]:
        """[CLS] of each sequence, and the asked rows in the order they were asked for."""
        asked_order = torch.empty_like(hidden).index_copy(0, self.order, hidden)
        num_sequences = self.layout.num_sequences
        return asked_order[:num_sequences], asked_order[num_sequences:]


Layout = Padded | Packed
Rows = PaddedRows | PackedRows


def _attend_within(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Float[Tensor, "rows heads size"]:
    """Attention within each sequence of a packed batch, by the best means at hand."""
    if query.device.type == "cpu":
        return attend_one_by_one(queries, keys, query, key, value, dropout)
    if dropout == 0 and query.dtype in (torch.bfloat16, torch.float16):
        return attend_by_packed_kernel(queries, keys, query, key, value)
    return attend_on_padded_copy(queries, keys, query, key, value, dropout)


def attend_one_by_one(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Float[Tensor, "rows heads size"]:
    """A call for each sequence: on the CPU it costs microseconds beside the milliseconds of the matrix products."""
    pieces = zip(query.split(queries.lengths), key.split(keys.lengths), value.split(keys.lengths), strict=True)
    return torch.cat([Padded().attend(q[None], k[None], v[None], dropout)[0] for q, k, v in pieces])


def attend_by_packed_kernel(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor
) -> Float[Tensor, "rows heads size"]:
    """PyTorch's kernel for sequences of mixed lengths: half precision on a GPU, without dropout."""
    # Its module brings torch's compiler along, a second to import: only those pay who use it.
    from torch.nn.attention.varlen import varlen_attn

    longest_query, longest_key = max(queries.lengths), max(keys.lengths)
    mixed = varlen_attn(query, key, value, queries.starts, keys.starts, longest_query, longest_key)
    assert isinstance(mixed, Tensor)
    return mixed


def attend_on_padded_copy(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Float[Tensor, "rows heads size"]:
    """For what the packed kernel does not know, dropout and fp32: attention alone works on a padded copy.

    There the fused kernel drops out attention probabilities as it does for padded batches; all the rest stays packed.
    """
    mixed = Padded(keys.is_real).attend(query[queries.places], key[keys.places], value[keys.places], dropout)
    return mixed.flatten(0, 1)[queries.filled_places]
