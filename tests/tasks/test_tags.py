"""Entities and their metrics are those of seqeval and of WNUT-17's published table, for any tags."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2

from openalbert.errors import UserError
from openalbert.tasks.data.conll import read_conll
from openalbert.tasks.tags import (
    Entity,
    bio_tags,
    count_by_type,
    count_matches,
    entity_labels,
    find_entities,
    mark_entities,
    scheme_of,
    tag_scores,
    to_bio,
)

ANY_TAG = st.sampled_from(["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in ("LOC", "PER", "a-b"))])
BIO_TAG = st.sampled_from(["O", *(f"{prefix}-{name}" for prefix in "BI" for name in ("LOC", "PER"))])


def pairs_of(tag: st.SearchStrategy[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    """Texts of at least one word, with an actual and a predicted tag for each."""
    return st.lists(st.lists(st.tuples(tag, tag), min_size=1, max_size=8), min_size=1, max_size=5)


def scores(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    return {name: float(value) for name, value in tag_scores(count_matches(gold, predicted).sum(0), True).items()}


@given(st.lists(ANY_TAG, max_size=12))
def test_entities_are_those_of_seqeval_for_every_sequence_of_tags(tags: list[str]) -> None:
    theirs = [Entity(start, end + 1, label) for label, start, end in get_entities(tags)]
    assert find_entities(tags) == theirs


@given(pairs_of(ANY_TAG))
def test_precision_recall_and_f1_are_those_of_seqeval_by_default(texts: list[list[tuple[str, str]]]) -> None:
    gold, predicted = ([[pair[side] for pair in text] for text in texts] for side in (0, 1))
    found = scores(gold, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval warns where there is nothing to divide by, and takes 0
        theirs = classification_report(gold, predicted, output_dict=True) if any(map(get_entities, gold)) else {}
        assert found["precision"] == pytest.approx(100 * precision_score(gold, predicted))
        assert found["recall"] == pytest.approx(100 * recall_score(gold, predicted))
        assert found["f1"] == pytest.approx(100 * f1_score(gold, predicted))
    for name, (right, wanted, given_) in count_by_type(gold, predicted, marks_entities=True).items():
        if name in theirs:
            assert theirs[name]["support"] == wanted
            assert theirs[name]["recall"] == pytest.approx(right / max(wanted, 1))
            assert theirs[name]["precision"] == pytest.approx(right / max(given_, 1))


@given(pairs_of(BIO_TAG))
def test_once_read_as_bio_seqevals_strict_mode_agrees_with_its_default(texts: list[list[tuple[str, str]]]) -> None:
    """The two differ only where an entity begins with I-, which neither files that were read nor predictions have."""
    gold, predicted = ([list(to_bio([pair[side] for pair in text])) for text in texts] for side in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strict = f1_score(gold, predicted, mode="strict", scheme=IOB2) if any(map(get_entities, gold)) else 0.0
    assert scores(gold, predicted)["f1"] == pytest.approx(100 * strict)


def test_an_entity_that_begins_with_i_counts_by_default_and_not_in_strict_mode() -> None:
    gold, predicted = [["B-LOC", "I-LOC", "O"]], [["I-LOC", "I-LOC", "O"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert f1_score(gold, predicted, mode="strict", scheme=IOB2) == 0
    assert scores(gold, predicted)["f1"] == 100


@given(st.lists(ANY_TAG, max_size=12))
def test_reading_as_bio_keeps_the_entities_and_reading_again_changes_nothing(tags: list[str]) -> None:
    bio = to_bio(tags)
    assert find_entities(bio) == find_entities(tags)
    assert to_bio(bio) == bio
    assert all(
        tag == "O" or tag.startswith("B-") or before[2:] == tag[2:]
        for before, tag in zip(("O", *bio), bio, strict=False)
    )


WORDS_OF_PARIS = [Entity(0, 2, "LOC"), Entity(2, 3, "LOC"), Entity(4, 5, "PER")]
SCHEMES = {
    "BIO (IOB2)": ["B-LOC", "I-LOC", "B-LOC", "O", "B-PER"],
    "IOB1": ["I-LOC", "I-LOC", "B-LOC", "O", "I-PER"],
    "BIOES": ["B-LOC", "E-LOC", "S-LOC", "O", "S-PER"],
    "BILOU": ["B-LOC", "L-LOC", "U-LOC", "O", "U-PER"],
    "BMEWO": ["B-LOC", "E-LOC", "W-LOC", "O", "W-PER"],
    "BIO, with I- at the start of some entities": ["B-LOC", "I-LOC", "B-LOC", "O", "I-PER"],
}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_is_recognized_and_gives_the_same_entities(name: str) -> None:
    assert scheme_of([SCHEMES[name], ["O"]]) == name
    assert find_entities(SCHEMES[name]) == WORDS_OF_PARIS
    assert to_bio(SCHEMES[name]) == tuple(SCHEMES["BIO (IOB2)"])


def test_tags_without_prefixes_are_entities_where_some_words_are_outside() -> None:
    tags = ["person-actor", "person-actor", "O", "LOC"]
    assert scheme_of([tags]) == "IO, without prefixes"
    assert to_bio(tags, prefixed=False) == ("B-person-actor", "I-person-actor", "O", "B-LOC")
    assert scheme_of([["DET", "NOUN", "VERB"]]) == ""
    assert not mark_entities(["DET", "NOUN"])


def test_entities_without_a_type_have_a_name() -> None:
    assert to_bio(["B", "I", "O"]) == ("B-entity", "I-entity", "O")


def test_labels_are_complete_whatever_the_training_file_shows() -> None:
    assert entity_labels(["b", "a", "b"]) == ("O", "B-a", "I-a", "B-b", "I-b")


@given(st.lists(st.lists(BIO_TAG, min_size=1, max_size=6), min_size=1, max_size=6))
def test_sums_of_counts_score_as_all_texts_together(texts: list[list[str]]) -> None:
    predicted = texts[1:] + texts[:1]
    predicted = [(some * 6)[: len(text)] for some, text in zip(predicted, texts, strict=True)]
    counts = count_matches(texts, predicted)
    rows = np.arange(len(texts))[None].repeat(2, 0)
    of_rows = tag_scores(np.stack([column[rows].sum(1) for column in counts.T], axis=1), True)
    for name, value in scores(texts, predicted).items():
        assert of_rows[name].tolist() == pytest.approx([value] * 2)


def test_a_word_without_a_prediction_is_refused() -> None:
    with pytest.raises(UserError, match="1 tags were predicted for 2 words"):
        count_matches([["O", "O"]], [["O"]])


def test_entities_and_their_tags_are_each_others_inverse() -> None:
    assert bio_tags(WORDS_OF_PARIS, 5) == tuple(SCHEMES["BIO (IOB2)"])


PUBLISHED = {"uh_ritual": (57.54, 32.90, 41.86), "drexel_cci": (50.39, 17.79, 26.30)}


@pytest.mark.parametrize("system", PUBLISHED)
def test_published_outputs_on_wnut_17_have_the_scores_of_the_shared_task(system: str, real_data: Path) -> None:
    gold, predicted = (
        [row.values["2"] for row in read_conll(real_data / "ner" / name).rows]
        for name in ("test.conll", f"published/{system}.conll")
    )
    found = scores(gold, predicted)
    assert tuple(round(found[name], 2) for name in ("precision", "recall", "f1")) == PUBLISHED[system]
