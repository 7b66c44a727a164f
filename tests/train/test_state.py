"""What a run carries from step to step: when a loss is a spike, when a run is given up, what a step tells."""

import math
import statistics

import numpy as np
import pytest

from openalbert.errors import UserError
from openalbert.optim.schedule import Spent
from openalbert.train.loop import PendingStep, Step, TrainState

NAMES = ["masked_lm", "sentence_order"]


def read(
    train_state: TrainState,
    loss: float = 1.5,
    norm: float = 0.5,
    is_skipped: bool = False,
    limit: float = math.inf,
    remarks: tuple[tuple[str, str], ...] = (),
) -> Step:
    """Take a step of 48 tokens whose sums, numbers of predictions and of right answers all differ."""
    figures = [48.0, 30.5, 20.0, 7.0, 11.25, 12.0, 9.0, 0.0, 3.5, norm, loss, float(is_skipped)]
    return PendingStep(lambda: figures, 0.01, 2, 0.25, remarks, limit).read(NAMES, train_state)


def test_nothing_is_spent_or_skipped_at_the_start() -> None:
    train_state = TrainState()
    assert train_state.spent == Spent(steps=0, tokens=0, minutes=0.0)
    assert (train_state.skipped, train_state.skipped_in_a_row) == (0, 0)


def test_a_step_reports_what_the_device_sent() -> None:
    train_state = TrainState(step=4, tokens=100)
    step = read(train_state)
    assert step.losses == {"masked_lm": (30.5, 20, 7), "sentence_order": (11.25, 12, 9)}
    assert (step.number, step.loss, step.grad_norm) == (5, 1.5, 0.5)
    assert (step.learning_rate, step.depth, step.progress) == (0.01, 2, 0.25)
    assert (step.is_skipped, step.stop_asked, step.remarks) == (False, False, ())
    assert (train_state.step, train_state.tokens, train_state.seconds) == (5, 148, 3.5)


def test_a_spike_is_six_standard_deviations_above_the_mean_of_the_last_128_losses() -> None:
    draw = np.random.default_rng(0)
    losses = draw.normal(3.0, 0.2, 200).tolist()
    train_state = TrainState()
    for number, loss in enumerate(losses):
        if number < 128:  # too few to compare with
            assert train_state.loss_limit() == math.inf
        else:
            last = losses[number - 128 : number]
            assert train_state.loss_limit() == pytest.approx(
                statistics.mean(last) + 6 * statistics.stdev(last), rel=1e-12
            )
        train_state.add_loss(loss, train_state.loss_limit())
    assert train_state.recent == losses[-128:]
    assert train_state.recent_spikes == [False] * 128


def test_more_than_five_percent_of_spikes_among_128_steps_are_no_accidents() -> None:
    train_state = TrainState(recent=[1.0] * 128, recent_spikes=[True] * 6 + [False] * 122)
    assert not train_state.has_many_spikes
    assert train_state.loss_limit() == 1.0
    train_state.recent_spikes[6] = True
    assert train_state.has_many_spikes
    assert train_state.loss_limit() == math.inf


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 0.5), (1.5, math.inf)])
def test_after_16_steps_in_a_row_that_are_not_finite_the_next_such_step_ends_the_run(loss: float, norm: float) -> None:
    train_state = TrainState()
    for number in range(1, 17):
        step = read(train_state, loss, norm, is_skipped=True)
        assert step.is_skipped
        assert dict(step.remarks)["skipped"].startswith(f"step {number} was skipped: its loss is {loss}")
    assert (train_state.skipped, train_state.skipped_in_a_row) == (16, 16)
    with pytest.raises(UserError, match="16 steps in a row had a loss or gradient that is no finite number"):
        read(train_state, loss, norm, is_skipped=True)


def test_a_finite_step_gives_a_run_patience_again() -> None:
    train_state = TrainState()
    for _ in range(3):
        for _ in range(16):
            read(train_state, math.nan, is_skipped=True)
        read(train_state)
    assert (train_state.step, train_state.skipped, train_state.skipped_in_a_row) == (51, 48, 0)


def test_what_is_remarked_on_before_a_step_is_reported_although_the_step_was_skipped() -> None:
    earlier = (("depth", "from now on 2 layers are run"),)
    train_state = TrainState(step=128, recent=[1.0] * 127 + [1.5], recent_spikes=[False] * 128)
    step = read(train_state, loss=9.0, is_skipped=True, limit=train_state.loss_limit(), remarks=earlier)
    assert step.remarks == (
        *earlier,
        (
            "skipped",
            "step 129 was skipped: its loss 9.000 is more than 6 standard deviations above 1.004, "
            "the mean of 128 steps",
        ),
    )
