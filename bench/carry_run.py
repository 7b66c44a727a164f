"""Carry an unfinished pretraining run to another machine in small files, and resume it there.

    python bench/carry_run.py pack runs/base --out carried [--weights bf16] [--part-mib 15]
    python bench/carry_run.py unpack carried --out runs/base

`pack` writes the newest checkpoint, the settings and the metrics as part-000, part-001 … of at most so many MiB, and
manifest.json with their checksums. The optimizer state is rounded to bf16, which halves it; weights stay fp32, or are
rounded too with `--weights bf16`. `unpack` checks every part and restores a run folder: the same command with --out
(and --data, --heldout, --distill, where they lie elsewhere) resumes it on its schedule. A budget in minutes counts the
minutes of training on both machines. The result is not bit-identical to an undisturbed run, and run_info.json says so
under `carried`. What the rounding costs: results/carry-run.
"""

import argparse
import hashlib
import io
import json
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from openalbert.errors import UserError
from openalbert.run_files import CHECKPOINTS, METRICS, RUN, RUN_INFO
from openalbert.train import checkpoint

MANIFEST = "manifest.json"
FILES = (RUN, RUN_INFO, METRICS)
STATE = "state.json"
GROUPS = ("model", "optimizer")


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """fp32 tensors in bf16; counters and other types as they are."""
    return {
        name: tensor.bfloat16() if tensor.dtype == torch.float32 and tensor.numel() > 1 else tensor
        for name, tensor in tensors.items()
    }


def restored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """bf16 tensors in fp32."""
    return {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in tensors.items()}


def archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Files in memory as one tar archive."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def write_parts(whole: bytes, out: Path, part_mib: float, about: dict[str, Any]) -> dict[str, Any]:
    """Write content as parts of at most so many MiB with a manifest, which is returned."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: it is not empty: give another --out, so that parts of two runs are never mixed")
    out.mkdir(parents=True, exist_ok=True)
    size, parts = int(part_mib * 2**20), {}
    for number, begin in enumerate(range(0, len(whole), size)):
        part, name = whole[begin : begin + size], f"part-{number:03d}"
        (out / name).write_bytes(part)
        parts[name] = hashlib.sha256(part).hexdigest()
    manifest = {**about, "bytes": len(whole), "parts": parts}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def read_parts(folder: Path) -> bytes:
    """The content again, every part checked."""
    manifest = json.loads((folder / MANIFEST).read_text())
    return b"".join(_checked(folder / name, sha256) for name, sha256 in manifest["parts"].items())


def pack(run: Path, out: Path, weights: str, part_mib: float) -> dict[str, Any]:
    """Write the parts of a run and their manifest, which is returned."""
    found, _ = checkpoint.latest(run / CHECKPOINTS)
    if found is None:
        raise UserError(f"{run}: there is no checkpoint to carry")
    tensors, state = found.read()
    groups = {
        "model": rounded(tensors["model"]) if weights == "bf16" else tensors["model"],
        "optimizer": rounded(tensors["optimizer"]),
    }
    record = {"step": found.step, "state": state, "weights": weights, "optimizer": "bf16", "packed": _now()}
    files = [(name, (run / name).read_bytes()) for name in FILES if (run / name).exists()]
    files += [(STATE, json.dumps(record).encode())]
    files += [(f"{group}.safetensors", save(groups[group])) for group in GROUPS]
    return write_parts(archive(files), out, part_mib, {"step": found.step, "weights": weights, "optimizer": "bf16"})


def unpack(folder: Path, out: Path) -> dict[str, Any]:
    """Restore the run folder; returns what run_info.json says of it."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: it is not empty: give another --out")
    with tarfile.open(fileobj=io.BytesIO(read_parts(folder))) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    record = json.loads(files[STATE])
    groups = {group: restored(load(files[f"{group}.safetensors"])) for group in GROUPS}
    out.mkdir(parents=True, exist_ok=True)
    carried = {name: record[name] for name in ("step", "weights", "optimizer", "packed")} | {"unpacked": _now()}
    run_info = json.loads(files[RUN_INFO])
    run_info["carried"] = [*run_info.get("carried", ()), carried]
    files[RUN_INFO] = (json.dumps(run_info, indent=2) + "\n").encode()
    for name in FILES:
        if name in files:
            (out / name).write_bytes(files[name])
    checkpoint.save(out / CHECKPOINTS, record["step"], groups, record["state"], keep_last=1, is_best=False)
    return carried


def _checked(path: Path, sha256: str) -> bytes:
    if not path.exists():
        raise UserError(f"{path}: this part is missing: bring it here too")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path}: it does not match its checksum in {MANIFEST}: bring it here again")
    return content


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("pack", "unpack"))
    parser.add_argument("folder", type=Path, help="the run to pack, or the folder of the parts to unpack")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", choices=("fp32", "bf16"), default="fp32", help="for pack")
    parser.add_argument("--part-mib", type=float, default=15.0, help="for pack: the largest part")
    given = parser.parse_args(words)
    try:
        if given.verb == "pack":
            manifest = pack(given.folder, given.out, given.weights, given.part_mib)
            size = manifest["bytes"] / 2**20
            print(f"step {manifest['step']:,}: {len(manifest['parts'])} parts in {given.out}, {size:.1f} MiB in all")
        else:
            carried = unpack(given.folder, given.out)
            print(f"{given.out}: step {carried['step']:,}; the same command with this --out resumes it")
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
