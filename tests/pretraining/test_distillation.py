"""Distillation: the loss against fp64 numbers, a teacher that stays as it is, exact resume, refusals, and learning."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pretraining.made_shards import easy_text, made_shards
from tests.pretraining.micro_runs import command, micro_run, records, run_info, weights

from openalbert import cli
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import distillation_score, evaluate, pretraining, teacher_predictions
from openalbert.pretraining.settings import Distillation
from openalbert.text.shards import open_shards
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
# A student half as wide as its teacher.
STUDENT = (
    "--model.hidden-size 32 --model.ffn-size 64 --model.num-heads 2 --model.vocab-size 300 --model.embedding-size 16 "
)


def model(hidden_size: int = 32, seed: int = 0, dropout: float = 0.1) -> AlbertModel:
    torch.manual_seed(seed)
    config = AlbertConfig(
        vocab_size=300, embedding_size=16, hidden_size=hidden_size, num_layers=2, num_heads=2, ffn_size=64,
        max_positions=32, initializer_range=0.2, hidden_dropout=dropout, attention_dropout=dropout,
    )  # fmt: skip
    return AlbertModel(config, PRETRAINING_HEADS)


@pytest.fixture(scope="module")
def teacher_run(tmp_path_factory: pytest.TempPathFactory, easy_shards: Path) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "teacher"
    return micro_run(easy_shards, out, "--steps 300 --model.vocab-size 300 --evaluate-every 1000 --save-every 1000")


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        cli.main(words)
    return " ".join(capsys.readouterr().err.split())


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_distillation_loss_is_the_divergence_computed_in_numpy(temperature: float) -> None:
    dice = np.random.default_rng(1)
    student, teacher = 4 * dice.normal(size=(2, 3, 5, 40))
    valid = dice.random((3, 5)) < 0.6
    found = distillation_score(*map(torch.from_numpy, (student, teacher, valid)), temperature)

    def probabilities(logits: np.ndarray) -> np.ndarray:
        powers = np.exp(logits / temperature)
        return powers / powers.sum(-1, keepdims=True)

    p, q = probabilities(teacher), probabilities(student)
    divergence = (p * np.log(p / q)).sum(-1)
    assert found.loss_sum.item() == pytest.approx(temperature**2 * divergence[valid].sum(), rel=1e-5)
    assert found.predictions == valid.sum()
    assert found.correct == (student.argmax(-1) == teacher.argmax(-1))[valid].sum()


def test_the_gradient_of_the_distillation_loss_is_the_difference_of_the_probabilities() -> None:
    torch.manual_seed(1)
    student = torch.randn(2, 3, 20, requires_grad=True)
    teacher, valid, temperature = torch.randn(2, 3, 20), torch.tensor([[True, True, False], [False, True, True]]), 2.0
    distillation_score(student, teacher, valid, temperature).loss_sum.backward()
    difference = (student / temperature).softmax(-1) - (teacher / temperature).softmax(-1)
    torch.testing.assert_close(student.grad, temperature * difference.detach() * valid[..., None])


def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it(easy_shards: Path) -> None:
    batch = Batches(open_shards(easy_shards), Objective(max_length=32), 6, seed=3).at(0)
    found = pretraining(model(dropout=0.0), teacher=model().eval()).scores(batch, 2)["distillation"]
    assert found.loss_sum.item() == pytest.approx(0, abs=1e-4)
    assert found.correct == found.predictions == batch.valid.sum()


def test_the_student_alone_is_given_gradients_and_the_weights_sum_to_one(easy_shards: Path) -> None:
    batch = Batches(open_shards(easy_shards), Objective(max_length=32), 6, seed=3).at(0)
    student, teacher = model(), model(hidden_size=64, seed=1).eval()
    task = pretraining(student, teacher=teacher, distillation=Distillation(weight=0.7), order_weight=2.0)
    assert list(task.predictions(batch)) == list(task.scores(batch, 1)) == ["mlm", "distillation", "sop"]
    assert task.weights == pytest.approx({"mlm": 0.3, "distillation": 0.7, "sop": 2.0})
    task.scores(batch, 1)["distillation"].loss_sum.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert student.encoder.embedding.word.weight.grad is not None
    assert not teacher_predictions(teacher, batch).requires_grad


def test_an_evaluation_is_the_same_with_and_without_a_teacher(easy_shards: Path) -> None:
    heldout = Batches(open_shards(easy_shards, "heldout"), Objective(max_length=32), 8, seed=0)
    student, teacher = model(), model(hidden_size=64, seed=1).eval()
    alone, taught = (
        evaluate(task, student, heldout, 2, 2, CPU)
        for task in (pretraining(student), pretraining(student, teacher=teacher))
    )
    assert alone == taught


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_student_learns_faster_from_its_teacher_than_from_the_text_alone(
    tmp_path: Path, easy_shards: Path, teacher_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{STUDENT} --steps 120 --evaluate-every 60 --save-every 1000"
    alone = micro_run(easy_shards, tmp_path / "alone", words)
    capsys.readouterr()
    taught = micro_run(easy_shards, tmp_path / "taught", f"{words} --distill {teacher_run}")
    assert "distilled from teacher (" in capsys.readouterr().err
    losses = [records(run, "evaluation")[-1]["mlm_loss"] for run in (alone, taught)]
    assert losses[1] < losses[0]
    train = records(taught, "train")
    assert train[-1]["distillation_loss"] < 0.5 * train[0]["distillation_loss"]
    assert train[-1]["distillation_acc"] > train[0]["distillation_acc"]
    assert "distillation_loss" not in records(taught, "evaluation")[-1]


def test_a_distilled_model_names_its_teacher(tmp_path: Path, easy_shards: Path, teacher_run: Path) -> None:
    words = f"{STUDENT} --steps 4 --distill {teacher_run} --distillation.weight 0.8 --distillation.temperature 2"
    run = micro_run(easy_shards, tmp_path / "run", words)
    known = read_pretraining(run / "model")
    assert known is not None
    assert (known.distilled_from, known.initialized_from) == ("teacher", "")
    assert run_info(run)["teacher"]["name"] == "teacher"
    assert len(run_info(run)["teacher"]["sha256"]) == 64
    assert "| distilled from | teacher, weight 0.8, temperature 2 |" in (run / "model" / "README.md").read_text()
    assert "distilled from" not in (teacher_run / "model" / "README.md").read_text()


def test_a_distilled_run_resumes_to_the_bit_from_a_teacher_that_was_moved(
    tmp_path: Path, easy_shards: Path, teacher_run: Path
) -> None:
    words = f"{STUDENT} --steps 6 --save-every 3 --depth-schedule 1,2@0.5 --optimizer.kind muon"
    whole = micro_run(easy_shards, tmp_path / "whole", f"{words} --distill {teacher_run}")
    broken = Path(shutil.copytree(whole, tmp_path / "broken"))
    shutil.rmtree(broken / "checkpoints" / "step-00000006")
    shutil.rmtree(broken / "model")
    moved = Path(shutil.copytree(teacher_run / "model", tmp_path / "moved"))
    micro_run(easy_shards, broken, f"{words} --distill {moved}")
    before, after = weights(whole), weights(broken)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_micro_batches_do_not_change_what_a_student_learns(
    tmp_path: Path, easy_shards: Path, teacher_run: Path
) -> None:
    words = f"{STUDENT} --steps 5 --distill {teacher_run}"
    whole = micro_run(easy_shards, tmp_path / "whole", words)
    split = micro_run(easy_shards, tmp_path / "split", f"{words} --speed.micro-batch 2")
    for name, tensor in weights(split).items():
        torch.testing.assert_close(tensor, weights(whole)[name], rtol=1e-4, atol=1e-5)


def test_two_processes_distill_what_one_does(tmp_path: Path, easy_shards: Path, teacher_run: Path) -> None:
    words = f"{STUDENT} --steps 4 --log-every 1 --speed.device cpu --distill {teacher_run}"
    one, two = micro_run(easy_shards, tmp_path / "one", words), tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [*torchrun, "-m", "openalbert", *command(easy_shards, two, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for alone, together in zip(records(one, "train"), records(two, "train"), strict=True):
        for name in ("loss", "mlm_loss", "distillation_loss", "distillation_acc"):
            assert alone[name] == pytest.approx(together[name], rel=1e-4)


def test_a_dry_run_counts_the_teacher(
    tmp_path: Path, easy_shards: Path, teacher_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from openalbert.model.cost import forward_flops_per_token, teacher_memory
    from openalbert.pretraining.run import step_cost, step_memory
    from openalbert.recipes.pretraining import defaults_for

    settings, config = defaults_for("albert-small"), huggingface.load(teacher_run).config
    length = settings.objective.max_length
    alone, taught = step_cost(settings, None, 0.15, 6), step_cost(settings, config, 0.15, 6)
    assert taught - alone == pytest.approx(forward_flops_per_token(config, length))
    assert step_memory(settings, 2, CPU, config)[1] == teacher_memory(config, 2, length, "fp32")
    cli.main(command(easy_shards, tmp_path / "run", f"{STUDENT} --steps 6 --distill {teacher_run} --dry-run"))
    assert "distilled from teacher" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_run_is_resumed_with_its_own_teacher_only(
    tmp_path: Path, easy_shards: Path, teacher_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = Path(shutil.copytree(teacher_run / "model", tmp_path / "teacher"))
    words = f"{STUDENT} --steps 4 --save-every 2"
    run = micro_run(easy_shards, tmp_path / "run", f"{words} --distill {teacher}")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    shutil.rmtree(run / "model")
    where = f"{run / 'checkpoints' / 'step-00000002'}: it was distilled from teacher (weights with the checksum"
    said = refusal(command(easy_shards, run, words), capsys)
    assert where in said
    assert "give --distill with that model" in said
    other = huggingface.load(teacher)
    with torch.no_grad():
        other.encoder.pooler.bias[0] += 1
    huggingface.save(other, tmp_path / "other")
    said = refusal(command(easy_shards, run, f"{words} --distill {tmp_path / 'other'}"), capsys)
    assert where in said
    assert "but other has weights with the checksum" in said
    shutil.rmtree(teacher)
    said = refusal(command(easy_shards, run, f"{words} --distill {teacher}"), capsys)
    assert f"{teacher}: there is no such model to distill from" in said


def test_a_teacher_cannot_join_a_run_that_had_none(
    tmp_path: Path, easy_shards: Path, teacher_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{STUDENT} --steps 4 --save-every 2"
    run = micro_run(easy_shards, tmp_path / "run", words)
    said = refusal(command(easy_shards, run, f"{words} --distill {teacher_run}"), capsys)
    assert f"{run}: it was trained without a teacher: leave out --distill" in said
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    shutil.rmtree(run / "model")
    said = refusal(command(easy_shards, run, f"{words} --distill {teacher_run}"), capsys)
    assert "step-00000002: it was trained without a teacher: leave out --distill" in said


def test_a_teacher_that_cannot_teach_is_refused(
    tmp_path: Path, easy_shards: Path, teacher_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = tmp_path / "run", f"{STUDENT} --steps 4"
    others = made_shards(tmp_path, easy_text(20), sample_seed=2)
    said = refusal(command(others, run, f"{words} --distill {teacher_run}"), capsys)
    assert f"{teacher_run}: its vocabulary is not the one that the shards were made with" in said
    huggingface.save(AlbertModel(model().config), tmp_path / "headless")
    said = refusal(command(easy_shards, run, f"{words} --distill {tmp_path / 'headless'}"), capsys)
    assert "it has no masked-LM head to distill from" in said
    larger = AlbertModel(AlbertConfig(**{**vars(model().config), "vocab_size": 301}), PRETRAINING_HEADS)
    huggingface.save(larger, tmp_path / "larger")
    said = refusal(command(easy_shards, run, f"{words} --distill {tmp_path / 'larger'}"), capsys)
    assert "it scores 301 pieces, but the student 300" in said
    long = f"{words} --distill {tmp_path / 'short'} --objective.max-length 64"
    huggingface.save(model(), tmp_path / "short")
    assert "it has 32 positions, but objective.max_length is 64" in refusal(command(easy_shards, run, long), capsys)
    assert not (run / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--distillation.weight 0.3", "distillation has settings but no teacher: name one with --distill"),
        ("--distill t --distillation.weight 0", "distillation.weight is 0.0: give a number above 0, up to 1"),
        ("--distill t --distillation.temperature 0", "distillation.temperature is 0.0: give a number above 0"),
    ],
)
def test_settings_of_distillation_that_mean_nothing_are_refused(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str], words: str, sentence: str
) -> None:
    assert sentence in refusal(command(easy_shards, tmp_path / "run", words), capsys)


def test_the_settings_of_a_distilled_run_read_back(tmp_path: Path, easy_shards: Path, teacher_run: Path) -> None:
    run = micro_run(easy_shards, tmp_path / "run", f"{STUDENT} --steps 2 --distill {teacher_run}")
    kept = json.loads((run / "run.json").read_text())
    assert kept["distill"] == str(teacher_run)
    assert kept["distillation"] == {"weight": 0.5, "temperature": 1.0}
