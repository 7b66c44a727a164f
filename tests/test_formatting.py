"""Numbers for people."""

import math

import pytest

from openalbert import formatting


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (formatting.number, 3.91234, "3.912"),
        (formatting.number, 9.99996, "10.00"),
        (formatting.number, 1064223.0, "1,064,223"),
        (formatting.number, 0.000001234, "1.234e−6"),
        (formatting.number, -0.5, "−0.5000"),
        (formatting.number, math.nan, "not a number"),
        (formatting.number, -math.inf, "−∞"),
        (formatting.number, None, "–"),
        (formatting.number, "7", "–"),
        (formatting.number, True, "–"),
        (formatting.count, 0, "0"),
        (formatting.count, 999_949, "999,949"),
        (formatting.count, 999_999, "1.00 M"),
        (formatting.count, 43_800_000, "43.8 M"),
        (formatting.count, 262_144_000_000, "262 G"),
        (formatting.rate, 12.34, "12.3"),
        (formatting.rate, 740_100, "740 k"),
        (formatting.rate, 1_385_000, "1.39 M"),
        (formatting.percent, 0.382, "38.2 %"),
        (formatting.percent, 1 / 30000, "0.0033 %"),
        (formatting.percent, 0.0, "0.0 %"),
        (formatting.percent, None, "–"),
        (formatting.duration, 0.34, "0.34 s"),
        (formatting.duration, 45, "45 s"),
        (formatting.duration, 1085, "18 min 5 s"),
        (formatting.duration, 7200, "2 h"),
        (formatting.duration, 11_520, "3 h 12 min"),
        (formatting.duration, 187_200, "2 d 4 h"),
        (formatting.size, 512, "512 B"),
        (formatting.size, 50.1 * 2**30, "50.1 GiB"),
        (formatting.moment, "2026-03-12T14:03:09+0000", "12 March 2026, 14:03 UTC"),
        (formatting.moment, "2026-03-12T14:03:09", "12 March 2026, 14:03"),
        (formatting.moment, "yesterday", "yesterday"),
        (formatting.moment, None, "–"),
    ],
)
def test_a_figure_is_written_for_people(write: object, value: object, expected: str) -> None:
    assert callable(write)
    assert write(value) == expected


def test_a_table_of_text_is_aligned_at_both_sides_as_asked() -> None:
    rows = [["run", "score", "note"], ["seed 1", "97.44", "collapsed"], ["median", "3.10", ""]]
    assert formatting.aligned(rows).splitlines() == [
        "run     score       note",
        "seed 1  97.44  collapsed",
        "median   3.10",
    ]
    assert formatting.aligned(rows, (0, -1)).splitlines()[0] == "run     score  note"


@pytest.mark.parametrize(
    ("count", "expected"), [(0, ""), (1, "n0"), (3, "n0, n1, n2"), (1204, "n0, n1, n2 and 1,201 more")]
)
def test_of_many_names_the_first_are_listed_and_the_others_counted(count: int, expected: str) -> None:
    assert formatting.listed([f"n{number}" for number in range(count)], 3) == expected
