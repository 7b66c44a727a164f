"""Where examples come from, and which are held out: the same ones for the same seed, and no text on both sides."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.made_data import custom_rows, glue_files, squad_json, write_jsonl

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.holdout import hold_out
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.registry import TaskMetadata, open_task
from openalbert.tasks.task import Answer, ChoiceExample, QuestionExample, Reading, TextExample


def texts(labels: list[int]) -> Reading:
    return Reading(tuple(TextExample(str(n), f"text {n}", None, label) for n, label in enumerate(labels)))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=80), st.floats(0.01, 0.9), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_every_example_is_on_one_side_and_neither_side_is_empty(labels: list[int], fraction: float, seed: int) -> None:
    whole = texts(labels)
    stays, held = hold_out(whole, fraction, seed)
    assert stays.examples
    assert held.examples
    assert sorted([*stays.examples, *held.examples], key=lambda one: int(one.id)) == list(whole.examples)


def test_each_class_gives_its_fraction() -> None:
    _, held = hold_out(texts([0] * 800 + [1] * 200), 0.1, 0)
    assert Counter(example.label for example in held.examples) == {0: 80, 1: 20}


def test_another_seed_holds_out_other_examples_and_the_same_seed_the_same() -> None:
    whole = texts([0, 1] * 100)
    parts = [{example.id for example in hold_out(whole, 0.2, seed)[1].examples} for seed in (0, 0, 1)]
    assert parts[0] == parts[1]
    assert len(parts[0] & parts[2]) < 20


def test_who_is_held_out_does_not_depend_on_the_order_of_the_rows() -> None:
    whole = texts([0, 1] * 50)
    turned = Reading(whole.examples[::-1])
    assert set(hold_out(whole, 0.2, 3)[1].examples) == set(hold_out(turned, 0.2, 3)[1].examples)


def test_equal_texts_are_never_on_both_sides() -> None:
    rows = tuple(TextExample(str(number), f"text {number % 20}", None, number % 2) for number in range(100))
    stays, held = hold_out(Reading(rows), 0.3, 0)
    assert not {one.first for one in stays.examples} & {one.first for one in held.examples}


def test_questions_on_one_article_stay_together_or_on_one_passage_where_articles_are_few() -> None:
    for articles, unit in ((40, "title"), (3, "passage")):
        rows = tuple(
            QuestionExample(str(n), f"passage {n // 4}", "q", (Answer("p", 0),), title=f"article {n // 4 % articles}")
            for n in range(400)
        )
        stays, held = hold_out(Reading(rows), 0.2, 0)
        assert len(held.examples) == 80 if unit == "passage" else 60 <= len(held.examples) <= 100
        assert not {getattr(one, unit) for one in stays.examples} & {getattr(one, unit) for one in held.examples}


def test_where_articles_need_not_stay_whole_passages_come_from_many() -> None:
    rows = tuple(
        QuestionExample(str(n), f"passage {n // 4}", "q", (Answer("p", 0),), title=f"article {n // 40}")
        for n in range(2000)
    )
    stays, held = hold_out(Reading(rows), 0.05, 0, articles_stay_whole=False)
    assert len({one.title for one in held.examples}) > 10
    assert not {one.passage for one in stays.examples} & {one.passage for one in held.examples}


def test_options_on_one_passage_stay_together() -> None:
    rows = tuple(ChoiceExample(str(n), f"passage {n // 3}", "q", ("a", "b"), 0) for n in range(60))
    stays, held = hold_out(Reading(rows), 0.2, 0)
    assert not {one.passage for one in stays.examples} & {one.passage for one in held.examples}
    assert len(held.examples) == 12


def test_one_text_alone_cannot_be_split() -> None:
    one = TextExample("0", "same", None, 1)
    with pytest.raises(UserError, match="2 examples of one text cannot be split: give a file to score on with --dev"):
        hold_out(Reading((one, one)), 0.1, 0)


@pytest.mark.parametrize("twice", [0, 3])
def test_what_cannot_be_split_is_named_with_its_file_and_all_that_fell_out(twice: int, tmp_path: Path) -> None:
    row = {"context": "It was built in 1900.", "question": "When?", "answer": "1900"}
    file = write_jsonl(tmp_path / "qa.jsonl", [{"id": str(max(0, number - twice)), **row} for number in range(5)])
    with pytest.raises(UserError) as message:
        open_task("question_answering", TaskSource(train=file)).read("train")
    fell_out = f" ({twice} left out: with the id of another question (first: {file}, line 2, '0'))" if twice else ""
    assert str(message.value) == (
        f"{file}{fell_out}: {counted(5 - twice, 'example')} of one text cannot be split: "
        "give a file to score on with --dev"
    )


def test_what_is_held_out_is_reported() -> None:
    stays, held = hold_out(Reading(texts([0, 1] * 50).examples, {"empty": 2}), 0.1, 0)
    assert stays.excluded == {"empty": 2}
    assert not held.excluded
    assert "10 of 100 examples are held out" in stays.remarks[0]


def test_a_task_without_dev_holds_out_some_of_train(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", custom_rows("classification", 60))
    task = open_task("classification", TaskSource(train=path, heldout_fraction=0.2))
    assert task.splits == ("dev",)
    sizes = [len(task.read(split).examples) for split in ("train", "dev")]
    assert sizes == [48, 12]


def test_files_that_are_named_come_before_those_of_the_folder(tmp_path: Path) -> None:
    glue_files(tmp_path, "rte")
    other = tmp_path / "mine.tsv"
    other.write_text("index\tsentence1\tsentence2\tlabel\n0\tmine\tindeed\tentailment\n")
    task = open_task("rte", TaskSource(data=tmp_path, dev=other))
    assert [example.first for example in task.read("dev").examples] == ["mine"]
    assert len(task.read("train").examples) == 6


def test_the_tasks_own_folder_and_the_one_above_are_both_understood(tmp_path: Path) -> None:
    glue_files(tmp_path, "sst2")
    readings = [open_task("sst2", TaskSource(data=folder)).read("dev") for folder in (tmp_path, tmp_path / "SST-2")]
    assert readings[0].examples == readings[1].examples


def test_a_folder_without_files_of_the_task_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no file of sst2: one of these is expected: train\.tsv"):
        open_task("sst2", TaskSource(data=tmp_path))
    with pytest.raises(UserError, match="there is no folder"):
        open_task("sst2", TaskSource(data=tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file, and the task's folder is needed"):
        open_task("sst2", TaskSource(data=tmp_path / "file"))


def test_two_places_for_the_same_examples_are_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", custom_rows("classification"))
    with pytest.raises(UserError, match="come from --dataset or from files, not from both"):
        open_task("classification", TaskSource(dataset="x", train=path))
    with pytest.raises(UserError, match="classification reads your files, not a folder"):
        open_task("classification", TaskSource(data=tmp_path))


def test_scoring_alone_needs_no_training_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", custom_rows("classification"))
    with pytest.raises(UserError, match="has no labels yet: give the training file"):
        open_task("classification", TaskSource(dev=path))
    task = open_task("classification", TaskSource(dev=path), TaskMetadata(labels=("so-so", "good", "bad", "other")))
    assert [example.label for example in task.read("dev").examples[:3]] == [1, 2, 0]
    with pytest.raises(UserError, match="has no split 'train' here: known are: dev, or give it with --train"):
        task.read("train")


def test_squads_own_file_is_split_by_article_where_there_is_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "dev-v2.0.json"
    path.write_text(json.dumps(squad_json(30, 4, without_answer=True)))
    task = open_task("squad2", TaskSource(train=path))
    sides = [{example.title for example in task.read(split).examples} for split in ("train", "dev")]
    assert [len(side) for side in sides] == [27, 3]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_fraction_is_above_0_and_below_1(fraction: float) -> None:
    with pytest.raises(UserError, match="heldout_fraction is"):
        TaskSource(heldout_fraction=fraction)


def test_pairs_are_not_scored_by_a_model_of_single_texts_nor_the_other_way_round(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("text,label\na b,x\nc d,y\n")
    two.write_text("text,text2,label\na b,e,x\nc d,f,y\n")
    for train, dev in ((one, two), (two, one)):
        task = open_task("classification", TaskSource(train=train, dev=dev))
        task.read("train")
        with pytest.raises(UserError, match=r"two.csv has pairs of texts, but .*one.csv has single texts"):
            task.read("dev")


@pytest.mark.parametrize(("task", "known"), [("classification", TaskMetadata(labels=("good", "bad"))), ("race", None)])
def test_a_file_that_does_not_exist_is_refused_even_where_it_would_not_be_read(
    task: str, known: TaskMetadata | None, tmp_path: Path
) -> None:
    dev = write_jsonl(tmp_path / "dev.jsonl", custom_rows("classification"))
    for split in ("train", "test"):
        with pytest.raises(UserError, match=r"there is no file .*nowhere\.jsonl"):
            open_task(task, TaskSource(dev=dev, **{split: tmp_path / "nowhere.jsonl"}), known)


def test_columns_cannot_be_named_for_a_task_that_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sst2 has fixed columns, and --text-column is for custom files"):
        open_task("sst2", TaskSource(train=tmp_path / "a.csv", text_column="text"))


def test_what_is_scored_on_and_learned_from_as_well_is_counted_and_reported(tmp_path: Path) -> None:
    rows = custom_rows("classification")
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:9]), write_jsonl(tmp_path / "dev.jsonl", rows[6:])
    task = open_task("classification", TaskSource(train=train, dev=dev))
    assert not any("also learned from" in remark for remark in task.read("dev").remarks)  # train was not read
    task.read("train")
    assert task.read("dev").remarks[-1] == (
        f"{dev}: 3 of 6 examples (50.0 %) have a text that is also in train: a score there is hardly meaningful"
    )
    held_out = open_task("classification", TaskSource(train=train))
    assert not any("also" in remark for split in ("train", "dev") for remark in held_out.read(split).remarks)


def test_a_few_examples_that_are_learned_from_as_well_do_not_spoil_a_score(tmp_path: Path) -> None:
    """CoLA's own dev set has 16 of 1,043, STS-B's 6 of 1,500."""
    rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(200)]
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:102]), write_jsonl(tmp_path / "dev.jsonl", rows[100:])
    task = open_task("classification", TaskSource(train=train, dev=dev))
    task.read("train")
    assert task.read("dev").remarks[-1] == f"{dev}: 2 of 100 examples (2.0 %) have a text that is also in train"
