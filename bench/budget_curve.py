"""Accuracy against minutes of training, of one run or of several side by side, as a picture: on held-out text, or with
`--of train` on the batches as they came, of which there are more points.

The depths that are marked are those of the first run that grows.

python bench/budget_curve.py RUN [RUN …] --names "growing depth" "constant depth" --out curve.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CURVES = {"masked_lm_accuracy": "masked words", "sentence_order_accuracy": "sentence order (chance 50 %)"}


def read(folder: Path, kind: str) -> tuple[list[float], list[dict[str, Any]], list[tuple[float, int]]]:
    """The minutes of each evaluation or window of training, what it found, and when which depth began."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    evaluated = [line for line in lines if line["kind"] == kind]
    steps = [line["step"] for line in trained]
    minutes = [line["seconds"] / 60 for line in trained]
    at = np.interp([line["step"] for line in evaluated], steps, minutes).tolist()
    depths = [(0.0, trained[0]["depth"])]
    for before, line, minute in zip(trained, trained[1:], minutes, strict=False):
        if line["depth"] != before["depth"]:
            depths.append((minute, line["depth"]))
    return at, evaluated, depths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--names", nargs="+", default=None)
    parser.add_argument("--of", choices=("evaluation", "train"), default="evaluation")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    names = arguments.names or [run.name for run in arguments.runs]
    figure, axes = plt.subplots(figsize=(7, 3.6))
    is_marked = False
    for run, name, dashes in zip(arguments.runs, names, ("-", "--", ":"), strict=False):
        minutes, evaluated, depths = read(run, arguments.of)
        for (key, label), colour in zip(CURVES.items(), ("C0", "C1"), strict=True):
            shares = [100 * line[key] for line in evaluated]
            suffix = f", {name}" if len(arguments.runs) > 1 else ""
            marker = "o" if len(minutes) < 30 else ""
            axes.plot(minutes, shares, dashes, color=colour, marker=marker, markersize=3, label=f"{label}{suffix}")
        for number, (begin, depth) in enumerate(depths if len(depths) > 1 and not is_marked else []):
            is_marked = True
            axes.axvline(begin, color="0.75", linewidth=0.8, zorder=0)
            words = f"{depth} layers" if number == 0 else str(depth)  # there may be little room for each
            axes.text(begin + 0.01 * minutes[-1], 81, words, color="0.45", fontsize=8)
    text = "held-out" if arguments.of == "evaluation" else "in training"
    axes.set(xlabel="minutes of training", ylabel=f"{text}, % right", ylim=(0, 86))
    axes.set_xlim(left=0)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
