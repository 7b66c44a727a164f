"""bench/heldout.py reproduces the evaluation of a run and refuses impossible arguments."""

import json
import sys
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text, made_shards
from tests.pretraining.micro_runs import micro_run, records, run_info

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import heldout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("data"), easy_text(150), heldout=easy_text(40, seed=1))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = "--steps 20 --evaluation-examples 32 --objective.sentence-order.chunks whole"
    words += " --objective.sentence-order.short-fraction 0"
    return micro_run(data, tmp_path_factory.mktemp("runs") / "run", words)


def test_the_last_evaluation_of_a_run_is_reproduced(data: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "not" / "there" / "evaluations.json"
    heldout.main([str(run), str(data), "--on", "32:whole:32:0", "32:google:16", "--out", str(out)])
    found = json.loads(out.read_text())
    first, second = found["evaluations"]
    own = records(run, "evaluation")[-1]
    for name in ("mlm_loss", "mlm_acc", "sop_loss", "sop_acc"):
        assert first[name] == pytest.approx(own[name], rel=1e-5)
    assert (first["examples"], first["chunks"], first["short_fraction"]) == (32, "whole", 0.0)
    assert (second["examples"], second["chunks"], second["short_fraction"]) == (16, "google", 0.1)
    assert second["mlm_loss"] != first["mlm_loss"]
    assert found["heldout"]["tokens"] == run_info(run)["data"]["heldout_tokens"]


def test_fewer_examples_at_a_time_are_the_same_examples(data: Path, run: Path, tmp_path: Path) -> None:
    losses = []
    for batch in ("4", "32"):
        words = ["--on", "32:whole:32", "--batch", batch, "--out", str(tmp_path / batch)]
        heldout.main([str(run / "model"), str(data), *words])
        losses.append(json.loads((tmp_path / batch).read_text())["evaluations"][0]["mlm_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_text_of_another_vocabulary_is_refused(data: Path) -> None:
    with pytest.raises(SystemExit, match="these shards were made with the vocabulary"):
        heldout.main(["albert-base-wikibooks", str(data)])


def test_examples_that_batches_would_leave_out_are_found(data: Path, run: Path) -> None:
    with pytest.raises(SystemExit, match="10 examples do not divide into batches of 4"):
        heldout.main([str(run / "model"), str(data), "--on", "32:whole:10", "--batch", "4"])


@pytest.mark.parametrize(
    "asked", ["512", "512:all:8", "512:whole:0", "long:whole:8", "2:whole:8", "512:whole:8:2", "512:whole:8:0:0"]
)
def test_a_question_that_makes_no_sense_is_refused(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        heldout.main(["albert-base-wikibooks", "shards", "--on", asked])
    assert asked in capsys.readouterr().err
