"""bench/carry_run.py carries an unfinished run in small checked parts, and it resumes on its schedule."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.pretraining.micro_runs import micro_run, records, run_info, weights

from openalbert.train import checkpoint

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import carry_run

WORDS = "--steps 12 --save-every 6 --evaluate-every 6 --optimizer.kind muon --depth-schedule 1,2@0.25 --keep-last 9"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, easy_shards: Path) -> Path:
    return micro_run(easy_shards, tmp_path_factory.mktemp("whole") / "run", WORDS)


@pytest.fixture
def stopped(tmp_path: Path, whole: Path) -> Path:
    """The same run as it was after half of its steps."""
    run = Path(shutil.copytree(whole, tmp_path / "stopped"))
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    shutil.rmtree(run / "model")
    return run


@pytest.mark.parametrize("kept", ["fp32", "bf16"])
def test_a_carried_run_resumes_near_to_where_an_undisturbed_one_ends(
    tmp_path: Path, easy_shards: Path, whole: Path, stopped: Path, kept: str
) -> None:
    carry_run.main(["pack", str(stopped), "--out", str(tmp_path / "parts"), "--weights", kept, "--part-mib", "0.1"])
    shutil.rmtree(stopped)
    parts = sorted((tmp_path / "parts").glob("part-*"))
    assert len(parts) > 2
    assert max(part.stat().st_size for part in parts) <= 0.1 * 2**20
    there = tmp_path / "there"
    carry_run.main(["unpack", str(tmp_path / "parts"), "--out", str(there)])
    micro_run(easy_shards, there, WORDS)
    [carried] = run_info(there)["carried"]
    assert (carried["step"], carried["weights"], carried["optimizer"]) == (6, kept, "bf16")
    assert run_info(there)["restarts"] == 1
    before, after = records(whole, "train"), records(there, "train")
    assert [record["step"] for record in after] == [record["step"] for record in before]
    assert [record["lr"] for record in after] == [record["lr"] for record in before]
    assert after[-1]["loss"] == pytest.approx(before[-1]["loss"], rel=0.01)
    assert any(not torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(there).items())


def test_a_budget_in_minutes_counts_the_minutes_before_a_run_was_carried(tmp_path: Path, easy_shards: Path) -> None:
    words = "--minutes 0.05 --save-every 5 --evaluate-every 1000 --keep-last 1000"
    run = micro_run(easy_shards, tmp_path / "run", words)
    taken = sorted((run / "checkpoints").glob("step-*"))
    for folder in (*taken[len(taken) // 2 :], run / "model"):
        shutil.rmtree(folder)
    found, _ = checkpoint.latest(run / "checkpoints")
    assert found is not None
    before = found.state()["train_state"]["seconds"]
    carry_run.pack(run, tmp_path / "parts", "fp32", 15)
    carry_run.unpack(tmp_path / "parts", tmp_path / "there")
    there = micro_run(easy_shards, tmp_path / "there", words)
    last = records(there, "train")
    assert next(record["seconds"] for record in last if record["step"] > found.step) > before > 0.5
    assert 3600 * run_info(there)["actual"]["hours"] == pytest.approx(3.0, abs=0.5)
    assert last[-1]["progress"] > 0.9


def test_weights_and_counters_are_carried_to_the_bit_and_moments_to_bf16(tmp_path: Path, stopped: Path) -> None:
    found, _ = checkpoint.latest(stopped / "checkpoints")
    assert found is not None
    tensors, state = found.read()
    carry_run.pack(stopped, tmp_path / "parts", "fp32", 15)
    carry_run.unpack(tmp_path / "parts", tmp_path / "there")
    again, _ = checkpoint.latest(tmp_path / "there" / "checkpoints")
    assert again is not None
    carried, its_state = again.read()
    assert its_state == state
    assert all(torch.equal(tensor, carried["model"][name]) for name, tensor in tensors["model"].items())
    for name, tensor in tensors["optimizer"].items():
        other = carried["optimizer"][name]
        assert other.dtype == tensor.dtype
        torch.testing.assert_close(other, tensor, rtol=2**-8, atol=0)
        assert tensor.numel() > 1 or torch.equal(other, tensor)


def test_a_part_that_is_missing_or_damaged_is_named(
    tmp_path: Path, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "parts"
    carry_run.pack(stopped, parts, "fp32", 0.1)
    part = parts / "part-001"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"x")
    with pytest.raises(SystemExit, match="part-001: it does not match its checksum"):
        carry_run.main(["unpack", str(parts), "--out", str(tmp_path / "there")])
    part.unlink()
    with pytest.raises(SystemExit, match="part-001: this part is missing"):
        carry_run.main(["unpack", str(parts), "--out", str(tmp_path / "there")])
    assert not (tmp_path / "there").exists()
    part.write_bytes(content)
    with pytest.raises(SystemExit, match="it is not empty"):
        carry_run.main(["pack", str(stopped), "--out", str(parts)])
