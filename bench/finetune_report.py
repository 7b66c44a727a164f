"""The tables of `bench/finetune.py`: examples a second, and dev scores."""

import json
import statistics
from pathlib import Path
from textwrap import fill
from typing import Any

from openalbert.model.presets import preset


def write(folder: Path, found: dict[str, Any]) -> None:
    """What has been measured so far: whoever stops the bench keeps that much, and what was measured before it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"script": "bench/finetune.py", **found}, indent=2) + "\n")
    (folder / "report.md").write_text(report(folder))


def report(folder: Path) -> str:
    """The report that run.json, and note.md where there is one, make."""
    found = json.loads((folder / "run.json").read_text())
    device = (found.get("speed") or found["scores"])["settings"]["device"]
    lines = [f"# Fine-tuning compared with the Hugging Face Trainer ({device})", "", "## Result"]
    setup = ["Made by `bench/finetune.py`. Both sides have the same model, examples, batch and optimizer; ours packs"]
    setup[0] += " sequences without padding, the Trainer pads each batch to its longest."
    if "speed" in found:
        lines += speed_table(found["speed"])
        setup.append(speed_setup(found["speed"]))
    if "scores" in found:
        lines += score_table(found["scores"])
        setup.append(score_setup(found["scores"]))
    lines += ["", "## Setup", "", *(f"{_fill(text)}\n" for text in setup), "## Limits", "", _fill(limits(found))]
    if (folder / "note.md").exists():  # remarks on one run alone
        lines += ["", (folder / "note.md").read_text().rstrip()]
    return "\n".join(lines) + "\n"


def _fill(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def speed_table(found: dict[str, Any]) -> list[str]:
    """Examples a second, and the ratio of both sides turn by turn."""
    lines = [
        "",
        "| examples like those of | padding, % | ours | ours, examples/s | Trainer, examples/s | speed-up, median "
        "| lowest | highest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        for side, ratios in row["ratios"].items():
            name = "packed" if side == "ours" else "packed, without CUDA graphs"
            rates = f"{row[side]:.1f} | {row['theirs']:.1f}"
            speedup = f"{statistics.median(ratios):.2f}x | {min(ratios):.2f}x | {max(ratios):.2f}x"
            lines.append(f"| {row['shape']} | {100 * row['padding']:.0f} | {name} | {rates} | {speedup} |")
    return lines


def speed_setup(found: dict[str, Any]) -> str:
    """How the speeds were measured."""
    settings = found["settings"]
    layers = settings["layers"] or preset(settings["preset"]).num_layers
    turn = f"{settings['seconds']:g} s of steps"
    if settings.get("steps"):
        turn = f"{settings['steps']} steps on the same examples"
    return (
        f"Speed: {settings['preset']}, {layers} layers, batch {settings['batch']}, random tokens; {found['machine']}; "
        f"{found['peer']}. {settings['turns']} turns, in each of them {turn} of either side, one side after the other. "
        "Rates are medians over the turns; the speed-up is taken turn by turn."
    )


def limits(found: dict[str, Any]) -> str:
    """What the numbers do not cover."""
    text = "Random tokens in sequences as long as those of the task; one machine."
    if "speed" in found and found["speed"]["settings"]["turns"] < 7:
        text += f" The range of {found['speed']['settings']['turns']} turns says little about the spread."
    if "scores" in found:
        text += " Differences of dev scores within the standard deviation over seeds are noise."
    return text


def score_table(found: dict[str, Any]) -> list[str]:
    """The dev scores of both sides."""
    rows = found["rows"]
    lines = [
        "",
        f"Dev score on {found['settings']['score_task']}:",
        "",
        "| seed | ours | Trainer |",
        "|---|---|---|",
    ]
    lines += [f"| {row['seed']} | {row['ours']:.2f} | {row['theirs']:.2f} |" for row in rows]
    for name, measure in (("mean", statistics.mean), ("standard deviation", statistics.stdev)):
        if len(rows) > 1:
            of_both = [measure([row[side] for row in rows]) for side in ("ours", "theirs")]
            lines.append(f"| {name} | {of_both[0]:.2f} | {of_both[1]:.2f} |")
    return lines


def score_setup(found: dict[str, Any]) -> str:
    """How the dev scores came about."""
    settings = found["settings"]
    return (
        f"Dev score: {settings['score_steps']} steps at learning rate {settings['score_rate']:g} from the same weights "
        f"(a model of {found['rows'][0]['model']}), both scored by the same code; {found['machine']}; {found['peer']}."
    )
