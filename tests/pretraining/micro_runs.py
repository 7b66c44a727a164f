"""Runs of `openalbert pretrain` that take a second, and what they leave behind."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from openalbert import cli
from openalbert.interop.weights import read_tensors

TIMES = ("seconds", "tokens_per_second", "mfu")
# A learning rate for this batch and wide first weights: leaves the plateau of word frequencies within a hundred steps.
SETTINGS = (
    "--batch-size 8 --reference-batch 8 --objective.max-length 32 --optimizer.learning-rate 0.01 "
    "--model.initializer-range 0.15 --log-every 5 --evaluation-examples 32"
)


def command(data: Path, out: Path, words: str = "", preset: str = "albert-micro") -> list[str]:
    """The words after `openalbert`; later ones win."""
    return ["pretrain", preset, "--data", str(data), "--out", str(out), *SETTINGS.split(), *words.split()]


def micro_run(data: Path, out: Path, words: str = "--steps 10", preset: str = "albert-micro") -> Path:
    """Carry out a run in this process."""
    cli.main(command(data, out, words, preset))
    return out


def records(out: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def curve(out: Path) -> list[float]:
    """The losses that a run has recorded."""
    return [record["loss"] for record in records(out, "train")]


def run_info(out: Path) -> dict[str, Any]:
    """What is known of a run beside its settings."""
    known: dict[str, Any] = json.loads((out / "run_info.json").read_text())
    return known


def weights(out: Path) -> dict[str, Tensor]:
    """The weights that a run ends with."""
    return read_tensors(out / "model" / "model.safetensors")
