"""The mask schedule: read from text, refused where it makes no sense."""

import pytest

from openalbert.errors import UserError
from openalbert.pretraining.mask_schedule import MaskSchedule, MaskStage


def test_the_rate_changes_at_its_fractions() -> None:
    schedule = MaskSchedule.parse("0.2@0.5, 0.15@0.8", first=0.3)
    assert schedule == MaskSchedule((MaskStage(0.3), MaskStage(0.2, 0.5), MaskStage(0.15, 0.8)))
    assert [schedule.rate(at) for at in (0.0, 0.4999, 0.5, 0.7999, 0.8, 1.0)] == [0.3, 0.3, 0.2, 0.2, 0.15, 0.15]
    assert schedule.mean == pytest.approx(0.5 * 0.3 + 0.3 * 0.2 + 0.2 * 0.15)
    assert schedule.highest == 0.3
    assert [schedule.rates_from(at) for at in (0.0, 0.5, 0.9)] == [[0.3, 0.2, 0.15], [0.2, 0.15], [0.15]]


def test_without_a_schedule_the_rate_stays() -> None:
    schedule = MaskSchedule.parse("", first=0.15)
    assert (schedule.rate(0.0), schedule.rate(1.0), schedule.mean, schedule.highest) == (0.15, 0.15, 0.15, 0.15)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.15", "'0.15' is not understood: write rates"),
        ("0.15@", "'0.15@' is not understood"),
        ("x@0.5", "'x@0.5' is not understood"),
        ("0@0.5", "a rate of 0 is none"),
        ("1@0.5", "a rate of 1 is none"),
        ("nan@0.5", "a rate of nan is none"),
        ("0.2@0", "the fractions must rise"),
        ("0.2@1", "the fractions must rise"),
        ("0.2@nan", "the fractions must rise"),
        ("0.2@0.5,0.15@0.5", "the fractions must rise"),
        ("0.2@0.5,0.15@0.3", "after one that begins at 0.5"),
    ],
)
def test_a_mask_schedule_that_makes_no_sense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        MaskSchedule.parse(text, first=0.3)
