import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import get_constant_schedule_with_warmup, get_linear_schedule_with_warmup

from openalbert.errors import UserError
from openalbert.optim.schedule import Budget, Schedule, Spent
from openalbert.settings import from_json, to_json

PAPER = Budget(steps=125_000)
shares = st.floats(0, 1)


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(warmup_steps=3125)], ids=["share", "steps"])
def test_the_papers_schedule_has_its_printed_values_and_its_jump(schedule: Schedule) -> None:
    schedule = schedule.within(PAPER)

    def rate(step: int) -> float:
        return schedule.learning_rate(0.00176, PAPER.progress(Spent(steps=step)))

    assert rate(0) == 0
    assert f"{rate(3124):.8f}" == "0.00175944"
    assert f"{rate(3125):.6f}" == "0.001716"
    assert f"{rate(60_000):.7f}" == "0.0009152"
    assert rate(125_000) == 0
    for step in range(0, 125_000, 61):
        exact = 0.00176 * step / 3125 if step < 3125 else 0.00176 * (1 - step / 125_000)
        assert rate(step) == pytest.approx(exact, rel=1e-12)


@given(st.integers(1, 10_000), st.data())
def test_the_warm_up_ends_at_its_very_step(steps: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, steps - 1))
    budget = Budget(steps=steps)
    schedule = Schedule(warmup_steps=warmup).within(budget)
    assert schedule.factor(budget.progress(Spent(steps=warmup))) == 1 - warmup / steps
    if warmup:
        assert schedule.factor(budget.progress(Spent(steps=warmup - 1))) == pytest.approx((warmup - 1) / warmup)


@pytest.mark.parametrize("warmup", [0, 1, 7, 39])
@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_linear_and_constant_are_those_of_transformers(kind: str, warmup: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    if kind == "linear":
        peer = get_linear_schedule_with_warmup(optimizer, warmup, 40)
    else:
        peer = get_constant_schedule_with_warmup(optimizer, warmup)
    budget = Budget(steps=40)
    schedule = Schedule(kind, warmup_steps=warmup).within(budget)
    for step in range(41):
        ours = schedule.learning_rate(0.3, budget.progress(Spent(steps=step)))
        assert ours == pytest.approx(peer.get_last_lr()[0], rel=1e-12, abs=1e-15)
        optimizer.step()
        peer.step()


@given(st.sampled_from(["paper", "linear", "constant"]), st.floats(0, 0.99), shares)
def test_the_rate_is_never_negative_nor_above_the_highest(kind: str, warmup: float, progress: float) -> None:
    assert 0 <= Schedule(kind, warmup_fraction=warmup).factor(progress) <= 1


def test_the_schedule_follows_the_budget_whatever_it_counts() -> None:
    schedule = Schedule("linear", warmup_fraction=0.06)
    half = [
        Budget(steps=1000).progress(Spent(steps=500, tokens=7, minutes=9.0)),
        Budget(tokens=10**12).progress(Spent(steps=3, tokens=5 * 10**11, minutes=9.0)),
        Budget(minutes=20.0).progress(Spent(steps=3, tokens=7, minutes=10.0)),
    ]
    assert half == [0.5, 0.5, 0.5]
    assert schedule.learning_rate(0.002, 0.5) == pytest.approx(0.002 * 0.5 / 0.94)


def test_a_budget_is_spent_at_its_end_and_not_before() -> None:
    assert not Budget(steps=3).is_spent(Spent(steps=2))
    assert Budget(steps=3).is_spent(Spent(steps=3))
    assert not Budget(tokens=10**13).is_spent(Spent(tokens=10**13 - 1))
    assert Budget(minutes=0.5).is_spent(Spent(minutes=0.7))
    assert Budget(minutes=0.5).progress(Spent(minutes=0.7)) == 1.0


@pytest.mark.parametrize("budget", [Budget(steps=3), Budget(tokens=3), Budget(minutes=3.0)], ids=str)
def test_of_a_run_that_has_not_begun_nothing_is_spent(budget: Budget) -> None:
    assert budget.progress(Spent()) == 0


def test_a_budget_says_what_it_is() -> None:
    assert [str(Budget(steps=125_000)), str(Budget(minutes=20.0))] == ["125,000 steps", "20 minutes"]
    assert [str(Budget(steps=1)), str(Budget(steps=2))] == ["1 step", "2 steps"]
    assert Budget(tokens=5).unit == "tokens"


def test_a_budget_is_exactly_one_number_above_zero() -> None:
    with pytest.raises(UserError, match="none of them came: give exactly one"):
        Budget()
    with pytest.raises(UserError, match="steps and minutes came: give exactly one"):
        Budget(steps=1, minutes=1.0)
    with pytest.raises(UserError, match="the budget is 0 steps: give a finite number above 0"):
        Budget(steps=0)
    with pytest.raises(UserError, match="nan minutes"):
        Budget(minutes=math.nan)


def test_a_warm_up_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match=r"warmup_fraction is 1\.0"):
        Schedule(warmup_fraction=1.0)
    with pytest.raises(UserError, match="warmup_steps is -1"):
        Schedule(warmup_steps=-1)
    with pytest.raises(UserError, match="warmup_steps is 10 but the budget is in minutes: give warmup_fraction"):
        Schedule(warmup_steps=10).within(Budget(minutes=3.0))
    with pytest.raises(UserError, match="warmup_steps is 10 but the run has 10 steps"):
        Schedule(warmup_steps=10).within(Budget(steps=10))
    with pytest.raises(ValueError, match="within"):
        Schedule(warmup_steps=10).factor(0.5)
    with pytest.raises(ValueError, match=r"progress is 1\.5"):
        Schedule().factor(1.5)


def test_a_run_may_do_without_a_warm_up() -> None:
    for schedule in (
        Schedule("linear", warmup_fraction=0.0),
        Schedule("linear", warmup_steps=0).within(Budget(steps=4)),
    ):
        assert [schedule.factor(progress) for progress in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert Schedule("constant", warmup_steps=3).within(Budget(steps=4)).warmup_fraction == 0.75
    with pytest.raises(ValueError, match=r"progress is -0\.25"):
        Schedule().factor(-0.25)


def test_budgets_and_schedules_survive_json() -> None:
    for value in (Budget(minutes=20.0), Budget(steps=7), Schedule("linear", warmup_steps=3), Spent(1, 2, 3.5)):
        assert from_json(to_json(value), type(value)) == value
