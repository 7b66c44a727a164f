"""Several processes through plain torchrun: the same learning as one, and one gradient reduction a step."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.pretraining.micro_runs import command, micro_run, records, run_info, weights

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SCRIPT = Path(__file__).with_name("counted_reductions.py")


def torchrun(*words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("kind", ["lamb", "muon"])
def test_two_processes_learn_what_one_learns_with_one_gradient_reduction_a_step(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    words = f"--steps 6 --log-every 1 --speed.device cpu --save-every 3 --evaluate-every 6 --optimizer.kind {kind}"
    one, two = micro_run(easy_shards, tmp_path / "one", words), tmp_path / "two"
    # Each has two micro-batches of its half of the batch; the reductions are counted.
    more = command(easy_shards, two, f"{words} --speed.micro-batch 2")
    done = torchrun(str(SCRIPT), str(tmp_path / "sizes.json"), *more)
    assert done.returncode == 0, done.stderr
    assert run_info(two)["world_size"] == 2
    for alone, together in zip(records(one, "train"), records(two, "train"), strict=True):
        assert alone["tokens"] == together["tokens"]
        assert math.isclose(alone["loss"], together["loss"], rel_tol=1e-5)
        assert math.isclose(alone["grad_norm"], together["grad_norm"], rel_tol=1e-4)
    after = weights(two)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, after[name], rtol=1e-3, atol=1e-4)
    [alone], [together] = records(one, "evaluation"), records(two, "evaluation")
    assert math.isclose(alone["mlm_loss"], together["mlm_loss"], rel_tol=1e-4)
    sizes = json.loads((tmp_path / "sizes.json").read_text())
    assert [size for size in sizes if size > 100] == [run_info(two)["parameters"]] * 6
    # Both processes work, one speaks.
    assert done.stderr.count("done: the model is in") == 1

    # From its checkpoint in the middle one process resumes what two started, in as many micro-batches as it needs.
    for folder in (two / "checkpoints" / "step-00000006", two / "model"):
        shutil.rmtree(folder)
    capsys.readouterr()
    micro_run(easy_shards, two, f"{words} --speed.micro-batch 2")
    said = capsys.readouterr().err
    assert "resuming from step 3" in said
    assert "6 steps of batch 8 in 4 micro-batches" in said
    for name, tensor in weights(two).items():
        torch.testing.assert_close(tensor, after[name], rtol=1e-3, atol=1e-4)


def test_a_batch_that_does_not_divide_among_the_processes_is_refused(tmp_path: Path, easy_shards: Path) -> None:
    words = "--steps 5 --speed.device cpu --batch-size 7"
    done = torchrun("-m", "openalbert", *command(easy_shards, tmp_path / "run", words))
    assert done.returncode == 1
    assert "error: batch_size is 7, which does not divide among 2 processes" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
