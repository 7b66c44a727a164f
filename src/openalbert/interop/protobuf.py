"""The fields of a protocol buffer message, read without the protobuf package. Every length is checked before use."""

from collections.abc import Iterator


class DamagedError(Exception):
    """The bytes violate the format; callers turn the message into a UserError that names the file."""


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: number and value, which is bytes where the field has a length."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at, len(message))
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(message, at, len(message))
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = read_varint(message, at, len(message))
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise DamagedError(f"a field has the unknown kind {kind}")
        if at + size > len(message):
            raise DamagedError("a field reaches beyond its message")
        content = message[at : at + size]
        at += size
        yield tag >> 3, content if kind == 2 else int.from_bytes(content, "little")


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits per byte, the lowest first, and the position after it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise DamagedError("a number has no end")
