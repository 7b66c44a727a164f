"""Messages on the classes before training."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.finetuning.made_lessons import learn, lesson
from tests.tasks.made_tasks import made_task

from openalbert.tasks.label_checks import describe_classes
from openalbert.tasks.task import Kind, Task, TextExample


def labelled(kind: Kind, names: tuple[str, ...], labels: list[object]) -> Task:
    examples = [TextExample(str(number), "a", None, label) for number, label in enumerate(labels)]  # type: ignore[arg-type]
    return replace(made_task(kind, examples), labels=names)


def described(kind: Kind, names: tuple[str, ...], labels: list[object]) -> list[str]:
    task = labelled(kind, names, labels)
    return describe_classes(task, task.read("train").examples)


def test_the_classes_are_reported_with_how_many_examples_each_has() -> None:
    names = ("NEG", "Pos", "neg", "pos")
    first, alike = described("classification", names, [0] * 15 + [1] * 15 + [2] * 20 + [3] * 2000)
    assert first == "4 classes: NEG 15, Pos 15, neg 20, pos 2,000"
    assert alike.startswith("'NEG' and 'neg', 'Pos' and 'pos' differ by case or white space only")
    assert described("classification", ("new york", "new york\u200b", "x" * 50), [0, 1, 1]) == [
        f"3 classes: new york 1, new york\u200b 2, {'x' * 40}… 0",
        "'new york' and 'new york\u200b' differ by case or white space only: if they mean the same, write them "
        "in one way",
    ]


def test_of_many_classes_the_most_frequent_are_reported() -> None:
    labels: list[object] = [number for number in range(25) for _ in range(number + 1)]
    names = tuple(f"c{number}" for number in range(25))
    [sentence] = described("classification", names, labels)
    assert sentence.startswith("25 classes: c24 25, c23 24, ")
    assert sentence.endswith(", c15 16 and 15 more")


def test_labels_that_several_can_apply_are_counted_each() -> None:
    assert described("multi_label", ("a", "b"), [(0, 1), (1,), (), ()]) == ["2 labels: a 1, b 2; 2 examples with none"]
    assert described("multi_label", ("a",), [(0,), ()]) == ["1 label: a 1; 1 example with none"]
    assert described("regression", (), [1.0, 2.0]) == []


@pytest.mark.parametrize(
    ("kind", "sentence"), [("classification", "train: 2 classes: cold "), ("multi_label", "train: 3 labels: ")]
)
def test_a_run_tells_them_at_its_start(
    kind: str, sentence: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(tiny, kind, lesson(kind, tmp_path), tmp_path / "run", "--steps 1")
    assert capsys.readouterr().err.count(sentence) == 1
