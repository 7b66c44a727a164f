"""GLUE's nine tasks in their own layouts, made up and real."""

from pathlib import Path

import pytest
from tests.tasks.made_data import SENTENCES, glue_files, write_tsv

from openalbert.errors import UserError
from openalbert.formatting import percent_of
from openalbert.tasks.registry import GLUE, TaskMetadata, TaskSource, open_task

# Name: examples of each split in the folder of real data.
REAL = {
    "cola": {"train": 8551, "dev": 1043, "test": 1063},
    "sst2": {"train": 67349, "dev": 872, "test": 1821},
    "mrpc": {"train": 3668, "dev": 408, "test": 1725},
    "stsb": {"train": 5749, "dev": 1500, "test": 1379},
    "qqp": {"train": 8999, "heldout": 1000},
    "mnli": {"train": 8999, "dev_matched": 9815, "heldout": 1000},
    "qnli": {"train": 8999, "dev": 5463, "heldout": 1000, "test": 5463},
    "rte": {"train": 2490, "dev": 277, "test": 3000},
    "wnli": {"train": 635, "dev": 71, "test": 146},
}
# Sentences that stand in the training set too, as they were published.
TWICE = {"cola": {"dev": 16, "test": 19}, "sst2": {"test": 2}, "stsb": {"dev": 6, "test": 7}}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if REAL[name]["train"] > 8600 else []) for name in REAL]
)
def test_real_files_give_all_their_examples(name: str, real_data: Path) -> None:
    task = open_task(name, TaskSource(data=real_data / "glue"))
    for split, count in REAL[name].items():
        reading = task.read(split)
        assert len(reading.examples) == count
        assert not reading.excluded
        twice = TWICE.get(name, {}).get(split, 0)
        # So few do not damn a score.
        few = f": {twice} of {count:,} examples ({percent_of(twice, count)}) have a text that is also in train"
        assert [remark[-len(few) :] for remark in reading.remarks] == ([few] if twice else [])
        assert all(example.first and example.second != "" for example in reading.examples)
    assert task.splits == tuple(split for split in REAL[name] if split not in ("train", "test"))


@pytest.mark.parametrize("name", REAL)
def test_real_files_to_score_on_give_all_their_examples(name: str, real_data: Path) -> None:
    task = open_task(name, TaskSource(data=real_data / "glue"))
    split = task.splits[-1]
    assert len(task.read(split).examples) == REAL[name][split]


def test_real_classes_are_as_frequent_as_published(real_data: Path) -> None:
    shares = {"cola": 721 / 1043, "sst2": 444 / 872, "mrpc": 279 / 408, "rte": 131 / 277, "wnli": 31 / 71}
    for name, wanted in shares.items():
        labels = [
            example.label for example in open_task(name, TaskSource(data=real_data / "glue")).read("dev").examples
        ]
        assert sum(labels) / len(labels) == wanted


@pytest.mark.parametrize("name", GLUE)
def test_texts_and_labels_stand_where_the_layout_has_them(name: str, tmp_path: Path) -> None:
    task = open_task(name, TaskSource(data=glue_files(tmp_path, name)))
    split = task.splits[0]
    examples = task.read(split).examples
    assert [example.first for example in examples] == [f"{SENTENCES[n % 5]} {split} {n}" for n in range(6)]
    if GLUE[name].second:
        assert [example.second for example in examples] == [SENTENCES[(n + 1) % 5] for n in range(6)]
    else:
        assert all(example.second is None for example in examples)
    expected = [0.0, 2.5, 5.0] if name == "stsb" else list(range(len(task.labels)))
    assert [example.label for example in examples] == [expected[n % len(expected)] for n in range(6)]
    assert [example.id for example in task.read("test").examples] == [str(n) for n in range(6)]


def test_mnli_is_scored_matched_and_mismatched(tmp_path: Path) -> None:
    task = open_task("mnli", TaskSource(data=glue_files(tmp_path, "mnli")))
    assert task.splits == ("dev_matched", "dev_mismatched")
    assert "test_matched" in task.read("test").examples[0].first
    assert "test_mismatched" in task.read("test_mismatched").examples[0].first


def test_a_quote_at_the_start_of_a_text_is_kept_but_in_qqp_where_it_quotes(tmp_path: Path) -> None:
    row = (0, '"He ran"', 'Why "so"?')
    write_tsv(tmp_path / "rte" / "dev.tsv", ("index", "sentence1", "sentence2", "label"), [(*row, "entailment")])
    assert open_task("rte", TaskSource(data=tmp_path)).read("dev").examples[0].first == '"He ran"'
    write_tsv(tmp_path / "qqp" / "dev.tsv", ("id", "question1", "question2", "is_duplicate"), [(*row, "1")])
    assert open_task("qqp", TaskSource(data=tmp_path)).read("dev").examples[0].first == "He ran"


def test_a_ragged_row_of_qqp_does_not_change_how_quotes_are_read(tmp_path: Path) -> None:
    header = ("id", "question1", "question2", "is_duplicate")
    rows = [(0, '"Why ""so""?"', "b", "1"), (1, "ragged"), (2, '"two\nlines"', "d", "0"), (3, "e", '"f"', "1")]
    path = write_tsv(tmp_path / "QQP" / "train.tsv", header, rows)
    reading = open_task("qqp", TaskSource(data=tmp_path)).read("train")
    # Where rows are excluded, some may be held out of train too: all of them are one reading.
    examples = [*reading.examples, *open_task("qqp", TaskSource(data=tmp_path)).read("dev").examples]
    texts = sorted((example.first, example.second) for example in examples)
    assert texts == [('Why "so"?', "b"), ("e", "f"), ("two\nlines", "d")]
    assert reading.excluded == {f"not 4 columns (first: {path}, line 3)": 1}
    assert not any("ordinary character" in remark for remark in reading.remarks)


