"""The verb `pretrain` as a person meets it: what a run leaves behind, how it goes, where it starts, what it refuses."""

import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pretraining.made_shards import easy_text, made_shards
from tests.pretraining.micro_runs import command, curve, micro_run, records, run_info, weights

from openalbert import cli
from openalbert.formatting import number
from openalbert.interop import huggingface
from openalbert.interop.weights import read_tensors
from openalbert.pretraining import run as pretraining_run
from openalbert.pretraining.provenance import extend_positions
from openalbert.pretraining.run import PretrainingRun
from openalbert.pretraining.settings import Pretrain
from openalbert.settings import from_json
from openalbert.text.normalization import Normalization
from openalbert.text.tokenizer import Tokenizer
from openalbert.train import checkpoint, loop
from openalbert.train.device import Device, open_device
from openalbert.train.estimate import DRY_STEPS
from openalbert.train.loop import Step

EASY = "--steps 120 --model.num-layers 1 --optimizer.bias-correction --save-every 60"
TRAIN = (
    "kind step tokens progress loss mlm_loss mlm_acc sop_loss sop_acc "
    "lr grad_norm depth skipped seconds tokens_per_second"
).split()
EVALUATION = ("kind step tokens examples mlm_loss mlm_acc perplexity sop_loss sop_acc seconds").split()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, easy_shards: Path) -> Path:
    """A run of one layer that has learnt its text."""
    return micro_run(easy_shards, tmp_path_factory.mktemp("runs") / "ended", EASY)


