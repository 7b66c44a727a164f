"""bench/studies_h200.py calibrates, runs within its minutes, resumes and packs results without weights."""

import json
import os
import re
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text
from tests.tasks.made_data import glue_files

from openalbert import cli
from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import studies_h200


@pytest.fixture
def work(tmp_path: Path, small: Tokenizer) -> Path:
    """Shards and a task."""
    small.save(tmp_path / "tokenizer")
    for name, seed in (("shards", 0), ("heldout", 1)):
        (tmp_path / "text.txt").write_text(easy_text(60 - 40 * seed, seed=seed))
        words = ["--tokenizer", str(tmp_path / "tokenizer"), "--out", str(tmp_path / "work" / name)]
        cli.main(["prepare", str(tmp_path / "text.txt"), *words])
    glue_files(tmp_path / "work" / "tasks", "sst2", rows=20)
    return tmp_path / "work"


@pytest.mark.slow
def test_studies_are_calibrated_stopped_resumed_packed_and_reported_elsewhere(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", str(tmp_path / "out")]
    tiny = ["--budget", "tiny", "--parallel", "2", "--set", "steps=4"]
    assert not studies_h200.main(["calibrate", "--work", str(work), *out, *tiny, "--minutes", "0.01"])
    assert "nothing is chosen yet" in capfd.readouterr().out
    assert not (work / "chosen.json").exists()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "scipy.special", None)  # is needed for reports alone
        assert studies_h200.main(["calibrate", "--work", str(work), *out, *tiny, "--minutes", "5"])
    assert re.search(r"^chosen: --set .*steps=4$", capfd.readouterr().out, re.MULTILINE)
    chosen = ["--studies", "layers", *out, "--budget", "tiny", "--parallel", "2", "--tasks", "sst2"]
    assert not studies_h200.main(["run", "--work", str(work), *chosen, "--minutes", "0.01"])
    said = capfd.readouterr()
    assert "stopped: the same command resumes each run from its checkpoint" in said.err
    assert "layers: 0 of 2 runs are done" in said.out
    assert studies_h200.main(["run", "--work", str(work), *chosen, "--minutes", "5"])
    assert "layers: 2 of 2 runs are done" in capfd.readouterr().out
    with tarfile.open(tmp_path / "out" / "runs.tar.gz.0") as archive:
        assert any(name.endswith(".npz") for name in archive.getnames())
    studies_h200.main(["pack", "--work", str(work), "--budget", "tiny", *out])
    home = tmp_path / "home"
    with tarfile.open(tmp_path / "out" / "runs.tar.gz.0") as archive:
        names = archive.getnames()
        archive.extractall(home / "work", filter="data")
    assert any(name.endswith("metrics.jsonl") for name in names)
    assert any(name.endswith(".npz") for name in names)
    assert not any("safetensors" in name or name.startswith("tasks") for name in names)
    assert {name for name in names if name.startswith(("shards", "heldout"))} == {
        "shards/manifest.json", "heldout/manifest.json",
    }  # fmt: skip
    monkeypatch.chdir(home)
    command = shlex.split(capfd.readouterr().out.splitlines()[-1])
    assert command[:3] == ["openalbert", "study", "layers"]
    cli.main(command[1:])
    results = json.loads((home / "work" / "layers" / "results.json").read_text())
    assert all(one["metrics"]["sst2"] for one in results["variants"].values())
    # On another machine what is done is taken along.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(home / "work", elsewhere)
    for name in ("shards", "heldout", "tasks"):
        shutil.copytree(work / name, elsewhere / name, dirs_exist_ok=True)
    monkeypatch.setattr(
        "openalbert.studies.runner._start", lambda unit: pytest.fail("a finished run was started again")
    )
    capfd.readouterr()
    assert studies_h200.main(["run", "--work", str(elsewhere), *chosen, "--minutes", "5"])
    assert "are done already" in capfd.readouterr().err


@pytest.mark.parametrize("works", [True, False])
def test_mps_is_left_again_where_it_does_not_work(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\nif [ "$1" = -d ]; then echo start; else cat; fi >> {tmp_path / "asked"}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(studies_h200, "USE_GPU", f"raise SystemExit({int(not works)})")
    with studies_h200.shared_gpu():
        asked = (tmp_path / "asked").read_text().split()
    assert asked == (["start"] if works else ["start", "quit"])
    assert ("MPS does not work here" in capfd.readouterr().out) != works
    assert (tmp_path / "asked").read_text().split()[-1] == "quit"


def test_a_command_does_not_wait_for_mps_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nexec sleep 60\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(studies_h200, "USE_GPU", "")
    monkeypatch.setattr(studies_h200, "MPS_SECONDS", 0.2)
    with studies_h200.shared_gpu():
        pass
    assert capfd.readouterr().out.count("did not answer") == 2


def test_an_archive_is_written_of_runs_at_work_without_weights_that_are_half_written(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in (
        "shards/text",
        "shards/manifest.json",
        "brought/text/wikipedia-00.txt.xz",
        "parts/1",
        "variants/a/unit.json",
        "variants/a/pretrain/model.partial/weights",
        "sharing/study.json",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    (work / "variants" / "a" / "gone.json").symlink_to(tmp_path / "replaced")
    studies_h200.write_archive(work, tmp_path)
    with tarfile.open(tmp_path / "runs.tar.gz.0") as archive:
        assert sorted(archive.getnames()) == ["shards/manifest.json", "sharing/study.json", "variants/a/unit.json"]


def test_an_archive_of_several_parts_is_unpacked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies_h200, "PART_MIB", 1)
    content = os.urandom(5 * 2**19)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "metrics").write_bytes(content)
    (tmp_path / "out").mkdir()
    studies_h200.write_archive(tmp_path / "work", tmp_path / "out")
    parts = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in parts] == ["runs.tar.gz.0", "runs.tar.gz.1", "runs.tar.gz.2"]
    assert max(path.stat().st_size for path in parts) <= 2**20
    studies_h200.unpack(tmp_path / "out", tmp_path / "there")
    assert (tmp_path / "there" / "metrics").read_bytes() == content


def test_every_study_but_the_one_with_two_corpora_has_its_place_in_the_order() -> None:
    from openalbert.studies.registry import STUDIES

    assert sorted(studies_h200.ORDER) == sorted(set(STUDIES) - {"data"})
