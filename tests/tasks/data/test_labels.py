"""Labels as files write them, and the examples of rows with texts and labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.tasks.data.labels import ClassNumbers, class_names, describe_nan_labels, plain, read_texts
from openalbert.tasks.data.row_files import Row, Table, as_text

TABLE = Table(
    "a.csv",
    ("one", "two", "label"),
    [
        Row("a.csv, line", 2, {"one": "good", "two": "better", "label": "1"}),
        Row("a.csv, line", 3, {"one": " \u200b ", "two": "b", "label": "1"}),
        Row("a.csv, line", 4, {"one": "a", "two": "", "label": "0"}),
        Row("a.csv, line", 5, {"one": "a", "two": "b", "label": ""}),
    ],
)


def number(row: Row) -> int | None:
    return int(row.text("label")) if row.text("label") else None


def test_rows_without_a_text_or_a_label_are_left_out_and_counted_with_their_first_place() -> None:
    reading = read_texts(TABLE, list("abcd"), ["one", "two"], number)
    [found] = reading.examples
    assert (found.id, found.first, found.second, found.label, found.row) == ("a", "good", "better", 1, 1)
    assert reading.excluded == {
        "without a text (first: a.csv, line 3)": 2,
        "without a label (first: a.csv, line 5)": 1,
    }
    single = read_texts(TABLE, list("abcd"), ["one"], number).examples
    assert [(one.id, one.second) for one in single] == [("a", None), ("c", None)]


def test_without_labels_every_row_is_an_example_and_empty_ones_are_reported() -> None:
    reading = read_texts(TABLE, list("abcd"), ["one", "two"], None)
    assert [(one.id, one.label) for one in reading.examples] == [(name, None) for name in "abcd"]
    assert reading.excluded == {}
    assert reading.remarks == ("2 rows without a text (first: a.csv, line 3): predicted nevertheless",)


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
