"""`openalbert demo`: everything once, from raw text to a model that fills in [MASK], in minutes on two CPU cores.

Each stage is a command that the reader can run alone, and is shown before it runs. Started again, every stage resumes
from what is there.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.recipes.demo_corpus import write_corpus
from openalbert.report.summary import over_all_starts
from openalbert.run_files import METRICS, MODEL, REPORT, RUN_INFO
from openalbert.serve.fill import readable
from openalbert.serve.masks import MASK
from openalbert.serve.predictor import Predictor
from openalbert.text.shards import ShardSet, open_shards
from openalbert.text.tokenizer import SPACE, Tokenizer

RECIPE = "albert-demo"  # its settings are in recipes/pretraining.py
STAGES = 6
FIXED_TEXTS = (
    "Return a [MASK] of all the files in the directory.",
    "If the argument is not a string, a TypeError is [MASK].",
    "This [MASK] should be called before the program ends.",
    "The default [MASK] is used if no other is given.",
)
HELDOUT_TEXTS = 6
HELDOUT_PAIRS = 3


@dataclass(frozen=True)
class Demo:
    """From the documentation on this machine to a tiny ALBERT that fills in [MASK]. Run again, it resumes."""

    out: Path = Path("demo")
    """The folder for everything."""
    corpus_megabytes: float = 40.0
    """The most text that is collected."""
    vocab_size: int = 4000
    """Pieces in the vocabulary."""
    heldout: float = 0.05
    """Fraction of the documents that the model is not trained on but evaluated on."""
    steps: int | None = None
    """Length of the training; not given: the recipe's own."""
    fresh: bool = False
    """Remove what an earlier demo left in the folder, and start over."""


def demo(settings: Demo) -> None:
    """Run all stages, then print the results."""
    started = time.monotonic()
    place = settings.out
    corpus, vocabulary, shards, run = (place / name for name in ("corpus.txt", "vocabulary", "shards", "run"))
    if settings.fresh:
        for path in (corpus, _counts_path(corpus), vocabulary, shards, run):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    place.mkdir(parents=True, exist_ok=True)

    _heading(1, "text: the documentation in Python's library and in the packages installed here")
    _collect(corpus, settings)
    _heading(2, "a vocabulary: the pieces that words are written in")
    words = ["tokenizer", "train", str(corpus), "--out", str(vocabulary), "--vocab-size", str(settings.vocab_size)]
    report = json.loads(_command(*words, "--sample-megabytes", "4", quiet=True))
    print(f"{report['vocab_size']:,} pieces; one stands for {report['characters_per_token']:.1f} characters on average")
    _heading(3, "shards: the text as numbers, some documents held out for evaluation")
    words = ["prepare", str(corpus), "--tokenizer", str(vocabulary), "--out", str(shards)]
    _command(*words, "--heldout", str(settings.heldout))
    _heading(4, "pretraining: a tiny ALBERT learns to fill in hidden words and to recognize the order of sentences")
    words = ["pretrain", RECIPE, "--data", str(shards), "--out", str(run)]
    _command(*words, *(["--steps", str(settings.steps)] if settings.steps else []))
    _heading(5, "a report page: curves, settings, data and speed")
    _command("report", str(run))
    _heading(6, f"the model is asked: words for {MASK}, and the order of two sentences that it has never seen")
    _ask(Predictor.load(str(run)), open_shards(shards, "heldout"))
    _summary(run, time.monotonic() - started)


def _collect(corpus: Path, settings: Demo) -> None:
    counts = _counts_path(corpus)
    if corpus.exists() and counts.exists():
        _print(f"{corpus} is there already")
    else:
        atomic_io.write_text(
            counts, json.dumps(asdict(write_corpus(corpus, int(settings.corpus_megabytes * 1e6)))) + "\n"
        )
    found = json.loads(counts.read_text())
    most = ", ".join(f"{name} {characters / 1e6:.1f}" for name, characters in found["packages"][:5])
    _print(
        f"{found['documents']:,} documents, {found['characters'] / 1e6:.1f} MB of prose from {found['files']:,} source "
        f"files (MB from {most}); {found['repeated']:,} paragraphs left out because they repeat others"
    )


def _counts_path(corpus: Path) -> Path:
    return corpus.with_suffix(".json")


def _heading(number: int, what: str) -> None:
    _print(f"\n--- {number}/{STAGES}  {what}")


def _print(line: str) -> None:
    print(line, flush=True)


def _command(*words: str, quiet: bool = False) -> str:
    """Show a command, run it in a process of its own, and end as it did if it did not end well."""
    _print("$ " + shlex.join(["openalbert", *words]))
    command = [sys.executable, "-m", "openalbert", *words]
    # Threads that wait for each other without a pause crawl where something else runs on the same cores.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ
    process = subprocess.Popen(command, stdout=subprocess.PIPE if quiet else None, text=True, env=environment)

    def pass_on(number: int, _: FrameType | None) -> None:
        # A terminal sends Ctrl-C to the command too, which ends in its own time, with a checkpoint: wait for it.
        if number != signal.SIGINT:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        printed, _ = process.communicate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if process.returncode:
        if process.returncode in (130, 143):
            print("stopped; the same command resumes from here", file=sys.stderr)
        sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
    return printed or ""


