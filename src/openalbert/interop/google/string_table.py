"""Reads a sorted string table, the file format of LevelDB in which TensorFlow keeps the index of a checkpoint.

Blocks of sorted keys, each key sharing a prefix with the one before it, each block followed by its CRC; then a block
that lists the blocks, then a footer. Nothing is trusted: every length is checked before use.
"""

import struct
from collections.abc import Callable, Iterator

from openalbert.errors import UserError

_MAGIC = 0xDB4775248B80FB57  # the last eight bytes of every such table
_FOOTER_SIZE = 48  # two block handles, padded to 40 bytes, and the magic
_TRAILER_SIZE = 5  # after each block: how it is compressed, and its CRC
# Longer than any name; a damaged or hostile file must not make us allocate more.
_MAX_KEY_SIZE = 4096


class DamagedError(Exception):
    """The bytes are not what the format says; the message becomes part of a UserError that names the file."""


class ForeignError(Exception):
    """The bytes are well-formed, but of a kind that is not read here."""


def records(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values. The footer has no CRC of its own, so the blocks must fill the file without a gap."""
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
    """Where a block lies and how long it is; and where the reading stopped."""
    offset, at = varint(data, at, end)
    size, at = varint(data, at, end)
    return offset, size, at


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block."""
    end = offset + size
    if end + _TRAILER_SIZE > len(table) - _FOOTER_SIZE:
        raise DamagedError("a block reaches beyond its end")
    compression, crc = struct.unpack_from("<BI", table, end)
    if masked(crc32c()(0, table[offset : end + 1])) != crc:
        raise DamagedError(f"the CRC32C of the block at byte {offset} does not match")
    if compression != 0:
        word = "snappy" if compression == 1 else f"method {compression}"
        raise ForeignError(f"its blocks are compressed ({word}), which TensorFlow's saver does not do")
    if size < 4:
        raise DamagedError("a block is too short")
    (num_restarts,) = struct.unpack_from("<I", table, end - 4)
    end -= 4 + 4 * num_restarts
    if end < offset:
        raise DamagedError("a block has more restart points than bytes")
    key = b""
    at = offset
    while at < end:
        shared, at = varint(table, at, end)
        unshared, at = varint(table, at, end)
        length, at = varint(table, at, end)
        if shared > len(key) or shared + unshared > _MAX_KEY_SIZE or at + unshared + length > end:
            raise DamagedError("a name or an entry reaches beyond its block")
        key = key[:shared] + table[at : at + unshared]
        at += unshared
        yield key, table[at : at + length]
        at += length


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the reading stopped."""
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


def crc32c() -> Callable[[int, bytes], int]:
    """The function that carries a CRC32C on over more bytes, from a package that not everyone needs."""
    try:
        import google_crc32c
    except ImportError:
        raise UserError(
            'reading TensorFlow checkpoints needs the package google-crc32c: pip install "openalbert[google]"'
        ) from None
    extend: Callable[[int, bytes], int] = google_crc32c.extend
    return extend


def masked(crc: int) -> int:
    """The form in which a CRC is stored: rotated and shifted, so that a CRC over stored CRCs keeps its strength."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
