"""How a pretrained model does on text that it has not seen, at several lengths and ways of making chunks.

    python bench/heldout.py MODEL SHARDS --asked 512:whole:1024 128:whole:2048:0 128:google:1024 --out judged.json

MODEL is a model folder, a run or a name, SHARDS is held-out text prepared with its vocabulary. Each `--asked` is a
length, a way of making chunks, a number of examples and, where it is not a tenth, the share of examples that are made
shorter by chance. The examples and their masks are those that runs are judged by: asked as the run asked, on the same
shards, a run's own last evaluation comes out again, but for the precision it was computed in.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.run_files import MODEL, RUN
from openalbert.model.albert import AlbertModel
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import evaluate, pretraining
from openalbert.pretraining.run import HELDOUT_BATCH, HELDOUT_SEED
from openalbert.text.manifest import read_manifest
from openalbert.text.shards import ShardSet, open_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device, Speed, open_device
from openalbert.train.run_dir import machine


@dataclass(frozen=True)
class Question:
    """What is asked of a model."""

    objective: Objective
    examples: int


def question(text: str) -> Question:
    """`512:whole:1024` or `128:whole:2048:0`: length, chunks, examples, share of shortened ones."""
    try:
        length, chunks, examples, *share = text.split(":")
        short = {"short_fraction": float(share[0])} if len(share) == 1 else {}
        pairs = SentenceOrder(chunks=chunks, **short)  # type: ignore[arg-type]
        asked = Question(Objective(max_length=int(length), sentence_order=pairs), int(examples))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 512:whole:1024 or 128:whole:2048:0") from None
    except UserError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if len(share) > 1 or chunks not in ("google", "whole") or asked.examples < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 512:whole:1024 or 128:whole:2048:0")
    return asked


def heldout(folder: Path) -> ShardSet:
    """The held-out split of some shards, or all of them where there is none."""
    return open_shards(folder, "heldout" if "heldout" in read_manifest(folder).splits else "train")


def judged(model: AlbertModel, shards: ShardSet, asked: Question, batch: int, device: Device) -> dict[str, Any]:
    """Both losses and accuracies of one question."""
    size = min(batch, asked.examples)
    if asked.examples % size:
        raise UserError(f"{asked.examples} examples do not divide into batches of {size}: give another --batch")
    batches = Batches(shards, asked.objective, size, HELDOUT_SEED, device=device.torch_device)
    started = time.perf_counter()
    found = evaluate(pretraining(model), model, batches, asked.examples // size, model.config.num_layers, device)
    pairs, length = asked.objective.sentence_order, asked.objective.max_length
    print(f"length {length}, {pairs.chunks}, {pairs.short_fraction:.0%} shorter: {found}", flush=True)
    told = {"length": length, "chunks": pairs.chunks, "short_fraction": pairs.short_fraction}
    return {**told, **found.figures(), "seconds": time.perf_counter() - started}


def answers(given: argparse.Namespace) -> dict[str, Any]:
    """All answers of one model, and what they were computed with."""
    is_run = (Path(given.model) / RUN).exists()
    folder = huggingface.find_folder(str(Path(given.model) / MODEL) if is_run else given.model)
    shards, tokenizer = heldout(given.shards), Tokenizer.load(folder)
    shards.check_vocabulary(tokenizer.fingerprint, tokenizer.vocab_size)
    with open_device(Speed()) as device:
        model = huggingface.load(folder).to(device.torch_device)
        return {
            "model": given.model,
            "heldout": {
                "inputs": [Path(name).name for name in shards.manifest.inputs],
                "tokens": shards.num_tokens,
                "tokenizer": tokenizer.fingerprint,
            },
            **machine(device),
            "judged": [judged(model, shards, asked, given.batch, device) for asked in given.asked],
        }


def main(words: list[str] | None = None) -> None:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("shards", type=Path)
    parser.add_argument("--asked", type=question, nargs="+", default=[question("512:whole:1024")])
    parser.add_argument("--batch", type=int, default=HELDOUT_BATCH, help="examples at a time; fewer need less memory")
    parser.add_argument("--out", type=Path, help="where to write it all as JSON")
    given = parser.parse_args(words)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        told = answers(given)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
