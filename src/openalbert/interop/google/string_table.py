"""Reads a sorted string table: LevelDB's file format, which TensorFlow uses for the index of a checkpoint.

It has blocks of sorted keys, each key sharing a prefix with the previous one, each block followed by its CRC; then a
block that lists the blocks, then a footer. Every length is checked before use.
"""

import struct
from collections.abc import Callable, Iterator

from openalbert.errors import UserError
from openalbert.interop.protobuf import DamagedError, read_varint

_MAGIC = 0xDB4775248B80FB57  # the last eight bytes of every such table
_FOOTER_SIZE = 48  # two block handles, padded to 40 bytes, and the magic
_TRAILER_SIZE = 5  # after each block: how it is compressed, and its CRC
_MAX_KEY_SIZE = 4096  # longer than any name, so that a damaged file cannot make us allocate more


class UnsupportedError(Exception):
    """The bytes are well-formed, but of a kind that is not read here."""


def records(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values. The footer has no CRC, so the blocks must fill the file without a gap."""
    footer = len(table) - _FOOTER_SIZE
    if footer < 0:
        raise DamagedError(f"{len(table)} bytes are fewer than the {_FOOTER_SIZE} of a footer")
    (magic,) = struct.unpack_from("<Q", table, footer + 40)
    if magic != _MAGIC:
        raise DamagedError("the mark at its end is missing")
    *meta, at = _handle(table, footer, footer + 40)
    *index, at = _handle(table, at, footer + 40)
    if any(table[at : footer + 40]):
        raise DamagedError("the footer holds something unknown")
    end = 0
    last = None
    for _, value in _block(table, *index):
        offset, size, used = _handle(value, 0, len(value))
        if offset != end or used != len(value):
            raise DamagedError("its blocks do not follow one another")
        end = offset + size + _TRAILER_SIZE
        for key, content in _block(table, offset, size):
            if last is not None and key <= last:
                raise DamagedError("its names are not in order")
            last = key
            yield key, content
    if any(_block(table, *meta)):
        raise DamagedError("it holds more than names")
    for offset, size in (meta, index):
        if offset != end:
            raise DamagedError("its blocks do not follow one another")
        end = offset + size + _TRAILER_SIZE
    if end != footer:
        raise DamagedError("its blocks do not end where the footer begins")


def _handle(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Offset and size of a block, and the position after the handle."""
    offset, at = read_varint(data, at, end)
    size, at = read_varint(data, at, end)
    return offset, size, at


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    end = offset + size
    if end + _TRAILER_SIZE > len(table) - _FOOTER_SIZE:
        raise DamagedError("a block reaches beyond its end")
    compression, crc = struct.unpack_from("<BI", table, end)
    if masked(crc32c()(0, table[offset : end + 1])) != crc:
        raise DamagedError(f"the CRC32C of the block at byte {offset} does not match")
    if compression != 0:
        word = "snappy" if compression == 1 else f"method {compression}"
        raise UnsupportedError(f"its blocks are compressed ({word}), which TensorFlow's saver does not do")
    if size < 4:
        raise DamagedError("a block is too short")
    (num_restarts,) = struct.unpack_from("<I", table, end - 4)
    end -= 4 + 4 * num_restarts
    if end < offset:
        raise DamagedError("a block has more restart points than bytes")
    key = b""
    at = offset
    while at < end:
        shared, at = read_varint(table, at, end)
        unshared, at = read_varint(table, at, end)
        length, at = read_varint(table, at, end)
        if shared > len(key) or shared + unshared > _MAX_KEY_SIZE or at + unshared + length > end:
            raise DamagedError("a name or an entry reaches beyond its block")
        key = key[:shared] + table[at : at + unshared]
        at += unshared
        yield key, table[at : at + length]
        at += length


def crc32c() -> Callable[[int, bytes], int]:
    """The function that extends a CRC32C over more bytes, from an optional package."""
    try:
        import google_crc32c
    except ImportError:
        raise UserError(
            'reading TensorFlow checkpoints needs the package google-crc32c: pip install "openalbert[google]"'
        ) from None
    extend: Callable[[int, bytes], int] = google_crc32c.extend
    return extend


def masked(crc: int) -> int:
    """A CRC as stored: rotated and shifted, so that a CRC over stored CRCs stays strong."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
