"""Does a resumed run end with the same bits? `openalbert pretrain` undisturbed, stopped, and killed, and compared.

    python bench/resume.py --data SHARDS [--preset albert-base --steps 300] [--jobs 2] [-- --speed.compile none]

In each mode (default, and `--speed.deterministic`) the same run is made four ways: undisturbed, undisturbed again
(which shows the noise between runs without any stop), stopped by SIGTERM half way and resumed, and killed by SIGKILL
some steps after a checkpoint and resumed. Compared with the first are the weights of the model folder, the last
checkpoint with its optimizer state, and metrics.jsonl without its times. What stands behind `--` is given to every run.

Prints a table and writes resume.json and report.md to --out. Exit code 1 if a resumed deterministic run differs.
"""

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch import Tensor

from openalbert.errors import UserError
from openalbert.interop.weights import read_tensors
from openalbert.text.shards import open_shards
from openalbert.train import checkpoint

MODES: dict[str, tuple[str, ...]] = {"default": (), "deterministic": ("--speed.deterministic",)}
WAYS = ("undisturbed", "undisturbed again", "SIGTERM, resumed", "SIGKILL, resumed")
TIMES = ("seconds", "tokens_per_second", "mfu")
PATIENCE = 300.0  # seconds without a new record before a run is given up
MACHINE = ("device", "precision", "torch", "python", "openalbert", "is_fused")


