"""Sentence order (paper, section 3.1): make pairs of consecutive segments, swapped or not.

Pairs are made from the sentence and document starts of a shard, for a whole epoch at once: sentences of one document
fill a chunk, the chunk is cut into two segments between sentences, and the segments are swapped at random and trimmed
to the length. Every draw is keyed by (seed, epoch, number of the chunk's first sentence), so every epoch has its own
pairs. Google's chunks are the same in every epoch unless examples are shortened or nsp puts segments back.

For nsp, the second segment of a chunk is replaced by that of a chunk of another document with as many tokens and
sentences: both classes have the same lengths, so lengths do not reveal the label. With the objective none, a sentence
without a partner is an example of one segment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from openalbert.errors import UserError
from openalbert.objectives.keyed_random import Ints, Stream, below, bits, chance, coin_flips, root

SPECIAL_TOKENS = 3  # [CLS] first [SEP] second [SEP]; an example of one segment has no second [SEP]
SHORTEST = SPECIAL_TOKENS + 2


@dataclass(frozen=True)
class SentenceOrder:
    """Which pairs of segments a model reads, and what it predicts about them.

    A chunk takes at least two sentences, so only the last sentence of a document can be left without a partner. With
    the objective none it is an example of its own, `[CLS] sentence [SEP]`; sop and nsp cannot use it.
    Google's builder also has chunks of one sentence and fills them up from another document: NSP leaks into SOP.
    """

    objective: Literal["sop", "nsp", "none"] = "sop"
    """sop: are the segments swapped; nsp: is the second from another document; none: in order, without a loss."""
    weight: float = 1.0
    """Weight of the SOP loss relative to the MLM loss."""
    short_fraction: float = 0.1
    """Fraction of examples with a random shorter target length."""
    chunks: Literal["google", "whole"] = "google"
    """google: a chunk takes sentences until it reaches or exceeds its length, and the excess is trimmed off the
    segments. The sentence that exceeds it is likely long, and always the last: sentence lengths reveal the order.
    whole: it takes the whole sentences that fit, and skips the one that does not, and another one half of the time, so
    that chunks do not reveal the order."""
    lone_sentences: Literal["drop", "google"] = "drop"
    """drop: a sentence without a partner is dropped (objective none: it is an example of one segment); google: it is
    paired with another document and labelled swapped."""

    def __post_init__(self) -> None:
        if not 0 <= self.short_fraction <= 1:
            raise UserError(f"short_fraction is {self.short_fraction} but a fraction lies between 0 and 1")
        if not 0 < self.weight < math.inf:
            raise UserError(f"weight is {self.weight}: it must be above 0, and finite; objective none has no SOP loss")


PAIR = np.dtype(
    [
        ("first_begin", np.int64),
        ("first_length", np.int32),
        ("second_begin", np.int64),
        ("second_length", np.int32),
        ("swapped", np.bool_),
        ("example", np.int64),
    ]
)
"""An example: its segments in tokens of the corpus; its label, swapped (sop) or not the next segment (nsp); and the
number of its first sentence in the corpus, the key of all draws. An example of one segment has a second one of length
0."""


@dataclass(frozen=True)
class Pairs:
    """The examples of an epoch, and what was left out."""

    rows: Shaped[np.ndarray, "E"]
    """Of type PAIR."""
    short_documents: int
    """Documents of one sentence, which cannot make a pair."""
    short_tokens: int
    """Their tokens."""
    lone_sentences: int
    """Sentences dropped for lack of a partner, including short documents."""
    lone_tokens: int
    """Their tokens."""
    trimmed_tokens: int
    """Tokens cut off the segments to fit the length."""
    passed_over_tokens: int = 0
    """Tokens between chunks of whole sentences that this epoch skips."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Int64[np.ndarray, "E"]:
        """Tokens of each example, including special ones."""
        lengths: npt.NDArray[np.int64] = example_length(
            self.rows["first_length"].astype(np.int64), self.rows["second_length"].astype(np.int64)
        )
        return lengths

    @staticmethod
    def joined(shards: "Sequence[Pairs]") -> "Pairs":
        """Concatenate the pairs of several shards."""
        counts = [field.name for field in fields(Pairs) if field.name != "rows"]
        sums = {name: sum(getattr(pairs, name) for pairs in shards) for name in counts}
        return Pairs(np.concatenate([pairs.rows for pairs in shards]), **sums)


