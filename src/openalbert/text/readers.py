"""From the bytes of a corpus to clean text: decompression, UTF-8, line breaks, control characters.

The cleaning rules, in the order they are applied (each is counted):

- Text is UTF-8. Every byte sequence that is not becomes U+FFFD, and so does a lone surrogate escaped in JSON.
- Line breaks are `\\n`, `\\r\\n`, `\\r`, vertical tab, form feed, U+0085, U+2028 and U+2029; all become `\\n`.
- Removed: the other control characters (C0, DEL, C1) but the tab; U+FEFF wherever it stands; soft hyphens (U+00AD);
  marks of writing direction (U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069); the word joiner U+2060, annotation
  marks (U+FFF9 to U+FFFB) and noncharacters (U+FDD0 to U+FDEF, U+FFFE, U+FFFF). Zero-width joiners and spaces stay:
  emoji, Persian and Thai need them. Unicode normalization and case are left to the tokenizer.
"""

import bz2
import codecs
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast, runtime_checkable

from openalbert.errors import UserError

BLOCK = 1 << 20  # bytes read at a time
JUNK_SAMPLE = 1 << 16  # bytes at the start of a file that are tested for binary data
JUNK_FRACTION = 0.1  # with a larger fraction of broken or control characters, a file is not text ...
JUNK_ALLOWANCE = 32  # ... but this many are always allowed, for short files
# Magic bytes of compressed files; longer for bz2, because a text could begin with BZh.
MAGIC = {
    "gz": rb"\x1f\x8b",
    "bz2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\x00",
    "zst": rb"\x28\xb5\x2f\xfd",
}
HEAD = 10  # bytes, the longest of these
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class CorpusReading:
    """How text files are read."""

    format: Literal["auto", "text", "jsonl", "csv", "tsv", "parquet", "datasets"] = "auto"
    """The format of the files. auto goes by the ending (.txt, .text, .md or none; .jsonl, .ndjson, .json; .csv; .tsv;
    .parquet), before .gz, .bz2, .xz or .zst if there is one. datasets treats each name as a Hugging Face dataset or a
    folder of one, and may use the network."""
    text_field: str = "text"
    """The field (JSONL) or column (CSV, TSV, Parquet, datasets) that holds the text; each record is a document."""
    document: Literal["blank-line", "file", "line"] = "blank-line"
    """What a document is in a text file: text between blank lines, the whole file, or each line."""
    wrapped: bool = False
    """Lines of text files are wrapped: consecutive lines are one paragraph, which a blank line ends. Otherwise every
    line is a paragraph, and so ends a sentence."""
    dataset_config: str | None = None
    """The configuration of a Hugging Face dataset, if it has several."""
    dataset_split: str = "train"
    """The split of a Hugging Face dataset."""
    max_document_characters: int = 5_000_000
    """A longer document is split at the last sentence or word boundary before this. This bounds the memory."""


@dataclass(frozen=True)
class CorpusSource:
    """One input: a file, standard input (`-`), or a Hugging Face dataset."""

    name: str
    """The path as given, or below a given folder; `-`; or the dataset's name."""
    format: Literal["text", "jsonl", "csv", "tsv", "parquet", "datasets"]
    """Its format, never auto."""
    size_bytes: int | None
    """Its size on disk; None where unknown (standard input, pipes, datasets)."""


@dataclass
class Counts:
    """What was read, dropped and changed. Counts of several sources can be added."""

    documents: int = 0
    characters: int = 0
    bytes_read: int = 0
    """Bytes on disk, before decompression; 0 for datasets."""
    dropped_empty: int = 0
    """Records whose text is empty after cleaning."""
    dropped_duplicates: int = 0
    dropped_broken_lines: int = 0
    """Lines of a JSONL file that are not a JSON object, or too long to parse; rows of CSV and TSV files that have
    another number of columns than their header."""
    first_broken_line: str = ""
    """File and line of the first of them."""
    dropped_without_text: int = 0
    """Records whose text field is missing, null or not a string."""
    empty_files: int = 0
    long_documents_cut: int = 0
    """Cuts made in documents longer than the maximum."""
    control_characters_removed: int = 0
    broken_utf8_replaced: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        total: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            one, two = getattr(self, name), getattr(other, name)
            total[name] = one or two if name == "first_broken_line" else one + two
        return Counts(**total)

    def add_broken_line(self, source: CorpusSource, number: int) -> None:
        """Count a dropped line or row."""
        self.dropped_broken_lines += 1
        self.first_broken_line = self.first_broken_line or f"{source.name}, line {number}"

    def remarks(self) -> list[str]:
        """Everything that was dropped or changed, one line each."""
        first = f" (the first: {self.first_broken_line})" if self.first_broken_line else ""
        lines = {
            "empty documents dropped": self.dropped_empty,
            "duplicate documents dropped": self.dropped_duplicates,
            f"JSON lines or table rows dropped because they are broken or too long{first}": self.dropped_broken_lines,
            "records dropped because they have no text": self.dropped_without_text,
            "files without any text": self.empty_files,
            "cuts in documents over the maximum length": self.long_documents_cut,
            "control characters removed": self.control_characters_removed,
            "broken UTF-8 sequences replaced by U+FFFD": self.broken_utf8_replaced,
        }
        return [f"{number:,} {what}" for what, number in lines.items() if number]


