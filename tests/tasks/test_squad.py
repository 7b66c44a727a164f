"""SQuAD's questions are read exactly, and its metrics are those of the official scorers to the last digit."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.made_data import squad_json

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.squad import measure_answers, normalized, overlap, score_answers
from openalbert.tasks.task import Answer, QuestionExample, Reading

PASSAGE = "In 1900 it was 1900 feet."


def read(folder: Path, questions: list[dict[str, Any]], task: str = "squad2", passage: object = PASSAGE) -> Reading:
    whole = {"version": "x", "data": [{"title": "T", "paragraphs": [{"context": passage, "qas": questions}]}]}
    path = folder / "mine.json"
    path.write_text(json.dumps(whole))
    return open_task(task, TaskSource(dev=path)).read("dev")


def question(name: str, *answers: tuple[str, int], **more: object) -> dict[str, Any]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "How high?", "answers": given, **more}


def test_real_questions_are_all_read_and_answers_stand_where_they_say(real_data: Path) -> None:
    reading = open_task("squad2", TaskSource(data=real_data)).read("dev")
    assert len(reading.examples) == 11873
    assert sum(not example.answers for example in reading.examples) == 5945
    assert not reading.excluded
    (remark,) = reading.remarks
    assert remark.startswith("5,945 of 11,873 questions have no answer (first: ")
    for example in reading.examples:
        assert all(example.passage.startswith(answer.text, answer.start) for answer in example.answers)


def test_the_second_of_two_real_questions_with_one_id_is_left_out_and_counted(real_data: Path) -> None:
    reading = open_task("squad1", TaskSource(data=real_data)).read("train")
    assert len(reading.examples) == 7947
    ((reason, count),) = reading.excluded.items()
    assert count == 30
    assert reason.startswith("with the id of another question (first: ")


def test_an_answer_at_a_wrong_place_is_taken_at_the_nearest_occurrence_with_a_remark(tmp_path: Path) -> None:
    for message, found in ((0, 3), (3, 3), (4, 3), (12, 15), (15, 15), (99, 15)):
        reading = read(tmp_path, [question("a", ("1900", message))])
        assert reading.examples[0].answers == (Answer("1900", found),)
        assert bool(reading.remarks) == (message != found)
    assert "1 answers are not at their answer_start" in reading.remarks[0]
    assert "question 1" in reading.remarks[0]


def test_an_answer_that_is_not_in_the_passage_leaves_the_question_out(tmp_path: Path) -> None:
    reading = read(tmp_path, [question("a", ("1900", 3)), question("b", ("1901", 3))])
    assert [example.id for example in reading.examples] == ["a"]
    ((reason, count),) = reading.excluded.items()
    assert (reason, count) == (f"whose answer is not in the passage (first: {tmp_path}/mine.json, question 2)", 1)


def test_one_of_several_answers_that_is_not_in_the_passage_is_dropped_with_a_remark(tmp_path: Path) -> None:
    reading = read(tmp_path, [question("a", ("1900", 3), ("1901", 3))])
    assert reading.examples[0].answers == (Answer("1900", 3),)
    assert reading.remarks[0].startswith("1 questions have answers that are not in the passage")


def test_a_question_without_an_answer_is_of_version_2_only(tmp_path: Path) -> None:
    both = [
        question("a", ("1900", 3)),
        question("b", is_impossible=True),
        question("c", ("1900", 3), is_impossible=True),
    ]
    assert [len(example.answers) for example in read(tmp_path, both).examples] == [1, 0, 0]
    reading = read(tmp_path, both, "squad1")
    assert [example.id for example in reading.examples] == ["a"]
    assert list(reading.excluded.values()) == [2]


def test_passages_keep_every_character(tmp_path: Path) -> None:
    odd = "  \tA\u00a0b \U0001f600 1900\r\n\u2028 end  "
    example = read(tmp_path, [question("a", ("1900", odd.index("1900")))], passage=odd).examples[0]
    assert example.passage == odd
    assert example.answers == (Answer("1900", odd.index("1900")),)


def test_empty_passages_and_questions_are_left_out_and_counted(tmp_path: Path) -> None:
    reading = read(tmp_path, [question("a", ("1900", 3)), {**question("b", ("1900", 3)), "question": " "}])
    assert list(reading.excluded.values()) == [1]
    with pytest.raises(UserError, match="gives no example to squad2: 1 without a passage or a question"):
        read(tmp_path, [question("a", ("1900", 3))], passage="")


def test_questions_without_answers_can_be_predicted_for(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    plain = {"data": [{"title": "T", "paragraphs": [{"context": PASSAGE, "qas": [{"id": "a", "question": "Why?"}]}]}]}
    path.write_text(json.dumps(plain))
    (example,) = open_task("squad2", TaskSource(test=path)).read("test").examples
    assert not example.is_labelled
    with pytest.raises(UserError, match="has no column 'answers'"):
        open_task("squad2", TaskSource(dev=path)).read("dev")


def test_a_question_to_predict_for_with_anothers_id_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    asked = [{"id": "a", "question": "Why?"}, {"id": "a", "question": "When?"}]
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": PASSAGE, "qas": asked}]}]}))
    with pytest.raises(UserError, match=r"1 with the id of another question \(first: .*test\.json, question 2, 'a'\)"):
        open_task("squad2", TaskSource(test=path)).read("test")


@pytest.mark.parametrize(
    ("whole", "sentence"),
    [
        ({"data": 7}, "has no list of objects under 'data'"),
        ({"data": [{"title": "T"}]}, "article 'T' has no list of objects under 'paragraphs'"),
        (
            {"data": [{"title": "T", "paragraphs": [{"context": "x"}]}]},
            "article 'T' has no list of objects under 'qas'",
        ),
        ({"data": [{"paragraphs": [{"context": ["x"], "qas": [question("a")]}]}]}, "'context' is a list, but a text"),
        ({"data": [{"paragraphs": [{"context": "x", "qas": [question("a", ("x", "y"))]}]}]}, "answer_start 'y' is not"),
        ({"data": []}, "has no rows"),
        ({"other": []}, "has no column 'context'"),
    ],
)
def test_a_file_that_is_not_of_squads_form_is_refused(whole: object, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(UserError, match=sentence):
        open_task("squad2", TaskSource(dev=path)).read("dev")


def test_broken_json_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(squad_json(1, 1))[:-9])
    with pytest.raises(UserError, match=r"mine\.json.*not JSON"):
        open_task("squad1", TaskSource(dev=path)).read("dev")


def test_answers_are_compared_with_the_gold_answers_of_their_own_question() -> None:
    examples = [
        QuestionExample("a", "red and blue", "which?", (Answer("red", 0), Answer("blue", 8))),
        QuestionExample("b", "red and blue", "who?", ()),
    ]
    both_right = measure_answers(True)(examples, ["Blue.", ""])
    assert both_right["exact_match"] == both_right["f1"] == 100
    one_right = measure_answers(True)(examples, ["red", "red"])
    assert (one_right["has_answer_f1"], one_right["no_answer_f1"], one_right["f1"]) == (100, 0, 50)


def official(real_data: Path, task: str, file: str) -> dict[str, float]:
    """Published predictions, read and scored in the same way as in every evaluation."""
    squad = open_task(task, TaskSource(data=real_data))
    examples = squad.read("dev").examples
    predicted = json.loads((real_data / "squad" / "official_predictions" / file).read_text())
    return squad.measure(examples, [predicted[example.id] for example in examples])


def test_published_predictions_on_squad_1_score_to_the_last_digit(real_data: Path) -> None:
    metrics = official(real_data, "squad1", "v1.1_BERT_ensemble.json")
    assert metrics == {"exact_match": 86.20624408703878, "f1": 92.19557978351145}


def test_published_predictions_on_squad_2_score_to_the_last_digit(real_data: Path) -> None:
    metrics = official(real_data, "squad2", "v2.0_BERT_single.json")
    assert metrics["exact_match"] == 78.74168280973637
    assert metrics["f1"] == 81.77528052374723
    assert metrics["has_answer_exact_match"] == pytest.approx(74.10594, abs=1e-5)
    assert metrics["has_answer_f1"] == pytest.approx(80.18183, abs=1e-5)
    assert metrics["no_answer_exact_match"] == metrics["no_answer_f1"] == pytest.approx(83.36417, abs=1e-5)


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
    metrics = score_answers([("in 1900", "1900"), ("a red house",)], ["1900", "red"], False)
    assert metrics == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


def test_nothing_predicted_is_right_where_there_is_no_answer() -> None:
    metrics = score_answers([(), (), ("x y",), ("The",)], ["", "x", "", ""], True)
    assert metrics["no_answer_exact_match"] == metrics["no_answer_f1"] == 50.0
    # Version 2.0 takes an answer of articles only for none.
    assert metrics["has_answer_exact_match"] == metrics["has_answer_f1"] == 50.0
    assert metrics["exact_match"] == 50.0


def test_metrics_of_questions_with_or_without_an_answer_are_absent_where_there_are_none() -> None:
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
