"""Whole numbers are one class with and without .0, and NaN is no label among numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.tasks.data.labels import ClassNumbers, class_names, nan_told, plain
from openalbert.tasks.data.tables import as_text


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


def test_a_label_named_nan_is_told_with_how_many_rows_have_it() -> None:
    assert nan_told("a.csv", "label", ["grandma", "banana"]) == ()
    assert nan_told("a.csv", "label", ["grandma", "NaN"]) == (
        "a.csv: 'NaN' in 'label' is taken for a label like the others (1 row): where it stands for none, leave the "
        "cell empty",
    )
