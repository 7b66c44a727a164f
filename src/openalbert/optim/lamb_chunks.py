"""What LAMB's kernels (lamb_kernel) are told of a group's tensors: which they can take, and cut into which chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

CHUNK = 8192  # elements that one program of a kernel works through, a multiple of 4
DEVICE_TYPE = "cuda"  # where the kernels run


@dataclass(frozen=True)
class Chunks:
    """All elements of some tensors, cut. A part is a tensor of the paper: a stacked parameter has several."""

    rows: Int64[np.ndarray, "chunks 4"]
    """of each chunk its tensor, where it begins in it, how many elements it has, and its part"""
    bounds: Int64[np.ndarray, " bounds"]
    """the first chunk of each part, and the number of all chunks"""


def cut(sizes: Int64[np.ndarray, " tensors"], stacked: Int64[np.ndarray, " tensors"], chunk: int = CHUNK) -> Chunks:
    """Cut tensors of so many elements, of which each is so many equal parts: no chunk lies in two parts."""
    tensors = np.repeat(np.arange(len(sizes)), stacked)
    part_sizes = (sizes // stacked)[tensors]
    begins = (np.arange(len(tensors)) - (np.cumsum(stacked) - stacked)[tensors]) * part_sizes
    chunks = -(-part_sizes // chunk)
    bounds = np.concatenate(([0], np.cumsum(chunks)))
    parts = np.repeat(np.arange(len(chunks)), chunks)
    before = (np.arange(len(parts)) - bounds[parts]) * chunk
    left = np.minimum(part_sizes[parts] - before, chunk)
    return Chunks(np.stack((tensors[parts], begins[parts] + before, left, parts), axis=1), bounds)


def kernel_fits(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor]
) -> bool:
    """Whether the kernels can take these tensors: all of them plain fp32 on one GPU, row after row in memory."""
    device = weights[0].device
    return device.type == DEVICE_TYPE and all(
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device == device
        and tensor.shape == weight.shape
        and tensor.is_contiguous()
        for weight, *others in zip(weights, gradients, m, v, strict=True)
        for tensor in (weight, *others)
    )
