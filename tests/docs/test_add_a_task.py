"""The Python of the guide on adding a task is executed as it is printed there, in order, in an empty folder."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.test_guides import ROOT, commands, namespace, run

from openalbert.errors import UserError
from openalbert.tasks import registry
from openalbert.tasks.data.labels import class_number
from openalbert.tasks.data.row_files import Row
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.task import Task

GUIDE = "add-a-task.md"
ROW = {"passage": "Ice is frozen water.", "question": "is ice made of water", "label": True, "idx": 0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder whose modules can be imported; a task that is made known there is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "TASKS", dict(registry.TASKS))
    monkeypatch.delitem(sys.modules, "boolq", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.fixture
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[TaskSource], Task]:
    """What the guide's file opens."""
    run(*commands(GUIDE)[0], folder)
    import boolq

    monkeypatch.chdir(folder)
    found: Callable[[TaskSource], Task] = boolq.open_boolq
    return found


def test_the_task_of_the_guide_is_read_scored_and_known_by_name(folder: Path) -> None:
    blocks = commands(GUIDE)
    assert [kind for kind, _ in blocks] == ["python"] * 4
    _, tried, refused, known = [run(kind, block, folder).stdout for kind, block in blocks]
    assert tried.splitlines() == [
        "yes - is ice made of water",
        "no - does the rhine flow through paris",
        "excluded: 1 without a label (first: data/BoolQ/val.jsonl, line 3)",
        "{'accuracy': 50.0}",
    ]
    assert f"```\n{refused}```" in (ROOT / "docs" / "guides" / GUIDE).read_text()
    assert known.strip() == "(Head(kind='classification', labels=('no', 'yes')),)"
    assert "boolq" in registry.TASKS
    assert {"task", "reading", "TASKS"} <= namespace(folder).keys()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([ROW, {**ROW, "label": "maybe", "idx": 1}], r"mine\.jsonl, line 2: the label 'maybe' in 'label' is not known"),
        ([ROW, {**ROW, "label": 2, "idx": 1}], r"mine\.jsonl, line 2: the label '2' in 'label' is not known"),
        ([{name: ROW[name] for name in ("question", "label")}],
         r"mine\.jsonl has no column 'passage' for the passage: .*\(the first row is mine\.jsonl, line 1;"),
        ([{name: ROW[name] for name in ("question", "passage")}],
         r"mine\.jsonl has no column 'label' for the label: .*\(the first row is mine\.jsonl, line 1;"),
        ([{**ROW, "passage": "\u200b"}],
         r"mine\.jsonl gives no example to boolq: 1 without a text \(first: mine\.jsonl, line 1\)"),
        ([ROW, ROW], r"mine\.jsonl, line 2: the idx '0' is also in mine\.jsonl, line 1: ids must be unique"),
        ([{**ROW, "label": ["yes"]}], r"mine\.jsonl, line 1: 'label' is a list, but a text is needed there"),
        ([], r"mine\.jsonl has no rows"),
    ],
)  # fmt: skip
def test_the_task_of_the_guide_refuses_wrong_files_with_their_place(
    rows: list[dict[str, object]], sentence: str, opened: Callable[[TaskSource], Task]
) -> None:
    path = Path("mine.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=sentence):
        opened(TaskSource(dev=path)).read("dev")


def test_a_row_of_the_guides_task_without_a_text_is_left_out_of_training_and_predicted_in_a_test_file(
    opened: Callable[[TaskSource], Task],
) -> None:
    path = Path("mine.jsonl")
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({"question": "is it so", "label": False, "idx": 1}) + "\n")
    task = opened(TaskSource(dev=path, test=path))
    reading = task.read("dev")
    assert (len(reading.examples), reading.excluded) == (1, {"without a text (first: mine.jsonl, line 2)": 1})
    reading = task.read("test")
    assert len(reading.examples) == 2
    assert reading.remarks == ("1 row without a text (first: mine.jsonl, line 2): predicted nevertheless",)


def test_a_dictionary_in_the_place_of_class_numbers_is_refused_before_any_label_is_unknown() -> None:
    row = Row("mine.jsonl, line", 1, {"label": "true"})
    with pytest.raises(TypeError, match=r"class_number needs ClassNumbers\(names, codes\), not a dict"):
        inspect.unwrap(class_number)(row, "label", {"false": 0, "true": 1})  # without the type checks of tests
