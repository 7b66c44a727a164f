"""Answers from scores: as slow loops find them, in the passage's own characters, silent where the threshold says so."""

import random

import numpy as np
import pytest
from tests.tasks.made_tasks import made_task

from openalbert.finetuning.encode import Encoding, encode
from openalbert.finetuning.question_answering.span_decoding import best_answers
from openalbert.tasks.task import Example, QuestionExample
from openalbert.text.tokenizer import Tokenizer

WORDS = "the people said that a house of the old world was found in January 1900, by Mr. Smith".split()


def questions(count: int, seed: int = 0) -> list[Example]:
    dice = random.Random(seed)
    passages = [" ".join(dice.choices(WORDS, k=dice.randint(1, 60))) for _ in range(count)]
    return [QuestionExample(str(n), passage, "who said that?", ()) for n, passage in enumerate(passages)]


def random_scores(encoding: Encoding, seed: int = 0) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(seed)
    span = dice.normal(size=(len(encoding.sequences.ids), 2)).astype(np.float32)
    return {"span": span, "answerability": dice.normal(size=(len(encoding.sequences.example), 1)).astype(np.float32)}


def by_loops(
    example: Example, number: int, encoding: Encoding, scores: dict[str, np.ndarray], most: int
) -> tuple[list[tuple[float, str]], float]:
    """Every span of every window, tried one by one."""
    sequences, windows = encoding.sequences, encoding.windows
    assert windows is not None
    found: dict[tuple[int, int], float] = {}
    empty, absent = [], []
    for window in np.flatnonzero(sequences.example == number):
        start, end = sequences.starts[window], sequences.starts[window + 1]
        empty.append(scores["span"][start, 0] + scores["span"][start, 1])
        absent.append(scores["answerability"][window, 0])
        for first in range(start, end):
            if windows.begin[first] < 0:
                continue
            for last in range(first, min(first + most, end)):
                if windows.begin[last] >= 0 and last - first + 1 >= windows.owned_from[first]:
                    place = int(windows.begin[first]), int(windows.end[last])
                    score = float(scores["span"][first, 0] + scores["span"][last, 1])
                    found[place] = max(score, found.get(place, score))
    passage = example.passage  # type: ignore[union-attr]
    ranked = sorted(((score, passage[start:end]) for (start, end), score in found.items()), reverse=True)
    return ranked, (min(empty) - ranked[0][0] + min(absent)) / 2


@pytest.mark.parametrize("most", [1, 5, 30])
def test_the_best_answers_are_those_that_trying_every_span_of_every_window_finds(small: Tokenizer, most: int) -> None:
    examples = questions(12)
    encoding = encode(made_task("question_answering"), examples, small, 40, stride=11)
    assert len(encoding.sequences.example) > 2 * len(examples)
    scores = random_scores(encoding)
    for number, answers in enumerate(best_answers(examples, encoding, scores, n_best=7, max_answer_tokens=most)):
        ranked, null_score = by_loops(examples[number], number, encoding, scores, most)
        assert [candidate.score for candidate in answers.candidates] == pytest.approx([s for s, _ in ranked[:7]])
        assert [candidate.text for candidate in answers.candidates] == [text for _, text in ranked[:7]]
        assert answers.null_score == pytest.approx(null_score)
        assert sum(candidate.probability for candidate in answers.candidates) == pytest.approx(1)
        passage = examples[number].passage  # type: ignore[union-attr]
        assert all(passage[one.start :].startswith(one.text) for one in answers.candidates)


def test_an_answer_is_the_passage_as_it_was_written_not_as_it_was_tokenized(small: Tokenizer) -> None:
    passage = "«Ångström»  said:\tJANUARY   1900."
    examples: list[Example] = [QuestionExample("a", passage, "when?", ())]
    encoding = encode(made_task("question_answering"), examples, small, 64)
    windows = encoding.windows
    assert windows is not None
    scores = {"span": np.zeros((len(encoding.sequences.ids), 2), np.float32)}
    first = int(np.flatnonzero(windows.begin == passage.index("JANUARY"))[0])
    last = int(np.flatnonzero(windows.end == passage.index("1900") + 4)[-1])
    scores["span"][first, 0] = scores["span"][last, 1] = 9
    [answers] = best_answers(examples, encoding, scores)
    assert answers.text(0.0) == "JANUARY   1900"
    assert answers.text(-100.0) == ""
    assert answers.text(None) == "JANUARY   1900"


def test_without_an_answerability_head_the_null_score_is_what_cls_has_over_the_best_span(small: Tokenizer) -> None:
    examples = questions(3)
    encoding = encode(made_task("question_answering"), examples, small, 128)
    scores = random_scores(encoding)
    del scores["answerability"]
    for answers, start in zip(best_answers(examples, encoding, scores), encoding.sequences.starts, strict=False):
        assert answers.null_score == pytest.approx(scores["span"][start].sum() - answers.candidates[0].score)


def test_a_passage_without_visible_text_has_no_answer_whatever_the_threshold(small: Tokenizer) -> None:
    examples: list[Example] = [QuestionExample("a", " \u200b", "who?", ())]
    encoding = encode(made_task("question_answering"), examples, small, 32)
    [answers] = best_answers(examples, encoding, random_scores(encoding))
    assert (answers.text(None), answers.text(1e9)) == ("", "")