def _ask(model: Predictor, heldout: ShardSet) -> None:
    """Show what the model predicts, and the commands that ask it."""
    _print("$ " + shlex.join(["openalbert", "predict", model.name, FIXED_TEXTS[0]]))
    for text, actual in heldout_texts(heldout, model.tokenizer, HELDOUT_TEXTS):
        _print("\n".join(readable(text, model.fill(text))) + f"   (it was: {actual})")
    _print("and some that were made up:")
    for text in FIXED_TEXTS:
        _print("\n".join(readable(text, model.fill(text))))
    pairs = heldout_pairs(heldout, model.tokenizer, HELDOUT_PAIRS)
    _print("$ " + shlex.join(["openalbert", "predict", model.name, *pairs[0]]))
    swapped = [(second, first) for first, second in pairs]
    for (first, second), *found in zip(pairs, model.predict(pairs), model.predict(swapped), strict=True):
        said, other = (f"{one.label} ({one.probability:.0%})" for one in found)
        _print(f"{first} | {second}\n  as it was written: {said}; the other way round: {other}")


def heldout_texts(shards: ShardSet, tokenizer: Tokenizer, number: int) -> Iterator[tuple[str, str]]:
    """Sentences of a split, evenly spread, each with its middle word hidden, and that word."""
    found: list[tuple[str, str]] = []
    for shard in shards.shards:
        for begin, end in zip(shard.sentence_starts[:-1], shard.sentence_starts[1:], strict=True):
            ids = np.asarray(shard.tokens[begin:end]).tolist()
            pieces = tokenizer.pieces(ids)
            whole = [
                place
                for place, piece in enumerate(pieces[:-1])
                if piece.startswith(SPACE)
                and piece[1:].isalpha()
                and len(piece) > 4
                and _begins_word(pieces[place + 1])
            ]
            if whole and 8 <= len(ids) <= 24 and tokenizer.unk_id not in ids:
                place = min(whole, key=lambda place: abs(2 * place - len(ids)))
                left, right = tokenizer.decode(ids[:place]), "".join(pieces[place + 1 :]).replace(SPACE, " ")
                found.append((f"{left} {MASK}{right}".strip(), pieces[place].removeprefix(SPACE)))
    spread = np.linspace(0, len(found) - 1, min(number, len(found))).round().astype(int)
    yield from (found[index] for index in spread.tolist())


def heldout_pairs(shards: ShardSet, tokenizer: Tokenizer, number: int) -> list[tuple[str, str]]:
    """Pairs of sentences that follow each other in a document of a split, evenly spread."""
    found: list[tuple[str, str]] = []
    for shard in shards.shards:
        firsts = set(np.asarray(shard.document_starts).tolist())
        for place, (begin, middle, end) in enumerate(
            zip(shard.sentence_starts[:-2], shard.sentence_starts[1:-1], shard.sentence_starts[2:], strict=True)
        ):
            is_short = all(6 <= length <= 24 for length in (middle - begin, end - middle))
            if is_short and place + 1 not in firsts:
                first, second = (
                    np.asarray(shard.tokens[slice(*span)]).tolist() for span in ((begin, middle), (middle, end))
                )
                found.append((tokenizer.decode(first), tokenizer.decode(second)))
    spread = np.linspace(0, len(found) - 1, min(number, len(found))).round().astype(int)
    return [found[index] for index in spread.tolist()]


def _begins_word(piece: str) -> bool:
    return not piece[0].isalpha()


def _summary(run: Path, seconds: float) -> None:
    run_info = json.loads((run / RUN_INFO).read_text())
    last = _last_evaluation(run / METRICS)
    rows = [
        (
            "MLM loss",
            f"{last['mlm_loss']:.2f}",
            f"word frequencies alone give {run_info['unigram_entropy']:.2f}",
        ),
        (
            "MLM accuracy",
            f"{last['mlm_acc']:.1%}",
            f"{run_info['vocab_size']:,} pieces to choose from",
        ),
        ("sentence order", f"{last['sop_acc']:.1%}", "chance is 50%"),
    ]
    machine = over_all_starts(run_info, "device")
    _print(f"\n--- done in {seconds / 60:.1f} minutes: {run_info['parameters']:,} parameters, {machine}")
    _print("on held-out text:")
    for name, value, reference in rows:
        _print(f"  {name:20s}{value:>8s}   {reference}")
    _print(f"the report page:   {run / REPORT}")
    _print(f"the model folder:  {run / MODEL} (Hugging Face loads it as it is)")
    _print("\nwhere to go next:")
    for command, what in (
        (
            f'predict {run} "A sentence with a {MASK} in it."',
            "ask it something yourself: docs/guides/use-your-model.md",
        ),
        ("tokenizer train texts/ --out vocabulary", "the same with your own text: docs/guides/your-own-text.md"),
        (
            "pretrain albert-base-budget --data shards --out runs/mine",
            "a real ALBERT on your shards, in 20 minutes of GPU",
        ),
    ):
        _print(f"  $ openalbert {command}\n      {what}")


def _last_evaluation(metrics: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    found: list[dict[str, Any]] = [record for record in records if record["kind"] == "evaluation"]
    if not found:
        raise UserError(f"{metrics} has no evaluation: is there text in the held-out split?")
    return found[-1]
