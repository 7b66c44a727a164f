"""The loop: one gradient for any split of a batch, steps that must not be taken, memory that runs out."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Device
from openalbert.train.loop import MAX_SPIKES, WINDOW, LoopConfig, Score, Step, TrainingTask, TrainState, training_steps

CPU = Device(torch.device("cpu"), "fp32")


class WorksOn(Device):
    """A device as a GPU is: the loop gives it the next step's passes before it reads this step's figures."""

    @property
    def is_asynchronous(self) -> bool:
        return True


AHEAD = WorksOn(torch.device("cpu"), "fp32")


@pytest.fixture(autouse=True, params=["cpu", "ahead"])
def device(request: pytest.FixtureRequest) -> None:
    """Every fact here holds on both kinds of devices."""
    DEVICE[:] = [CPU if request.param == "cpu" else AHEAD]


DEVICE = [CPU]


@dataclass
class Piece:
    """A batch for a made-up model: `ids` are inputs, of which only some ask for a prediction."""

    ids: Tensor
    asked: Tensor


class Numbers:
    """A source of made-up batches, cut into any number of micro_batches."""

    def __init__(self, size: int = 12) -> None:
        self.size = size
        self.asked_for: list[tuple[int, int]] = []

    def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[Piece]]:
        step = start
        while True:
            self.asked_for.append((step, micro_batches))
            generator = torch.Generator().manual_seed(step)
            ids = torch.randn(self.size, 4, generator=generator)
            asked = torch.rand(self.size, generator=generator) < 0.4
            mine = slice(rank * self.size // world, (rank + 1) * self.size // world)
            yield [
                Piece(*piece)
                for piece in zip(ids[mine].chunk(micro_batches), asked[mine].chunk(micro_batches), strict=True)
            ]
            step += 1


def learning(model: nn.Module, spoil: Callable[[Tensor, int], Tensor] = lambda loss, _: loss) -> TrainingTask[Piece]:
    calls = iter(range(10**9))

    def scores(piece: Piece, depth: int) -> dict[str, Score]:
        output = model(piece.ids)[:, 0]
        uneven = (output.square() * piece.asked).sum()
        every = (output - 1).abs().sum()
        count = torch.tensor(len(piece.ids))
        return {
            "masked_lm": Score(spoil(uneven, next(calls)), piece.asked.sum(), piece.asked.sum()),
            "sentence_order": Score(every, count, count),
        }

    def predictions(piece: Piece) -> dict[str, Tensor]:
        return {"masked_lm": piece.asked.sum(), "sentence_order": torch.tensor(len(piece.ids))}

    return TrainingTask(predictions, scores, lambda piece: torch.tensor(piece.ids.numel()), has_dropout=False)


def run(
    micro_batches: int = 1,
    steps: int = 3,
    source: Numbers | None = None,
    spoil: Callable[[Tensor, int], Tensor] = lambda loss, _: loss,
    train_state: TrainState | None = None,
    **changes: Any,
) -> tuple[list[Step], nn.Module, TrainState]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    settings = OptimizerSettings(kind="adamw", learning_rate=0.01)
    train_state = train_state or TrainState(micro_batches=micro_batches)
    loop_config = LoopConfig(
        budget=changes.pop("budget", Budget(steps=steps)),
        schedule=changes.pop("schedule", Schedule(kind="constant", warmup_fraction=0.0)),
        highest_rate=0.01,
        clip_norm=1e9,
        depths=changes.pop("depths", DepthSchedule((DepthStage(1),))),
        seed=0,
        skips_spikes=changes.pop("skips_spikes", False),
    )
    look = changes.pop("look", lambda step, model, train_state: None)
    taken = []
    for step in training_steps(
        model,
        make_optimizer(model, settings),
        source or Numbers(),
        learning(model, spoil),
        loop_config,
        changes.pop("device", DEVICE[0]),
        train_state,
        **changes,
    ):
        look(step, model, train_state)
        taken.append(step)
    return taken, model, train_state


@pytest.mark.parametrize("micro_batches", [2, 3, 4, 6, 12])
def test_any_number_of_micro_batches_gives_the_same_steps(micro_batches: int) -> None:
    whole, model, _ = run(1)
    split, other, _ = run(micro_batches)
    for left, right in zip(whole, split, strict=True):
        assert math.isclose(left.loss, right.loss, rel_tol=1e-6)
        assert math.isclose(left.grad_norm, right.grad_norm, rel_tol=1e-5)
        assert left.losses["masked_lm"][1] == right.losses["masked_lm"][1]
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_a_loss_counts_by_its_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    plain = learning(model)
    batches = Numbers()
    loop_config = LoopConfig(
        Budget(steps=1), Schedule(kind="constant", warmup_fraction=0.0), 0.0, 1e9, DepthSchedule((DepthStage(1),)), 0
    )
    norms = {}
    for order in (0.0, 1.0, 3.0):
        weighted = dataclasses.replace(plain, weights={"sentence_order": order})
        optimizer = make_optimizer(model, OptimizerSettings(kind="adamw", learning_rate=0.0))
        [step] = training_steps(model, optimizer, batches, weighted, loop_config, DEVICE[0], TrainState())
        words, orders = (total / count for total, count, _ in step.losses.values())
        assert math.isclose(step.loss, words + order * orders, rel_tol=1e-6)
        norms[order] = step.grad_norm
    assert norms[0.0] < norms[1.0] < norms[3.0]


@pytest.mark.parametrize("size", [1, 2, 12])
def test_the_gradient_is_that_of_the_sum_of_the_mean_losses(size: int) -> None:
    [step], _, _ = run(steps=1, source=Numbers(size))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    [piece] = next(Numbers(size).stream(start=0, rank=0, world=1, micro_batches=1))
    output = model(piece.ids)[:, 0]
    loss = (output - 1).abs().mean()
    if piece.asked.any():
        loss = loss + output[piece.asked].square().mean()
    loss.backward()
    assert math.isclose(step.loss, loss.item(), rel_tol=1e-6)
    joint = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    assert math.isclose(step.grad_norm, joint.norm().item(), rel_tol=1e-5)


class HasTwin(Device):
    """One of two processes that work on the same examples: a sum over both is twice what one of them has."""

    @property
    def is_asynchronous(self) -> bool:
        return DEVICE[0].is_asynchronous

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        return tensor.mul_(2)


def test_two_processes_with_the_same_examples_learn_what_one_learns_with_them() -> None:
    class FirstHalf(Numbers):
        def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[Piece]]:
            return super().stream(start=start, rank=0, world=2, micro_batches=micro_batches)

    alone, model, _ = run(micro_batches=3, source=FirstHalf())
    together, twin, _ = run(micro_batches=3, source=FirstHalf(), device=HasTwin(torch.device("cpu"), "fp32", 0, 2))
    for one, both in zip(alone, together, strict=True):
        assert math.isclose(one.loss, both.loss, rel_tol=1e-6)
        assert math.isclose(one.grad_norm, both.grad_norm, rel_tol=1e-6)
        assert both.losses["sentence_order"][1] == 2 * one.losses["sentence_order"][1] == 12
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_the_model_trains_again_whatever_was_done_with_it_between_two_steps() -> None:
    modes: list[bool] = []
    models: list[nn.Module] = []

    def note(loss: Tensor, call: int) -> Tensor:
        modes.extend(model.training for model in models)
        return loss

    def look(step: Step, model: nn.Module, train_state: TrainState) -> None:
        models[:] = [model.eval()]

    run(steps=5, spoil=note, look=look)
    # The first step is over before the model is known, on a device that works on the second one's passes too.
    assert modes == [True] * (3 if DEVICE[0].is_asynchronous else 4)


def test_only_a_device_that_works_on_is_given_the_next_step_before_a_step_is_reported() -> None:
    passes: list[int] = []
    seen: list[int] = []

    def note(loss: Tensor, call: int) -> Tensor:
        passes.append(call)
        return loss

    run(steps=4, spoil=note, look=lambda *_: seen.append(len(passes)))
    assert seen == ([2, 3, 4, 4] if DEVICE[0].is_asynchronous else [1, 2, 3, 4])


def test_a_step_tells_the_learning_rate_that_its_schedule_gives() -> None:
    taken, *_ = run(steps=4, schedule=Schedule(kind="linear", warmup_fraction=0.5))
    assert [step.learning_rate for step in taken] == pytest.approx([0.0, 0.005, 0.01, 0.005])


def test_a_run_without_dropout_leaves_torchs_random_numbers_alone() -> None:
    states = []
    run(steps=3, look=lambda *_: states.append(torch.get_rng_state()))
    assert all(torch.equal(states[0], state) for state in states)
    torch.manual_seed(0)
    nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    assert torch.equal(states[0], torch.get_rng_state())  # as the making of the model left them


def test_out_of_memory_halves_the_micro_batch_and_loses_no_example() -> None:
    source = Numbers()

    def full(loss: Tensor, call: int) -> Tensor:
        if source.asked_for[-1][1] < 4:  # room for a quarter of the batch only
            raise torch.OutOfMemoryError("made up")
        return loss

    taken, model, train_state = run(1, source=source, spoil=full)
    assert train_state.micro_batches == 4
    assert [(step, micro_batches) for step, micro_batches in source.asked_for][:3] == [(0, 1), (0, 2), (0, 4)]
    assert [what for what, _ in taken[0].remarks] == ["out_of_memory", "out_of_memory"]
    assert [text for _, text in taken[0].remarks] == [
        "out of memory with 12 examples at a time: from now on 6, in 2 micro-batches; the global batch stays the same",
        "out of memory with 6 examples at a time: from now on 3, in 4 micro-batches; the global batch stays the same",
    ]
    _, expected, _ = run(4)
    for left, right in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(left, right)


def test_where_memory_runs_out_one_stream_is_closed_before_the_next_is_opened() -> None:
    events: list[str] = []

    class Noted(Numbers):
        def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[Piece]]:
            events.append(f"open {micro_batches}")
            pieces = super().stream(start=start, rank=rank, world=world, micro_batches=micro_batches)

            def noted() -> Iterator[list[Piece]]:
                try:
                    yield from pieces
                finally:
                    events.append(f"close {micro_batches}")

            return noted()

    source = Noted()

    def full(loss: Tensor, call: int) -> Tensor:
        if source.asked_for[-1][1] < 4:
            raise torch.OutOfMemoryError("made up")
        return loss

    run(1, source=source, spoil=full)
    assert events == ["open 1", "close 1", "open 2", "close 2", "open 4", "close 4"]


def test_memory_too_small_for_one_example_says_what_to_do() -> None:
    def full(loss: Tensor, call: int) -> Tensor:
        raise torch.OutOfMemoryError("made up")

    with pytest.raises(UserError, match="not enough memory for a single example"):
        run(1, spoil=full)


@pytest.mark.parametrize("skips_spikes", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_no_finite_number_is_skipped_and_counted(value: float, skips_spikes: bool) -> None:
    taken, model, train_state = run(
        steps=4, spoil=lambda loss, call: loss * value if call == 2 else loss, skips_spikes=skips_spikes
    )
    assert [step.is_skipped for step in taken] == [False, False, True, False]
    assert train_state.skipped == 1
    assert taken[2].remarks[0][0] == "skipped"
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_run_that_gives_no_finite_number_any_more_ends_with_advice() -> None:
    with pytest.raises(UserError, match="lower the learning rate"):
        run(steps=100, spoil=lambda loss, call: loss * math.nan)


MOST_SPIKES = math.floor(MAX_SPIKES * WINDOW) + 1  # skipped before it is seen that they are no accidents


def test_a_spike_of_the_loss_is_skipped_but_a_new_level_is_accepted_in_the_end() -> None:
    def spoil(loss: Tensor, call: int) -> Tensor:
        return loss * (1000.0 if call == WINDOW + 3 or call >= WINDOW + 10 else 1.0)

    taken, _, train_state = run(steps=2 * WINDOW + 40, spoil=spoil, skips_spikes=True)
    skipped = [step.number for step in taken if step.is_skipped]
    # The single one, and as many of the new level as make up more than 5 % of the window with it.
    assert skipped == [WINDOW + 4, *range(WINDOW + 11, WINDOW + 10 + MOST_SPIKES)]
    assert len(skipped) == MOST_SPIKES == 7
    assert "6 standard deviations above" in taken[WINDOW + 3].remarks[0][1]
    assert [step.number for step in taken if "spikes" in dict(step.remarks)] == [skipped[-1]]
    assert train_state.skipped == len(skipped)


def test_spikes_are_skipped_again_when_a_window_without_them_is_past() -> None:
    last = WINDOW + 10 + MOST_SPIKES  # the last spike of many, which is taken
    spikes = {*range(WINDOW + 10, last + 1), last + WINDOW + 1}
    taken, _, _ = run(
        steps=last + WINDOW + 5, spoil=lambda loss, call: loss * (1000.0 if call in spikes else 1.0), skips_spikes=True
    )
    assert [step.number - 1 for step in taken if step.is_skipped] == sorted(spikes - {last})


def test_a_taken_spike_widens_what_is_taken_while_it_is_in_the_window() -> None:
    last = WINDOW + 10 + MOST_SPIKES
    spikes = {*range(WINDOW + 10, last + 3), last + 40, last + WINDOW}
    taken, _, _ = run(
        steps=last + WINDOW + 3, spoil=lambda loss, call: loss * (1000.0 if call in spikes else 1.0), skips_spikes=True
    )
    assert [step.number - 1 for step in taken if step.is_skipped] == list(range(WINDOW + 10, last))


def test_where_spikes_are_taken_only_steps_that_are_not_finite_are_skipped() -> None:
    def spoil(loss: Tensor, call: int) -> Tensor:
        return loss * {WINDOW + 3: 1e6, WINDOW + 5: math.nan}.get(call, 1.0)

    taken, _, train_state = run(steps=WINDOW + 8, spoil=spoil)
    assert [step.number for step in taken if step.is_skipped] == [WINDOW + 6]
    assert len(train_state.recent) == WINDOW
    assert max(train_state.recent) > 1e4  # as it was


def test_a_resumed_run_skips_the_spikes_that_the_undisturbed_one_skips() -> None:
    def spoil(first: int) -> Callable[[Tensor, int], Tensor]:
        return lambda loss, call: loss * (1000.0 if first + call == WINDOW + 5 else 1.0)

    state: dict[str, Any] = {}

    def look(step: Step, model: nn.Module, train_state: TrainState) -> None:
        if step.number == WINDOW + 3:
            state.update(asdict(train_state))

    taken, *_ = run(steps=WINDOW + 8, spoil=spoil(0), look=look, skips_spikes=True)
    resumed = TrainState(**state)
    again, *_ = run(steps=WINDOW + 8, spoil=spoil(WINDOW + 3), train_state=resumed, skips_spikes=True)
    assert [step.number for step in again if step.is_skipped] == [step.number for step in taken if step.is_skipped]
    assert resumed.skipped == 1


def test_the_depth_follows_its_schedule_and_is_reported() -> None:
    depths = DepthSchedule((DepthStage(1), DepthStage(2, 0.5)))
    taken, _, _ = run(steps=4, depths=depths)
    assert [step.depth for step in taken] == [1, 1, 2, 2]
    assert taken[2].remarks[0][0] == "depth"


def test_the_higher_loss_of_a_new_depth_is_not_skipped_and_becomes_the_level_to_compare_with() -> None:
    stage = WINDOW + 8  # steps at each of the two depths
    spike = stage + WINDOW + 4  # the window of the second depth is full by then

    def spoil(loss: Tensor, call: int) -> Tensor:
        return loss * (1.0 if call < stage else 1e6 if call == spike else 1000.0)

    depths = DepthSchedule((DepthStage(1), DepthStage(2, 0.5)))
    taken, _, train_state = run(steps=2 * stage, depths=depths, spoil=spoil, skips_spikes=True)
    assert [step.depth for step in taken] == [1] * stage + [2] * stage
    assert taken[stage].loss > 50 * taken[stage - 1].loss
    assert [step.number for step in taken if step.is_skipped] == [spike + 1]
    assert train_state.skipped == 1


@dataclass(frozen=True)
class OneOfTwo(Device):
    """One of two processes, whose sums over the processes are its own alone."""

    world: int = 2

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        return tensor


def dropout_draws(
    rank: int = 0, seed: int = 0, micro_batches: int = 3, steps: int = 3, start: int = 0, size: int = 12
) -> list[float]:
    """The first random number of each forward pass, in the order of the passes."""
    model = nn.Linear(4, 1)
    drawn: list[float] = []
    plain = learning(model)

    def scores(piece: Piece, depth: int) -> dict[str, Score]:
        drawn.append(torch.rand((), dtype=torch.float64).item())
        return plain.scores(piece, depth)

    schedule = Schedule(kind="constant", warmup_fraction=0.0)
    loop_config = LoopConfig(Budget(steps=steps), schedule, 0.01, 1e9, DepthSchedule((DepthStage(1),)), seed)
    optimizer = make_optimizer(model, OptimizerSettings(kind="adamw", learning_rate=0.01))
    taught = dataclasses.replace(plain, scores=scores, has_dropout=True)
    device = OneOfTwo(torch.device("cpu"), "fp32", rank)
    torch.manual_seed(99 + start)  # what was drawn before the run has no influence
    for _ in training_steps(
        model,
        optimizer,
        Numbers(size),
        taught,
        loop_config,
        device,
        TrainState(step=start, micro_batches=micro_batches),
    ):
        torch.rand(7)  # nor has what is drawn between two steps
    return drawn


@pytest.mark.parametrize("micro_batches", [3, 64])
def test_every_micro_batch_of_every_step_process_and_seed_draws_its_own_dropout(micro_batches: int) -> None:
    drawn = [
        number
        for rank in (0, 1)
        for seed in (0, 1)
        for number in dropout_draws(rank, seed, micro_batches, size=2 * micro_batches)
    ]
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 3 * micro_batches


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_run_draws_the_dropout_of_the_run_that_never_stopped(rank: int) -> None:
    assert dropout_draws(rank, start=2, steps=5) == dropout_draws(rank, steps=5)[2 * 3 :]


def test_a_budget_in_tokens_ends_when_they_are_seen() -> None:
    taken, _, train_state = run(budget=Budget(tokens=100))
    assert train_state.tokens == 144  # a step sees 48
    assert len(taken) == 3
    assert [round(step.progress, 2) for step in taken] == [0.0, 0.48, 0.96]


def test_a_budget_in_minutes_ends_by_the_clock() -> None:
    _, _, train_state = run(budget=Budget(minutes=0.005))
    assert 0.3 <= train_state.seconds < 5


def test_a_resumed_run_takes_the_same_next_step() -> None:
    source = Numbers()
    run(source=source, train_state=TrainState(step=2), steps=3)
    assert source.asked_for[0] == (2, 1)


@pytest.mark.parametrize("budget", [Budget(steps=6), Budget(tokens=6 * 48)])
def test_between_two_steps_all_is_as_the_told_one_left_it(budget: Budget) -> None:
    depths = DepthSchedule((DepthStage(1), DepthStage(2, 0.5)))
    found = []
    for device in (CPU, AHEAD):
        seen: list[tuple[Any, ...]] = []

        def look(step: Step, model: nn.Module, train_state: TrainState, seen: list[tuple[Any, ...]] = seen) -> None:
            weights = [parameter.detach().clone() for parameter in model.parameters()]
            seen.append((step, weights, train_state.step, train_state.tokens, list(train_state.recent)))

        run(budget=budget, device=device, depths=depths, look=look)
        found.append(seen)
    assert len(found[0]) == len(found[1]) == 6
    for (step, weights, *counts), (other, other_weights, *other_counts) in zip(*found, strict=True):
        assert step == other
        assert counts == other_counts
        assert all(torch.equal(left, right) for left, right in zip(weights, other_weights, strict=True))


def test_a_run_that_resumes_is_at_the_depth_of_the_one_that_never_stopped() -> None:
    depths = DepthSchedule((DepthStage(1), DepthStage(2, 0.5)))
    states: list[dict[str, Any]] = []
    taken, *_ = run(budget=Budget(tokens=48 * 8), depths=depths, look=lambda *all_of: states.append(asdict(all_of[-1])))
    for state in states[:-1]:
        again, *_ = run(budget=Budget(tokens=48 * 8), depths=depths, train_state=TrainState(**state))
        assert [step.depth for step in again] == [step.depth for step in taken[state["step"] :]]
        assert [step.number for step in again] == [step.number for step in taken[state["step"] :]]


def test_memory_that_runs_out_in_the_middle_costs_no_step() -> None:
    source = Numbers()

    def full(loss: Tensor, call: int) -> Tensor:
        if source.asked_for[-1][0] >= 3 and source.asked_for[-1][1] < 2:
            raise torch.OutOfMemoryError("made up")
        return loss

    taken, model, train_state = run(steps=5, source=source, spoil=full)
    assert [step.number for step in taken] == [1, 2, 3, 4, 5]
    assert train_state.micro_batches == 2
    _, expected, _ = run(steps=5)
    for left, right in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    [(number, remarks)] = [(step.number, step.remarks) for step in taken if step.remarks]
    assert number == 4
    assert remarks[0][0] == "out_of_memory"


def test_what_happens_every_few_steps_is_due_at_their_multiples() -> None:
    taken, *_ = run(steps=6)
    assert [step.number for step in taken if step.every(3)] == [3, 6]
    assert all(step.every(1) for step in taken)
    assert not any(step.every(None) for step in taken)


def test_a_request_to_stop_reaches_the_step() -> None:
    taken, _, _ = run(steps=3, stop_asked=lambda: True)
    assert all(step.stop_asked for step in taken)


def test_running_metrics_read_back_equal() -> None:
    train_state = TrainState(
        step=3, tokens=4, seconds=5.5, skipped=1, micro_batches=2, recent=[1.25, 0.1], recent_spikes=[True]
    )
    assert TrainState(**asdict(train_state)) == train_state
