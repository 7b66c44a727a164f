"""Overlapping windows over long passages, and the way from their tokens back to the passage's characters.

An answer is a span of the passage's own characters: the tokenizer's offsets lead there, nothing is decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32

from openalbert.tasks.task import QuestionExample, Sequences
from openalbert.text.tokenizer import Tokenizer

UNOWNED = np.iinfo(np.int32).max  # tokens: no span that starts here belongs to this window


@dataclass(frozen=True)
class Windows:
    """The position in its passage of every token of some `Sequences`."""

    begin: Int32[np.ndarray, "tokens"]
    """The token's first character; -1 for tokens outside the passage or without visible text."""
    end: Int32[np.ndarray, "tokens"]
    """The end of its last character, exclusive."""
    owned_from: Int32[np.ndarray, "tokens"]
    """The shortest span, in tokens, that starts here and is scored in this window. Every span is scored in one window:
    of all that contain it whole, the one with the most context around its first token."""
    answer_tokens: Int32[np.ndarray, "questions"]
    """Length of the shortest gold answer that is whole in a window; 0 where there is none."""
    is_cut: Bool[np.ndarray, "questions"]
    """Whether the question itself was truncated."""


@dataclass(frozen=True)
class Passage:
    """A tokenized passage."""

    ids: Int32[np.ndarray, "tokens"]
    begin: Int32[np.ndarray, "tokens"]
    end: Int32[np.ndarray, "tokens"]

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> "Passage":
        """Tokenize a passage; pieces without visible text have no position in it."""
        encoding = tokenizer.encode_with_offsets(text)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        is_visible = offsets[:, 0] < offsets[:, 1]
        return cls(
            np.array(encoding.ids, np.int32),
            np.where(is_visible, offsets[:, 0], np.int32(-1)),
            np.where(is_visible, offsets[:, 1], np.int32(-1)),
        )

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that overlap these characters; None where no token does."""
        (inside,) = np.nonzero((self.begin < end) & (self.end > start) & (self.begin >= 0))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None


def split_into_windows(num_tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Start and length of the windows over a passage; each token is in at least one.

    A window starts no later than the middle of the previous one: an answer across the border of two windows that only
    touch would be whole in neither, and models with few positions have windows shorter than the usual stride.
    """
    step = min(stride, max(1, room // 2))
    start = 0
    while True:
        length = min(room, num_tokens - start)
        yield start, length
        if start + length >= num_tokens:
            return
        start += step


def spread_windows(num_tokens: int, room: int) -> list[tuple[int, int]]:
    """Start and length of the windows over a text that is classified: as few as cover it, spread evenly.

    Neighbours overlap by an eighth of a window at least, so that a phrase at a border is whole in one of them. All have
    the full length: a short rest would count as much as the others.
    """
    if num_tokens <= room:
        return [(0, num_tokens)]
    step = room - room // 8
    last = num_tokens - room
    count = -(-last // step)
    return [(last * number // count, room) for number in range(count + 1)]


def assign_spans(windows: Sequence[tuple[int, int]]) -> list[Int32[np.ndarray, "_"]]:
    """`Windows.owned_from` for each window: spans go to the window with the most context for their first token.

    Context is the shorter of the two sides plus a hundredth of the window's length, as in BERT's code; ties go to the
    first window. BERT drops a span that this window does not contain whole. Here it goes to the next window that does.
    """
    num_tokens = windows[-1][0] + windows[-1][1]
    best = np.full(num_tokens, -1.0)
    owner = np.zeros(num_tokens, np.int64)
    for number, (start, length) in enumerate(windows):
        place = np.arange(length)
        context = np.minimum(place, length - 1 - place) + 0.01 * length
        inside = slice(start, start + length)
        is_better = context > best[inside]
        owner[inside] = np.where(is_better, number, owner[inside])
        best[inside] = np.where(is_better, context, best[inside])
    found = []
    for number, (start, length) in enumerate(windows):
        tokens = np.arange(start, start + length)
        reached = sum(windows[number - 1]) if number else 0
        # After the owner, context only falls: a span that the previous window contains is never this one's. Windows
        # before the owner end earlier than it.
        later = np.where(owner[tokens] < number, reached - tokens + 1, UNOWNED)
        found.append(np.where(owner[tokens] == number, 1, later).astype(np.int32))
    return found


def answer_spans(example: QuestionExample, passage: Passage) -> list[tuple[int, int]]:
    """First and last token of each gold answer that has any."""
    spans = [passage.tokens_of(answer.start, answer.start + len(answer.text)) for answer in example.answers]
    return [span for span in spans if span is not None]


def span_targets(
    spans: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]], offset: int
) -> list[tuple[int, int]]:
    """First and last token of the answer in each window, which starts at token `offset` of its sequence.

    It is the first answer that is whole in any window. 0 and 0 where it is not whole in this one.
    """
    for first, last in spans:
        is_whole = [start <= first and last < start + length for start, length in windows]
        if any(is_whole):
            return [
                (offset + first - start, offset + last - start) if whole else (0, 0)
                for (start, _), whole in zip(windows, is_whole, strict=True)
            ]
    return [(0, 0)] * len(windows)


def shortest_whole_span(spans: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]]) -> int:
    """Tokens of the shortest of these spans that is whole in a window; 0 for none."""
    lengths = [
        last - first + 1
        for first, last in spans
        if any(start <= first and last < start + length for start, length in windows)
    ]
    return min(lengths, default=0)


def select_questions(
    sequences: Sequences, windows: Windows, kept: Bool[np.ndarray, "questions"]
) -> tuple[Sequences, Windows]:
    """The sequences and windows of some of the questions, as if they had been encoded alone."""
    stays = kept[sequences.example]
    tokens = np.repeat(stays, sequences.lengths)
    is_cut = windows.is_cut[kept]
    some = Sequences(
        ids=sequences.ids[tokens],
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(sequences.lengths[stays])]),
        second=sequences.second[stays],
        example=(np.cumsum(kept) - 1)[sequences.example[stays]],
        targets={kind: rows[stays] for kind, rows in sequences.targets.items()},
        num_examples=int(kept.sum()),
        num_truncated=int(is_cut.sum()),
    )
    answer_tokens = windows.answer_tokens[kept]
    return some, Windows(windows.begin[tokens], windows.end[tokens], windows.owned_from[tokens], answer_tokens, is_cut)
