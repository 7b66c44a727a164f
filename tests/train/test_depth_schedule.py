"""The depth schedule: read from text, refused where it makes no sense, never shrinking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.settings import from_json, to_json
from openalbert.train.depth_schedule import DepthSchedule, DepthStage


def test_the_depth_grows_at_its_fractions() -> None:
    schedule = DepthSchedule.parse("3,6@0.25,12@0.5", num_layers=12)
    assert schedule == DepthSchedule((DepthStage(3), DepthStage(6, 0.25), DepthStage(12, 0.5)))
    assert [schedule.depth(fraction) for fraction in (0.0, 0.2499, 0.25, 0.4999, 0.5, 1.0)] == [3, 3, 6, 6, 12, 12]
    assert str(schedule) == "3,6@0.25,12@0.5"
    assert DepthSchedule.parse("12", 12).depth(0.0) == 12
    assert DepthSchedule.parse(" 3 , 12@.5 ", 12).depth(0.5) == 12


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(1e-6, 0.999999)), min_size=1, max_size=5), st.floats(0, 1))
def test_a_depth_schedule_reads_back_and_never_shrinks(steps: list[tuple[int, float]], progress: float) -> None:
    starts = sorted({fraction for _, fraction in steps})
    depths = [1 + sum(growth for growth, _ in steps[: index + 1]) for index in range(len(starts))]
    schedule = DepthSchedule(
        (DepthStage(1), *(DepthStage(depth, at) for depth, at in zip(depths, starts, strict=True)))
    ).checked(depths[-1])
    assert DepthSchedule.parse(str(schedule), depths[-1]) == schedule
    assert 1 <= schedule.depth(progress / 2) <= schedule.depth(progress) <= depths[-1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not understood: write depths"),
        ("3,x@0.5", "'x@0.5' is not understood"),
        ("3,12@", "'12@' is not understood"),
        ("3@0.1,12@0.5", "the first depth starts at 0"),
        ("3,6,12@0.5", "the fractions must rise"),
        ("3,6@0.5,12@0.25", "the fractions must rise"),
        ("3,12@1", "stay below 1"),
        ("3,12@nan", "the fractions must rise"),
        ("6,3@0.2,12@0.5", "depth 3 follows depth 6: the depths must rise"),
        ("3,3@0.2,12@0.5", "depth 3 follows depth 3: the depths must rise"),
        ("0,12@0.5", "depth 0 is not a depth"),
        ("3,6@0.5", "it ends at depth 6 but the model has 12 layers: end it with 12"),
        ("3,24@0.5", "it ends at depth 24 but the model has 12 layers"),
    ],
)
def test_a_depth_schedule_that_makes_no_sense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DepthSchedule.parse(text, num_layers=12)


def test_a_depth_schedule_survives_json() -> None:
    schedule = DepthSchedule.parse("3,6@0.25,12@0.5", 12)
    assert from_json(to_json(schedule), DepthSchedule) == schedule
