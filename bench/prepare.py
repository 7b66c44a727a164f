"""A whole corpus prepared as a user would: time, memory of all processes together, and what became of the text.

python bench/prepare.py FILES … --tokenizer FOLDER --shards FOLDER [--workers 2] [--out results/prepare-full-corpus]

Memory is the proportional set size (PSS) of the command and all its children, added up and looked at ten times a
second: pages that several processes share count once. The shards are checked bit by bit afterwards, and inspected:
its picture and numbers are kept with the report.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from openalbert.text.shards import read_manifest  # noqa: E402

SECONDS_BETWEEN_LOOKS = 0.1


def family(process: int) -> list[int]:
    """A process and all below it."""
    found = [process]
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [below for child in listed.read_text().split() for below in family(int(child))]
        except OSError:
            continue  # it has ended
    return found


def memory(processes: list[int]) -> int:
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def run(words: list[str], cores: list[int], **how: Any) -> dict[str, float]:
    """Run a command on some cores, watching its memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    train_state = subprocess.Popen(words, preexec_fn=lambda: os.sched_setaffinity(0, cores), **how)
    peak = most = 0
    while train_state.poll() is None:
        processes = family(train_state.pid)
        peak, most = max(peak, memory(processes)), max(most, len(processes))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    seconds = time.perf_counter() - started
    if train_state.returncode:
        sys.exit(train_state.returncode)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": seconds, "processor_s": processor_s, "peak_pss_bytes": peak, "processes": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--heldout", type=float, default=0.01)
    parser.add_argument("--describe", default="text", help="what the files are, for the report")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "prepare-full-corpus")
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: asked.workers]
    command = [sys.executable, "-m", "openalbert"]
    options = ["--workers", str(asked.workers), "--heldout", str(asked.heldout), "--drop-duplicates", "--fresh"]
    places = ["--tokenizer", asked.tokenizer, "--out", str(asked.shards)]
    measurements = run([*command, "prepare", *asked.files, *places, *options], cores)
    check = run([*command, "verify", str(asked.shards)], cores)
    asked.out.mkdir(parents=True, exist_ok=True)
    # By its name alone, for the picture and the text say it; and no examples, for the text may not be ours to publish.
    look = [
        *command,
        "inspect",
        asked.shards.name,
        "--examples",
        "0",
        "--out",
        str(asked.out.absolute() / "inspect.png"),
    ]
    with (asked.out / "inspect.txt").open("w") as file:
        seen = run(look, cores, cwd=asked.shards.absolute().parent, stdout=file)
    manifest = read_manifest(asked.shards)
    outcome: dict[str, Any] = {
        "text": asked.describe,
        "files": len(asked.files),
        "workers": asked.workers,
        "settings": manifest.settings,
        "prepare": measurements,
        "verify": check,
        "inspect": seen,
        "characters_per_s": manifest.counts["characters"] / measurements["wall_s"],
        "bytes_of_shards": sum(entry.size for entry in manifest.files),
        "shards": {split: len(entries) for split, entries in manifest.splits.items()},
        "counts": manifest.counts,
        "tokenizer": manifest.tokenizer,
        "machine": {"processor": processor(), "cores": len(cores), "python": platform.python_version()},
    }
    report = table(outcome)
    print(report)
    (asked.out / "run.json").write_text(json.dumps(outcome, indent=2) + "\n")
    (asked.out / "report.md").write_text(report)


def table(outcome: dict[str, Any]) -> str:
    """The report that run.json makes."""
    counts, prepared, look = outcome["counts"], outcome["prepare"], outcome["inspect"]
    tokens = counts["train_tokens"] + counts.get("heldout_tokens", 0)
    busy = prepared["processor_s"] / (prepared["wall_s"] * outcome["machine"]["cores"])
    lines = [
        "# Preparing a whole corpus",
        "",
        "## Result",
        "",
        "| | |",
        "|---|---|",
        f"| wall time | {prepared['wall_s']:.0f} s |",
        f"| million characters per second | {outcome['characters_per_s'] / 1e6:.1f} |",
        f"| processor time, all processes | {prepared['processor_s']:.0f} s |",
        f"| the same as a fraction of the cores' time | {busy:.0%} |",
        f"| peak memory of all {prepared['processes']} processes | {prepared['peak_pss_bytes'] / 1e6:.0f} MB |",
        f"| shards | {sum(outcome['shards'].values())} |",
        f"| size of the shards | {outcome['bytes_of_shards'] / 1e6:.0f} MB |",
        f"| `verify`, wall time | {outcome['verify']['wall_s']:.1f} s |",
        f"| tokens | {tokens:,} |",
        f"| characters per token | {counts['characters'] / tokens:.2f} |",
        f"| unknown tokens | {counts['unknown_tokens']:,} |",
        f"| the same as a fraction of the tokens | {counts['unknown_tokens'] / tokens:.3%} |",
        f"| `inspect` of the training split, wall time | {look['wall_s']:.0f} s |",
        f"| `inspect`, peak memory | {look['peak_pss_bytes'] / 1e6:.0f} MB |",
        "",
        "| split | documents | sentences | tokens |",
        "|---|---|---|---|",
    ]
    for split in outcome["shards"]:
        numbers = [counts[f"{split}_{kind}"] for kind in ("documents", "sentences", "tokens")]
        lines.append(f"| {split} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    others = {name: count for name, count in counts.items() if count and ("dropped" in name or "removed" in name)}
    changed = "; ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in others.items()) or "nothing"
    lines += [
        "",
        f"Dropped or changed: {changed}. The output of `openalbert inspect` is in [inspect.txt](inspect.txt).",
        "",
        "![Histograms of document and sentence lengths](inspect.png)",
        "",
        "## Setup",
        "",
        f"`python bench/prepare.py`, which runs `openalbert prepare` with {outcome['workers']} workers on "
        f"{outcome['machine']['cores']} cores ({outcome['machine']['processor']}), "
        f"{outcome['settings']['heldout']:.0%} held out, duplicates dropped (which reads all text twice). Data: "
        f"{outcome['text'][0].lower() + outcome['text'][1:]}, {counts['documents']:,} documents of "
        f"{counts['characters']:,} characters in {outcome['files']} files, {counts['bytes_read'] / 1e6:.1f} MB on "
        "disk.",
        "",
        "## Limits",
        "",
        "One run. Processor time that is missing went to other work on the machine, and to waiting.",
        "",
    ]
    return "\n".join(lines)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
