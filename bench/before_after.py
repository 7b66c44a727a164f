"""Time and memory of the same commands before and after the packages were rearranged.

    python bench/before_after.py --text corpus/wikipedia.txt

Every command of COMMANDS is a process of its own, run by the code of commit 39b738f and by that of this checkout in
turn, first one and then the other first, in an environment that is the same but for the package. Processor seconds are
user and system time of the process and its children; a ratio is taken turn by turn, after to before. Shards are those
of the code before; the model to fine-tune is pretrained by each side, from the same seed. Writes run.json and report.md
into results/before-after/. The report also has what bench/pretrain.py of either side has measured on a GPU, if its
files lie in gpu/ there.
"""

import argparse
import csv
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from house import BEFORE, ROOT, checked_out

SIDES = ("before", "after")
TEXT_BYTES = 8 << 20
ROWS = 2_000
COMMANDS = {
    "prepare": "prepare text.txt --tokenizer vocabulary --out {out} --workers 1",
    "pretrain, 4 layers of 128": "pretrain albert-micro --data shards --out {out} --steps 300 --batch-size 32 "
    "--objective.max-length 64 --log-every 10 --save-every 100 --speed.threads 2",
    "pretrain, ALBERT-base": "pretrain albert-base --data shards --out {out} --steps 6 --batch-size 16 "
    "--objective.max-length 128 --log-every 2 --save-every 1000 --speed.threads 2",
    "fine-tune, 4 layers of 128": "finetune start-{side} --task classification --train rows.csv --out {out} "
    "--steps 400 --batch-size 16 --patience 1000 --speed.threads 2",
}
ONLY_AFTER = {"fine-tune, 4 layers of 128": " --trainable all --no-baselines"}
"""What keeps the code after to the same work: the code before knew no other weights and no baselines."""
START = (
    "tokenizer train text.txt --out vocabulary --vocab-size 8000",
    "prepare text.txt --tokenizer vocabulary --out shards --workers 1",
)
MODEL = "pretrain albert-micro --data shards --out start-{side} --steps 20 --batch-size 8 --objective.max-length 32"
ABOUT = """## Setup

`python bench/before_after.py` on {machine}: commits {before} and {after}, each command in a process of its own, the two
sides in turn, {turns} turns. Processor seconds are user and system time; the ratio is taken turn by turn, after to
before. run.json has the commands and every turn. On the GPU: `python bench/pretrain.py albert-base:128 --which ours
--seconds 30 --ahead 0` of commits 39b738f and 2a5dd88, whose packages are those that the CPU ran, one process after the
other in the order before-1, after-1, muon-1, before-2; muon-1 is the code after with `--optimizer muon`. NVIDIA H200,
torch 2.11.

## Limits

The package gained features between the two commits; only what both can do is compared. CPU times vary by several
percent between turns. In fine-tuning, evaluations take at most 2,048 tokens together on a CPU since then: 70 calls of
the encoder in place of 10 (by a profile), and less memory. Neither fine-tuning on a GPU nor inference was measured
again. The commits in gpu/ were entered by hand: the folder that was measured was a copy without its repository."""
MEASURES = ("processor_seconds", "wall_seconds", "peak_mb")


