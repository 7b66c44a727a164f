"""SQuAD's figures: those of the official scorers to the last digit, and by exact arithmetic."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.squad_score import normalized, overlap, score_answers


def official(real_data: Path, task: str, file: str) -> dict[str, float]:
    """Published predictions, read and scored by the way that every evaluation takes."""
    squad = open_task(task, TaskSource(data=real_data))
    examples = squad.read("dev").examples
    predicted = json.loads((real_data / "squad" / "official_predictions" / file).read_text())
    return squad.measure(examples, [predicted[example.id] for example in examples])


def test_published_predictions_on_squad_1_score_to_the_last_digit(real_data: Path) -> None:
    figures = official(real_data, "squad1", "v1.1_BERT_ensemble.json")
    assert figures == {"exact_match": 86.20624408703878, "f1": 92.19557978351145}


def test_published_predictions_on_squad_2_score_to_the_last_digit(real_data: Path) -> None:
    figures = official(real_data, "squad2", "v2.0_BERT_single.json")
    assert figures["exact_match"] == 78.74168280973637
    assert figures["f1"] == 81.77528052374723
    assert figures["has_answer_exact_match"] == pytest.approx(74.10594, abs=1e-5)
    assert figures["has_answer_f1"] == pytest.approx(80.18183, abs=1e-5)
    assert figures["no_answer_exact_match"] == figures["no_answer_f1"] == pytest.approx(83.36417, abs=1e-5)


@pytest.mark.parametrize(
    ("answer", "compared"),
    [
        ("The  Tower,\tof LONDON!", "tower of london"),
        ("a-b", "ab"),
        ("an the A", ""),
        ("theatre anthem", "theatre anthem"),
        ("the\u2013end", "\u2013end"),
        ("£5 “x”", "£5 “x”"),
        ("_the_", ""),
    ],
)
def test_case_punctuation_articles_and_spaces_are_not_compared(answer: str, compared: str) -> None:
    assert normalized(answer) == compared


WORDS = st.lists(st.sampled_from(["red", "blue", "the", "x.", "Red", "1"]), max_size=6).map(" ".join)


@given(WORDS, WORDS)
def test_f1_is_twice_the_common_words_by_all_words(gold: str, predicted: str) -> None:
    wanted, given_words = normalized(gold).split(), normalized(predicted).split()
    left, same = list(wanted), 0
    for word in given_words:
        if word in left:
            left.remove(word)
            same += 1
    expected = Fraction(2 * same, len(wanted) + len(given_words)) if same else Fraction(0)
    assert overlap(normalized(gold), normalized(predicted), False) == pytest.approx(float(expected))
    both_empty = not wanted and not given_words
    assert overlap(normalized(gold), normalized(predicted), True) == pytest.approx(
        1.0 if both_empty else float(expected)
    )


def test_the_best_of_the_gold_answers_counts() -> None:
    figures = score_answers([("in 1900", "1900"), ("a red house",)], ["1900", "red"], False)
    assert figures == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


def test_nothing_predicted_is_right_where_there_is_no_answer() -> None:
    figures = score_answers([(), (), ("x y",), ("The",)], ["", "x", "", ""], True)
    assert figures["no_answer_exact_match"] == figures["no_answer_f1"] == 50.0
    # Version 2.0 takes an answer of articles only for none.
    assert figures["has_answer_exact_match"] == figures["has_answer_f1"] == 50.0
    assert figures["exact_match"] == 50.0


def test_figures_of_one_side_are_left_out_where_there_is_none() -> None:
    assert set(score_answers([("x",)], ["x"], True)) == {
        "exact_match",
        "f1",
        "has_answer_exact_match",
        "has_answer_f1",
    }


def test_version_1_finds_no_common_words_where_there_are_none() -> None:
    assert score_answers([("The",)], ["a"], False) == {"exact_match": 100.0, "f1": 0.0}


def test_version_1_counts_a_question_without_gold_answers_as_wrong() -> None:
    assert score_answers([(), ("x",)], ["x", "x"], False) == {"exact_match": 50.0, "f1": 50.0}


def test_a_question_without_a_prediction_is_no_score() -> None:
    with pytest.raises(ValueError, match="zip"):
        score_answers([("x",), ("y",)], ["x"], False)
