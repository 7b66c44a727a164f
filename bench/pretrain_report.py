"""The tables of all models that `bench/pretrain.py` has measured: speed, utilization, and the paper's speed-up column.

    python bench/pretrain_report.py [FOLDER]

Remarks on one run alone stand in FOLDER/note.md, and are appended.
"""

import argparse
import json
from pathlib import Path
from textwrap import fill
from typing import Any

from pretrain_jobs import Job

from openalbert.errors import UserError
from openalbert.model.presets import PAPER

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "ours": "openalbert",
    "ours-one-batch": "openalbert, one batch again and again",
    "eager": "transformers, eager",
    "compiled": "transformers, compiled",
}
UTILIZATION = """Utilization of the highest matmul rate of a large bf16 matrix product that was measured in this run,
{peak:.0f} TFLOP/s. Model FLOPs utilization (MFU) counts the same model FLOPs for all implementations: every layer at
every position, the vocabulary scored at 15 % of the positions. Executed counts the matrix products that an
implementation computes: ours computes the last layer at the masked positions and [CLS] only, so it executes fewer;
transformers scores all positions against the vocabulary, so it executes more."""


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
            f"{folder}: these models are not of one run, so that their MFU is of different matmul rates: measure all "
            "of them in one"
        )
    return found


def report(folder: Path) -> str:
    """The tables of all models that were measured."""
    found = models_of(folder)
    speeds, utilizations = [], []
    for name, of_model in found.items():
        rate = _our_rate(of_model)
        for kind, what in KINDS.items():
            if kind in of_model["runs"]:
                cells = _speed(of_model["runs"][kind], None if kind == "ours" else rate)
                speeds.append(f"| {name} | {of_model['batch']} | {what} | {cells} |")
                if "tokens_per_second" in of_model["runs"][kind]:
                    utilizations.append(f"| {name} | {what} | {_utilization(name, of_model, kind)} |")
    text = f"""# The pretraining step compared with transformers', on one {next(iter(found.values()))["device"]}

## Result

| model | batch | implementation | k tokens/s | step, ms | first step, s | peak memory, GiB | our speed-up |
|---|---|---|---|---|---|---|---|
{chr(10).join(speeds)}
"""
    if utilizations:
        text += f"""
{_fill(UTILIZATION.format(peak=next(iter(found.values()))["matmul_peak_tflops"]))}

| model | implementation | MFU, % | executed / model FLOPs | executed, % |
|---|---|---|---|---|
{chr(10).join(utilizations)}
"""
    if "bert-large" in found:
        text += f"""
The paper's speed-up column is for a TPU pod, where gradients are communicated. On one GPU, sharing parameters saves no
FLOPs.

| model | paper's speed-up over BERT-large | by model FLOPs | ours, measured |
|---|---|---|---|
{chr(10).join(_speedup(name, of_model, found["bert-large"]) for name, of_model in found.items())}
"""
    setup, limits = _setup(list(found.values())), _limits(list(found.values()))
    text += f"\n## Setup\n\n{_fill(setup)}\n\n## Limits\n\n{_fill(limits)}\n"
    if (folder / "note.md").exists():
        text += "\n" + (folder / "note.md").read_text()
    return text


def _fill(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _setup(found: list[dict[str, Any]]) -> str:
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
    return (
        f"{command}, one run, {', '.join(about)}. Length {one['length']}, bf16, no dropout, random tokens, rows "
        f"without padding{lasted}; step times are medians. Ours is the whole step of `openalbert pretrain`: batches "
        "made from shards, pairing, n-gram masking, LAMB, the checks of every step. transformers' is forward pass, "
        "backward pass and a fused AdamW on one prepared batch."
    )


def _limits(found: list[dict[str, Any]]) -> str:
    """What the numbers do not cover."""
    text = "One run. FLOPs are those of matrix products; what attention's kernel computes again in its backward pass "
    text += "is not counted on either side. "
    peaks = sorted(run["matmul_peak_tflops"] for of in found for run in of["runs"].values() if "seconds" in run)
    if peaks:
        text += (
            "The matmul rate was measured for a moment with each implementation and varied from "
            f"{peaks[0]:.0f} to {peaks[-1]:.0f} TFLOP/s; utilization is of the highest. "
        )
    if ahead := found[0]["arguments"]["ahead"]:
        return text + (
            f"While one implementation took its first step and was timed, up to {ahead} others were prepared: their "
            "models and inputs were on the same GPU, and they compiled on the CPU's cores."
        )
    return text + "Nothing else was prepared while one was measured."


def _our_rate(of_model: dict[str, Any]) -> float | None:
    """Tokens a second of our step, if it was measured and fitted."""
    rate: float | None = of_model["runs"].get("ours", {}).get("tokens_per_second")
    return rate


def _speed(run: dict[str, Any], our_rate: float | None) -> str:
    if "out_of_memory" in run:
        return "out of memory | | | | "
    cells = (
        f"{run['tokens_per_second'] / 1000:.1f}",
        f"{run['median_ms']:.1f}",
        f"{run['first_step_seconds']:.0f}",
        f"{run['peak_gib']:.1f}",
        f"{our_rate / run['tokens_per_second']:.2f}x" if our_rate else "",
    )
    return " | ".join(cells)


def _utilization(name: str, of_model: dict[str, Any], kind: str) -> str:
    job = Job(name, of_model["batch"], kind, 0.0)
    mfu = of_model["runs"][kind]["mfu"]
    more = job.executed_flops(of_model["length"]) / of_model["step_flops"]
    return f"{100 * mfu:.1f} | {more:.3f} | {100 * mfu * more:.1f}"


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
