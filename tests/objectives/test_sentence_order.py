import dataclasses
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objectives import one_by_one
from tests.objectives.made_documents import (
    SOP,
    Documents,
    document_of,
    documents_of,
    english,
    lengths_of,
    marks,
    paired,
)

from openalbert.errors import UserError
from openalbert.objectives.keyed_random import Stream, below, bits, chance, root
from openalbert.objectives.sentence_order import SHORTEST, Pairs, SentenceOrder, assemble, pair, trim

WHOLE, NONE = SentenceOrder(chunks="whole"), SentenceOrder("none")
GOOGLE = SentenceOrder(lone_sentences="google")


@given(
    documents=documents_of,
    max_length=lengths_of,
    seed=st.integers(0, 99),
    how=st.sampled_from([SOP, GOOGLE, WHOLE]),
)
def test_both_segments_hold_something_and_fit(
    documents: Documents, max_length: int, seed: int, how: SentenceOrder
) -> None:
    rows = paired(documents, how, max_length, seed).rows
    assert (rows["first_length"] >= 1).all()
    assert (rows["second_length"] >= 1).all()
    assert (rows["first_length"] + rows["second_length"] + 3 <= max_length).all()


@given(documents=documents_of, max_length=lengths_of, seed=st.integers(0, 99))
def test_sop_segments_follow_each_other_in_one_document(documents: Documents, max_length: int, seed: int) -> None:
    rows = paired(documents, SOP, max_length, seed).rows
    earlier = np.where(rows["swapped"], rows["second_begin"], rows["first_begin"])
    earlier_length = np.where(rows["swapped"], rows["second_length"], rows["first_length"])
    later = np.where(rows["swapped"], rows["first_begin"], rows["second_begin"])
    later_length = np.where(rows["swapped"], rows["first_length"], rows["second_length"])
    assert (earlier + earlier_length <= later).all()
    assert (document_of(documents, earlier) == document_of(documents, later + later_length - 1)).all()
    # Where nothing was trimmed, nothing lies between them and both stand on sentence borders.
    starts, _ = marks(documents)
    whole = earlier_length + later_length + 3 < max_length
    assert (earlier + earlier_length == later)[whole].all()
    for border in (earlier, later, later + later_length):
        assert np.isin(border[whole], starts).all()


@given(documents=documents_of, max_length=lengths_of, seed=st.integers(0, 99), how=st.sampled_from([SOP, NONE, WHOLE]))
def test_every_token_is_in_an_example_or_counted_as_left_out(
    documents: Documents, max_length: int, seed: int, how: SentenceOrder
) -> None:
    made = paired(documents, how, max_length, seed)
    used = int((made.rows["first_length"] + made.rows["second_length"]).sum())
    assert used + made.trimmed_tokens + made.lone_tokens + made.passed_over_tokens == sum(map(sum, documents))
    assert made.passed_over_tokens == 0 or how is WHOLE
    short = [document for document in documents if len(document) == 1] if how is not NONE else []
    assert (made.short_documents, made.short_tokens) == (len(short), sum(map(sum, short)))
    assert made.lone_sentences <= len(documents)


@given(documents=documents_of, max_length=lengths_of, seed=st.integers(0, 99), epoch=st.integers(0, 3))
def test_chunks_are_those_of_the_rule_one_by_one(documents: Documents, max_length: int, seed: int, epoch: int) -> None:
    made = paired(documents, SOP, max_length, seed, epoch)
    limit = max_length - 3
    begins, number = [], 0
    for document in documents:
        begin = 0
        while begin < len(document):
            key = np.array([number + begin])
            target = limit
            if chance(bits(root(seed, epoch, Stream.SHORT), key), SOP.short_fraction)[0]:
                target = 2 + int(below(bits(root(seed, epoch, Stream.TARGET), key), limit - 1)[0])
            end, length = begin, 0
            while end < len(document) and (length < target or end - begin < 2):
                length += document[end]
                end += 1
            if end - begin > 1:
                begins.append(number + begin)
            begin = end
        number += len(document)
    assert made.rows["example"].tolist() == begins


