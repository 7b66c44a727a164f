"""bench/checkpoints_h200.py goes through all stages at a tiny size: stopped, resumed, carried and packed."""

import contextlib
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from tests.bench.tiny_runs import TINY, save_teacher
from tests.pretraining.made_shards import easy_text

from openalbert import cli
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import carry_run
import checkpoints_h200
import small_shapes


@pytest.fixture
def work(tmp_path: Path, small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards, and a teacher with their vocabulary."""
    monkeypatch.setattr(checkpoints_h200, "START", 0.0)
    save_teacher(tmp_path / "teacher", small)
    small.save(tmp_path / "tokenizer")
    for seed, name in enumerate(("two", "all", "heldout")):
        (tmp_path / "text.txt").write_text(easy_text(40, seed=seed))
        words = ["--tokenizer", str(tmp_path / "tokenizer"), "--out", str(tmp_path / "work" / name)]
        cli.main(["prepare", str(tmp_path / "text.txt"), *words])
    return tmp_path / "work"


def run_info(folder: Path) -> dict[str, object]:
    known: dict[str, object] = json.loads((folder / "run_info.json").read_text())
    return known


@pytest.mark.slow
def test_the_stages_go_from_text_to_checkpoints(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = ["--out", str(tmp_path / "kept")]
    common = ["--work", str(work), *kept, "--length", "0.02", "--teacher", str(tmp_path / "teacher")]
    assert checkpoints_h200.main(["recipe", *common, "--", *TINY])
    assert checkpoints_h200.main(["shapes", *common, "--parallel", "2", "--", *TINY])
    assert checkpoints_h200.main(["small", *common, "--", *TINY])
    assert capfd.readouterr().out.count(": done") == 5 + 5 + 2
    for stage, rows in (("recipe", 5), ("shapes", 5), ("small", 2)):
        assert (work / f"{stage}.md").read_text().count("| yes |") == rows
    assert checkpoints_h200.main(["recipe", *common, "--", *TINY])
    assert ": done" not in capfd.readouterr().out  # nothing is run twice
    settings = {name: json.loads((work / "recipe" / name / "run.json").read_text()) for name in ("muon-2", "lamb-7")}
    assert [one["optimizer"]["kind"] for one in settings.values()] == ["muon", "lamb"]
    assert [one["objective"]["masked_lm"]["rate"] for one in settings.values()] == [0.3, 0.15]
    student = read_pretraining(work / "small" / "distilled-0.02" / "model")
    assert student is not None
    assert student.distilled_from == "teacher"

    assert checkpoints_h200.main(["small", *common, "--after", "distilled-0.02", "--", *TINY])
    assert "distilled-0.02-long-0.02: done" in capfd.readouterr().out
    longer = read_pretraining(work / "small" / "distilled-0.02-long-0.02" / "model")
    assert longer is not None
    assert (longer.initialized_from, longer.distilled_from) == ("distilled-0.02", "teacher")

    with tarfile.open(tmp_path / "kept" / "runs.tar.gz.0") as archive:
        assert {"recipe.md", "recipe/lamb-7/metrics.jsonl"} <= set(archive.getnames())

    # The base run is stopped in its first part, carried to another folder, and ends there, at the longer length.
    long = [*kept, "--length", "0.25", "--", *TINY]
    for _ in range(10):  # a slow machine may not come to a first step in the time of one command
        assert not checkpoints_h200.main(["base", "--work", str(work), "--minutes", "0.12", *long])
        if (work / "base" / "short" / "checkpoints").exists():
            break
    out = tmp_path / "out"
    names = ["--weights", "small/plain-0.02", "small/gone", "--carry", "base/short"]
    checkpoints_h200.main(["pack", "--work", str(work), "--out", str(out), *names])
    assert len([path for path in out.rglob("*") if path.is_file()]) == 5
    there = tmp_path / "there"
    checkpoints_h200.main(["unpack", "--work", str(there), "--out", str(out)])
    assert (there / "recipe" / "muon-2" / "metrics.jsonl").exists()
    assert (there / "recipe.md").exists()
    packed = there / "small" / "plain-0.02" / "model"
    assert huggingface.load(packed).config.num_layers == 6
    assert json.loads((packed / "config.json").read_text())["dtype"] == "bfloat16"
    for name in ("README.md", "pretraining.json", "spiece.model"):
        assert (packed / name).read_bytes() == (work / "small" / "plain-0.02" / "model" / name).read_bytes()
    for name in ("all", "heldout"):
        assert [path.name for path in (there / name).iterdir()] == ["manifest.json"]  # for the card: of which texts
        shutil.rmtree(there / name)
        (there / name).symlink_to(work / name)
    shutil.rmtree(there / "base")
    carry_run.unpack(out / "base-short", there / "base" / "short")
    assert checkpoints_h200.main(["base", "--work", str(there), *long])
    assert run_info(there / "base" / "short")["carried"]
    # Carried once more after its end, it is finished again, and continued.
    again = tmp_path / "again"
    checkpoints_h200.main(["pack", "--work", str(there), "--out", str(tmp_path / "more"), "--carry", "base/short"])
    carry_run.unpack(tmp_path / "more" / "base-short", again / "base" / "short")
    for name in ("all", "heldout"):
        (again / name).symlink_to(work / name)
    capfd.readouterr()
    assert not checkpoints_h200.main(["base", "--work", str(again), "--after", "short", *long])
    assert "long: not in this command" in capfd.readouterr().out
    assert checkpoints_h200.main(["base", "--work", str(again), *long])
    assert checkpoints_h200.main(["base", "--work", str(again), "--after", "short", *long])
    last = read_pretraining(again / "base" / "long" / "model")
    assert last is not None
    assert last.initialized_from == "short"
    assert huggingface.load(again / "base" / "long").config.max_positions == 512


def test_the_variant_furthest_above_both_targets_is_trained_longer_and_stays_so(tmp_path: Path) -> None:
    def evaluated(name: str, mlm: float, sop: float) -> None:
        (tmp_path / "recipe" / name).mkdir(parents=True, exist_ok=True)
        record = {"kind": "evaluation", "mlm_acc": mlm, "sop_acc": sop}
        (tmp_path / "recipe" / name / "metrics.jsonl").write_text(json.dumps(record) + "\n")

    evaluated("muon-2", 0.42, 0.655)
    evaluated("muon-order-mask-2", 0.405, 0.665)
    evaluated("lamb-2", 0.50, 0.80)  # is trained longer in any case
    assert [run.name for run in checkpoints_h200.long_recipe_runs(tmp_path)] == ["muon-order-mask-7", "lamb-7"]
    evaluated("muon-2", 0.42, 0.68)
    assert [run.name for run in checkpoints_h200.long_recipe_runs(tmp_path)] == ["muon-order-mask-7", "lamb-7"]


def test_a_run_that_swallows_the_first_signal_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; seen = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: seen.append(1) or (len(seen) > 1 and sys.exit(143)))\n"
        "open(sys.argv[-1], 'w').close()\n"
        "time.sleep(60); time.sleep(60)"
    )

    def started(name: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)])
        while not (tmp_path / name).exists():
            time.sleep(0.01)
        return process

    monkeypatch.setattr(checkpoints_h200, "SECONDS_BETWEEN_SIGNALS", 0.2)
    assert checkpoints_h200.wait_or_stop(started("first"), 0.1) == 143
    monkeypatch.setattr(checkpoints_h200, "GRACE", 0.1)
    assert checkpoints_h200.wait_or_stop(started("second"), 0.1) == -9


def test_runs_at_a_time_compile_with_fewer_threads_and_those_after_them_do_not(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    threads = []

    def started(words: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
        threads.append(env["TORCHINDUCTOR_COMPILE_THREADS"])
        return popen(["false"])

    popen = subprocess.Popen
    monkeypatch.setattr(checkpoints_h200.subprocess, "Popen", started)
    monkeypatch.setattr(checkpoints_h200, "shared_gpu", contextlib.nullcontext)
    common = ["--work", str(work), "--out", str(work.parent / "out")]
    checkpoints_h200.main(["shapes", *common, "--parallel", "4"])
    checkpoints_h200.main(["base", *common])
    assert threads == ["2"] * 5 + ["8"]


def test_a_run_whose_model_was_not_written_yet_is_not_done(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = work / "base" / "short"
    run.mkdir(parents=True)
    (run / "run_info.json").write_text('{"actual": {}}')
    asked = []
    monkeypatch.setattr(checkpoints_h200, "openalbert", lambda words, *_: asked.append(words) or 1)
    assert not checkpoints_h200.main(["base", "--work", str(work), "--out", str(work.parent / "out")])
    assert len(asked) == 1


def test_a_run_that_hangs_leaves_time_for_the_others(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(checkpoints_h200, "openalbert", lambda words, seconds, parallel: asked.append(seconds) or 1)
    checkpoints_h200.main(
        ["shapes", "--work", str(work), "--out", str(work.parent / "out"), "--length", "1", "--minutes", "9"]
    )
    assert asked == [60 + checkpoints_h200.SLACK] * 5


def test_every_candidate_shape_is_within_the_limits() -> None:
    base = small_shapes.gigaflops(small_shapes.PRESETS["albert-base"])
    assert 3 <= len(small_shapes.CANDIDATES) <= 4
    for name, config in small_shapes.CANDIDATES.items():
        assert base / small_shapes.gigaflops(config) >= small_shapes.LEAST_RATIO, name
        assert small_shapes.megabytes(config) <= small_shapes.MOST_MEGABYTES, name
        assert config.head_size == 64, name


def test_the_minutes_of_the_recipe_fit_into_half_an_hour(tmp_path: Path) -> None:
    runs = [*checkpoints_h200.short_recipe_runs(), *checkpoints_h200.long_recipe_runs(tmp_path)]
    # Each takes 0.6 minutes besides, preparation as much; two of them are stopped and resumed.
    assert 0.6 + sum(run.minutes + 0.6 for run in runs) + 2 * 0.7 <= 26.5
