"""What a run carries to the disk comes back, whoever asks for it."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.optim.optimizer import make_optimizer, optimizer_tensors
from openalbert.optim.settings import OptimizerSettings
from openalbert.train.checkpointer import Checkpointer
from openalbert.train.device import Device
from openalbert.train.metrics_log import MetricsLog
from openalbert.train.run_dir import CHECKPOINTS
from openalbert.train.state import TrainState

CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=8, hidden_size=16, num_layers=2, num_heads=2, ffn_size=16, max_positions=16
)


def checkpointer(folder: Path, seed: int, micro_batch: int | None = 4) -> Checkpointer:
    torch.manual_seed(seed)
    model = AlbertModel(CONFIG, PRETRAINING_HEADS)
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=0.01))
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    metrics_log = MetricsLog(folder, True, False, lambda depth: 1.0, 1.0)
    return Checkpointer(folder, model, optimizer, metrics_log, Device(torch.device("cpu"), "fp32"), micro_batch)


def test_everything_comes_back_and_what_is_the_runs_own_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = checkpointer(tmp_path, 1)
    assert first.latest() is None
    first.metrics_log.record({"kind": "event", "step": 6, "what": "depth", "text": "kept"})
    first.metrics_log.window.loss = 2.5
    first.save(TrainState(step=7, tokens=70, parts=3, recent=[1.5]), {"own": [1, "two"]}, keep_last=1, is_best=True)
    first.metrics_log.record({"kind": "event", "step": 8, "what": "depth", "text": "after it"})
    second = checkpointer(tmp_path, 2)
    found = second.latest()
    assert found is not None
    assert found.state["own"] == [1, "two"]
    assert second.restore(found, parts=1) == TrainState(step=7, tokens=70, parts=3, recent=[1.5])
    assert second.metrics_log.window.loss == 2.5
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    assert "going on from step 7 (step-00000007)" in capsys.readouterr().err
    others = dict(second.model.named_parameters())
    assert all(torch.equal(parameter, others[name]) for name, parameter in first.model.named_parameters())
    moments = optimizer_tensors(second.optimizer, second.model)
    assert all(
        torch.equal(tensor, moments[name]) for name, tensor in optimizer_tensors(first.optimizer, first.model).items()
    )


def test_a_number_of_micro_batches_that_belongs_to_other_wishes_is_not_taken_over(tmp_path: Path) -> None:
    checkpointer(tmp_path, 1).save(TrainState(step=7, parts=3), {}, keep_last=1, is_best=False)
    other = checkpointer(tmp_path, 1, micro_batch=None)
    found = other.latest()
    assert found is not None
    assert other.restore(found, parts=5).parts == 5


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpointer(tmp_path, 1)
    for step in (3, 6):
        run.save(TrainState(step=step), {}, keep_last=2, is_best=False)
    (tmp_path / CHECKPOINTS / "step-00000006" / "state.json").write_text("{}")
    found = run.latest()
    assert found is not None
    assert found.folder.name == "step-00000003"
    assert "does not fit its sha256 sum" in capsys.readouterr().err


def test_the_metrics_are_on_the_disk_before_the_checkpoint_that_counts_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkpointer(tmp_path, 1)
    run.metrics_log.record({"kind": "event", "step": 1, "what": "depth", "text": "kept"})
    synced, fsync = [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    run.save(TrainState(step=7), {}, keep_last=1, is_best=False)
    assert synced[0] == "metrics.jsonl"
    assert "state.json" in synced


@pytest.mark.parametrize("rank", [0, 1])
def test_one_process_writes_and_all_of_them_wait_until_it_has_written(tmp_path: Path, rank: int) -> None:
    there_when_waiting = []

    class OneOfTwo(Device):
        def wait_for_all(self) -> None:
            there_when_waiting.append((tmp_path / CHECKPOINTS / "step-00000007").exists())

    run = dataclasses.replace(checkpointer(tmp_path, 1), device=OneOfTwo(torch.device("cpu"), "fp32", rank, world=2))
    run.save(TrainState(step=7), {}, keep_last=1, is_best=False)
    assert there_when_waiting == [rank == 0]


def test_a_checkpoint_of_another_optimizer_is_refused_with_its_name(tmp_path: Path) -> None:
    checkpointer(tmp_path, 1).save(TrainState(step=7), {}, keep_last=1, is_best=False)
    run = checkpointer(tmp_path, 1)
    other = dataclasses.replace(run, optimizer=make_optimizer(run.model, OptimizerSettings(kind="adamw")))
    found = other.latest()
    assert found is not None
    with pytest.raises(UserError, match=r"step-00000007: .* missing: it was saved from another model or optimizer"):
        other.restore(found, parts=1)
