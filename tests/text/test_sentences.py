"""The splitter against passages split by hand, and what holds for every text."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.text.sentences import split_sentences

GOLDEN = Path(__file__).parent / "sentences_golden.txt"

# Passages, by their first sentence, that are split otherwise than by hand: they want to know what the words mean.
# Whoever mends one takes it off the list.
KNOWN_WRONG = {
    "a. The first case is easy.",
    "It cost 5s. 6d. in all.",
    "They chose plan B.",
    "He worked for Yahoo! Japan until May.",
    "Martin King, Jr.",
    "Two teams from the U.S.",
    "It was sold by Hale and Co.",
}

# Text made of what the rules look at, so that they meet in every order.
SCRAPS = ". ! ? … ... \" ' ” ) ( [ ] [1] 。 」 — Mr e.g U.S J I no No vol Inc The He said 5 3.1 iv word Été été 他们 🙂"
scraps = st.sampled_from([*SCRAPS.split(), *[" "] * 12, "  ", "\n", "\t", "\u00a0"])
texts = st.lists(scraps, max_size=30).map("".join) | st.text(max_size=40)


def golden_passages() -> list[list[str]]:
    """The passages of the golden file, which says how it is read."""
    lines = "\n".join("" if line.startswith("# ") else line for line in GOLDEN.read_text("utf-8").splitlines())
    return [block.splitlines() for block in re.split(r"\n\n+", lines.strip("\n"))]


def test_golden_passages_are_split_as_by_hand_but_for_the_listed_ones() -> None:
    passages = golden_passages()
    wrong = set()
    for passage in passages:
        text = "".join(line[1:] if line.startswith("~") else f" {line}" for line in passage).strip()
        if split_sentences(text) != [line.removeprefix("~") for line in passage]:
            wrong.add(passage[0])
    assert wrong == KNOWN_WRONG
    assert len(passages) >= 120


@given(texts)
def test_nothing_but_white_space_is_lost(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@given(texts)
def test_sentences_are_stripped_and_none_is_empty(text: str) -> None:
    assert all(sentence and sentence == sentence.strip() for sentence in split_sentences(text))


@given(texts, texts)
def test_a_line_break_always_ends_a_sentence(first: str, second: str) -> None:
    assert split_sentences(f"{first}\n{second}") == split_sentences(first) + split_sentences(second)


def test_dots_alone_are_no_sentence() -> None:
    assert split_sentences(". . . Then [...] he went. [...] But why?") == [
        ". . . Then [...] he went.",
        "[...] But why?",
    ]


def test_any_white_space_may_follow_the_stop() -> None:
    assert split_sentences("Mr.\u00a0Hale came.\tDr.\tLee left.  It was late.") == [
        "Mr.\u00a0Hale came.",
        "Dr.\tLee left.",
        "It was late.",
    ]


def test_a_stop_in_the_middle_of_a_word_is_none() -> None:
    assert split_sentences("See example.com/A.Html?B!C or 1.2.3 there") == ["See example.com/A.Html?B!C or 1.2.3 there"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("scrap", [".", "Mr.\t", "Mr. ", ". ", "! ", '"', ".)", ".[1]", "[...] ", "A. ((( ", "。"])
def test_no_strange_line_takes_more_than_linear_time(scrap: str) -> None:
    # Anything quadratic would take many minutes.
    text = scrap * (500_000 // len(scrap)) + " A"
    assert "".join(split_sentences(text)).replace(" ", "").replace("\t", "") == "".join(text.split())


def test_real_text_is_split_into_sentences_of_a_likely_length(real_data: Path) -> None:
    for name in ("heldout-wikipedia.txt", "heldout-books.txt"):
        sentences = split_sentences((real_data / "corpus" / name).read_text("utf-8"))
        words = [len(sentence.split()) for sentence in sentences]
        # English sentences have some 15 to 25 words; a splitter gone wrong leaves whole paragraphs, or scraps.
        assert 12 < sum(words) / len(words) < 27
        assert sum(length > 150 for length in words) < 0.002 * len(words)
        # A sentence begins with a lower-case letter only where a line does, or behind an opening quotation mark.
        assert sum(sentence[0].islower() for sentence in sentences) < 0.01 * len(sentences)