_LINE_BREAKS = "\v\f\x85\u2028\u2029"
_UNCLEAN = re.compile(
    f"[{_LINE_BREAKS}\ud800-\udfff\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


def clean(text: str, counts: Counts) -> str:
    """Clean text by the rules above; all line breaks become `\\n`."""

    def replace(match: re.Match[str]) -> str:
        if match[0] in _LINE_BREAKS:
            return "\n"
        if "\ud800" <= match[0] <= "\udfff":
            counts.broken_utf8_replaced += 1
            return "\ufffd"
        counts.control_characters_removed += 1
        return ""

    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNCLEAN.sub(replace, text)


def decode(data: bytes, counts: Counts, final: bool = True) -> tuple[str, int]:
    """UTF-8 to text and the number of bytes used; without `final` a character cut off at the end is left unused."""
    text, used = codecs.utf_8_decode(data, "replace", final)
    # A U+FFFD in the file itself is ordinary text.
    counts.broken_utf8_replaced += text.count("\ufffd") - data.count(b"\xef\xbf\xbd", 0, used)
    return text, used


def decoded_blocks(source: CorpusSource, counts: Counts) -> Iterator[str]:
    """The text of a file, not cleaned, in blocks that may end anywhere, even within a line."""
    rest = b""
    for block in byte_blocks(source, counts):
        text, used = decode(data := rest + block, counts, final=False)
        rest = data[used:]
        yield text
    yield decode(rest, counts)[0]


def text_blocks(source: CorpusSource, counts: Counts) -> Iterator[str]:
    """The clean text of a file, in blocks that may end anywhere, even within a line."""
    held = ""
    for block in decoded_blocks(source, counts):
        text = held + block
        # A carriage return at the end may be the first half of a line break.
        held = "\r" if text.endswith("\r") else ""
        yield clean(text.removesuffix("\r"), counts)
    yield clean(held, counts)


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Counted:
    """A file that counts the bytes read from it and lets its first bytes be inspected."""

    def __init__(self, file: _Readable, counts: Counts) -> None:
        self.file, self.counts = file, counts
        self.taken = 0
        self.head = file.read(HEAD)

    def read(self, size: int = -1) -> bytes:
        if self.head:
            data, self.head = (self.head, b"") if size < 0 else (self.head[:size], self.head[size:])
        else:
            data = self.file.read(size)
        self.taken += len(data)
        self.counts.bytes_read += len(data)
        return data


@contextmanager
def _opened(source: CorpusSource) -> Iterator[_Readable]:
    if source.name == STANDARD_INPUT:
        yield sys.stdin.buffer
    else:
        with Path(source.name).open("rb") as file:
            yield file


def byte_blocks(source: CorpusSource, counts: Counts, takes_utf16: bool = False) -> Iterator[bytes]:
    """The decompressed bytes of a file; compression is recognized by its magic bytes. Binary data is refused."""
    with _opened(source) as raw:
        file = _Counted(raw, counts)
        ending = Path(source.name).suffix.removeprefix(".")
        compression = next((name for name, magic in MAGIC.items() if re.match(magic, file.head)), None)
        if ending in MAGIC and file.head and compression is None:
            raise UserError(
                f"{source.name}: its name ends in .{ending}, but it does not begin like such a file: it is damaged, "
                f"or not compressed and should be named without .{ending}"
            )
        try:
            first = True
            for block in _filled(_decompressor(file, compression, source.name)):
                if first:
                    _refuse_junk(block[:JUNK_SAMPLE], source.name, takes_utf16)
                    first = False
                yield block
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's error, not the data's
            raise UserError(
                f"{source.name}: the {compression} data is cut short or damaged, "
                f"near byte {file.taken:,} ({error}): make the file again or leave it out"
            ) from None
        if source.size_bytes is not None:
            # A decompressor may leave bytes after the end of its data unread.
            counts.bytes_read += source.size_bytes - file.taken


def _decompressor(file: _Counted, compression: str | None, name: str) -> Callable[[int], bytes]:
    """A read function: at most as many bytes as requested (except for zst), none at the end."""
    readable = cast("IO[bytes]", file)  # as much of a file as the decompressors need
    if compression == "gz":
        return gzip.GzipFile(fileobj=readable, mode="rb").read
    if compression == "bz2":
        return bz2.BZ2File(readable).read
    if compression == "xz":
        return lzma.LZMAFile(readable).read
    if compression == "zst":
        frames = _zst_frames(file, name)
        return lambda _size: next(frames, b"")
    return file.read


def _zst_frames(file: _Counted, name: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise UserError(f"{name}: reading zst needs an extra: pip install 'openalbert[zstd]'") from None
    # Small reads, because one byte may decompress to 32,768; and one object per frame, because zstandard's own stream
    # reader does not notice a truncated file.
    frame = None
    try:
        while data := file.read(1024):
            while data:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                if unpacked := frame.decompress(data):
                    yield unpacked
                data = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame = None
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if frame is not None:
        raise EOFError("the last frame has no end")


def _filled(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Blocks of at least BLOCK bytes except the last: pipes and decompressors often return less."""
    parts: list[bytes] = []
    size = 0
    while part := read(BLOCK):
        parts.append(part)
        size += len(part)
        if size >= BLOCK:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _refuse_junk(sample: bytes, name: str, takes_utf16: bool) -> None:
    if sample.startswith(UTF16_MARKS):
        if takes_utf16:
            return
        raise UserError(f"{name}: this is UTF-16, but UTF-8 is read: iconv -f UTF-16 -t UTF-8 FILE converts it")
    found = Counts()
    text, _ = decode(sample, found, final=False)
    clean(text, found)
    bad = found.broken_utf8_replaced + found.control_characters_removed
    if bad > max(JUNK_ALLOWANCE, JUNK_FRACTION * len(text)):
        raise UserError(
            f"{name}: this is not UTF-8 text: {bad:,} of the first {len(text):,} characters are broken or control "
            "characters; leave the file out, or convert it (for example with iconv -f LATIN1 -t UTF-8)"
        )