@given(first=st.integers(1, 200), second=st.integers(1, 200), limit=st.integers(2, 250), seed=st.integers(0, 9))
def test_trimming_takes_as_much_off_each_segment_as_token_by_token(
    first: int, second: int, limit: int, seed: int
) -> None:
    rng = random.Random(seed)
    segments = list(range(first)), list(range(second))
    one_by_one.trim(*segments, limit, lambda: rng.random() < 0.5)
    off = trim(np.array([first]), np.array([second]), limit)
    assert (first - off[0][0], second - off[1][0]) == (len(segments[0]), len(segments[1]))


def test_trimming_leaves_the_same_tokens_as_token_by_token_in_distribution() -> None:
    # Two sentences of 30 and 22 tokens in room for 40: where does what remains of the longer one begin?
    n = 20_000
    rows = paired([[30, 22]] * n, NONE, max_length=43).rows
    ours = rows["first_begin"] % 52
    rng, theirs = random.Random(0), []
    for _ in range(n):
        first, second = list(range(30)), list(range(22))
        one_by_one.trim(first, second, 40, lambda: rng.random() < 0.5)
        theirs.append(first[0])
    counts = np.stack([np.bincount(ours, minlength=11), np.bincount(theirs, minlength=11)])
    # Two samples of one distribution: the statistic is chi-square with as many degrees as there are places.
    statistic = ((counts[0] - counts[1]) ** 2 / np.maximum(counts.sum(0), 1)).sum()
    assert statistic < 10 + 5 * np.sqrt(20)
    assert ours.var() > 1


@given(documents=documents_of, max_length=lengths_of, seed=st.integers(0, 99), at=st.integers(1, 11))
def test_a_corpus_gives_the_same_examples_in_one_shard_or_two(
    documents: Documents, max_length: int, seed: int, at: int
) -> None:
    at = min(at, len(documents))
    head, tail = documents[:at], documents[at:]
    parts = [pair(*marks(head), SOP, max_length, seed, 1)]
    if tail:
        parts.append(
            pair(
                *marks(tail),
                SOP,
                max_length,
                seed,
                1,
                first_sentence=sum(map(len, head)),
                first_token=sum(map(sum, head)),
            )
        )
    whole = paired(documents, SOP, max_length, seed, 1)
    joined = Pairs.joined(parts)
    assert np.array_equal(joined.rows, whole.rows)
    assert dataclasses.replace(joined, rows=whole.rows) == whole


@given(documents=documents_of, max_length=lengths_of, seed=st.integers(0, 99), epoch=st.integers(0, 3))
def test_whole_chunks_are_those_of_the_rule_one_by_one(
    documents: Documents, max_length: int, seed: int, epoch: int
) -> None:
    made = paired(documents, WHOLE, max_length, seed, epoch)
    limit = max_length - 3
    chunks, number = [], 0
    for document in documents:
        begin = 0
        while begin < len(document):
            key = np.array([number + begin])
            target = limit
            if chance(bits(root(seed, epoch, Stream.SHORT), key), WHOLE.short_fraction)[0]:
                target = 2 + int(below(bits(root(seed, epoch, Stream.TARGET), key), limit - 1)[0])
            end = begin
            while end < len(document) and sum(document[begin : end + 1]) <= target:
                end += 1
            has_refused_one = end - begin >= 2 and end < len(document)
            end = min(max(end, begin + 2), len(document))
            if end - begin > 1:
                chunks.append((number + begin, min(sum(document[begin:end]), limit)))
            begin = end + has_refused_one * (1 + int(chance(bits(root(seed, epoch, Stream.SKIP), key), 0.5)[0]))
        number += len(document)
    rows = made.rows
    lengths = (rows["first_length"] + rows["second_length"]).tolist()
    assert list(zip(rows["example"].tolist(), lengths, strict=True)) == chunks


def lengths_at_the_ends(how: SentenceOrder) -> tuple[np.ndarray, np.ndarray]:
    """Of many chunks, in the order of the text, the lengths of the first and of the last sentence."""
    documents = english(3000)
    starts, _ = marks(documents)
    rows = paired(documents, dataclasses.replace(how, short_fraction=0.0), max_length=128).rows
    begin = np.minimum(rows["first_begin"], rows["second_begin"])
    end = np.maximum(rows["first_begin"] + rows["first_length"], rows["second_begin"] + rows["second_length"])
    of_sentence = np.diff(starts)
    first, last = (np.searchsorted(starts, place, side="right") - 1 for place in (begin, end - 1))
    return of_sentence[first], of_sentence[last]


