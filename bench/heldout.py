"""Held-out loss and accuracy of a pretrained model, at several lengths and with both kinds of chunks.

    python bench/heldout.py MODEL SHARDS --on 512:whole:1024 128:whole:2048:0 128:google:1024 --out evaluations.json

MODEL is a model folder, a run or a name, SHARDS is held-out text prepared with its vocabulary. Each `--on` is a length,
a kind of chunks, a number of examples and, where it is not a tenth, the fraction of examples that are shortened at
random. The examples and their masks are those of pretraining runs: with a run's own settings on the same shards, its
own last evaluation is reproduced, but for the precision it was computed in.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import evaluate, pretraining
from openalbert.pretraining.run import HELDOUT_BATCH, HELDOUT_SEED
from openalbert.run_files import MODEL, RUN
from openalbert.text.shards import ShardSet, open_shards, read_manifest
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device, Speed, open_device
from openalbert.train.run import machine


@dataclass(frozen=True)
class Evaluated:
    """A kind of held-out examples, and how many."""

    objective: Objective
    examples: int


def parse_evaluated(text: str) -> Evaluated:
    """`512:whole:1024` or `128:whole:2048:0`: length, chunks, examples, fraction of shortened ones."""
    try:
        length, chunks, examples, *fraction = text.split(":")
        short = {"short_fraction": float(fraction[0])} if len(fraction) == 1 else {}
        pairs = SentenceOrder(chunks=chunks, **short)  # type: ignore[arg-type]
        evaluated = Evaluated(Objective(max_length=int(length), sentence_order=pairs), int(examples))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 512:whole:1024 or 128:whole:2048:0") from None
    except UserError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if len(fraction) > 1 or chunks not in ("google", "whole") or evaluated.examples < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 512:whole:1024 or 128:whole:2048:0")
    return evaluated


def heldout(folder: Path) -> ShardSet:
    """The held-out split of some shards, or all of them where there is none."""
    return open_shards(folder, "heldout" if "heldout" in read_manifest(folder).splits else "train")


def evaluate_on(
    model: AlbertModel, shards: ShardSet, evaluated: Evaluated, batch: int, device: Device
) -> dict[str, Any]:
    """Losses and accuracies on one kind of examples."""
    size = min(batch, evaluated.examples)
    if evaluated.examples % size:
        raise UserError(f"{evaluated.examples} examples do not divide into batches of {size}: give another --batch")
    batches = Batches(shards, evaluated.objective, size, HELDOUT_SEED, device=device.torch_device)
    started = time.perf_counter()
    found = evaluate(pretraining(model), model, batches, evaluated.examples // size, model.config.num_layers, device)
    pairs, length = evaluated.objective.sentence_order, evaluated.objective.max_length
    print(f"length {length}, {pairs.chunks}, {pairs.short_fraction:.0%} shorter: {found}", flush=True)
    kind = {"length": length, "chunks": pairs.chunks, "short_fraction": pairs.short_fraction}
    return {**kind, **found.metrics(), "seconds": time.perf_counter() - started}


def evaluate_all(given: argparse.Namespace) -> dict[str, Any]:
    """All evaluations of one model, and the hardware."""
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
            "evaluations": [evaluate_on(model, shards, evaluated, given.batch, device) for evaluated in given.on],
        }


def main(words: list[str] | None = None) -> None:
    """Evaluate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("shards", type=Path)
    parser.add_argument("--on", type=parse_evaluated, nargs="+", default=[parse_evaluated("512:whole:1024")])
    parser.add_argument("--batch", type=int, default=HELDOUT_BATCH, help="examples at a time; fewer need less memory")
    parser.add_argument("--out", type=Path, help="where to write it all as JSON")
    given = parser.parse_args(words)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        results = evaluate_all(given)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    if given.out:
        given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
