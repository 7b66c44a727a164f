"""Two processes through plain torchrun fine-tune as one does."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.finetuning.made_lessons import command, learn, lesson, records, weights
from tests.finetuning.made_pairs import pairs_file


@pytest.mark.parametrize("kind", ["multiple_choice", "similarity"])
def test_two_processes_learn_what_one_learns(kind: str, tiny: Path, tmp_path: Path) -> None:
    file = pairs_file("triplets", tmp_path, 60) if kind == "similarity" else lesson(kind, tmp_path)
    # 7 examples do not divide among two.
    words = "--steps 12 --batch-size 7 --log-every 1 --evaluate-every 6 --speed.device cpu"
    alone = learn(tiny, kind, file, tmp_path / "one", words)
    two = tmp_path / "two"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line += ["-m", "openalbert", *command(tiny, kind, file, two, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for first, second in zip(records(tmp_path / "one", "train"), records(two, "train"), strict=True):
        assert first["tokens"] == second["tokens"]
        assert math.isclose(first["loss"], second["loss"], rel_tol=1e-4)
    after = weights(two)
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(tensor, after[name], rtol=1e-3, atol=1e-3)
    found = records(two, "evaluation")[-1]["accuracy"]
    assert found == pytest.approx(alone["scores"]["dev"]["accuracy"], abs=20 if kind == "similarity" else 5)
    assert done.stderr.count("done: the model of step") == 1
    assert not (two / "checkpoints").exists()