def refused(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """What a command line is refused with: an exit code, words, and never a stack trace."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    said = capsys.readouterr()
    assert stop.value.code == code
    assert "Traceback" not in said.err
    return said.err + said.out


# What a run leaves behind.


def test_a_run_leaves_settings_run_info_metrics_checkpoints_and_a_model(ended: Path, easy_shards: Path) -> None:
    left = sorted(path.name for path in ended.iterdir())
    assert [name for name in left if not name.startswith(".")] == [
        "checkpoints", "metrics.jsonl", "model", "run.json", "run_info.json",
    ]  # fmt: skip
    assert {path.name for path in (ended / "checkpoints").iterdir()} >= {"step-00000060", "step-00000120"}
    files = {path.name for path in (ended / "model").iterdir()}
    assert files >= {
        "config.json", "model.safetensors", "spiece.model", "tokenizer.json", "tokenizer_config.json", "README.md",
    }  # fmt: skip
    known = run_info(ended)
    assert known["data"]["folder"] == str(easy_shards)
    assert known["data"]["heldout_tokens"] > 0
    assert known["parameters"] == sum(tensor.numel() for tensor in huggingface.load(ended / "model").parameters())
    assert (known["world_size"], known["restarts"], known["is_fused"]) == (1, 0, False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is loaded
def test_a_gpu_on_which_our_kernels_fail_their_trial_is_reported(
    easy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(easy_shards, tmp_path / "run", "--speed.compile layer")[1:]
    settings = cli.parse(Pretrain, "pretrain", words)
    monkeypatch.setattr(pretraining_run, "attends_masked", lambda *_: True)
    for is_right in (True, False):
        monkeypatch.setattr(pretraining_run, "can_fuse", lambda *_, is_right=is_right: is_right)
        with open_device(settings.speed) as device:
            run = PretrainingRun(settings, device)
            run.run_info = run.first_run_info()
            run._introduce()
        assert run.run_info["is_fused"] is is_right
        assert ("torch's own" in capsys.readouterr().err) is not is_right


def test_the_settings_read_back_equal_and_hold_what_was_given(ended: Path, easy_shards: Path) -> None:
    text = (ended / "run.json").read_text()
    settings = from_json(text, Pretrain)
    given = cli.parse(Pretrain, "pretrain", command(easy_shards, ended, EASY)[1:])
    # The vocabulary is that of the shards; everything else is as it was given.
    assert settings == dataclasses.replace(given, model=dataclasses.replace(given.model, vocab_size=300))
    assert settings.model.num_layers == 1
    assert settings.budget.steps == 120


def test_every_record_is_whole_and_in_order(ended: Path) -> None:
    train, evaluation = records(ended, "train"), records(ended, "evaluation")
    assert [record["step"] for record in train] == list(range(5, 121, 5))
    assert [record["step"] for record in evaluation] == [60, 120]
    for record in train:
        assert set(record) == set(TRAIN)
        assert all(math.isfinite(value) for name, value in record.items() if name != "kind")
        assert 0 <= record["progress"] < 1
    for record in evaluation:
        assert set(record) == set(EVALUATION)
        assert math.isclose(record["perplexity"], math.exp(record["mlm_loss"]))
        assert record["examples"] == 32
    assert [record["tokens"] for record in train] == sorted(record["tokens"] for record in train)


def test_the_loss_falls_far_below_word_frequencies_on_held_out_text_too(ended: Path) -> None:
    entropy = run_info(ended)["unigram_entropy"]
    first, last = records(ended, "train")[0], records(ended, "evaluation")[-1]
    assert abs(first["mlm_loss"] - math.log(300)) < 0.5
    assert last["mlm_loss"] < entropy - 0.5


def test_the_estimate_and_the_truth_stand_side_by_side(ended: Path) -> None:
    estimate, actual = run_info(ended)["estimate"], run_info(ended)["actual"]
    assert set(estimate) == set(actual) == {"steps", "tokens", "hours", "memory_bytes", "disk_bytes"}
    assert estimate["steps"] == actual["steps"] == 120
    assert math.isclose(estimate["tokens"], actual["tokens"], rel_tol=0.1)
    assert math.isclose(actual["hours"] * 3600, records(ended, "train")[-1]["seconds"], rel_tol=1e-9)
    assert actual["tokens"] == records(ended, "train")[-1]["tokens"]


def test_the_model_folder_gives_the_same_scores_here_and_in_transformers(ended: Path) -> None:
    from transformers import AutoModelForPreTraining, AutoTokenizer

    text, folder = "Ka ka ka [MASK] ka.", ended / "model"
    theirs = AutoModelForPreTraining.from_pretrained(folder).eval()
    encoded = AutoTokenizer.from_pretrained(folder)(text, "Lo lo lo.", return_tensors="pt")
    tokenizer, ours = Tokenizer.load(folder), huggingface.load(folder)
    first, second = tokenizer.encode("Ka ka ka"), tokenizer.encode("Lo lo lo.")
    ids = encoded["input_ids"]
    assert ids[0, : 1 + len(first)].tolist() == [tokenizer.cls_id, *first]
    assert ids[0, -1 - len(second) :].tolist() == [*second, tokenizer.sep_id]
    with torch.no_grad():
        expected = theirs(**encoded)
        hidden = ours.encode(ids, encoded["token_type_ids"])
        torch.testing.assert_close(ours.scores("masked_lm", hidden), expected.prediction_logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.scores("sentence_order", hidden), expected.sop_logits, rtol=1e-4, atol=1e-4)
    last = read_tensors(ended / "checkpoints" / "step-00000120" / "model.safetensors")
    for name, tensor in ours.named_parameters():
        assert torch.equal(tensor, last[name]), name


# How long it is, and how it goes.


def test_a_budget_in_tokens_is_kept_and_the_learning_rate_follows_it(tmp_path: Path, easy_shards: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--tokens 4000 --log-every 1")
    train = records(out, "train")
    assert train[-2]["tokens"] < 4000 <= train[-1]["tokens"]
    for before, record in itertools.pairwise(train):
        assert record["progress"] == before["tokens"] / 4000
        if record["progress"] >= 0.025:
            assert math.isclose(record["lr"], 0.01 * (1 - record["progress"]))


def test_a_budget_in_minutes_is_kept_and_the_learning_rate_follows_it(tmp_path: Path, easy_shards: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--minutes 0.01 --log-every 1")
    train = records(out, "train")
    assert train[-2]["seconds"] < 0.6 <= train[-1]["seconds"]
    for before, record in itertools.pairwise(train):
        assert math.isclose(record["progress"], before["seconds"] / 0.6)
    assert train[-1]["lr"] < train[1]["lr"]


def test_any_number_of_micro_batches_gives_the_same_weights(tmp_path: Path, easy_shards: Path) -> None:
    whole = micro_run(easy_shards, tmp_path / "whole", "--steps 6 --log-every 1")
    split = micro_run(easy_shards, tmp_path / "split", "--steps 6 --log-every 1 --speed.micro-batch 2")
    for one, other in zip(curve(whole), curve(split), strict=True):
        assert math.isclose(one, other, rel_tol=1e-5)
    other_weights = weights(split)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(tensor, other_weights[name], rtol=1e-3, atol=1e-4)


def test_the_learning_rate_for_another_batch_follows_the_square_root_and_is_printed(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--steps 2 --log-every 1 --optimizer.learning-rate 0.008 --reference-batch 128 --schedule.warmup-fraction 0"
    out = micro_run(easy_shards, tmp_path / "run", words)
    said = capsys.readouterr().err
    assert "learning rate 0.002 for batch 8: 0.008 at batch 128 times the square root of 8/128" in said
    assert [record["lr"] for record in records(out, "train")] == [0.002, 0.001]


def test_the_depth_grows_where_its_schedule_says_and_the_last_model_is_deep(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 8 --log-every 1 --depth-schedule 1,2@0.5")
    assert [record["depth"] for record in records(out, "train")] == [1] * 4 + [2] * 4
    [event] = [event for event in records(out, "event") if event["what"] == "depth"]
    assert (event["step"], event["text"]) == (5, "from now on 2 layers are run, up to here 1")
    assert event["text"] in capsys.readouterr().err
    assert json.loads((out / "model" / "config.json").read_text())["num_hidden_layers"] == 2


def test_the_masking_rate_changes_where_its_schedule_says(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--steps 8 --log-every 1 --objective.masked-lm.rate 0.3 --mask-schedule 0.15@0.5"
    usual = micro_run(easy_shards, tmp_path / "usual", "--steps 8 --log-every 1 --objective.masked-lm.rate 0.3")
    out = micro_run(easy_shards, tmp_path / "run", words)
    before, after = ([record["mlm_loss"] for record in records(run, "train")] for run in (usual, out))
    assert before[:4] == after[:4]
    assert before[4] != after[4]
    [event] = [event for event in records(out, "event") if event["what"] == "masking_rate"]
    assert (event["step"], event["text"]) == (5, "from now on 15.0 % of the tokens are masked, up to here 30.0 %")
    assert event["text"] in capsys.readouterr().err
    assert "| masking | 30.0 % of the tokens (later: 0.15@0.5), n-grams" in (out / "model" / "README.md").read_text()


def test_a_changed_masking_rate_resumes_to_the_bit(tmp_path: Path, easy_shards: Path) -> None:
    words = "--steps 8 --log-every 1 --save-every 2 --keep-last 9 --mask-schedule 0.3@0.25,0.2@0.5"
    whole = micro_run(easy_shards, tmp_path / "whole", words)
    for kept in (2, 4, 6):
        broken = Path(shutil.copytree(whole, tmp_path / f"broken-{kept}"))
        for step in range(kept + 2, 9, 2):
            shutil.rmtree(broken / "checkpoints" / f"step-{step:08}")
        shutil.rmtree(broken / "model")
        micro_run(easy_shards, broken, words)
        before, after = weights(whole), weights(broken)
        assert all(torch.equal(before[name], after[name]) for name in before)
        told = [[event["step"] for event in records(run, "event")] for run in (whole, broken)]
        assert told[0] == told[1] == [3, 5]


def test_a_masking_rate_that_no_step_would_see_is_not_announced(tmp_path: Path, easy_shards: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 4 --mask-schedule 0.3@0.9")
    assert not [event for event in records(out, "event") if event["what"] == "masking_rate"]


def test_a_checkpoint_of_another_version_is_refused_with_a_sentence(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--steps 4 --save-every 2"
    out = micro_run(easy_shards, tmp_path / "run", words)
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints" / "step-00000004")
    found, _ = checkpoint.latest(out / "checkpoints")
    assert found is not None
    tensors, state = found.read()
    state["train_state"]["next_depth"] = state["train_state"].pop("next_progress")
    checkpoint.save(out / "checkpoints", 2, tensors, state, keep_last=1, is_best=False)
    said = refused(command(easy_shards, out, words), capsys)
    assert "written by another version of openalbert (next_depth is not known)" in said


def test_a_run_on_the_plateau_of_word_frequencies_reports_it_once(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 120 --log-every 10 --optimizer.learning-rate 1e-6")
    events = [event for event in records(out, "event") if event["what"] == "plateau"]
    assert len(events) == 1
    assert events[0]["step"] == 100  # before, every run is there
    assert "no better than word frequencies" in events[0]["text"]
    assert capsys.readouterr().err.count("no better than word frequencies") == 1


def test_a_dozen_steps_are_too_few_to_speak_of_a_plateau(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    micro_run(easy_shards, tmp_path / "run", "--steps 12 --log-every 2 --optimizer.learning-rate 1e-6")
    assert "no better than word frequencies" not in capsys.readouterr().err


# What may be chosen.


def test_without_a_sentence_objective_nothing_is_said_of_order(tmp_path: Path, easy_shards: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 5 --objective.sentence-order.objective none")
    for kind in ("train", "evaluation"):
        [record] = records(out, kind)
        assert not [name for name in record if "sentence" in name]
        assert "mlm_acc" in record
    assert list(huggingface.load(out / "model").heads) == ["masked_lm"]


def test_documents_of_one_sentence_can_be_learnt_from_where_no_order_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = made_shards(tmp_path, "\n\n".join(easy_text(100).split("\n")).replace("\n\n\n\n", "\n\n"))
    said = refused(command(lines, tmp_path / "sop", "--steps 5"), capsys)
    assert "has the two sentences that a pair needs" in " ".join(said.replace("│", " ").split())
    out = micro_run(lines, tmp_path / "run", "--steps 40 --objective.sentence-order.objective none")
    assert curve(out)[-1] < curve(out)[0] - 0.5
    known = run_info(out)["data"]
    assert (known["unusable_documents"], known["unusable_tokens"]) == (0, 0)
    assert "cannot be used" not in capsys.readouterr().err
    assert "one or two segments" in (out / "model" / "README.md").read_text()


def test_documents_that_cannot_be_used_are_named_at_the_start_and_are_not_counted_as_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = "Kalo minu persta."
    mixed = made_shards(tmp_path, "\n\n".join([easy_text(30).strip(), *[alone] * 20]) + "\n")
    out = micro_run(mixed, tmp_path / "run", "--steps 5")
    known = run_info(out)
    unused = 20 * len(Tokenizer.load(mixed / "tokenizer").encode(alone))
    assert (known["data"]["unusable_documents"], known["data"]["unusable_tokens"]) == (20, unused)
    assert f"20 documents with {unused} tokens cannot be used: they have one sentence" in capsys.readouterr().err
    times = known["actual"]["tokens"] / (known["data"]["train_tokens"] - unused)
    card = (out / "model" / "README.md").read_text()
    assert "20 of the training documents" in card
    assert f"The model saw the other training tokens {number(times, 3)} times." in card
    page = tmp_path / "page.html"
    cli.main(["report", str(out), "--out", str(page)])
    assert f"20 documents, {unused} tokens" in page.read_text()


def test_next_sentence_prediction_is_another_task_on_the_same_text(tmp_path: Path, easy_shards: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 5 --objective.sentence-order.objective nsp")
    assert set(records(out, "train")[0]) == {name.replace("sop_", "nsp_") for name in TRAIN}


def test_bert_and_adamw_are_pretrained_by_the_same_command(tmp_path: Path, easy_shards: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 20 --optimizer.kind adamw", preset="bert-micro")
    losses = curve(out)
    assert losses[-1] < losses[0] - 0.5
    model = huggingface.load(out / "model")
    assert (len(model.encoder.attention), len(model.encoder.ffn)) == (2, 2)
    optimizer = read_tensors(out / "checkpoints" / "step-00000020" / "optimizer.safetensors")
    assert len(optimizer) >= 2 * len(list(model.parameters()))


@pytest.mark.parametrize(
    ("preset", "rest"), [("albert-micro", "lamb"), ("albert-micro", "adamw"), ("bert-micro", "lamb")]
)
def test_muon_learns_and_resumes_to_the_bit(tmp_path: Path, easy_shards: Path, preset: str, rest: str) -> None:
    words = f"--steps 20 --optimizer.kind muon --optimizer.rest {rest} --save-every 10 --optimizer.learning-rate 0.005"
    out = micro_run(easy_shards, tmp_path / "run", words, preset)
    losses, ended, saved = curve(out), weights(out), out / "checkpoints" / "step-00000020" / "optimizer.safetensors"
    assert losses[-1] < losses[0] - 0.5
    state = read_tensors(saved)
    copies = 2 if preset == "bert-micro" else 1
    assert sum(name.endswith(".momentum") for name in state) == 4 * copies
    for folder in (saved.parent, out / "model"):
        shutil.rmtree(folder)
    micro_run(easy_shards, out, words, preset)
    assert run_info(out)["restarts"] == 1
    assert curve(out) == losses
    assert all(torch.equal(tensor, ended[name]) for name, tensor in weights(out).items())
    assert all(torch.equal(tensor, state[name]) for name, tensor in read_tensors(saved).items())


def test_both_rates_of_muon_follow_the_batch_and_are_printed(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--steps 2 --optimizer.kind muon --optimizer.learning-rate 0.008 --reference-batch 128"
    out = micro_run(easy_shards, tmp_path / "run", words)
    said = capsys.readouterr().err
    assert "learning rate 0.002 for batch 8: 0.008 at batch 128 times the square root of 8/128" in said
    assert "Muon for the matrices of the layers: learning rate 0.0025 for batch 8: 0.01 at batch 128" in said
    card = (out / "model" / "README.md").read_text()
    assert "Muon for the matrices of the layers, learning rate 0.00250, momentum 0.95; LAMB for the rest" in card


def test_evaluations_mask_at_a_rate_of_their_own_whatever_that_of_training_is(
    tmp_path: Path, easy_shards: Path
) -> None:
    """Two runs of a rate of 0 have the same weights: what differs is what is asked of them."""
    frozen = "--steps 2 --log-every 1 --optimizer.learning-rate 0"
    runs = {
        name: micro_run(easy_shards, tmp_path / name, f"{frozen} {words}")
        for name, words in {
            "usual": "",
            "more": "--objective.masked-lm.rate 0.4",
            "all": "--objective.masked-lm.rate 0.4 --evaluation-mask-rate 0.4",
        }.items()
    }
    evaluated = {name: records(out, "evaluation")[-1]["mlm_loss"] for name, out in runs.items()}
    assert evaluated["usual"] == evaluated["more"] != evaluated["all"]
    assert curve(runs["usual"]) != curve(runs["more"]) == curve(runs["all"])


def test_held_out_text_may_lie_in_another_folder(tmp_path: Path, easy_shards: Path) -> None:
    other = made_shards(tmp_path, easy_text(30, seed=5))
    out = micro_run(easy_shards, tmp_path / "run", f"--steps 5 --heldout {other}")
    same = micro_run(easy_shards, tmp_path / "same", "--steps 5")
    assert curve(out) == curve(same)
    assert records(out, "evaluation")[0]["mlm_loss"] != records(same, "evaluation")[0]["mlm_loss"]


def test_without_held_out_text_a_run_says_how_to_have_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = micro_run(made_shards(tmp_path, easy_text(30)), tmp_path / "run", "--steps 5")
    assert not records(out, "evaluation")
    assert "no held-out text: prepare the shards with --heldout 0.01" in capsys.readouterr().err
    assert run_info(out)["data"]["heldout_tokens"] == 0


# Where it starts.


@pytest.mark.parametrize("source", ["run", "model"])
def test_a_warm_start_from_a_shallower_run_begins_where_that_ended(
    tmp_path: Path, easy_shards: Path, ended: Path, source: str
) -> None:
    folder = ended if source == "run" else ended / "model"
    words = f"--steps 5 --optimizer.learning-rate 0 --warm-start {folder}"
    out = micro_run(easy_shards, tmp_path / "run", words)
    before, after = weights(ended), weights(out)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((out / "model" / "config.json").read_text())["num_hidden_layers"] == 2
    assert records(out, "evaluation")[0]["mlm_loss"] < math.log(300) - 1


def test_a_warm_start_with_more_positions_continues_those_there_were(
    tmp_path: Path, easy_shards: Path, ended: Path
) -> None:
    name = "albert.embeddings.position_embeddings.weight"
    before = weights(ended)
    wanted = len(before[name]) + 16
    words = f"--steps 5 --optimizer.learning-rate 0 --model.max-positions {wanted} --warm-start {ended}"
    after = weights(micro_run(easy_shards, tmp_path / "run", words))
    torch.testing.assert_close(after[name], extend_positions(before[name], wanted))
    assert all(torch.equal(before[other], after[other]) for other in before if other != name)


def test_a_warm_start_takes_no_position_that_was_never_trained(tmp_path: Path, easy_shards: Path, ended: Path) -> None:
    name = "albert.embeddings.position_embeddings.weight"
    words = "--steps 20 --objective.max-length 24"
    before = weights(micro_run(easy_shards, tmp_path / "short", words))[name]
    words = f"--steps 5 --optimizer.learning-rate 0 --warm-start {tmp_path / 'short'}"
    after = weights(micro_run(easy_shards, tmp_path / "run", words))[name]
    assert len(before) == len(after) > 24
    torch.testing.assert_close(after, extend_positions(before[:24], len(before)))
    assert not torch.equal(after[24:], before[24:])


def test_a_model_folder_may_stand_in_the_place_of_a_preset(tmp_path: Path, easy_shards: Path, ended: Path) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 5 --optimizer.learning-rate 0", preset=str(ended / "model"))
    before, after = weights(ended), weights(out)
    assert all(torch.equal(before[name], after[name]) for name in before)
    expected, found = records(ended, "evaluation")[-1], records(out, "evaluation")[-1]
    assert math.isclose(found["mlm_loss"], expected["mlm_loss"], rel_tol=1e-5)


def test_a_warm_start_is_refused_where_sizes_differ_or_nothing_is_there(
    tmp_path: Path, easy_shards: Path, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = command(easy_shards, tmp_path / "run", f"--steps 5 --model.hidden-size 32 --warm-start {ended}")
    assert "a warm start needs the same sizes" in refused(narrow, capsys)
    nowhere = command(easy_shards, tmp_path / "run", f"--steps 5 --warm-start {tmp_path / 'nowhere'}")
    assert "there is no such model folder to take weights from" in refused(nowhere, capsys)
    deeper = command(easy_shards, tmp_path / "run", f"--steps 5 --warm-start {ended}", preset="bert-micro")
    assert "only where they are shared" in refused(deeper, capsys)
    # What was refused has not claimed the folder: mended, the command runs there.
    micro_run(easy_shards, tmp_path / "run", f"--steps 5 --warm-start {ended}")


def test_a_warm_start_is_refused_where_the_vocabulary_is_another(
    tmp_path: Path, easy_shards: Path, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(ended / "model", other)
    Tokenizer((other / "spiece.model").read_bytes(), Normalization(cased=True)).save(other)
    for words, preset in ((f"--steps 5 --warm-start {other}", "albert-micro"), ("--steps 5", str(other))):
        told = refused(command(easy_shards, tmp_path / "run", words, preset=preset), capsys)
        assert "its vocabulary is not the one that the shards were made with" in told
        assert f"--tokenizer {other}" in told
    (tmp_path / "more").mkdir()
    more = made_shards(tmp_path / "more", easy_text(30), vocab_size=320)  # another size is told in the same words
    told = refused(command(more, tmp_path / "run", "--steps 5", preset=str(ended / "model")), capsys)
    assert f"--tokenizer {ended / 'model'}" in told
    (other / "spiece.model").unlink()  # nobody knows its vocabulary then, and the sizes fit
    micro_run(easy_shards, tmp_path / "run", f"--steps 5 --warm-start {other}")


# Its folder.


def test_a_dry_run_reports_what_a_run_takes_and_leaves_nothing_behind(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    micro_run(easy_shards, tmp_path / "run", "--steps 5000 --dry-run")
    said = capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.iterdir())
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.split()}
    assert rows["steps"] == ["5,000"]
    assert 0.9 * 5000 * 8 * 32 < int(rows["tokens"][0].replace(",", "")) <= 5000 * 8 * 32
    for name, units in {"time": ("s", "min", "h"), "memory": ("MiB", "GiB"), "disk": ("MiB",)}.items():
        assert float(rows[name][0]) > 0
        assert rows[name][1] in units


@pytest.mark.parametrize("words", ["--dry-run", ""])
@pytest.mark.parametrize("place", ["taken", "taken/below", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_refused_by_a_dry_run_as_by_a_run(
    place: str, words: str, tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("kept")
    said = refused(command(easy_shards, tmp_path / place, f"--steps 5 {words}"), capsys)
    assert "is not a folder" in said or "cannot be written to" in said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("taken", "kept")]


def test_a_dry_run_times_steps_of_full_depth(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    depths = []

    def training_steps(*given: Any) -> Iterator[Step]:
        for step in loop.training_steps(*given):
            depths.append(step.depth)
            yield step

    monkeypatch.setattr("openalbert.train.run.training_steps", training_steps)
    micro_run(easy_shards, tmp_path / "run", "--steps 5000 --dry-run --depth-schedule 1,2@0.9")
    assert depths == [2] * DRY_STEPS
    assert f"step {DRY_STEPS}: loss" in capsys.readouterr().out


def test_a_dry_run_takes_no_more_steps_than_the_run_would(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    micro_run(easy_shards, tmp_path / "run", "--steps 1 --dry-run")
    said = capsys.readouterr().out
    assert "step 1: loss" in said
    assert "step 2: loss" not in said
    assert {"steps", "time", "memory", "disk"} <= {line.split()[0] for line in said.splitlines() if line.split()}


def test_a_dry_run_takes_a_warm_up_that_is_longer_than_itself(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    micro_run(easy_shards, tmp_path / "run", "--steps 5000 --schedule.warmup-steps 100 --dry-run")
    assert f"step {DRY_STEPS}: loss" in capsys.readouterr().out


def test_an_ended_run_reports_it_and_its_files_stay_as_they_are(
    easy_shards: Path, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()}
    micro_run(easy_shards, ended, EASY)
    assert "this run is done" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()} == before


def test_the_folder_of_another_run_is_refused_until_asked_to_start_over(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = micro_run(easy_shards, tmp_path / "run", "--steps 5")
    before = curve(out)
    other = "--steps 6 --seed 4 --model.hidden-dropout 0.1 --keep-last 1"
    said = refused(command(easy_shards, out, other), capsys)
    assert "holds a run with other settings" in said
    for change in ("steps was 5, now 6", "seed was 1, now 4", "model.hidden_dropout was 0.0, now 0.1", "--fresh"):
        assert change in said
    assert "keep_last" not in said  # that changes nothing of what is learned
    assert curve(out) == before
    micro_run(easy_shards, out, f"{other} --fresh")
    assert run_info(out)["actual"]["steps"] == 6
    assert len(records(out, "train")) == 1
    assert curve(out) != before
    # --fresh is said once; the run does not remember it.
    micro_run(easy_shards, out, other)
    assert "this run is done" in capsys.readouterr().err


# What is refused.


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        ("--steps 5 --stpes 6", "--steps", 2),
        ("--steps 5 --model.hiden-size 32", "--model.hidden-size", 2),
        ("--steps 5 --data nowhere", "nowhere: no shards here", 1),
        ("--steps 5 --heldout nowhere", "nowhere: no shards here", 1),
        ("--steps 5 --objective.max-length 129", "max_length is 129 but model.max_positions is 128", 1),
        ("--steps 5 --tokens 100", "steps and tokens came: give exactly one", 1),
        ("--steps 0", "the budget is 0 steps", 1),
        ("--steps 5 --batch-size 0", "batch_size is 0", 1),
        ("--steps 5 --depth-schedule 1,3@0.5", "the model has 2 layers", 1),
        ("--steps 5 --mask-schedule 0.15", "'0.15' is not understood: write rates with the fraction", 1),
        (
            "--steps 5 --mask-schedule 0.3@0.5 --objective.masked-lm.max-predictions 2",
            "at rate 0.3 an example has 2 predictions, as at rate 0.15",
            1,
        ),
        ("--steps 5 --model.vocab-size 200", "the shards have 300 pieces", 1),
        ("--steps 5 --speed.device tpu", "the device 'tpu' cannot be used", 1),
        ("--steps 5 --optimizer.momentum 0.9", "momentum belongs to muon but the optimizer is lamb", 1),
        ("--steps 5 --evaluation-mask-rate 0", "evaluation_mask_rate is 0.0: give a fraction of the tokens", 1),
        ("--steps 5 --schedule.warmup-steps 9", "shorten the warm-up", 1),
        ("--minutes 1 --schedule.warmup-steps 9", "give warmup_fraction instead", 1),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    words: str, sentence: str, code: int, tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(command(easy_shards, tmp_path / "run", words), capsys, code)
    assert sentence in " ".join(said.replace("│", " ").split())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_misspelt_preset_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'albert-micro'?" in refused(["pretrain", "albert-mirco"], capsys)
    assert "did you mean 'albert-base-budget'?" in refused(["pretrain", "albert-base-bugdet"], capsys)
    assert "name the model right after the verb" in refused(["pretrain"], capsys)


def test_a_run_may_resume_with_another_micro_batch(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Speed is free to change: the steps that are left are cut anew, and the examples stay the same."""
    out = micro_run(easy_shards, tmp_path / "run", "--steps 4 --save-every 2 --batch-size 8")
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints" / "step-00000004")
    capsys.readouterr()
    micro_run(easy_shards, out, "--steps 4 --save-every 2 --batch-size 8 --speed.micro-batch 2")
    said = capsys.readouterr().err
    assert "resuming from step 2" in said
    assert "in 4 micro-batches" in said


def test_where_a_run_is_taken_up_again_is_noted_if_it_is_another_place(
    tmp_path: Path, easy_shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, words = tmp_path / "run", "--steps 8 --save-every 2 --keep-last 9"

    def again(last: int) -> dict[str, Any]:
        """Go on from a step, all later ones being lost."""
        shutil.rmtree(out / "model", ignore_errors=True)
        for folder in (out / "checkpoints").glob("step-*"):
            if int(folder.name[5:13]) > last:
                shutil.rmtree(folder)
        return run_info(micro_run(easy_shards, out, words))

    first = run_info(micro_run(easy_shards, out, words))
    assert first["moves"] == again(2)["moves"] == []  # the same place
    capsys.readouterr()
    monkeypatch.setattr(Device, "describe", lambda _: "1 x Abacus")
    moved = again(4)
    assert "parameters on 1 x Abacus" in capsys.readouterr().err
    [move] = moved["moves"]
    assert (move["step"], move["device"], moved["device"]) == (4, "1 x Abacus", first["device"])
    assert again(6)["moves"] == [move]  # still there
    monkeypatch.undo()
    last = again(6)
    assert ([move["step"] for move in last["moves"]], last["restarts"]) == ([4, 6], 4)
    told = f"{first['device']}, then 1 x Abacus, then {first['device']}"
    assert json.loads((out / "model" / "pretraining.json").read_text())["device"] == told
    assert f"| hardware | {told} |" in (out / "model" / "README.md").read_text().replace("\\", "")
    last["matmul_peak_flops"] = last["moves"][0]["matmul_peak_flops"] = last["moves"][1]["matmul_peak_flops"] = 1e12
    (out / "run_info.json").write_text(json.dumps(last))  # as on GPUs: of a CPU no peak is measured
    cli.main(["report", str(out), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert told in page
    assert page.count("FLOP/s, then ") == 2  # each place has its own
    assert again(4)["moves"] == []  # what was learned over there is lost
