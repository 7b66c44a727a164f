"""Texts as ids, each once, and sequences put together from stretches of them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from openalbert.text.tokenizer import Tokenizer

TEXTS_AT_ONCE = SEQUENCES_AT_ONCE = 20_000
NONE = -1  # the length of a second part that there is not


class Texts:
    """Many texts, of which equal ones are tokenized once: a passage has several questions, a question its options."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def tokenize(self, tokenizer: Tokenizer) -> "Ids":
        """The ids of all of them, in the order of their numbers."""
        texts = list(self._numbers)
        parts = [
            tokenizer.encode_joined(texts[start : start + TEXTS_AT_ONCE])
            for start in range(0, len(texts), TEXTS_AT_ONCE)
        ]
        return Ids.of([ids for ids, _ in parts], [lengths for _, lengths in parts])


@dataclass(frozen=True)
class Ids:
    """The ids of some texts behind each other."""

    ids: Int32[np.ndarray, "tokens"]
    starts: Int64[np.ndarray, "texts"]
    lengths: Int64[np.ndarray, "texts"]

    @classmethod
    def of(cls, ids: Iterable[np.ndarray], lengths: Iterable[np.ndarray]) -> "Ids":
        """From parts of them."""
        joined = np.concatenate([np.empty(0, np.int32), *ids])
        counts = np.concatenate([np.empty(0, np.int64), *lengths])
        return cls(joined, np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class Rows:
    """What sequences are to be made of: a stretch of ids each, and for pairs a second one."""

    first_start: Int64[np.ndarray, "sequences"]
    first_length: Int64[np.ndarray, "sequences"]
    second_start: Int64[np.ndarray, "sequences"]
    second_length: Int64[np.ndarray, "sequences"]
    """-1 where there is no second part, which is not the same as an empty one."""

    def put_together(
        self, ids: Int32[np.ndarray, "tokens"], tokenizer: Tokenizer
    ) -> tuple[Int32[np.ndarray, "all_tokens"], Int64[np.ndarray, "sequences_and_end"], Int64[np.ndarray, "sequences"]]:
        """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`: ids, starts, and where each second part begins."""
        is_pair = self.second_length != NONE
        second_length = np.maximum(self.second_length, 0)
        second = self.first_length + 2
        lengths = second + np.where(is_pair, second_length + 1, 0)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        out = np.full(starts[-1], tokenizer.sep_id, np.int32)
        out[starts[:-1]] = tokenizer.cls_id
        # Block by block: the places of all tokens at once would take several times the memory of the tokens.
        for start in range(0, len(lengths), SEQUENCES_AT_ONCE):
            block = slice(start, start + SEQUENCES_AT_ONCE)
            first_length, begin = self.first_length[block], starts[:-1][block]
            out[stretches(begin + 1, first_length)] = ids[stretches(self.first_start[block], first_length)]
            into = stretches(begin + second[block], second_length[block])
            out[into] = ids[stretches(self.second_start[block], second_length[block])]
        return out, starts, second


def stretches(starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "total"]:
    """The numbers of all places in some stretches, one stretch after another."""
    before = np.cumsum(lengths) - lengths
    places: np.ndarray = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return places