def test_literal_quotes_that_would_join_rows_stay_literal_beside_a_ragged_row(tmp_path: Path) -> None:
    header = ("id", "question1", "question2", "is_duplicate")
    rows = [(0, '"a', "b", "1"), (1, "c", 'd"', "0"), (2, "ragged"), (3, "e", "f", "1")]
    write_tsv(tmp_path / "QQP" / "dev.tsv", header, rows)
    reading = open_task("qqp", TaskSource(data=tmp_path)).read("dev")
    assert [example.first for example in reading.examples] == ['"a', "c", "e"]
    assert list(reading.excluded.values()) == [1]
    assert "ordinary character" in reading.remarks[0]


def test_rows_without_text_or_label_are_left_out_and_counted_but_of_test(tmp_path: Path) -> None:
    folder = tmp_path / "MNLI"
    header = ("index", "sentence1", "sentence2", "gold_label")
    rows = [(0, "a", "b", "neutral"), (1, "a", "b", "-"), (2, "a", " ", "neutral"), (3, "c"), (4, "d", "e", "neutral")]
    rows += [(5, "a", "b", "NaN"), (6, "a", "b", "-1.0")]
    path = write_tsv(folder / "dev_matched.tsv", header, rows)
    reading = open_task("mnli", TaskSource(data=tmp_path)).read("dev_matched")
    assert [example.id for example in reading.examples] == ["0", "4"]
    assert reading.excluded == {
        f"not 4 columns (first: {path}, line 5)": 1,
        f"without a label (first: {path}, line 3)": 3,
        f"without a text (first: {path}, line 4)": 1,
    }
    write_tsv(folder / "test_matched.tsv", header[:3], [(0, "a", ""), (1, "", "b")])
    assert len(open_task("mnli", TaskSource(data=tmp_path)).read("test").examples) == 2


@pytest.mark.parametrize("name", GLUE)
def test_a_malformed_row_of_a_test_set_is_refused_with_file_and_line(name: str, tmp_path: Path) -> None:
    folder = glue_files(tmp_path, name)
    [file] = [path for path in folder.rglob("*") if path.name in ("test.tsv", "test_matched.tsv")]
    lines = file.read_text().splitlines()
    assert len(open_task(name, TaskSource(data=folder)).read("test").examples) == len(lines) - 1
    lines[3] += "\tone column too many"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=rf"1 not \d columns \(first: .*{file.name}, line 4\).*needs its prediction"):
        open_task(name, TaskSource(data=folder)).read("test")


def test_a_row_of_a_test_set_that_an_open_quote_would_swallow_is_refused(tmp_path: Path) -> None:
    rows = [(0, "a", "b"), (1, "c", '"half'), (2, "d", 'whole"'), (3, "e", "f")]
    write_tsv(tmp_path / "QQP" / "test.tsv", ("id", "question1", "question2"), rows)
    with pytest.raises(UserError, match=r"test\.tsv, line 3: a text continues over the start of another row"):
        open_task("qqp", TaskSource(data=tmp_path)).read("test")
    rows[1:3] = [(1, "c", '"two\nlines, 5\'4"')]
    write_tsv(tmp_path / "QQP" / "test.tsv", ("id", "question1", "question2"), rows)
    assert len(open_task("qqp", TaskSource(data=tmp_path)).read("test").examples) == 3


def test_wrong_labels_ids_and_columns_are_refused_with_their_place(tmp_path: Path) -> None:
    header = ("index", "sentence1", "sentence2", "label")
    file = tmp_path / "RTE" / "dev.tsv"
    task = "rte"
    write_tsv(file, header, [(0, "a", "b", "entailment"), (1, "a", "b", "yes")])
    with pytest.raises(UserError, match=r"dev\.tsv, line 3: the label 'yes' in 'label' is not known"):
        open_task(task, TaskSource(data=tmp_path)).read("dev")
    write_tsv(file, header, [(0, "a", "b", "entailment"), (0, "a", "b", "entailment")])
    with pytest.raises(UserError, match=r"line 3: the index '0' is also in .*line 2: ids must be unique"):
        open_task(task, TaskSource(data=tmp_path)).read("dev")
    write_tsv(file, ("index", "sentence_1", "sentence2", "label"), [(0, "a", "b", "entailment")])
    with pytest.raises(UserError, match=r"dev\.tsv has no column 'sentence1' .*did you mean 'sentence_1'"):
        open_task(task, TaskSource(data=tmp_path)).read("dev")
    write_tsv(tmp_path / "STS-B" / "dev.tsv", (*header[:3], "score"), [(0, "a", "b", "high")])
    with pytest.raises(UserError, match=r"line 2: 'high' in 'score' is not a number"):
        open_task("stsb", TaskSource(data=tmp_path)).read("dev")
    write_tsv(file, header, [(0, "a", "b", "-")])
    with pytest.raises(UserError, match=r"gives no example to rte: 1 without a label"):
        open_task(task, TaskSource(data=tmp_path)).read("dev")


def test_a_models_own_order_of_classes_is_kept(tmp_path: Path) -> None:
    source = TaskSource(data=glue_files(tmp_path, "mnli"))
    turned = open_task("mnli", source, TaskMetadata(labels=("contradiction", "entailment", "neutral")))
    assert turned.labels == ("contradiction", "entailment", "neutral")
    assert [example.label for example in turned.read("dev_matched").examples[:3]] == [1, 2, 0]
    with pytest.raises(UserError, match=r"mnli has the classes entailment, .* and not bad, good"):
        open_task("mnli", source, TaskMetadata(labels=("bad", "good")))
