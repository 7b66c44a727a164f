"""Resuming a run on other data than its own: refused by content, allowed on purpose, and recorded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pretraining.made_shards import easy_text, made_shards
from tests.pretraining.micro_runs import command, curve, micro_run, records, run_info, weights
from tests.pretraining.test_distributed import torchrun

import openalbert.train.run as run_module
from openalbert import cli
from openalbert.interop.pretraining_json import EarlierData, read_pretraining
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import unigram_entropy
from openalbert.text.shards import open_shards
from openalbert.train.loop import TrainState

WORDS = "--steps 8 --save-every 4 --evaluate-every 4 --log-every 1 --keep-last 9"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("data"), easy_text(150), heldout=easy_text(40, seed=1))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another text with the same vocabulary and held-out text."""
    return made_shards(tmp_path_factory.mktemp("other"), easy_text(90, seed=7), heldout=easy_text(40, seed=1))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    return micro_run(data, tmp_path_factory.mktemp("runs") / "ended", WORDS)


@pytest.fixture
def half(tmp_path: Path, ended: Path) -> Path:
    """A run that was killed after its checkpoint at step 4."""
    run = Path(shutil.copytree(ended, tmp_path / "half"))
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    known = run_info(run)
    del known["actual"]
    (run / "run_info.json").write_text(json.dumps(known))
    return run


def state(run: Path, step: int) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    return record["state"]


