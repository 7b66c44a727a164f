"""Runs of `openalbert pretrain` that are killed at chosen moments and started again, and how their ends compare."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openalbert.interop.weights import read_tensors
from openalbert.text.prepare import Prepare, prepare
from openalbert.text.train_tokenizer import TrainVocabulary, train_vocabulary
from openalbert.train import checkpoint

PATIENCE = 120.0  # seconds without any progress after which an attempt counts as hung
MARK = "OPENALBERT_UNDER_FIRE"  # an attempt's processes are known by it, whatever session they have moved to
TIMES = ("seconds", "tokens_per_second", "mfu")
MOMENTS = ("start", "step", "evaluation", "checkpoint", "model")
SYLLABLES = "ka lo mi nu per sta vor bel dra gos hin tul wex".split()


@dataclass(frozen=True)
class Case:
    """A run to be disturbed: how many processes it has and how its length is given."""

    name: str
    ranks: int
    budget: tuple[str, ...]
    more: tuple[str, ...] = ()

    def command(self, shards: Path, out: Path) -> list[str]:
        """The command line that starts the run, and that goes on with it."""
        # Records every 3 steps, evaluations every 6 and checkpoints every 4: a checkpoint comes in the middle of a
        # record's window, before an evaluation, and on one. Evaluations always follow a record, which shows them.
        options = (
            f"albert-micro --data {shards} --out {out} --model.hidden-dropout 0.1 --model.attention-dropout 0.1 "
            "--batch-size 8 --reference-batch 8 --optimizer.learning-rate 0.005 --objective.max-length 64 "
            "--speed.threads 1 --speed.micro-batch 2 --log-every 3 --evaluate-every 6 --evaluation-examples 32 "
            "--save-every 4 --keep-last 2"
        )
        launcher = [sys.executable, "-m"]
        if self.ranks > 1:
            # A rendezvous of its own for each attempt, on a free port.
            launcher += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks), "-m"]
        return [*launcher, "openalbert", "pretrain", *options.split(), *self.budget, *self.more]


# In the first, the number of layers and the masking rate change after step 12, which is a checkpoint too.
ONE_BY_STEPS = Case(
    "1 process, steps", 1, ("--steps", "30"), ("--depth-schedule", "1,2@0.4", "--mask-schedule", "0.3@0.4")
)
ONE_BY_TOKENS = Case("1 process, tokens", 1, ("--tokens", "12000"))
TWO_BY_STEPS = Case("2 processes, steps", 2, ("--steps", "30"))
TWO_BY_TOKENS = Case("2 processes, tokens", 2, ("--tokens", "12000"))
CASES = (ONE_BY_STEPS, TWO_BY_STEPS, ONE_BY_TOKENS, TWO_BY_TOKENS)


def made_shards(folder: Path) -> Path:
    """Shards of a made-up language, with a held-out split."""
    dice = random.Random(0)

    def sentence() -> str:
        return " ".join("".join(dice.choices(SYLLABLES, k=2)) for _ in range(dice.randint(3, 12))).capitalize() + "."

    text = folder / "text.txt"
    text.write_text("\n\n".join("\n".join(sentence() for _ in range(12)) for _ in range(300)) + "\n")
    train_vocabulary(TrainVocabulary(files=(str(text),), out=folder / "vocabulary", vocab_size=200))
    prepare(Prepare(files=(str(text),), tokenizer=folder / "vocabulary", out=folder / "shards", heldout=0.2, workers=1))
    return folder / "shards"


class Attempt:
    """One start of a run's command."""

    def __init__(self, case: Case, shards: Path, out: Path) -> None:
        self.out = out
        self.log = out.with_name(out.name + ".log")
        self._mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: self._mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                case.command(shards, out), stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def processes(self) -> list[int]:
        """Every process of this attempt: torchrun gives each worker a session of its own, so a group is not enough."""
        wanted = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def kill(self, which: list[int] | None = None) -> None:
        """`kill -9` to these processes, or else to all, and wait until none is left."""
        until = time.monotonic() + PATIENCE
        victims = which
        while True:
            for process in self.processes() if victims is None else victims:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if victims is not None:
                victims = []  # the rest must end by itself
            self.process.poll()
            if not self.processes() or all(_is_zombie(process) for process in self.processes()):
                break
            assert time.monotonic() < until, f"processes live on after one was killed: {self.words()}"
            time.sleep(0.02)
        self.process.wait(timeout=PATIENCE)

    def workers(self) -> list[int]:
        """The processes that train."""
        found = []
        for process in self.processes():
            try:
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"pretrain" in words and b"torch.distributed.run" not in words:
                found.append(process)
        return found

    def finish(self) -> int:
        """Wait for the end; the exit code."""
        last, until = self.progress(), time.monotonic() + PATIENCE
        while self.process.poll() is None:
            if self.progress() != last:
                last, until = self.progress(), time.monotonic() + PATIENCE
            if time.monotonic() > until:
                self.kill()
                raise AssertionError(f"no progress for {PATIENCE:.0f} s: {self.words()}")
            time.sleep(0.01)
        return self.process.returncode

    def progress(self) -> tuple[int, int]:
        """Something that changes as long as the run gets on."""
        metrics = self.out / "metrics.jsonl"
        return self.log.stat().st_size, metrics.stat().st_size if metrics.exists() else 0

    def words(self) -> str:
        """The last of what the run said."""
        return self.log.read_text()[-20_000:]

    def until(self, happens: Callable[[], bool], what: str) -> bool:
        """Return as soon as it happens: True; or False if the run has ended before."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            if happens():
                return True
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{what} does not come: {self.words()}")
            time.sleep(0.001)
        return False

    def wait_for(self, moment: str, dice: random.Random) -> bool:
        """Return in the middle of that moment: True; or False if the run has ended before."""
        # The start takes two seconds and more; wherever in it the kill comes, nothing may depend on it.
        started = time.monotonic() + dice.uniform(0.0, 2.0)
        recorded, more = len(records(self.out)), dice.randrange(1, 4)
        checkpoints = self.out / "checkpoints"
        signs = {
            "start": lambda: time.monotonic() > started,
            "step": lambda: len(records(self.out)) >= recorded + more,
            "evaluation": lambda: is_evaluating(self.out) and len(records(self.out)) != recorded,
            "checkpoint": lambda: any(checkpoints.glob("*.partial")),
            "model": lambda: (self.out / "model.partial").exists(),
        }
        if moment == "checkpoint":  # what an earlier kill left there is no sign of a write
            left = {path.stat().st_ino for path in checkpoints.glob("*.partial")}
            signs[moment] = lambda: any(_inode(path) not in (None, *left) for path in checkpoints.glob("*.partial"))
        if not self.until(signs[moment], f"the moment '{moment}'"):
            return False
        time.sleep(dice.uniform(0.0, 0.05) if moment == "step" else 0.0)
        return self.process.poll() is None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def is_evaluating(out: Path) -> bool:
    """Whether the last thing written down is the record of a step after which an evaluation comes."""
    last = records(out)[-1:]
    return bool(last) and last[0]["kind"] == "train" and last[0]["step"] % 6 == 0


def records(out: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl."""
    path = out / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Kill:
    """One `kill -9` that hit a living run."""

    case: str
    moment: str
    of: str
    """Which processes: all, or one of several."""
    at_step: int
    """The newest checkpoint's step."""
    in_middle: bool | None
    """Whether the files left behind show that the kill came in the middle of the moment; None where none could."""


