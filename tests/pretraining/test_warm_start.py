"""What a model says of its pretraining: all runs behind it, oldest first, and every token counted once."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.pretraining.micro_runs import command, micro_run, run_info, weights

from openalbert import cli, pretrained
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import NONE, read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.pretraining.provenance import InitialModel, initialization, optimizer_state_of
from openalbert.pretraining.settings import Pretrain
from openalbert.settings import to_dict
from openalbert.train import checkpoint


def card_of(run: Path) -> str:
    return (run / "model" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, easy_shards: Path) -> Path:
    return micro_run(easy_shards, tmp_path_factory.mktemp("runs") / "first", "--steps 4")


def test_the_model_of_a_run_says_what_that_run_took(first: Path) -> None:
    known, told = read_pretraining(first / "model"), run_info(first)
    assert known is not None
    assert known.tokens == told["actual"]["tokens"] > 0
    assert known.text_tokens == told["data"]["train_tokens"]
    assert known.steps == 4
    assert known.minutes == pytest.approx(60 * told["actual"]["hours"])
    assert (known.device, known.precision, known.length) == (told["device"], "fp32", 32)
    assert (known.initialized_from, known.before) == ("", ())
    assert "| initialized from | weights drawn at random |" in card_of(first)


def test_runs_that_start_from_one_another_add_up(first: Path, easy_shards: Path, tmp_path: Path) -> None:
    second = micro_run(easy_shards, tmp_path / "second", f"--steps 3 --warm-start {first}")
    # Copied away from its run, the model still tells.
    copied = Path(shutil.copytree(second / "model", tmp_path / "taken away"))
    third = micro_run(easy_shards, tmp_path / "third", "--steps 2 --objective.max-length 24", preset=str(copied))
    runs = [read_pretraining(run / "model") for run in (first, second, third)]
    assert all(run is not None for run in runs)
    seen = [run_info(run)["actual"]["tokens"] for run in (first, second, third)]
    assert [run.tokens for run in runs if run] == [seen[0], seen[0] + seen[1], sum(seen)]
    last = runs[2]
    assert last is not None
    assert [run.steps for run in (*last.before, last)] == [4, 3, 2]
    assert [run.initialized_from for run in (*last.before, last)] == ["", "first", "taken away"]
    assert [run.length for run in (*last.before, last)] == [32, 32, 24]
    card = card_of(third)
    assert f"| tokens seen | {seen[2]:,}, after {seen[0] + seen[1]:,} in the runs before this one |" in card
    assert f"over {sum(seen):,} tokens of text" in card
    assert f"It saw {sum(seen):,} tokens; the paper's" in card
    assert "| initialized from | taken away |" in card
    assert "It was trained on inputs of at most 32 tokens" in card
    assert "unknown and not counted" not in card


def test_what_a_run_began_with_is_asked_when_it_begins(first: Path, easy_shards: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(first / "model", tmp_path / "source"))
    words = f"--warm-start {source} --steps 6 --save-every 2 --keep-last 9"
    run = micro_run(easy_shards, tmp_path / "run", words)
    expected = read_pretraining(run / "model")
    # Killed before its last steps; meanwhile the source says something else.
    shutil.rmtree(run / "model")
    for step in (4, 6):
        shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
    told = run_info(run)
    del told["actual"]
    (run / "run_info.json").write_text(json.dumps(told))
    (source / "pretraining.json").write_text(json.dumps(to_dict(NONE)))
    again = read_pretraining(micro_run(easy_shards, run, words) / "model")
    assert expected is not None
    assert again is not None
    assert (again.before, again.tokens, again.steps) == (expected.before, expected.tokens, 6)


def test_a_warm_start_can_take_the_optimizer_state_of_its_run(tmp_path: Path, easy_shards: Path) -> None:
    words = "--schedule.kind constant --schedule.warmup-fraction 0 --optimizer.kind muon --save-every 3 --keep-last 9"
    first = micro_run(easy_shards, tmp_path / "first", f"--steps 3 {words}")
    # The batches are those of the first steps again, so the moments alone tell the two starts apart.
    for name, more in (("fresh", ""), ("kept", "--warm-start-optimizer")):
        micro_run(easy_shards, tmp_path / name, f"--steps 1 {words} --warm-start {first} {more}")
    kept = checkpoint.latest(tmp_path / "kept" / "checkpoints")[0]
    before = checkpoint.latest(first / "checkpoints")[0]
    assert kept is not None
    assert before is not None
    name = "encoder.embedding.word.weight.v"
    ratio = kept.read()[0]["optimizer"][name] / before.read()[0]["optimizer"][name]
    # v is a running mean: of what there was, 0.999 is left after one step.
    assert ratio.nan_to_num(1).min() >= 0.999 - 1e-6
    assert any(
        not torch.equal(tensor, weights(tmp_path / "fresh")[name])
        for name, tensor in weights(tmp_path / "kept").items()
    )


def test_new_positions_start_with_an_empty_optimizer_state(tmp_path: Path, easy_shards: Path, first: Path) -> None:
    found = optimizer_state_of(InitialModel.named(str(first)), 200)
    known = checkpoint.latest(first / "checkpoints")[0]
    assert known is not None
    for moment in "mv":
        name = f"encoder.embedding.position.weight.{moment}"
        assert torch.equal(found[name][:128], known.read()[0]["optimizer"][name])
        assert not found[name][128:].any()
        assert len(found[name]) == 200
    words = f"--steps 2 --warm-start {first} --warm-start-optimizer --model.max-positions 200"
    assert (micro_run(easy_shards, tmp_path / "longer", words) / "model" / "config.json").exists()


def test_an_optimizer_state_that_is_not_there_or_does_not_fit_is_refused(
    tmp_path: Path, easy_shards: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in (
        (f"--warm-start {first / 'model'} --warm-start-optimizer", "it has no checkpoint, so there is no optimizer"),
        (f"--warm-start {first} --warm-start-optimizer --optimizer.kind adamw", "does not fit"),
        ("--warm-start-optimizer", "there is no warm start: name a run with --warm-start"),
    ):
        with pytest.raises(SystemExit):
            cli.main(command(easy_shards, tmp_path / "run", f"--steps 2 {words}"))
        assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_start_that_says_nothing_is_named_as_unknown(easy_shards: Path, tmp_path: Path, first: Path) -> None:
    source = Path(shutil.copytree(first / "model", tmp_path / "theirs"))
    (source / "pretraining.json").unlink()
    run = micro_run(easy_shards, tmp_path / "run", f"--steps 2 --warm-start {source}")
    known = read_pretraining(run / "model")
    assert known is not None
    assert (known.tokens, known.before) == (run_info(run)["actual"]["tokens"], ())
    assert known.unknown_start == "theirs"
    assert "The pretraining of theirs, whose weights it goes back to, is unknown and not counted." in card_of(run)


def test_a_damaged_start_is_refused_before_anything_is_learned(
    easy_shards: Path, tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(first / "model", tmp_path / "damaged"))
    (source / "pretraining.json").write_text("{")
    with pytest.raises(SystemExit):
        cli.main(command(easy_shards, tmp_path / "run", f"--steps 2 --warm-start {source}"))
    assert f"{source / 'pretraining.json'}: not JSON" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_name_is_a_model_only_where_one_goes_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("albert-base", "albert-base-budget"):
        assert initialization(Pretrain(preset=name)) == {"initialized_from": "", "before": []}
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path)
    huggingface.save(
        AlbertModel(huggingface.PRESETS["albert-micro"], PRETRAINING_HEADS), tmp_path / "of-ours", pretraining=NONE
    )
    [alone] = initialization(Pretrain(preset="of-ours"))["before"]
    assert alone == {name: value for name, value in to_dict(NONE).items() if name != "before"}
    assert initialization(Pretrain(preset="of-ours"))["initialized_from"] == "of-ours"
