"""Packed batches: every example once an epoch, whatever the cut; together what belongs together; resumed anywhere."""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.finetuning.made_sequences import made_sequences

from openalbert.errors import UserError
from openalbert.finetuning.batches import PackedBatch, Packing, filled

CHOICES = {"multiple_choice": 1}


def packing(num_examples: int = 20, batch_size: int = 6, tokens_at_a_time: int = 10**6, **changes: object) -> Packing:
    options = (4, 2, 3) if changes.pop("choices", False) else (1,)
    heads = CHOICES if options != (1,) else {"classification": 3}
    sequences = made_sequences(heads, num_examples, options)
    return Packing(sequences, batch_size, seed=7, tokens_at_a_time=tokens_at_a_time, **changes)  # type: ignore[arg-type]


def sequences_of(batch: PackedBatch) -> list[tuple[int, ...]]:
    return [tuple(piece.tolist()) for piece in batch.tokens.split(batch.lengths)]


def original(source: Packing) -> list[tuple[int, ...]]:
    return [tuple(piece.tolist()) for piece in np.split(source.sequences.ids, source.sequences.starts[1:-1])]


@settings(deadline=None, max_examples=40)
@given(
    num_examples=st.integers(1, 30),
    batch_size=st.integers(1, 40),
    tokens=st.integers(1, 400),
    choices=st.booleans(),
    micro_batches=st.integers(1, 5),
    most=st.none() | st.integers(1, 5),
)
def test_an_epoch_is_every_example_once_however_it_is_cut(
    num_examples: int, batch_size: int, tokens: int, choices: bool, micro_batches: int, most: int | None
) -> None:
    source = packing(num_examples, batch_size, tokens, choices=choices, units_at_a_time=most)
    epochs = 3
    steps = -(-epochs * num_examples // batch_size)
    batches = [batch for step in range(steps) for batch in source.at(step, micro_batches=micro_batches)]
    assert sum(map(len, batches)) == steps * batch_size
    seen = Counter(sequence for batch in batches for sequence in sequences_of(batch))
    for sequence, times in Counter(original(source)).items():
        assert times * (steps * batch_size // num_examples) <= seen[sequence]
        assert seen[sequence] <= times * -(-steps * batch_size // num_examples)
    bound = max(1, source.tokens_at_a_time // micro_batches)
    for batch in batches:
        assert len(batch) == 1 or len(batch.tokens) <= bound
        assert len(batch) <= (most or batch_size)


def test_the_options_of_a_choice_stay_together_in_their_order_with_their_targets() -> None:
    source = packing(choices=True, tokens_at_a_time=60)
    whole = original(source)
    rows = [0, *np.cumsum(source._options).tolist()]
    by_example = [tuple(whole[begin:end]) for begin, end in pairwise(rows)]
    right = source.sequences.targets["multiple_choice"]
    for step in range(7):
        for batch in source.at(step):
            places = iter(zip(sequences_of(batch), batch.targets["multiple_choice"].tolist(), strict=True))
            for options in batch.options:
                group = list(islice(places, options))
                example = by_example.index(tuple(tokens for tokens, _ in group))
                assert [target for _, target in group] == right[rows[example] : rows[example + 1]].tolist()


def test_tokens_segments_and_targets_of_a_sequence_go_together() -> None:
    source = packing()
    whole, second = original(source), source.sequences.second
    labels = source.sequences.targets["classification"]
    [batch] = source.at(3)
    for tokens, segments, label in zip(
        sequences_of(batch), batch.segments.split(batch.lengths), batch.targets["classification"], strict=True
    ):
        number = whole.index(tokens)
        assert segments.tolist() == [int(place >= second[number]) for place in range(len(tokens))]
        assert label == labels[number]


def test_the_ranks_of_a_run_share_a_step_and_its_tokens_evenly() -> None:
    source = packing(200, 64)
    [whole] = source.at(5)
    shares = [source.at(5, rank, 4)[0] for rank in range(4)]
    assert Counter(sequences_of(whole)) == Counter(sequence for share in shares for sequence in sequences_of(share))
    sizes = [len(share.tokens) for share in shares]
    assert max(sizes) < 1.1 * min(sizes)


def test_a_stream_that_begins_later_gives_what_the_first_one_gave_there() -> None:
    source = packing(tokens_at_a_time=80)
    stream = source.stream(start=0, rank=0, world=1, micro_batches=1)
    steps = list(islice(stream, 9))
    stream.close()  # type: ignore[attr-defined]
    later = source.stream(start=6, rank=0, world=1, micro_batches=1)
    for first, second in zip(steps[6:], later, strict=False):
        for left, right in zip(first, second, strict=True):
            assert torch.equal(left.tokens, right.tokens)
            assert left.lengths == right.lengths
    later.close()  # type: ignore[attr-defined]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    source = packing(60, 60)
    other = Packing(source.sequences, 60, seed=8, tokens_at_a_time=10**6)
    orders = [source.units(0).tolist(), source.units(1).tolist(), other.units(0).tolist()]
    assert all(sorted(order) == list(range(60)) for order in orders)
    small = Packing(source.sequences, 5, seed=7, tokens_at_a_time=10**6)
    others = Packing(source.sequences, 5, seed=8, tokens_at_a_time=10**6)
    assert set(small.units(0)) != set(small.units(12))
    assert set(small.units(0)) != set(others.units(0))


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(1, 512), min_size=1, max_size=200))
def test_a_filled_batch_keeps_its_sequences_and_has_one_of_few_sizes(lengths: list[int]) -> None:
    total = sum(lengths)
    tokens = torch.arange(total)
    batch = PackedBatch(tokens, tokens % 2, tuple(lengths), (1,) * len(lengths), {})
    more = filled(batch)
    assert more.is_filled
    assert not batch.is_filled
    assert more.real_lengths == batch.lengths
    assert len(more) == len(batch)
    assert torch.equal(more.tokens[:total], tokens)
    assert torch.equal(more.segments[:total], tokens % 2)
    assert sum(more.lengths) == len(more.tokens) <= total * 9 / 8 + 66
    fillers = more.lengths[len(lengths) :]
    assert all(1 <= length <= 66 for length in fillers)
    # A size says how many fillers there are: one graph for a size and a number of sequences.
    assert len(more.tokens) % (64 * len(fillers)) == 0


def test_only_a_step_of_one_micro_batch_is_filled_up() -> None:
    assert [batch.is_filled for batch in packing(fills=True).at(0)] == [True]
    parts = packing(fills=True, tokens_at_a_time=50).at(0)
    assert len(parts) > 1
    assert not any(batch.is_filled for batch in parts)


def test_no_batch_and_no_labels_are_refused() -> None:
    with pytest.raises(UserError, match="batch_size is 0"):
        packing(batch_size=0)
    with pytest.raises(UserError, match="no labels"):
        Packing(made_sequences({}), 4, 1, tokens_at_a_time=100)
    with pytest.raises(UserError, match="not one training example"):
        packing(num_examples=0)
    with pytest.raises(UserError, match="too small for 8 processes"):
        packing().at(0, 0, 8)
