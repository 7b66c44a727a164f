"""Both passes as one CUDA graph: the bits of eager ones, at every depth, with dropout and in several micro-batches."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, Sharing
from openalbert.model.presets import preset
from openalbert.pretraining.batches import PretrainingBatch
from openalbert.pretraining.loss import pretraining
from openalbert.train.cuda_graphs import CapturedForwardBackward
from openalbert.train.device import Speed, open_device
from openalbert.train.loop import forward_backward

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    # torch's own, when its compiler is loaded and when it looks at what a layer is given
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
SHARDS = os.environ.get("OPENALBERT_SHARDS", "")


def made_up(seed: int, batch: int = 16, length: int = 128, predictions: int = 19) -> PretrainingBatch:
    dice = torch.Generator().manual_seed(seed)
    drawn = PretrainingBatch(
        ids=torch.randint(5, 30_000, (batch, length), generator=dice),
        segments=torch.randint(0, 2, (batch, length), generator=dice),
        lengths=torch.randint(40, length + 1, (batch,), generator=dice),
        positions=torch.randint(1, 39, (batch, predictions), generator=dice).sort(1).values,
        labels=torch.randint(5, 30_000, (batch, predictions), generator=dice),
        valid=torch.rand(batch, predictions, generator=dice) < 0.9,
        swapped=torch.randint(0, 2, (batch,), generator=dice),
    )
    return drawn.to("cuda")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["albert-base-v2", "bert-base"])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("has_teacher", [False, True])
def test_a_graph_of_both_passes_gives_the_bits_of_the_plain_ones(
    name: str, dropout: float, micro_batches: int, has_teacher: bool
) -> None:
    torch.manual_seed(0)
    sharing = Sharing(attention=1, ffn=1) if name.startswith("albert") else Sharing(attention=3, ffn=3)
    config = replace(preset(name), num_layers=3, sharing=sharing, hidden_dropout=dropout, attention_dropout=dropout)
    model = AlbertModel(config, PRETRAINING_HEADS).cuda().train()
    teacher = AlbertModel(preset("albert-small"), PRETRAINING_HEADS).cuda().eval().requires_grad_(False)
    told: list[str] = []
    shares = torch.tensor([0.003, 0.002, 0.06] if has_teacher else [0.003, 0.06], dtype=torch.float64, device="cuda")
    with open_device(Speed(deterministic=True)) as device:
        forward = partial(pretraining(model, teacher=teacher if has_teacher else None).forward, device=device)
        plain = partial(forward_backward, forward)
        captured = CapturedForwardBackward(forward, model, device.torch_device, told.append)
        for step, depth in enumerate((2, 2, 3, 3)):
            found = []
            for passes in (plain, captured):
                metrics = []
                for part in range(micro_batches):
                    torch.manual_seed(10 * step + part)
                    metrics.append(passes(made_up(10 * step + part), depth, shares))
                gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
                model.zero_grad()
                found.append((metrics, gradients))
            (metrics, gradients), (of_graph, of_graph_gradients) = found
            assert all(torch.equal(left, right) for left, right in zip(metrics, of_graph, strict=True))
            assert gradients.keys() == of_graph_gradients.keys()
            assert all(torch.equal(gradient, of_graph_gradients[name]) for name, gradient in gradients.items())
            with torch.no_grad():
                for parameter in model.parameters():  # the graph reads the weights as they are now
                    parameter.mul_(0.99)
    assert captured._captured is not None
    assert not told


@pytest.mark.skipif(not SHARDS, reason="OPENALBERT_SHARDS names no folder of shards")
def test_a_captured_run_learns_to_the_same_bits_as_one_that_is_only_compiled() -> None:
    found = []
    for kind in ("eager", "captured"):
        # In a process of its own: in this one signatures are checked at every call, which would be compiled as well.
        words = [sys.executable, str(Path(__file__).with_name("captured_losses.py")), SHARDS, kind]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        print(done.stderr[-1500:])
        found.append(json.loads(done.stdout))
    assert "no_graph" not in found[1]["remarks"]
    assert len(found[0]["losses"]) == 30
    assert found[1]["losses"] == found[0]["losses"]


@pytest.mark.skipif(not SHARDS, reason="OPENALBERT_SHARDS names no folder of shards")
def test_a_run_whose_batches_are_compiled_too_learns_to_the_same_bits(tmp_path: Path) -> None:
    curves = {}
    for compiled in ("layer", "whole"):
        words = [
            sys.executable, "-m", "openalbert", "pretrain", "albert-base", "--data", SHARDS, "--out",
            str(tmp_path / compiled), "--objective.max-length", "128", "--batch-size", "64", "--log-every", "5",
            "--steps", "30", "--depth-schedule", "3,12@0.5", "--mask-schedule", "0.3@0.2", "--speed.deterministic",
            "--speed.compile", compiled, "--evaluation-examples", "64",
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        print(done.stderr[-1500:])
        assert done.returncode == 0
        assert "without a CUDA graph" not in done.stderr
        lines = map(json.loads, (tmp_path / compiled / "metrics.jsonl").read_text().splitlines())
        curves[compiled] = [line["loss"] for line in lines if "loss" in line]
    assert len(curves["layer"]) == 6
    assert curves["whole"] == curves["layer"]
