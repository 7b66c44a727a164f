"""A user's own texts: classes, values and sets of labels, with every kind of wrong row."""

import json
from pathlib import Path

import pytest
from tests.tasks.made_data import write_jsonl

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskMetadata, TaskSource, open_task
from openalbert.tasks.task import Task


def opened(folder: Path, task: str, train: str, dev: str | None = None, **named: object) -> Task:
    """A task from CSV texts."""
    (folder / "train.csv").write_text(train)
    if dev is not None:
        (folder / "dev.csv").write_text(dev)
    return open_task(
        task, TaskSource(train=folder / "train.csv", dev=folder / "dev.csv" if dev is not None else None, **named)
    )


CLASSES = "text,label\nso good,good\nso bad,bad\nas usual,good\n"


def test_labels_are_those_of_the_training_file(tmp_path: Path) -> None:
    task = opened(tmp_path, "classification", CLASSES, "text,label\nnot so bad,good\n")
    assert task.labels == ("bad", "good")
    assert [example.label for example in task.read("train").examples] == [1, 0, 1]
    assert task.read("dev").examples[0].label == 1


def test_a_label_of_dev_that_train_does_not_have_is_refused_with_its_place(tmp_path: Path) -> None:
    task = opened(tmp_path, "classification", CLASSES, "text,label\nso so,good\nhm,neutral\n")
    with pytest.raises(UserError, match=r"dev\.csv, line 3: the label 'neutral' in 'label' is not known: .* bad, good"):
        task.read("dev")


def test_one_class_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.csv has only one class, 'x', in 'label': there is nothing to learn"):
        opened(tmp_path, "classification", "text,label\na,x\nb,x\n")
    with pytest.raises(UserError, match="has no class at all in 'label'"):
        opened(tmp_path, "classification", "text,label\na,\nb,\n")


def test_a_column_of_texts_is_not_taken_for_classes(tmp_path: Path) -> None:
    rows = "".join(f"text {n},label {n}\n" for n in range(30))
    with pytest.raises(UserError, match="has 30 classes in 30 rows of 'label': that is not a column of classes"):
        opened(tmp_path, "classification", f"text,label\n{rows}")


def test_rows_without_text_or_label_are_left_out_and_counted(tmp_path: Path) -> None:
    task = opened(tmp_path, "classification", CLASSES + ",good\n   ,bad\nno label,\n", CLASSES)
    reading = task.read("train")
    assert len(reading.examples) == 3
    assert reading.excluded == {
        f"without a text (first: {tmp_path}/train.csv, line 5)": 2,
        f"without a label (first: {tmp_path}/train.csv, line 7)": 1,
    }


INVISIBLE = ["\u200b", "\ufeff", "\x00\x1b", " \u00ad\u2060 ", "\u3164", "\u2800\ufe0f", "\u202e\u200f"]


