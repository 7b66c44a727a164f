"""Stateless random numbers: a function of a key, with the same bits in numpy and torch, on CPU and GPU.

Since there is no state, any example of any epoch can be made independently: the number of workers, ranks, restarts and
micro-batches does not matter. The generator is SplitMix64 (Steele, Lea and Flood, 2014) in signed 64-bit arithmetic,
which wraps the same way everywhere. Draws are compared as integers, since floats would differ between devices.
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
    """The purpose of a draw. Draws of different streams are independent; new streams are added at the end."""

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
    """SplitMix64's finalizer: a bijection in which every output bit depends on every input bit."""
    # `>>` extends the sign, so its bits are masked. In place, because allocation costs more than the arithmetic.
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
    """The key of all draws for one purpose in one epoch."""
    key = np.zeros(1, np.int64)
    for part in (seed, epoch, int(stream)):
        key = mix(key + np.int64(_GOLDEN) + np.array([part], np.int64))
    return int(key[0])


def bits(key: Ints | int, position: Ints) -> Ints:
    """64 random bits for each position under a key, which is one number or broadcasts with `position`."""
    # Element `position` of the SplitMix64 sequence that starts at `key`: mix(key + (position + 1) * golden). With the
    # complement it takes one operation less, and torch.compile does not treat the product as a 32-bit memory index.
    start = ~position * -_GOLDEN
    return mix(start + key)


def below(drawn: Ints, limit: Ints | int) -> Ints:
    """A number from 0 to limit - 1 from the upper 32 bits. The bias is at most limit / 2**32, which is negligible."""
    return (((drawn >> 32) & _LOW_32) * limit) >> 32


def chance(drawn: npt.NDArray[np.int64], probability: float) -> npt.NDArray[np.bool_]:
    """True with the given probability, by the upper 32 bits."""
    result: npt.NDArray[np.bool_] = ((drawn >> 32) & _LOW_32) < threshold(probability)
    return result


def threshold(probability: float) -> int:
    """The number that 32 random bits are below with the given probability."""
    return round(probability * (1 << 32))


def coin_flips(key: npt.NDArray[np.int64], flips: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of heads among `flips` fair coins for each key: exactly binomial."""
    heads = np.zeros_like(flips)
    left = flips.copy()
    word = 0
    tossing = np.flatnonzero(left > 0)
    while len(tossing):
        drawn = bits(key[tossing], np.full(len(tossing), word, np.int64))
        # A shift by 64 is undefined, so full words are not shifted.
        unused = np.maximum(64 - left[tossing], 0).astype(np.uint64)
        heads[tossing] += np.bitwise_count(drawn.view(np.uint64) >> unused).astype(np.int64)
        left[tossing] -= 64
        tossing = tossing[left[tossing] > 0]
        word += 1
    return heads


def permuted(index: npt.NDArray[np.int64], size: int, key: int) -> npt.NDArray[np.int64]:
    """The position of each index in a random permutation of range(size), without a table.

    A Feistel network over a grid of rows x columns with at least `size` cells; an index that lands outside is mapped
    again until it lands inside, which is rare since at most one row is not full.
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
