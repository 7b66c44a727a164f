"""Checkpoints: what was saved comes back to the bit, or the damage is told and the one before is used."""

import dataclasses
import errno
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.optim.optimizer import make_optimizer, optimizer_tensors
from openalbert.optim.settings import OptimizerSettings
from openalbert.run_files import CHECKPOINTS
from openalbert.train import checkpoint
from openalbert.train.checkpoint import Checkpoint, Checkpointer, best, latest, save
from openalbert.train.device import Device
from openalbert.train.loop import TrainState
from openalbert.train.metrics_log import MetricsLog

CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=8, hidden_size=16, num_layers=2, num_heads=2, ffn_size=16, max_positions=16
)


def tensors_of(step: int) -> dict[str, dict[str, Tensor]]:
    random_numbers = torch.Generator().manual_seed(step)
    weight = torch.randn(37, 11, generator=random_numbers)
    moments = {"moment1.weight": weight * 0.1, "moment2.weight": weight**2, "step": torch.tensor(step)}
    return {"model": {"weight": weight, "bias": weight[0].bfloat16()}, "optimizer": moments}


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "window": [step / 3, 1e-310, float("inf")], "best": None}


def save_step(folder: Path, step: int, keep_last: int = 2, is_best: bool = False) -> Checkpoint:
    return save(folder, step, tensors_of(step), state_of(step), keep_last=keep_last, is_best=is_best)


def assert_holds(found: Checkpoint | None, step: int) -> None:
    assert found is not None
    assert found.step == step
    tensors, state = found.read()
    assert state == state_of(step)
    assert tensors.keys() == tensors_of(step).keys()
    for group, named in tensors_of(step).items():
        assert tensors[group].keys() == named.keys()
        for name, tensor in named.items():
            assert tensors[group][name].dtype == tensor.dtype
            assert torch.equal(tensors[group][name], tensor)


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("step-").lstrip("0") for path in folder.iterdir())


def test_what_was_saved_comes_back_to_the_bit(tmp_path: Path) -> None:
    written = save_step(tmp_path / "run" / "checkpoints", 100)
    found, remarks = latest(tmp_path / "run" / "checkpoints")
    assert found == written
    assert not remarks
    assert_holds(found, 100)


@given(numbers=st.lists(st.floats(allow_nan=False)), text=st.text())
def test_the_state_keeps_every_float_and_text(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float], text: str
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    state = {"numbers": numbers, "text": text}
    assert save(folder, 1, {}, state, keep_last=1, is_best=False).read()[1] == state


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum on this machine")
def test_a_new_folder_of_checkpoints_is_on_the_disk_with_all_that_the_first_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    save_step(tmp_path / "run" / "checkpoints", 1)
    files = {"model.safetensors", "optimizer.safetensors", "state.json", "sha256sums"}
    assert set(synced) == {"run", "checkpoints", "step-00000001.partial", *files}
    assert synced[0] == "run"
    assert synced[-1] == "checkpoints"


def test_the_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    folder = save_step(tmp_path, 100).folder
    listing = sorted(path.name for path in folder.iterdir() if path.name != checkpoint.SUMS)
    theirs = subprocess.run(["sha256sum", *listing], cwd=folder, capture_output=True, check=True).stdout
    assert (folder / checkpoint.SUMS).read_bytes() == theirs


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert latest(tmp_path / "none") == (None, [])
    assert best(tmp_path / "none") is None


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400, 500):
        save_step(tmp_path, step, is_best=step in (100, 200))
    assert steps_in(tmp_path) == ["200", "400", "500"]
    assert_holds(latest(tmp_path)[0], 500)
    assert_holds(best(tmp_path), 200)
    save_step(tmp_path, 600, keep_last=1, is_best=True)
    assert steps_in(tmp_path) == ["600"]
    assert_holds(best(tmp_path), 600)


