"""Reads TensorFlow's checkpoint files (format V2, "tensor bundle") without TensorFlow.

`NAME.index` is a sorted string table. The empty key holds the BundleHeaderProto; every other key is a tensor's name,
and its value the BundleEntryProto with the tensor's place in `NAME.data-00000-of-0000N`. Every length is checked before
use.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from openalbert.errors import UserError
from openalbert.interop.google.string_table import UnsupportedError, crc32c, masked, records
from openalbert.interop.protobuf import DamagedError, read_fields

_VERSION = 1  # the bundle version that TensorFlow writes and this file understands

# Far beyond real checkpoints, so that a damaged file cannot make us allocate more.
_MAX_INDEX_SIZE = 16 << 20
_MAX_RANK = 32
_MAX_TENSOR_SIZE = 1 << 50

_DATA_NAME = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-\d{5}")
_READ_SIZE = 1 << 20

# TensorFlow's type numbers: the name, and numpy's type. bfloat16, which numpy lacks, is read as the upper 16 bits of a
# float32.
_TYPES: dict[int, tuple[str, np.dtype[Any]]] = {
    1: ("float32", np.dtype("<f4")),
    2: ("float64", np.dtype("<f8")),
    3: ("int32", np.dtype("<i4")),
    9: ("int64", np.dtype("<i8")),
    14: ("bfloat16", np.dtype("<u2")),
    19: ("float16", np.dtype("<f2")),
}


@dataclass(frozen=True)
class TensorEntry:
    """The index entry of one tensor."""

    name: str
    dtype: np.dtype[Any] | None
    """The type that `read` returns (float32 for bfloat16); None for strings and other types that are not read here."""
    stored: str
    """TensorFlow's name of the type in the file."""
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    num_slices: int = 0
    """Slices of a partitioned variable; 0 where the tensor is whole."""


class TensorBundle:
    """An open checkpoint: its index, and its tensors one by one."""

    def __init__(self, prefix: Path, num_shards: int, entries: dict[str, TensorEntry]) -> None:
        self.prefix = prefix
        self.num_shards = num_shards
        self.entries = entries

    @classmethod
    def open(cls, path: Path) -> "TensorBundle":
        """Read the index of a checkpoint, given by its prefix, one of its files, or the folder that holds it alone."""
        prefix = _prefix(path)
        index = index_of(prefix)
        try:
            num_shards, entries = _read_index(_read_small(index))
        except DamagedError as damage:
            raise UserError(
                f"{index}: not a whole TensorFlow checkpoint index: {damage}: fetch the file again"
            ) from None
        except UnsupportedError as reason:
            raise UserError(f"{index}: a TensorFlow checkpoint index that is not read here: {reason}") from None
        return cls(prefix, num_shards, entries)

    def read(self, name: str) -> Shaped[np.ndarray, "..."]:
        """One tensor, checked against its CRC; bfloat16 is widened to float32."""
        entry = self.entries.get(name)
        if entry is None:
            raise UserError(f"{self.prefix}: there is no tensor '{name}' in this checkpoint")
        if entry.num_slices:
            raise UserError(
                f"{self.prefix}: '{name}' is a partitioned variable in {entry.num_slices} slices, "
                "which are not read here: save the checkpoint again without a partitioner"
            )
        if entry.dtype is None:
            known = ", ".join(word for word, _ in _TYPES.values())
            raise UserError(f"{self.prefix}: '{name}' is of type {entry.stored}, but only {known} are read")
        shard = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        data, crc = _read_range(shard, entry)
        if crc != entry.crc32c:
            raise UserError(f"{shard}: '{name}' is damaged, its CRC32C does not match the index: fetch the file again")
        if entry.stored == "bfloat16":
            wide = np.frombuffer(data, np.dtype("<u2")).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(entry.shape)
        return np.frombuffer(data, entry.dtype).reshape(entry.shape)


def index_of(path: Path) -> Path:
    """The index of a checkpoint, given by its prefix or one of its files."""
    prefix = _prefix(path)
    return prefix.with_name(prefix.name + ".index")


