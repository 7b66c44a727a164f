"""A user's own questions on passages, in tables and in SQuAD's JSON."""

import json
from pathlib import Path

import pytest
from tests.tasks.made_data import squad_json, write_jsonl

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskMetadata, TaskSource, open_task
from openalbert.tasks.task import Answer

PASSAGE = "It was 1900, and again 1900."


@pytest.mark.parametrize(
    "row",
    [
        {"context": PASSAGE, "question": "When?", "answer": "1900"},
        {"passage": PASSAGE, "question": "When?", "answers": ["1900"]},
        {"context": PASSAGE, "question": "When?", "answers": {"text": ["1900"], "answer_start": [7]}},
        {"paragraph": PASSAGE, "query": "When?", "answers": [{"text": "1900", "answer_start": 7}]},
        {"text": PASSAGE, "question": "When?", "answer": "1900", "answer_start": 7},
    ],
)
def test_answers_are_found_in_the_passage_however_they_are_written(row: dict[str, object], tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    task = open_task("question_answering", TaskSource(dev=path))
    (example,) = task.read("dev").examples
    assert (example.passage, example.question, example.answers) == (PASSAGE, "When?", (Answer("1900", 7),))
    assert not task.may_have_no_answer


def test_a_place_in_a_csv_file_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'context,question,answer,answer_start\n"{PASSAGE}",When?,1900,23\n')
    (example,) = open_task("question_answering", TaskSource(dev=path)).read("dev").examples
    assert example.answers == (Answer("1900", 23),)


def test_questions_without_an_answer_make_a_task_that_may_say_so(tmp_path: Path) -> None:
    rows = [{"context": PASSAGE, "question": "When?", "answer": text} for text in ("1900", "")]
    task = open_task("question_answering", TaskSource(train=write_jsonl(tmp_path / "a.jsonl", rows)))
    assert task.may_have_no_answer
    assert [head.kind for head in task.heads] == ["span", "answerability"]
    path = tmp_path / "b.json"
    path.write_text(json.dumps(squad_json(2, 2, without_answer=True)))
    assert open_task("question_answering", TaskSource(train=path, dev=path)).may_have_no_answer
    path.write_text(json.dumps(squad_json(2, 2)))
    task = open_task("question_answering", TaskSource(train=path, dev=path))
    assert not task.may_have_no_answer
    assert len(task.read("dev").examples) == 4


def test_an_empty_answer_is_counted_and_its_row_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'context,question,answer\n"{PASSAGE}",When?,1900\n"{PASSAGE}",Why?,\n"{PASSAGE}",Who?," "\n')
    remarks = open_task("question_answering", TaskSource(dev=path)).read("dev").remarks
    assert f"2 of 3 questions have no answer (first: {path}, line 3)" in remarks


def test_rows_that_ask_nothing_do_not_make_a_task_that_may_say_so(tmp_path: Path) -> None:
    rows = [{"context": PASSAGE, "question": asked, "answer": text} for asked, text in (("When?", "1900"), ("", ""))]
    task = open_task("question_answering", TaskSource(dev=write_jsonl(tmp_path / "a.jsonl", rows)))
    assert not task.may_have_no_answer
    assert len(task.read("dev").examples) == 1


def test_questions_without_an_id_get_one_that_no_other_has(tmp_path: Path) -> None:
    ids = ("1", "", "", "_1", "1")
    rows = [{"id": name, "context": PASSAGE, "question": f"When {n}?", "answer": "1900"} for n, name in enumerate(ids)]
    reading = open_task("question_answering", TaskSource(dev=write_jsonl(tmp_path / "a.jsonl", rows))).read("dev")
    assert [example.id for example in reading.examples] == ["1", "__1", "2", "_1"]
    assert list(reading.excluded.values()) == [1]  # the last, which has the first one's


def test_what_a_model_can_say_comes_before_what_the_file_shows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"context": PASSAGE, "question": "When?", "answer": "1900"}])
    task = open_task("question_answering", TaskSource(dev=path), TaskMetadata(may_have_no_answer=True))
    assert task.may_have_no_answer
    assert "has_answer_f1" in task.measure(task.read("dev").examples, ["1900"])


def test_test_questions_need_no_answer_column(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"context": PASSAGE, "question": "When?"}])
    (example,) = open_task("question_answering", TaskSource(test=path)).read("test").examples
    assert not example.is_labelled
    with pytest.raises(UserError, match=r"which column is the answer\? There are context, question"):
        open_task("question_answering", TaskSource(dev=path))


def test_an_answer_that_is_not_in_the_passage_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"context": PASSAGE, "question": "When?", "answer": text} for text in ("1900", "1901")]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    reading = open_task("question_answering", TaskSource(dev=path)).read("dev")
    assert reading.excluded == {f"whose answer is not in the passage (first: {path}, line 2)": 1}


def test_what_is_read_of_squads_json_is_not_called_unused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    articles = squad_json(2, 2, without_answer=True)
    articles["data"][0]["paragraphs"][0]["qas"][0]["plausible_answers"] = []
    path.write_text(json.dumps(articles))
    remark, of_answers = open_task("question_answering", TaskSource(dev=path)).read("dev").remarks
    assert "questions have no answer" in of_answers
    assert remark.endswith("; not used: plausible_answers")


@pytest.mark.parametrize("place", ["soon", "1.5", "9" * 5000, "--3"])
def test_a_place_that_is_none_is_refused_with_its_row(place: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'context,question,answer,answer_start\n"{PASSAGE}",When?,1900,{place}\n')
    with pytest.raises(
        UserError, match=r"a\.csv, line 2: the answer_start '.{3,40}' is not a whole number of at most 18 digits"
    ):
        open_task("question_answering", TaskSource(dev=path)).read("dev")