@dataclass(frozen=True)
class Plan:
    """The run to be made again and again."""

    preset: str
    data: Path
    steps: int
    batch_size: int
    length: int
    more: tuple[str, ...] = ()

    @property
    def save_every(self) -> int:
        """Three checkpoints in a run."""
        return max(1, self.steps // 3)

    @property
    def log_every(self) -> int:
        """Thirty records in a run."""
        return max(1, self.steps // 30)

    def settings(self) -> list[str]:
        """All of the command line but the folders; later words win."""
        # The micro-batch is given: left to the memory that is free, runs at the same time could choose another.
        words = f"--steps {self.steps} --batch-size {self.batch_size} --speed.micro-batch {self.batch_size}"
        words += f" --objective.max-length {self.length} --evaluation-examples {2 * self.batch_size}"
        words += f" --save-every {self.save_every} --log-every {self.log_every}"
        return [self.preset, *words.split(), *self.more]


class Attempt:
    """One start of a run, in a session of its own."""

    def __init__(self, plan: Plan, mode: str, out: Path) -> None:
        self.out, self.log = out, out.with_name(out.name + ".log")
        words = [*plan.settings(), *MODES[mode], "--data", str(plan.data), "--out", str(out)]
        with self.log.open("a") as log:
            command = [sys.executable, "-m", "openalbert", "pretrain", *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self, happens: Callable[[], bool] = lambda: False) -> int | None:
        """The exit code, or None as soon as it happens in a run that is alive."""
        seen, until = -1, time.monotonic() + PATIENCE
        while (code := self.process.poll()) is None:
            if happens():
                return None
            if (size := self.log.stat().st_size) != seen:
                seen, until = size, time.monotonic() + PATIENCE
            if time.monotonic() > until:
                self.kill()
                raise UserError(f"{self.log}: nothing new for {PATIENCE:.0f} s; the run was ended")
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """SIGKILL to the run and whatever it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def expect(self, code: int) -> None:
        """Wait for the end, which must be this one."""
        ended = self.wait()
        if ended != code:
            tail = self.log.read_text()[-1500:]
            raise UserError(f"a run ended with exit code {ended} in place of {code}:\n{tail}")


def carry_out(plan: Plan, mode: str, way: str, out: Path) -> dict[str, Any]:
    """Make one run, disturbed or not: what was done to it."""
    started, done = time.monotonic(), {"mode": mode, "way": way}
    attempt = Attempt(plan, mode, out)
    if way.startswith("SIG"):
        # SIGKILL comes after a checkpoint and one more record, so that some steps are lost and taken again.
        after = plan.steps // 2 if way.startswith("SIGTERM") else plan.save_every + plan.log_every
        if attempt.wait(lambda: last_step(out) >= after) is not None:
            raise UserError(f"{attempt.log}: the run ended before step {after} was seen: give more --steps")
        if way.startswith("SIGTERM"):
            attempt.process.send_signal(signal.SIGTERM)
            attempt.expect(143)
        else:
            attempt.kill()
        found, _ = checkpoint.latest(out / "checkpoints")
        done |= {"last_record_before": last_step(out), "resumed_from": found.step if found else 0}
        attempt = Attempt(plan, mode, out)
    attempt.expect(0)
    restarts = json.loads((out / "run_info.json").read_text())["restarts"]
    if restarts != int(way.startswith("SIG")):
        raise UserError(f"{out}: this run was resumed {restarts} times, which is not what was meant")
    seconds = round(time.monotonic() - started, 1)
    print(f"{mode}, {way}: done in {seconds} s", flush=True)
    return {**done, "seconds": seconds}


def records(out: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl, without times."""
    path = out / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def last_step(out: Path) -> int:
    """The step of the newest record."""
    return max((record["step"] for record in records(out)), default=0)


def digest(tensors: dict[str, Tensor]) -> str:
    """sha256 over the names, types, shapes and bits of all tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def end_of(out: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of the model folder, and every tensor of the last checkpoint."""
    found, remarks = checkpoint.latest(out / "checkpoints")
    if found is None or remarks:
        raise UserError(f"{out}: no sound checkpoint at its end: {remarks}")
    groups, _ = found.read()
    state = {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
    return read_tensors(out / "model" / "model.safetensors"), state


def compare(reference: Path, other: Path) -> dict[str, Any]:
    """In what two ended runs differ."""
    (weights, state), (other_weights, other_state) = end_of(reference), end_of(other)
    lines, other_lines = records(reference), records(other)
    differing = [line["step"] for line, theirs in zip(lines, other_lines, strict=False) if line != theirs]
    pairs = [(weights[name].double(), other_weights[name].double()) for name in weights]
    squared = sum(((one - two) ** 2).sum() for one, two in pairs)
    return {
        "weights_sha256": digest(other_weights),
        "checkpoint_sha256": digest(other_state),
        "weights_equal": digest(weights) == digest(other_weights),
        "checkpoint_equal": digest(state) == digest(other_state),
        "metrics_equal": lines == other_lines,
        "first_step_that_differs": differing[0] if differing else None,
        "largest_difference": max(float((one - two).abs().max()) for one, two in pairs),
        "relative_difference": float((squared / sum((one**2).sum() for one, _ in pairs)) ** 0.5),
    }


def measure(plan: Plan, modes: list[str], jobs: int, folder: Path) -> dict[str, Any]:
    """All ways in all modes, some of them at the same time."""
    places = {(mode, way): folder / f"{mode}-{number}" for mode in modes for number, way in enumerate(WAYS)}
    with ThreadPoolExecutor(jobs) as pool:
        # By way first: so that runs at the same time are of different modes.
        order = [(mode, way) for way, mode in product(WAYS, modes)]
        started = {key: pool.submit(carry_out, plan, *key, places[key]) for key in order}
        try:
            done = {key: future.result() for key, future in started.items()}
        except UserError:
            pool.shutdown(cancel_futures=True)
            raise
    rows = [
        {**done[mode, way], **compare(places[mode, WAYS[0]], places[mode, way])} for mode, way in product(modes, WAYS)
    ]
    run_info = {mode: json.loads((places[mode, WAYS[0]] / "run_info.json").read_text()) for mode in modes}
    machine = {mode: {name: run_info[mode].get(name) for name in MACHINE} for mode in modes}
    settings = shlex.join(plan.settings())
    return {"script": "bench/resume.py", "settings": settings, "jobs": jobs, "machine": machine, "rows": rows}


def report(found: dict[str, Any]) -> str:
    """The table of all runs."""
    rows = [
        f"| {row['mode']} | {row['way']} | {row.get('resumed_from', '')} | {_yes(row['weights_equal'])} "
        f"| {_yes(row['checkpoint_equal'])} | {_yes(row['metrics_equal'])} | {row['largest_difference']:.2g} "
        f"| {row['relative_difference']:.2g} |"
        for row in found["rows"]
        if row["way"] != WAYS[0]
    ]
    machine = next(iter(found["machine"].values()))
    fused = ", ".join(f"{mode}: {_yes(of['is_fused'])}" for mode, of in found["machine"].items())
    setup = (
        f"`openalbert pretrain {found['settings']}`, the deterministic mode with `--speed.deterministic` too. "
        f"{machine['device']}, {machine['precision']}, torch {machine['torch']}, Python {machine['python']}, "
        f"openalbert {machine['openalbert']}. Kernels of our own (is_fused): {fused}. Up to {found['jobs']} runs at "
        "the same time. Hashes and times are in resume.json."
    )
    return f"""# Resumed runs compared with an undisturbed one

## Result

Each run is compared with the first undisturbed one of its mode.

| mode | run | resumed from step | weights equal | checkpoint equal | metrics equal | largest difference | relative |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Equal means every bit: weights are those of the model folder, the checkpoint is the last one with its optimizer state,
metrics are those of metrics.jsonl without times. The largest difference is that of a single weight, the relative one
the norm of all differences over the norm of all weights.

## Setup

{fill(setup, 120, break_long_words=False, break_on_hyphens=False)}

## Limits

One model, one seed, one machine, one process each; each run is stopped once.
"""


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of shards")
    parser.add_argument("--preset", default="albert-base")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--out", type=Path, required=True, help="a folder for resume.json and report.md")
    parser.add_argument("more", nargs="*", metavar="-- SETTING", help="more settings of `openalbert pretrain`")
    asked = parser.parse_args(words)
    plan = Plan(asked.preset, asked.data, asked.steps, asked.batch_size, asked.length, tuple(asked.more))
    try:
        if asked.steps < 6 or asked.jobs < 1:
            raise UserError(
                "--steps must be at least 6, so that a run can be stopped on the way, and --jobs at least 1"
            )
        open_shards(asked.data)  # which says what is wrong with the folder
        with tempfile.TemporaryDirectory() as folder:
            found = measure(plan, asked.modes, asked.jobs, Path(folder))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "resume.json").write_text(json.dumps(found, indent=2) + "\n")
    (asked.out / "report.md").write_text(report(found))
    print(report(found))
    is_exact = [row["weights_equal"] and row["checkpoint_equal"] and row["metrics_equal"] for row in found["rows"]]
    if not all(same for row, same in zip(found["rows"], is_exact, strict=True) if row["mode"] == "deterministic"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
