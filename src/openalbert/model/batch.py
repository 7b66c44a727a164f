"""What a batch must be before the model takes it: a sentence here, in place of an index error from deep inside."""

import torch
from torch import Tensor

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig


def check_batch(
    config: AlbertConfig,
    dimensions: int,
    ids: Tensor,
    segments: Tensor | None = None,
    mask: Tensor | None = None,
    at: Tensor | None = None,
) -> None:
    """Refuse a batch that cannot be encoded: padded ones have two dimensions, packed ones have one."""
    form = "batch x length" if dimensions == 2 else "tokens"
    for name, tensor in (("ids", ids), ("segments", segments), ("mask", mask), ("at", at)):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise UserError(f"{name} is a {type(tensor).__name__}: a tensor was expected, torch.tensor makes one")
        if tensor.device != ids.device:
            raise UserError(f"{name} is on {tensor.device}, but ids is on {ids.device}: move one of them")
        if name != "mask" and (tensor.is_floating_point() or tensor.is_complex()):
            raise UserError(f"{name} holds {tensor.dtype}: whole numbers were expected")
    if ids.dim() != dimensions or ids.shape[-1] == 0:
        raise UserError(f"ids has shape {list(ids.shape)}, but {form} was expected, with at least one token")
    for name, tensor in (("segments", segments), ("mask", mask)):
        if tensor is not None and tensor.shape != ids.shape:
            raise UserError(f"{name} has shape {list(tensor.shape)}, but ids has {list(ids.shape)}: they must be equal")
    if at is not None and (at.dim() != dimensions or at.shape[:-1] != ids.shape[:-1]):
        raise UserError(
            f"at has shape {list(at.shape)}, but ids has {list(ids.shape)}: only the last number may differ"
        )
    # A GPU would have to be waited for, in every step of a training; there, the kernels find numbers out of range.
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    _check_range("ids", ids, config.vocab_size, "the vocabulary has")
    _check_range("segments", segments, config.num_segments, "the number of segment types is")
    _check_range("at", at, ids.shape[-1], "the length is")
    if mask is not None and mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise UserError("mask holds other numbers than 1 for real tokens and 0 for padding: is it one to be added?")


def _check_range(name: str, tensor: Tensor | None, limit: int, what: str) -> None:
    if tensor is None or tensor.numel() == 0 or tensor.dtype == torch.bool:
        return
    lowest, highest = (int(number) for number in tensor.aminmax())
    if lowest < 0 or highest >= limit:
        raise UserError(
            f"{name} holds {lowest if lowest < 0 else highest}, but {what} {limit}: 0 to {limit - 1} will do"
        )
