"""Pretraining survives a spike of the loss, and learns what is rare; each on a small ALBERT and real batches."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pretraining.made_shards import easy_text, made_shards

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.pretraining.batches import Batches, Objective, PretrainingBatch
from openalbert.pretraining.loss import pretraining
from openalbert.text.shards import open_shards
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Device
from openalbert.train.loop import MAX_SPIKES, WINDOW, LoopConfig, Step, TrainState, training_steps

STEPS = 280
SPIKE_AT = 180


class Changed(Batches):
    """Batches, some of which are not what they should be."""

    change: Callable[[int, PretrainingBatch], PretrainingBatch] = staticmethod(lambda step, batch: batch)

    def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[PretrainingBatch]]:
        for step, of_step in enumerate(
            super().stream(start=start, rank=rank, world=world, micro_batches=micro_batches), start
        ):
            yield [self.change(step, batch) for batch in of_step]


@dataclass(frozen=True)
class Raised(Schedule):
    """A constant learning rate that is too high for a while."""

    factor: float = 1.0

    steps: int = STEPS

    def within(self, budget: Budget) -> Schedule:
        return self

    def learning_rate(self, highest: float, progress: float) -> float:
        step = round(progress * self.steps)
        return highest * (self.factor if SPIKE_AT <= step < SPIKE_AT + 20 else min(1.0, step / 40))


def train(
    shards: Path,
    schedule: Schedule | None = None,
    change: Callable[[int, PretrainingBatch], PretrainingBatch] | None = None,
    skips_spikes: bool = True,
    steps: int = STEPS,
    look: Callable[[Step, AlbertModel], None] = lambda step, model: None,
) -> tuple[list[Step], AlbertModel]:
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=300, embedding_size=16, hidden_size=32, num_layers=1, num_heads=2, ffn_size=64, max_positions=32,
        initializer_range=0.15,
    )  # fmt: skip
    model = AlbertModel(config, PRETRAINING_HEADS)
    batches = Changed(open_shards(shards), Objective(max_length=24), 8, seed=1)
    if change is not None:
        batches.change = change  # type: ignore[method-assign]
    settings = OptimizerSettings(kind="lamb", learning_rate=0.01)
    loop_config = LoopConfig(
        Budget(steps=steps), schedule or Raised(), 0.01, 1.0, DepthSchedule((DepthStage(1),)), 0, skips_spikes
    )
    taken = []
    for step in training_steps(
        model, make_optimizer(model, settings), batches, pretraining(model), loop_config,
        Device(torch.device("cpu"), "fp32"), TrainState(),
    ):  # fmt: skip
        look(step, model)
        taken.append(step)
    return taken, model


def last_loss(taken: list[Step]) -> float:
    return float(np.mean([step.loss for step in taken[-20:]]))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("spikes"), easy_text(150))


@pytest.fixture(scope="module")
def undisturbed(shards: Path) -> list[Step]:
    return train(shards)[0]


def other_labels(step: int, batch: PretrainingBatch) -> PretrainingBatch:
    """At one step, as a damaged shard would have it, labels that have nothing to do with the text."""
    if step != SPIKE_AT:
        return batch
    generator = torch.Generator().manual_seed(0)
    return replace(batch, labels=torch.randint(5, 300, batch.labels.shape, generator=generator))


def test_a_corrupt_batch_is_skipped_and_leaves_no_trace(shards: Path, undisturbed: list[Step]) -> None:
    weights = {}

    def look(step: Step, model: AlbertModel) -> None:
        weights[step.number] = [weight.detach().clone() for weight in model.parameters()]

    taken, _ = train(shards, change=other_labels, look=look)
    assert [step.number for step in taken if step.is_skipped] == [SPIKE_AT + 1]
    assert "6 standard deviations above" in taken[SPIKE_AT].remarks[0][1]
    before, corrupt, after = (weights[SPIKE_AT + number] for number in range(3))
    assert all(map(torch.equal, before, corrupt))
    assert not all(map(torch.equal, corrupt, after))
    assert last_loss(taken) == pytest.approx(last_loss(undisturbed), rel=0.05)


def test_a_learning_rate_too_high_for_20_steps_is_survived(shards: Path) -> None:
    steps = 2 * STEPS
    taken, model = train(shards, Raised(factor=5.0, steps=steps), steps=steps)
    before = float(np.mean([step.loss for step in taken[SPIKE_AT - 20 : SPIKE_AT]]))
    assert max(step.loss for step in taken[SPIKE_AT : SPIKE_AT + 40]) > 1.2 * before
    assert last_loss(taken) < before
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


@pytest.mark.slow  # two more runs
def test_a_learning_rate_far_too_high_does_less_harm_where_spikes_are_skipped(shards: Path) -> None:
    guarded, plain = (train(shards, Raised(factor=30.0), skips_spikes=skips)[0] for skips in (True, False))
    assert max(step.loss for step in guarded) < 0.5 * max(step.loss for step in plain)
    assert last_loss(guarded) < 0.7 * last_loss(plain)


def rare_language(step: int, batch: PretrainingBatch) -> PretrainingBatch:
    """From a full window on every eighth batch is in another language: the same text in other tokens."""
    if step < 150 or step % 8:
        return batch
    others = torch.arange(300)
    others[5:] = 5 + torch.randperm(295, generator=torch.Generator().manual_seed(0))
    return replace(batch, ids=others[batch.ids], labels=others[batch.labels])


def test_batches_that_are_rare_but_come_again_are_learned(shards: Path) -> None:
    taken, _ = train(shards, change=rare_language, steps=2 * STEPS)
    rare = [step for step in taken if step.number > 150 and (step.number - 1) % 8 == 0]
    assert rare[0].is_skipped  # as any spike
    skipped = [step.number for step in taken if step.is_skipped]
    assert len(skipped) <= math.floor(MAX_SPIKES * WINDOW) + 1
    assert [what for step in taken for what, _ in step.remarks if what != "skipped"] in ([], ["spikes"])
    assert rare[-1].loss < 0.5 * rare[0].loss
