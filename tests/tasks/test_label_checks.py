"""Labels as files write them; and messages on the classes before training."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.finetuning.made_lessons import learn, lesson
from tests.tasks.made_tasks import made_task

from openalbert.tasks.data.labels import ClassNumbers, class_names, describe_nan_labels, plain
from openalbert.tasks.data.tables import as_text
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


@given(st.integers(-(2**52), 2**52))
def test_a_whole_float_is_the_same_in_a_table_as_in_json(number: int) -> None:
    assert plain(str(float(number))) == as_text(float(number), "") == str(number)
    assert plain(str(number)) == str(number)


def test_what_is_no_whole_number_stays_as_it_is() -> None:
    for label in ("1.5", "v1.0", "1.0.0", "1.", ".0", "1.0 ", "", "nan", "1e5"):
        assert plain(label) == label
    assert plain("-0.0") == "0"


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (("0.0", "1.0", "nan"), {"0", "1"}),
        (("0", "1.0", "1", "NaN"), {"0", "1"}),
        (("1.0", "1.5"), {"1", "1.5"}),
        (("1.0", "beta", "nan"), {"1.0", "beta", "nan"}),
        (("1.0", "1", "beta"), {"1", "beta"}),
        (("nan",), set()),
        ((), set()),
    ],
)
def test_the_classes_of_a_column(written: tuple[str, ...], names: set[str]) -> None:
    assert class_names(written) == names


def test_a_class_is_found_by_its_own_name_first() -> None:
    both = ClassNumbers(("1.0", "1", "2.0"))
    assert [both.get(label) for label in ("1.0", "1", "1.00", "2", "2.0", "3")] == [0, 1, 0, 2, 2, None]
    assert not both.is_none("")


def test_nan_is_none_among_numbers_and_where_all_classes_are_known_but_never_where_it_is_a_class() -> None:
    assert ClassNumbers(("0", "1")).is_none("NaN")
    assert not ClassNumbers(("good", "bad")).is_none("nan")
    assert ClassNumbers(("good", "bad"), {"0": 0, "1": 1}).is_none("nan")
    of_before = ClassNumbers(("0", "1", "nan"))
    assert of_before.get("nan") == 2
    assert not of_before.is_none("nan")


def test_a_sentence_names_what_is_known_but_not_hundreds() -> None:
    assert ClassNumbers(("good", "bad"), {"0": 0}).known == "good, bad, 0"
    assert ClassNumbers(map(str, range(30))).known.endswith("18, 19, …")


def test_a_label_named_nan_is_reported_with_how_many_rows_have_it() -> None:
    assert describe_nan_labels("a.csv", "label", ["grandma", "banana"]) == ()
    assert describe_nan_labels("a.csv", "label", ["grandma", "NaN"]) == (
        "a.csv: 'NaN' in 'label' is taken for a label like the others (1 row): if it means a missing label, leave "
        "the cell empty",
    )
