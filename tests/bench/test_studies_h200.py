"""bench/studies_h200.py bundles, unpacks, calibrates, runs within its minutes and packs results without weights."""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text
from tests.tasks.made_data import glue_files

from openalbert import cli
from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import studies_h200

ROOT = Path(studies_h200.__file__).parents[1]


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(studies_h200, "TASK_FOLDERS", ("SST-2",))
    (tmp_path / "text.txt").write_text(easy_text(60))
    (tmp_path / "heldout.txt").write_text(easy_text(20, seed=1))
    glue = glue_files(tmp_path / "glue", "sst2", rows=20)
    texts = ["--text", str(tmp_path / "text.txt"), "--heldout-text", str(tmp_path / "heldout.txt")]
    studies_h200.main(["bundle", "--out", str(tmp_path / "bundle"), *texts, "--task-data", str(glue)])
    return tmp_path / "bundle"


def test_a_bundle_holds_text_tasks_and_packages_that_are_imported_from_it(bundled: Path) -> None:
    assert [path.name for path in (bundled / "text").iterdir()] == ["text.txt.xz"]
    with tarfile.open(bundled / "tasks.tar.xz") as archive:
        assert "SST-2/train.tsv" in archive.getnames()
    with zipfile.ZipFile(bundled / "packages.zip") as packages:
        assert not [name for name in packages.namelist() if name.endswith((".so", ".pyc"))]
    names = ("attrs", "cattrs", "docstring_parser", "jaxtyping", "rich.table", "typeguard", "tyro")
    code = f"import {', '.join(names)}; print(tyro.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(bundled / "packages.zip")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith(str(bundled / "packages.zip")), done.stderr


@pytest.mark.slow
def test_studies_run_from_a_bundle_to_an_archive_are_resumed_and_reported_elsewhere(
    bundled: Path, tmp_path: Path, small: Tokenizer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small.save(tmp_path / "tokenizer")
    work = ["--work", str(tmp_path / "work")]
    unpack = ["unpack", "--bundle", str(bundled), "--tokenizer", str(tmp_path / "tokenizer")]
    studies_h200.main([*unpack, *work])
    tiny = [*work, "--budget", "tiny", "--parallel", "2", "--set", "steps=4"]
    studies_h200.main(["calibrate", *tiny, "--minutes", "5"])
    assert re.search(r"^chosen: --set .*steps=4$", capfd.readouterr().out, re.MULTILINE)
    chosen = ["run", "layers", *work, "--budget", "tiny", "--parallel", "2", "--tasks", "sst2"]
    studies_h200.main([*chosen, "--minutes", "0.01"])
    said = capfd.readouterr()
    assert "stopped: the same command resumes each run from its checkpoint" in said.err
    assert "layers: 0 of 2 runs are done" in said.out
    studies_h200.main([*chosen, "--minutes", "5", "--out", str(tmp_path / "kept")])
    assert "layers: 2 of 2 runs are done" in capfd.readouterr().out
    with tarfile.open(tmp_path / "kept" / "studies.tar.gz") as archive:
        assert any(name.endswith(".npz") for name in archive.getnames())
    studies_h200.main(["pack", *work, "--budget", "tiny", "--out", str(tmp_path / "out")])
    home = tmp_path / "home"
    with tarfile.open(tmp_path / "out" / "studies.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(home / "work", filter="data")
    assert any(name.endswith("metrics.jsonl") for name in names)
    assert any(name.endswith(".npz") for name in names)
    assert not any("safetensors" in name or name.startswith(("shards", "heldout", "tasks")) for name in names)
    monkeypatch.chdir(home)
    command = shlex.split(capfd.readouterr().out.splitlines()[-1])
    assert command[:3] == ["openalbert", "study", "layers"]
    cli.main(command[1:])
    results = json.loads((home / "work" / "layers" / "results.json").read_text())
    assert all(one["metrics"]["sst2"] for one in results["variants"].values())
    # On another machine what is done is taken along.
    elsewhere = ["--work", str(tmp_path / "elsewhere")]
    studies_h200.main([*unpack, *elsewhere, "--results", str(tmp_path / "out" / "studies.tar.gz")])
    capfd.readouterr()
    monkeypatch.setattr(
        "openalbert.studies.runner._start", lambda unit: pytest.fail("a finished run was started again")
    )
    studies_h200.main(["run", "layers", *elsewhere, *chosen[4:], "--minutes", "5"])
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
        "variants/a/unit.json",
        "variants/a/pretrain/model.partial/weights",
        "sharing/study.json",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    (work / "variants" / "a" / "gone.json").symlink_to(tmp_path / "replaced")
    studies_h200.write_archive(work, tmp_path / "archive")
    with tarfile.open(tmp_path / "archive") as archive:
        assert sorted(archive.getnames()) == ["sharing/study.json", "variants/a/unit.json"]


def test_every_study_but_the_one_with_two_corpora_has_its_place_in_the_order() -> None:
    from openalbert.studies.registry import STUDIES

    assert sorted(studies_h200.ORDER) == sorted(set(STUDIES) - {"data"})
