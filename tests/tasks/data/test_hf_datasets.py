"""Tasks from Hugging Face datasets, saved beforehand: no test goes to the network."""

from pathlib import Path
from typing import Any

import datasets
import pytest
from tests.tasks.made_data import race_passage

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskSource, open_task

# Not ours: what datasets warns of changes from version to version.
pytestmark = pytest.mark.filterwarnings("ignore")
SENTIMENT = datasets.ClassLabel(names=["negative", "positive"])


def saved(folder: Path, splits: dict[str, list[dict[str, Any]]], **features: Any) -> TaskSource:
    """A dataset on disk with these rows; `features` are the columns whose kind is not plain."""
    made = {}
    for split, rows in splits.items():
        plain = datasets.Dataset.from_list(rows)
        for column, feature in features.items():
            plain = plain.cast_column(column, feature)
        made[split] = plain
    datasets.DatasetDict(made).save_to_disk(folder / "saved")
    return TaskSource(dataset=str(folder / "saved"))


def rows(*labels: int) -> list[dict[str, Any]]:
    return [{"sentence": f"so it is {number}", "label": one, "idx": number} for number, one in enumerate(labels)]


def test_glue_is_read_from_a_dataset(tmp_path: Path) -> None:
    splits = {"train": rows(0, 1, 1), "validation": rows(1, 0), "test": rows(-1, -1)}
    task = open_task("sst2", saved(tmp_path, splits, label=SENTIMENT))
    assert task.splits == ("dev",)
    assert [example.label for example in task.read("train").examples] == [0, 1, 1]
    assert [example.label for example in task.read("dev").examples] == [1, 0]
    assert [example.label for example in task.read("test").examples] == [None, None]
    assert [example.id for example in task.read("test").examples] == ["0", "1"]


def test_mnli_has_its_two_splits_to_score_on(tmp_path: Path) -> None:
    row = [{"premise": "a", "hypothesis": "b", "label": 2, "idx": 0}]
    splits = {"train": row, "validation_matched": row, "validation_mismatched": row}
    labels = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    task = open_task("mnli", saved(tmp_path, splits, label=labels))
    assert task.splits == ("dev_matched", "dev_mismatched")
    assert task.read("dev_mismatched").examples[0].label == 2


def test_names_of_classes_become_labels_of_an_own_task(tmp_path: Path) -> None:
    source = saved(tmp_path, {"train": rows(*[0, 1] * 10), "test": rows(0, 1)}, label=SENTIMENT)
    task = open_task("classification", source)
    assert task.labels == ("negative", "positive")
    assert task.splits == ("dev",)
    assert len(task.read("dev").examples) == 2


def test_the_split_to_score_on_can_be_named(tmp_path: Path) -> None:
    source = saved(tmp_path, {"train": rows(0, 1), "test": rows(1, 1, 0)}, label=SENTIMENT)
    task = open_task("classification", TaskSource(dataset=source.dataset, dataset_dev="test"))
    assert [example.label for example in task.read("dev").examples] == [1, 1, 0]
    with pytest.raises(UserError, match=r"has no split 'tset' \(--dataset-dev\): did you mean 'test'"):
        open_task("classification", TaskSource(dataset=source.dataset, dataset_dev="tset"))


def test_sets_of_class_numbers_become_sets_of_labels(tmp_path: Path) -> None:
    table = [{"text": "a", "labels": [1]}, {"text": "b", "labels": []}, {"text": "c", "labels": [0, 1]}]
    source = saved(tmp_path, {"train": table, "validation": table}, labels=datasets.Sequence(SENTIMENT))
    task = open_task("multi_label", source)
    assert task.labels == ("negative", "positive")
    assert [example.label for example in task.read("dev").examples] == [(1,), (), (0, 1)]


def test_squad_and_race_are_read_from_datasets(tmp_path: Path) -> None:
    question = {
        "id": "x",
        "title": "T",
        "context": "It was 1900.",
        "question": "When?",
        "answers": {"text": ["1900"], "answer_start": [7]},
    }
    task = open_task("squad1", saved(tmp_path / "squad", {"train": [question], "validation": [question]}))
    assert task.read("dev").examples[0].answers[0].start == 7
    passage = race_passage(1, "middle")
    each = [
        {"example_id": "middle1.txt", "article": passage["article"], "question": q, "options": o, "answer": a}
        for q, o, a in zip(passage["questions"], passage["options"], passage["answers"], strict=True)
    ]
    task = open_task("race_middle", saved(tmp_path / "race", {"train": each, "validation": each}))
    examples = task.read("dev").examples
    assert [example.id for example in examples] == ["middle1-0", "middle1-1", "middle1-2"]
    assert [example.label for example in examples] == [0, 3, 1]


def test_a_row_of_a_dataset_has_a_place(tmp_path: Path) -> None:
    bad = [{"sentence1": "a", "sentence2": "b", "label": "maybe"}]
    source = saved(tmp_path, {"train": bad, "validation": bad})
    with pytest.raises(UserError, match="saved, validation, row 1: the label 'maybe'"):
        open_task("rte", source).read("dev")


def test_a_dataset_that_cannot_be_had_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="nobody/nothing: Hugging Face datasets cannot read it"):
        open_task("sst2", TaskSource(dataset="nobody/nothing"))
    source = saved(tmp_path, {"other": rows(0, 1)})
    with pytest.raises(UserError, match="has none of the splits train, validation, test: it has other"):
        open_task("sst2", source)
