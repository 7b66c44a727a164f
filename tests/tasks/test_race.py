"""RACE in folders, in lines and packed, by school."""

import json
import lzma
from pathlib import Path

import pytest
from tests.tasks.made_data import race_folders, race_passage, write_jsonl

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskSource, open_task

COUNTS = {"race": 4887, "race_middle": 1436, "race_high": 3451}


@pytest.mark.parametrize("name", COUNTS)
def test_real_questions_are_counted_by_school(name: str, real_data: Path) -> None:
    reading = open_task(name, TaskSource(data=real_data)).read("dev")
    assert len(reading.examples) == COUNTS[name]
    assert not reading.excluded
    assert {example.group for example in reading.examples} <= {"middle", "high"}
    assert all(len(example.options) == 4 for example in reading.examples)


@pytest.mark.slow
def test_the_real_training_set_is_read_from_both_its_packed_files(real_data: Path) -> None:
    reading = open_task("race", TaskSource(data=real_data)).read("train")
    assert len(reading.examples) == 76303 + 7066
    assert sum(example.group == "middle" for example in reading.examples) == 25421
    assert not reading.excluded


def test_folders_lines_and_packed_lines_give_the_same_questions(tmp_path: Path) -> None:
    folders = open_task("race", TaskSource(data=race_folders(tmp_path / "folders"))).read("dev").examples
    passages = [race_passage(number, school) for school in ("high", "middle") for number in range(2)]
    lines = write_jsonl(tmp_path / "lines" / "dev.jsonl", passages)
    packed = tmp_path / "packed" / "dev.jsonl.xz"
    packed.parent.mkdir()
    packed.write_bytes(lzma.compress(lines.read_bytes()))
    for folder in (lines.parent, packed.parent):
        assert open_task("race", TaskSource(data=folder)).read("dev").examples == folders
    assert [example.id for example in folders[:3]] == ["high0-0", "high0-1", "high0-2"]
    assert [example.label for example in folders[:3]] == [0, 3, 1]
    assert folders[0].options[1] == "a house"


def test_a_school_is_a_part_of_the_whole(tmp_path: Path) -> None:
    source = TaskSource(data=race_folders(tmp_path))
    parts = [open_task(name, source).read("train").examples for name in ("race_high", "race_middle")]
    assert sum(parts, ()) == open_task("race", source).read("train").examples
    assert [{example.group for example in part} for part in parts] == [{"high"}, {"middle"}]


def test_passages_of_the_two_schools_may_bear_the_same_number(tmp_path: Path) -> None:
    for school in ("middle", "high"):
        folder = tmp_path / "dev" / school
        folder.mkdir(parents=True)
        (folder / "1.txt").write_text(json.dumps({**race_passage(1, school), "id": "1.txt"}))
    reading = open_task("race", TaskSource(data=tmp_path)).read("dev")
    assert len({example.id for example in reading.examples}) == 6
    assert not reading.excluded


def test_a_passage_that_comes_twice_is_left_out_and_counted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "dev.jsonl", [race_passage(1, "high")] * 2)
    reading = open_task("race", TaskSource(dev=path)).read("dev")
    assert len(reading.examples) == 3
    assert reading.excluded == {f"passages with the id of another (first: {path}, line 2, 'high1')": 1}


def test_test_questions_need_no_answers(tmp_path: Path) -> None:
    passage = race_passage(1, "high")
    del passage["answers"]
    path = write_jsonl(tmp_path / "test.jsonl", [passage])
    assert [example.label for example in open_task("race", TaskSource(test=path)).read("test").examples] == [None] * 3


def test_a_question_to_predict_for_without_options_is_refused(tmp_path: Path) -> None:
    passage = race_passage(1, "high")
    passage["options"][1] = ["only one"]
    path = write_jsonl(tmp_path / "test.jsonl", [passage])
    with pytest.raises(UserError, match=r"1 with fewer than two options \(first: .*test\.jsonl, line 1, 'high1-1'\)"):
        open_task("race", TaskSource(test=path)).read("test")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"answers": ["A", "B"]}, "3 questions, 3 lists of options and 2 answers"),
        ({"answers": ["A", "E", "B"]}, "'high1-1': the answer 'E' is none of A, B, C, D"),
        ({"answers": ["A", "", "B"]}, "the answer '' is none of"),
        ({"options": ["a", "b", "c"]}, "the options of a question are not a list"),
        ({"options": None}, "has no lists of questions, options and answers"),
        ({"questions": None}, "has no lists of questions, options and answers"),
        ({"article": ""}, "gives no example to race: 3 without a passage"),
        ({"options": [["a"]] * 3}, "3 with fewer than two options"),
    ],
)
def test_what_is_wrong_with_a_passage_is_reported_with_its_place(change: object, sentence: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "dev.jsonl", [{**race_passage(1, "high"), **change}])
    with pytest.raises(UserError, match=sentence) as message:
        open_task("race", TaskSource(dev=path)).read("dev")
    assert str(path) in str(message.value)


def test_a_file_that_is_no_passage_is_named(tmp_path: Path) -> None:
    race_folders(tmp_path)
    (tmp_path / "RACE" / "dev" / "high" / "0.txt").write_text("[1]")
    with pytest.raises(UserError, match=r"high/0\.txt is not a passage of RACE"):
        open_task("race", TaskSource(data=tmp_path)).read("dev")


def test_a_file_of_the_other_school_alone_says_what_it_has(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "dev.jsonl", [race_passage(number, "high") for number in range(2)])
    with pytest.raises(UserError) as message:
        open_task("race_middle", TaskSource(dev=path)).read("dev")
    assert (
        str(message.value) == f"{path} gives no example to race_middle: it has 2 passages, and none is of middle school"
    )
    assert len(open_task("race_high", TaskSource(dev=path)).read("dev").examples) == 6
    one = {"example_id": "middle1.txt", "article": "a", "question": "q", "options": ["x", "y"], "answer": "A"}
    with pytest.raises(UserError, match="it has 1 question, and none is of high school"):
        open_task("race_high", TaskSource(dev=write_jsonl(path, [one]))).read("dev")