def test_the_best_among_the_last_takes_no_place_of_its_own(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save_step(tmp_path, step, keep_last=2, is_best=step == 200)
    assert steps_in(tmp_path) == ["200", "300"]


@pytest.mark.parametrize("keep_last", [0, -1])
def test_at_least_one_must_be_kept(tmp_path: Path, keep_last: int) -> None:
    with pytest.raises(UserError, match=f"keep_last is {keep_last}"):
        save_step(tmp_path, 100, keep_last=keep_last)


def test_a_step_saved_twice_is_replaced_and_stays_the_best(tmp_path: Path) -> None:
    save_step(tmp_path, 100, is_best=True)
    save(tmp_path, 100, tensors_of(7), state_of(7), keep_last=1, is_best=False)
    found, _ = latest(tmp_path)
    assert found is not None
    assert found.read()[1] == state_of(7)
    assert torch.equal(found.read()[0]["model"]["weight"], tensors_of(7)["model"]["weight"])
    assert best(tmp_path) == found
    assert steps_in(tmp_path) == ["100"]


def test_200_random_flipped_bytes_are_200_found_and_the_one_before_is_used(tmp_path: Path) -> None:
    save_step(tmp_path, 100)
    newest = save_step(tmp_path, 200)
    files = sorted(newest.folder.iterdir())
    assert [file.name for file in files] == [
        "model.safetensors",
        "optimizer.safetensors",
        checkpoint.SUMS,
        checkpoint.STATE,
    ]
    draw = random.Random(0)
    found = 0
    for trial in range(200):
        # Every file has its turn, lest the large ones take all the flips.
        file = files[trial % len(files)]
        whole = file.read_bytes()
        at = draw.randrange(len(whole))
        changed = whole[at] ^ draw.randrange(1, 256)
        file.write_bytes(whole[:at] + bytes([changed]) + whole[at + 1 :])
        used, remarks = latest(tmp_path)
        assert used is not None
        with pytest.raises(UserError, match="remove the folder"):
            newest.read()
        found += used.step == 100 and len(remarks) == 1 and "step-00000200" in remarks[0]
        file.write_bytes(whole)
    assert found == 200
    assert_holds(latest(tmp_path)[0], 200)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "sha256sums"])
def test_a_file_that_is_cut_short_empty_or_gone_is_found(tmp_path: Path, name: str) -> None:
    save_step(tmp_path, 100)
    file = save_step(tmp_path, 200).folder / name
    whole = file.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 0):
        file.write_bytes(whole[:length])
        assert_holds(latest(tmp_path)[0], 100)
    file.unlink()
    used, remarks = latest(tmp_path)
    assert_holds(used, 100)
    assert len(remarks) == 1
    assert remarks[0].startswith(str(tmp_path / "step-00000200"))


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_a_file_or_folder_too_many_is_found(tmp_path: Path, make: Any) -> None:
    save_step(tmp_path, 100)
    make(save_step(tmp_path, 200).folder / "extra.safetensors")
    used, remarks = latest(tmp_path)
    assert_holds(used, 100)
    assert "extra.safetensors" in remarks[0]


def test_a_checkpoint_under_the_name_of_another_step_is_found(tmp_path: Path) -> None:
    save_step(tmp_path, 100).folder.rename(tmp_path / "step-00000300")
    save_step(tmp_path, 200, keep_last=9)
    (tmp_path / "step-00000200").rename(tmp_path / "step-00000100")
    with pytest.raises(UserError, match="holds step 200, not 100"):
        latest(tmp_path)


def test_sums_that_fit_do_not_make_a_state_of_anything(tmp_path: Path) -> None:
    written = save_step(tmp_path, 100)
    for text in ("[]", "{}", "not JSON", '{"step": 100'):
        (written.folder / checkpoint.STATE).write_text(text)
        (written.folder / checkpoint.SUMS).write_text(checkpoint._sums(written.folder))
        with pytest.raises(UserError, match="is not the state of a checkpoint"):
            latest(tmp_path)


def test_if_all_are_damaged_the_user_hears_which_files_and_what_to_do(tmp_path: Path) -> None:
    for step in (100, 200):
        save_step(tmp_path, step)
    (tmp_path / "step-00000100" / "model.safetensors").write_bytes(b"nothing")
    (tmp_path / "step-00000200" / "state.json").unlink()
    with pytest.raises(UserError, match=r"step-00000200.*step-00000100/model\.safetensors.*--fresh"):
        latest(tmp_path)


