"""Trains a tokenizer: a SentencePiece unigram model with ALBERT's flags, on a seeded sample of bounded size.

The sample is drawn here and not by SentencePiece, so that memory is bounded and the result is deterministic. Training
runs in a separate process, so that it can be interrupted and its log can be followed.
"""

import heapq
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from openalbert import atomic_io
from openalbert.errors import UserError, explain_full_disk
from openalbert.progress import Work
from openalbert.settings import check_at_least_one, from_file, to_json
from openalbert.text.corpus import CorpusReading, CorpusSource, Counts, documents, sources
from openalbert.text.normalization import Normalization
from openalbert.text.sentences import split_sentences
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer

REPORT_FILE = "vocabulary.json"
LONGEST_SENTENCE = 4192  # bytes; SentencePiece's default, as in ALBERT
MEASURED_SENTENCES = 100_000  # of the sample, for the metrics in the report
# Sums over sentences are computed per thread, so the number of threads affects the last bits of every score: it is the
# same on every machine.
THREADS = 16
ALBERT_FLAGS: dict[str, Any] = {
    "model_type": "unigram",
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
}

_SAMPLE_FILE = "sample.txt"
# It exits when its standard input closes, that is, with its parent process.
_PROGRAM = """
import json, os, sys, threading, sentencepiece
flags = json.loads(sys.stdin.readline())
threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()
sentencepiece.SentencePieceTrainer.train(**flags)
"""
_PASS = re.compile(r"EM sub_iter=\d+ size=(\d+)")
_PHASE = re.compile(r"\] ([A-Z][a-z]+ing [a-z ]+)")
_TOO_HIGH = re.compile(r"Vocabulary size too high .* value <= (\d+)")
_TOO_LOW = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


@dataclass(frozen=True)
class TrainVocabulary:
    """Settings of `openalbert tokenizer train`."""

    files: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH [PATH ...]")]
    """Text to train on: files, folders, globs, or - for standard input."""
    out: Path
    """The folder for the model, its text normalization and the report."""
    vocab_size: int = 30_000
    """Pieces in the vocabulary, special tokens included."""
    cased: bool = False
    """Keep capital letters."""
    keep_accents: bool = False
    """Keep accents."""
    byte_fallback: bool = False
    """Encode characters that are not in the vocabulary as bytes (256 pieces) instead of <unk>."""
    character_coverage: float = 0.99995
    """The fraction of the sample's characters that the vocabulary must cover."""
    seed: int = 0
    """Seed of the sample."""
    sample_sentences: int = 10_000_000
    """Maximum number of training sentences, drawn uniformly from all."""
    sample_megabytes: int = 100
    """Maximum size of the sample in MB. Training takes about 25 times as much memory."""
    reading: CorpusReading = field(default_factory=CorpusReading)
    """How the text files are read."""
    fresh: bool = False
    """Replace a vocabulary that is already in the folder."""


@dataclass(frozen=True)
class VocabularyReport:
    """How the vocabulary was trained and how well it fits: saved next to the model."""

    settings: TrainVocabulary
    inputs: tuple[CorpusSource, ...]
    sentences_read: int
    sentences_sampled: int
    sampled_bytes: int
    sentences_skipped: int
    """Sentences of the sample longer than 4192 bytes, on which SentencePiece does not train."""
    vocab_size: int
    characters_per_token: float
    """In the normalized sample, spaces included."""
    unknown_rate: float
    """The fraction of tokens that are <unk>; 0 with byte fallback."""
    byte_rate: float
    """The fraction of tokens that are bytes."""
    seconds: float
    fingerprint: str


class Sample(NamedTuple):
    """Sentences drawn from a stream in random order, and how many were seen."""

    sentences: list[str]
    seen: int


