"""Triton kernels for passes over a layer's widest tensors. Imported only on GPUs, where torch brings Triton."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Blocks(NamedTuple):
    """How a matrix is tiled: a program handles some columns of a range of rows, a few rows at a time."""

    rows_a_part: int
    rows: int
    columns: int
    stages: int  # more than 1: the next rows are loaded while these are processed
    num_warps: int


# Among 92 shapes the best for albert-large and albert-base together on an H200 (results/first-looks-h200).
OF_GELU = Blocks(256, 16, 128, 3, 4)
OF_JOIN = Blocks(256, 4, 1024, 1, 4)


@triton.jit
def _sum_parts(parts, out, num_parts, num_columns, rows: tl.constexpr, columns: tl.constexpr):
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    row = tl.arange(0, rows)
    total = tl.zeros([rows, columns], tl.float32)
    for first in range(0, num_parts, rows):
        is_there = (first + row[:, None] < num_parts) & (column[None, :] < num_columns)
        total += tl.load(parts + (first + row[:, None]) * num_columns + column[None, :], mask=is_there, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < num_columns)


def _sum_of_parts(parts: Tensor) -> Tensor:
    """The column sums, always added in the same order."""
    num_parts, num_columns = parts.shape
    out = torch.empty(num_columns, dtype=torch.float32, device=parts.device)
    _sum_parts[(triton.cdiv(num_columns, 32),)](parts, out, num_parts, num_columns, 64, 32, num_warps=4)
    return out


@triton.jit
def _gelu_backward(
    gradient,
    before,
    out,
    sums,
    num_rows,
    num_columns,
    rows_a_part: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
):
    part = tl.program_id(1)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros([rows, columns], tl.float32)
    for first in tl.range(0, rows_a_part, rows, num_stages=stages):
        row = part * rows_a_part + first + tl.arange(0, rows)
        at = row[:, None].to(tl.int64) * num_columns + column[None, :]
        is_there = (row[:, None] < num_rows) & (column[None, :] < num_columns)
        x = tl.load(before + at, mask=is_there, other=0.0).to(tl.float32)
        of_gelu = tl.load(gradient + at, mask=is_there, other=0.0).to(tl.float32)
        # With z = sqrt(2/pi) (x + 0.044715 x^3) and s = sigmoid(2z) GELU is x s, its slope s + x s(1 - s) 2 dz/dx. The
        # GPU's own tanh would save an instruction, but its error of 2^-11 matters where x is far below 0 and s nearly
        # 0: with a trained model gradients can be off by several percent. tl.sigmoid handles numbers below 2^-126,
        # which s does not need: 30 instructions per element instead of 22.
        square = x * x
        s = tl.inline_asm_elementwise(
            "{ .reg .f32 e; ex2.approx.ftz.f32 e, $1; add.ftz.f32 e, e, 0f3F800000; rcp.approx.ftz.f32 $0, e; }",
            "=f,f",
            [x * (-2.3022081986 - 0.1029432406 * square)],  # -2z / log(2)
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        slope = s + x * s * (1 - s) * (1.5957691216 + 0.2140644488 * square)  # this order avoids 0 x infinity
        of_before = of_gelu * slope
        tl.store(out + at, of_before.to(out.dtype.element_ty), mask=is_there)
        total += of_before  # summed over the rows once at the end: a sum synchronizes all warps
    tl.store(sums + part * num_columns + column, tl.sum(total, 0), mask=column < num_columns)


def gelu_backward(gradient: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of GELU's input, and its column sums."""
    num_rows, num_columns = before.shape
    *blocks, num_warps = OF_GELU
    num_parts = triton.cdiv(num_rows, OF_GELU.rows_a_part)
    out = torch.empty_like(before)
    sums = torch.empty(num_parts, num_columns, dtype=torch.float32, device=before.device)
    grid = (triton.cdiv(num_columns, OF_GELU.columns), num_parts)
    _gelu_backward[grid](gradient, before, out, sums, num_rows, num_columns, *blocks, num_warps=num_warps)
    return out, _sum_of_parts(sums)