@pytest.mark.parametrize("blank", INVISIBLE)
def test_texts_in_which_nothing_is_to_be_seen_are_none(blank: str, tmp_path: Path) -> None:
    rows = [{"text": "so good", "label": "a"}, {"text": "so\u200bbad", "label": "b"}, {"text": blank, "label": "b"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    reading = open_task("classification", TaskSource(train=path, dev=path)).read("dev")
    assert [example.first for example in reading.examples] == ["so good", "so\u200bbad"]
    assert reading.excluded == {f"without a text (first: {path}, line 3)": 1}
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\nso good\t1\n{blank}\t0\n")
    reading = open_task("sst2", TaskSource(dev=tmp_path / "dev.tsv")).read("dev")
    assert (len(reading.examples), sum(reading.excluded.values())) == (1, 1)


def test_every_row_of_a_test_file_gives_an_example_and_those_without_a_text_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text('text\n"one"\n""\n" "\n\u200b\ntwo\n')
    (tmp_path / "train.csv").write_text(CLASSES)
    task = open_task("classification", TaskSource(train=tmp_path / "train.csv", test=path))
    reading = task.read("test")
    assert [example.first for example in reading.examples] == ["one", "", "", "", "two"]
    assert reading.remarks[-1] == f"3 rows without a text (first: {path}, line 3): predicted nevertheless"
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tone\n1\t\u200b\n")
    reading = open_task("sst2", TaskSource(test=tmp_path / "test.tsv")).read("test")
    assert len(reading.examples) == 2
    assert reading.remarks == (f"1 row without a text (first: {tmp_path}/test.tsv, line 3): predicted nevertheless",)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("task", ["classification", "regression", "multi_label"])
def test_a_label_that_is_nan_is_none_and_whole_numbers_are_written_as_such(
    task: str, ending: str, tmp_path: Path
) -> None:
    rows = [{"text": f"t{n}", "label": label} for n, label in enumerate([0.0, 1.0, float("nan"), 1.0])]
    path = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        write_jsonl(path, rows)
    elif ending == "csv":
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    opened = open_task(task, TaskSource(train=path, dev=path))
    assert opened.labels == (() if task == "regression" else ("0", "1"))
    reading = opened.read("dev")
    expected = [(0,), (1,), (1,)] if task == "multi_label" else [0, 1, 1]
    assert [example.label for example in reading.examples] == expected
    [(reason, count)] = reading.excluded.items()
    assert (reason.split(" (")[0], count) == ("without a label", 1)


@pytest.mark.parametrize("task", ["classification", "multi_label"])
@pytest.mark.parametrize("labels", [("0.0", "1.0"), ("0", "1")])  # the first are those of a model of long ago
def test_a_model_of_whole_numbers_takes_them_as_ints_and_as_floats(
    labels: tuple[str, str], task: str, tmp_path: Path
) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv", write_jsonl(tmp_path / "c.jsonl", [{"text": "a", "label": 1.0}])]
    files[0].write_text("text,label\na,1\nb,0.0\nc,NaN\nd,1.0\n")
    files[1].write_text("text,label\na,1.00\n")
    for file, expected in zip(files, ([1, 0, 1], [1], [1]), strict=True):
        reading = open_task(task, TaskSource(dev=file), TaskMetadata(labels)).read("dev")
        found = [example.label for example in reading.examples]
        assert found == ([(number,) for number in expected] if task == "multi_label" else expected)
    files[1].write_text("text,label\na,2.0\n")
    with pytest.raises(UserError, match=rf"the label '2\.0' .*is not known: known are {', '.join(labels)}"):
        open_task(task, TaskSource(dev=files[1]), TaskMetadata(labels)).read("dev")


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_numbers_are_the_same_classes_however_a_file_writes_them(task: str, tmp_path: Path) -> None:
    values = [1.0, 1.5, 0.0, 2.0]
    lines = write_jsonl(tmp_path / "a.jsonl", [{"text": f"t{n}", "label": value} for n, value in enumerate(values)])
    table = tmp_path / "a.csv"
    table.write_text("text,label\n" + "".join(f"t{n},{value}\n" for n, value in enumerate(values)))
    for path in (lines, table):
        assert open_task(task, TaskSource(train=path, dev=path)).labels == ("0", "1", "1.5", "2")


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_nan_among_words_is_a_label_and_is_reported(task: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,grandma\nb,nan\nc,version 1.0\nd,1.0\ne,nan\n")
    opened = open_task(task, TaskSource(train=path, dev=path))
    assert opened.labels == ("1.0", "grandma", "nan", "version 1.0")
    reading = opened.read("train")
    assert len(reading.examples) == 5
    message = "'nan' in 'label' is taken for a label like the others (2 rows): if it means a missing label, leave the"
    assert any(message in remark for remark in reading.remarks)


def test_a_row_with_nan_for_a_flag_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,red,blue\na,1.0,0.0\nb,NaN,1.0\nc,0.0,0.0\n")
    reading = open_task("multi_label", TaskSource(train=path, dev=path, label_columns=("red", "blue"))).read("dev")
    assert [example.label for example in reading.examples] == [(0,), ()]
    assert reading.excluded == {f"without a label (first: {path}, line 3)": 1}


def test_labels_may_be_numbers_or_yes_and_no_in_json(tmp_path: Path) -> None:
    for labels, names in (([3, 1, 3], ("1", "3")), ([True, False, True], ("false", "true"))):
        path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"t{n}", "label": one} for n, one in enumerate(labels)])
        task = open_task("classification", TaskSource(train=path, dev=path))
        assert task.labels == names
        assert [example.label for example in task.read("dev").examples] == [1, 0, 1]


def test_texts_of_a_hundred_thousand_characters_are_whole(tmp_path: Path) -> None:
    long = "word " * 20_000
    task = opened(tmp_path, "classification", f"{CLASSES}{long},bad\n", CLASSES)
    assert task.read("train").examples[-1].first == long.strip()


