"""bench/checkpoints_h200.py goes through all stages at a tiny size: prepared, stopped, resumed, carried and packed."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text

from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import carry_run
import checkpoints_h200
import small_shapes

# Narrow layers and short examples; numbers of layers, groups and depths are those of the real runs.
TINY = (
    "-- --model.hidden-size 32 --model.ffn-size 64 --model.num-heads 2 --model.embedding-size 16 --batch-size 8 "
    "--objective.max-length 32 --evaluation-examples 16 --evaluate-every 1000 --log-every 5"
).split()


@pytest.fixture
def work(tmp_path: Path, small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text that came in two commands, shards, and a teacher with their vocabulary."""
    monkeypatch.setattr(checkpoints_h200, "START", 0.0)
    config = AlbertConfig(
        vocab_size=small.vocab_size, embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, ffn_size=64,
        max_positions=32,
    )  # fmt: skip
    huggingface.save(AlbertModel(config, PRETRAINING_HEADS), tmp_path / "teacher", small)
    monkeypatch.setattr(checkpoints_h200, "TEACHER", str(tmp_path / "teacher"))
    small.save(tmp_path / "tokenizer")
    common = ["prepare", "--work", str(tmp_path / "work"), "--tokenizer", str(tmp_path / "tokenizer"), "--text"]
    for name, seed in (("wikipedia-00.txt", 0), ("books-00.txt", 1), ("heldout.txt", 2)):
        (tmp_path / name).write_text(easy_text(40, seed=seed))
    checkpoints_h200.main([*common, str(tmp_path / "books-00.txt")])
    checkpoints_h200.main([*common, str(tmp_path / "heldout.txt"), "--name", "heldout"])
    checkpoints_h200.main([*common, str(tmp_path / "wikipedia-00.txt"), "--name", "two"])
    checkpoints_h200.main([*common, "--name", "all"])
    return tmp_path / "work"


def run_info(folder: Path) -> dict[str, object]:
    known: dict[str, object] = json.loads((folder / "run_info.json").read_text())
    return known


@pytest.mark.slow
def test_the_stages_go_from_text_to_checkpoints(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    manifests = {name: json.loads((work / name / "manifest.json").read_text()) for name in ("two", "all")}
    assert [len(manifest["inputs"]) for manifest in manifests.values()] == [1, 2]
    common = ["--work", str(work), "--length", "0.02"]
    checkpoints_h200.main(["variants", *common, *TINY])
    checkpoints_h200.main(["recipe", *common, *TINY])
    checkpoints_h200.main(["shapes", *common, "--parallel", "2", *TINY])
    checkpoints_h200.main(["small", *common, *TINY])
    said = capfd.readouterr().out
    assert said.count(": done") == 4 + 4 + 5 + 2
    for stage, rows in (("variants", 4), ("recipe", 4), ("shapes", 5), ("small", 2)):
        assert (work / f"{stage}.md").read_text().count("| yes |") == rows
    checkpoints_h200.main(["recipe", *common, *TINY])
    assert ": done" not in capfd.readouterr().out  # nothing is run twice
    settings = {name: json.loads((work / "recipe" / name / "run.json").read_text()) for name in ("muon-2", "lamb-7")}
    assert [one["optimizer"]["kind"] for one in settings.values()] == ["muon", "lamb"]
    assert [one["objective"]["masked_lm"]["rate"] for one in settings.values()] == [0.3, 0.15]
    student = read_pretraining(work / "small" / "distilled-0.02" / "model")
    assert student is not None
    assert student.distilled_from == "teacher"

    checkpoints_h200.main(["small", *common, "--after", "distilled-0.02", *TINY])
    assert "distilled-0.02-long-0.02: done" in capfd.readouterr().out
    longer = read_pretraining(work / "small" / "distilled-0.02-long-0.02" / "model")
    assert longer is not None
    assert (longer.initialized_from, longer.distilled_from) == ("distilled-0.02", "teacher")

    # The base run is stopped in its first part, carried to another folder, and ends there, at the longer length.
    long = ["--length", "0.25", *TINY]
    for _ in range(10):  # a slow machine may not come to a first step in the time of one command
        checkpoints_h200.main(["base", "--work", str(work), "--minutes", "0.12", *long])
        if (work / "base" / "short" / "checkpoints").exists():
            break
    assert "long: not in this command" in capfd.readouterr().out
    out = tmp_path / "out"
    names = ["--weights", "small/plain-0.02", "small/gone", "--carry", "base/short"]
    checkpoints_h200.main(["pack", "--work", str(work), "--out", str(out), *names])
    said = capfd.readouterr().out
    assert "small/gone: left out" in said
    assert re.search(r"^4 files, \d", said, re.MULTILINE)
    there = tmp_path / "there"
    checkpoints_h200.main(["unpack", "--work", str(there), "--out", str(out)])
    assert (there / "recipe" / "muon-2" / "metrics.jsonl").exists()
    assert (there / "recipe.md").exists()
    assert huggingface.load(there / "small" / "plain-0.02" / "model").config.num_layers == 6
    for name in ("all", "heldout"):
        (there / name).symlink_to(work / name)
    shutil.rmtree(there / "base")
    carry_run.unpack(out / "base-short", there / "base" / "short")
    checkpoints_h200.main(["base", "--work", str(there), *long])
    assert run_info(there / "base" / "short")["carried"]
    last = read_pretraining(there / "base" / "long" / "model")
    assert last is not None
    assert last.initialized_from == "short"
    assert huggingface.load(there / "base" / "long").config.max_positions == 512


def test_every_candidate_shape_is_within_the_limits() -> None:
    base = small_shapes.gigaflops(small_shapes.PRESETS["albert-base"])
    assert 3 <= len(small_shapes.CANDIDATES) <= 4
    for name, config in small_shapes.CANDIDATES.items():
        assert base / small_shapes.gigaflops(config) >= small_shapes.LEAST_RATIO, name
        assert small_shapes.megabytes(config) <= small_shapes.MOST_MEGABYTES, name
        assert config.head_size == 64, name


def test_the_minutes_of_the_recipe_fit_into_half_an_hour() -> None:
    assert sum(run.minutes + 0.5 for run in checkpoints_h200.recipe_runs()) <= 29
