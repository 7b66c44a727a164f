"""What `bench/pretrain.py` is asked to measure, and on what: all of it is checked before any process is started."""

import argparse
import importlib.util
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig
from openalbert.model.cost import executed_training_flops, training_flops_per_token
from openalbert.model.presets import preset
from openalbert.pretraining.batches import Objective
from openalbert.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
VOCAB_SIZE = 30_000


@dataclass(frozen=True)
class Job:
    """One implementation of one model, measured once."""

    model: str
    batch: int
    kind: str
    """ours, ours-one-batch, eager or compiled."""
    seconds: float

    @property
    def config(self) -> AlbertConfig:
        """The model that all sides train."""
        return replace(preset(self.model), hidden_dropout=0.0, attention_dropout=0.0, vocab_size=VOCAB_SIZE)

    def model_flops(self, length: int) -> float:
        """Model FLOPs of a training step: one formula for all implementations."""
        masked = num_predictions(length) / length
        return training_flops_per_token(self.config, length, masked) * self.batch * length

    def executed_flops(self, length: int) -> int:
        """FLOPs of the matrix products that this implementation executes in a training step."""
        masked = num_predictions(length)
        computed, scored = (masked + 1, masked) if self.kind.startswith("ours") else (length, length)
        return self.batch * executed_training_flops(self.config, length, computed=computed, scored=scored)


def num_predictions(length: int) -> int:
    """15 % of the positions."""
    return round(0.15 * length)


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Every implementation of every model, in order."""
    jobs: list[Job] = []
    Objective(arguments.length)  # which says what is wrong with a length
    for number, words in enumerate(arguments.models):
        model, batch, seconds_of_peer = _parts(words, arguments.seconds)
        if any(job.model == model for job in jobs):
            raise UserError(f"{model} is named twice, and each model has one file: measure it with one batch in a run")
        if arguments.length > preset(model).max_positions:
            raise UserError(
                f"--length is {arguments.length}, but {model} has {preset(model).max_positions} positions: give a "
                "shorter one"
            )
        # Whether the step waits for its data, is measured on the first model.
        kinds = [kind for kind in arguments.which if number == 0 or kind != "ours-one-batch"]
        if not kinds:
            raise UserError(
                f"ours-one-batch is measured of the first model alone: leave {words} out, or give --which more"
            )
        for kind in kinds:
            jobs.append(Job(model, batch, kind, arguments.seconds if kind.startswith("ours") else seconds_of_peer))
    return jobs


def _parts(words: str, seconds: float) -> tuple[str, int, float]:
    """MODEL:BATCH or MODEL:BATCH:SECONDS."""
    model, *rest = words.split(":")
    preset(model)  # which says what an unknown name might have meant
    example = f"write MODEL:BATCH, such as {model}:128, or MODEL:BATCH:SECONDS for a shorter look at the peer"
    if not rest or not rest[0]:
        raise UserError(f"'{words}' has no batch: {example}")
    if not re.fullmatch("[0-9]+", rest[0]) or int(rest[0]) < 1:
        raise UserError(f"the batch of '{words}' is '{rest[0]}', which is no whole number from 1 on: {example}")
    if len(rest) > 2 or (len(rest) == 2 and not _is_time(rest[1])):
        raise UserError(f"'{words}' does not end in a batch or in seconds: {example}")
    return model, int(rest[0]), float(rest[1]) if len(rest) == 2 else seconds


def _is_time(word: str) -> bool:
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", word) is not None and float(word) > 0


def check_machine(arguments: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """A GPU, the peer where it is asked for, and a vocabulary."""
    if not torch.cuda.is_available():
        raise UserError(
            f"torch {torch.__version__} finds no GPU here, and the pretraining step is measured on one: run this on a "
            "machine with an NVIDIA GPU and a torch built for CUDA (`nvidia-smi` and `python -c 'import torch; "
            "print(torch.cuda.is_available())'` tell)"
        )
    if not all(job.kind.startswith("ours") for job in jobs) and importlib.util.find_spec("transformers") is None:
        raise UserError('transformers is not installed: pip install "openalbert[bench]", or give --which ours')
    num_pieces = Tokenizer.load(arguments.tokenizer).vocab_size
    if num_pieces > VOCAB_SIZE:
        raise UserError(
            f"--tokenizer {arguments.tokenizer} has {num_pieces} pieces, but the models are measured with "
            f"{VOCAB_SIZE}: give a vocabulary of at most as many"
        )


def folder_for(device: str) -> Path:
    """Where the measurements of a GPU are kept: NVIDIA H200 in results/speed-h200."""
    words = [word for word in re.split("[^a-z0-9]+", device.lower()) if word not in ("", "nvidia")]
    return ROOT / "results" / "-".join(["speed", *words])


def keep_what_says_more(folder: Path, jobs: Sequence[Job]) -> None:
    """Refuse to write over the measurements of implementations that will not be measured now."""
    for model in dict.fromkeys(job.model for job in jobs):
        file = folder / f"{model}.json"
        if not file.exists():
            continue
        try:
            before = set(json.loads(file.read_text())["runs"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{file} is no file of this bench, and would be lost: give another --out") from None
        lost = before - {job.kind for job in jobs if job.model == model}
        if lost:
            raise UserError(
                f"{file} has {', '.join(sorted(lost))} too, which this run does not measure and would lose: give "
                "another --out"
            )


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was asked, on what machine and of which versions; of a path the last name alone."""
    used = {name: value for name, value in vars(arguments).items() if name != "out"}
    known: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "transformers": version("transformers") if importlib.util.find_spec("transformers") else None,
        **_commit(),
        "compile": arguments.compile,
        "arguments": {name: value.name if isinstance(value, Path) else value for name, value in used.items()},
    }
    return {name: value for name, value in known.items() if value is not None}


def _commit() -> dict[str, Any]:
    """The commit of this checkout, if it is one, and whether what is measured differs from it."""
    if not (ROOT / ".git").exists():  # else git might answer for a repository that this folder merely lies in
        return {}
    try:
        is_changed = bool(_git("status", "--porcelain", "src", "bench").strip())
        return {"commit": _git("rev-parse", "HEAD").strip(), "is_changed_since": is_changed}
    except (OSError, subprocess.CalledProcessError):
        return {}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
