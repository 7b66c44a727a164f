"""What only a GPU can show: its attention kernels, compiled layers, memory that really runs out, a run that goes on."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.presets import preset
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import pretraining
from openalbert.text.shards import open_shards
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Speed, open_device
from openalbert.train.loop import LoopConfig, TrainState, training_steps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, when its compiler is loaded
]
SHARDS = os.environ.get("OPENALBERT_SHARDS", "")
SMALL = replace(preset("albert-base-v2"), num_layers=3)


def batch(lengths: list[int]) -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 30000, (len(lengths), max(lengths)), device="cuda")
    return ids, torch.arange(max(lengths), device="cuda") < torch.tensor(lengths, device="cuda")[:, None]


def test_the_packed_kernel_gives_what_the_padded_one_gives() -> None:
    torch.manual_seed(0)
    model = AlbertModel(SMALL, PRETRAINING_HEADS).cuda()
    lengths = [512, 17, 130, 64]
    ids, mask = batch(lengths)
    at = torch.tensor([[3, 9], [1, 16], [100, 2], [0, 63]], device="cuda")
    starts = torch.tensor([0, 512, 529, 659], device="cuda")
    with torch.no_grad(), open_device(Speed()):  # whose order of attention kernels is that of every run
        exact = model.encode(ids, mask=mask)
        with torch.autocast("cuda", torch.bfloat16):
            padded = model.encode(ids, mask=mask)
            packed = model.encode_packed(ids[mask], lengths)
            asked = model.encode(ids, mask=mask, at=at)
            asked_packed = model.encode_packed(ids[mask], lengths, at=(starts[:, None] + at).flatten())
    for hidden in (padded.hidden[mask], packed.hidden):
        assert (hidden.float() - exact.hidden[mask]).norm() < 0.02 * exact.hidden[mask].norm()
    rows = exact.hidden[torch.arange(4)[:, None], at]
    for hidden in (asked.hidden, asked_packed.hidden.view(4, 2, -1)):
        assert (hidden.float() - rows).norm() < 0.02 * rows.norm()
    exact_again = model.encode_packed(ids[mask], lengths)  # fp32 takes the padded copy
    torch.testing.assert_close(exact_again.hidden, exact.hidden[mask], rtol=0, atol=2e-2)


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0.0, 1e-6), ("tf32", 1e-5, 1e-3)])
def test_fp32_is_exact_and_tf32_rounds(precision: Literal["fp32", "tf32"], least: float, most: float) -> None:
    """A matrix product of the width of albert-base, compared with fp64."""
    torch.manual_seed(0)
    rows, weights = torch.randn(512, 768, device="cuda"), torch.randn(768, 768, device="cuda")
    exact = rows.double() @ weights.double()
    with open_device(Speed(precision=precision)) as device, device.autocast():
        found = rows @ weights
    assert least <= (found.double() - exact).norm() / exact.norm() < most


def test_packed_attention_drops_out_in_training() -> None:
    model = AlbertModel(replace(SMALL, attention_dropout=0.5)).cuda().train()
    ids, mask = batch([40, 9])
    with torch.autocast("cuda", torch.bfloat16):
        draws = [model.encode_packed(ids[mask], [40, 9]).hidden.float() for _ in range(2)]
    assert (draws[0] - draws[1]).abs().max() > 0.05
    draws[0].sum().backward()


@pytest.mark.parametrize("name", ["albert-base-v2", "bert-base"])
def test_one_compiled_layer_serves_every_depth_and_every_part(name: str) -> None:
    # In a process of its own: in this one signatures are checked at every call, which would be compiled as well.
    words = [sys.executable, str(Path(__file__).with_name("count_graphs.py")), name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr[-1500:])
    # One for every layer, and where a map follows the embedding one more: it hands the first layer bf16.
    assert json.loads(done.stdout)["graphs"] <= 2


@pytest.mark.skipif(not SHARDS, reason="OPENALBERT_SHARDS names no folder of shards")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_loop_waits_for_nothing_but_the_figures_of_a_step() -> None:
    objective = Objective(128, sentence_order=SentenceOrder(chunks="whole"))
    with open_device(Speed()) as device:
        model = AlbertModel(SMALL, PRETRAINING_HEADS).cuda()
        optimizer = make_optimizer(model, OptimizerSettings())
        batches = Batches(open_shards(Path(SHARDS)), objective, 32, 1, device=device.torch_device)
        loop_config = LoopConfig(Budget(steps=8), Schedule(), 0.001, 1.0, DepthSchedule((DepthStage(3),)), 1)
        steps = training_steps(model, optimizer, batches, pretraining(model), loop_config, device, TrainState())
        losses = [next(steps).loss for _ in range(3)]  # the first one records and allocates
        try:
            torch.cuda.set_sync_debug_mode("error")
            losses += [step.loss for step in steps]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(losses) == 8
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
def test_the_device_refuses_a_step_by_itself(kind: Literal["lamb", "adamw"]) -> None:
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = make_optimizer(model, OptimizerSettings(kind=kind, learning_rate=0.1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for is_wrong in (1.0, 0.0):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan if is_wrong else 1.0)
        optimizer.found_inf = torch.tensor(is_wrong, device="cuda")  # type: ignore[union-attr]
        optimizer.step()
        same = [torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
        assert all(same) if is_wrong else not any(same)


def openalbert(*words: str) -> list[str]:
    return [sys.executable, "-m", "openalbert", *words]


def settings(out: Path, *more: str) -> list[str]:
    return openalbert(
        "pretrain", "albert-base", "--data", SHARDS, "--out", str(out), "--objective.max-length", "128",
        "--batch-size", "64", "--save-every", "20", "--log-every", "5", "--evaluation-examples", "128", *more,
    )  # fmt: skip


def metrics(folder: Path) -> list[dict[str, object]]:
    times = ("seconds", "tokens_per_second", "mfu")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


@pytest.mark.skipif(not SHARDS, reason="OPENALBERT_SHARDS names no folder of shards")
def test_a_run_trains_stops_when_asked_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    words = ["--steps", "60", "--speed.deterministic"]  # with dropout, as the preset has it
    started = time.perf_counter()
    whole = subprocess.run(settings(tmp_path / "whole", *words), capture_output=True, text=True, check=False)
    print(whole.stderr[-1500:], f"{time.perf_counter() - started:.1f} s")
    assert whole.returncode == 0
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        folder = tmp_path / str(code)
        process = subprocess.Popen(settings(folder, *words), stderr=subprocess.DEVNULL, start_new_session=True)
        while not (folder / "checkpoints" / "step-00000020").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        os.killpg(process.pid, number)  # as `timeout` does, and schedulers: twice, and to the compiler's processes too
        assert process.wait() == code
        subprocess.run(settings(folder, *words), check=True, stderr=subprocess.DEVNULL)
        assert metrics(folder) == metrics(tmp_path / "whole")


@pytest.mark.skipif(not SHARDS, reason="OPENALBERT_SHARDS names no folder of shards")
def test_bf16_learns_as_fp32_does(tmp_path: Path) -> None:
    """From trained weights on, where there is something to lose."""
    losses = {}
    for precision in ("bf16", "fp32"):
        words = openalbert(
            "pretrain", "albert-base-wikibooks", "--data", SHARDS, "--out", str(tmp_path / precision), "--steps", "40",
            "--objective.max-length", "128", "--batch-size", "64", "--reference-batch", "64", "--log-every", "10",
            "--optimizer.learning-rate", "0.0005", "--speed.precision", precision, "--evaluation-examples", "64",
            "--speed.compile", "auto" if precision == "bf16" else "none",  # all that makes a run on a GPU fast
        )  # fmt: skip
        subprocess.run(words, check=True, capture_output=True)
        losses[precision] = [float(str(line["loss"])) for line in metrics(tmp_path / precision) if "loss" in line]
    print(losses)
    assert len(losses["fp32"]) == 4
    assert losses["fp32"][-1] < 5.5  # words and order together; fresh weights have 11
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.01)


@pytest.mark.skipif(not SHARDS, reason="OPENALBERT_SHARDS names no folder of shards")
def test_peak_memory_is_that_of_the_run_and_not_of_one_before_it() -> None:
    with open_device(Speed(device="cuda")) as device:
        torch.empty(2**28, dtype=torch.uint8, device="cuda")
        assert device.peak_memory() >= 2**28
    with open_device(Speed(device="cuda")) as device:
        assert device.peak_memory() < 2**28


def test_memory_that_runs_out_halves_the_micro_batch(tmp_path: Path) -> None:
    words = openalbert(
        "pretrain", "albert-xlarge", "--data", SHARDS, "--out", str(tmp_path / "run"), "--steps", "2",
        "--batch-size", "256", "--speed.micro-batch", "256", "--evaluation-examples", "64",
    )  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    print(done.stderr[-1500:])
    assert done.returncode == 0
    assert "out of memory with 256 examples at a time" in done.stderr
    kinds = [line.get("what") for line in metrics(tmp_path / "run")]
    assert "out_of_memory" in kinds
