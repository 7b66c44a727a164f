import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openalbert.objectives.keyed_random import Stream, below, bits, chance, coin_flips, mix, permuted, root

INT64 = st.integers(-(2**63), 2**63 - 1)


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """How many standard deviations the statistic lies above its mean; by chance it is over 5 once in a million."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def test_the_sequence_is_splitmix64() -> None:
    # The first numbers of SplitMix64 from seed 1234567, as published with many of its implementations.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert bits(1234567, np.arange(5)).view(np.uint64).tolist() == published


def splitmix64(state: int) -> int:
    """One step of SplitMix64 in Python's integers: what the generator gives in this state, before it moves on."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(seed=st.integers(0, 2**31), epoch=st.integers(0, 2**31), stream=st.sampled_from(Stream))
def test_the_key_of_a_stream_is_three_steps_of_splitmix64(seed: int, epoch: int, stream: Stream) -> None:
    # Another key would be another order and other masks: a run could not be resumed by a later version.
    state = 0
    for part in (seed, epoch, stream.value):
        state = splitmix64((state + part) % 2**64)
    assert root(seed, epoch, stream) % 2**64 == state


def test_no_two_streams_have_the_same_draws() -> None:
    streams = Stream.__members__  # aliases too, which a list of the enum leaves out
    assert len({root(1, 2, stream) for stream in streams.values()}) == len(streams)


@given(key=INT64, positions=st.lists(INT64, min_size=1, max_size=20), limit=st.integers(1, 2**31 - 1))
def test_numpy_and_torch_draw_the_same_bits(key: int, positions: list[int], limit: int) -> None:
    places = np.array(positions)
    drawn = bits(key, places)
    assert np.array_equal(bits(key, torch.tensor(positions)).numpy(), drawn)
    assert np.array_equal(below(torch.from_numpy(drawn), limit).numpy(), below(drawn, limit))
    assert ((below(drawn, limit) >= 0) & (below(drawn, limit) < limit)).all()


@given(x=st.lists(INT64, min_size=2, max_size=50, unique=True))
def test_mix_never_gives_two_numbers_the_same(x: list[int]) -> None:
    assert len(set(mix(np.array(x)).tolist())) == len(x)


@pytest.mark.parametrize("what", ["position", "example", "epoch", "stream", "seed"])
def test_draws_are_even_and_independent_whatever_runs_through(what: str) -> None:
    n = 20_000
    drawn = {
        "position": lambda: bits(root(1, 2, Stream.MASK), np.arange(n)),
        "example": lambda: bits(bits(root(1, 2, Stream.MASK), np.arange(n)), np.full(n, 7)),
        "epoch": lambda: np.array([bits(root(1, e, Stream.MASK), np.array([3]))[0] for e in range(n)]),
        "stream": lambda: np.stack([bits(root(1, 2, s), np.arange(n // 10)) for s in list(Stream)[:10]], 1).ravel(),
        "seed": lambda: np.array([bits(root(s, 2, Stream.MASK), np.array([3]))[0] for s in range(n)]),
    }[what]()
    assert chi_square(np.bincount(below(drawn, 50), minlength=50), n / 50) < 5
    # Each of the 64 bits is set half of the time.
    set_bits = ((drawn[:, None] >> np.arange(64)) & 1).mean(0)
    assert np.abs(set_bits - 0.5).max() < 5 * 0.5 / np.sqrt(n)
    uniform = (drawn >> 11) / 2.0**53
    for lag in (1, 2, 3, 10):
        assert abs(np.corrcoef(uniform[:-lag], uniform[lag:])[0, 1]) < 5 / np.sqrt(n)


def test_chance_has_its_probability() -> None:
    drawn = bits(5, np.arange(100_000))
    assert chance(drawn, 0.1).mean() == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 1e5))
    assert not chance(drawn, 0.0).any()
    assert chance(drawn, 1.0).all()


@given(size=st.integers(1, 3000), key=INT64)
def test_an_order_holds_everything_once(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 10**12), key=INT64, index=st.integers(0, 10**12 - 1))
def test_an_order_is_known_at_any_place_alone(size: int, key: int, index: int) -> None:
    index %= size
    alone = permuted(np.array([index]), size, key)
    among = permuted(np.array([0, index, size - 1]), size, key)
    assert alone[0] == among[1]
    assert 0 <= alone[0] < size


def test_all_orders_come_up_equally_often() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(6_000):
        order = tuple(permuted(np.arange(4), 4, root(key, 0, Stream.ORDER)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert chi_square(np.array(list(counts.values())), 250) < 5


def test_neighbours_are_strangers_after_shuffling() -> None:
    order = permuted(np.arange(100_000), 100_000, 9)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(1e5)
    assert abs(np.corrcoef(np.arange(100_000), order)[0, 1]) < 5 / np.sqrt(1e5)


@given(flips=st.lists(st.integers(0, 300), min_size=1, max_size=20), key=INT64)
def test_heads_are_at_most_flips_and_hang_on_their_key_alone(flips: list[int], key: int) -> None:
    tossed = np.array(flips)
    keys = bits(key, np.arange(len(flips)))
    heads = coin_flips(keys, tossed)
    assert ((heads >= 0) & (heads <= tossed)).all()
    assert np.array_equal(heads[-1:], coin_flips(keys[-1:], tossed[-1:]))


@pytest.mark.parametrize("flips", [1, 5, 63, 64, 65, 128, 1000])
def test_heads_are_binomial(flips: int) -> None:
    n = 20_000
    heads = coin_flips(bits(3, np.arange(n)), np.full(n, flips))
    variance = flips / 4
    assert heads.mean() == pytest.approx(flips / 2, abs=5 * np.sqrt(variance / n))
    assert heads.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / n))


@given(flips=st.integers(0, 300), key=INT64)
def test_heads_are_the_bits_set_among_the_first_of_the_keys_sequence(flips: int, key: int) -> None:
    words = [splitmix64((key + number * 0x9E3779B97F4A7C15) % 2**64) for number in range(5)]
    sequence = "".join(f"{word:064b}" for word in words)
    assert coin_flips(np.array([key]), np.array([flips])).tolist() == [sequence[:flips].count("1")]