def refusal(data: Path, run: Path, capsys: pytest.CaptureFixture[str], words: str = WORDS) -> str:
    """What a resume is refused with; nothing in the folder has changed."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(command(data, run, words))
    assert stop.value.code == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_other_data_in_the_same_folder_are_refused_and_both_are_named(
    tmp_path: Path, data: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "shards"))
    run = micro_run(folder, tmp_path / "run", WORDS)
    shutil.rmtree(run / "model")
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    said = refusal(folder, run, capsys)
    for shards in map(open_shards, (data, other)):
        assert f"the checksum {shards.sha256[:12]} ({shards.num_tokens:,} tokens)" in said
    assert "--allow-new-data to continue" in said


def test_the_same_data_at_another_place_are_resumed_to_the_same_bits(
    tmp_path: Path, data: Path, half: Path, ended: Path
) -> None:
    moved = Path(shutil.copytree(data, tmp_path / "moved"))
    micro_run(moved, half, WORDS)
    assert curve(half) == curve(ended)
    for name, tensor in weights(half).items():
        assert torch.equal(tensor, weights(ended)[name]), name
    known = run_info(half)
    assert known["data"]["folder"] == str(moved)
    assert known["earlier_data"] == []
    assert not [event for event in records(half, "event") if event["what"].startswith("new_")]


def test_a_checkpoint_and_the_run_info_hold_the_checksums(data: Path, ended: Path) -> None:
    expected = {
        "tokenizer": open_shards(data).manifest.tokenizer,
        "train_sha256": open_shards(data).sha256,
        "heldout_sha256": open_shards(data, "heldout").sha256,
    }
    assert expected.items() <= run_info(ended)["data"].items()
    assert expected.items() <= state(ended, 4)["data"].items()
    assert len({*expected.values()}) == 3


def test_new_data_that_are_allowed_are_read_from_their_beginning_and_recorded(
    other: Path, half: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = run_info(half)["data"]
    micro_run(other, half, f"{WORDS} --allow-new-data")
    known, shards = run_info(half), open_shards(other)
    assert (known["data"]["train_sha256"], known["data"]["from_step"]) == (shards.sha256, 4)
    tokens_before = known["data"]["from_tokens"]
    assert known["earlier_data"] == [{**before, "steps": 4, "tokens_seen": tokens_before}]
    assert tokens_before == records(half, "train")[3]["tokens"]
    # The first batch on the new data is the first of their order.
    first = Batches(shards, Objective(max_length=32), 8, seed=1).at(0)
    assert records(half, "train")[4]["tokens"] - tokens_before == int(first.lengths.sum())

    [event] = [event for event in records(half, "event") if event["what"].startswith("new_")]
    assert (event["what"], event["step"]) == ("new_data", 4)
    assert event["text"] in capsys.readouterr().err
    for checksum in (before["train_sha256"], shards.sha256):
        assert checksum[:12] in event["text"]
    told = read_pretraining(half / "model")
    assert told is not None
    assert told.text_tokens == shards.num_tokens
    assert told.earlier_data == (EarlierData(4, tokens_before, before["train_tokens"], before["train_sha256"]),)
    card = (half / "model" / "README.md").read_text()
    assert f"Before, it was trained for 4 steps and {tokens_before:,} tokens on other data" in card
    cli.main(["report", str(half), "--out", str(tmp_path / "page.html")])
    assert "new data" in (tmp_path / "page.html").read_text()
    # A model that begins with this one keeps the history.
    later = read_pretraining(micro_run(other, tmp_path / "later", f"--steps 2 --warm-start {half}") / "model")
    assert later is not None
    assert later.before[0].earlier_data == told.earlier_data


def test_after_new_data_a_resume_needs_no_flag_and_gives_the_same_bits(other: Path, half: Path, tmp_path: Path) -> None:
    words = "--steps 8 --save-every 2 --log-every 1 --keep-last 9"
    micro_run(other, half, f"{words} --allow-new-data")
    expected, losses, told = weights(half), curve(half), run_info(half)["earlier_data"]
    shutil.rmtree(half / "model")
    shutil.rmtree(half / "checkpoints" / "step-00000008")
    micro_run(other, half, words)
    assert curve(half) == losses
    assert run_info(half)["earlier_data"] == told
    for name, tensor in weights(half).items():
        assert torch.equal(tensor, expected[name]), name


def test_new_data_whose_steps_were_lost_are_forgotten(data: Path, other: Path, half: Path, ended: Path) -> None:
    micro_run(other, half, f"{WORDS} --allow-new-data")
    shutil.rmtree(half / "model")
    shutil.rmtree(half / "checkpoints" / "step-00000008")
    micro_run(data, half, WORDS)
    assert curve(half) == curve(ended)
    assert run_info(half)["earlier_data"] == []
    assert run_info(half)["unigram_entropy"] == run_info(ended)["unigram_entropy"]
    assert not [event for event in records(half, "event") if event["what"] == "new_data"]


def test_another_vocabulary_is_refused_even_where_new_data_are_allowed(
    tmp_path: Path, data: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The same shards under another fingerprint: ids mean other words.
    foreign = made_shards(tmp_path, easy_text(150), heldout=easy_text(40, seed=1), sample_seed=9)
    vocabularies = [open_shards(folder).manifest.tokenizer for folder in (data, foreign)]
    assert vocabularies[0] != vocabularies[1]
    for words in (WORDS, f"{WORDS} --allow-new-data"):
        said = refusal(foreign, half, capsys, words)
        assert f"trained with the vocabulary {vocabularies[0][:12]}" in said
        assert f"were made with {vocabularies[1][:12]}" in said


def test_other_held_out_data_are_evaluated_on_and_recorded(
    tmp_path: Path, data: Path, half: Path, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heldout = made_shards(tmp_path, easy_text(30, seed=5))
    record = state(half, 4)
    assert record["best"] is not None
    micro_run(data, half, f"{WORDS} --heldout {heldout}")
    assert curve(half) == curve(ended)
    [event] = [event for event in records(half, "event") if event["what"].startswith("new_")]
    assert (event["what"], event["step"]) == ("new_heldout", 4)
    assert event["text"] in capsys.readouterr().err
    [first, second] = records(half, "evaluation")
    assert first == records(ended, "evaluation")[0]
    # The best is that of the new held-out data alone.
    assert state(half, 8)["best"] == second["mlm_loss"] + second["sop_loss"]


def test_a_score_on_held_out_data_that_are_gone_is_not_the_models(
    tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = made_shards(tmp_path, easy_text(90, seed=7))
    micro_run(bare, half, f"{WORDS} --allow-new-data")
    said = capsys.readouterr().err
    assert "from step 4 on there are no held-out data to evaluate on" in said
    assert "is evaluated on other held-out data" not in said
    card = (half / "model" / "README.md").read_text()
    assert "No held-out text was evaluated; on the training batches, after 8 steps" in card
    assert "model-index" not in card
    cli.main(["report", str(half), "--out", str(tmp_path / "page.html")])
    assert "On training batches, at step 8." in (tmp_path / "page.html").read_text()


def test_a_dry_run_refuses_the_data_that_the_run_would_refuse(
    other: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--allow-new-data to continue" in refusal(other, half, capsys, f"{WORDS} --dry-run")


def test_a_run_that_is_done_reports_it_whatever_became_of_its_data(
    other: Path, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    micro_run(other, ended, WORDS)
    assert "this run is done" in capsys.readouterr().err


def test_what_was_usual_of_the_loss_is_forgotten_with_the_data_it_was_of(
    other: Path, half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[list[float]] = []
    real = run_module.training_steps

    def spied(*given: Any, **named: Any) -> Any:
        [train_state] = [one for one in given if isinstance(one, TrainState)]
        windows.append(train_state.recent)
        return real(*given, **named)

    monkeypatch.setattr(run_module, "training_steps", spied)
    assert len(state(half, 4)["train_state"]["recent"]) == 4
    micro_run(other, half, f"{WORDS} --allow-new-data")
    assert windows == [[]]
    watch = state(half, 8)["loss_monitor"]
    assert "unigram_entropy" not in watch  # the new text's, which run_info.json has
    assert run_info(half)["unigram_entropy"] == unigram_entropy(open_shards(other))


def test_two_processes_refuse_other_data_alike_and_continue_on_purpose_alike(half: Path, other: Path) -> None:
    done = torchrun("-m", "openalbert", *command(other, half, f"{WORDS} --speed.device cpu"))
    assert done.returncode == 1
    assert done.stderr.count("--allow-new-data to continue") == 1
    words = f"{WORDS} --speed.device cpu --allow-new-data"
    done = torchrun("-m", "openalbert", *command(other, half, words))
    assert done.returncode == 0, done.stderr
    assert run_info(half)["data"]["from_step"] == 4
