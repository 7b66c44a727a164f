"""Embeddings a second at mixed lengths: openalbert, transformers and sentence-transformers, in turn, from texts.

    python bench/embedding_speed.py albert-base-wikibooks --out results/embedding-speed [--seconds 30] [--rounds 3]

The texts are random words; their lengths are log-normal, 8 to 256 tokens, half of them below 30. Every side gets the
same list, tokenizes it, and returns the mean of the last layer. Peers compute batches of 64, in bf16 on a GPU, as ours
does: `transformers` in the order given, padded to the longest of a batch; `transformers, sorted` by length, as a
careful user would; sentence-transformers, where it is installed, sorts by itself. A round runs every side for so many
seconds. Writes run.json and report.md.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import openalbert
from openalbert import atomic_io
from openalbert.interop.huggingface import find_folder

BATCH = 64
SHORTEST, MEDIAN, SPREAD, LONGEST = 8, 30, 0.8, 256  # tokens; the spread is that of the logarithm
Embed = Callable[[list[str]], np.ndarray]


def draw_texts(tokenizer: Any, number: int, seed: int = 0) -> list[str]:
    """Texts of random whole words, each about as many tokens as drawn for it."""
    dice = random.Random(seed)
    pieces = [
        tokenizer.processor.id_to_piece(piece) for piece in range(tokenizer.vocab_size // 30, tokenizer.vocab_size)
    ]
    words = [piece[1:] for piece in pieces if piece.startswith("▁") and piece[1:].isalpha()]
    lengths = [min(LONGEST, max(SHORTEST, round(MEDIAN * dice.lognormvariate(0, SPREAD)))) for _ in range(number)]
    return [" ".join(dice.choices(words, k=length - 2)) for length in lengths]


def open_ours(model: str, device: torch.device) -> Embed:
    predictor = openalbert.load(model).to(device.type)
    return lambda texts: predictor.embed(texts, pooling="mean", layer=predictor.config.num_layers)


def open_transformers(model: str, device: torch.device, *, is_sorted: bool = False) -> Embed:
    from transformers import AutoModel, AutoTokenizer

    folder = find_folder(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    network = AutoModel.from_pretrained(folder, dtype=dtype).to(device).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number])) if is_sorted else range(len(texts))
        found = np.empty((len(texts), network.config.hidden_size), np.float32)
        for start in range(0, len(texts), BATCH):
            chosen = list(order[start : start + BATCH])
            inputs = tokenizer([texts[number] for number in chosen], padding=True, truncation=True, return_tensors="pt")
            inputs = inputs.to(device)
            states = network(**inputs).last_hidden_state.float()
            weights = inputs["attention_mask"][..., None].float()
            pooled = (states * weights).sum(1) / weights.sum(1)
            found[chosen] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return found

    return embed


def open_sentence_transformers(model: str, device: torch.device) -> Embed:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(find_folder(model)))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    encoder = SentenceTransformer(modules=[transformer, pooling], device=str(device))
    if device.type == "cuda":
        encoder = encoder.to(torch.bfloat16)

    def embed(texts: list[str]) -> np.ndarray:
        found = encoder.encode(
            texts, batch_size=BATCH, normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False
        )
        return found.float().cpu().numpy()

    return embed


SIDES: dict[str, Callable[[str, torch.device], Embed]] = {
    "openalbert": open_ours,
    "transformers": open_transformers,
    "transformers, sorted": lambda model, device: open_transformers(model, device, is_sorted=True),
    "sentence-transformers": open_sentence_transformers,
}


def embeddings_per_second(embed: Embed, texts: list[str], seconds: float, device: torch.device) -> float:
    """The rate over as many whole passes as the seconds hold, at least one."""
    done, started = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - started < seconds:
        embed(texts)
        done += len(texts)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - started)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = openalbert.load(given.model).tokenizer
    texts = draw_texts(tokenizer, given.texts)
    sides: dict[str, Embed] = {}
    for name, opened in SIDES.items():
        try:
            sides[name] = opened(given.model, device)
        except ImportError as error:
            print(f"{name}: left out ({error})", flush=True)
    expected = sides["transformers"](texts[:BATCH])
    cosines = {name: float((embed(texts[:BATCH]) * expected).sum(1).min()) for name, embed in sides.items()}
    for embed in sides.values():
        embed(texts)  # the first pass compiles, allocates, and chooses kernels
    lengths = [len(ids) + 2 for ids in map(tokenizer.encode, texts)]
    rates: dict[str, list[float]] = {name: [] for name in sides}
    found = {
        "model": given.model,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "precision": "bf16" if device.type == "cuda" else "fp32",
        "torch": torch.__version__,
        "texts": len(texts),
        "tokens": {"mean": statistics.mean(lengths), "median": statistics.median(lengths), "longest": max(lengths)},
        "seconds": given.seconds,
        "rates": rates,
        "lowest_cosine_with_transformers": cosines,
    }
    for number in range(given.rounds):
        for name, embed in sides.items():
            rates[name].append(embeddings_per_second(embed, texts, given.seconds, device))
            print(f"round {number + 1}: {name} {rates[name][-1]:,.0f} embeddings/s", flush=True)
        write(found, given.out)  # after each round, should the next one not come to its end
    return found


def write(found: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    atomic_io.write_text(out / "run.json", json.dumps(found, indent=1) + "\n")
    atomic_io.write_text(out / "report.md", report(found))


def report(found: dict[str, Any]) -> str:
    """report.md."""
    rates, base = found["rates"], found["rates"]["transformers"]
    rows = []
    for name, values in rates.items():
        ratios = [value / of_base for value, of_base in zip(values, base, strict=True)]
        rows.append(
            f"| {name} | {statistics.median(values):,.0f} | {statistics.median(ratios):.2f}x | {min(ratios):.2f} to "
            f"{max(ratios):.2f} | {found['lowest_cosine_with_transformers'][name]:.4f} |"
        )
    tokens = found["tokens"]
    return "\n".join(
        [
            f"# Embeddings a second ({found['device']})",
            "",
            "## Result",
            "",
            "| | embeddings/s | times transformers | range | lowest cosine with transformers |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "From texts to normalized means of the last layer, tokenizing included.",
            "",
            "## Setup",
            "",
            f"`python bench/embedding_speed.py {found['model']}`: {found['texts']:,} texts of random words, "
            f"{tokens['mean']:.0f} tokens on average, median {tokens['median']:.0f}, at most {tokens['longest']}; "
            f"{len(base)} rounds, every side {found['seconds']:g} s in each. {found['precision']}, torch "
            f"{found['torch']}, {found['threads']} threads. Peers compute batches of {BATCH}.",
            "",
            "## Limits",
            "",
            "One machine, one distribution of lengths. All sides run in one process, in turn.",
            *found.get("notes", []),
            "",
        ]
    )


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(words)
    print(report(measure(given)))


if __name__ == "__main__":
    main()