@triton.jit
def _padding_of(mask, sequence, length, up_to: tl.constexpr):
    """The number of padding tokens of a sequence, and the first of them."""
    place = tl.arange(0, up_to)
    is_padding = (place < length) & (tl.load(mask + sequence * length + place, mask=place < length, other=1) == 0)
    return tl.sum(is_padding.to(tl.int32), 0), tl.min(tl.where(is_padding, place, length), 0)


@triton.jit
def _stand_in(qkv, mask, length, width, up_to: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    sequence = tl.program_id(1)
    num_padding, _ = _padding_of(mask, sequence, length, up_to)
    if num_padding > 0:
        column = tl.program_id(0) * columns + tl.arange(0, columns)
        keys = qkv + sequence.to(tl.int64) * length * (3 * width) + width
        total = tl.zeros([rows, columns], tl.float32)
        for first in range(0, length, rows):
            place = first + tl.arange(0, rows)
            is_real = tl.load(mask + sequence * length + place, mask=place < length, other=0) != 0
            at = place[:, None] * (3 * width) + column[None, :]
            total += tl.load(keys + at, mask=is_real[:, None] & (column[None, :] < width), other=0.0).to(tl.float32)
        mean = tl.sum(total, 0) / (length - num_padding)
        means = tl.broadcast_to(mean[None, :], (rows, columns)).to(qkv.dtype.element_ty)
        for first in range(0, length, rows):
            place = first + tl.arange(0, rows)
            is_padding = tl.load(mask + sequence * length + place, mask=place < length, other=1) == 0
            at = place[:, None] * (3 * width) + column[None, :]
            is_there = is_padding[:, None] & (column[None, :] < width)
            tl.store(keys + at, means, mask=is_there)
            tl.store(keys + width + at, tl.zeros([rows, columns], qkv.dtype.element_ty), mask=is_there)


def stand_in(qkv: Tensor, mask: Tensor) -> None:
    """Set the padding's keys to the mean of its sequence's keys and its values to 0, in place."""
    batch, length, columns = qkv.shape
    mask, up_to = mask.contiguous().view(torch.uint8), triton.next_power_of_2(length)
    _stand_in[(triton.cdiv(columns // 3, 128), batch)](qkv, mask, length, columns // 3, up_to, 32, 128, num_warps=4)


@triton.jit
def _leave_out(
    qkv,
    mixed,
    logsumexp,
    mask,
    length,
    width,
    num_heads,
    scale,
    head_size: tl.constexpr,
    columns: tl.constexpr,
    up_to: tl.constexpr,
    rows: tl.constexpr,
):
    sequence = tl.program_id(1)
    num_padding, first_padding = _padding_of(mask, sequence, length, up_to)
    if num_padding > 0:
        place = tl.program_id(0) * rows + tl.arange(0, rows)
        column = tl.arange(0, columns)
        is_there = (place[:, None] < length) & (column[None, :] < head_size)
        begin = sequence.to(tl.int64) * length
        for head in range(0, num_heads):
            of_head = head * head_size + column
            query_at = (begin + place)[:, None] * (3 * width) + of_head[None, :]
            query = tl.load(qkv + query_at, mask=is_there, other=0.0).to(tl.float32)
            key_at = (begin + first_padding) * (3 * width) + width + of_head
            key = tl.load(qkv + key_at, mask=column < head_size, other=0.0).to(tl.float32)
            score = scale * tl.sum(query * key[None, :], 1)
            sum_at = (sequence * num_heads + head).to(tl.int64) * length + place
            of_all = tl.load(logsumexp + sum_at, mask=place < length, other=0.0)
            # The weight of a mean score is at most the mean weight, so at least the fraction of real tokens is left;
            # the bound is halved because the mean key is rounded.
            left = 1 - num_padding * tl.exp(score - of_all)
            left = tl.maximum(left, 0.5 * (length - num_padding) / length)
            tl.store(logsumexp + sum_at, of_all + tl.log(left), mask=place < length)
            mixed_at = (begin + place)[:, None] * width + of_head[None, :]
            found = tl.load(mixed + mixed_at, mask=is_there, other=0.0).to(tl.float32)
            tl.store(mixed + mixed_at, (found / left[:, None]).to(mixed.dtype.element_ty), mask=is_there)


def leave_out(qkv: Tensor, mixed: Tensor, logsumexp: Tensor, mask: Tensor, num_heads: int) -> None:
    """Remove the padding's contribution from the output of attention and from its logsumexp, in place."""
    batch, length, width = mixed.shape
    head_size = width // num_heads
    mask, up_to = mask.contiguous().view(torch.uint8), triton.next_power_of_2(length)
    _leave_out[(triton.cdiv(length, 32), batch)](
        qkv,
        mixed,
        logsumexp,
        mask,
        length,
        width,
        num_heads,
        head_size**-0.5,
        head_size,
        triton.next_power_of_2(head_size),
        up_to,
        32,
        num_warps=4,
    )


@triton.jit
def _forget_padding(keys, mask, num_rows, stride, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    is_padding = tl.load(mask + row, mask=row < num_rows, other=1) == 0
    if tl.max(is_padding.to(tl.int32), 0) > 0:
        for first in range(0, width, columns):
            column = first + tl.arange(0, columns)
            at = row[:, None].to(tl.int64) * stride + column[None, :]
            nothing = tl.zeros([rows, columns], keys.dtype.element_ty)
            tl.store(keys + at, nothing, mask=is_padding[:, None] & (column[None, :] < width))


def forget_padding(keys: Tensor, mask: Tensor) -> None:
    """Set the rows to 0 where the mask is false, in place; the others are not read."""
    num_rows, width = keys.shape
    grid = (triton.cdiv(num_rows, 32),)
    mask = mask.contiguous().view(torch.uint8)
    _forget_padding[grid](keys, mask, num_rows, keys.stride(0), width, 32, 256, num_warps=4)


@triton.jit
def _join(
    of_query,
    of_key,
    of_value,
    mask,
    out,
    sums,
    num_rows,
    length,
    width,
    of_batch,
    of_position,
    of_head,
    head_size: tl.constexpr,
    rows_a_part: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
):
    part, place = tl.program_id(1), tl.program_id(2)
    source = of_query
    if place == 1:
        source = of_key
    elif place == 2:
        source = of_value
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    from_column = (column // head_size) * of_head + column % head_size
    to_column = place * width + column
    total = tl.zeros([rows, columns], tl.float32)
    for first in tl.range(0, rows_a_part, rows, num_stages=stages):
        row = part * rows_a_part + first + tl.arange(0, rows)
        is_real = (place == 0) | (tl.load(mask + row, mask=row < num_rows, other=0) != 0)
        is_there = (row[:, None] < num_rows) & (column[None, :] < width)
        from_row = (row // length).to(tl.int64) * of_batch + (row % length) * of_position
        found = tl.load(source + from_row[:, None] + from_column[None, :], mask=is_there, other=0.0)
        found = tl.where(is_real[:, None], found, 0.0)
        tl.store(out + row[:, None].to(tl.int64) * (3 * width) + to_column[None, :], found, mask=is_there)
        total += found.to(tl.float32)
    tl.store(sums + part * (3 * width) + to_column, tl.sum(total, 0), mask=column < width)


def join(of_query: Tensor, of_key: Tensor, of_value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate three gradients (batch, heads, length, size) into the rows of one matrix, with those of padded keys
    and values set to 0; and its column sums."""
    batch, num_heads, length, head_size = of_query.shape
    num_rows, width = batch * length, num_heads * head_size
    *blocks, num_warps = OF_JOIN
    num_parts = triton.cdiv(num_rows, OF_JOIN.rows_a_part)
    out = torch.empty(num_rows, 3 * width, dtype=of_query.dtype, device=of_query.device)
    sums = torch.empty(num_parts, 3 * width, dtype=torch.float32, device=of_query.device)
    assert of_query.stride() == of_key.stride() == of_value.stride()
    assert of_query.stride(3) == 1
    strides = of_query.stride(0), of_query.stride(2), of_query.stride(1)
    _join[(triton.cdiv(width, OF_JOIN.columns), num_parts, 3)](
        of_query,
        of_key,
        of_value,
        mask.contiguous().view(torch.uint8),
        out,
        sums,
        num_rows,
        length,
        width,
        *strides,
        head_size,
        *blocks,
        num_warps=num_warps,
    )
    return out, _sum_of_parts(sums)