def example_length(first: Ints, second: Ints) -> Ints:
    """Tokens of `[CLS] first [SEP] second [SEP]`, and of `[CLS] first [SEP]` where the second segment is empty."""
    return first + second + (SPECIAL_TOKENS - 1) + (second > 0)


def pair(
    sentence_starts: Int64[np.ndarray, "_"],
    document_starts: Int64[np.ndarray, "_"],
    settings: SentenceOrder,
    max_length: int,
    seed: int,
    epoch: int,
    first_sentence: int = 0,
    first_token: int = 0,
) -> Pairs:
    """All examples of one shard in one epoch; the last two arguments are the start of the shard in the corpus."""
    shard = _Marks(np.asarray(sentence_starts), np.asarray(document_starts), _Draws(seed, epoch, first_sentence))
    limit = max_length - SPECIAL_TOKENS
    targets, begin, end = _chunks(shard, settings, limit)
    in_chunks = shard.starts[end] - shard.starts[begin]
    is_read_once = settings.objective != "nsp"  # nsp puts segments back
    passed_over = shard.starts[-1] - shard.starts[0] - in_chunks.sum() if is_read_once else 0
    alone = end - begin < 2
    # Google's rule needs another document; where there is none, the lone sentence is dropped.
    is_filled_up = settings.lone_sentences == "google" and shard.num_documents > 1
    is_single = settings.objective == "none" and not is_filled_up
    if is_filled_up or is_single:
        lone = begin[:0]
    else:
        lone, begin, end, alone = begin[alone], begin[~alone], end[~alone], alone[~alone]

    cut = np.where(alone, end, _cuts(shard, begin, end))
    first = [shard.starts[begin], shard.starts[cut]]
    second = [shard.starts[cut], shard.starts[end]]
    toss = chance(shard.draw(Stream.SWAP, begin), 0.5)
    foreign = alone & is_filled_up
    exchanged = toss & ~alone if settings.objective == "sop" else np.zeros_like(toss)
    needs_filling = foreign
    if settings.objective == "nsp":
        foreign = alone | toss
        other = _chunk_of_other_document(shard, begin, cut, end, limit)
        has_other = foreign & (other >= 0)
        for own_border, border in zip(second, (shard.starts[cut], shard.starts[end]), strict=True):
            own_border[has_other] = border[other[has_other]]
        needs_filling = foreign & (other < 0)
    if needs_filling.any():
        where = np.flatnonzero(needs_filling)
        wanted = targets[begin[where]] - (first[1] - first[0])[where]
        second[0][where], second[1][where] = _from_other_document(shard, begin[where], wanted)
    first, second = (
        [np.where(exchanged, b, a) for a, b in zip(first, second, strict=True)],
        [np.where(exchanged, a, b) for a, b in zip(first, second, strict=True)],
    )

    off_first, off_second = trim(first[1] - first[0], second[1] - second[0], limit + (alone & is_single))
    rows = np.empty(len(begin), PAIR)
    rows["first_begin"] = first[0] + coin_flips(shard.draw(Stream.TRIM_FIRST, begin), off_first) + first_token
    rows["first_length"] = first[1] - first[0] - off_first
    rows["second_begin"] = second[0] + coin_flips(shard.draw(Stream.TRIM_SECOND, begin), off_second) + first_token
    rows["second_length"] = second[1] - second[0] - off_second
    rows["swapped"] = exchanged | foreign
    rows["example"] = begin + first_sentence
    is_short = np.isin(lone, shard.documents)  # a lone sentence that begins its document is the whole document
    lone_lengths = shard.starts[lone + 1] - shard.starts[lone]
    return Pairs(
        rows,
        short_documents=int(is_short.sum()),
        short_tokens=int(lone_lengths[is_short].sum()),
        lone_sentences=len(lone),
        lone_tokens=int(lone_lengths.sum()),
        trimmed_tokens=int((off_first + off_second).sum()),
        passed_over_tokens=int(passed_over),
    )


@dataclass(frozen=True)
class _Draws:
    """Random bits for the sentences of a shard, keyed by their number in the corpus."""

    seed: int
    epoch: int
    first_sentence: int

    def __call__(self, stream: Stream, sentence: Int64[np.ndarray, "_"]) -> Int64[np.ndarray, "_"]:
        return bits(root(self.seed, self.epoch, stream), sentence + self.first_sentence)


