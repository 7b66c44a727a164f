"""How tensors are cut for LAMB's kernels, and which steps stay foreach's; the kernels themselves need a GPU."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from openalbert.optim import lamb as module
from openalbert.optim.lamb import CHUNK, Lamb, cut, kernel_fits

TENSORS = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 4)), min_size=1, max_size=8)


@given(tensors=TENSORS, chunk=st.sampled_from([1, 4, 8, 64]))
def test_every_element_lies_in_one_chunk_and_every_chunk_in_one_part(
    tensors: list[tuple[int, int]], chunk: int
) -> None:
    stacked = np.array([count for _, count in tensors])
    chunks = cut(np.array([size for size, _ in tensors]) * stacked, stacked, chunk)
    seen: list[list[int | None]] = [[None] * (size * count) for size, count in tensors]
    for tensor, begin, size, part in chunks.rows.tolist():
        assert 1 <= size <= chunk
        assert seen[tensor][begin : begin + size] == [None] * size
        seen[tensor][begin : begin + size] = [part] * size
    parts = iter(range(len(chunks.bounds)))
    expected = [[part for part in [next(parts) for _ in range(count)] for _ in range(size)] for size, count in tensors]
    assert seen == expected


@given(tensors=TENSORS, chunk=st.sampled_from([1, 4, 8, 64]))
def test_the_chunks_of_a_part_lie_between_its_bounds(tensors: list[tuple[int, int]], chunk: int) -> None:
    stacked = np.array([count for _, count in tensors])
    chunks = cut(np.array([size for size, _ in tensors]) * stacked, stacked, chunk)
    assert len(chunks.bounds) == stacked.sum() + 1
    assert chunks.bounds[-1] == len(chunks.rows)
    for part in range(stacked.sum()):
        of_part = chunks.rows[chunks.bounds[part] : chunks.bounds[part + 1]]
        assert (of_part[:, 3] == part).all()
        assert (np.diff(of_part[:, 1]) == chunk).all()  # in their order, so that sums are always the same


def test_a_chunk_is_whole_vectors_of_four() -> None:
    assert CHUNK % 4 == 0


def test_on_the_cpu_no_step_is_a_kernels() -> None:
    weights = [torch.ones(4, 4)]
    assert not kernel_fits(weights, weights, weights, weights)


# Tensors without memory say all that is asked of them, but that they lie on a GPU.
ROWS = torch.empty(4, 6, device="meta")


@pytest.mark.parametrize(
    "odd_one",
    [
        torch.empty(4, 6, dtype=torch.bfloat16, device="meta"),
        torch.empty(4, 6, dtype=torch.float64, device="meta"),
        torch.empty(6, 4, device="meta").T,
        torch.empty(4, 12, device="meta")[:, ::2],
        torch.empty(6, 4, device="meta"),
        torch.empty(4, 6),
    ],
    ids=["bf16", "fp64", "across", "gaps", "shape", "device"],
)
@pytest.mark.parametrize("place", range(4), ids=["weight", "gradient", "m", "v"])
def test_one_tensor_that_does_not_fit_is_enough(
    monkeypatch: pytest.MonkeyPatch, place: int, odd_one: torch.Tensor
) -> None:
    monkeypatch.setattr("openalbert.optim.lamb.DEVICE_TYPE", "meta")
    fitting = [[ROWS, ROWS] for _ in range(4)]
    assert kernel_fits(*fitting)
    fitting[place] = [ROWS, odd_one]
    assert not kernel_fits(*fitting)


@pytest.mark.parametrize(
    ("error", "expected"), [(None, True), (RuntimeError("no compiler"), False), (ImportError("no Triton"), False)]
)
def test_triton_is_tried_until_it_works(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, expected: bool
) -> None:
    tried = []

    class Tables:
        def __init__(self, device: torch.device) -> None:
            tried.append(device.type)
            if error is not None:
                raise error

    monkeypatch.setattr(module, "DEVICE_TYPE", "cpu")
    monkeypatch.setitem(sys.modules, "openalbert.optim.lamb_kernel", SimpleNamespace(Tables=Tables))
    optimizer = Lamb([nn.Parameter(torch.ones(4, 4))])
    assert [optimizer.has_kernel(), optimizer.has_kernel()] == [expected, expected]
    assert tried == ["cpu"] * (1 if expected else 2)


def test_memory_that_runs_out_while_triton_is_tried_is_not_taken_for_a_missing_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tables(device: torch.device) -> None:
        raise torch.OutOfMemoryError("made up")

    monkeypatch.setattr(module, "DEVICE_TYPE", "cpu")
    monkeypatch.setitem(sys.modules, "openalbert.optim.lamb_kernel", SimpleNamespace(Tables=tables))
    with pytest.raises(torch.OutOfMemoryError):
        Lamb([nn.Parameter(torch.ones(4, 4))]).has_kernel()


def test_where_triton_fails_a_step_is_foreachs_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    optimizer, other = Lamb([found]), Lamb([expected])
    other.may_use_kernel = False
    monkeypatch.setattr(module, "kernel_fits", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setitem(sys.modules, "openalbert.optim.lamb_kernel", None)  # importing it fails
    for step in range(3):
        found.grad = expected.grad = torch.full((4, 4), step - 0.5)
        optimizer.step()
        other.step()
        assert not optimizer.may_use_kernel
    assert torch.equal(found, expected)
    assert Lamb([found]).may_use_kernel
