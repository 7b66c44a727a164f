"""A run that is killed, stopped or damaged, and started again, ends with the bits of the undisturbed run."""

import random
import signal
import subprocess
from pathlib import Path

import pytest
from tests.faults import mishaps
from tests.faults.under_fire import (
    ONE_BY_STEPS,
    ONE_BY_TOKENS,
    TWO_BY_STEPS,
    Attempt,
    Case,
    differences,
    disturbed,
    made_shards,
    records,
)
from tests.faults.under_fire import undisturbed as run_undisturbed

# The processes of a run are found there: torchrun's workers are in no common group.
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc on this system")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    return run_undisturbed(ONE_BY_STEPS, shards, tmp_path_factory.mktemp("undisturbed") / "run")


def test_killed_in_an_evaluation_a_checkpoint_write_and_where_the_depth_grows_the_run_ends_with_the_same_bits(
    tmp_path: Path, shards: Path, one_process: Path
) -> None:
    out = tmp_path / "run"
    for moment in ("evaluation", "checkpoint"):
        attempt = Attempt(ONE_BY_STEPS, shards, out)
        assert attempt.wait_for(moment, random.Random(1)), attempt.words()
        attempt.kill()
    attempt = Attempt(ONE_BY_STEPS, shards, out)
    assert attempt.until((out / "checkpoints" / "step-00000012").exists, "the checkpoint of step 12")
    attempt.kill()
    again = Attempt(ONE_BY_STEPS, shards, out)
    assert again.finish() == 0, again.words()
    assert "resuming from step 12" in again.words()
    assert differences(one_process, out) == []


def test_two_processes_of_which_one_is_killed_end_with_the_same_bits(tmp_path: Path, shards: Path) -> None:
    undisturbed = run_undisturbed(TWO_BY_STEPS, shards, tmp_path / "undisturbed")
    attempt = Attempt(TWO_BY_STEPS, shards, tmp_path / "run")
    assert attempt.wait_for("step", random.Random(0))
    attempt.kill(attempt.workers()[:1])
    again = Attempt(TWO_BY_STEPS, shards, tmp_path / "run")
    assert again.finish() == 0, again.words()
    assert differences(undisturbed, tmp_path / "run") == []


def test_stopped_by_signals_and_with_its_newest_checkpoint_damaged_the_run_ends_with_the_same_bits(
    tmp_path: Path, shards: Path, one_process: Path
) -> None:
    out = tmp_path / "run"
    code, first = mishaps.stop(ONE_BY_STEPS, shards, out, signal.SIGTERM, records=1)
    assert code == 143
    code, second = mishaps.stop(ONE_BY_STEPS, shards, out, signal.SIGINT, records=1)
    assert code == 130
    assert 0 < first < second
    dice = random.Random(0)
    mishaps.flip_a_byte(dice.choice(sorted(mishaps.newest(out).folder.iterdir())), dice)
    again = Attempt(ONE_BY_STEPS, shards, out)
    assert again.finish() == 0, again.words()
    assert f"step-{second:08d}" in again.words()
    assert "damaged and passed over" in again.words()
    assert differences(one_process, out) == []


@pytest.mark.slow
def test_killed_at_the_start_in_a_step_and_in_the_model_folder_a_run_by_tokens_ends_with_the_same_bits(
    tmp_path: Path, shards: Path
) -> None:
    undisturbed = run_undisturbed(ONE_BY_TOKENS, shards, tmp_path / "undisturbed")
    moments = ["start", "step", "start", "model"]
    kills = disturbed(ONE_BY_TOKENS, shards, tmp_path / "run", moments, random.Random(2))
    assert [kill.moment for kill in kills] == moments
    assert differences(undisturbed, tmp_path / "run") == []


@pytest.mark.slow
def test_a_run_whose_workers_outlive_a_killed_torchrun_is_not_disturbed_by_another_start(
    tmp_path: Path, shards: Path
) -> None:
    case = Case("2 processes, long", 2, ("--steps", "2000"))
    attempt = Attempt(case, shards, tmp_path / "run")
    assert attempt.until(lambda: bool(records(tmp_path / "run")), "a record")
    attempt.process.kill()
    attempt.process.wait()
    try:
        second = Attempt(case, shards, tmp_path / "run")
        assert second.finish() != 0
        assert "another `openalbert pretrain` is at work here" in second.words()
        assert len(attempt.workers()) == 2
    finally:
        attempt.kill()
    steps = [record["step"] for record in records(tmp_path / "run")]
    assert steps == sorted(steps)


@pytest.mark.slow
def test_two_processes_by_the_clock_agree_when_to_end(tmp_path: Path, shards: Path) -> None:
    for number in range(3):
        attempt = Attempt(Case("minutes", 2, ("--minutes", "0.03")), shards, tmp_path / f"run-{number}")
        assert attempt.finish() == 0, attempt.words()


@pytest.mark.slow
def test_a_disk_that_gets_full_loses_nothing(tmp_path: Path, shards: Path, one_process: Path) -> None:
    disk = tmp_path / "disk"
    if not mishaps.mount_small_disk(disk):
        pytest.skip("no right to mount a small disk")
    try:
        words = mishaps.fill_the_disk(ONE_BY_STEPS, shards, disk / "run")
        assert "make room" in words
        assert "Traceback" not in words
        assert differences(one_process, disk / "run") == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