@dataclass(frozen=True)
class _Marks:
    """The sentence and document starts of a shard, and their random draws."""

    starts: Int64[np.ndarray, "_"]
    documents: Int64[np.ndarray, "_"]
    draw: _Draws

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1


def _chunks(
    shard: _Marks, settings: SentenceOrder, limit: int
) -> tuple[Int64[np.ndarray, "N"], Int64[np.ndarray, "C"], Int64[np.ndarray, "C"]]:
    """The target length of a chunk for each possible first sentence, and begin and end of the chunks, in sentences.

    A chunk takes at least two sentences, except by Google's rule for lone ones, so that only the last sentence of a
    document can be left alone. What is longer than its target is trimmed later.
    """
    sentences = np.arange(len(shard.starts) - 1)
    targets = np.full(len(sentences), limit)
    short = np.flatnonzero(chance(shard.draw(Stream.SHORT, sentences), settings.short_fraction))
    targets[short] = 2 + below(shard.draw(Stream.TARGET, short), limit - 1)
    document_end = np.repeat(shard.documents[1:], np.diff(shard.documents))
    least = 2 if settings.lone_sentences == "drop" else 1
    if settings.chunks == "google":
        end = np.searchsorted(shard.starts, shard.starts[:-1] + targets)
        following = end = np.minimum(np.maximum(end, sentences + least), document_end)
    else:
        fitting = np.searchsorted(shard.starts, shard.starts[:-1] + targets, side="right") - 1
        end = np.minimum(np.maximum(fitting, sentences + least), document_end)
        # The sentence that did not fit is likely long, so it must not begin the next chunk or have another fixed place.
        # At random one more is skipped: otherwise every epoch would skip the same ones.
        passed_over = 1 + chance(shard.draw(Stream.SKIP, sentences), 0.5)
        following = np.minimum(end + (end == fitting) * passed_over, document_end)
    if settings.objective == "nsp":
        if shard.num_documents == 1:
            raise UserError(
                "nsp takes second segments from other documents of the same shard but a shard has a single document: "
                "use sop, or prepare the text again with an empty line between documents or a larger --shard-tokens"
            )
        # A segment that is replaced by another document is put back and begins the next chunk.
        gives_way = chance(shard.draw(Stream.SWAP, sentences), 0.5) & (end - sentences > 1)
        following = np.where(gives_way, _cuts(shard, sentences, end), end)
    # The last chunk of a document ends where the next document begins, so all chunks of a shard are one chain.
    chain, sentence, steps = [], 0, following.data
    while sentence < len(sentences):
        chain.append(sentence)
        sentence = steps[sentence]
    begin = np.array(chain, np.int64)
    return targets, begin, end[begin]


def _cuts(shard: _Marks, begin: Int64[np.ndarray, "C"], end: Int64[np.ndarray, "C"]) -> Int64[np.ndarray, "C"]:
    """Where each chunk is cut: uniform over the boundaries between its sentences."""
    borders = np.maximum(end - begin - 1, 1)
    cuts: npt.NDArray[np.int64] = begin + 1 + below(shard.draw(Stream.CUT, begin), borders)
    return cuts


def _chunk_of_other_document(
    shard: _Marks,
    begin: Int64[np.ndarray, "C"],
    cut: Int64[np.ndarray, "C"],
    end: Int64[np.ndarray, "C"],
    limit: int,
) -> Int64[np.ndarray, "C"]:
    """For each chunk one of another document whose second segment has as many tokens and sentences.

    It is drawn from all such chunks; if there are none, it is the one with the nearest number of tokens. -1 for a lone
    sentence, and if all chunks of the shard are of one document.
    """
    document = np.searchsorted(shard.documents, begin, side="right") - 1
    # Segments that are too long for an example are all trimmed to the same length.
    tokens = np.minimum(shard.starts[end] - shard.starts[cut], limit)
    size = tokens * (int((end - cut).max(initial=0)) + 1) + (end - cut)
    result = np.full(len(begin), -1)
    has_second = np.flatnonzero(cut < end)
    # Sorted by size, and by document within one size, since chunks are in the order of documents.
    order = has_second[np.argsort(size[has_second], kind="stable")]
    turns = np.flatnonzero(np.diff(document[order])) + 1  # where the document changes
    if not len(turns):
        return result
    new_size = np.flatnonzero(np.diff(size[order])) + 1
    own_begin, own_end = _runs(np.union1d(turns, new_size), len(order))
    size_begin, size_end = _runs(new_size, len(order))
    others = size_end - size_begin - (own_end - own_begin)
    drawn = size_begin + below(shard.draw(Stream.OTHER_SENTENCE, begin[order]), np.maximum(others, 1))
    drawn += (drawn >= own_begin) * (own_end - own_begin)

    # The nearest of another document are before and after this document's run in the sorted order.
    run_begin, run_end = _runs(turns, len(order))
    lengths, first = tokens[order], (shard.starts[cut] - shard.starts[begin])[order]
    before, behind = np.maximum(run_begin - 1, 0), np.minimum(run_end, len(order) - 1)
    longest = np.maximum(first + lengths, limit)
    is_behind = (lengths[behind] - lengths < lengths - lengths[before]) & (first + lengths[behind] <= longest)
    is_behind = (is_behind | (run_begin == 0)) & (run_end < len(order))
    result[order] = order[np.where(others > 0, drawn, np.where(is_behind, behind, before))]
    return result


