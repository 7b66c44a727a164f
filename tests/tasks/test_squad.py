"""SQuAD's questions: characters exact, nothing lost without a word."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.made_data import squad_json

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.task import Answer, Reading

PASSAGE = "In 1900 it was 1900 feet."


def read(folder: Path, questions: list[dict[str, Any]], task: str = "squad2", passage: object = PASSAGE) -> Reading:
    whole = {"version": "x", "data": [{"title": "T", "paragraphs": [{"context": passage, "qas": questions}]}]}
    path = folder / "mine.json"
    path.write_text(json.dumps(whole))
    return open_task(task, TaskSource(dev=path)).read("dev")


def question(name: str, *answers: tuple[str, int], **more: object) -> dict[str, Any]:
    told = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "How high?", "answers": told, **more}


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


def test_an_answer_at_a_wrong_place_is_taken_where_it_stands_nearest_and_that_is_said(tmp_path: Path) -> None:
    for told, found in ((0, 3), (3, 3), (4, 3), (12, 15), (15, 15), (99, 15)):
        reading = read(tmp_path, [question("a", ("1900", told))])
        assert reading.examples[0].answers == (Answer("1900", found),)
        assert bool(reading.remarks) == (told != found)
    assert "1 answers do not stand at their answer_start" in reading.remarks[0]
    assert "question 1" in reading.remarks[0]


def test_an_answer_that_is_not_in_the_passage_leaves_the_question_out(tmp_path: Path) -> None:
    reading = read(tmp_path, [question("a", ("1900", 3)), question("b", ("1901", 3))])
    assert [example.id for example in reading.examples] == ["a"]
    ((reason, count),) = reading.excluded.items()
    assert (reason, count) == (f"whose answer is not in the passage (first: {tmp_path}/mine.json, question 2)", 1)


def test_one_of_several_answers_that_is_not_in_the_passage_is_dropped_and_that_is_said(tmp_path: Path) -> None:
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
