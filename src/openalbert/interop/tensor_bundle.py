"""Reads TensorFlow's checkpoint files (format V2, "tensor bundle") without TensorFlow.

`NAME.index` is a sorted string table, LevelDB's file format: blocks of sorted keys, each key sharing a prefix with the
previous one, each block followed by its CRC; then a block that lists the blocks, then a footer. The empty key holds the
number of data files; every other key is a tensor's name, and its value the tensor's place in
`NAME.data-00000-of-0000N`. What passes its CRC is what TensorFlow wrote.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from openalbert.errors import UserError
from openalbert.interop.protobuf import read_fields, read_varint

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)  # the last eight bytes of every string table
_FOOTER_SIZE = 48  # two block handles, padded to 40 bytes, and the magic
_TRAILER_SIZE = 5  # after each block: how it is compressed, and its CRC
_DATA_NAME = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-\d{5}")
_BFLOAT16 = 14
# TensorFlow's type numbers. bfloat16, which numpy lacks, is read as the upper 16 bits of a float32.
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", _BFLOAT16: "<u2", 19: "<f2"}


@dataclass(frozen=True)
class TensorEntry:
    """The index entry of one tensor."""

    name: str
    kind: int
    """TensorFlow's number of its type."""
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    is_whole: bool
    """Whether it is one tensor, and not a partitioned variable."""


class TensorBundle:
    """An open checkpoint: its index, and its tensors one by one."""

    def __init__(self, prefix: Path, num_shards: int, entries: dict[str, TensorEntry]) -> None:
        self.prefix, self.num_shards, self.entries = prefix, num_shards, entries

    @classmethod
    def open(cls, path: Path) -> "TensorBundle":
        """Read the index of a checkpoint, given by its prefix, one of its files, or the folder that holds it alone."""
        index = index_of(path)
        try:
            table = index.read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"{index}: no such file: expected the index of a TensorFlow checkpoint (format V2)"
            ) from None
        try:
            records = dict(_records(table))
            header = dict(read_fields(records.pop(b"")))
            # A key that begins with a zero byte is a slice of a partitioned variable.
            entries = [_entry(key.decode(), value) for key, value in records.items() if not key.startswith(b"\0")]
        except (ValueError, IndexError, KeyError, OverflowError, struct.error):
            raise UserError(f"{index}: not a whole TensorFlow checkpoint index: fetch the file again") from None
        return cls(index.with_suffix(""), int(header[1]), {entry.name: entry for entry in entries})

    def read(self, name: str) -> Shaped[np.ndarray, "..."]:
        """One tensor, checked against its CRC; bfloat16 is widened to float32."""
        entry = self.entries[name]
        if entry.kind not in _TYPES or not entry.is_whole:
            raise UserError(f"{self.prefix}: '{name}' is no whole tensor of numbers, so it cannot be read")
        shard = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        try:
            with shard.open("rb") as file:
                file.seek(entry.offset)
                data = bytearray(file.read(entry.size))
        except FileNotFoundError:
            raise UserError(f"{shard}: no such file: '{name}' of the checkpoint lies in it") from None
        if len(data) < entry.size or _crc32c(data) != entry.crc32c:
            raise UserError(f"{shard}: '{name}' is damaged, its CRC32C does not match the index: fetch the file again")
        array: np.ndarray[Any, Any] = np.frombuffer(data, _TYPES[entry.kind])
        if entry.kind == _BFLOAT16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.reshape(entry.shape)


def index_of(path: Path) -> Path:
    """The index of a checkpoint, given by its prefix, one of its files, or the folder that holds it alone."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise UserError(f"{path}: expected one checkpoint (a file *.index) in the folder, found {names}: name one")
        return found[0]
    if path.suffix == ".index":
        return path
    data = _DATA_NAME.fullmatch(path.name)
    return path.with_name(f"{data['prefix'] if data else path.name}.index")


def _records(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values. The footer has no CRC, so the blocks must fill the file without a gap."""
    footer = len(table) - _FOOTER_SIZE
    if table[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("the mark at its end is missing")
    *meta, at = _handle(table, footer)
    *index, at = _handle(table, at)
    end = 0
    for handle in [*(_handle(value)[:2] for _, value in _block(table, *index)), meta, index]:
        if handle[0] != end:
            raise ValueError("its blocks do not follow one another")
        end = sum(handle) + _TRAILER_SIZE
        if handle is not index:
            yield from _block(table, *handle)
    if end != footer or any(table[at : -len(_MAGIC)]):
        raise ValueError("its blocks do not end where the footer begins")


def _handle(data: bytes, at: int = 0) -> tuple[int, int, int]:
    """Offset and size of a block, and the position after the handle."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return offset, size, at


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    end = offset + size
    compression, crc = struct.unpack_from("<BI", table, end)
    if _crc32c(table[offset : end + 1]) != crc or compression != 0:  # TensorFlow's saver does not compress
        raise ValueError("a block is damaged or compressed")
    (num_restarts,) = struct.unpack_from("<I", table, end - 4)
    end -= 4 + 4 * num_restarts
    key, at = b"", offset
    while at < end:
        shared, at = read_varint(table, at)
        unshared, at = read_varint(table, at)
        length, at = read_varint(table, at)
        key = key[:shared] + table[at : at + unshared]
        at += unshared
        yield key, table[at : at + length]
        at += length


def _entry(name: str, message: bytes) -> TensorEntry:
    """BundleEntryProto: type, shape, data file, offset, size, CRC, and the slices of a partitioned variable."""
    found: dict[int, Any] = {1: 0, 2: b"", 3: 0, 4: 0, 5: 0, 6: 0} | dict(read_fields(message))
    sizes = [dict(read_fields(value)) for number, value in read_fields(found[2]) if number == 2]  # type: ignore[arg-type]
    shape = tuple(int(size.get(1, 0)) for size in sizes)
    return TensorEntry(name, found[1], shape, found[3], found[4], found[5], found[6], is_whole=7 not in found)


def _crc32c(data: bytes | bytearray) -> int:
    """A CRC32C as stored: rotated and shifted, so that a CRC over stored CRCs stays strong."""
    try:
        import google_crc32c
    except ImportError:
        raise UserError(
            'reading TensorFlow checkpoints needs the package google-crc32c: pip install "openalbert[google]"'
        ) from None
    crc: int = google_crc32c.value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
