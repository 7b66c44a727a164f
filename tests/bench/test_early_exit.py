"""bench/early_exit.py from fine-tuning to the table, on a tiny model and made files."""

import json
import signal
import subprocess
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
    train = ["train", str(tiny), *common, "--more", "--epochs 0.5 --max-length 32"]
    early_exit.main([*train, "--minutes", "0.01"])
    assert capsys.readouterr().out.count("not in this command") == 2
    early_exit.main([*train, "--minutes", "5"])
    assert capsys.readouterr().out.count(": done") == 2
    early_exit.main(train)
    assert ": done" not in capsys.readouterr().out  # nothing is run twice
    out = ["--out", str(tmp_path / "out")]
    early_exit.main(["score", *common, *out, "--device", "cpu"])
    early_exit.main(["time", *common, *out, "--device", "cpu", "--per-turn", "4"])
    early_exit.main(["report", *out])
    found = json.loads((tmp_path / "out" / "mrpc.json").read_text())
    [pair] = found["pairs"]
    chosen = {name: pair["curve"][at] for name, at in pair["rules"].items()}
    assert all(1 <= point["mean_depth"] <= 2 for point in chosen.values())
    assert chosen["0.25 lost"]["held_out_score"] >= pair["held_out"]["full_depth_score"] - 0.25
    [of_device] = found["times"].values()
    seconds = of_device["0.25 lost"]["1"]["1"]
    assert len(seconds["plain"]) == len(seconds["exits"]) == early_exit.TURNS
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.count("| mrpc | ") == 4
    assert (tmp_path / "out" / "score-against-depth.png").stat().st_size > 1000
    assert "| mrpc | accuracy |" in capsys.readouterr().out


def test_a_run_that_does_not_end_in_its_time_is_stopped_or_else_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_exit, "GRACE", 0.5)
    for handler, code in (("exit 143", 143), (":", -signal.SIGKILL)):
        script = f"trap '{handler}' TERM; echo ready; while :; do sleep 0.05; done"
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        assert early_exit.wait(process, 0.1) == code
        process.stdout.close()
