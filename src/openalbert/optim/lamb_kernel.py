"""LAMB's step on a GPU in two passes over all tensors of a group: 40 bytes per parameter, compared with 56 for foreach.

The first pass updates m and v and sums the squares of weight and update, chunk by chunk; the update itself is not
stored, the second pass recomputes it. No sum depends on the order of programs: the result is deterministic.

Signatures have no shapes here: the run-time checks in tests would come between Triton and its kernels.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from openalbert.optim.lamb import cut

# 8 elements per thread: two vectors of 16 bytes of each tensor are in flight at a time.
BLOCK, WARPS = 1024, 4


@triton.jit
def _pointer(address: tl.tensor, begin: tl.tensor, is_aligned: tl.constexpr) -> tl.tensor:
    pointer = tl.load(address).to(tl.pointer_type(tl.float32)) + begin
    if is_aligned:  # Triton knows nothing of an address read from memory, and would not vectorize the load
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _pointers(
    addresses: tl.tensor, number: tl.tensor, begin: tl.tensor, is_aligned: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Pointers to weight, m and v of a chunk."""
    own = addresses + 3 * number
    return (
        _pointer(own, begin, is_aligned),
        _pointer(own + 1, begin, is_aligned),
        _pointer(own + 2, begin, is_aligned),
    )


@triton.jit
def _size(row: tl.tensor, found_inf: tl.tensor, is_aligned: tl.constexpr) -> tl.tensor:
    """The number of elements of a chunk; 0 if the step is skipped."""
    size = tl.where(tl.load(found_inf) > 0, 0, tl.load(row + 2)).to(tl.int32)
    if is_aligned:
        size = tl.multiple_of(size, 4)
    return size


@triton.jit
def _update(
    w: tl.tensor, m: tl.tensor, v: tl.tensor, of_m: tl.tensor, of_root: tl.tensor, epsilon: tl.tensor, decay: tl.tensor
) -> tl.tensor:
    return tl.div_rn(of_m * m, of_root * tl.sqrt_rn(v) + epsilon) + decay * w