def disturbed(case: Case, shards: Path, out: Path, moments: list[str], dice: random.Random) -> list[Kill]:
    """Kill a run once at each of the moments, starting it again each time, then let it end."""
    kills = []
    for moment in moments:
        attempt = Attempt(case, shards, out)
        if not attempt.wait_for(moment, dice):
            assert attempt.process.returncode == 0, attempt.words()
            break
        one = case.ranks > 1 and dice.random() < 0.3
        workers = attempt.workers() if one else []
        attempt.kill([dice.choice(workers)] if workers else None)
        found, remarks = checkpoint.latest(out / "checkpoints")
        assert not remarks, f"a kill has damaged a checkpoint: {remarks}"
        in_middle = {
            "start": None,
            "step": None,
            "evaluation": is_evaluating(out),
            "checkpoint": any((out / "checkpoints").glob("*.partial")),
            "model": not (out / "model").exists(),
        }[moment]
        kills.append(Kill(case.name, moment, "one" if workers else "all", found.step if found else 0, in_middle))
    attempt = Attempt(case, shards, out)
    assert attempt.finish() == 0, attempt.words()
    return kills


def undisturbed(case: Case, shards: Path, out: Path) -> Path:
    """The run to compare with."""
    attempt = Attempt(case, shards, out)
    assert attempt.finish() == 0, attempt.words()
    return out


def differences(one: Path, other: Path) -> list[str]:
    """In what two ended runs differ, times aside: weights, optimizer, running figures, metrics."""
    found = []
    (tensors, state), (other_tensors, other_state) = _end(one), _end(other)
    for group in sorted(tensors.keys() | other_tensors.keys()):
        mine, theirs = tensors.get(group, {}), other_tensors.get(group, {})
        found += [
            f"{group}: {name}"
            for name in sorted(mine.keys() | theirs.keys())
            if name not in mine or name not in theirs or not _same_bits(mine[name], theirs[name])
        ]
    found += [
        f"state: {name}"
        for name in sorted(state.keys() | other_state.keys())
        if state.get(name) != other_state.get(name)
    ]
    lines, other_lines = timeless(records(one)), timeless(records(other))
    found += [f"metrics: {a} is not {b}" for a, b in zip(lines, other_lines, strict=False) if a != b]
    if len(lines) != len(other_lines):
        found.append(f"metrics: {len(lines)} records and {len(other_lines)}")
    return found


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what hangs on the clock."""
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def _end(out: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    found, remarks = checkpoint.latest(out / "checkpoints")
    assert found is not None
    assert not remarks, remarks
    tensors, state = found.read()
    tensors["the model folder"] = read_tensors(out / "model" / "model.safetensors")
    state["train_state"] = {name: value for name, value in state["train_state"].items() if name not in TIMES}
    # How long the file is hangs on the digits of the times in it.
    del state["metrics_bytes"]
    return tensors, {**state, "step": found.step}


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
