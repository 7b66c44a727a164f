"""Estimates: what follows from the time of a few steps."""

from pathlib import Path

import pytest
import torch

from openalbert.model.presets import preset
from openalbert.optim.schedule import DepthSchedule
from openalbert.train.device import Device
from openalbert.train.estimate import StepTimes, estimate, mean_depth
from openalbert.train.settings import Pretrain

CPU = Device(torch.device("cpu"), "fp32")


def test_the_time_of_a_step_is_that_of_the_first_ones_after_compiling_and_told_once() -> None:
    times = StepTimes()
    told = [times.add(30.0 + 2.0 * max(0, number - 1)) for number in range(20)]  # 30 s of compiling, then 2 s each
    assert told == [None] * 8 + [2.0] + [None] * 11


def test_the_mean_depth_of_steps_and_of_time_differ() -> None:
    """Half of the steps at depth 3 and half at 12 take 7.5 each; half of the time at each is mostly shallow steps."""
    depths = DepthSchedule.parse("3,12@0.5", 12)
    assert mean_depth(depths, by_time=False) == 7.5
    assert mean_depth(depths, by_time=True) == pytest.approx(1 / (0.5 / 3 + 0.5 / 12))


@pytest.mark.parametrize(
    ("budget", "steps", "hours"),
    [
        ({"steps": 1000}, 1000, 1000 * 2.5 / 3600),
        ({"tokens": 50_000}, 500, 500 * 2.5 / 3600),
        # Steps of 1 s for half of two hours, then of 4 s: 3,600 and 900.
        ({"minutes": 120.0}, 4500, 2.0),
    ],
)
def test_steps_and_hours_follow_from_one_measured_step(budget: dict[str, float], steps: int, hours: float) -> None:
    settings = Pretrain(
        preset="albert-base", model=preset("albert-base"), depth_schedule="3,12@0.5", out=Path("run"), **budget
    )
    needs = estimate(settings, 8, step_seconds=1.0, step_tokens=100.0, depth=3, device=CPU)
    assert needs.steps == steps
    assert needs.tokens == 100 * steps
    assert needs.hours == pytest.approx(hours)
