"""Windows over passages: every token in one at least, every answer back to its very characters."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.made_tasks import EXAMPLES, made_task
from tests.text.varied_lines import nasty_lines

from openalbert.finetuning.encode import Encoding, encode
from openalbert.finetuning.windows import Passage, assign_spans, split_into_windows
from openalbert.tasks.task import Answer, Example, QuestionExample
from openalbert.text.tokenizer import Tokenizer


@given(st.integers(0, 400), st.integers(1, 60), st.integers(1, 80))
def test_every_token_of_a_passage_is_in_a_window_and_as_a_stretch_of_one_is_exactly_ones_own(
    num_tokens: int, room: int, stride: int
) -> None:
    windows = list(split_into_windows(num_tokens, room, stride))
    owned = assign_spans(windows)
    times, owners = np.zeros(num_tokens, int), np.zeros(num_tokens, int)
    for (start, length), owns in zip(windows, owned, strict=True):
        times[start : start + length] += 1
        owners[start : start + length] += owns <= 1
    assert (times >= 1).all()
    assert (owners == 1).all()
    assert all(0 < length <= room for _, length in windows) or num_tokens == 0
    step = min(stride, max(1, room // 2))
    assert all(later - before == step for (before, _), (later, _) in itertools.pairwise(windows))


@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 50), st.integers(1, 60))
def test_a_stretch_is_of_the_window_that_berts_loop_finds_among_those_which_hold_it_whole(
    num_tokens: int, room: int, stride: int, num_together: int
) -> None:
    windows = list(split_into_windows(num_tokens, room, stride))
    owned = assign_spans(windows)
    for first in range(num_tokens - num_together + 1):
        best, found = None, []
        for number, (start, length) in enumerate(windows):
            if start <= first and first + num_together <= start + length:
                score = min(first - start, start + length - 1 - first) + 0.01 * length
                if best is None or score > best:
                    best, found = score, [number]
        owners = [
            number
            for number, (start, length) in enumerate(windows)
            if start <= first
            and first + num_together <= start + length
            and owned[number][first - start] <= num_together
        ]
        assert owners == found


def spans_in_characters(examples: list[Example], encoding: Encoding) -> list[list[str]]:
    """The text of the target span of each window, by question; without those that hold no answer."""
    sequences, windows = encoding.sequences, encoding.windows
    assert windows is not None
    texts: list[list[str]] = [[] for _ in examples]
    for number, (first, last) in enumerate(sequences.targets["span"].tolist()):
        if first:
            start, of = sequences.starts[number], sequences.example[number]
            passage = examples[of].passage  # type: ignore[union-attr]
            texts[of].append(passage[windows.begin[start + first] : windows.end[start + last]])
    return texts


def test_an_answer_is_found_again_in_every_window_that_holds_it_whole(small: Tokenizer) -> None:
    words = "the people said that a house of the old world was found in January 1900, by Mr. Smith".split()
    passage = " ".join(words * 12)
    starts = [at for at in range(len(passage)) if passage.startswith("January 1900", at)]
    examples = [QuestionExample(str(at), passage, "when?", (Answer("January 1900", at),)) for at in starts]
    encoding = encode(made_task("question_answering"), examples, small, 48, stride=10)
    texts = spans_in_characters(list(examples), encoding)
    assert all(found and set(found) == {"January 1900"} for found in texts)
    assert max(map(len, texts)) >= 3
    is_found = encoding.sequences.targets["answerability"] == 0
    assert is_found.sum() == sum(map(len, texts))


def test_no_answer_is_lost_at_the_border_of_windows_that_are_shorter_than_the_stride(small: Tokenizer) -> None:
    passage = " ".join(f"people {number} said so" for number in range(60))
    examples = []
    for number in range(60):
        answer = f"{number} said"
        examples.append(QuestionExample(answer, passage, "who?", (Answer(answer, passage.index(f" {answer}") + 1),)))
    encoding = encode(made_task("question_answering"), examples, small, 48, stride=128)
    assert all(spans_in_characters(list(examples), encoding))


def test_any_stretch_of_any_text_leads_to_the_tokens_that_hold_it(small: Tokenizer) -> None:
    dice = random.Random(3)
    tried = 0
    for line in nasty_lines(400, seed=5):
        passage = Passage.of(line, small)
        for _ in range(5):
            start, end = sorted((dice.randint(0, len(line)), dice.randint(0, len(line))))
            found = passage.tokens_of(start, end)
            held = [n for n in range(len(passage.ids)) if 0 <= passage.begin[n] < end and passage.end[n] > start]
            assert found == ((held[0], held[-1]) if held else None)
            tried += found is not None
    assert tried > 1000


def test_a_long_question_is_cut_and_counted_and_leaves_room_for_the_passage(small: Tokenizer) -> None:
    long = QuestionExample("a", "The house was found.", "who said that and " * 50, (Answer("house", 4),))
    encoding = encode(made_task("question_answering"), [long, *EXAMPLES["question_answering"]], small, 32)
    assert encoding.sequences.num_truncated == 1
    assert encoding.sequences.second[0] == (32 - 3) // 2 + 2
    assert spans_in_characters([long, *EXAMPLES["question_answering"]], encoding)[0] == ["house"]


def test_a_passage_without_visible_text_is_one_window_without_an_answer(small: Tokenizer) -> None:
    examples = [QuestionExample("a", "  \u200b ", "who?", (Answer(" ", 0),))]
    sequences = encode(made_task("question_answering"), examples, small, 32).sequences
    assert sequences.targets["span"].tolist() == [[0, 0]]


@pytest.mark.parametrize("max_length", [96, 384])
def test_every_answer_of_squad_is_covered_by_its_tokens_and_nearly_all_to_the_character(
    real_data: Path, max_length: int
) -> None:
    tokenizer = Tokenizer.load(real_data / "vocab" / "spiece.model")
    examples: list[Example] = []
    for article in json.loads((real_data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"][::8]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answer = Answer(asked["answers"][0]["text"], asked["answers"][0]["answer_start"])
                examples.append(QuestionExample(asked["id"], paragraph["context"], asked["question"], (answer,)))
    encoding = encode(made_task("question_answering"), examples, tokenizer, max_length, stride=32)
    exact = whole = 0
    for example, texts in zip(examples, spans_in_characters(examples, encoding), strict=True):
        gold = example.answers[0].text  # type: ignore[union-attr]
        assert all(gold in text for text in texts)
        whole += bool(texts)
        exact += texts != [] and set(texts) == {gold}
    assert len(examples) > 1000
    assert whole == len(examples)
    assert exact > 0.98 * len(examples)  # what is left are parts of words: "wards" in "backwards"
