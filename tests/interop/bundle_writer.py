"""Writes TensorFlow's checkpoint files byte by byte, so that tests can make broken and hostile ones too."""

import struct
from pathlib import Path

import google_crc32c
import numpy as np

TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def fixed32(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<I", value)


def header(num_shards: int = 1, endianness: int = 0, min_consumer: int = 0) -> bytes:
    version = number(1, 1) + (number(2, min_consumer) if min_consumer else b"")
    return number(1, num_shards) + (number(2, endianness) if endianness else b"") + message(3, version)


def entry(kind: int, shape: tuple[int, ...], offset: int, size: int, crc: int, shard: int = 0) -> bytes:
    dimensions = b"".join(message(2, number(1, dimension)) for dimension in shape)
    place = (number(3, shard) if shard else b"") + (number(4, offset) if offset else b"") + number(5, size)
    return number(1, kind) + message(2, dimensions) + place + fixed32(6, crc)


def block(records: list[tuple[bytes, bytes]], restart_interval: int = 16) -> bytes:
    out, restarts, last = bytearray(), [], b""
    for index, (key, value) in enumerate(records):
        shared = 0
        if index % restart_interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(records: list[tuple[bytes, bytes]], num_per_block: int = 50, compression: int = 0) -> bytes:
    """The index file for keys that are in order already."""
    out = bytearray()

    def add(content: bytes) -> bytes:
        handle = varint(len(out)) + varint(len(content))
        sealed = content + bytes([compression])
        out.extend(sealed + struct.pack("<I", masked_crc(sealed)))
        return handle

    chunks = [records[start : start + num_per_block] for start in range(0, len(records), num_per_block)]
    handles = [(chunk[-1][0], add(block(chunk))) for chunk in chunks]
    meta = add(block([]))
    index = add(block(handles, restart_interval=1))
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(prefix: Path, tensors: dict[str, np.ndarray], num_per_block: int = 50) -> None:
    """A whole checkpoint in one data file."""
    data, records = bytearray(), [(b"", header())]
    for name in sorted(tensors, key=str.encode):
        content = tensors[name].tobytes()
        kind = TYPES[tensors[name].dtype.name]
        described = entry(kind, tensors[name].shape, len(data), len(content), masked_crc(content))
        records.append((name.encode(), described))
        data += content
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(records, num_per_block))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
