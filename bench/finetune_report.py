"""The tables of `bench/finetune.py`: examples a second, and dev scores."""

import json
import statistics
from pathlib import Path
from typing import Any

from openalbert.model.presets import preset


def write(folder: Path, found: dict[str, Any]) -> None:
    """What has been measured so far: whoever stops the bench keeps that much, and what was measured before it."""
    lines = []
    if "speed" in found:
        lines += speed_table(found["speed"])
    if "scores" in found:
        lines += score_table(found["scores"])
    device = (found.get("speed") or found["scores"])["settings"]["device"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"script": "bench/finetune.py", **found}, indent=2) + "\n")
    if (folder / "note.md").exists():  # what is to be said of one run alone
        lines += ["", (folder / "note.md").read_text().rstrip()]
    title = f"# Fine-tuning beside the Hugging Face Trainer ({device})"
    (folder / "report.md").write_text("\n".join([title, "", "Made by `bench/finetune.py`.", *lines]) + "\n")


def speed_table(found: dict[str, Any]) -> list[str]:
    """Examples a second."""
    settings = found["settings"]
    layers = settings["layers"] or preset(settings["preset"]).num_layers
    lines = [
        "",
        f"{settings['preset']}, {layers} layers, batch {settings['batch']}; {found['machine']}; {found['peer']}. "
        f"Medians of {settings['turns']} turns of {settings['seconds']:g} s each, one side after the other.",
        "",
        "| examples like those of | padding there | ours | examples/s | Trainer, examples/s | ours is faster by |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        for side, ratios in row["ratios"].items():
            name = "packed" if side == "ours" else "packed, without CUDA graphs"
            figures = f"{row[side]:.1f} | {row['theirs']:.1f}"
            faster = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"| {row['shape']} | {row['padding']:.0%} | {name} | {figures} | {faster} |")
    return lines


def score_table(found: dict[str, Any]) -> list[str]:
    """The dev scores of both sides."""
    settings, rows = found["settings"], found["rows"]
    lines = [
        "",
        f"Dev score on {settings['score_task']} after {settings['score_steps']} steps at {settings['score_rate']:g} "
        f"from the same weights (a model of {rows[0]['model']}), both scored by the same code; {found['machine']}; "
        f"{found['peer']}.",
        "",
        "| seed | ours | Trainer |",
        "|---|---|---|",
    ]
    lines += [f"| {row['seed']} | {row['ours']:.2f} | {row['theirs']:.2f} |" for row in rows]
    for name, measure in (("mean", statistics.mean), ("spread", statistics.stdev)):
        if len(rows) > 1:
            of_both = [measure([row[side] for row in rows]) for side in ("ours", "theirs")]
            lines.append(f"| {name} | {of_both[0]:.2f} | {of_both[1]:.2f} |")
    return lines
