"""The table of all models that `bench/pretrain.py` has measured, with the paper's speed-up column beside ours.

python bench/pretrain_report.py [FOLDER]

What is to be said of one run alone stands in FOLDER/note.md, and is added.
"""

import json
import sys
from pathlib import Path
from typing import Any

from openalbert.model.presets import PAPER

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "ours": "openalbert",
    "ours-one-batch": "openalbert, one batch again and again",
    "eager": "transformers, eager",
    "compiled": "transformers, compiled",
}


def report(folder: Path) -> None:
    """The table of all models that were measured."""
    found = {name: json.loads(path.read_text()) for name in PAPER if (path := folder / f"{name}.json").exists()}
    reference = found.get("bert-large")
    lines = []
    speedups = []
    for name, of_model in found.items():
        runs = of_model["runs"]
        for kind, what in KINDS.items():
            if kind in runs:
                lines.append(f"| {name} | {of_model['batch']} | {what} | {_cells(runs[kind], runs['ours'])} |")
        if reference:
            flops = reference["step_flops"] / reference["batch"] / (of_model["step_flops"] / of_model["batch"])
            rates = [one["runs"]["ours"]["tokens_per_second"] for one in (of_model, reference)]
            speedups.append(f"| {name} | {PAPER[name].speedup} | {flops:.2f}x | {rates[0] / rates[1]:.2f}x |")
    any_run = next(iter(found.values()))
    all_runs = [run for of_model in found.values() for run in of_model["runs"].values() if "seconds" in run]
    peaks = sorted(f"{run['matmul_peak_tflops']:.0f}" for run in all_runs)
    if len({of_model["matmul_peak_tflops"] for of_model in found.values()}) > 1:
        raise SystemExit(f"{folder}: these models are not of one run")
    shortest = min(run["seconds"] for run in all_runs)
    text = f"""# The pretraining step beside transformers', on one {any_run["device"]}

`python bench/pretrain.py MODEL:BATCH …`, one run, torch {any_run["torch"]}. Length {any_run["length"]}, bf16, no
dropout, random tokens, rows without padding; at least {shortest:.0f} s of steps each. Ours is the whole step of
`openalbert pretrain`: batches made from shards, pairing, n-gram masking, LAMB, the checks of every step. Theirs is
forward, backward and a fused AdamW on one batch that lies ready. Share: FLOPs of the model by one formula for all over
the rate of a large bf16 matrix product, the highest that was measured beside any of them, {peaks[-1]} TFLOP/s (the
lowest was {peaks[0]}). Times of a step are medians; first steps were taken while other processes compiled, too.

| model | batch | implementation | k tokens/s | share of matmul | step | first step | peak memory | ours is |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    if speedups:
        text += f"""
The paper's speed-up column is that of a pod of TPUs, where gradients have to be sent around. On one GPU sharing
parameters saves no FLOPs.

| model | paper's speed-up over BERT-large | by FLOPs | ours, measured |
|---|---|---|---|
{chr(10).join(speedups)}
"""
    if (folder / "note.md").exists():
        text += "\n" + (folder / "note.md").read_text()
    (folder / "report.md").write_text(text)
    print(text)


def _cells(run: dict[str, Any], own: dict[str, Any]) -> str:
    if "out_of_memory" in run:
        return "out of memory | | | | | "
    ratio = own["tokens_per_second"] / run["tokens_per_second"]
    cells = (
        f"{run['tokens_per_second'] / 1000:.1f}",
        f"{100 * run['share_of_peak']:.1f} %",
        f"{run['median_ms']:.1f} ms",
        f"{run['first_step_seconds']:.0f} s",
        f"{run['peak_gib']:.1f} GiB",
        "" if run is own else f"{ratio:.2f}x as fast",
    )
    return " | ".join(cells)


if __name__ == "__main__":
    report(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "speed-h200")
