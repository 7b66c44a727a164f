"""What may happen to a run beside a kill: signals, damaged checkpoints, a full disk."""

import random
import signal
import subprocess
from pathlib import Path

from tests.faults import under_fire
from tests.faults.under_fire import Attempt, Case

from openalbert.train import checkpoint
from openalbert.train.checkpoint import Checkpoint

SMALL_DISK, LARGE_DISK = "2500k", "50m"


def newest(out: Path) -> Checkpoint:
    """The newest checkpoint, which is sound."""
    found, remarks = checkpoint.latest(out / "checkpoints")
    assert found is not None
    assert not remarks, remarks
    return found


def stop(case: Case, shards: Path, out: Path, number: signal.Signals, records: int) -> tuple[int, int]:
    """Send a signal after some more records: the exit code, and the step of the checkpoint that was written for it."""
    attempt = Attempt(case, shards, out)
    wanted = len(under_fire.records(out)) + records
    assert attempt.until(lambda: len(under_fire.records(out)) >= wanted, "a record"), attempt.words()
    attempt.process.send_signal(number)
    return attempt.finish(), newest(out).step


def flip_a_byte(file: Path, dice: random.Random) -> bytes:
    """Damage a file in one place; its content before that."""
    whole = file.read_bytes()
    at = dice.randrange(len(whole))
    file.write_bytes(whole[:at] + bytes([whole[at] ^ dice.randrange(1, 256)]) + whole[at + 1 :])
    return whole


def count_found_flips(out: Path, flips: int, dice: random.Random) -> int:
    """Flip bytes of a run's newest checkpoint, one at a time: how many are found, and the one before is used."""
    damaged = newest(out)
    found = 0
    for _ in range(flips):
        file = dice.choice(sorted(damaged.folder.iterdir()))
        whole = flip_a_byte(file, dice)
        used, remarks = checkpoint.latest(out / "checkpoints")
        found += used is not None and used.step < damaged.step and len(remarks) == 1 and str(file.name) in remarks[0]
        file.write_bytes(whole)
    assert newest(out) == damaged
    return found


def mount_small_disk(disk: Path) -> bool:
    """A disk with room for a few checkpoints; False where there is no right to mount one."""
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(disk)]
    return subprocess.run(command, capture_output=True).returncode == 0


def fill_the_disk(case: Case, shards: Path, out: Path) -> str:
    """Run on a disk that gets full in the middle, then on the same disk with more room: what was said at the first."""
    attempt = Attempt(case, shards, out)
    assert attempt.finish() == 1, attempt.words()
    words = attempt.words()
    newest(out)
    subprocess.run(["mount", "-o", f"remount,size={LARGE_DISK}", str(out.parent)], check=True)
    again = Attempt(case, shards, out)
    assert again.finish() == 0, again.words()
    return words
