"""The table of all models that `bench/pretrain.py` has measured, with the paper's speed-up column beside ours.

    python bench/pretrain_report.py [FOLDER]

What is to be said of one run alone stands in FOLDER/note.md, and is added.
"""

import argparse
import json
from pathlib import Path
from textwrap import fill
from typing import Any

from openalbert.errors import UserError
from openalbert.model.presets import PAPER

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "ours": "openalbert",
    "ours-one-batch": "openalbert, one batch again and again",
    "eager": "transformers, eager",
    "compiled": "transformers, compiled",
}


def models_of(folder: Path) -> dict[str, dict[str, Any]]:
    """What was measured of every model: those of the paper in its order, then all others."""
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    if not files:
        raise UserError(
            f"{folder} has no MODEL.json to make a table of: `python bench/pretrain.py MODEL:BATCH … --out {folder}` "
            "writes them"
        )
    found: dict[str, dict[str, Any]] = {}
    for name in [*(name for name in PAPER if name in files), *(name for name in files if name not in PAPER)]:
        try:
            found[name] = json.loads(files[name].read_text())
            for needed in ("runs", "step_flops", "arguments"):
                found[name][needed]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{files[name]} is no file of bench/pretrain.py: take it out of the folder") from None
    if len({of_model["matmul_peak_tflops"] for of_model in found.values()}) > 1:
        raise UserError(
            f"{folder}: these models are not of one run, so that their shares are of different peaks: measure all of "
            "them in one"
        )
    return found


def report(folder: Path) -> str:
    """The table of all models that were measured."""
    found = models_of(folder)
    lines = []
    for name, of_model in found.items():
        rate = _our_rate(of_model)
        for kind, what in KINDS.items():
            if kind in of_model["runs"]:
                cells = _cells(of_model["runs"][kind], None if kind == "ours" else rate)
                lines.append(f"| {name} | {of_model['batch']} | {what} | {cells} |")
    text = f"""# The pretraining step beside transformers', on one {next(iter(found.values()))["device"]}

{fill(_head(list(found.values())), 120, break_long_words=False, break_on_hyphens=False)}

| model | batch | implementation | k tokens/s | share of matmul | step | first step | peak memory | ours is |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    if "bert-large" in found:
        text += f"""
The paper's speed-up column is that of a pod of TPUs, where gradients have to be sent around. On one GPU sharing
parameters saves no FLOPs.

| model | paper's speed-up over BERT-large | by FLOPs | ours, measured |
|---|---|---|---|
{chr(10).join(_speedup(name, of_model, found["bert-large"]) for name, of_model in found.items())}
"""
    if (folder / "note.md").exists():
        text += "\n" + (folder / "note.md").read_text()
    return text


def _head(found: list[dict[str, Any]]) -> str:
    """What was measured, how, and with which versions, as far as the files say."""
    one = found[0]
    runs = [run for of_model in found for run in of_model["runs"].values() if "seconds" in run]
    about = [f"torch {one['torch']}"]
    about += [
        f"{name} {one[key]}" for name, key in (("transformers", "transformers"), ("cuDNN", "cudnn")) if key in one
    ]
    if "commit" in one:
        changed = ", with changes" if one.get("is_changed_since") else ""
        about.append(f"commit {one['commit'][:7]}{changed}")
    asked = f" --compile {one['compile']}" if "compile" in one else ""
    came_to = sorted({run["compiled"] for run in runs if "compiled" in run} - {one.get("compile")})
    command = f"`python bench/pretrain.py MODEL:BATCH …{asked}`" + (
        f" (came to {', '.join(came_to)})" if came_to else ""
    )
    lasted = f"; at least {min(run['seconds'] for run in runs):.0f} s of steps each" if runs else ""
    told = (
        f"{command}, one run, {', '.join(about)}. Length {one['length']}, bf16, no dropout, random tokens, rows "
        f"without padding{lasted}. Ours is the whole step of `openalbert pretrain`: batches made from shards, pairing, "
        "n-gram masking, LAMB, the checks of every step. Theirs is forward, backward and a fused AdamW on one batch "
        "that lies ready. "
    )
    if runs:
        peaks = sorted(run["matmul_peak_tflops"] for run in runs)
        told += (
            "Share: FLOPs of the model by one formula for all over the rate of a large bf16 matrix product, the "
            f"highest that was measured beside any of them, {peaks[-1]:.0f} TFLOP/s (the lowest was {peaks[0]:.0f}). "
        )
    if ahead := one["arguments"]["ahead"]:
        return told + (
            f"Times of a step are medians. While one took its first step and was timed, up to {ahead} others got "
            "ready: their models and inputs lay on the same GPU, and they compiled on the CPU's cores."
        )
    return told + "Times of a step are medians. Nothing else was prepared while one was measured."


def _our_rate(of_model: dict[str, Any]) -> float | None:
    """Tokens a second of our step, if it was measured and fitted."""
    rate: float | None = of_model["runs"].get("ours", {}).get("tokens_per_second")
    return rate


def _cells(run: dict[str, Any], our_rate: float | None) -> str:
    if "out_of_memory" in run:
        return "out of memory | | | | | "
    cells = (
        f"{run['tokens_per_second'] / 1000:.1f}",
        f"{100 * run['share_of_peak']:.1f} %",
        f"{run['median_ms']:.1f} ms",
        f"{run['first_step_seconds']:.0f} s",
        f"{run['peak_gib']:.1f} GiB",
        f"{our_rate / run['tokens_per_second']:.2f}x as fast" if our_rate else "",
    )
    return " | ".join(cells)


def _speedup(name: str, of_model: dict[str, Any], reference: dict[str, Any]) -> str:
    of_paper = PAPER[name].speedup if name in PAPER else ""
    flops = reference["step_flops"] / reference["batch"] / (of_model["step_flops"] / of_model["batch"])
    rate, slow_rate = _our_rate(of_model), _our_rate(reference)
    measured = f"{rate / slow_rate:.2f}x" if rate and slow_rate else ""
    return f"| {name} | {of_paper} | {flops:.2f}x | {measured} |"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "results" / "speed-h200")
    folder = parser.parse_args(words).folder
    try:
        text = report(folder)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    (folder / "report.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
