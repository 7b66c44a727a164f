"""Next-sentence pairs: whose second half is another document's, of the same length where there is one."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.objectives.made_documents import Documents, document_of, english, lengths_of, marks, paired

from openalbert.errors import UserError
from openalbert.objectives.keyed_random import Stream, below, bits, chance, root
from openalbert.objectives.sentence_order import SentenceOrder, trim

NSP = SentenceOrder("nsp")


@given(documents=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=2, max_size=9))
def test_nsp_takes_the_second_segment_from_another_document_where_it_says_so(documents: Documents) -> None:
    rows = paired(documents, NSP, max_length=512).rows
    own, other = document_of(documents, rows["first_begin"]), document_of(documents, rows["second_begin"])
    assert (own != other)[rows["swapped"]].all()
    assert (own == other)[~rows["swapped"]].all()
    assert (rows["first_begin"] + rows["first_length"] == rows["second_begin"])[~rows["swapped"]].all()


def test_nsp_puts_the_half_that_gave_way_back() -> None:
    documents = english(300)
    starts, _ = marks(documents)
    made = paired(documents, NSP, max_length=4096)
    assert made.rows["swapped"].mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(len(made)))
    read = np.zeros(starts[-1], np.int64)
    for row in made.rows:
        read[row["first_begin"] : row["first_begin"] + row["first_length"]] += 1
        if not row["swapped"]:
            read[row["second_begin"] : row["second_begin"] + row["second_length"]] += 1
    assert (read == 0).sum() <= made.lone_tokens + made.trimmed_tokens
    assert read.max() == 1  # a half that did not give way is not put back
    assert made.passed_over_tokens == 0


@example(documents=[[1] * 10, [1, 1, 1], [1, 1, 1, 6]], max_length=14, seed=28, chunks="google")
@given(
    documents=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=2, max_size=12),
    max_length=lengths_of,
    seed=st.integers(0, 99),
    chunks=st.sampled_from(["google", "whole"]),
)
def test_nsp_takes_a_segment_of_the_same_length_where_another_document_has_one(
    documents: Documents, max_length: int, seed: int, chunks: Literal["google", "whole"]
) -> None:
    starts, _ = marks(documents)
    how, limit = SentenceOrder("nsp", chunks=chunks), max_length - 3

    def drawn(stream: Stream, sentence: int) -> np.ndarray:
        return bits(root(seed, 0, stream), np.array([sentence]))

    rows = paired(documents, how, max_length, seed).rows
    segments = []  # of each chunk: its document, and the tokens of both segments
    for begin in rows["example"].tolist():
        document = int(document_of(documents, starts[begin]))
        last = sum(map(len, documents[: document + 1]))
        target = limit
        if chance(drawn(Stream.SHORT, begin), how.short_fraction)[0]:
            target = 2 + int(below(drawn(Stream.TARGET, begin), limit - 1)[0])
        end = begin + 2
        if chunks == "google":
            while end < last and starts[end] - starts[begin] < target:
                end += 1
        else:
            while end < last and starts[end + 1] - starts[begin] <= target:
                end += 1
        cut = begin + 1 + int(below(drawn(Stream.CUT, begin), end - begin - 1)[0])
        segments.append((document, int(starts[cut] - starts[begin]), min(int(starts[end] - starts[cut]), limit)))
    for row, (document, first, second) in zip(rows, segments, strict=True):
        if any(other != document and tokens == second for other, _, tokens in segments):
            _, off = trim(np.array([first]), np.array([second]), limit)
            assert row["second_length"] == second - off[0]


@example(lengths=[(1, 1), (13, 13), (1, 24)], max_length=40)  # 13 and 24 just fit
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=2, max_size=12, unique_by=lambda d: d[1]
    ),
    max_length=st.integers(40, 80),
)
def test_nsp_takes_the_nearest_length_that_fits_where_no_other_document_has_the_same(
    lengths: list[tuple[int, int]], max_length: int
) -> None:
    # Every document is one chunk of two sentences, and no two second segments are equally long.
    how, limit = SentenceOrder("nsp", short_fraction=0.0), max_length - 3
    rows = paired([list(document) for document in lengths], how, max_length).rows
    seconds = [second for _, second in lengths]
    cut_to_fit = [min(second, limit) for second in seconds]
    for row in rows[rows["swapped"]]:
        first, second = lengths[row["example"] // 2]
        own = min(second, limit)
        shorter = [other for other in cut_to_fit if other < own]
        longer = [other for other in cut_to_fit if other > own]
        if cut_to_fit.count(own) > 1:  # both are too long for an example
            expected = own
        elif not shorter or (longer and min(longer) - own < own - max(shorter) and first + min(longer) <= limit):
            expected = min(longer)
        else:
            expected = max(shorter)
        taken = seconds[int(document_of([list(one) for one in lengths], row["second_begin"][None])[0])]
        assert min(taken, limit) == expected


def test_nsp_draws_from_all_documents_that_have_a_segment_of_the_same_length() -> None:
    documents = [[5, 7]] * 1000
    rows = paired(documents, SentenceOrder("nsp", short_fraction=0.0)).rows
    swapped = rows[rows["swapped"]]
    own, other = (document_of(documents, swapped[name]) for name in ("first_begin", "second_begin"))
    ahead = (other - own) % 1000
    counts = np.bincount(ahead * 10 // 1000, minlength=10)
    expected = len(swapped) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 5 * np.sqrt(18)


def test_nsp_in_a_single_document_is_refused() -> None:
    with pytest.raises(UserError, match="use sop"):
        paired([[5, 5, 5]], NSP)