def run(tree: Path, command: str, folder: Path) -> dict[str, float]:
    """One command of one checkout; its seconds and its largest memory."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    with (folder / "log.txt").open("w") as log:
        words = [sys.executable, "-m", "openalbert", *shlex.split(command)]
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
        started = os.times().elapsed
        _, status, used = os.wait4(process.pid, 0)
        wall = os.times().elapsed - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{tree}: openalbert {command} failed:\n" + (folder / "log.txt").read_text()[-3000:])
    return {
        "processor_seconds": round(used.ru_utime + used.ru_stime, 2),
        "wall_seconds": round(wall, 2),
        "peak_mb": round(used.ru_maxrss / 1024),
    }


def write_inputs(text: Path, folder: Path) -> None:
    """The beginning of a text, and rows of its lines: the class is whether a line is longer than most."""
    with text.open("rb") as file:
        lines = file.read(TEXT_BYTES).decode("utf-8", errors="ignore").splitlines()[:-1]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    usable = [line for line in lines if 40 <= len(line) <= 400]
    drawn = random.Random(0).sample(usable, ROWS)
    middle = statistics.median(len(line) for line in drawn)
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as rows:
        csv.writer(rows).writerows([("text", "label"), *((line, f"long {len(line) > middle}") for line in drawn)])


def measure(trees: dict[str, Path], folder: Path, turns: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """All commands, in turns."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {side: [] for side in SIDES} for name in COMMANDS}
    for turn in range(turns):
        for name, command in COMMANDS.items():
            for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                out = f"out-{turn}-{side}-{len(found[name][side])}-{list(COMMANDS).index(name)}"
                words = command.format(out=out, side=side) + (ONLY_AFTER.get(name, "") if side == "after" else "")
                found[name][side].append(run(trees[side], words, folder))
                print(f"turn {turn + 1}, {name}, {side}: {found[name][side][-1]}", flush=True)
    return found


def cpu_table(found: dict[str, dict[str, list[dict[str, float]]]]) -> list[str]:
    """A row for each command: medians, and the ratio with its range."""
    lines = [
        "| command | processor s, before | after | ratio | lowest | highest | wall s, ratio | MB, before | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, sides in found.items():
        middle = {
            side: {key: statistics.median(one[key] for one in turns) for key in MEASURES}
            for side, turns in sides.items()
        }
        pairs = list(zip(sides["before"], sides["after"], strict=True))
        processor = [after["processor_seconds"] / before["processor_seconds"] for before, after in pairs]
        wall = statistics.median(after["wall_seconds"] / before["wall_seconds"] for before, after in pairs)
        cells = [f"{middle[side]['processor_seconds']:.1f}" for side in SIDES]
        cells += [f"{value:.2f}" for value in (statistics.median(processor), min(processor), max(processor), wall)]
        cells += [f"{middle[side]['peak_mb']:,.0f}" for side in SIDES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def gpu_table(folder: Path) -> list[str]:
    """A row for each measurement of a pretraining step on a GPU, in the order of their names."""
    lines = ["| run | k tokens/s | ms, median | peak GiB |", "|---|---|---|---|"]
    for path in sorted(folder.glob("*.json")):
        ours = json.loads(path.read_text())["runs"]["ours"]
        rate = ours["tokens_per_second"] / 1000
        lines.append(f"| {path.stem} | {rate:.1f} | {ours['median_ms']:.1f} | {ours['peak_gib']:.1f} |")
    return lines


def num_turns(found: dict[str, Any]) -> int:
    """How often each command was run by either side."""
    return min(len(turns) for sides in found["runs"].values() for turns in sides.values())


def report(found: dict[str, Any], out: Path) -> str:
    """The page, from run.json and the files of bench/pretrain.py below gpu/."""
    lines = ["# Speed before and after the packages were rearranged", "", "## Result", "", *cpu_table(found["runs"])]
    if list((out / "gpu").glob("*.json")):
        lines += [
            "",
            "A pretraining step of ALBERT-base on one H200, batch 128 x 512, bf16:",
            "",
            *gpu_table(out / "gpu"),
        ]
    about = [fill(part, 120) for part in ABOUT.format(turns=num_turns(found), **found).split("\n\n")]
    return "\n".join([*lines, "", "\n\n".join(about), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="8 MB of its beginning are used")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "before-after")
    arguments = parser.parse_args()
    with checked_out(BEFORE) as before, tempfile.TemporaryDirectory() as scratch:
        folder, trees = Path(scratch), {"before": before, "after": ROOT}
        write_inputs(arguments.text, folder)
        for command in START:
            run(before, command, folder)
        for side, tree in trees.items():
            run(tree, MODEL.format(side=side), folder)
        found = measure(trees, folder, arguments.turns)
    result: dict[str, Any] = {
        "before": BEFORE,
        "after": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "commands": COMMANDS,
        "only_after": ONLY_AFTER,
        "runs": found,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "run.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "report.md").write_text(report(result, arguments.out))
    print(report(result, arguments.out))


if __name__ == "__main__":
    main()
