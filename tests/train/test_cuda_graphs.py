"""Captured passes give what eager ones give. A capture itself needs a GPU: see tests/gpu."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import openalbert.pretraining.run as pretraining_run
import openalbert.train.cuda_graphs as cuda_graphs
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.pretraining.batches import Batches, Objective, PretrainingBatch
from openalbert.pretraining.loss import pretraining
from openalbert.pretraining.run import is_captured
from openalbert.pretraining.settings import Pretrain
from openalbert.text.shards import open_shards
from openalbert.train.cuda_graphs import CapturedForwardBackward
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Device, Speed
from openalbert.train.loop import LoopConfig, TrainingTask, TrainState, forward_backward, training_steps

CPU = Device(torch.device("cpu"), "fp32")
GPU = Device(torch.device("cuda"), "bf16")
SCALES = torch.tensor([0.02, 0.1], dtype=torch.float64)


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
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A stand-in for a graph on a CPU: it runs again and writes to the same tensors. Counts the captures."""
    made: list[int] = []

    def capture(passes: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        made.append(1)
        captured = passes()

        def replay() -> None:
            for kept, new in zip((captured[0], *captured[1]), flattened(passes()), strict=True):
                if kept is not None:
                    kept.copy_(new)

        return captured, replay

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(cuda_graphs, "warm_up", lambda passes: passes())
    return made


def no_warning(text: str) -> None:
    raise AssertionError(text)


def flattened(made: tuple[Tensor, tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
    return made[0], *made[1]


def forward(task: TrainingTask[PretrainingBatch]) -> Callable[[PretrainingBatch, int, Tensor], tuple[Tensor, Tensor]]:
    return partial(task.forward, device=CPU)


def gradients(albert: AlbertModel) -> dict[str, Tensor | None]:
    found = {name: None if p.grad is None else p.grad.clone() for name, p in albert.named_parameters()}
    albert.zero_grad()
    return found


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("has_teacher", [False, True])
@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(3, 3)], ids=["shared", "apart"])
def test_captured_passes_have_the_metrics_and_gradients_of_eager_ones(
    easy_shards: Path, sharing: Sharing, micro_batches: int, has_teacher: bool, captures: list[int]
) -> None:
    batches = Batches(open_shards(easy_shards), Objective(32), 12, seed=3)
    albert = model(sharing)
    task = pretraining(albert, teacher=model().eval().requires_grad_(False) if has_teacher else None)
    scales = torch.tensor([0.02, 0.05, 0.1], dtype=torch.float64) if has_teacher else SCALES
    plain = partial(forward_backward, forward(task))
    captured = CapturedForwardBackward(forward(task), albert, CPU.torch_device, no_warning)
    for step, depth in enumerate((2, 2, 3, 3, 1)):
        found = []
        for passes in (plain, captured):
            metrics = [
                passes(batches.at(step, 0, 1, part, micro_batches), depth, scales) for part in range(micro_batches)
            ]
            found.append((metrics, gradients(albert)))
        (metrics, by_name), (of_graph, of_graph_by_name) = found
        assert all(torch.equal(left, right) for left, right in zip(metrics, of_graph, strict=True))
        for name, gradient in by_name.items():
            other = of_graph_by_name[name]
            # Layers that this depth does not reach have none, and must not be taken to have learned 0.
            assert (gradient is None) == (other is None), name
            assert gradient is None or torch.allclose(gradient, other, rtol=1e-5, atol=1e-7), name
        with torch.no_grad():
            for parameter in albert.parameters():  # the graph reads the weights as they are now
                parameter.mul_(0.9)
    assert len(captures) == 3  # a depth each


def run(
    shards: Path,
    albert: AlbertModel,
    is_captured: bool,
    micro_batches: int = 1,
    told: list[tuple[str, str]] | None = None,
) -> list[float]:
    task = replace(pretraining(albert), is_captured=is_captured)
    depths = DepthSchedule((DepthStage(1), DepthStage(3, 0.5)))
    loop_config = LoopConfig(Budget(steps=8), Schedule(), 0.01, 1.0, depths, 1)
    optimizer = make_optimizer(albert, OptimizerSettings(kind="lamb"))
    batches = Batches(open_shards(shards), Objective(32), 12, seed=3)
    steps = list(
        training_steps(albert, optimizer, batches, task, loop_config, CPU, TrainState(micro_batches=micro_batches))
    )
    if told is not None:
        told += [remark for step in steps for remark in step.remarks]
    return [step.loss for step in steps]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_run_with_dropout_learns_the_same_to_the_last_bit(
    easy_shards: Path, micro_batches: int, captures: list[int]
) -> None:
    plain, captured = model(dropout=0.1), model(dropout=0.1)
    assert run(easy_shards, plain, False, micro_batches) == run(easy_shards, captured, True, micro_batches)
    assert all(torch.equal(left, right) for left, right in zip(plain.parameters(), captured.parameters(), strict=True))
    assert len(captures) == 2


def test_passes_that_cannot_be_captured_run_eagerly(
    easy_shards: Path, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(passes: Callable[[], Any]) -> Any:
        passes()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture", fails)
    plain, captured = model(), model()
    expected = run(easy_shards, plain, False)
    told: list[tuple[str, str]] = []
    assert run(easy_shards, captured, True, told=told) == expected
    text = "this run continues without a CUDA graph, which is slower: operation not permitted when stream is capturing"
    assert ("no_graph", text) in told
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in captured.parameters())


def test_a_batch_of_another_size_is_captured_anew(easy_shards: Path, captures: list[int]) -> None:
    albert = model()
    task = pretraining(albert)
    plain = partial(forward_backward, forward(task))
    captured = CapturedForwardBackward(forward(task), albert, CPU.torch_device, no_warning)
    for size in (12, 12, 5, 12):
        part = Batches(open_shards(easy_shards), Objective(32), size, seed=3).at(0)
        found = []
        for passes in (plain, captured):
            found.append((passes(part, 3, SCALES), gradients(albert)))
        (metrics, by_name), (of_graph, of_graph_by_name) = found
        assert torch.equal(metrics, of_graph)
        assert all(torch.equal(gradient, of_graph_by_name[name]) for name, gradient in by_name.items())  # type: ignore[arg-type]
    assert len(captures) == 3


def test_a_batch_of_a_captured_size_is_replayed(
    easy_shards: Path, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, replays = cuda_graphs.capture, []

    def capture(passes: Callable[[], Any]) -> Any:
        made, replay = usual(passes)

        def noted() -> None:
            replays.append(len(captures))
            replay()

        return made, noted

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    albert = model()
    captured = CapturedForwardBackward(forward(pretraining(albert)), albert, CPU.torch_device, no_warning)
    batches = Batches(open_shards(easy_shards), Objective(32), 12, seed=3)
    for step, depth in enumerate((2, 2, 2, 3, 3)):
        captured(batches.at(step), depth, SCALES)
    assert replays == [1, 1, 1, 2, 2]


def test_a_loss_whose_predictions_were_not_counted_is_an_error(easy_shards: Path) -> None:
    part = Batches(open_shards(easy_shards), Objective(32), 4, seed=3).at(0)
    with pytest.raises(ValueError, match="shorter"):
        forward_backward(forward(pretraining(model())), part, 1, SCALES[:1])


def test_gradients_lie_in_memory_as_their_weights_do() -> None:
    weight = torch.zeros(3, 5)
    gradient = torch.arange(15.0).view(5, 3).t()
    laid_out = cuda_graphs._in_memory_order(gradient, weight)
    assert laid_out is not None
    assert laid_out.stride() == weight.stride() != gradient.stride()
    assert torch.equal(laid_out, gradient)


def test_the_loop_handles_memory_that_runs_out_during_a_capture(
    easy_shards: Path, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, tried = cuda_graphs.capture, []

    def capture(passes: Callable[[], Any]) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return usual(passes)

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    told: list[tuple[str, str]] = []
    assert run(easy_shards, model(), True, told=told) == pytest.approx(run(easy_shards, model(), False), rel=1e-4)
    assert [kind for kind, _ in told] == ["out_of_memory", "depth"]
    assert len(captures) == 2  # smaller micro-batches, at both depths


def test_the_loop_handles_memory_that_runs_out_in_the_warm_up(
    easy_shards: Path, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def warm_up(passes: Callable[[], Any]) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(cuda_graphs, "warm_up", warm_up)
    albert = model()
    before = dict(albert.named_parameters())
    assert run(easy_shards, albert, True, micro_batches=1) == pytest.approx(run(easy_shards, model(), False), rel=1e-4)
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
def test_passes_are_captured_on_a_gpu_that_keeps_its_activations(speed: Speed, device: Device, expected: bool) -> None:
    assert is_captured(replace(Pretrain(), speed=speed), device) is expected


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

    monkeypatch.setattr(pretraining_run, "can_attend_masked", can_attend_masked)
    assert pretraining_run.attends_masked(replace(Pretrain(), speed=speed), device) is expected
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

    monkeypatch.setattr(pretraining_run, "attends_masked", lambda *_: attends)
    monkeypatch.setattr(pretraining_run, "can_fuse", can_fuse)
    assert pretraining_run.is_fused(replace(Pretrain(), speed=speed), GPU) is expected
    assert asked in ([], [(768, 3072, 12, 512)])