def test_values_are_numbers(tmp_path: Path) -> None:
    task = opened(tmp_path, "regression", "text,score\na,1\nb,-2.5e-1\nc,\n", "text,score\na,3\n")
    reading = task.read("train")
    assert [example.label for example in reading.examples] == [1.0, -0.25]
    assert reading.excluded == {f"without a label (first: {tmp_path}/train.csv, line 4)": 1}
    assert task.labels == ()
    for wrong in ("much", "nano", "inf", "1,5"):
        bad = opened(tmp_path, "regression", f'text,score\na,1\nb,"{wrong}"\n', "text,score\na,3\n")
        with pytest.raises(UserError, match=rf"train\.csv, line 3: '{wrong}' in 'score' is not a number"):
            bad.read("train")


SETS = [(0, 2), (), (1,)]


def test_values_that_are_all_alike_count_less_than_values_that_are_near_however_they_correlate(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,value\n" + "".join(f"line {number},{number}\n" for number in range(20)))
    task = open_task("regression", TaskSource(train=tmp_path / "a.csv", dev=tmp_path / "a.csv"))
    examples = task.read("dev").examples
    alike = task.measure(examples, [9.5 + 0.001 * number for number in range(20)])
    near = task.measure(examples, [number + (2 if number % 2 else -2) for number in range(20)])
    assert alike["pearson"] > near["pearson"]
    assert alike[task.main_metric] < near[task.main_metric]


@pytest.mark.parametrize(
    "train",
    [
        "text,labels\na,new; war\nb,\nc,old\n",
        'text,labels\na,"new,war"\nb,\nc,old\n',
        "text,tags\na,war|new\nb,\nc,old\n",
        "text,new,old,war\na,1,0,1\nb,0,0,0\nc,0,1,0\n",
        "id,new,old,war,comment_text\nx,True,False,True,a\ny,False,False,False,b\nz,False,True,False,c\n",
    ],
)
def test_sets_of_labels_stand_in_one_column_or_in_one_each(train: str, tmp_path: Path) -> None:
    task = opened(tmp_path, "multi_label", train, train)
    assert task.labels == ("new", "old", "war")
    reading = task.read("dev")
    assert [example.label for example in reading.examples] == SETS
    assert [example.first for example in reading.examples] == ["a", "b", "c"]
    assert reading.remarks


def test_the_sign_between_labels_is_reported_and_one_that_would_cut_a_known_label_is_not_taken(tmp_path: Path) -> None:
    rows = 'text,labels\na,"food, drink"\nb,food\n'
    task = opened(tmp_path, "multi_label", rows, rows)
    assert task.labels == ("drink", "food")
    message = "',' separates labels in 'labels' ({}; change with --label-separator)"
    assert task.read("train").remarks[-1] == f"{tmp_path}/train.csv: {message.format('guessed')}"
    assert f"{tmp_path}/dev.csv: {message.format(f'as in {tmp_path}/train.csv')}" in task.read("dev").remarks
    assert not [
        message
        for message in opened(tmp_path, "multi_label", rows, rows, label_separator=",").read("dev").remarks
        if "stands between" in message
    ]
    task = opened(
        tmp_path, "multi_label", 'text,labels\na,"food, fresh;drink"\nb,drink\n', 'text,labels\na,"food, fresh"\n'
    )
    assert task.labels == ("drink", "food, fresh")
    reading = task.read("dev")
    assert [example.label for example in reading.examples] == [(1,)]
    assert not [message for message in reading.remarks if "stands between" in message]


def test_sets_of_labels_are_lists_in_json(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "labels": ["war", "new", "new"]},
        {"text": "b", "labels": []},
        {"text": "c", "labels": ["old"]},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", [*rows, {"text": "d", "labels": None}])
    task = open_task("multi_label", TaskSource(train=path, dev=path))
    reading = task.read("dev")
    assert [example.label for example in reading.examples] == SETS
    assert list(reading.excluded.values()) == [1]


def test_named_columns_of_flags_hold_nothing_but_0_and_1(tmp_path: Path) -> None:
    task = opened(tmp_path, "multi_label", "text,x,y\na,1,0\nb,0,2\n", "text,x,y\na,1,0\n", label_columns=("x", "y"))
    with pytest.raises(UserError, match=r"train\.csv, line 3: '2' in 'y' is neither 0 nor 1"):
        task.read("train")
    assert not [remark for remark in task.read("dev").remarks if "is a label" in remark]
    with pytest.raises(UserError, match="has no column 'z' \\(--label-columns\\): Its columns are 'text', 'x', 'y'"):
        opened(tmp_path, "multi_label", "text,x,y\na,1,0\n", label_columns=("x", "z"))


def test_named_label_columns_may_differ_in_case_from_the_files(tmp_path: Path) -> None:
    train, dev = "text,Old,new\na,1,0\nb,0,1\n", "text,OLD,New\nc,1,1\n"
    task = opened(tmp_path, "multi_label", train, dev, label_columns=("old", "NEW"))
    assert task.labels == ("Old", "new")
    assert [example.label for example in task.read("train").examples] == [(0,), (1,)]
    assert [example.label for example in task.read("dev").examples] == [(0, 1)]
    with pytest.raises(UserError, match=r"no column 'old' \(--label-columns\): did you mean 'Old' or 'OLD'"):
        opened(tmp_path, "multi_label", "text,Old,OLD\na,1,0\n", label_columns=("old",))
    with pytest.raises(UserError, match=r"--label-columns names the column 'Old' of .*train\.csv twice"):
        opened(tmp_path, "multi_label", train, label_columns=("old", "Old"))


def test_a_remark_names_the_class_of_f1_where_there_are_two(tmp_path: Path) -> None:
    task = opened(tmp_path, "classification", "text,label\na,spam\nb,ham\nc,spam\n", "text,label\nd,ham\ne,spam\n")
    assert task.labels == ("ham", "spam")
    assert task.read("dev").remarks[-1] == "f1 is that of the class 'spam'"
    both = task.read("train").examples
    assert task.measure(both, [1, 1, 1])["f1"] == pytest.approx(80)  # precision 2/3 and recall 1 of spam
    assert task.measure(both, [0, 0, 0])["f1"] == 0
    three = opened(tmp_path, "classification", "text,label\na,x\nb,y\nc,z\n", "text,label\nd,x\n").read("dev")
    assert not any("f1" in remark for remark in three.remarks)


def test_a_label_in_a_set_that_train_does_not_have_is_refused(tmp_path: Path) -> None:
    task = opened(tmp_path, "multi_label", "text,labels\na,x;y\nb,y\n", "text,labels\na,x;z\n")
    with pytest.raises(UserError, match=r"dev\.csv, line 2: the label 'z' is not known: known are x, y"):
        task.read("dev")
    with pytest.raises(UserError, match="has no labels in 'labels'"):
        opened(tmp_path, "multi_label", "text,labels\na,\nb,\n")
    with pytest.raises(UserError, match="multi_label has no labels yet"):
        open_task("multi_label", TaskSource(dev=tmp_path / "dev.csv"))


def test_a_models_labels_are_known_without_its_training_file(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,labels\na,x;z\n")
    task = open_task("multi_label", TaskSource(dev=tmp_path / "dev.csv"), TaskMetadata(labels=("z", "y", "x")))
    assert task.read("dev").examples[0].label == (0, 2)
    assert task.measure(task.read("dev").examples, [(0, 2)])["exact_match"] == 100


def test_a_text_that_is_a_list_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a", "label": "x"}) + "\n" + json.dumps({"text": ["a"], "label": "y"}))
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: 'text' is a list, but a text is needed"):
        open_task("classification", TaskSource(train=path, dev=path)).read("dev")


def test_a_dash_is_no_label_where_annotators_wrote_it_and_a_class_anywhere_else(tmp_path: Path) -> None:
    rows = "so good,+\nso bad,-\nas usual,o\nhm,-\n"
    task = opened(tmp_path, "classification", f"text,gold_label\n{rows}", f"text,gold_label\n{rows}")
    assert task.labels == ("+", "o")
    for split in ("train", "dev"):
        reading = task.read(split)
        assert [example.label for example in reading.examples] == [0, 1]
        assert reading.excluded == {f"without a label (first: {tmp_path}/{split}.csv, line 3)": 2}
    task = opened(tmp_path, "classification", f"text,label\n{rows}", f"text,label\n{rows}")
    assert task.labels == ("+", "-", "o")
    assert [example.label for example in task.read("train").examples] == [0, 1, 2, 1]