@triton.jit
def _average(
    chunks: tl.tensor,
    addresses: tl.tensor,
    gradients: tl.tensor,
    found_inf: tl.tensor,
    corrections: tl.tensor,
    squares: tl.tensor,
    kept_of_m: tl.tensor,
    added_to_m: tl.tensor,
    kept_of_v: tl.tensor,
    added_to_v: tl.tensor,
    epsilon: tl.tensor,
    decay: tl.tensor,
    is_aligned: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The first pass, one program per chunk: new m and v, and the sums of squares of weight and update."""
    row = chunks + 4 * tl.program_id(0).to(tl.int64)
    number, begin = tl.load(row), tl.load(row + 1)
    w_pointer, m_pointer, v_pointer = _pointers(addresses, number, begin, is_aligned)
    g_pointer = _pointer(gradients + number, begin, is_aligned)
    size = _size(row, found_inf, is_aligned)
    of_m, of_root = tl.load(corrections), tl.load(corrections + 1)
    w_squares = tl.zeros((block,), tl.float32)
    u_squares = tl.zeros((block,), tl.float32)
    for start in range(0, size, block):
        lanes = start + tl.arange(0, block)
        is_there = lanes < size
        w = tl.load(w_pointer + lanes, is_there, 0.0)
        g = tl.load(g_pointer + lanes, is_there, 0.0)
        m = kept_of_m * tl.load(m_pointer + lanes, is_there, 0.0) + added_to_m * g
        v = kept_of_v * tl.load(v_pointer + lanes, is_there, 0.0) + added_to_v * g * g
        tl.store(m_pointer + lanes, m, is_there)
        tl.store(v_pointer + lanes, v, is_there)
        update = tl.where(is_there, _update(w, m, v, of_m, of_root, epsilon, decay), 0.0)
        w_squares += w * w
        u_squares += update * update
    result = squares + 2 * tl.program_id(0).to(tl.int64)
    tl.store(result, tl.sum(w_squares))
    tl.store(result + 1, tl.sum(u_squares))


@triton.jit
def _scale(
    bounds: tl.tensor,
    squares: tl.tensor,
    rate: tl.tensor,
    scales: tl.tensor,
    highest_norm: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Between the passes, one program per unit: the sum over its chunks in order, its trust ratio, times the rate."""
    unit = tl.program_id(0)
    first, last = tl.load(bounds + unit), tl.load(bounds + unit + 1)
    w_squares = tl.zeros((block,), tl.float32)
    u_squares = tl.zeros((block,), tl.float32)
    for start in range(first, last, block):
        lanes = start + tl.arange(0, block)
        w_squares += tl.load(squares + 2 * lanes, lanes < last, 0.0)
        u_squares += tl.load(squares + 2 * lanes + 1, lanes < last, 0.0)
    w_norm = tl.sqrt_rn(tl.sum(w_squares))
    u_norm = tl.sqrt_rn(tl.sum(u_squares))
    w_norm = tl.where(w_norm > highest_norm, highest_norm, w_norm)  # NaN stays NaN
    has_ratio = (w_norm != 0) & (u_norm != 0)
    ratio = tl.where(has_ratio, tl.div_rn(w_norm, tl.where(has_ratio, u_norm, 1.0)), 1.0)
    tl.store(scales + unit, ratio * tl.load(rate))


@triton.jit
def _move(
    chunks: tl.tensor,
    addresses: tl.tensor,
    found_inf: tl.tensor,
    corrections: tl.tensor,
    scales: tl.tensor,
    epsilon: tl.tensor,
    decay: tl.tensor,
    is_aligned: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The second pass, one program per chunk: the weights are updated."""
    row = chunks + 4 * tl.program_id(0).to(tl.int64)
    number, begin = tl.load(row), tl.load(row + 1)
    w_pointer, m_pointer, v_pointer = _pointers(addresses, number, begin, is_aligned)
    size = _size(row, found_inf, is_aligned)
    of_m, of_root = tl.load(corrections), tl.load(corrections + 1)
    scale = tl.load(scales + tl.load(row + 3))
    for start in range(0, size, block):
        lanes = start + tl.arange(0, block)
        is_there = lanes < size
        w = tl.load(w_pointer + lanes, is_there, 0.0)
        m = tl.load(m_pointer + lanes, is_there, 0.0)
        v = tl.load(v_pointer + lanes, is_there, 0.0)
        tl.store(w_pointer + lanes, w - scale * _update(w, m, v, of_m, of_root, epsilon, decay), is_there)


class Table:
    """The addresses of a group's tensors, on the device, as the kernels read them. Immutable."""

    def __init__(self, key: tuple[int, ...], device: torch.device) -> None:
        """The key has of each tensor its size, its number of stacked units, and the addresses of weight, m and v."""
        self.key = key
        sizes, stacked, *addresses = np.array(key, dtype=np.int64).reshape(-1, 5).T
        chunks = cut(sizes, stacked)
        self.num_chunks, self.num_units = len(chunks.rows), len(chunks.bounds) - 1
        self.chunks, self.bounds = _send(chunks.rows, device), _send(chunks.bounds, device)
        self.addresses = _send(np.stack(addresses, axis=1), device)
        # With sizes that are multiples of a vector every chunk begins at a vector.
        self.is_aligned = not any((each % 16).any() for each in addresses) and not (chunks.rows[:, 1:3] % 4).any()

    def step(
        self,
        gradients: "Gradients",
        found_inf: Tensor | None,
        rate: float | Tensor,
        step: Tensor | None,
        *,
        betas: tuple[float, float],
        epsilon: float,
        decay: float,
        is_adapted: bool,
        highest_norm: float = math.inf,
    ) -> None:
        """Take the step; with its number, on the device, the means are bias-corrected."""
        device = self.chunks.device
        found_inf = torch.zeros((), device=device) if found_inf is None else found_inf
        corrections = torch.ones(2, device=device) if step is None else _corrections(step, betas)
        rate = (torch.ones((), device=device) * rate).float()
        squares = torch.empty(2 * self.num_chunks, device=device)
        scales = torch.empty(self.num_units, device=device) if is_adapted else rate.repeat(self.num_units)
        is_aligned = self.is_aligned and gradients.are_aligned
        averaging = [number for beta in betas for number in (float(beta), 1.0 - beta)]
        epsilon, decay = float(epsilon), float(decay)
        with torch.cuda.device_of(squares):
            _average[(self.num_chunks,)](
                self.chunks,
                self.addresses,
                gradients.addresses,
                found_inf,
                corrections,
                squares,
                *averaging,
                epsilon,
                decay,
                is_aligned=is_aligned,
                block=BLOCK,
                num_warps=WARPS,
            )
            if is_adapted:
                _scale[(self.num_units,)](self.bounds, squares, rate, scales, highest_norm, block=256, num_warps=4)
            _move[(self.num_chunks,)](
                self.chunks,
                self.addresses,
                found_inf,
                corrections,
                scales,
                epsilon,
                decay,
                is_aligned=is_aligned,
                block=BLOCK,
                num_warps=WARPS,
            )


class Gradients:
    """The addresses of the gradients, on the device: separate, since they may change in every step."""

    def __init__(self, key: tuple[int, ...], device: torch.device) -> None:
        self.key = key
        self.addresses = _send(np.array(key, dtype=np.int64), device)
        self.are_aligned = not any(address % 16 for address in key)


class Tables:
    """The tables of an optimizer's groups, reused as long as the tensors do not move."""

    def __init__(self, device: torch.device) -> None:
        """Compile and load the kernels by steps on a few zeros; raises what Triton raises if it fails."""
        self._found: dict[int, tuple[Table, Gradients]] = {}
        self._captured: list[tuple[Table, Gradients]] = []
        for size in (4, 3):  # aligned, and not
            w, g, m, v = torch.zeros(4, size, device=device)
            table = Table((size, 1, *_addresses((w, m, v))), device)
            places = Gradients(_addresses([g]), device)
            table.step(places, None, 0.0, None, betas=(0.0, 0.0), epsilon=1.0, decay=0.0, is_adapted=True)

    def find(
        self,
        group: int,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        m: Sequence[Tensor],
        v: Sequence[Tensor],
        stacked: Sequence[int],
    ) -> tuple[Table, Gradients] | None:
        """The group's tables, made where needed; None if that is needed during CUDA graph capture, which cannot."""
        device = weights[0].device
        sizes = [weight.numel() for weight in weights]
        columns = zip(sizes, stacked, *map(_addresses, (weights, m, v)), strict=True)
        key, of_gradients = tuple(itertools.chain.from_iterable(columns)), _addresses(gradients)
        table, places = self._found.get(group, (None, None))
        # Equal keys mean equal tables, even if they were made for other tensors.
        table = table if table is not None and table.key == key else None
        places = places if places is not None and places.key == of_gradients else None
        if torch.cuda.is_current_stream_capturing():
            if table is None or places is None:
                return None
            self._captured.append((table, places))  # kept alive for the graph, which reads them
        found = table or Table(key, device), places or Gradients(of_gradients, device)
        self._found[group] = found
        return found


def _corrections(step: Tensor, betas: tuple[float, float]) -> Tensor:
    """Bias-correction factors of m and √v; in fp64, since 1 − beta has few digits in fp32 for a beta near 1."""
    of_m, of_v = (1.0 - torch.pow(beta, step.double()) for beta in betas)
    return torch.stack((of_m.reciprocal(), of_v.rsqrt())).float()


def _addresses(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _send(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Copy to the device without waiting. Torch does not reuse the pinned memory until the copy is done."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).pin_memory().to(device, non_blocking=True)
