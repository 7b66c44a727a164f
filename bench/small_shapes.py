"""Shapes for a small ALBERT: size, FLOPs and CPU latency of each candidate compared with albert-base.

    python bench/small_shapes.py [--turns 6] [--clock processor] [--out results/small-shapes]

Latency does not depend on the weights, so they are drawn at random. All models take turns, a batch each, and each turn
gives a ratio to albert-base in the same turn. On a busy machine wall time with two threads says little, since a short
computation is more likely to be undisturbed: `--clock processor` counts the processor time of one thread instead.
Writes run.json and report.md. Which shape learns most is a question for a GPU: `python bench/checkpoints_h200.py
shapes`.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from openalbert.formatting import counted
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Sharing
from openalbert.model.cost import forward_flops_per_token, parameters_by_component
from openalbert.model.presets import PRESETS

LENGTH = 128
BATCHES = {1: 5, 16: 1}
"""Sequences, and how many times as many turns as were asked for: short ones vary more."""
LEAST_RATIO = 7.5  # FLOPs of albert-base, at least so many times those of a candidate
MOST_MEGABYTES = 13.0  # in bf16
SMALL = PRESETS["albert-small"]
CANDIDATES: dict[str, AlbertConfig] = {
    "6 x 384": SMALL,
    "6 x 384, 2 groups": replace(SMALL, embedding_size=80, sharing=Sharing(2, 2)),
    "12 x 256, 3 groups": replace(
        SMALL, num_layers=12, hidden_size=256, ffn_size=1024, num_heads=4, sharing=Sharing(3, 3)
    ),
    "4 x 448": replace(SMALL, num_layers=4, hidden_size=448, ffn_size=1792, num_heads=7, embedding_size=112),
}
BASE = "albert-base"
BUSY = {
    "wall": "Other work at the same time distorts the ratios; the ranges show how much.",
    "processor": "The machine had other work at the same time, so this is processor time of one thread, not latency.",
}


def gigaflops(config: AlbertConfig) -> float:
    """Forward pass of the encoder on one input."""
    return LENGTH * forward_flops_per_token(config, LENGTH, 0.0) / 1e9


def megabytes(config: AlbertConfig) -> float:
    """Size of the weights in bf16."""
    return 2 * sum(parameters_by_component(config).values()) / 1e6


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def measure(
    models: dict[str, AlbertModel], turns: int, clock: Callable[[], float]
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each model at each batch size, turn by turn."""

    def seconds(model: AlbertModel, ids: torch.Tensor) -> float:
        started = clock()
        with torch.inference_mode():
            model.encode(ids)
        return clock() - started

    times: dict[str, dict[str, list[float]]] = {}
    for batch, times_more in BATCHES.items():
        ids = torch.randint(5, 30_000, (batch, LENGTH))
        for model in models.values():
            seconds(model, ids)
        taken: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(turns * times_more):
            for name, model in models.items():
                taken[name].append(seconds(model, ids))
        times[str(batch)] = taken
    return times


def ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """How many times as fast as albert-base, in each turn, rising."""
    return sorted(base / own for base, own in zip(times[BASE], times[name], strict=True))


def report(run: dict[str, Any]) -> str:
    head = ["shape", "E", "parameters, M", "bf16, MB", "GFLOP at 1 x 128", "FLOPs, base / shape"]
    head += [f"{kind} at {batch} x {LENGTH}" for batch in run["times"] for kind in ("fastest", "median", "range")]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, shape in run["shapes"].items():
        found = [ratios(times, name) for times in run["times"].values()]
        cells = [name, shape["embedding_size"], f"{shape['parameters'] / 1e6:.2f}", f"{shape['megabytes']:.1f}"]
        cells += [f"{shape['gigaflops']:.2f}", f"{run['shapes'][BASE]['gigaflops'] / shape['gigaflops']:.2f}"]
        for times, ratio in zip(run["times"].values(), found, strict=True):
            cells += [f"{min(times[BASE]) / min(times[name]):.1f}x", f"{statistics.median(ratio):.1f}x"]
            cells += [f"{ratio[0]:.1f} to {ratio[-1]:.1f}x"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return f"""# Shapes for a small ALBERT

## Result

Candidates for a small model: at least {LEAST_RATIO:g} times fewer FLOPs than albert-base at length {LENGTH}, and at
most {MOST_MEGABYTES:g} MB in bf16, with a vocabulary of 30,000 pieces. "x" is layers times width; "groups" are distinct
layers, each used for consecutive ones (1 where nothing is said).

{chr(10).join(lines)}

The last columns are how many times as fast as albert-base, by {run["clock"]} time: the ratio of the fastest turns, and
median and range over the turns of the ratio within a turn.

## Setup

`python bench/small_shapes.py --turns {run["turns"]} --clock {run["clock"]}`. openalbert's encoder with random weights,
without heads; torch {run["torch"]}, fp32, {counted(run["threads"], "thread")}, {run["machine"]}. All models take turns,
a batch each: {run["turns"] * BATCHES[1]} at 1 x {LENGTH}, {run["turns"] * BATCHES[16]} at 16 x {LENGTH}.

## Limits

- Speed only. Which shape learns most in equal time on a GPU is not measured here.
- {BUSY[run["clock"]]}
- fp32 in torch. In int8, or in ONNX Runtime, the ratios differ.
"""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--out", type=Path, default=Path("results/small-shapes"))
    given = parser.parse_args(words)
    threads = 1 if given.clock == "processor" else 2
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shapes = {BASE: PRESETS[BASE], **CANDIDATES}
    models = {name: AlbertModel(config).eval() for name, config in shapes.items()}
    times = measure(models, given.turns, CLOCKS[given.clock])
    run = {
        "turns": given.turns,
        "clock": given.clock,
        "threads": threads,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "shapes": {
            name: {
                "layers": config.num_layers,
                "hidden_size": config.hidden_size,
                "embedding_size": config.embedding_size,
                "groups": config.sharing.attention,
                "parameters": sum(parameters_by_component(config).values()),
                "megabytes": megabytes(config),
                "gigaflops": gigaflops(config),
            }
            for name, config in shapes.items()
        },
        "times": times,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    (given.out / "report.md").write_text(report(run))
    print(report(run))


if __name__ == "__main__":
    main()