def test_the_lengths_of_sentences_tell_nothing_about_the_order_of_whole_chunks() -> None:
    first, last = lengths_at_the_ends(WHOLE)
    error = np.hypot(first.std(), last.std()) / np.sqrt(len(first))
    assert abs(first.mean() - last.mean()) < 4 * error
    # In Google's chunks the last sentence is the one that passed the target, likely a long one.
    first, last = lengths_at_the_ends(dataclasses.replace(WHOLE, chunks="google"))
    error = np.hypot(first.std(), last.std()) / np.sqrt(len(first))
    assert abs(first.mean() - last.mean()) > 8 * error


def test_epochs_leave_out_different_sentences() -> None:
    documents = english(50)
    kept = [
        set(paired(documents, dataclasses.replace(WHOLE, short_fraction=0.0), epoch=e).rows["example"]) for e in (0, 1)
    ]
    assert len(kept[0] & kept[1]) < 0.6 * len(kept[0])


def test_half_of_the_pairs_are_swapped() -> None:
    rows = paired(english(2000), max_length=128).rows
    assert rows["swapped"].mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(len(rows)))


def test_the_cut_is_uniform_over_sentence_borders() -> None:
    rows = paired([[3, 3, 3, 3, 3]] * 8000, SentenceOrder(short_fraction=0.0)).rows
    firsts = np.where(rows["swapped"], rows["second_length"], rows["first_length"]) // 3
    counts = np.bincount(firsts, minlength=5)[1:]
    assert counts.sum() == 8000
    assert ((counts - 2000) ** 2 / 2000).sum() < 3 + 5 * np.sqrt(6)


def test_a_tenth_of_the_examples_is_short_and_evenly_so() -> None:
    rows = paired([[1] * 509] * 5000, max_length=512).rows
    # A document begins with a short chunk in one of ten cases; sentences of one token hit any target exactly.
    opening = rows[rows["example"] % 509 == 0]
    lengths = opening["first_length"] + opening["second_length"]
    short = lengths[lengths < 509]
    assert len(short) / len(lengths) == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 5000))
    assert short.min() >= 2
    assert short.mean() == pytest.approx((2 + 508) / 2, abs=5 * 147 / np.sqrt(len(short)))


def test_short_targets_are_even_from_two_tokens_to_what_fits() -> None:
    # Sentences of one token hit any target exactly, and each document opens with a chunk of its own target.
    rows = paired([[1] * 5] * 20_000, SentenceOrder(short_fraction=1.0), max_length=8).rows
    opening = rows[rows["example"] % 5 == 0]
    counts = np.bincount(opening["first_length"] + opening["second_length"])
    assert counts.sum() == 20_000
    assert len(counts) == 6
    assert counts[:2].sum() == 0
    assert ((counts[2:] - 5000) ** 2 / 5000).sum() < 3 + 5 * np.sqrt(6)


def test_borders_of_chunks_differ_between_epochs_and_seeds_but_not_between_calls() -> None:
    documents = english(50)
    assert np.array_equal(paired(documents, epoch=3).rows, paired(documents, epoch=3).rows)
    for other in (paired(documents, epoch=4), paired(documents, epoch=3, seed=1)):
        assert set(other.rows["example"].tolist()) != set(paired(documents, epoch=3).rows["example"].tolist())


def test_nothing_is_asked_where_the_objective_is_none() -> None:
    rows = paired(english(100), NONE).rows
    assert not rows["swapped"].any()
    assert (rows["first_begin"] < rows["second_begin"]).all()


def test_a_lone_sentence_never_brings_another_document_into_sop() -> None:
    made = paired([[5], [7], [6, 6]])
    assert made.rows["example"].tolist() == [2]
    assert (made.short_documents, made.short_tokens, made.lone_sentences, made.lone_tokens) == (2, 12, 2, 12)