def test_a_damaged_one_does_not_push_out_a_sound_one(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save_step(tmp_path, step, keep_last=3, is_best=step == 300)
    for step in (200, 300):
        (tmp_path / f"step-00000{step}" / "model.safetensors").write_bytes(b"nothing")
    save_step(tmp_path, 400)
    assert steps_in(tmp_path) == ["100", "400"]
    assert best(tmp_path) is None


def test_a_damaged_newer_one_is_gone_after_the_next_save(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save_step(tmp_path, step)
    (tmp_path / "step-00000300" / "model.safetensors").write_bytes(b"nothing")
    assert_holds(latest(tmp_path)[0], 200)
    save_step(tmp_path, 250)
    assert steps_in(tmp_path) == ["200", "250"]


def test_a_damaged_best_one_is_not_the_best(tmp_path: Path) -> None:
    save_step(tmp_path, 100, is_best=True)
    written = save_step(tmp_path, 200, is_best=True, keep_last=2)
    assert_holds(best(tmp_path), 200)
    (written.folder / "model.safetensors").write_bytes(b"nothing")
    assert_holds(best(tmp_path), 100)


def test_a_damaged_mark_does_not_make_a_step_the_best(tmp_path: Path) -> None:
    file = save_step(tmp_path, 100).folder / checkpoint.STATE
    file.write_text(file.read_text().replace("false", "true"))
    assert best(tmp_path) is None
    save_step(tmp_path, 100)
    assert best(tmp_path) is None


def test_an_old_one_that_is_half_removed_does_not_look_like_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(tmp_path, 100)

    def remove_a_file(folder: Path, **_: object) -> None:
        (folder / checkpoint.SUMS).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda folder, **_: folder.exists() and remove_a_file(folder))
        with pytest.raises(KeyboardInterrupt):
            save_step(tmp_path, 200, keep_last=1)
    shutil.rmtree(tmp_path / "step-00000200")
    assert latest(tmp_path) == (None, [])


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("failing", ["write_tensors", "_sums", "second write_tensors", "rename"])
def test_a_full_disk_does_not_lose_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    save_step(tmp_path, 100, keep_last=1, is_best=True)
    write_tensors, rename = checkpoint.write_tensors, Path.rename
    done: list[Path] = []

    def write_one(path: Path, tensors: dict[str, Tensor]) -> None:
        if done:
            path.write_bytes(b"a part of it")
            no_space()
        write_tensors(path, tensors)
        done.append(path)

    def rename_aside_only(path: Path, target: Path) -> Path:
        # The worst moment when a step is saved again: the old folder is out of the way, the new one not yet in it.
        if not target.name.endswith(".partial"):
            no_space()
        return rename(path, target)

    for step in (100, 200):
        done.clear()
        with monkeypatch.context() as patch:
            if failing == "rename":
                patch.setattr(Path, "rename", rename_aside_only)
            elif failing == "second write_tensors":
                patch.setattr(checkpoint, "write_tensors", write_one)
            else:
                patch.setattr(checkpoint, failing, no_space)
            with pytest.raises(UserError, match=r"No space left on device.*make room"):
                save_step(tmp_path, step, keep_last=1)
        used, remarks = latest(tmp_path)
        assert_holds(used, 100)
        assert not remarks
        assert best(tmp_path) == used
    save_step(tmp_path, 200, keep_last=1)
    assert steps_in(tmp_path) == ["100", "200"]
    assert_holds(latest(tmp_path)[0], 200)
    assert_holds(best(tmp_path), 100)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full_does_not_lose_the_last_good_one(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    tensors = {"model": {"weight": torch.randn(100_000)}, "optimizer": {"moment": torch.randn(20_000)}}
    save(folder, 100, tensors, {}, keep_last=2, is_best=False)
    save(folder, 200, tensors, {}, keep_last=2, is_best=False)
    for _ in range(3):
        with pytest.raises(UserError, match=r"step-00000300.*could not be written.*[Nn]o space left.*make room"):
            save(folder, 300, tensors, {}, keep_last=2, is_best=False)
        used, remarks = latest(folder)
        assert used is not None
        assert used.step == 200
        assert not remarks
        assert torch.equal(used.read()[0]["model"]["weight"], tensors["model"]["weight"])
    shutil.rmtree(folder / "step-00000100")
    save(folder, 300, tensors, {}, keep_last=2, is_best=False)
    assert steps_in(folder) == ["200", "300"]


def test_looking_changes_nothing_and_the_next_save_clears_up(tmp_path: Path) -> None:
    save_step(tmp_path, 100)
    shutil.copytree(tmp_path / "step-00000100", tmp_path / "step-00000200.partial")
    shutil.copytree(tmp_path / "step-00000100", tmp_path / "step-00000050.partial")
    before = steps_in(tmp_path)
    assert_holds(latest(tmp_path)[0], 100)
    assert best(tmp_path) is None
    assert steps_in(tmp_path) == before
    save_step(tmp_path, 300)
    assert steps_in(tmp_path) == ["100", "300"]


def test_a_checkpoint_that_was_moved_aside_to_be_replaced_is_put_back_if_the_new_one_never_came(tmp_path: Path) -> None:
    save_step(tmp_path, 100, is_best=True)
    (tmp_path / "step-00000100").rename(tmp_path / "step-00000100.replaced.partial")
    assert_holds(latest(tmp_path)[0], 100)
    save_step(tmp_path, 200)
    assert steps_in(tmp_path) == ["100", "200"]
    assert_holds(best(tmp_path), 100)


def test_a_checkpoint_that_was_replaced_but_not_yet_removed_is_gone_after_the_next_save(tmp_path: Path) -> None:
    save_step(tmp_path, 100)
    shutil.copytree(tmp_path / "step-00000100", tmp_path / "step-00000100.replaced.partial")
    save_step(tmp_path, 200)
    assert steps_in(tmp_path) == ["100", "200"]
    assert_holds(latest(tmp_path)[0], 200)


KILLED = """
    import os, random, signal, sys, time
    from pathlib import Path

    import torch

    from openalbert.train.checkpoint import best, latest, save

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])

    def tensors_of(step):
        weight, moment = torch.full((60_000,), float(step)), torch.full((3, 7), step)
        return {"model": {"weight": weight}, "optimizer": {"moment": moment}}

    def save_for_ever(start):
        step = start
        while True:
            # The same step is saved again now and then, as after a resume.
            step += random.random() < 0.7
            save(folder, step, tensors_of(step), {"step": step}, keep_last=1, is_best=step % 5 == 0)

    caught = kills = reached = 0
    draw = random.Random(int(sys.argv[2]))
    save(folder, 1, tensors_of(1), {"step": 1}, keep_last=1, is_best=True)
    while kills < 20:
        child = os.fork()
        if child == 0:
            save_for_ever(reached)
        time.sleep(draw.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        kills += 1
        caught += any(path.name.endswith(".partial") for path in folder.iterdir())
        found, remarks = latest(folder)
        assert not remarks, remarks
        assert found.step >= reached
        reached = found.step
        for sound in (found, best(folder)):
            tensors, state = sound.read()
            assert state == {"step": sound.step}
            for group, named in tensors_of(sound.step).items():
                for name, tensor in named.items():
                    assert torch.equal(tensors[group][name], tensor)
    print(kills, caught, reached)
"""


def test_killed_at_20_random_moments_there_is_always_a_sound_one_with_the_right_content(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(KILLED), str(tmp_path), "0"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    kills, caught, reached = map(int, run.stdout.split())
    assert kills == 20
    assert caught > 0, "no kill came in the middle of a write: the test has shown nothing"
    assert reached > 1


# --- a run, saved and restored ----------------------------------------------------------------------------------------


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
    first.save(
        TrainState(step=7, tokens=70, micro_batches=3, recent=[1.5]), {"own": [1, "two"]}, keep_last=1, is_best=True
    )
    first.metrics_log.record({"kind": "event", "step": 8, "what": "depth", "text": "after it"})
    second = checkpointer(tmp_path, 2)
    found = second.latest()
    assert found is not None
    assert found.state["own"] == [1, "two"]
    assert second.restore(found, micro_batches=1) == TrainState(step=7, tokens=70, micro_batches=3, recent=[1.5])
    assert second.metrics_log.window.loss == 2.5
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    assert "resuming from step 7 (step-00000007)" in capsys.readouterr().err
    others = dict(second.model.named_parameters())
    assert all(torch.equal(parameter, others[name]) for name, parameter in first.model.named_parameters())
    moments = optimizer_tensors(second.optimizer, second.model)
    assert all(
        torch.equal(tensor, moments[name]) for name, tensor in optimizer_tensors(first.optimizer, first.model).items()
    )


def test_a_number_of_micro_batches_that_belongs_to_another_setting_is_not_kept(tmp_path: Path) -> None:
    checkpointer(tmp_path, 1).save(TrainState(step=7, micro_batches=3), {}, keep_last=1, is_best=False)
    other = checkpointer(tmp_path, 1, micro_batch=None)
    found = other.latest()
    assert found is not None
    assert other.restore(found, micro_batches=5).micro_batches == 5


def test_a_damaged_checkpoint_is_passed_over_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpointer(tmp_path, 1)
    for step in (3, 6):
        run.save(TrainState(step=step), {}, keep_last=2, is_best=False)
    (tmp_path / CHECKPOINTS / "step-00000006" / "state.json").write_text("{}")
    found = run.latest()
    assert found is not None
    assert found.folder.name == "step-00000003"
    assert "does not match its sha256 sum" in capsys.readouterr().err


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
    with pytest.raises(UserError, match=r"step-00000007: .* does not fit: it was saved from another model"):
        other.restore(found, micro_batches=1)