def draw_sample(sentences: Iterable[str], max_sentences: int, max_bytes: int, seed: int) -> Sample:
    """Draw sentences uniformly, in memory bounded by the sample.

    Each sentence gets a random number; the smallest are kept, as many as fit. So a sentence's probability does not
    depend on its position. They are returned in the order of these numbers: SentencePiece also looks for repeated text
    across sentences, and a duplicated document would cost the square of its length.
    """
    draw = random.Random(seed).random
    kept: list[tuple[float, int, str]] = []  # a heap with the largest number on top
    held = seen = 0
    threshold = 2.0
    for sentence in sentences:
        number = draw()
        seen += 1
        if number >= threshold:
            continue
        heapq.heappush(kept, (-number, seen, sentence))
        held += len(sentence.encode())
        while len(kept) > max_sentences or held > max_bytes:
            largest, _, dropped = heapq.heappop(kept)
            held -= len(dropped.encode())
            threshold = -largest
    return Sample([sentence for _, _, sentence in sorted(kept)], seen)


def train_vocabulary(settings: TrainVocabulary) -> None:
    """Train, save and print the report; a folder that already has this vocabulary is left unchanged."""
    _check(settings)
    inputs = sources(settings.files, settings.reading)
    report = _existing_report(settings, inputs)
    if report is None:
        with explain_full_disk(settings.out, "nothing unfinished was left"):
            report = _train(settings, inputs)
    else:
        print(f"{settings.out} has this vocabulary already: nothing to do", file=sys.stderr)
    print(to_json(report), end="")


def _check(settings: TrainVocabulary) -> None:
    least = len(ALBERT_FLAGS["control_symbols"]) + len(ALBERT_FLAGS["user_defined_symbols"]) + 3
    if settings.vocab_size < least:
        raise UserError(f"vocab-size is {settings.vocab_size}: special tokens and one letter alone are {least}")
    atomic_io.check_writable(settings.out)
    if not 0.9 <= settings.character_coverage <= 1:
        raise UserError(f"character-coverage is {settings.character_coverage}: it must be from 0.9 to 1")
    check_at_least_one(settings, "sample_sentences", "sample_megabytes")


def _existing_report(settings: TrainVocabulary, inputs: list[CorpusSource]) -> VocabularyReport | None:
    """The report of the vocabulary in the folder if it has these settings; any other vocabulary is not overwritten."""
    model, file = settings.out / MODEL_FILE, settings.out / REPORT_FILE
    if settings.fresh or not model.exists():
        return None
    if file.exists():
        report = from_file(file, VocabularyReport)
        same = replace(report.settings, out=settings.out, fresh=False) == replace(settings, fresh=False)
        if same and report.inputs == tuple(inputs) and Tokenizer.load(settings.out).fingerprint == report.fingerprint:
            return report
    raise UserError(
        f"{model} exists and was not made by these settings from these files: give another --out, "
        "or --fresh to replace it"
    )


def _train(settings: TrainVocabulary, inputs: list[CorpusSource]) -> VocabularyReport:
    started = time.monotonic()
    normalization = Normalization(settings.cased, settings.keep_accents)
    sample = draw_sample(
        _sentences(inputs, settings.reading),
        settings.sample_sentences,
        settings.sample_megabytes * 10**6,
        settings.seed,
    )
    normalized = [normalization.normalize(sentence) for sentence in sample.sentences]
    fitting = [sentence for sentence in normalized if len(sentence.encode()) <= LONGEST_SENTENCE]
    if not fitting:
        raise UserError(
            f"there is no sentence of at most {LONGEST_SENTENCE} bytes in {', '.join(settings.files)}: "
            "a vocabulary needs text with sentences or lines"
        )
    model = _run_sentencepiece(settings, fitting)
    tokenizer = Tokenizer(model, normalization)
    rates = _rates(tokenizer, fitting)
    report = VocabularyReport(
        settings=settings,
        inputs=tuple(inputs),
        sentences_read=sample.seen,
        sentences_sampled=len(fitting),
        sampled_bytes=sum(len(sentence.encode()) for sentence in fitting),
        sentences_skipped=len(normalized) - len(fitting),
        vocab_size=tokenizer.vocab_size,
        **rates,
        seconds=round(time.monotonic() - started, 1),
        fingerprint=tokenizer.fingerprint,
    )
    settings.out.mkdir(parents=True, exist_ok=True)
    atomic_io.write_text(settings.out / REPORT_FILE, to_json(report))
    tokenizer.save(settings.out)
    return report


