"""bench/studies_h200.py prepares, calibrates, runs within its minutes and packs results without weights."""

import json
import sys
import tarfile
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text
from tests.tasks.made_data import glue_files

from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import studies_h200


@pytest.mark.slow
def test_a_visit_runs_from_text_to_an_archive_and_a_short_one_is_resumed(
    tmp_path: Path, small: Tokenizer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies_h200, "GRACE", 1)
    (tmp_path / "text.txt").write_text(easy_text(60))
    (tmp_path / "heldout.txt").write_text(easy_text(20, seed=1))
    small.save(tmp_path / "tokenizer")
    glue = glue_files(tmp_path / "glue", "sst2", rows=20)
    work = ["--work", str(tmp_path / "work")]
    texts = ["--text", str(tmp_path / "text.txt"), "--heldout-text", str(tmp_path / "heldout.txt")]
    studies_h200.main(["prepare", *work, *texts, "--tokenizer", str(tmp_path / "tokenizer")])
    studies_h200.main(["calibrate", *work, "--budget", "tiny", "--set", "steps=4"])
    said = capfd.readouterr().out
    assert said.count("rate 0.00") == 3
    chosen = ["run", *work, "--budget", "tiny", "--parallel", "2", "--task-data", str(glue), "layers"]
    more = ["--", "--set", "steps=4", "--tasks", "sst2"]
    studies_h200.main([*chosen, "--minutes", "0.03", *more])
    assert "layers: ended with" in capfd.readouterr().out
    studies_h200.main([*chosen, "--minutes", "5", *more])
    assert "layers: done" in capfd.readouterr().out
    results = json.loads((tmp_path / "work" / "layers" / "results.json").read_text())
    assert all(one["metrics"]["sst2"] for one in results["variants"].values())
    studies_h200.main(["pack", *work, "--out", str(tmp_path / "out")])
    with tarfile.open(tmp_path / "out" / "studies.tar.gz") as archive:
        names = archive.getnames()
    assert "layers/report.html" in names
    assert any(name.endswith("metrics.jsonl") for name in names)
    assert any(name.endswith(".npz") for name in names)
    assert not any("safetensors" in name or name.startswith(("shards", "heldout")) for name in names)


def test_every_study_but_the_one_with_two_corpora_has_its_place_in_a_visit() -> None:
    from openalbert.studies.registry import STUDIES

    assert sorted(studies_h200.ORDER) == sorted(set(STUDIES) - {"data"})
