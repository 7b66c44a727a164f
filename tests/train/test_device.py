"""Where a run computes: how fast, never what is learned."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.pretraining.micro_runs import command, curve, micro_run, weights

from openalbert.errors import UserError
from openalbert.train.device import Device, Speed, measure_matmul_peak, open_device, usable_device


def test_a_cpu_computes_in_fp32_and_says_what_it_is() -> None:
    with open_device(Speed(device="cpu")) as device:
        assert (device.precision, device.rank, device.world, device.is_main) == ("fp32", 0, 1, True)
        assert not device.is_cuda
        assert "CPU" in device.describe()
        assert device.from_main(2.5) == 2.5
        assert torch.equal(device.sum_over_ranks(torch.ones(2)), torch.ones(2))
        device.raise_together(None)
        with pytest.raises(UserError, match="a problem"):
            device.raise_together(UserError("a problem"))


def test_the_number_of_threads_can_be_set() -> None:
    before = torch.get_num_threads()
    try:
        with open_device(Speed(device="cpu", threads=before + 1)) as device:
            assert torch.get_num_threads() == before + 1
            assert f"{before + 1} threads" in device.describe()
    finally:
        torch.set_num_threads(before)


def test_fp32_products_are_exact_within_a_run_and_the_setting_is_given_back() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with open_device(Speed(device="cpu", precision="fp32")) as device:
            assert torch.get_float32_matmul_precision() == "highest"
            assert device.precision == "fp32"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_tf32_is_refused_on_a_cpu() -> None:
    with (
        pytest.raises(UserError, match="the precision tf32 is a GPU's"),
        open_device(Speed(device="cpu", precision="tf32")),
    ):
        pass


@pytest.mark.parametrize("name", ["micro_batch", "threads"])
def test_no_examples_and_no_threads_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is 0: it must be at least 1"):
        Speed(**{name: 0})


@pytest.mark.parametrize("name", ["tpu", "cuda:77"])
def test_a_device_that_is_not_there_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match=f"the device '{name}' cannot be used"), open_device(Speed(device=name)):
        pass


def test_a_backend_that_torch_was_built_without_is_refused_in_one_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*_: object, **__: object) -> None:
        raise NotImplementedError("Could not run 'aten::empty' with arguments from the 'MPS' backend. CPU: registered")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(UserError, match=r"'mps' cannot be used \(PyTorch does not have it on this machine\): try auto"):
        usable_device("mps")


def test_the_measured_peak_is_what_a_matrix_product_reaches() -> None:
    peak = measure_matmul_peak(Device(torch.device("cpu"), "fp32"))
    assert 1e8 < peak < 1e14


def test_deterministic_mode_is_on_for_the_run_alone_and_learns_the_same(tmp_path: Path, easy_shards: Path) -> None:
    with open_device(Speed(device="cpu", deterministic=True)):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # whose backward pass knows no order
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    with open_device(Speed(device="cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    strict = micro_run(easy_shards, tmp_path / "strict", "--steps 5 --log-every 1 --speed.deterministic")
    assert not torch.are_deterministic_algorithms_enabled()
    usual = micro_run(easy_shards, tmp_path / "usual", "--steps 5 --log-every 1")
    assert curve(strict) == curve(usual)
    before, after = weights(strict), weights(usual)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_recomputed_activations_learn_the_same(tmp_path: Path, easy_shards: Path) -> None:
    again = micro_run(easy_shards, tmp_path / "again", "--steps 5 --log-every 1 --speed.recompute")
    usual = micro_run(easy_shards, tmp_path / "usual", "--steps 5 --log-every 1")
    for one, other in zip(curve(again), curve(usual), strict=True):
        assert math.isclose(one, other, rel_tol=1e-5)


@pytest.mark.slow  # the C++ compiler takes a minute
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
def test_a_compiled_layer_learns_the_same_and_serves_every_depth(tmp_path: Path, easy_shards: Path) -> None:
    words = "--steps 6 --log-every 1 --model.num-layers 4 --depth-schedule 2,3@0.34,4@0.67"
    plain = micro_run(easy_shards, tmp_path / "plain", f"{words} --speed.compile none")
    # In a process of its own: the checked shapes of these tests are nothing that could be compiled.
    code = (
        "import sys, torch\nfrom openalbert import cli\ncli.main(sys.argv[1:])\n"
        "print(torch._dynamo.utils.counters['stats']['unique_graphs'])"
    )
    compiled = tmp_path / "compiled"
    done = subprocess.run(
        [sys.executable, "-c", code, *command(easy_shards, compiled, f"{words} --speed.compile layer")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compiled in" in done.stderr
    for one, other in zip(curve(plain), curve(compiled), strict=True):
        assert math.isclose(one, other, rel_tol=1e-4)
    # One for a whole layer, one for the last, which works on hidden tokens only, and one for the scores of the words;
    # each once more without gradients.
    assert 1 <= int(done.stdout) <= 6