def _runs(borders: Int64[np.ndarray, "_"], size: int) -> tuple[Int64[np.ndarray, "P"], Int64[np.ndarray, "P"]]:
    """Begin and end of the run of each of `size` places; a run begins at each border."""
    edges = np.concatenate([[0], borders, [size]])
    lengths = np.diff(edges)
    return np.repeat(edges[:-1], lengths), np.repeat(edges[1:], lengths)


def _from_other_document(
    shard: _Marks, begin: Int64[np.ndarray, "C"], wanted: Int64[np.ndarray, "C"]
) -> tuple[Int64[np.ndarray, "C"], Int64[np.ndarray, "C"]]:
    """Begin and end, in tokens, of sentences of another document of the shard, from a random sentence on."""
    own = np.searchsorted(shard.documents, begin, side="right") - 1
    other = below(shard.draw(Stream.OTHER_DOCUMENT, begin), shard.num_documents - 1)
    other += other >= own
    from_, to = shard.documents[other], shard.documents[other + 1]
    sentence = from_ + below(shard.draw(Stream.OTHER_SENTENCE, begin), to - from_)
    end = np.minimum(np.searchsorted(shard.starts, shard.starts[sentence] + np.maximum(wanted, 1)), to)
    return shard.starts[sentence], shard.starts[end]


def trim(
    first: Int64[np.ndarray, "E"], second: Int64[np.ndarray, "E"], limit: int | Int64[np.ndarray, "E"]
) -> tuple[Int64[np.ndarray, "E"], Int64[np.ndarray, "E"]]:
    """How many tokens to remove from each segment until the pair fits.

    Google removes one token at a time from the longer segment, from the second if both are equal. So the longer one is
    first cut to the length of the shorter, and the rest is divided equally, the odd token going to the second segment.
    Each token is removed from the front or the back at random, so the number from the front is binomial.
    """
    excess = np.maximum(first + second - limit, 0)
    difference = first - second
    from_longer = np.minimum(excess, np.abs(difference))
    off_first = np.where(difference > 0, from_longer, 0) + (excess - from_longer) // 2
    return off_first, excess - off_first


def assemble(
    tokens: Int[Tensor, "tokens"], segments: Int64[Tensor, "batch 4"], max_length: int, cls_id: int, sep_id: int
) -> Int64[Tensor, "batch length"]:
    """`[CLS] first [SEP] second [SEP]` of each row (begin and length of both segments), padded with <pad>, which is 0.

    A second segment of length 0 has no [SEP].
    Tokens of 16 bits come as int16, since torch cannot gather unsigned ones; all ids are read as unsigned.
    """
    first_begin, first_length, second_begin, second_length = segments[:, :, None].unbind(1)
    place = torch.arange(max_length, device=segments.device)
    first_end = first_length + 1
    end = example_length(first_length, second_length) - 1
    source = (place > first_end).long()
    source *= second_begin - first_begin - first_end
    source += place
    source += first_begin - 1
    # Places without text read some token too, so that shapes stay fixed; it is overwritten.
    ids = tokens.index_select(0, source.clamp_(0, len(tokens) - 1).flatten()).long().view(source.shape)
    if tokens.dtype == torch.int16:
        ids &= 0xFFFF
    ids *= (place <= end).long()
    ids[:, 0] = cls_id
    return ids.scatter_(1, torch.cat([first_end, end], 1), sep_id)
