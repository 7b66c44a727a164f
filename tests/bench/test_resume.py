"""The script that compares resumed runs finds every bit that differs, and none where runs are the same."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.pretraining.made_shards import easy_text, made_shards
from tests.pretraining.micro_runs import micro_run

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import resume

from openalbert.interop.weights import read_tensors, write_tensors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("data"), easy_text(150), heldout=easy_text(40, seed=1))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return micro_run(data, tmp_path_factory.mktemp("runs") / "run", "--steps 10")


def test_a_run_does_not_differ_from_itself(run: Path) -> None:
    found = resume.compare(run, run)
    assert (found["weights_equal"], found["checkpoint_equal"], found["metrics_equal"]) == (True, True, True)
    assert (found["largest_difference"], found["relative_difference"]) == (0.0, 0.0)
    assert found["first_step_that_differs"] is None


def test_one_bit_of_one_weight_and_one_record_are_found_and_times_are_not(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    weights = read_tensors(other / "model" / "model.safetensors")
    name = next(iter(weights))
    value = weights[name].flatten()[0].item()
    weights[name].flatten()[0] = torch.nextafter(torch.tensor(value), torch.tensor(float("inf")))
    step = weights[name].flatten()[0].item() - value
    write_tensors(other / "model" / "model.safetensors", weights)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    lines[0]["seconds"] += 1.0
    (other / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = resume.compare(run, other)
    assert (found["weights_equal"], found["checkpoint_equal"], found["metrics_equal"]) == (False, True, True)
    assert found["largest_difference"] == step > 0
    lines[1]["step"], lines[1]["loss"] = 7, 0.0
    (other / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert resume.compare(run, other)["metrics_equal"] is False


def test_equal_zeros_of_another_sign_are_other_bits() -> None:
    assert resume.digest({"a": torch.tensor([0.0])}) != resume.digest({"a": torch.tensor([-0.0])})
    assert resume.digest({"a": torch.zeros(2, 1)}) != resume.digest({"a": torch.zeros(1, 2)})


@pytest.mark.slow
def test_a_stopped_and_a_killed_run_resumed_on_a_cpu_end_with_the_bits_of_the_undisturbed_one(
    data: Path, tmp_path: Path
) -> None:
    words = f"--data {data} --preset albert-micro --steps 60 --batch-size 8 --length 32 --modes deterministic"
    more = "-- --model.hidden-dropout 0.1 --speed.threads 1"
    resume.main([*words.split(), "--out", str(tmp_path), *more.split()])
    found = json.loads((tmp_path / "resume.json").read_text())
    assert [row["way"] for row in found["rows"]] == list(resume.WAYS)
    assert len({row["weights_sha256"] for row in found["rows"]}) == 1
    assert len({row["checkpoint_sha256"] for row in found["rows"]}) == 1
    assert all(row["metrics_equal"] for row in found["rows"])
    assert all(0 < row["resumed_from"] < 60 for row in found["rows"][2:])
    assert (tmp_path / "report.md").read_text() == resume.report(found)


def test_a_run_that_cannot_start_is_reported_in_one_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: .*none"):
        resume.main(["--data", str(tmp_path / "none"), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="--steps must be at least 6"):
        resume.main(["--data", str(data), "--out", str(tmp_path), "--steps", "2"])
    with pytest.raises(SystemExit, match="error: a run ended with exit code"):
        resume.main(["--data", str(data), "--out", str(tmp_path), "--preset", "albert-bsae", "--jobs", "1"])
