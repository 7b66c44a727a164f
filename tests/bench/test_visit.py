"""bench/visit.py: what travels in how many calls, and one command that goes on where the last call ended."""

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bench.tiny_runs import TINY, save_teacher
from tests.pretraining.made_shards import easy_text
from tests.tasks.made_data import glue_files

from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import checkpoints_h200
import speedrun
import studies_h200
import visit


@pytest.fixture
def data(tmp_path: Path, small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text, and a teacher and a tokenizer of its vocabulary in place of the bundled ones; a process inherits little."""
    folder = tmp_path / "data" / "corpus"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("books-00", "other-00", "wikipedia-00", "heldout-books")):
        (folder / f"{name}.txt").write_text(easy_text(30, seed=seed))
    save_teacher(tmp_path / "teacher", small)
    monkeypatch.setattr(visit, "TEACHER", tmp_path / "teacher")
    monkeypatch.setattr(visit, "tree_bytes", lambda has_weights: 0)  # git is asked in a test of its own
    monkeypatch.setattr(visit, "TOKENIZER", str(tmp_path / "teacher"))
    monkeypatch.setattr(checkpoints_h200, "START", 0.0)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # restored afterwards
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return folder.parent


@pytest.fixture
def call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """One call on a machine; returns what it printed."""

    def called(machine: str, out: str, *words: str, minutes: float = 10.0) -> str:
        capfd.readouterr()
        common = ["--bundle", str(tmp_path / "bundle"), "--work", str(tmp_path / machine), "--minutes", str(minutes)]
        visit.main(["go", *common, "--out", str(tmp_path / out), "--", *words])
        return capfd.readouterr().out

    return called


def bundled(name: str, data: Path, *words: str) -> None:
    visit.main(["bundle", name, "--data", str(data), "--out", str(data.parent / "bundle"), *words])


def test_what_is_larger_than_a_call_travels_in_several_and_is_put_together_again(
    data: Path, tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "PACKAGES", ("tyro",))
    monkeypatch.setattr(visit, "MARGIN", 0)
    monkeypatch.setitem(visit.VISITS, "base", lambda going: True)
    (data / "corpus" / "wikipedia-01.txt.xz").write_bytes(os.urandom(60_000))
    bundled("base", data)
    common = sum(path.stat().st_size for path in (tmp_path / "bundle" / "common").iterdir())
    size = (tmp_path / "bundle" / "1" / "part").stat().st_size
    monkeypatch.setattr(visit, "LIMIT", common + size // 3 - 300)
    bundled("base", data)
    parts = sorted((tmp_path / "bundle").glob("[0-9]/part"))
    assert len(parts) == 4
    assert all(part.stat().st_size <= size // 3 for part in parts)
    contents = {part: part.read_bytes() for part in parts}
    for part in parts:
        part.unlink()
    for number, (part, content) in enumerate(contents.items(), 1):
        part.write_bytes(content)
        said = call("machine", "out")
        assert (f"the next call has to carry {tmp_path / 'bundle' / str(number + 1)}" in said) == (number < 4)
        part.unlink()
    assert "ALL IS DONE" in said
    assert sorted(path.name for path in (tmp_path / "machine" / "brought" / "text").iterdir()) == [
        "books-00.txt", "other-00.txt", "wikipedia-00.txt", "wikipedia-01.txt.xz",
    ]  # fmt: skip


def test_a_part_that_is_damaged_is_asked_for_again(data: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    bundled("recipe", data)
    part = tmp_path / "bundle" / "1" / "part"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="not what was bundled"):
        call("machine", "out")


def test_packages_are_imported_from_their_file(tmp_path: Path) -> None:
    target = tmp_path / "packages.zip"
    visit.pack_packages(target)
    with zipfile.ZipFile(target) as packages:
        assert not [name for name in packages.namelist() if name.endswith((".so", ".pyc"))]
    names = ("attrs", "cattrs", "docstring_parser", "jaxtyping", "rich.table", "typeguard", "tyro")
    code = f"import {', '.join(names)}; print(tyro.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith(str(target)), done.stderr


@pytest.mark.skipif(not (visit.ROOT / ".git").exists(), reason="counts what git tracks")
def test_the_tree_is_counted_with_or_without_weights_and_never_with_what_is_ignored() -> None:
    weights = sum(path.stat().st_size for path in visit.ROOT.glob(visit.WEIGHTS))
    assert visit.tree_bytes(has_weights=True) - visit.tree_bytes(has_weights=False) == weights > 20e6
    assert visit.tree_bytes(has_weights=True) < visit.LIMIT - visit.MARGIN


def test_a_visit_that_is_over_starts_nothing(
    data: Path, tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lefts = []
    monkeypatch.setitem(visit.VISITS, "recipe", lambda going: lefts.append(going.left) or False)
    bundled("recipe", data)
    assert "MORE TO DO" in call("machine", "out")
    assert lefts.pop() == pytest.approx(9, abs=0.1)  # a minute is for checkpoints and OUT
    (tmp_path / "machine" / "parts" / "started").write_text(f"{time.time() - 60 * 24}")
    assert "MORE TO DO" in call("machine", "out")
    assert lefts.pop() == pytest.approx(2.5, abs=0.1)  # of 27.5
    (tmp_path / "machine" / "parts" / "started").write_text(f"{time.time() - 60 * 27.5}")
    assert "THE TIME OF THE VISIT IS OVER" in call("machine", "out")
    assert lefts.pop() < 0


def test_the_best_shape_and_kind_of_training_are_chosen_beyond_the_noise() -> None:
    def chosen(**scores: float) -> tuple[str, str]:
        folders = {"preset": "6x384", "groups": "6x384-2groups", "taught": "6x384-distilled"}
        found = visit.choose_shape({folders[name]: {"mlm_acc": score} for name, score in scores.items()})
        return found["shape"], found["kind"]

    assert chosen(preset=0.400, groups=0.402, taught=0.401) == ("", "plain")
    assert chosen(preset=0.400, groups=0.405, taught=0.404) == ("6 x 384, 2 groups", "distilled")
    assert chosen(groups=0.3) == ("6 x 384, 2 groups", "plain")


@pytest.mark.slow
def test_the_recipe_goes_from_text_to_curves(data: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    bundled("recipe", data)
    assert "ALL IS DONE" in call("machine", "out", "--length", "0.02", "--", *TINY)
    checkpoints_h200.main(["unpack", "--work", str(tmp_path / "home"), "--out", str(tmp_path / "out")])
    assert (tmp_path / "home" / "recipe.md").read_text().count("| yes |") == 5
    assert json.loads((tmp_path / "home" / "recipe-chosen.json").read_text()).startswith("muon")


@pytest.mark.slow
def test_the_small_model_goes_from_shapes_to_a_model_folder(
    data: Path, tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "LEAST", 0.0)
    bundled("small", data)
    monkeypatch.setattr(visit, "SHAPE_MINUTES", 0.02)
    monkeypatch.setattr(visit, "LONG_FRACTION", 0.5)
    (tmp_path / "machine").mkdir()
    for name, decided in (("small-chosen", {"shape": "", "kind": "distilled"}), ("small-minutes", {"minutes": 0.2})):
        (tmp_path / "machine" / f"{name}.json").write_text(json.dumps(decided))
    assert "ALL IS DONE" in call("machine", "out", "--", *TINY)
    checkpoints_h200.main(["unpack", "--work", str(tmp_path / "home"), "--out", str(tmp_path / "out")])
    [model] = (tmp_path / "home" / "small").glob("*-long-*/model")
    found = read_pretraining(model)
    assert found is not None
    assert found.distilled_from == "teacher"
    assert huggingface.load(model).config.max_positions == 512


@pytest.mark.slow
def test_the_base_model_is_continued_on_another_machine(
    data: Path, tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "LEAST", 0.0)
    monkeypatch.setattr(visit, "RESERVE", 0.0)
    bundled("base", data)
    words = ("--length", "0.25", "--", *TINY)
    for number in range(10):  # a slow machine may not come to a first step in the time of one call
        assert "MORE TO DO" in call("machine", f"out-{number}", *words, minutes=0.25)
        if (tmp_path / f"out-{number}" / "base-short").exists():
            break
    with tarfile.open(tmp_path / f"out-{number}" / "runs.tar.gz.0") as archive:
        # The clock of one visit is not that of the next.
        assert not [name for name in archive.getnames() if "started" in name]
    bundled("base", data, "--earlier", str(tmp_path / f"out-{number}"))
    assert "ALL IS DONE" in call("another", "out", *words)
    checkpoints_h200.main(["unpack", "--work", str(tmp_path / "home"), "--out", str(tmp_path / "out")])
    assert json.loads((tmp_path / "home" / "base" / "short" / "run_info.json").read_text())["carried"]
    assert huggingface.load(tmp_path / "home" / "base" / "long" / "model").config.max_positions == 512


def test_speedruns_that_have_ended_are_not_run_again_and_long_ones_wait_for_a_call(
    data: Path, tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    glue_files(data / "glue", "sst2", rows=20)
    monkeypatch.setattr(visit, "TASK_FOLDERS", ("SST-2",))
    bundled("speedruns", data)
    asked: list[list[str]] = []

    def run(words: list[str]) -> None:
        asked.append(words)
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True)
        (out / "record.json").write_text("{}")

    monkeypatch.setattr(speedrun, "main", run)
    assert "MORE TO DO" in call("machine", "out", "--seed", "2", minutes=5.5)
    assert [words[0] for words in asked] == ["mlm-40"]
    assert asked[0][-5:] == ["--", "--minutes", "1.9", "--seed", "2"]
    assert "ALL IS DONE" in call("machine", "out")
    assert [words[0] for words in asked] == ["mlm-40", "sop-70", "sst2-85"]
    with tarfile.open(tmp_path / "out" / "runs.tar.gz.0") as archive:
        assert {f"{track}/record.json" for track in visit.SPEEDRUNS} == set(archive.getnames())


@pytest.mark.slow
def test_studies_go_on_and_take_their_results_to_another_machine(
    data: Path, tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "TASK_FOLDERS", ("SST-2",))
    monkeypatch.setattr(visit, "LEAST", 0.0)
    monkeypatch.setattr(visit, "RESERVE", 0.0)
    glue_files(data / "glue", "sst2", rows=20)
    bundled("studies", data)
    words = "--budget tiny --parallel 2 --set steps=4 --studies layers --tasks sst2".split()
    assert "MORE TO DO" in call("machine", "out", *words, minutes=0.05)
    with monkeypatch.context() as patched:  # a calibration that ends with the call is not all
        chosen = studies_h200.main

        def calibrated(asked: list[str]) -> bool:
            patched.setattr(visit, "LEAST", 11.0)
            return asked[0] == "calibrate" or chosen(asked)

        patched.setattr(studies_h200, "main", calibrated)
        assert "MORE TO DO" in call("machine", "out", *words)
    said = call("machine", "out", *words)
    assert "ALL IS DONE" in said
    assert "openalbert study layers" in said
    with tarfile.open(tmp_path / "out" / "runs.tar.gz.0") as archive:
        kept = [name for name in archive.getnames() if not name.endswith("manifest.json")]
    assert not any(name.startswith(("parts", "brought", "tasks", "shards", "heldout")) for name in kept)
    bundled("studies", data, "--earlier", str(tmp_path / "out"))
    monkeypatch.setattr("openalbert.studies.runner._start", lambda unit: pytest.fail("it was trained again"))
    assert "ALL IS DONE" in call("another", "more", *words)
