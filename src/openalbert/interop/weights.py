"""Safetensors files with a checksum. No pickle is ever read."""

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from openalbert.errors import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CHECKSUM = "openalbert.sha256"  # in the file's metadata; files of other programs have none and are not checked
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.h5", "*.msgpack")  # formats that are not read


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors with a checksum over their names, types, shapes and bytes."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt", CHECKSUM: _checksum(contiguous)})
    _sort_metadata(path)
    # The library creates files that only their owner can read; apply the user's umask instead.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata, whose order changes from run to run, so that equal tensors give equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, and verify its checksum if it has one."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            expected = (file.metadata() or {}).get(CHECKSUM)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}): copy or make it again") from None
    if expected is not None and expected != _checksum(tensors):
        raise UserError(f"{path}: the tensors do not fit their checksum: the file is damaged, copy or make it again")
    return tensors


def read_checksum(path: Path) -> str:
    """The checksum in a file's metadata, without reading its tensors; empty where there is none."""
    try:
        with safe_open(path, "pt") as file:
            return str((file.metadata() or {}).get(CHECKSUM, ""))
    except (SafetensorError, OSError):
        return ""


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_folder_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model folder, in one file or split into several."""
    if (folder / WEIGHTS).exists():
        return read_tensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        return _read_split_tensors(folder)
    for pattern in PICKLES:
        for path in sorted(folder.glob(pattern)):
            raise UserError(
                f"{path}: files of this kind are not read, since a pickle can run code: "
                f"save the model again as {WEIGHTS} (transformers: save_pretrained)"
            )
    raise UserError(f"{folder}: there is no {WEIGHTS}: is this a model folder?")


def read_tensor_names(folder: Path) -> set[str]:
    """The names of a model folder's tensors, without reading them; empty where it has no safetensors files."""
    try:
        if (folder / WEIGHTS).exists():
            with safe_open(folder / WEIGHTS, "pt") as file:
                return set(file.keys())
        if (folder / INDEX).exists():
            return set(json.loads((folder / INDEX).read_text())["weight_map"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: its weights cannot be read ({error}): copy or make them again") from None
    return set()


def _read_split_tensors(folder: Path) -> dict[str, Tensor]:
    index = folder / INDEX
    try:
        places: dict[str, str] = json.loads(index.read_text())["weight_map"]
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: not an index of safetensors files: {error!r}") from None
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{index}: '{file}' is not the name of a file in this folder")
        tensors |= read_tensors(folder / file)
    missing = sorted(set(places) - set(tensors))
    if missing:
        raise UserError(f"{index}: lists the tensor '{missing[0]}', but {places[missing[0]]} does not hold it")
    return tensors
