"""Fine-tuning on a GPU: the losses and gradients of the CPU to bf16's rounding, and a run from end to end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.tasks.made_lessons import learn, lesson, made_model
from tests.tasks.made_sequences import made_sequences

from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.presets import preset
from openalbert.tasks.learning import finetuning_scores
from openalbert.tasks.packing import Packing
from openalbert.text.tokenizer import Tokenizer

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
        [batch] = next(packing.stream(start=0, rank=0, world=1, parts=1))
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            scores = finetuning_scores(model, batch, CONFIG.num_layers)
        loss = torch.stack([score.loss_sum for score in scores.values()]).sum() / len(batch)
        loss.backward()
        gradient = torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
        found.append((loss.item(), gradient))
    (exact, gradient), (loss, rounded) = found
    assert loss == pytest.approx(exact, rel=0.02)
    assert (rounded - gradient).norm() < 0.1 * gradient.norm()


def test_a_run_on_a_gpu_learns_with_and_without_dropout(small: Tokenizer, tmp_path: Path) -> None:
    model = made_model(tmp_path / "model", small)
    file = lesson("classification", tmp_path)
    for dropout in ("0", "0.1"):
        out = tmp_path / f"run-{dropout}"
        words = f"--speed.device cuda --classifier-dropout 0.1 --dropout {dropout} --steps 200"
        scores = learn(model, "classification", file, out, words)
        assert scores["scores"]["dev"]["accuracy"] > 90
        assert json.loads((out / "facts.json").read_text())["precision"] == "bf16"
