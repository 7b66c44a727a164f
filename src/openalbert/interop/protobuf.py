"""The fields of a protocol buffer message, read without the protobuf package."""

from collections.abc import Iterator


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: number and value, which is bytes where the field has a length."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(message, at)
            yield tag >> 3, value
        elif kind == 2:
            size, at = read_varint(message, at)
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[kind]
            yield tag >> 3, int.from_bytes(message[at : at + size], "little")
            at += size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, the lowest first, and the position after it."""
    value = shift = 0
    while data[at] >= 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
