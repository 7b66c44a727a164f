"""Which column holds what: by the user's word, by name, by what stands in it; guesses are shown."""

import json
from pathlib import Path

import pytest

from openalbert.errors import UserError
from openalbert.tasks.custom.multiple_choice import first_number
from openalbert.tasks.custom.text import sort_labels
from openalbert.tasks.registry import TaskMetadata, TaskSource, open_task
from openalbert.tasks.task import ChoiceExample, QuestionExample, Reading


def read(folder: Path, text: str, task: str = "classification", **named: object) -> Reading:
    path = folder / "mine.csv"
    path.write_text(text)
    return open_task(task, TaskSource(train=path, dev=path, **named)).read("train")


BODY = "it was good,1,x1\nit was bad,0,x2\nso so it was,1,x3\n"


@pytest.mark.parametrize(
    "header", ["text,label,id", "Sentence,Class,ID", "review,stars,_idx", "body,gold_label,index", "whatever,y,guid"]
)
def test_columns_are_known_by_the_names_that_people_give_them(header: str, tmp_path: Path) -> None:
    reading = read(tmp_path, f"{header}\n{BODY}")
    first = reading.examples[0]
    assert (first.id, first.first, first.second, first.label) == ("x1", "it was good", None, 1)
    names = header.split(",")
    assert f"label from '{names[1]}'" in reading.remarks[0]
    assert f"text from '{names[0]}'" in reading.remarks[0]
    assert "--text-column" in reading.remarks[0]


def test_pairs_are_known_by_name(tmp_path: Path) -> None:
    names_of_pairs = (
        "sentence1,sentence2 premise,hypothesis text,text_pair Question1,Question_2 text_a,text_b textA,textB "
        "text1,text2 sentence_A,sentence_B sent1,sent2 document1,document2 first_sentence,second_sentence"
    )
    for names in names_of_pairs.split():
        first, second = read(tmp_path, f"{names},label\na b,c d,x\ne f,g h,y\n").examples
        assert (first.first, first.second) == ("a b", "c d")
        assert (second.first, second.second) == ("e f", "g h")


def test_columns_that_the_user_names_are_taken_without_a_remark(tmp_path: Path) -> None:
    text = "text,label,a,b\nn1,q,long text,1\nn2,r,other text,0\n"
    reading = read(tmp_path, text, text_column="a", label_column="b")
    assert [example.first for example in reading.examples] == ["long text", "other text"]
    assert reading.remarks == ("f1 is that of the class '1'",)


def test_the_only_column_left_is_the_label_and_the_longest_the_text(tmp_path: Path) -> None:
    reading = read(tmp_path, "colour,remark\nred,it is of a fine red\nblue,nothing but blue\n")
    assert [example.first for example in reading.examples] == ["it is of a fine red", "nothing but blue"]
    assert reading.examples[0].label == 1


@pytest.mark.parametrize(
    "text",
    [
        "it was good,1\nit was bad,0\nso so,1\n",
        "it was good,yes\nit was bad,no\nso so,yes\n",
        "1,it was not as good as they had said\n0,it was bad\n1,so so\n",
    ],
)
def test_a_file_whose_first_line_is_a_row_is_refused_rather_than_lose_it(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the first line should name the columns, but has"):
        read(tmp_path, text)


def test_columns_that_nobody_uses_are_named(tmp_path: Path) -> None:
    reading = read(tmp_path, "text,label,author\na b,x,me\nc d,y,you\n")
    assert "not used: author" in reading.remarks[0]
    reading = read(tmp_path, ",text,label\n0,a b,x\n1,c d,y\n")
    assert "not used: a column without a name" in reading.remarks[0]


def test_a_label_that_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"which column is the label\? There are text, colour, size: name one with --l"):
        read(tmp_path, "text,colour,size\na b,red,1\nc d,blue,2\n")
    with pytest.raises(UserError, match=r"which column is the text\?"):
        read(tmp_path, "label,number\nx,1\ny,2\n")


def test_a_named_column_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no column 'lable' \(--label-column\): did you mean 'label'"):
        read(tmp_path, f"text,label,id\n{BODY}", label_column="lable")


def test_ids_that_repeat_are_not_ids_which_is_a_remark(tmp_path: Path) -> None:
    reading = read(tmp_path, "id,text,label\n7,a b,x\n7,c d,y\n")
    assert [example.id for example in reading.examples] == ["0", "1"]
    assert any("line 3: the id in 'id' is also in" in remark for remark in reading.remarks)
    assert any("row numbers are used instead" in remark for remark in reading.remarks)
    with pytest.raises(UserError, match=r"line 3: the id in 'id' is also in .*line 2: ids must be unique"):
        read(tmp_path, "id,text,label\n7,a b,x\n7,c d,y\n", id_column="id")


def test_labels_are_ordered_as_numbers_where_all_are() -> None:
    assert sort_labels(["10", "9", "1", "9"]) == ("1", "9", "10")
    assert sort_labels(["b", "10", "9"]) == ("10", "9", "b")


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("option1 option2 option3", 1),
        ("ending_0 ending_1", 0),
        ("2 3", None),
        ("option2 option1", None),
        ("a b", None),
        ("a1 b", None),
        ("options1", None),
    ],
)
def test_numbers_of_columns_show_whether_they_count_from_0_or_1(names: str, first: int | None) -> None:
    assert first_number(names.split()) == first


