"""bench/early_exit.py from fine-tuning to the table, on a tiny model and made files."""

import json
import sys
from pathlib import Path

import pytest
from tests.tasks.made_data import glue_files

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import early_exit


def test_runs_are_trained_scored_timed_and_drawn(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    glue_files(tmp_path / "data" / "glue", "mrpc", 40)
    common = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--tasks", "mrpc", "--seeds", "1"]
    early_exit.main(["train", str(tiny), *common, "--more", "--epochs 0.5 --max-length 32"])
    out = ["--out", str(tmp_path / "out")]
    early_exit.main(["score", *common, *out, "--device", "cpu"])
    early_exit.main(["time", *common, *out, "--device", "cpu", "--per-turn", "4"])
    early_exit.main(["report", *out])
    found = json.loads((tmp_path / "out" / "mrpc.json").read_text())
    [pair] = found["pairs"]
    chosen = {name: pair["curve"][at] for name, at in pair["rules"].items()}
    assert all(1 <= point["mean_depth"] <= 2 for point in chosen.values())
    assert chosen["none lost"]["held_out_score"] >= pair["held_out"]["full_depth_score"]
    [of_device] = found["times"].values()
    seconds = of_device["none lost"]["1"]["1"]
    assert len(seconds["plain"]) == len(seconds["exits"]) == early_exit.TURNS
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.count("| mrpc | ") == 4
    assert (tmp_path / "out" / "score-against-depth.png").stat().st_size > 1000
    assert "| mrpc | accuracy |" in capsys.readouterr().out
