"""The fault campaign, `make faults`: runs under fire, counted; writes results/faults/."""

import argparse
import json
import platform
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from tests.faults import mishaps
from tests.faults.under_fire import (
    CASES,
    MOMENTS,
    ONE_BY_STEPS,
    Attempt,
    Case,
    Kill,
    differences,
    disturbed,
    made_shards,
    undisturbed,
)

RESULTS = Path(__file__).resolve().parents[2] / "results" / "faults"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcome = campaign(Path(folder), asked.kills, asked.flips, random.Random(asked.seed))
    outcome = {
        "settings": {"kills": asked.kills, "flips": asked.flips, "seed": asked.seed},
        "machine": {"python": platform.python_version(), "torch": torch.__version__, "system": platform.platform()},
        "minutes": round((time.monotonic() - started) / 60, 1),
        **outcome,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "run.json").write_text(json.dumps(outcome, indent=1) + "\n")
    text = report(outcome)
    (asked.out / "report.md").write_text(text)
    print(text)
    if not outcome["all_is_well"]:
        raise SystemExit(1)


def campaign(folder: Path, wanted: int, flips: int, dice: random.Random) -> dict[str, Any]:
    """Every case in turn, killed a few times at moments drawn at random, until there were so many kills."""
    shards = made_shards(folder)
    references = {case: undisturbed(case, shards, folder / f"undisturbed-{i}") for i, case in enumerate(CASES)}
    kills: list[Kill] = []
    runs: list[dict[str, Any]] = []
    while len(kills) < wanted:
        case = CASES[len(runs) % len(CASES)]
        moments = dice.sample(MOMENTS[:-1], 4) + [MOMENTS[-1]] * dice.randrange(2)
        out = folder / f"run-{len(runs)}"
        found = disturbed(case, shards, out, moments[: wanted - len(kills)], dice)
        wrong = differences(references[case], out)
        kills += found
        runs.append({"case": case.name, "kills": [asdict(kill) for kill in found], "differences": wrong})
        words = "the same bits" if not wrong else f"DIFFERENT: {wrong[0]}"
        print(
            f"{len(kills):3d} of {wanted} kills; {case.name}, killed at {[k.moment for k in found]}: {words}",
            flush=True,
        )
    others = other_faults(folder, shards, references, flips, dice)
    is_well = not any(run["differences"] for run in runs) and all(others.values()) and others["flips found"] == flips
    return {"kills": len(kills), "runs": runs, "others": others, "flips": flips, "all_is_well": is_well}


def other_faults(
    folder: Path, shards: Path, references: dict[Case, Path], flips: int, dice: random.Random
) -> dict[str, Any]:
    """Signals, a damaged checkpoint, a full disk, flipped bytes."""
    case, out = ONE_BY_STEPS, folder / "stopped"
    found: dict[str, Any] = {}
    code, _ = mishaps.stop(case, shards, out, signal.SIGTERM, records=2)
    found["SIGTERM: a checkpoint, exit code 143"] = code == 143
    code, _ = mishaps.stop(case, shards, out, signal.SIGINT, records=2)
    found["SIGINT: a checkpoint, exit code 130"] = code == 130
    mishaps.flip_a_byte(dice.choice(sorted(mishaps.newest(out).folder.iterdir())), dice)
    again = Attempt(case, shards, out)
    ended = again.finish() == 0 and "damaged and passed over" in again.words()
    found["the newest checkpoint damaged: the one before used, the same bits"] = (
        ended and differences(references[case], out) == []
    )
    disk = folder / "disk"
    if mishaps.mount_small_disk(disk):
        try:
            words = mishaps.fill_the_disk(case, shards, disk / "run")
            same = differences(references[case], disk / "run") == []
            found["the disk full in mid-run: reported, and with more room the same bits"] = (
                "make room" in words and same
            )
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    found["flips found"] = mishaps.count_found_flips(references[case], flips, dice)
    return found


def report(outcome: dict[str, Any]) -> str:
    """The counts for a reader."""
    runs, others = outcome["runs"], outcome["others"]
    kills = [kill for run in runs for kill in run["kills"]]
    sound = sum(not run["differences"] for run in runs)
    lines = [
        "# Runs that were killed and resumed",
        "",
        "## Result",
        "",
        _fill(
            f"{outcome['kills']} times `kill -9`, in {len(runs)} runs with dropout, resumed after every kill: "
            f"**{sound} of {len(runs)} runs ended with weights, optimizer state and metrics (times aside) "
            "bit-identical** to the undisturbed run."
        ),
        "",
        "| runs | number | kills | kills of one process alone | bit-identical runs |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        own = [run for run in runs if run["case"] == case.name]
        hits = [kill for run in own for kill in run["kills"]]
        alone = sum(kill["of"] == "one" for kill in hits)
        same = sum(not run["differences"] for run in own)
        lines.append(f"| {case.name} | {len(own)} | {len(hits)} | {alone} | {same} |")
    asked, hit = Counter(kill["moment"] for kill in kills), Counter(k["moment"] for k in kills if k["in_middle"])
    lines += ["", "| moment of the kill | kills | seen to be in its middle by the files left |", "|---|---|---|"]
    for moment in MOMENTS:
        seen = "-" if moment in ("start", "step") else str(hit[moment])
        lines.append(f"| {moment} | {asked[moment]} | {seen} |")
    lines += ["", "| other faults | |", "|---|---|"]
    for what, well in others.items():
        lines.append(f"| {what} | {_word(what, well, outcome)} |")
    machine = outcome["machine"]
    lines += [
        "",
        "## Setup",
        "",
        _fill(
            f"`make faults`, {outcome['minutes']} minutes on CPUs: Python {machine['python']}, torch "
            f"{machine['torch']}. Seed {outcome['settings']['seed']}; every kill, its "
            "moment and the step it came at are in run.json."
        ),
        "",
        "## Limits",
        "",
        _fill(
            "A micro model, seconds a run, on CPUs in fp32, with budgets in steps and in tokens. It shows nothing "
            "about GPUs, where kernels need not give the same bits from run to run, and nothing about a loss of power."
        ),
        "",
    ]
    return "\n".join(lines)


def _fill(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _word(what: str, well: bool | int, outcome: dict[str, Any]) -> str:
    if what == "flips found":
        return f"{well} of {outcome['flips']}"
    return "yes" if well else "NO"


if __name__ == "__main__":
    main()
