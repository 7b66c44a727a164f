"""Pairing and masking: tokens a second on one CPU core compared with plain-Python collators, and on a GPU.

`python bench/text.py --part objectives [--device cuda]` runs it and writes the results.

No data is needed: the text is random tokens with sentences and documents of about the lengths of English. Two collators
are compared with ours. One is written as Google's data builder is (`create_masked_lm_predictions`: all n-grams of all
words are listed, shuffled, and drawn from one by one), with our rule. The other is the oracle of the tests, as lean as
Python allows. Times of the CPU are seconds of processor time, so that what else runs on the machine does not count.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "objectives")]

# ruff: noqa: E402
import one_by_one

from openalbert.objectives import ngram_masking, sentence_order
from openalbert.objectives.keyed_random import Stream, bits, permuted, root
from openalbert.objectives.ngram_masking import MaskingVocabulary, NgramMasking
from openalbert.objectives.sentence_order import SentenceOrder

VOCAB_SIZE = 30_000
TOKENS_PER_SENTENCE, TOKENS_PER_DOCUMENT = 25, 3_400
WORD_STARTS = 0.76  # 1.31 tokens a word
CLS, SEP, MASK = 2, 3, 4
STEP_MS = 90.0  # assumed for an ALBERT-base training step of 128 x 512 tokens on one H200; not measured here


class Text:
    """Random tokens with marks."""

    def __init__(self, num_tokens: int) -> None:
        rng = np.random.default_rng(0)
        lengths = rng.lognormal(np.log(TOKENS_PER_SENTENCE) - 0.18, 0.6, num_tokens // TOKENS_PER_SENTENCE)
        self.sentences = np.concatenate([[0], np.cumsum(np.clip(lengths, 2, 300).astype(np.int64))])
        ends = rng.random(len(lengths)) < TOKENS_PER_SENTENCE / TOKENS_PER_DOCUMENT
        self.documents = np.unique(np.concatenate([[0], np.flatnonzero(ends) + 1, [len(lengths)]]))
        self.tokens = rng.integers(5, VOCAB_SIZE, int(self.sentences[-1])).astype(np.int16)
        self.word_starts = rng.random(VOCAB_SIZE) < WORD_STARTS

    def lists(self) -> list[list[list[int]]]:
        """The same text as documents of sentences of tokens."""
        tokens, starts = self.tokens.tolist(), self.sentences.tolist()
        borders = zip(self.documents[:-1].tolist(), self.documents[1:].tolist(), strict=True)
        return [[tokens[starts[s] : starts[s + 1]] for s in range(begin, end)] for begin, end in borders]


def rows_of(pairs: sentence_order.Pairs, batch: int, batch_size: int) -> Tensor:
    """What decides a batch: two segments and two keys an example."""
    index = np.arange(batch * batch_size, (batch + 1) * batch_size) % len(pairs)
    rows = pairs.rows[permuted(index, len(pairs), root(1, 0, Stream.ORDER))]
    names = ("first_begin", "first_length", "second_begin", "second_length")
    keys = [bits(root(1, 0, stream), rows["example"]) for stream in (Stream.MASK, Stream.REPLACE)]
    return torch.from_numpy(np.stack([*(rows[name].astype(np.int64) for name in names), *keys], axis=1))


def make(
    tokens: Tensor, rows: Tensor, vocabulary: MaskingVocabulary, masking: NgramMasking, length: int
) -> tuple[Tensor, ...]:
    """A batch from its rows: everything that a device does."""
    ids = sentence_order.assemble(tokens, rows[:, :4], length, CLS, SEP)
    return tuple(ngram_masking.mask(ids, rows[:, 1], rows[:, 3], rows[:, 4:], vocabulary, masking))


def timed(work: Callable[[], int]) -> float:
    """Tokens a second of processor time."""
    started = time.process_time()
    return work() / (time.process_time() - started)


def as_google_does(
    example: one_by_one.Example, length: int, word_starts: list[bool], masking: NgramMasking, rng: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """Hide tokens in the manner of Google's builder."""
    tokens = [CLS, *example.first, SEP, *example.second, SEP]
    words: list[list[int]] = []
    segment_of: list[int] = []
    segment = 0
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            segment += 1
            continue
        if words and segment_of[-1] == segment and not word_starts[token]:
            words[-1].append(place)
        else:
            words.append([place])
            segment_of.append(segment)
    ngrams = []
    for index in range(len(words)):
        candidates = []
        for n in range(1, masking.max_ngram + 1):
            pairs = zip(words[index : index + n], segment_of[index : index + n], strict=True)
            candidates.append([word for word, segment in pairs if segment == segment_of[index]])
        ngrams.append(candidates)
    rng.shuffle(ngrams)
    budget, sizes, shares = masking.budget(len(tokens)), range(1, masking.max_ngram + 1), masking.probabilities()
    chosen: list[tuple[int, int]] = []
    covered: set[int] = set()
    output = list(tokens)
    for candidates in ngrams:
        if len(chosen) >= budget:
            break
        n = rng.choices(sizes, shares)[0]
        places = [place for word in candidates[n - 1] for place in word]
        while len(chosen) + len(places) > budget and n > 1:
            n -= 1
            places = [place for word in candidates[n - 1] for place in word]
        if len(chosen) + len(places) > budget or any(place in covered for place in places):
            continue
        for place in places:
            covered.add(place)
            if rng.random() < masking.mask_fraction:
                output[place] = MASK
            elif rng.random() >= 0.5:
                output[place] = rng.randint(0, len(word_starts) - 1)
            chosen.append((place, tokens[place]))
    chosen.sort()
    return output, [place for place, _ in chosen], [label for _, label in chosen]


