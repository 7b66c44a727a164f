"""Fine-tuning on a GPU: the losses and gradients of the CPU to bf16's rounding, and a run from end to end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.finetuning.made_lessons import learn, lesson, made_model
from tests.finetuning.made_sequences import made_sequences

from openalbert.finetuning.batches import Packing
from openalbert.finetuning.losses import finetuning_scores
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.presets import preset
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.cuda_graphs import CapturedEncoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
CONFIG = replace(preset("albert-base-v2"), num_layers=3, classifier_dropout=0.0)
HEADS = {
    "classification": (Head("classification", ("no", "yes")),),
    "multiple_choice": (Head("multiple_choice"),),
    "questions": (Head("span"), Head("answerability")),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_packed_batch_has_the_losses_and_gradients_of_the_cpu(name: str) -> None:
    heads = HEADS[name]
    options = (4, 3) if name == "multiple_choice" else (1,)
    sequences = made_sequences({head.kind: head.num_outputs for head in heads}, 16, options, lengths=(4, 200))
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = AlbertModel(CONFIG, heads).to(device)
        packing = Packing(sequences, 16, 1, tokens_at_a_time=10**6, device=device)
        [batch] = next(packing.stream(start=0, rank=0, world=1, micro_batches=1))
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            scores = finetuning_scores(model, batch, CONFIG.num_layers)
        loss = torch.stack([score.loss_sum for score in scores.values()]).sum() / len(batch)
        loss.backward()
        gradient = torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
        found.append((loss.item(), gradient))
    (exact, gradient), (loss, rounded) = found
    assert loss == pytest.approx(exact, rel=0.02)
    assert (rounded - gradient).norm() < 0.1 * gradient.norm()


@pytest.mark.parametrize("heads", [*HEADS.values(), (Head("span"),)], ids=[*HEADS, "span"])
@pytest.mark.parametrize("longest", [100, 500])
def test_a_captured_batch_has_the_losses_and_gradients_of_the_same_batch_as_it_is(
    heads: tuple[Head, ...], longest: int
) -> None:
    options = (4, 3) if heads[0].kind == "multiple_choice" else (1,)
    sequences = made_sequences({head.kind: head.num_outputs for head in heads}, 40, options, lengths=(4, longest))
    torch.manual_seed(0)
    model = AlbertModel(CONFIG, heads).cuda()
    captured = CapturedEncoder(model)
    packing = Packing(sequences, 16, 1, tokens_at_a_time=10**6, device="cuda", fills=True)
    stream = packing.stream(start=0, rank=0, world=1, micro_batches=1)
    for _ in range(12):  # sizes come up again, with other sequences in them
        [batch] = next(stream)
        found = []
        for graphs in (None, captured):
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                scores = finetuning_scores(model, batch, CONFIG.num_layers, graphs)
            loss = torch.stack([score.loss_sum for score in scores.values()]).sum() / len(batch)
            loss.backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()
            found.append((loss.item(), gradient))
        (loss, gradient), (of_capture, of_graph) = found
        assert of_capture == pytest.approx(loss, rel=0.01)
        assert (of_graph - gradient).norm() < 0.05 * gradient.norm()
        with torch.no_grad():
            for parameter in model.parameters():  # the graph reads the weights as they are now
                parameter.mul_(0.99)
    assert captured._graphs


@pytest.mark.parametrize("most", [2, 64])
def test_a_graph_and_its_operations_one_by_one_give_the_same_bits(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openalbert.train.cuda_graphs.MOST_GRAPHS", most)
    heads = HEADS["classification"]
    sequences = made_sequences({"classification": 2}, 200, lengths=(4, 120))
    torch.manual_seed(0)
    model = AlbertModel(CONFIG, heads).cuda()
    captured, bare = CapturedEncoder(model), CapturedEncoder(model)
    bare._most = 0
    packing = Packing(sequences, 16, 1, tokens_at_a_time=10**6, device="cuda", fills=True)
    stream = packing.stream(start=0, rank=0, world=1, micro_batches=1)
    for _ in range(20):
        [batch] = next(stream)
        found = []
        for one in (captured, bare):
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                score = finetuning_scores(model, batch, CONFIG.num_layers, one)["classification"]
            score.loss_sum.backward()
            gradients = [p.grad.clone() for p in model.encoder.attention.parameters() if p.grad is not None]
            found.append((score.loss_sum.item(), gradients))
        assert found[0][0] == found[1][0]
        assert all(torch.equal(left, right) for left, right in zip(found[0][1], found[1][1], strict=True))
    assert len(captured._graphs) <= most


def test_a_captured_batch_drops_out_anew_each_time_and_the_same_by_the_same_seed() -> None:
    config = replace(CONFIG, hidden_dropout=0.1, attention_dropout=0.1)
    sequences = made_sequences({"classification": 2}, 16, lengths=(4, 120))
    torch.manual_seed(0)
    model = AlbertModel(config, HEADS["classification"]).cuda().train()
    captured, bare = CapturedEncoder(model), CapturedEncoder(model)
    bare._most = 0
    [batch] = next(
        Packing(sequences, 16, 1, tokens_at_a_time=10**6, device="cuda", fills=True).stream(
            start=0, rank=0, world=1, micro_batches=1
        )
    )
    losses = []
    for one, seed in ((captured, 1), (captured, 1), (captured, 2), (bare, 1), (bare, 2)):
        torch.manual_seed(seed)  # the first one captures, and yet draws what the second draws
        with torch.autocast("cuda", torch.bfloat16):
            losses.append(finetuning_scores(model, batch, 3, one)["classification"].loss_sum.item())
    assert captured._graphs
    assert losses[0] == losses[1] == losses[3]
    assert losses[2] == losses[4] != losses[0]


def test_a_run_on_a_gpu_learns_with_and_without_dropout_and_captured(small: Tokenizer, tmp_path: Path) -> None:
    model = made_model(tmp_path / "model", small)
    file = lesson("classification", tmp_path)
    for number, more in enumerate(("--dropout 0 --speed.compile none", "--dropout 0.1", "--dropout 0")):
        out = tmp_path / f"run-{number}"
        words = f"--speed.device cuda --classifier-dropout 0.1 --steps 200 {more}"
        scores = learn(model, "classification", file, out, words)
        assert scores["scores"]["dev"]["accuracy"] > 90
        assert json.loads((out / "run_info.json").read_text())["precision"] == "bf16"
