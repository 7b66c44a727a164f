"""bench/speedrun.py counts every stage, evaluates off the clock, and calls only a met target a record."""

import json
import sys
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text
from tests.tasks.made_data import glue_files

from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import speedrun

TINY = "--recipe albert-micro --change tiny".split()
SHORT = "-- --steps 12 --batch-size 8 --objective.max-length 32".split()


@pytest.fixture
def texts(tmp_path: Path, small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(speedrun, "EVALUATION", "32:google:16:0")
    monkeypatch.setattr(speedrun, "SEEDS", 1)
    (tmp_path / "text.txt").write_text(easy_text(60))
    (tmp_path / "heldout.txt").write_text(easy_text(20, seed=1))
    small.save(tmp_path / "tokenizer")
    words = ["--text", str(tmp_path / "text.txt"), "--heldout-text", str(tmp_path / "heldout.txt")]
    return [*words, "--tokenizer", str(tmp_path / "tokenizer"), *TINY]


def test_a_run_that_misses_its_target_is_written_down_as_no_record(tmp_path: Path, texts: list[str]) -> None:
    out = tmp_path / "records" / "first"
    speedrun.main(["mlm-40", *texts, "--out", str(out), *SHORT])
    record = json.loads((out / "record.json").read_text())
    assert record["is_record"] == (record["metrics"]["mlm_acc"] >= 40)
    assert record["seconds"] == pytest.approx(sum(record["stages"].values()))
    assert set(record["stages"]) == {"prepare", "pretrain"}
    assert {path.name for path in out.iterdir()} == {
        "record.json", "run.json", "run_info.json", "metrics.jsonl", "evaluations.json", "output.txt",
    }  # fmt: skip
    speedrun.main(["table", "--out", str(tmp_path / "records")])
    assert "| mlm-40 |" in (tmp_path / "records" / "report.md").read_text()


def test_an_sst2_track_counts_fine_tuning(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(speedrun.TRACKS, "sst2-85", ("sst2", 0.0))
    glue = glue_files(tmp_path / "glue", "sst2", rows=8)
    out, work = tmp_path / "out", tmp_path / "work"
    work.mkdir()
    (work / "other").write_text("of another run")
    common = ["--glue", str(glue), "--out", str(out), "--work", str(work)]
    speedrun.main(["sst2-85", *texts, *common, *SHORT])
    assert (work / "other").exists()
    record = json.loads((out / "record.json").read_text())
    assert record["is_record"]
    assert record["stages"]["finetune"] > 0
    # Only what a run needs is on the clock.
    assert not (work / "speedrun" / "sst2-1" / "baselines.json").exists()
    assert json.loads((work / "speedrun" / "sst2-1" / "run.json").read_text())["baselines"] is False
    assert 0 <= record["metrics"]["sst2"] <= 100


def test_the_fastest_record_comes_first_and_a_missed_target_last(tmp_path: Path) -> None:
    for name, seconds, is_record in (("slow", 300.0, True), ("missed", 10.0, False), ("fast", 200.0, True)):
        record = {
            "track": "mlm-40", "date": "2026-01-01", "change": name, "seconds": seconds, "device": "GPU",
            "metrics": {"mlm_acc": 41.0}, "is_record": is_record,
        }  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps(record))
    changes = [line.split(" | ")[3] for line in speedrun.table(tmp_path).splitlines()[2:]]
    assert changes == ["fast", "slow", "missed"]


def test_the_committed_page_of_speedruns_is_what_the_records_give() -> None:
    assert (speedrun.RECORDS / "report.md").read_text() == speedrun.report(speedrun.RECORDS)


def test_a_page_without_runs_names_no_record(tmp_path: Path) -> None:
    speedrun.main(["table", "--out", str(tmp_path / "none")])
    assert "No run has been made yet" in (tmp_path / "none" / "report.md").read_text()