def collated(made: list[tuple[list[int], list[int], list[int]]], length: int, predictions: int) -> list[Tensor]:
    """Lists of examples as the tensors of a batch."""
    columns = ([], [], [], []) if not made else tuple(zip(*made, strict=True))
    ids, places, labels = (list(column) for column in columns[:3])
    return [
        torch.tensor([row + [0] * (length - len(row)) for row in ids]),
        torch.tensor([row + [0] * (predictions - len(row)) for row in places]),
        torch.tensor([row + [0] * (predictions - len(row)) for row in labels]),
        torch.tensor([[True] * len(row) + [False] * (predictions - len(row)) for row in places]),
    ]


def on_one_core(text: Text, length: int, batch_size: int, repeats: int) -> dict[str, Any]:
    masking, order = NgramMasking(), SentenceOrder()
    vocabulary = MaskingVocabulary(torch.from_numpy(text.word_starts), MASK)
    tokens = torch.from_numpy(text.tokens)
    documents, starts = text.lists(), text.word_starts.tolist()
    seconds: list[float] = []

    def ours() -> int:
        started = time.process_time()
        pairs = sentence_order.pair(text.sentences, text.documents, order, length, 1, 0)
        seconds.append(time.process_time() - started)
        made = 0
        for batch in range(len(pairs) // batch_size):
            rows = rows_of(pairs, batch, batch_size)
            make(tokens, rows, vocabulary, masking, length)
            made += int(rows[:, 1].sum() + rows[:, 3].sum()) + 3 * batch_size
        return made

    def plain(collate: Callable[[one_by_one.Example, random.Random], tuple[list[int], list[int], list[int]]]) -> int:
        rng, made, held = random.Random(0), 0, []
        for example in one_by_one.sentence_pairs(documents, length, order.short_fraction, rng):
            held.append(collate(example, rng))
            made += len(example.first) + len(example.second) + 3
            if len(held) == 64:
                collated(held, length, masking.budget(length))
                held = []
                if made > 300_000:
                    break
        return made

    def google() -> int:
        return plain(lambda example, rng: as_google_does(example, length, starts, masking, rng))

    def lean() -> int:
        shares = masking.probabilities()
        return plain(lambda example, rng: one_by_one.collate(example, length, starts, shares, masking.budget, rng))

    ours()
    seconds.clear()
    rates = [{"ours": timed(ours), "google": timed(google), "lean": timed(lean)} for _ in range(repeats)]
    return {
        "batch_size": batch_size,
        "tokens_per_s": {name: statistics.median(rate[name] for rate in rates) for name in rates[0]},
        "times_google": [round(rate["ours"] / rate["google"], 1) for rate in rates],
        "times_lean": [round(rate["ours"] / rate["lean"], 1) for rate in rates],
        "plan_s_per_100m_tokens": statistics.median(seconds) / len(text.tokens) * 1e8,
    }


def on_gpu(text: Text, length: int, batch_size: int) -> dict[str, Any]:
    masking = NgramMasking()
    pairs = sentence_order.pair(text.sentences, text.documents, SentenceOrder(), length, 1, 0)
    rows = rows_of(pairs, 0, batch_size)
    on_cpu = make(
        torch.from_numpy(text.tokens),
        rows,
        MaskingVocabulary(torch.from_numpy(text.word_starts), MASK),
        masking,
        length,
    )
    tokens, rows = torch.from_numpy(text.tokens).cuda(), rows.cuda()
    vocabulary = MaskingVocabulary(torch.from_numpy(text.word_starts).cuda(), MASK)

    def eager() -> tuple[Tensor, ...]:
        return make(tokens, rows, vocabulary, masking, length)

    compiled_make = torch.compile(make, dynamic=False)
    measurements: dict[str, Any] = {"batch_size": batch_size}

    def compiled() -> tuple[Tensor, ...]:
        return compiled_make(tokens, rows, vocabulary, masking, length)

    for name, work in (("eager", eager), ("compiled", compiled)):
        started = time.perf_counter()
        made = work()
        torch.cuda.synchronize()
        measurements[f"{name}_first_s"] = time.perf_counter() - started
        measurements[f"{name}_equals_cpu"] = all(torch.equal(a.cpu(), b) for a, b in zip(made, on_cpu, strict=True))
        measurements[f"{name}_ms"] = milliseconds(work)
        measurements[f"{name}_graph_ms"] = milliseconds(graphed(work).replay)
    best = min(measurements[f"{name}_ms"] for name in ("eager_graph", "compiled", "compiled_graph"))
    measurements["share_of_a_step_of_90_ms"] = best / STEP_MS
    return measurements


def graphed(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def milliseconds(work: Callable[[], object], repeats: int = 100) -> float:
    for _ in range(10):
        work()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / repeats * 1e3)
    return statistics.median(times)


def measure(device: str, length: int, num_tokens: int, repeats: int, processor: str) -> dict[str, Any]:
    """Everything, on one core and on the GPU if that is the device."""
    torch.set_num_threads(1)
    text = Text(num_tokens)
    run: dict[str, Any] = {
        "length": length,
        "tokens": num_tokens,
        "machine": {"processor": processor, "torch": torch.__version__, "numpy": np.__version__},
        "one_core": [on_one_core(text, length, size, repeats) for size in (64, 256, 1024)],
    }
    if device == "cuda":
        run["machine"]["gpu"] = torch.cuda.get_device_name()
        run["gpu"] = on_gpu(text, length, 128)
    return run


def table(run: dict[str, Any]) -> str:
    """The report that run.json makes."""
    machine = run["machine"]
    lines = [
        "# Pairing and masking",
        "",
        "## Result",
        "",
        "M tokens/s on one core:",
        "",
        "| batch | ours | Python written as Google's builder | lean Python | ours / Google's | ours / lean "
        "| planning, s per 100 M tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in run["one_core"]:
        rates = " | ".join(f"{row['tokens_per_s'][name] / 1e6:.2f}" for name in ("ours", "google", "lean"))
        ratios = " | ".join(f"{statistics.median(row[name]):.1f}x" for name in ("times_google", "times_lean"))
        lines.append(f"| {row['batch_size']} | {rates} | {ratios} | {row['plan_s_per_100m_tokens']:.2f} |")
    limits = "Synthetic documents; one machine."
    if gpu := run.get("gpu"):
        lines += [
            "",
            f"On one {machine['gpu']}, a batch of {gpu['batch_size']} x {run['length']}, tokens on the GPU:",
            "",
            "| mode | ms per batch | captured as a CUDA graph, ms | first call, s | bit-identical to the CPU |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {gpu[f'{name}_ms']:.3f} | {gpu[f'{name}_graph_ms']:.3f} | {gpu[f'{name}_first_s']:.1f} "
            f"| {'yes' if gpu[f'{name}_equals_cpu'] else 'no'} |"
            for name in ("eager", "compiled")
        ]
        lines += ["", f"The best is {gpu['share_of_a_step_of_90_ms']:.2%} of a training step of {STEP_MS:.0f} ms."]
        limits += f" The {STEP_MS:.0f} ms are assumed for ALBERT-base and were not measured here."
    lines += [
        "",
        "## Setup",
        "",
        f"`python bench/text.py --part objectives`: {machine['processor']}, torch {machine['torch']}, examples of "
        f"{run['length']} tokens. Medians of interleaved repeats; one thread; processor time.",
        "",
        "## Limits",
        "",
        limits,
        "",
    ]
    return "\n".join(lines)
