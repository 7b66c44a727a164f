"""Runs that were never run: their folders as `openalbert pretrain` leaves them, with curves that look like learning."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from openalbert.pretraining.settings import Pretrain
from openalbert.settings import to_dict

ENTROPY, VOCABULARY = 6.97, 30000


def run_info(**others: Any) -> dict[str, Any]:
    return {
        "openalbert": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.2",
        "device": "NVIDIA H200",
        "world_size": 1,
        "matmul_peak_flops": 7.9e14,
        "started": "2026-03-12T14:03:00+0000",
        "parameters": 11_813_810,
        "vocab_size": VOCABULARY,
        "unigram_entropy": ENTROPY,
        "data": {
            "folder": "shards",
            "train_tokens": 43_800_000,
            "train_documents": 6_700,
            "heldout_tokens": 870_000,
            "examples_per_epoch": 342_000,
            "tokenizer": "0123456789abcdef" * 4,
        },
        "estimate": {"steps": 8000, "tokens": 512e6, "hours": 0.29, "memory_bytes": 19 * 2**30, "disk_bytes": 6e8},
        "restarts": 1,
        **others,
    }


TRUTH = {"steps": 8000, "tokens": 524e6, "hours": 0.3, "memory_bytes": 21 * 2**30, "disk_bytes": 6.1e8}


def metrics(records: int = 400, rate: float = 1.0, seed: int = 1, order: bool = True) -> list[dict[str, Any]]:
    """Training records every 20 steps, an evaluation at every twentieth of the run, a few events."""
    noise = np.random.default_rng(seed)
    lines: list[dict[str, Any]] = []
    seconds = 0.0
    for number in range(1, records + 1):
        progress, step = number / records, 20 * number
        depth = 3 if progress <= 0.25 else 6 if progress <= 0.5 else 12
        tokens_per_second = 740_000 * 12 / depth * noise.normal(1, 0.03)
        seconds += 20 * 65_500 / tokens_per_second
        learned = 1 - math.exp(-4 * rate * progress)
        loss = 10.3 - 3.3 * min(1, 20 * progress) - 3.2 * learned
        train: dict[str, Any] = {
            "kind": "train",
            "step": step,
            "tokens": 65_500 * step,
            "progress": progress,
            "loss": loss + 0.65,
            "mlm_loss": loss + noise.normal(0, 0.05),
            "mlm_acc": 0.4 * learned + noise.normal(0, 0.004),
            "lr": 0.004 * rate * min(progress / 0.06, (1 - progress) / 0.94),
            "grad_norm": 0.8 * math.exp(noise.normal(0, 0.2)) * (40 if abs(progress - 0.252) < 0.002 else 1),
            "depth": depth,
            "skipped": int(progress > 0.26),
            "seconds": seconds,
            "tokens_per_second": tokens_per_second,
            "mfu": 0.53 * noise.normal(1, 0.02),
        }
        evaluation: dict[str, Any] = {
            "kind": "evaluation",
            "step": step,
            "tokens": 65_500 * step,
            "examples": 1024,
            "mlm_loss": loss + 0.04,
            "mlm_acc": 0.39 * learned,
            "perplexity": math.exp(loss + 0.04),
            "seconds": 2.0,
        }
        if order:
            for record, shift in ((train, noise.normal(0, 0.01)), (evaluation, -0.01)):
                record["sop_loss"] = 0.69 - 0.15 * learned - shift
                record["sop_acc"] = 0.5 + 0.23 * learned + shift
        lines.append(train)
        if number % max(1, records // 20) == 0:
            lines.append(evaluation)
        if number == int(0.26 * records):
            text = f"step {step} was skipped: its gradient norm 31.9 is 9.1 sigma above the last 128"
            lines.append({"kind": "event", "step": step, "what": "skipped", "text": text})
        if number in (records // 4 + 1, records // 2 + 1):
            text = f"the depth is {depth} from here on"
            lines.append({"kind": "event", "step": step, "what": "depth", "text": text})
    return lines


def make_run(
    folder: Path,
    settings: Pretrain | None = None,
    lines: list[dict[str, Any]] | None = None,
    known: dict[str, Any] | None = None,
) -> Path:
    """A finished run, unless other lines and facts are given."""
    folder.mkdir(parents=True)
    settings = settings or Pretrain(preset="albert-base", out=folder, steps=8000, depth_schedule="3,6@0.25,12@0.5")
    (folder / "run.json").write_text(json.dumps(to_dict(settings)))
    (folder / "run_info.json").write_text(json.dumps(run_info(actual=TRUTH) if known is None else known))
    text = "".join(json.dumps(line) + "\n" for line in (metrics() if lines is None else lines))
    (folder / "metrics.jsonl").write_text(text)
    return folder
