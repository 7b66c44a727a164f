"""Words and their pieces: each word is decided once, by its first piece, with context; and what its tags then mean."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.made_tasks import TAGS, made_task

from openalbert.finetuning.encode import encode
from openalbert.finetuning.word_alignment import (
    NO_TOKEN,
    WordTokens,
    align_words,
    decide_tags,
    first_pieces,
    tag_targets,
)
from openalbert.tasks.custom.tagging import join_words, split_words
from openalbert.tasks.tags import to_bio
from openalbert.tasks.task import UNLABELLED, TaggingExample
from openalbert.text.tokenizer import SPACE, Tokenizer


def example(words: list[str], tags: tuple[str, ...] | None = None) -> TaggingExample:
    text, spans = join_words(words)
    return TaggingExample("a", text, spans, tags)


def test_a_word_is_decided_by_its_first_visible_piece(small: Tokenizer) -> None:
    words = ["The", "unbelievable", "@house", "…", "\u200b", "Ünder"]
    one = example(words)
    pieces = align_words([one], small, 60)
    ids = [small.cls_id, *pieces.ids.tolist(), small.sep_id]
    of_text = small.encode_with_offsets(one.text)
    for (start, end), token in zip(one.words, pieces.words.token.tolist(), strict=True):
        if token == NO_TOKEN:
            assert one.text[start:end] == "\u200b"
            continue
        begin, stop = of_text.offsets[token - 1]
        assert begin == start < stop <= end
        assert small.pieces([ids[token]]) != [SPACE]
    assert (pieces.words.token == NO_TOKEN).sum() == 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_first_piece_is_that_of_trying_all(data: st.DataObject) -> None:
    """Against every pair of a word and a piece."""
    cuts = sorted(data.draw(st.sets(st.integers(0, 30), min_size=2, max_size=10)))
    words = [span for span in itertools.pairwise(cuts) if data.draw(st.booleans())]
    borders = sorted(data.draw(st.sets(st.integers(0, 30), min_size=2, max_size=12)))
    pieces = [(start, end if data.draw(st.integers(0, 4)) else start) for start, end in itertools.pairwise(borders)]
    expected = [
        next((n for n, (begin, stop) in enumerate(pieces) if begin < stop and begin < end and stop > start), NO_TOKEN)
        for start, end in words
    ]
    assert first_pieces(words, np.array(pieces).reshape(-1, 2)).tolist() == expected


@pytest.mark.parametrize("room", [6, 7, 30, 1000])
def test_every_word_of_a_long_text_is_decided_in_one_window_with_context(room: int, small: Tokenizer) -> None:
    words = [f"time{'s' * (n % 3)}" if n % 4 else "unbelievable" for n in range(60)]
    texts = [example(words), example(["it"]), example([]), example(words[:9])]
    pieces = align_words(texts, small, room)
    assert pieces.length.max() <= room
    offsets = small.encode_with_offsets(texts[0].text).offsets
    of_window = {}
    token = 0
    for number, (first, length, of) in enumerate(
        zip(pieces.first.tolist(), pieces.length.tolist(), pieces.example.tolist(), strict=True)
    ):
        of_window |= {token + 1 + place: (number, first, place, length, of) for place in range(length)}
        token += length + 2
    found = pieces.words.token[pieces.words.starts[0] : pieces.words.starts[1]].tolist()
    assert len(set(found)) == len(words)
    for (start, _), place in zip(texts[0].words, found, strict=True):
        _, first, inside, length, of = of_window[place]
        assert of == 0
        assert offsets[first + inside][0] == start
        whole = len(offsets)
        # A third of a window on either side, where the text has so much.
        assert inside >= min(first + inside, room // 4)
        assert length - inside - 1 >= min(whole - first - inside - 1, room // 4)
    assert np.diff(pieces.words.starts).tolist() == [60, 1, 0, 9]


def test_a_long_text_in_one_window_has_the_targets_that_it_has_in_several(small: Tokenizer) -> None:
    tags = ("B-good", "I-good", "O", "B-bad") * 20
    one = example(["time", "unbelievable", "it", "house"] * 20, tags)
    for max_length in (512, 16):
        encoding = encode(made_task("tagging"), [one], small, max_length)
        targets, words = encoding.sequences.targets["tagging"], encoding.words
        assert words is not None
        assert [TAGS[label] for label in targets[words.token]] == list(tags)
        assert (targets != UNLABELLED).sum() == len(tags)
        assert encoding.sequences.num_truncated == 0
    assert len(encoding.sequences.example) > 5


def test_a_tag_that_is_no_label_is_not_learned(small: Tokenizer) -> None:
    one = example(["it", "is"], ("B-other", "O"))
    pieces = align_words([one], small, 20)
    targets = tag_targets([one], pieces.words, TAGS, len(pieces.ids) + 2)
    assert sorted(targets.tolist(), reverse=True) == [0] + [UNLABELLED] * (len(targets) - 1)


def logits_of(tags: list[str], confidence: float = 2.0) -> np.ndarray:
    rows = np.zeros((len(tags), len(TAGS)), np.float32)
    rows[np.arange(len(tags)), [TAGS.index(tag) for tag in tags]] = confidence
    return rows


@given(st.lists(st.sampled_from(TAGS), min_size=1, max_size=10))
def test_predicted_tags_are_valid_and_keep_the_entities_of_the_best_ones(tags: list[str]) -> None:
    words = WordTokens(np.arange(len(tags)), np.array([0, len(tags)]))
    [found] = decide_tags(logits_of(tags), words, TAGS)
    assert found.tags == to_bio(tags)
    assert found.probabilities == pytest.approx(np.exp(2) / (np.exp(2) + len(TAGS) - 1))


def test_entities_are_characters_of_the_text_with_their_mean_probability() -> None:
    text = "Mr.  Smith's house"
    one = TaggingExample("a", text, split_words(text), None)
    logits = logits_of(["B-good", "I-good", "I-good", "O", "O", "B-bad"])
    logits[0] *= 3
    [found] = decide_tags(logits, WordTokens(np.arange(6), np.array([0, 6])), TAGS)
    person, thing = found.entities(one)
    assert (person.text, person.label, person.start, person.end) == ("Mr.  Smith", "good", 0, 10)
    assert (thing.text, thing.label) == ("house", "bad")
    assert person.probability == pytest.approx(found.probabilities[:3].mean())
    assert person.probability > thing.probability


def test_words_that_share_a_piece_are_one_entity_and_a_word_without_any_is_outside() -> None:
    words = WordTokens(np.array([0, 1, 1, NO_TOKEN, 2, 2]), np.array([0, 5, 6]))
    first, second = decide_tags(logits_of(["O", "B-good", "B-bad"]), words, TAGS)
    assert first.tags == ("O", "B-good", "I-good", "O", "B-bad")
    assert second.tags == ("B-bad",)  # the last word of one text and the first of the next never are
    assert first.probabilities[3] == 1


def test_a_model_of_parts_of_speech_gives_each_word_its_most_probable_tag() -> None:
    labels = ("NOUN", "VERB")
    words = WordTokens(np.array([1, 0, NO_TOKEN]), np.array([0, 3]))
    [found] = decide_tags(np.array([[0.0, 1.0], [3.0, 1.0]]), words, labels)
    assert found.tags == ("NOUN", "VERB", "NOUN")
