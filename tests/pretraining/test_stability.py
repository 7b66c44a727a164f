"""What pretraining is told of its loss: nothing while all is well, one sentence when it is not."""

import itertools

import pytest

from openalbert.pretraining.loss import LossMonitor


def told(
    losses: list[float], depths: list[int] | None = None, watch: LossMonitor | None = None
) -> list[tuple[int, str]]:
    """The kinds of what is said, with the number of the record, over a run with a record every 100 steps."""
    watch = watch or LossMonitor(unigram_entropy=7.0)
    found = []
    for number, (loss, depth) in enumerate(zip(losses, depths or itertools.repeat(12), strict=False)):
        said = watch.check(loss, 100, depth, 100 * (number + 1), number / len(losses))
        if said:
            found.append((number, said[0]))
    return found


def test_a_loss_that_falls_or_wavers_is_not_spoken_of() -> None:
    assert told([9.0, 7.0, 6.0, 5.0, 5.4, 4.9, 5.1, 5.8]) == []


def test_what_is_lost_again_is_reported_once_with_what_to_do() -> None:
    losses = [3.8, 3.7, 4.0, 5.4, 6.1, 6.0, 3.7, 5.0]
    assert told(losses) == [(3, "lost")]
    watch = LossMonitor(unigram_entropy=7.0)
    watch.check(3.7, 100, 12, 100, 0.1)
    said = watch.check(5.4, 100, 12, 200, 0.2)
    assert said is not None
    assert "from 3.700 to 5.400" in said[1]
    assert "lower --optimizer.learning-rate" in said[1]


def test_the_jump_of_a_new_depth_is_no_loss() -> None:
    assert told([5.0, 4.0, 6.0, 4.5], [3, 3, 6, 6]) == []


def test_the_plateau_is_reported_once_and_not_at_the_beginning() -> None:
    assert told([7.0] * 10) == [(2, "plateau")]


@pytest.mark.parametrize("is_growing", [False, True])
def test_who_starts_shallow_is_not_told_to(is_growing: bool) -> None:
    said = LossMonitor(unigram_entropy=7.0, is_growing=is_growing).check(7.0, 100, 3, 1000, 0.5)
    assert said is not None
    assert ("--depth-schedule" in said[1]) == (not is_growing)
    assert "a higher learning rate" in said[1]


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_resumed_run_says_what_the_other_would_have_said(stop: int) -> None:
    losses = [3.8, 3.7, 4.0, 5.4, 6.1, 6.9, 6.9, 6.9]
    watch = LossMonitor(unigram_entropy=7.0)
    first = told(losses[:stop], watch=watch)
    again = LossMonitor(unigram_entropy=7.0, **watch.state())
    rest = [
        (number, said[0])
        for number, loss in enumerate(losses[stop:], stop)
        if (said := again.check(loss, 100, 12, 100 * (number + 1), number / len(losses)))
    ]
    assert first + rest == told(losses)


def test_the_noise_of_single_steps_is_no_loss_and_a_real_one_is_reported_all_the_same() -> None:
    watch = LossMonitor(unigram_entropy=7.0)
    noisy = [2.6 if number % 2 else 3.9 for number in range(300)]
    for number, loss in enumerate([*noisy, *(loss + 1.5 for loss in noisy)]):
        said = watch.check(loss, 1, 12, number, 0.1)
        assert bool(said) == (number == 399)