def _sentences(inputs: list[CorpusSource], reading: CorpusReading) -> Iterator[str]:
    counts = Counts()
    sizes = [source.size_bytes for source in inputs]
    total = None if None in sizes else float(sum(size or 0 for size in sizes))
    with Work("reading", total=total, unit="MB", scale=1e6) as work:
        for source in inputs:
            for document in documents(source, reading, counts):
                work.advance(counts.bytes_read - work.done)
                yield from split_sentences(document)
    for remark in counts.remarks():
        print(remark, file=sys.stderr)


def _run_sentencepiece(settings: TrainVocabulary, sentences: list[str]) -> bytes:
    folder = settings.out.with_name(settings.out.name + atomic_io.PARTIAL)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with (folder / _SAMPLE_FILE).open("w", encoding="utf-8") as file:
            file.writelines(sentence + "\n" for sentence in sentences)
        flags = ALBERT_FLAGS | {
            # Names without a path: they are stored in the model, whose bytes must not depend on its folder.
            "input": _SAMPLE_FILE,
            "model_prefix": MODEL_FILE.removesuffix(".model"),
            "vocab_size": settings.vocab_size,
            "character_coverage": settings.character_coverage,
            "byte_fallback": settings.byte_fallback,
            "max_sentence_length": LONGEST_SENTENCE,
            "num_threads": THREADS,
        }
        log = _follow(flags, folder)
        if (folder / MODEL_FILE).exists():
            return (folder / MODEL_FILE).read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if found := _TOO_HIGH.search(log):
        raise UserError(
            f"the text has too few different words for a vocabulary of {settings.vocab_size}: the largest possible is "
            f"{found[1]}; lower --vocab-size or give more text"
        )
    if found := _TOO_LOW.search(log):
        raise UserError(
            f"a vocabulary of {settings.vocab_size} is too small for the different characters of the text: at least "
            f"{int(found[1]) + 1} is needed; raise --vocab-size or lower --character-coverage"
        )
    raise UserError(
        f"SentencePiece could not train: {log.strip().splitlines()[-1] if log.strip() else 'it was killed'}"
    )


def _follow(flags: dict[str, Any], folder: Path) -> str:
    """Run the training, show its progress, and return the end of its log."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    log = ""
    try:
        process.stdin.write(json.dumps(flags).encode() + b"\n")
        process.stdin.flush()
        with Work("training", unit="passes") as work:
            while new := os.read(process.stderr.fileno(), 1 << 16).decode(errors="replace"):
                passes, phases = _PASS.findall(new), _PHASE.findall(new)
                note = f"{int(passes[-1]):,} candidate pieces" if passes else "".join(phases[-1:]).strip().lower()
                work.advance(float(len(passes)), note)
                log = (log + new)[-10_000:]
        if process.wait() < 0:
            raise UserError(
                f"SentencePiece was killed by signal {-process.returncode} while training, as happens where memory "
                "is short: lower --sample-megabytes"
            )
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stderr.close()
    return log


def _rates(tokenizer: Tokenizer, sentences: list[str]) -> dict[str, float]:
    """Metrics on sentences spread evenly over the sample."""
    step = max(1, len(sentences) // MEASURED_SENTENCES)
    measured = sentences[::step]
    ids, _ = tokenizer.encode_joined(measured)
    spelled = tokenizer.byte_ids
    return {
        "characters_per_token": round(sum(map(len, measured)) / max(1, len(ids)), 4),
        "unknown_rate": round(float((ids == tokenizer.unk_id).mean()), 8),
        "byte_rate": round(float(spelled[ids].mean()), 8),
    }
