"""Recorded passes give what the plain ones give; how a GPU itself records them, tests/gpu shows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import openalbert.pretraining.setup as setup
import openalbert.train.micro_batch as passes_module
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, DepthSchedule, DepthStage, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import pretraining
from openalbert.pretraining.settings import Pretrain
from openalbert.pretraining.setup import is_recorded
from openalbert.text.shards import open_shards
from openalbert.train.device import Device, Speed
from openalbert.train.loop import LoopConfig, training_steps
from openalbert.train.micro_batch import Passes, RecordedPasses
from openalbert.train.state import TrainState

CPU = Device(torch.device("cpu"), "fp32")
GPU = Device(torch.device("cuda"), "bf16")
SHARES = torch.tensor([0.02, 0.1], dtype=torch.float64)


def model(sharing: Sharing | None = None, dropout: float = 0.0) -> AlbertModel:
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=300, embedding_size=16, hidden_size=32, num_layers=3, num_heads=2, ffn_size=64, max_positions=32,
        initializer_range=0.2, hidden_dropout=dropout, attention_dropout=dropout,
    )  # fmt: skip
    if sharing is not None:
        config = replace(config, sharing=sharing)
    return AlbertModel(config, PRETRAINING_HEADS)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A graph as a CPU can pretend to have one: it runs again, and writes where it wrote. How often one was made."""
    made: list[int] = []

    def record(passes: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        made.append(1)
        recorded = passes()

        def replay() -> None:
            for kept, new in zip((recorded[0], *recorded[1]), flattened(passes()), strict=True):
                if kept is not None:
                    kept.copy_(new)

        return recorded, replay

    monkeypatch.setattr(passes_module, "record", record)
    monkeypatch.setattr(passes_module, "warm_up", lambda passes: passes())
    return made


def nothing_to_tell(text: str) -> None:
    raise AssertionError(text)


def flattened(made: tuple[Tensor, tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
    return made[0], *made[1]


def gradients(albert: AlbertModel) -> dict[str, Tensor | None]:
    found = {name: None if p.grad is None else p.grad.clone() for name, p in albert.named_parameters()}
    albert.zero_grad()
    return found


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(3, 3)], ids=["shared", "apart"])
def test_figures_and_gradients_are_those_of_the_plain_passes(
    easy_shards: Path, sharing: Sharing, parts: int, recordings: list[int]
) -> None:
    batches = Batches(open_shards(easy_shards), Objective(32), 12, seed=3)
    albert = model(sharing)
    learning = pretraining(albert)
    plain, recorded = Passes(learning, CPU), RecordedPasses(learning, CPU, albert, nothing_to_tell)
    for step, depth in enumerate((2, 2, 3, 3, 1)):
        found = []
        for passes in (plain, recorded):
            figures = [passes(batches.at(step, 0, 1, part, parts), depth, SHARES) for part in range(parts)]
            found.append((figures, gradients(albert)))
        (figures, by_name), (of_graph, of_graph_by_name) = found
        assert all(torch.equal(left, right) for left, right in zip(figures, of_graph, strict=True))
        for name, gradient in by_name.items():
            other = of_graph_by_name[name]
            # Layers that this depth does not reach have none, and must not be taken to have learned 0.
            assert (gradient is None) == (other is None), name
            assert gradient is None or torch.allclose(gradient, other, rtol=1e-5, atol=1e-7), name
        with torch.no_grad():
            for parameter in albert.parameters():  # the graph reads the weights as they are now
                parameter.mul_(0.9)
    assert len(recordings) == 3  # a depth each


def run(
    shards: Path, albert: AlbertModel, is_recorded: bool, parts: int = 1, told: list[tuple[str, str]] | None = None
) -> list[float]:
    learning = replace(pretraining(albert), is_recorded=is_recorded)
    depths = DepthSchedule((DepthStage(1), DepthStage(3, 0.5)))
    loop_config = LoopConfig(Budget(steps=8), Schedule(), 0.01, 1.0, depths, 1)
    optimizer = make_optimizer(albert, OptimizerSettings(kind="lamb"))
    batches = Batches(open_shards(shards), Objective(32), 12, seed=3)
    steps = list(training_steps(albert, optimizer, batches, learning, loop_config, CPU, TrainState(parts=parts)))
    if told is not None:
        told += [remark for step in steps for remark in step.remarks]
    return [step.loss for step in steps]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_run_with_dropout_learns_the_same_to_the_last_bit(
    easy_shards: Path, parts: int, recordings: list[int]
) -> None:
    plain, recorded = model(dropout=0.1), model(dropout=0.1)
    assert run(easy_shards, plain, False, parts) == run(easy_shards, recorded, True, parts)
    assert all(torch.equal(left, right) for left, right in zip(plain.parameters(), recorded.parameters(), strict=True))
    assert len(recordings) == 2


def test_what_cannot_be_recorded_is_run_as_it_is(
    easy_shards: Path, recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(passes: Callable[[], Any]) -> Any:
        passes()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(passes_module, "record", fails)
    plain, recorded = model(), model()
    expected = run(easy_shards, plain, False)
    told: list[tuple[str, str]] = []
    assert run(easy_shards, recorded, True, told=told) == expected
    text = "this run goes on without a CUDA graph, which is slower: operation not permitted when stream is capturing"
    assert ("no_graph", text) in told
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in recorded.parameters())


def test_a_batch_of_another_size_is_recorded_anew(easy_shards: Path, recordings: list[int]) -> None:
    albert = model()
    learning = pretraining(albert)
    plain, recorded = Passes(learning, CPU), RecordedPasses(learning, CPU, albert, nothing_to_tell)
    for size in (12, 12, 5, 12):
        part = Batches(open_shards(easy_shards), Objective(32), size, seed=3).at(0)
        found = []
        for passes in (plain, recorded):
            found.append((passes(part, 3, SHARES), gradients(albert)))
        (figures, by_name), (of_graph, of_graph_by_name) = found
        assert torch.equal(figures, of_graph)
        assert all(torch.equal(gradient, of_graph_by_name[name]) for name, gradient in by_name.items())  # type: ignore[arg-type]
    assert len(recordings) == 3


def test_a_batch_of_a_size_that_was_recorded_is_replayed(
    easy_shards: Path, recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, replays = passes_module.record, []

    def record(passes: Callable[[], Any]) -> Any:
        made, replay = usual(passes)

        def noted() -> None:
            replays.append(len(recordings))
            replay()

        return made, noted

    monkeypatch.setattr(passes_module, "record", record)
    albert = model()
    recorded = RecordedPasses(pretraining(albert), CPU, albert, nothing_to_tell)
    batches = Batches(open_shards(easy_shards), Objective(32), 12, seed=3)
    for step, depth in enumerate((2, 2, 2, 3, 3)):
        recorded(batches.at(step), depth, SHARES)
    assert replays == [1, 1, 1, 2, 2]


def test_a_loss_whose_predictions_were_not_counted_is_an_error(easy_shards: Path) -> None:
    part = Batches(open_shards(easy_shards), Objective(32), 4, seed=3).at(0)
    with pytest.raises(ValueError, match="shorter"):
        Passes(pretraining(model()), CPU)(part, 1, SHARES[:1])


def test_gradients_lie_in_memory_as_their_weights_do() -> None:
    weight = torch.zeros(3, 5)
    gradient = torch.arange(15.0).view(5, 3).t()
    laid_out = passes_module._laid_out(gradient, weight)
    assert laid_out is not None
    assert laid_out.stride() == weight.stride() != gradient.stride()
    assert torch.equal(laid_out, gradient)


def test_memory_that_runs_out_while_a_graph_is_recorded_is_the_loops_business_too(
    easy_shards: Path, recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, tried = passes_module.record, []

    def record(passes: Callable[[], Any]) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return usual(passes)

    monkeypatch.setattr(passes_module, "record", record)
    told: list[tuple[str, str]] = []
    assert run(easy_shards, model(), True, told=told) == pytest.approx(run(easy_shards, model(), False), rel=1e-4)
    assert [kind for kind, _ in told] == ["out_of_memory", "depth"]
    assert len(recordings) == 2  # smaller parts, at both depths


def test_memory_that_runs_out_in_the_first_passes_is_the_loops_business(
    easy_shards: Path, recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def warm_up(passes: Callable[[], Any]) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(passes_module, "warm_up", warm_up)
    albert = model()
    before = dict(albert.named_parameters())
    assert run(easy_shards, albert, True, parts=1) == pytest.approx(run(easy_shards, model(), False), rel=1e-4)
    assert dict(albert.named_parameters()) == before  # none of the stand-ins has stayed


@pytest.mark.parametrize(
    ("speed", "device", "expected"),
    [
        (Speed(), GPU, True),
        (Speed(compile="whole"), GPU, True),
        (Speed(compile="none"), GPU, False),
        (Speed(recompute=True), GPU, False),
        (Speed(compile="whole"), CPU, False),
    ],
)
def test_passes_are_recorded_on_a_gpu_that_keeps_its_activations(speed: Speed, device: Device, expected: bool) -> None:
    assert is_recorded(replace(Pretrain(), speed=speed), device) is expected


@pytest.mark.parametrize(
    ("speed", "device", "knows", "expected"),
    [
        (Speed(), GPU, True, True),
        (Speed(), GPU, False, False),
        (Speed(deterministic=True), GPU, True, False),
        (Speed(), replace(GPU, precision="fp32"), True, False),
        (Speed(), CPU, True, False),
    ],
)
def test_attention_goes_back_without_the_mask_where_it_may_and_can(
    speed: Speed, device: Device, knows: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def can_attend_masked(*sizes: int) -> bool:
        asked.append(sizes)
        return knows

    monkeypatch.setattr(setup, "can_attend_masked", can_attend_masked)
    assert setup.attends_masked(replace(Pretrain(), speed=speed), device) is expected
    assert asked in ([], [(64, 512)])


@pytest.mark.parametrize(
    ("speed", "attends", "knows", "expected"),
    [
        (Speed(), True, True, True),
        (Speed(compile="whole"), True, True, True),
        (Speed(), True, False, False),
        (Speed(), False, True, False),
        (Speed(compile="none"), True, True, False),
    ],
)
def test_linear_maps_are_fused_where_attention_is_ours_and_layers_are_compiled(
    speed: Speed, attends: bool, knows: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def can_fuse(*sizes: int) -> bool:
        asked.append(sizes)
        return knows

    monkeypatch.setattr(setup, "attends_masked", lambda *_: attends)
    monkeypatch.setattr(setup, "can_fuse", can_fuse)
    assert setup.is_fused(replace(Pretrain(), speed=speed), GPU) is expected
    assert asked in ([], [(768, 3072, 12, 512)])