def test_a_file_with_one_column_is_reported_what_it_lacks_and_what_it_is_good_for(tmp_path: Path) -> None:
    sentence = r"which column is the label\? There is only 'text': add a column of that name, label; .* as --test"
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, "text\nit was good\nit was bad\n")


def test_a_guess_names_the_options_that_change_it(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text\nit was good\n")
    task = open_task("classification", TaskSource(test=tmp_path / "mine.csv"), TaskMetadata(labels=("a", "b")))
    [remark] = task.read("test").remarks
    assert remark.endswith("mine.csv: text from 'text' (guessed; change with --text-column)")


def test_one_column_has_one_role(tmp_path: Path) -> None:
    body = "sentence,label\nit was good,x\nit was bad,y\n"
    with pytest.raises(UserError, match=r"'label' is named as the text \(--text-column\), but is already the label"):
        read(tmp_path, body, text_column="label")
    with pytest.raises(UserError, match=r"'sentence' is named as the second .* but is already the text"):
        read(tmp_path, body, second_column="sentence")


TWO_WAYS = "text,label,body,category\nwrong 1,x,right 1,a\nwrong 2,y,right 2,b\n"


@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_columns_of_the_training_file_are_those_of_the_other_files(split: str, tmp_path: Path) -> None:
    train, both = tmp_path / "t1.csv", tmp_path / "both.csv"
    train.write_text("body,category\none,a\ntwo,b\n")
    both.write_text(TWO_WAYS)
    task = open_task("classification", TaskSource(train=train, **{split: both}))
    reading = task.read(split)
    assert [example.first for example in reading.examples] == ["right 1", "right 2"]
    assert [example.label for example in reading.examples] == [0, 1]  # a test file needs none
    assert f"{both}: label from 'category', text from 'body' (as in {train}; " in reading.remarks[0]
    assert "(guessed; " in task.read("train").remarks[0]


def test_columns_other_than_the_training_files_are_guessed_with_a_remark(tmp_path: Path) -> None:
    train, dev = tmp_path / "t1.csv", tmp_path / "dev.csv"
    train.write_text("body,category\none,a\ntwo,b\n")
    dev.write_text("text,category\nthree,a\n")
    reading = open_task("classification", TaskSource(train=train, dev=dev)).read("dev")
    assert reading.examples[0].first == "three"
    differs = (
        f"{dev}: the text is read from 'text', but in {train} it is 'body': is that the same? Change it with --text"
    )
    assert any(remark.startswith(differs) for remark in reading.remarks)


@pytest.mark.parametrize(
    ("kind", "learned", "scored", "seen"),
    [
        ("regression", {"body": "one", "score": 1}, {"text": "wrong", "label": 9, "body": "two", "score": 2},
         ("two", 2)),
        ("multi_label", {"body": "one", "tags": "a;b"},
         {"text": "wrong", "label": "b", "body": "two", "tags": "a", "a": 0, "b": 1}, ("two", (0,))),
        ("multiple_choice", {"query": "one", "choices": ["x", "y"], "gold": "x"},
         {"question": "wrong", "options": ["v", "w"], "answer": "w", "query": "two", "choices": ["x", "y"],
          "gold": "y"}, ("two", 1)),
        ("question_answering", {"article": "one two", "query": "one", "gold": "one"},
         {"passage": "wrong", "question": "wrong", "answer": "wrong", "article": "one two", "query": "two",
          "gold": "two"}, ("two", "two")),
    ],
)  # fmt: skip
def test_the_training_files_columns_hold_for_every_kind(
    kind: str, learned: dict[str, object], scored: dict[str, object], seen: tuple[object, object], tmp_path: Path
) -> None:
    for name, row in (("train", learned), ("dev", scored)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    task = open_task(kind, TaskSource(train=tmp_path / "train.jsonl", dev=tmp_path / "dev.jsonl"))
    (example,) = task.read("dev").examples
    if isinstance(example, QuestionExample):
        assert (example.question, example.answers[0].text) == seen
    elif isinstance(example, ChoiceExample):
        assert (example.question, example.label) == seen
    else:
        assert (example.first, example.label) == seen


def test_a_named_column_may_differ_in_case_where_that_is_clear(tmp_path: Path) -> None:
    reading = read(tmp_path, "Body,Label\na text,x\nanother,y\n", text_column="body", label_column="LABEL")
    assert [example.first for example in reading.examples] == ["a text", "another"]
    with pytest.raises(UserError, match=r"no column 'body' .*did you mean 'Body' or 'BODY'\? Its columns are 'Body', "):
        read(tmp_path, "Body,BODY,label\na text,b,x\nanother,c,y\n", text_column="body", label_column="label")
    with pytest.raises(UserError, match=r"no column 'zzz' \(--text-column\): Its columns are 'Body', 'label'$"):
        read(tmp_path, "Body,label\na text,x\nanother,y\n", text_column="zzz", label_column="label")
