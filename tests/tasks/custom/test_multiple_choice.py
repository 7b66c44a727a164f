"""A user's own questions with options, however the file writes them."""

from pathlib import Path
from typing import Any

import pytest
from tests.tasks.made_data import write_jsonl

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskMetadata, TaskSource, open_task
from openalbert.tasks.task import Reading


def read(path: Path, **named: object) -> Reading:
    return open_task("multiple_choice", TaskSource(dev=path, **named)).read("dev")


def rows(*answers: object) -> list[dict[str, Any]]:
    return [{"question": "q", "options": ["red", "blue", "green"], "answer": answer} for answer in answers]


@pytest.mark.parametrize(
    ("answers", "answer_format"),
    [
        (("red", "green", "blue"), "option text"),
        (("A", "c", "B"), "letter"),
        ((0, 2, 1), "number from 0"),
        (("1", "3", "2"), "number from 1"),
    ],
)
def test_the_right_option_is_written_in_any_of_four_ways(
    answers: tuple[object, ...], answer_format: str, tmp_path: Path
) -> None:
    reading = read(write_jsonl(tmp_path / "a.jsonl", rows(*answers)))
    assert [example.label for example in reading.examples] == [0, 2, 1]
    assert any(f"answer format: {answer_format}" in remark for remark in reading.remarks)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "context,question,option1,option2,option3,answer\np,q,red,blue,,B\np,q,red,blue,green,C\n",
            "columns option1, option2, option3",
        ),
        ("Passage,Question,A,B,C,Answer\np,q,red,blue,,B\np,q,red,blue,green,C\n", "columns A, B, C"),
        ("article,question,options,label\np,q,red|blue,1\np,q,red | blue | green,2\n", "column options"),
    ],
)
def test_options_stand_in_columns_or_in_one(text: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    first, second = read(path).examples
    assert first.options == ("red", "blue")
    assert second.options == ("red", "blue", "green")
    assert f"{path}: the options are in the {where}" in read(path).remarks
    assert (first.label, second.label) == (1, 2)
    assert (first.passage, first.question) == ("p", "q")


def test_options_with_their_letters_as_datasets_write_them_are_understood(tmp_path: Path) -> None:
    row = {"question": "q", "choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answerKey": "B"}
    (example,) = read(write_jsonl(tmp_path / "a.jsonl", [row])).examples
    assert (example.options, example.label, example.passage) == (("red", "blue"), 1, "")


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("start,go_on,end_x,end_y,best\nHe ran,and,fell,flew,1\nShe ran,and,fell,flew,0\n")
    named = {"passage_column": "start", "question_column": "go_on", "answer_column": "best"}
    examples = read(path, options_columns=("end_x", "end_y"), **named).examples
    assert [example.label for example in examples] == [1, 0]
    assert examples[0].options == ("fell", "flew")
    assert read(path, options_columns=("End_X", "END_Y"), **named).examples == examples
    with pytest.raises(UserError, match="has no column 'end_z' \\(--options-columns\\): did you mean 'end_y'"):
        read(path, options_columns=("end_x", "end_z"), **named)


def test_wrong_rows_are_counted_or_refused_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    few = {"question": "q", "options": ["red"], "answer": "red"}
    reading = read(write_jsonl(path, [*rows("red", ""), few]))
    assert len(reading.examples) == 1
    assert reading.excluded == {
        f"without an answer (first: {path}, line 2)": 1,
        f"with fewer than two options (first: {path}, line 3)": 1,
    }
    with pytest.raises(UserError, match=r"line 2: the answer '7', read as number from 0, is none of the 3 options"):
        read(write_jsonl(path, rows(0, 7)))
    with pytest.raises(UserError, match=r"line 2: the answer 'pink', read as option text, is none"):
        read(write_jsonl(path, rows("red", "pink")))


@pytest.mark.parametrize(
    ("header", "role"), [("question,answer", "options"), ("options,answer", "question"), ("question,options", "answer")]
)
def test_a_role_without_a_column_is_asked_for(header: str, role: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\nx|y,z\n")
    with pytest.raises(UserError, match=rf"which column is the {role}\?"):
        read(path)


@pytest.mark.parametrize(("options", "number"), [([], "0 options"), (["red"], "1 option"), ("", "0 options")])
def test_a_row_to_predict_for_that_has_nothing_to_choose_from_is_refused(
    options: object, number: str, tmp_path: Path
) -> None:
    """It cannot be left out: a file of predictions has all rows."""
    path = write_jsonl(tmp_path / "a.jsonl", [*rows("red"), {"question": "q", "options": options}])
    with pytest.raises(UserError, match=f"line 2 has {number}, and at least two are needed"):
        open_task("multiple_choice", TaskSource(test=path)).read("test")


@pytest.mark.parametrize(
    "text",
    [
        "question,option_a,option_b,option_c,answer\nq,red,blue,green,A\nq,red,,green,C\n",
        "question,options,answer\nq,red|blue|green,A\nq,red||green,C\n",
        "question,options,answer\nq,|red|blue|green|,A\nq,| red | | green |,C\n",
    ],
)
def test_an_empty_option_among_others_keeps_its_place_and_is_reported(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    reading = read(path)
    assert [(example.options, example.label) for example in reading.examples] == [
        (("red", "blue", "green"), 0),
        (("red", "", "green"), 2),
    ]
    message = f"1 question with an empty option, which is kept (first: {path}, line 3)"
    assert message in reading.remarks
    path.write_text(text.splitlines()[0] + "\n" + text.splitlines()[1] + "\n")
    assert not any("empty option" in remark for remark in read(path).remarks)


def test_the_training_files_way_of_writing_the_answer_holds_for_what_is_scored_on(tmp_path: Path) -> None:
    """Alone, a file in which no last option is right would be read as counting from 0."""
    train = write_jsonl(tmp_path / "train.jsonl", rows(1, 2, 3))
    dev = write_jsonl(tmp_path / "dev.jsonl", rows(1, 2))
    assert [example.label for example in read(dev).examples] == [1, 2]
    task = open_task("multiple_choice", TaskSource(train=train, dev=dev))
    assert task.answer_format == "number from 1"
    reading = task.read("dev")
    assert [example.label for example in reading.examples] == [0, 1]
    assert f"{dev}: answer format: number from 1, as in {train}" in reading.remarks
    assert [example.label for example in task.read("train").examples] == [0, 1, 2]
    taught = open_task("multiple_choice", TaskSource(dev=dev), TaskMetadata(answer_format="number from 1"))
    assert [example.label for example in taught.read("dev").examples] == [0, 1]


@pytest.mark.parametrize(
    ("learned", "odd"), [((1, 2, 3), "red"), (("A", "C"), "red"), (("A", "C"), 1), (("red",), "A"), ((1, 2, 3), 7)]
)
def test_an_answer_that_is_written_in_another_way_than_the_others_is_refused(
    learned: tuple[object, ...], odd: object, tmp_path: Path
) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", rows(*learned))
    dev = write_jsonl(tmp_path / "dev.jsonl", rows(learned[0], odd))
    message = rf"dev\.jsonl, line 2: the answer '{odd}', read as .*, as in .*train\.jsonl, is none of the 3 options"
    with pytest.raises(UserError, match=message):
        open_task("multiple_choice", TaskSource(train=train, dev=dev)).read("dev")


@pytest.mark.parametrize(
    ("learned", "scored", "answer_format"),
    [
        ((1, 2, 3), ("A", "c"), "letter"),
        ((1, 2, 3), ("red", "green"), "option text"),
        ((1, 2, 3), (0, 2), "number from 0"),
        ((0, 1, 2), (1, 3), "number from 1"),
        (("A", "C"), ("red", "green"), "option text"),
        (("red", "blue"), (1, 3), "number from 1"),
        (("red", "blue"), (0, 2), "number from 0"),
    ],
)
def test_a_file_that_is_written_in_another_way_throughout_is_read_in_that_with_a_remark(
    learned: tuple[object, ...], scored: tuple[object, ...], answer_format: str, tmp_path: Path
) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", rows(*learned))
    dev = write_jsonl(tmp_path / "dev.jsonl", rows(*scored))
    task = open_task("multiple_choice", TaskSource(train=train, dev=dev))
    reading = task.read("dev")
    assert [example.label for example in reading.examples] == [0, 2]
    message = f"{dev}: answer format: {answer_format}, but in {train} it is {task.answer_format}"
    assert message in reading.remarks
    assert len(task.read("train").examples) == len(learned)


def test_numbers_that_could_count_from_0_or_1_say_so_where_nothing_tells(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", rows("A", "C"))
    dev = write_jsonl(tmp_path / "dev.jsonl", rows(1, 2))
    reading = open_task("multiple_choice", TaskSource(train=train, dev=dev)).read("dev")
    assert [example.label for example in reading.examples] == [1, 2]
    assert any("format: number from 0" in one and "from 1 would fit as well" in one for one in reading.remarks)


@pytest.mark.parametrize(
    ("columns", "first", "message"),
    [
        ("option1,option2,option3", 1, "1, like the columns of the options; from 0 would fit as well: if that"),
        ("ending0,ending1,ending2", 0, "0, like the columns of the options; from 1 would fit as well: if that"),
        ("a,b,c", 0, "0; from 1 would fit as well: if that is meant, write letters (A is the first) or the texts"),
    ],
)
def test_numbers_that_fit_from_0_and_from_1_count_like_the_columns_and_both_are_reported(
    columns: str, first: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"question,{columns},answer\nq,red,blue,green,1\nq,red,blue,green,2\n")
    task = open_task("multiple_choice", TaskSource(train=path, dev=path))
    assert task.answer_format == f"number from {first}"
    reading = task.read("train")
    assert [example.label for example in reading.examples] == [1 - first, 2 - first]
    assert any(f"{path}: answer format: number from {message}" in remark for remark in reading.remarks)


@pytest.mark.parametrize(("answers", "first"), [((0, 1, 2), 0), ((1, 2, 3), 1)])
def test_numbers_that_fit_in_one_way_are_read_in_it_whatever_the_columns_say(
    answers: tuple[int, ...], first: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    for columns in ("option1,option2,option3", "ending0,ending1,ending2"):
        path.write_text(f"question,{columns},answer\n" + "".join(f"q,red,blue,green,{right}\n" for right in answers))
        reading = read(path)
        assert [example.label for example in reading.examples] == [0, 1, 2]
        assert f"{path}: answer format: number from {first}" in reading.remarks


def test_questions_with_options_that_are_alike_are_counted_and_reported(tmp_path: Path) -> None:
    alike = [{"question": "q", "options": ["red", "blue", "red"], "answer": "red"}] * 2
    path = write_jsonl(tmp_path / "a.jsonl", [*rows("red"), *alike])
    message = f"2 questions with equal options, of which one at most counts as right (first: {path}, line 2)"
    assert message in read(path).remarks
    assert len(read(path).examples) == 3
    unlabelled = open_task("multiple_choice", TaskSource(test=path)).read("test")
    plain = read(write_jsonl(path, rows("red", "blue")))
    assert not any("alike" in remark for remark in (*unlabelled.remarks, *plain.remarks))


def test_a_number_beyond_all_options_is_refused_however_long(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", rows("0", "1", "9" * 5000))
    with pytest.raises(UserError, match=r"a\.jsonl, line 3: the answer '9{40}', read as number from 0, is none of"):
        read(path)