def _prefix(path: Path) -> Path:
    """The common prefix of a checkpoint's files."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise UserError(f"{path}: expected one checkpoint (a file *.index) in the folder, found {names}: name one")
        path = found[0]
    if path.name.endswith(".index"):
        return path.with_name(path.name.removesuffix(".index"))
    if data := _DATA_NAME.fullmatch(path.name):
        return path.with_name(data["prefix"])
    return path


def _read_small(index: Path) -> bytes:
    try:
        size = index.stat().st_size
        if size > _MAX_INDEX_SIZE:
            raise DamagedError(f"{size} bytes are more than any index has")
        return index.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{index}: no such file: expected the index of a TensorFlow checkpoint (format V2)") from None
    except OSError as error:
        raise UserError(f"{index}: cannot be read: {error.strerror}") from None


def _read_range(shard: Path, entry: TensorEntry) -> tuple[bytearray, int]:
    """The bytes of a tensor, writable, and their masked CRC."""
    extend = crc32c()
    crc = 0
    try:
        with shard.open("rb") as file:
            length = shard.stat().st_size
            if entry.offset + entry.size > length:
                raise UserError(
                    f"{shard}: '{entry.name}' should end at byte {entry.offset + entry.size}, "
                    f"but the file has {length}: it is cut off, fetch it again"
                )
            data = bytearray()
            file.seek(entry.offset)
            while chunk := file.read(min(_READ_SIZE, entry.size - len(data))):
                crc = extend(crc, chunk)
                data += chunk
    except FileNotFoundError:
        raise UserError(f"{shard}: no such file: '{entry.name}' of the checkpoint lies in it") from None
    except OSError as error:
        raise UserError(f"{shard}: '{entry.name}' cannot be read: {error.strerror}") from None
    if len(data) != entry.size:
        raise UserError(f"{shard}: '{entry.name}' has {entry.size} bytes, but only {len(data)} could be read")
    return data, masked(crc)


# The index.


def _read_index(table: bytes) -> tuple[int, dict[str, TensorEntry]]:
    """The number of data files and what lies in them."""
    found = records(table)
    key, header = next(found, (b"-", b""))
    if key != b"":
        raise DamagedError("it does not begin with the bundle's header")
    num_shards = _header(header)
    entries = {}
    for key, value in found:
        if key.startswith(b"\0"):  # a slice of a partitioned variable
            continue
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise DamagedError("a tensor's name is not UTF-8") from None
        entries[name] = _entry(name, value, num_shards)
    return num_shards, entries


# The three protocol buffer messages of a bundle.


def _number(value: int | bytes) -> int:
    """A count or offset. A negative one, which is written as a huge number, means damage."""
    if isinstance(value, bytes) or value >= 1 << 63:
        raise DamagedError("a number is missing or negative")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise DamagedError("there is a number where a message should be")
    return value


def _header(message: bytes) -> int:
    """BundleHeaderProto: the number of data files, if the rest is supported."""
    num_shards, min_consumer = 0, 0
    for field, value in read_fields(message):
        if field == 1:
            num_shards = _number(value)
        elif field == 2 and _number(value) != 0:
            raise UnsupportedError("its tensors are big-endian, save them again on a little-endian machine")
        elif field == 3:
            min_consumer = max(
                [_number(item) for number, item in read_fields(_message(value)) if number == 2], default=0
            )
    if min_consumer > _VERSION:
        raise UnsupportedError(f"it asks for a reader of version {min_consumer}, this one is of version {_VERSION}")
    if not 1 <= num_shards <= 99_999:
        raise DamagedError(f"it names {num_shards} data files")
    return num_shards


def _entry(name: str, message: bytes, num_shards: int) -> TensorEntry:
    """BundleEntryProto."""
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)  # type, shard, offset, size, CRC
    shape: tuple[int, ...] = ()
    num_slices = 0
    for field, value in read_fields(message):
        if field in numbers:
            numbers[field] = _number(value)
        elif field == 2:
            shape = _shape(name, _message(value))
        elif field == 7:
            num_slices += 1
    kind, shard, offset, size, crc = numbers.values()
    if shard >= num_shards:
        raise DamagedError(f"'{name}' should lie in data file {shard} of {num_shards}")
    word, dtype = _TYPES.get(kind) or ("string" if kind == 7 else f"number {kind}", None)
    if dtype is not None and not num_slices:
        # A dimension of 0 must not hide others that are too large for numpy.
        if math.prod(max(dimension, 1) for dimension in shape) * dtype.itemsize > _MAX_TENSOR_SIZE:
            raise DamagedError(f"'{name}' of shape {shape} is larger than any tensor")
        if math.prod(shape) * dtype.itemsize != size:
            raise DamagedError(f"'{name}' of shape {shape} and type {word} cannot have {size} bytes")
    given = np.dtype("<f4") if word == "bfloat16" else dtype
    return TensorEntry(name, given, word, shape, shard, offset, size, crc, num_slices)


def _shape(name: str, message: bytes) -> tuple[int, ...]:
    """TensorShapeProto."""
    shape = []
    for field, value in read_fields(message):
        if field == 2:
            shape.append(
                max([_number(item) for number, item in read_fields(_message(value)) if number == 1], default=0)
            )
        elif field == 3 and value:
            raise DamagedError(f"'{name}' has no known shape")
        if len(shape) > _MAX_RANK:
            raise DamagedError(f"'{name}' has more than {_MAX_RANK} dimensions")
    return tuple(shape)
