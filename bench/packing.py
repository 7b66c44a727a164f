"""Padded against packed batches of mixed lengths: the same tokens through the same model, one after the other.

    python bench/packing.py [--preset albert-base] [--threads 2]

Prints a table and writes results/packing/.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import openalbert

LENGTHS = {
    "16 sentences of 8 to 60 tokens": [8, 60, 23, 41, 15, 33, 52, 19, 28, 11, 47, 36, 9, 25, 57, 30],
    "8 texts of 30 to 256 tokens": [256, 30, 97, 180, 64, 41, 130, 215],
    "one long among short": [384, 12, 18, 25, 9, 31, 14, 20],
    "all of one length": [64] * 8,
}
TURNS = 7
DEPTH = 3  # layers are all alike: three are enough


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="albert-base")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = openalbert.load(arguments.preset).module
    rows = []
    for name, lengths in LENGTHS.items():
        ids = torch.randint(5, model.config.vocab_size, (len(lengths), max(lengths)))
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        packed_ids = ids[mask]

        def forward(ids: torch.Tensor = ids, mask: torch.Tensor = mask) -> None:
            with torch.no_grad():
                model.encode(ids, mask=mask, depth=DEPTH)

        def forward_packed(ids: torch.Tensor = packed_ids, lengths: list[int] = lengths) -> None:
            with torch.no_grad():
                model.encode_packed(ids, lengths, depth=DEPTH)

        def train(ids: torch.Tensor = ids, mask: torch.Tensor = mask) -> None:
            model.encode(ids, mask=mask, depth=DEPTH).hidden[mask].square().mean().backward()

        def train_packed(ids: torch.Tensor = packed_ids, lengths: list[int] = lengths) -> None:
            model.encode_packed(ids, lengths, depth=DEPTH).hidden.square().mean().backward()

        for job, padded, packed in (
            ("forward", forward, forward_packed),
            ("forward and backward", train, train_packed),
        ):
            padded(), packed()
            pairs = [(seconds(padded), seconds(packed)) for _ in range(TURNS)]
            ratios = [left / right for left, right in pairs]
            rows.append(
                {
                    "lengths": name,
                    "job": job,
                    "padded_ms": 1000 * statistics.median(left for left, _ in pairs),
                    "packed_ms": 1000 * statistics.median(right for _, right in pairs),
                    "ratio": statistics.median(ratios),
                    "lowest": min(ratios),
                    "highest": max(ratios),
                    "padding": 1 - sum(lengths) / mask.numel(),
                }
            )
            print(rows[-1])
    folder = Path(__file__).parents[1] / "results" / "packing"
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {arguments.threads} threads, torch {torch.__version__}"
    run = {
        "script": "bench/packing.py",
        "preset": arguments.preset,
        "machine": machine,
        "turns": TURNS,
        "depth": DEPTH,
        "rows": rows,
    }
    (folder / "run.json").write_text(json.dumps(run, indent=2) + "\n")
    (folder / "report.md").write_text(report(run))


def report(run: dict[str, Any]) -> str:
    """The report that run.json makes."""
    lines = [
        "# Packed batches compared with padded ones on a CPU",
        "",
        "## Result",
        "",
        "| lengths | padding, % | job | padded, ms | packed, ms | speed-up, median | lowest | highest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in run["rows"]:
        times = f"{row['padded_ms']:.0f} | {row['packed_ms']:.0f}"
        faster = f"{row['ratio']:.2f}x | {row['lowest']:.2f}x | {row['highest']:.2f}x"
        lines.append(f"| {row['lengths']} | {100 * row['padding']:.0f} | {row['job']} | {times} | {faster} |")
    lines += [
        "",
        "## Setup",
        "",
        f"`python bench/packing.py`: {run['preset']} at depth {run['depth']}, fp32, {run['machine']}; medians of "
        f"{run['turns']} turns, one form after the other; the speed-up is taken turn by turn.",
        "",
        "## Limits",
        "",
        "Random tokens in sequences of fixed lengths, on one machine.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
