"""Estimates: what follows from the time of a few steps."""

from functools import partial
from pathlib import Path

import pytest
import torch

from openalbert.model.presets import preset
from openalbert.pretraining.run import estimate_run
from openalbert.pretraining.settings import Pretrain
from openalbert.train.depth_schedule import DepthSchedule
from openalbert.train.device import Device
from openalbert.train.estimate import DryTimes, StepTimes, mean_cost, work_until
from openalbert.train.metrics_log import TimeLeft

CPU = Device(torch.device("cpu"), "fp32")
# Of a step at 12 layers to one at 3, by matrix sizes: a layer has 12 H^2 weights and attends to 512 tokens; beside the
# layers there are the map from E to H and, at 15 % of the tokens, the masked-LM head's from H to E to the vocabulary.
LAYER, REST = 24 * 768**2 + 4 * 512 * 768, 2 * 128 * 768 + 0.15 * 2 * 128 * (768 + 30_000)
RATIO = (12 * LAYER + REST) / (3 * LAYER + REST)


def test_the_time_of_a_step_is_that_of_the_first_ones_after_compiling_and_reported_once() -> None:
    times = StepTimes()
    told = [times.add(30.0 + 2.0 * max(0, number - 1)) for number in range(20)]  # 30 s of compiling, then 2 s each
    assert told == [None] * 8 + [2.0] + [None] * 11


def test_the_mean_depth_of_steps_and_of_time_differ() -> None:
    """Half of the steps at depth 3 and half at 12 take 7.5 each; half of the time at each is mostly shallow steps."""
    depths = DepthSchedule.parse("3,12@0.5", 12)
    assert mean_cost(depths, float, by_time=False) == 7.5
    assert mean_cost(depths, float, by_time=True) == pytest.approx(1 / (0.5 / 3 + 0.5 / 12))


def test_the_work_that_is_done_counts_each_depth_with_its_part_of_the_steps() -> None:
    """Up to 0.75: half of the steps at depth 3 and a quarter of them at 12."""
    depths = DepthSchedule.parse("3,12@0.5", 12)
    assert [work_until(progress, depths, float) for progress in (0.0, 0.25, 0.75)] == [0.0, 0.75, 4.5]


def test_one_slow_step_among_the_first_does_not_change_the_estimate() -> None:
    times, told = StepTimes(), []
    ends = [9.0, 10.0, 11.0, 12.0, 13.0, 113.0, 114.0, 115.0, 116.0]  # the sixth step has to wait for something
    told = [times.add(end) for end in ends]
    assert told[-1] == 1.0


def test_the_time_left_does_not_count_the_first_steps_and_follows_the_depth() -> None:
    """The first step takes 50 s and later ones 1 s at depth 1, of 100 in all; from the half on they take 3 s each."""
    left = TimeLeft(partial(work_until, depths=DepthSchedule.parse("1,3@0.5", 3), cost=float))
    told = [left.after(step / 100, 49.0 + step) for step in range(1, 11)]
    assert told[0] is None  # nothing is known yet
    assert told[1:] == [pytest.approx(50 - step + 150) for step in range(2, 11)]


def test_a_resumed_run_estimates_its_time_left_by_steps_of_its_own() -> None:
    """600 s were spent on the first half, elsewhere; here a step takes 2 s, and 50 steps of 100 are left."""
    left = TimeLeft()
    assert left.after(0.51, 640.0) is None
    assert left.after(0.52, 642.0) == pytest.approx(2 * 48)


def test_a_dry_run_takes_more_steps_where_they_are_fast_and_leaves_those_that_warm_up_out() -> None:
    fast = DryTimes()
    took = []
    while not fast.are_enough:
        took.append(fast.add(sum(took) + (1.0 if len(took) < 2 else 0.1)))
    assert took == pytest.approx([1.0, 1.0] + [0.1] * 7)
    assert fast.median == pytest.approx(0.1)
    slow = DryTimes()
    for end in (40.0, 60.0, 79.0):
        assert not slow.are_enough
        slow.add(end)
    assert slow.are_enough
    assert slow.median == 19.0
    short = DryTimes()
    short.add(7.0)
    assert short.median == 7.0
    short.add(9.0)
    assert short.median == 2.0  # all but the last step warmed up


@pytest.mark.parametrize(
    ("budget", "steps", "hours"),
    [
        ({"steps": 1000}, 1000, 1000 * (1 + RATIO) / 2 / 3600),
        ({"tokens": 50_000}, 500, 500 * (1 + RATIO) / 2 / 3600),
        # Steps of 1 s for half of two hours, then of almost 4 s: 3,600 and a little over 900.
        ({"minutes": 120.0}, 3600 + 3600 / RATIO, 2.0),
    ],
)
def test_steps_and_hours_follow_from_one_measured_step(budget: dict[str, float], steps: float, hours: float) -> None:
    settings = Pretrain(
        preset="albert-base", model=preset("albert-base"), depth_schedule="3,12@0.5", out=Path("run"), **budget
    )
    needs = estimate_run(settings, 8, step_seconds=1.0, step_tokens=100.0, depth=3, device=CPU)
    assert needs.steps == round(steps)
    assert needs.tokens == round(100 * steps)
    assert needs.hours == pytest.approx(hours)
