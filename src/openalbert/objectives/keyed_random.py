"""Random numbers that are a function of their key, the same bits in numpy and in torch, on CPU and on GPU.

Nothing is carried from draw to draw, so any example of any epoch can be made alone and at once: the number of workers,
ranks, restarts and micro-batches cannot matter. The generator is SplitMix64 (Steele, Lea and Flood, 2014), written in
signed 64-bit arithmetic, which wraps the same way everywhere. Draws are compared as integers: floats would differ
between devices.
"""

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

Ints = TypeVar("Ints", npt.NDArray[np.int64], Tensor)
"""64-bit integers, in either library."""

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_LOW_32 = (1 << 32) - 1
_FEISTEL_ROUNDS = 8


class Stream(IntEnum):
    """What a draw is for. Draws of different streams are independent; new ones are added at the end."""

    ORDER = 0
    SHORT = 1
    TARGET = 2
    CUT = 3
    SWAP = 4
    TRIM_FIRST = 5
    TRIM_SECOND = 6
    OTHER_DOCUMENT = 7
    OTHER_SENTENCE = 8
    MASK = 9
    REPLACE = 10
    SKIP = 11


def mix(x: Ints) -> Ints:
    """SplitMix64's finaliser: every bit of the result hangs on every bit of `x`, and no two `x` give the same."""
    # `>>` keeps the sign, so the bits that it would smear are cut off. In place: fresh memory costs more than the work.
    for shift, cut, factor in ((30, 0x3FFFFFFFF, _FIRST), (27, 0x1FFFFFFFFF, _SECOND)):
        mixed = x >> shift
        mixed &= cut
        mixed ^= x
        mixed *= factor
        x = mixed
    mixed = x >> 31
    mixed &= 0x1FFFFFFFF
    mixed ^= x
    return mixed


def root(seed: int, epoch: int, stream: Stream) -> int:
    """The key of everything that is drawn for one purpose in one epoch."""
    key = np.zeros(1, np.int64)
    for part in (seed, epoch, int(stream)):
        key = mix(key + np.int64(_GOLDEN) + np.array([part], np.int64))
    return int(key[0])


def bits(key: Ints | int, position: Ints) -> Ints:
    """64 random bits for each position under a key; `key` is one number or fits the shape of `position`."""
    # Element `position` of the SplitMix64 sequence that starts at `key`: mix(key + (position + 1) * golden), seeking
    # costs nothing. The complement says the same in one operation less, and keeps torch.compile from taking the
    # product for the index of a place in memory, for which it has only 32 bits.
    start = ~position * -_GOLDEN
    return mix(start + key)


def below(drawn: Ints, limit: Ints | int) -> Ints:
    """A number from 0 to limit - 1 out of the upper 32 bits. The bias is at most limit / 2**32: not to be seen."""
    return (((drawn >> 32) & _LOW_32) * limit) >> 32


def chance(drawn: npt.NDArray[np.int64], probability: float) -> npt.NDArray[np.bool_]:
    """True with the given probability, by the upper 32 bits."""
    happened: npt.NDArray[np.bool_] = ((drawn >> 32) & _LOW_32) < threshold(probability)
    return happened


def threshold(probability: float) -> int:
    """The number that 32 random bits stay below with the given probability."""
    return round(probability * (1 << 32))


def coin_flips(key: npt.NDArray[np.int64], flips: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of `flips` fair coins show heads, for each key: exactly binomial."""
    heads = np.zeros_like(flips)
    left = flips.copy()
    word = 0
    tossing = np.flatnonzero(left > 0)
    while len(tossing):
        drawn = bits(key[tossing], np.full(len(tossing), word, np.int64))
        # A shift by 64 is undefined, so a full word goes without one.
        unused = np.maximum(64 - left[tossing], 0).astype(np.uint64)
        heads[tossing] += np.bitwise_count(drawn.view(np.uint64) >> unused).astype(np.int64)
        left[tossing] -= 64
        tossing = tossing[left[tossing] > 0]
        word += 1
    return heads


def permuted(index: npt.NDArray[np.int64], size: int, key: int) -> npt.NDArray[np.int64]:
    """Where a random order of range(size) puts each index: one to one, and no table is kept.

    A Feistel network over a grid of rows x columns that holds at least `size` cells; whoever lands on a cell outside is
    sent on until he lands inside, which is rare since at most one row is not full.
    """
    rows = max(1, int(np.ceil(np.sqrt(size))))
    columns = -(-size // rows)
    result = np.array(index, np.int64)
    outside = np.arange(len(result))
    while len(outside):
        row, column = result[outside] // columns, result[outside] % columns
        for turn in range(_FEISTEL_ROUNDS):
            row = (row + below(bits(key, column * _FEISTEL_ROUNDS * 2 + 2 * turn), rows)) % rows
            column = (column + below(bits(key, row * _FEISTEL_ROUNDS * 2 + 2 * turn + 1), columns)) % columns
        result[outside] = row * columns + column
        outside = outside[result[outside] >= size]
    return result