@given(documents=documents_of, max_length=lengths_of, seed=st.integers(0, 99))
def test_where_nothing_is_asked_a_lone_sentence_is_an_example_of_one_segment(
    documents: Documents, max_length: int, seed: int
) -> None:
    made, pairs = (paired(documents, how, max_length, seed) for how in (NONE, SOP))
    is_single = made.rows["second_length"] == 0
    assert made.rows["example"][~is_single].tolist() == pairs.rows["example"].tolist()
    assert (made.rows["first_length"] >= 1).all()
    assert (made.lengths <= max_length).all()
    assert (made.lone_sentences, made.lone_tokens) == (0, 0)
    single = made.rows[is_single]
    # What sop leaves out is here: the whole sentence, or as much of it as fits between [CLS] and [SEP].
    sentences = [length for document in documents for length in document]
    assert len(single) == pairs.lone_sentences
    assert single["first_length"].tolist() == [min(sentences[n], max_length - 2) for n in single["example"]]
    assert (made.lengths == made.rows["first_length"] + made.rows["second_length"] + np.where(is_single, 2, 3)).all()


def test_google_fills_a_lone_sentence_up_with_another_document_and_says_swapped() -> None:
    documents = [[5], [7], [200, 6]]
    made = paired(documents, GOOGLE)
    alone = made.rows[:2]
    assert alone["swapped"].all()
    assert (document_of(documents, alone["first_begin"]) == [0, 1]).all()
    assert (document_of(documents, alone["second_begin"]) != [0, 1]).all()
    assert (made.lone_sentences, made.short_documents) == (0, 0)
    # A sentence that fills an example alone is a chunk of one, and so is what it leaves of its document.
    assert made.rows["example"].tolist() == [0, 1, 2, 3]


def test_google_fills_up_with_each_other_document_equally_often() -> None:
    documents = [[5]] * 5
    counts = np.zeros((5, 5), np.int64)
    for seed in range(2000):
        rows = paired(documents, GOOGLE, seed=seed).rows
        counts[np.arange(5), document_of(documents, rows["second_begin"])] += 1
    assert not counts.diagonal().any()
    others = counts[~np.eye(5, dtype=bool)]
    assert ((others - 500) ** 2 / 500).sum() < 15 + 5 * np.sqrt(30)


def test_google_adds_one_sentence_even_where_there_is_no_room() -> None:
    for seed in range(20):  # the sentence is any of the four, so that others may follow it
        assert paired([[200], [1, 1, 1, 1]], GOOGLE, seed=seed).rows["second_length"][0] == 1


def test_a_single_document_of_one_sentence_makes_no_pair() -> None:
    for how in (SOP, GOOGLE):
        assert len(paired([[5]], how)) == 0
    for how in (NONE, dataclasses.replace(NONE, lone_sentences="google")):
        [only] = paired([[5]], how).rows
        assert (only["first_begin"], only["first_length"], only["second_length"], only["swapped"]) == (0, 5, 0, False)


@pytest.mark.parametrize("width", [16, 32])
@given(
    documents=documents_of,
    max_length=st.integers(SHORTEST, 40),
    seed=st.integers(0, 9),
    how=st.sampled_from([SOP, NONE]),
)
@settings(max_examples=50)
def test_assembled_examples_read_as_their_segments(
    width: int, documents: Documents, max_length: int, seed: int, how: SentenceOrder
) -> None:
    # Ids over 32,767 in 16 bits: signs must not leak in.
    tokens = (np.arange(sum(map(sum, documents))) + (40_000 if width == 16 else 70_000)).astype(f"uint{width}")
    rows = paired(documents, how, max_length, seed).rows
    names = ("first_begin", "first_length", "second_begin", "second_length")
    segments = torch.from_numpy(np.stack([rows[name].astype(np.int64) for name in names], axis=1))
    ids = assemble(torch.from_numpy(tokens.view(f"int{width}")), segments, max_length, cls_id=2, sep_id=3)
    for row, made in zip(rows, ids.tolist(), strict=True):
        first = tokens[row["first_begin"] :][: row["first_length"]].tolist()
        second = tokens[row["second_begin"] :][: row["second_length"]].tolist()
        text = [2, *first, 3, *second, 3] if second else [2, *first, 3]
        assert made == text + [0] * (max_length - len(text))


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="short_fraction"):
        SentenceOrder(short_fraction=share)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(UserError, match="weight"):
        SentenceOrder(weight=weight)
