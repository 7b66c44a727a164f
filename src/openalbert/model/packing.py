"""The two layouts of a batch: padded with a mask, and packed without padding.

Everything in the encoder except attention works on single tokens. So a layout provides three things only: the position
of each token, attention within each sequence, and selection of the requested rows.
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
    """Batch x length, padded to the longest sequence; `mask` is true for real tokens."""

    mask: Bool[Tensor, "batch length"] | None = None
    attend_masked: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    """In training, a faster masked attention than torch's own, where there is one."""

    def positions(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "1 length"]:
        """Each token's position in its sequence."""
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
        """Whether attention uses our faster kernels (masked_attention.py, fused_linear.py)."""
        has_both = self.mask is not None and self.attend_masked is not None
        return has_both and dropout == 0 and torch.is_grad_enabled()

    def first_and_asked(self, at: Int[Tensor, "batch asked"]) -> "PaddedRows":
        """The rows of [CLS] and of the requested positions, to be selected in the last layer."""
        first = torch.zeros(at.shape[0], 1, dtype=at.dtype, device=at.device)
        return PaddedRows(torch.cat((first, at), 1))

    def first(self, hidden: Float[Tensor, "batch length hidden"]) -> Float[Tensor, "batch hidden"]:
        """The first token of each sequence, [CLS]."""
        return hidden[:, 0]


@dataclass(frozen=True)
class PaddedRows:
    """Some rows of a padded batch: [CLS] first, then the requested positions."""

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
        """[CLS], and the requested positions."""
        return hidden[:, 0], hidden[:, 1:]


@dataclass(frozen=True)
class Packed:
    """Sequences concatenated into one row of tokens; sequence i is starts[i] up to starts[i + 1].

    `lengths` holds the same as Python numbers, so that nothing has to wait for the device to learn them.
    """

    starts: Int[Tensor, "sequences_and_end"]
    lengths: tuple[int, ...]
    total: int | None = None
    """Number of tokens, where `lengths` is not exact: a GPU needs only the longest length."""

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
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
            starts = starts.pin_memory()  # otherwise the copy would wait for all queued work of the device
        return cls(starts.to(device, non_blocking=True), tuple(lengths))

    def positions(self, ids: Int[Tensor, "tokens"]) -> Int[Tensor, "tokens"]:
        """Each token's position in its sequence."""
        firsts = self._of_each_token(self.starts[:-1].long(), len(ids))
        return torch.arange(len(ids), device=ids.device) - firsts

    # Three views of a padded copy, made once for all layers.

    @cached_property
    def is_real(self) -> Bool[Tensor, "sequences longest"]:
        """Where a padded copy holds real tokens."""
        return torch.arange(max(self.lengths), device=self.starts.device) < self.starts.diff()[:, None]

    @cached_property
    def places(self) -> Int[Tensor, "sequences longest"]:
        """The token at each place of a padded copy; past the end of a sequence, its first one."""
        offsets = torch.arange(max(self.lengths), device=self.starts.device) * self.is_real
        return self.starts[:-1, None].long() + offsets

    @cached_property
    def filled_places(self) -> Int[Tensor, "tokens"]:
        """Each token's place in a padded copy, counted row by row."""
        longest, total = max(self.lengths), self.total or sum(self.lengths)
        gaps = torch.arange(self.num_sequences, device=self.starts.device) * longest - self.starts[:-1].long()
        return torch.arange(total, device=self.starts.device) + self._of_each_token(gaps, total)

    def _of_each_token(self, of_sequence: Int[Tensor, "sequences"], total: int) -> Int[Tensor, "tokens"]:
        """Repeat a number of each sequence for its tokens; the known total avoids synchronizing with the device."""
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
        """The rows of [CLS] and of the requested tokens (numbered through the whole packed row)."""
        firsts = self.starts[:-1].to(at.dtype)
        if not len(at):  # [CLS] alone: one row per sequence, known without synchronizing with the device
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
    """Some rows of a packed batch, in the order of their sequences; `order` restores the requested order."""

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
        """[CLS] of each sequence, and the requested rows in the requested order."""
        asked_order = torch.empty_like(hidden).index_copy(0, self.order, hidden)
        num_sequences = self.layout.num_sequences
        return asked_order[:num_sequences], asked_order[num_sequences:]


Layout = Padded | Packed
Rows = PaddedRows | PackedRows


def _attend_within(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Float[Tensor, "rows heads size"]:
    """Attention within each sequence of a packed batch, by the fastest method available."""
    if query.device.type == "cpu":
        return attend_one_by_one(queries, keys, query, key, value, dropout)
    if dropout == 0 and query.dtype in (torch.bfloat16, torch.float16):
        return attend_by_packed_kernel(queries, keys, query, key, value)
    return attend_on_padded_copy(queries, keys, query, key, value, dropout)


def attend_one_by_one(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Float[Tensor, "rows heads size"]:
    """One call per sequence: on the CPU it costs microseconds, compared with milliseconds for the matrix products.

    Rows after the last sequence, which fill up a batch, attend to nothing.
    """
    total = sum(queries.lengths)
    asked, filled = query.split((total, len(query) - total))
    key, value = key[: sum(keys.lengths)], value[: sum(keys.lengths)]
    pieces = zip(asked.split(queries.lengths), key.split(keys.lengths), value.split(keys.lengths), strict=True)
    return torch.cat([*(Padded().attend(q[None], k[None], v[None], dropout)[0] for q, k, v in pieces), filled])


def attend_by_packed_kernel(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor
) -> Float[Tensor, "rows heads size"]:
    """PyTorch's kernel for sequences of mixed lengths: half precision on a GPU, without dropout."""
    # Imported here because it loads torch's compiler, which takes a second.
    from torch.nn.attention.varlen import varlen_attn

    longest_query, longest_key = max(queries.lengths), max(keys.lengths)
    mixed = varlen_attn(query, key, value, queries.starts, keys.starts, longest_query, longest_key)
    assert isinstance(mixed, Tensor)
    return mixed


def attend_on_padded_copy(
    queries: Packed, keys: Packed, query: Tensor, key: Tensor, value: Tensor, dropout: float
) -> Float[Tensor, "rows heads size"]:
    """Attention on a padded copy, for what the packed kernel does not support: dropout and fp32."""
    mixed = Padded(keys.is_real).attend(query[queries.places], key[keys.places], value[keys.places], dropout)
    return mixed.flatten(0, 1)[queries.filled_places]
