"""Numbers for people."""

import math

import pytest

from openalbert.train import figures


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (figures.number, 3.91234, "3.912"),
        (figures.number, 9.99996, "10.00"),
        (figures.number, 1064223.0, "1,064,223"),
        (figures.number, 0.000001234, "1.234e−6"),
        (figures.number, -0.5, "−0.5000"),
        (figures.number, math.nan, "not a number"),
        (figures.number, -math.inf, "−∞"),
        (figures.number, None, "–"),
        (figures.number, "7", "–"),
        (figures.number, True, "–"),
        (figures.count, 0, "0"),
        (figures.count, 999_949, "999,949"),
        (figures.count, 999_999, "1.00 M"),
        (figures.count, 43_800_000, "43.8 M"),
        (figures.count, 262_144_000_000, "262 G"),
        (figures.rate, 12.34, "12.3"),
        (figures.rate, 740_100, "740 k"),
        (figures.rate, 1_385_000, "1.39 M"),
        (figures.percent, 0.382, "38.2 %"),
        (figures.percent, 1 / 30000, "0.0033 %"),
        (figures.percent, 0.0, "0.0 %"),
        (figures.percent, None, "–"),
        (figures.duration, 0.34, "0.34 s"),
        (figures.duration, 45, "45 s"),
        (figures.duration, 1085, "18 min 5 s"),
        (figures.duration, 7200, "2 h"),
        (figures.duration, 11_520, "3 h 12 min"),
        (figures.duration, 187_200, "2 d 4 h"),
        (figures.size, 512, "512 B"),
        (figures.size, 50.1 * 2**30, "50.1 GiB"),
        (figures.moment, "2026-03-12T14:03:09+0000", "12 March 2026, 14:03 UTC"),
        (figures.moment, "2026-03-12T14:03:09", "12 March 2026, 14:03"),
        (figures.moment, "yesterday", "yesterday"),
        (figures.moment, None, "–"),
    ],
)
def test_a_figure_is_written_for_people(write: object, value: object, expected: str) -> None:
    assert callable(write)
    assert write(value) == expected
