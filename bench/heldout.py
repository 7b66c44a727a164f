"""How a pretrained model does on text that it has not seen, at several lengths and ways of making chunks.

    python bench/heldout.py MODEL SHARDS --asked 512:whole:1024 128:whole:2048 128:google:1024 --out judged.json

MODEL is a folder or a name, SHARDS is held-out text prepared with its vocabulary, and each `--asked` is a length, a way
of making chunks and a number of examples. The examples and their masks are those that runs are judged by: a run's own
last evaluation comes out again, but for the precision it was computed in, where length, number and the share of
shortened examples are the same (`--short-share 0` for runs by the budget recipe).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.text.manifest import read_manifest
from openalbert.text.shards import ShardSet, open_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.batches import Batches, Objective
from openalbert.train.device import Device, Speed, open_device
from openalbert.train.machine import machine
from openalbert.train.pretraining import evaluate, pretraining
from openalbert.train.setup import HELDOUT_BATCH, HELDOUT_SEED

CHUNKS = ("google", "whole")


def question(text: str) -> tuple[int, str, int]:
    """`512:whole:1024`: length, chunks, examples."""
    try:
        length, chunks, examples = text.split(":")
        asked = int(length), chunks, int(examples)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 512:whole:1024") from None
    if chunks not in CHUNKS or asked[2] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: chunks are {' or '.join(CHUNKS)}, and examples 1 or more")
    return asked


def heldout(folder: Path) -> ShardSet:
    """The held-out split of some shards, or all of them where there is none."""
    return open_shards(folder, "heldout" if "heldout" in read_manifest(folder).splits else "train")


def judged(
    model: AlbertModel, shards: ShardSet, asked: tuple[int, str, int], short_share: float, batch: int, device: Device
) -> dict[str, Any]:
    """Both losses and accuracies of one question."""
    length, chunks, examples = asked
    pairs = SentenceOrder(chunks=chunks, short_share=short_share)  # type: ignore[arg-type]
    objective = Objective(max_length=length, sentence_order=pairs)
    size = min(batch, examples)
    batches = Batches(shards, objective, size, HELDOUT_SEED, device=device.torch_device)
    started = time.perf_counter()
    found = evaluate(pretraining(model), model, batches, examples // size, model.config.num_layers, device)
    told = {
        "length": length,
        "chunks": chunks,
        "short_share": short_share,
        **found.figures(),
        "seconds": time.perf_counter() - started,
    }
    print(f"length {length}, {chunks}, {found.examples:,} examples: {found}", flush=True)
    return told


def answers(given: argparse.Namespace) -> dict[str, Any]:
    """All answers of one model, and what they were computed with."""
    folder, shards = huggingface.find_folder(given.model), heldout(given.shards)
    tokenizer = Tokenizer.load(folder)
    shards.check_vocabulary(tokenizer.fingerprint, tokenizer.vocab_size)
    with open_device(Speed()) as device:
        model = huggingface.load(folder).to(device.torch_device)
        return {
            "model": given.model,
            "heldout": {"tokens": shards.num_tokens, "tokenizer": tokenizer.fingerprint},
            **machine(device),
            "judged": [judged(model, shards, asked, given.short_share, given.batch, device) for asked in given.asked],
        }


def main(words: list[str] | None = None) -> None:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("shards", type=Path)
    parser.add_argument("--asked", type=question, nargs="+", default=[(512, "whole", 1024)])
    parser.add_argument("--short-share", type=float, default=0.1, help="how many examples are made shorter by chance")
    parser.add_argument("--batch", type=int, default=HELDOUT_BATCH, help="examples at a time; fewer need less memory")
    parser.add_argument("--out", type=Path, help="where to write it all as JSON")
    given = parser.parse_args(words)
    try:
        told = answers(given)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
