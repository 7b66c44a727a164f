"""Accuracy against minutes of training as a picture: of one run, of several side by side, or with `--in-turn` of runs
that were initialized from each other's weights, each starting where the one before it ended. On held-out text, or with
`--of train` on the training batches, of which there are more points.

The depths that are marked are those of the first run that grows.

python bench/budget_curve.py RUN [RUN …] --names "growing depth" "constant depth" --out curve.png
python bench/budget_curve.py FIRST NEXT --names 128 512 --in-turn --out curve.png
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CURVES = {"mlm_acc": "MLM accuracy", "sop_acc": "SOP accuracy (chance 50 %)"}
TOP, MARKS, NAMES = 98, 87, 93  # percent: where the picture ends, and where depths and runs in turn are written


class Curve(NamedTuple):
    """What a run was found to know, and when."""

    at: list[float]
    """The minute of each evaluation, or window of training."""
    found: list[dict[str, Any]]
    depths: list[tuple[float, int]]
    """The minute in which each depth began."""
    minutes: float


def read(folder: Path, kind: str) -> Curve:
    """The curve of one run, of its evaluations or of its windows of training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    found = [line for line in lines if line["kind"] == kind]
    steps = [line["step"] for line in trained]
    minutes = [line["seconds"] / 60 for line in trained]
    at = np.interp([line["step"] for line in found], steps, minutes).tolist()
    depths = [(0.0, trained[0]["depth"])]
    for before, line, minute in zip(trained, trained[1:], minutes, strict=False):
        if line["depth"] != before["depth"]:
            depths.append((minute, line["depth"]))
    return Curve(at, found, depths, minutes[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--names", nargs="+", default=None)
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--of", choices=("evaluation", "train"), default="evaluation")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    names = arguments.names or [run.name for run in arguments.runs]
    if len(names) != len(arguments.runs):
        parser.error(f"{len(arguments.runs)} runs, but {len(names)} names")
    curves = [read(run, arguments.of) for run in arguments.runs]
    lengths = [curve.minutes if arguments.in_turn else 0.0 for curve in curves]
    begins = np.cumsum([0.0, *lengths[:-1]]).tolist()
    end = max(begin + curve.minutes for begin, curve in zip(begins, curves, strict=True))
    grows = next((number for number, curve in enumerate(curves) if len(curve.depths) > 1), None)
    figure, axes = plt.subplots(figsize=(7, 3.6))

    def mark(minute: float, height: float, words: str) -> None:
        axes.axvline(minute, color="0.75", linewidth=0.8, zorder=0)
        axes.text(minute + 0.008 * end, height, words, color="0.45", fontsize=8)

    for number, (curve, name, begin) in enumerate(zip(curves, names, begins, strict=True)):
        for (key, label), colour in zip(CURVES.items(), ("C0", "C1"), strict=True):
            axes.plot(
                [begin + minute for minute in curve.at],
                # A record whose steps were all skipped has no accuracy: the line has a gap there.
                [100 * line.get(key, math.nan) for line in curve.found],
                linestyle="-" if arguments.in_turn else ("-", "--", ":")[number % 3],
                color=colour,
                marker="o" if len(curve.at) < 30 else "",
                markersize=3,
                label=_label(label, name, number, len(curves), arguments.in_turn),
            )
        if arguments.in_turn:
            mark(begin, NAMES, name)
        if number == grows:
            for place, (minute, depth) in enumerate(curve.depths):
                # There may be little room for each: only the first says of what.
                mark(begin + minute, MARKS, str(depth) if place else f"{depth} layers")
    text = "held-out" if arguments.of == "evaluation" else "training"
    axes.set(xlabel="minutes of training", ylabel=f"{text} accuracy, %", ylim=(0, TOP))
    axes.set_xlim(left=0)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=110)
    plt.close(figure)


def _label(what: str, name: str, number: int, count: int, in_turn: bool) -> str | None:
    """One legend entry per metric, and per run where the position does not show it."""
    if in_turn:
        return what if number == 0 else None
    return what if count == 1 else f"{what}, {name}"


if __name__ == "__main__":
    main()
