"""What every task must keep to, whoever adds it, and what is said about a name that is none."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tasks.made_data import made_source

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.presets import preset
from openalbert.tasks.metrics import Retrieved
from openalbert.tasks.registry import TASKS, TaskSource, open_task
from openalbert.tasks.task import (
    ChoiceExample,
    Example,
    QuestionExample,
    SimilarityExample,
    TaggingExample,
    Task,
    TextExample,
)

KINDS = {
    "classification": TextExample,
    "regression": TextExample,
    "multi_label": TextExample,
    "multiple_choice": ChoiceExample,
    "question_answering": QuestionExample,
    "similarity": SimilarityExample,
    "tagging": TaggingExample,
}


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    return open_task(request.param, made_source(request.param, tmp_path))


def gold(example: Example) -> object:
    if isinstance(example, QuestionExample):
        return example.answers[0].text if example.answers else ""
    if isinstance(example, SimilarityExample):
        return Retrieved(1, 1.0, 0.0)
    return example.tags if isinstance(example, TaggingExample) else example.label


def wrong(task: Task, example: Example) -> object:
    """A prediction that is not right, and of the right form."""
    if isinstance(example, QuestionExample):
        return "nonsense"
    if isinstance(example, SimilarityExample):
        return Retrieved(1000, 0.0, 1.0)
    if isinstance(example, TaggingExample):
        return ("O",) * len(example.words)
    if task.kind == "multi_label":
        return tuple(number for number in range(len(task.labels)) if number not in example.label)
    if task.kind == "regression":
        return -example.label
    return (example.label + 1) % (len(example.options) if isinstance(example, ChoiceExample) else len(task.labels))


def test_every_split_of_a_task_gives_examples_of_its_kind(task: Task) -> None:
    assert task.kind == TASKS[task.name].kind
    assert task.splits
    for split in ("train", *task.splits):
        reading = task.read(split)
        assert reading.examples
        assert not reading.excluded
        assert all(isinstance(example, KINDS[task.kind]) for example in reading.examples)
        names = [example.id for example in reading.examples]
        assert len(set(names)) == len(names)


def test_labels_are_numbers_of_outputs_of_the_head(task: Task) -> None:
    for example in task.read("train").examples:
        if task.kind == "classification":
            assert type(example.label) is int
            assert 0 <= example.label < len(task.labels)
        elif task.kind == "regression":
            assert type(example.label) is float
        elif task.kind == "multi_label":
            assert all(0 <= number < len(task.labels) for number in example.label)
        elif task.kind == "similarity":
            assert len(set(example.texts)) == 3
        elif task.kind == "multiple_choice":
            assert 0 <= example.label < len(example.options)
        elif task.kind == "tagging":
            assert set(example.tags) <= set(task.labels)
            assert len(example.tags) == len(example.words)
        else:
            assert all(example.passage.startswith(answer.text, answer.start) for answer in example.answers)
            assert task.may_have_no_answer or example.answers


def test_a_published_test_split_has_no_labels_and_a_file_of_ones_own_those_that_it_holds(task: Task) -> None:
    is_own = task.name == task.kind
    for example in task.read("test").examples:
        if isinstance(example, QuestionExample):
            assert example.is_labelled == is_own
            assert is_own or not example.answers
        elif isinstance(example, SimilarityExample):
            assert not example.is_labelled
            assert example.negative is None
        else:
            label = example.tags if isinstance(example, TaggingExample) else example.label
            assert (label is not None) == is_own


def test_right_predictions_score_100_and_wrong_ones_less(task: Task) -> None:
    for split in task.splits:
        examples = task.read(split).examples
        best = task.measure(examples, [gold(example) for example in examples])
        worst = task.measure(examples, [wrong(task, example) for example in examples])
        assert task.main_metric in best
        assert set(best) == set(worst)
        for figure in best:
            assert best[figure] == pytest.approx(100)
            assert math.isfinite(worst[figure])
            assert worst[figure] < 100
        assert worst[task.main_metric] < 1


def test_the_heads_of_a_task_make_a_model(task: Task) -> None:
    AlbertModel(preset("albert-micro"), task.heads)


def test_reading_twice_gives_the_same_examples(task: Task) -> None:
    for split in ("train", *task.splits):
        assert task.read(split) == task.read(split)


def test_a_split_that_is_not_there_is_named_with_those_that_are(task: Task) -> None:
    with pytest.raises(UserError, match=r"has no split 'holdout' here: .*dev"):
        task.read("holdout")


def test_a_task_without_any_examples_says_how_to_give_them() -> None:
    for name in TASKS:
        with pytest.raises(UserError, match=f"{name} needs examples: give .*--train"):
            open_task(name, TaskSource())


def test_a_misspelt_task_names_the_nearest() -> None:
    with pytest.raises(UserError, match="'sst-2' is not a task: did you mean 'sst2'"):
        open_task("sst-2", TaskSource())


def test_known_tasks_read_nothing_before_they_are_asked_to(tmp_path: Path) -> None:
    source = made_source("sst2", tmp_path)
    (tmp_path / "SST-2" / "train.tsv").write_bytes(b"\xff\xfe")
    task = open_task("sst2", source)
    assert task.read("dev").examples
    with pytest.raises(UserError, match="is empty"):
        task.read("train")


def test_naming_tasks_and_sources_needs_no_torch() -> None:
    code = "import sys; import openalbert.tasks.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
