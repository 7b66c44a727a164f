"""`make demo`, timed: runs `openalbert demo` from nothing and keeps its run and its times in results/demo/.

    python bench/demo.py

To be run on an otherwise idle machine. Writes run.json, run_info.json and metrics.jsonl of the run, output.txt (all
that the demo printed), times.json (the wall time of each stage) and report.md.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN_FILES = ("run.json", "run_info.json", "metrics.jsonl")
HEADING = re.compile(r"--- \d/\d  ([^:,]+)")
END = "--- done in"


def carry_out(folder: Path, more: list[str]) -> tuple[str, dict[str, Any]]:
    """Run the demo in this folder: what it printed, and the seconds of each stage."""
    started = time.monotonic()
    lines, marks = [], []
    words = [sys.executable, "-u", "-m", "openalbert", "demo", *more]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(line, end="", flush=True)
            if found := HEADING.match(line):
                marks.append((found[1].strip(), time.monotonic() - started))
            elif line.startswith(END):
                marks.append((END, time.monotonic() - started))
    if process.returncode:
        raise SystemExit(f"error: the demo ended with exit code {process.returncode}")
    whole = time.monotonic() - started
    ends = [seconds for _, seconds in marks[1:]]
    stages = {name: round(end - begin, 1) for (name, begin), end in zip(marks, ends, strict=False)}
    command = shlex.join(["openalbert", "demo", *more])
    return "".join(lines), {"command": command, "seconds": round(whole, 1), "stages": stages}


def report(folder: Path) -> str:
    """The report that the files in the folder make."""
    times, run_info = (json.loads((folder / name).read_text()) for name in ("times.json", "run_info.json"))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["kind"] == "train"][-1]
    last = [record for record in records if record["kind"] == "evaluation"][-1]
    data = run_info["data"]
    stages = "\n".join(f"| {name} | {seconds:.0f} |" for name, seconds in times["stages"].items())
    setup = (
        f"`python bench/demo.py`, which runs `{times['command']}` as `make demo` does, in an empty folder with the "
        f"environment installed. {run_info['device']}, torch {run_info['torch']}, Python {run_info['python']}; load "
        f"average before the start {times['load_before']:.1f} on {times['cores']} cores. The corpus is the "
        f"documentation installed on that machine: {data['train_tokens']:,} training tokens and "
        f"{data['heldout_tokens']:,} held-out "
        f"ones, with a vocabulary of {run_info['vocab_size']:,} pieces trained on it. The model has "
        f"{run_info['parameters']:,} parameters and was trained for {train['step']:,} steps."
    )
    limits = (
        "It is a demonstration, not a useful model: its predictions are in output.txt. The settings were chosen on "
        "the same held-out split, so the metrics are slightly optimistic. Chunks are made as Google's builder makes "
        "them, where the lengths of sentences alone predict the order of 60 to 64 % of the pairs of other text "
        "([order-cue](../order-cue/report.md)), so 50 % is not what a model without understanding would get. The "
        "corpus, and so every number here, depends on the packages installed."
    )
    return f"""# `make demo`

## Result

| | |
|---|---|
| wall time of all stages, minutes | {times["seconds"] / 60:.1f} |
| of which training steps, minutes | {train["seconds"] / 60:.1f} |
| held-out MLM loss | {last["mlm_loss"]:.2f} |
| entropy of single tokens (loss of a unigram model) | {run_info["unigram_entropy"]:.2f} |
| held-out MLM accuracy, % | {100 * last["mlm_acc"]:.1f} |
| held-out SOP accuracy, % | {100 * last["sop_acc"]:.1f} |
| held-out examples | {last["examples"]:,} |

| stage | seconds |
|---|---|
{stages}

## Setup

{_fill(setup)}

## Limits

{_fill(limits)}
"""


def _fill(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "demo")
    parser.add_argument("more", nargs="*", metavar="-- SETTING", help="settings of `openalbert demo`, to try this out")
    asked = parser.parse_args(words)
    out: Path = asked.out
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        printed, times = carry_out(Path(folder), asked.more)
        out.mkdir(parents=True, exist_ok=True)
        for name in RUN_FILES:
            shutil.copyfile(Path(folder) / "demo" / "run" / name, out / name)
    times = {**times, "load_before": round(load, 2), "cores": os.cpu_count()}
    (out / "times.json").write_text(json.dumps(times, indent=2) + "\n")
    (out / "output.txt").write_text(printed)
    (out / "report.md").write_text(report(out))


if __name__ == "__main__":
    main()
