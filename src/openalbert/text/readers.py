"""How the bytes of a corpus become text: compression, UTF-8, cleaning, and the record formats JSONL, Parquet, datasets.

The rules of cleaning, in the order they are applied, each one counted:

- Text is UTF-8. Every byte sequence that is not becomes U+FFFD, and so does a lone surrogate escaped in JSON.
- Line breaks are `\\n`, `\\r\\n`, `\\r`, vertical tab, form feed, U+0085, U+2028 and U+2029; all become `\\n`.
- Removed: the other control characters (C0, DEL, C1) but the tab; U+FEFF wherever it stands; soft hyphens (U+00AD);
  marks of writing direction (U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069); the word joiner U+2060, annotation
  marks (U+FFF9 to U+FFFB) and noncharacters (U+FDD0 to U+FDEF, U+FFFE, U+FFFF). Zero-width joiners and spaces stay:
  emoji, Persian and Thai need them. Unicode normal forms and case are the tokenizer's business.
"""

import bz2
import codecs
import gzip
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Literal, cast

from openalbert.errors import UserError, suggestion

BLOCK = 1 << 20  # bytes read at a time
JUNK_SAMPLE = 1 << 16  # bytes at the start of a file on which the test for binary data looks
JUNK_SHARE = 0.1  # more broken or control characters than this share, and the file is not text
LONGEST_JSON_LINE = 1 << 25  # bytes; a longer line is dropped, for a record must be in memory to be parsed
HOPELESS_RECORDS = 1000  # records in a row at the start of a file that give no text before it is refused
# How compressed files begin; bz2 at length, because a text could begin with BZh.
MAGIC = {
    "gz": rb"\x1f\x8b",
    "bz2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\x00",
    "zst": rb"\x28\xb5\x2f\xfd",
}
HEAD = 10  # bytes, the longest of these
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Reading:
    """How text files are read."""

    format: Literal["auto", "text", "jsonl", "parquet", "datasets"] = "auto"
    """What the files are. auto goes by the ending (.txt, .text, .md or none; .jsonl, .ndjson, .json; .parquet), behind
    .gz, .bz2, .xz or .zst if there is one. datasets takes each name for one of Hugging Face datasets, or for a folder
    of one, and may use the network."""
    text_field: str = "text"
    """The field (JSONL) or column (Parquet, datasets) that holds the text."""
    document: Literal["blank-line", "file", "line"] = "blank-line"
    """What one document is in a text file: what stands between blank lines, the whole file, or each line."""
    wrapped: bool = False
    """Lines of text files are wrapped: neighbouring lines are one paragraph, and blank lines end it. Without this
    every line is a paragraph of its own, and so ends a sentence."""
    dataset_config: str | None = None
    """The configuration of a Hugging Face dataset that has several."""
    dataset_split: str = "train"
    """The split of a Hugging Face dataset."""
    max_document_characters: int = 5_000_000
    """A longer document is cut into several at the last sentence or word border before. This bounds the memory."""


@dataclass(frozen=True)
class Source:
    """One input: a file, standard input (`-`), or a Hugging Face dataset."""

    name: str
    """The path as the user gave it, continued below a folder; `-`; or the dataset's name."""
    format: Literal["text", "jsonl", "parquet", "datasets"]
    """What it is, never auto."""
    size_bytes: int | None
    """Its size on disk; None where that cannot be known (standard input, pipes, datasets)."""


@dataclass
class Counts:
    """What was read, and everything that was dropped or changed on the way. Counts of several sources add up."""

    documents: int = 0
    characters: int = 0
    bytes_read: int = 0
    """Bytes on disk, that is compressed ones; 0 for datasets."""
    dropped_empty: int = 0
    """Records whose text is empty after cleaning."""
    dropped_duplicates: int = 0
    dropped_broken_lines: int = 0
    """Lines of a JSONL file that are not a JSON object, or too long to parse."""
    dropped_without_text: int = 0
    """Records whose text field is missing, null or not a string."""
    empty_files: int = 0
    long_documents_cut: int = 0
    """Cuts made in documents longer than the maximum."""
    control_characters_removed: int = 0
    broken_utf8_replaced: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def remarks(self) -> list[str]:
        """Everything that was dropped or changed, a line each; nothing where nothing was."""
        lines = {
            "empty documents dropped": self.dropped_empty,
            "duplicate documents dropped": self.dropped_duplicates,
            "JSON lines dropped because they are broken or too long": self.dropped_broken_lines,
            "records dropped because they have no text": self.dropped_without_text,
            "files without any text": self.empty_files,
            "cuts in documents over the maximum length": self.long_documents_cut,
            "control characters removed": self.control_characters_removed,
            "broken UTF-8 sequences replaced by U+FFFD": self.broken_utf8_replaced,
        }
        return [f"{number:,} {what}" for what, number in lines.items() if number]


_LINE_BREAKS = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REMOVED_CLASS = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff"
)
_REMOVED = re.compile(f"[{_REMOVED_CLASS}]")
# One scan finds out whether any of the rules has work to do: on most text none has.
_UNCLEAN = re.compile(f"[\x0b-\x0d\x85\u2028\u2029\ud800-\udfff{_REMOVED_CLASS}]")


def clean(text: str, counts: Counts) -> str:
    """Text by the rules above; its line breaks are all `\\n`."""
    if not _UNCLEAN.search(text):
        return text
    text = _LINE_BREAKS.sub("\n", text.replace("\r\n", "\n"))
    text, replaced = _SURROGATES.subn("\ufffd", text)
    text, removed = _REMOVED.subn("", text)
    counts.broken_utf8_replaced += replaced
    counts.control_characters_removed += removed
    return text


def decode(data: bytes, counts: Counts, final: bool = True) -> tuple[str, int]:
    """UTF-8 to text and the number of bytes used; without `final` a character cut off at the end is left unused."""
    text, used = codecs.utf_8_decode(data, "replace", final)
    # A U+FFFD that stands in the file as such is text like any other.
    counts.broken_utf8_replaced += text.count("\ufffd") - data.count(b"\xef\xbf\xbd", 0, used)
    return text, used


def text_blocks(source: Source, counts: Counts) -> Iterator[str]:
    """The clean text of a file in blocks that may end anywhere, in the middle of a line too."""
    rest, held = b"", ""
    for block in byte_blocks(source, counts):
        data = rest + block
        text, used = decode(data, counts, final=False)
        rest, text = data[used:], held + text
        # A carriage return at the end may be half of a line break.
        held = "\r" if text.endswith("\r") else ""
        yield clean(text.removesuffix("\r"), counts)
    yield clean(held + decode(rest, counts)[0], counts)


class _Counted:
    """A file that counts the bytes taken from it, and whose first bytes can be looked at before."""

    def __init__(self, file: IO[bytes], counts: Counts) -> None:
        self.file, self.counts = file, counts
        self.taken = 0
        self.head = file.read(HEAD)

    def read(self, size: int = -1) -> bytes:
        if self.head:
            data, self.head = self.head, b""
        else:
            data = self.file.read(size)
        self.taken += len(data)
        self.counts.bytes_read += len(data)
        return data


@contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    if source.name == STANDARD_INPUT:
        yield sys.stdin.buffer
    else:
        with Path(source.name).open("rb") as file:
            yield file


def byte_blocks(source: Source, counts: Counts) -> Iterator[bytes]:
    """The bytes of a file, decompressed; compression is known by the file's first bytes."""
    with _opened(source) as raw:
        file = _Counted(raw, counts)
        ending = Path(source.name).suffix.removeprefix(".")
        compression = next((name for name, magic in MAGIC.items() if re.match(magic, file.head)), None)
        if ending in MAGIC and file.head and compression is None:
            raise UserError(
                f"{source.name}: its name says {ending}, but it does not begin as such a file does: it is damaged, "
                f"or not compressed and should be named without .{ending}"
            )
        try:
            first = True
            for block in _filled(_decompressor(file, compression, source.name)):
                if first:
                    _refuse_junk(block[:JUNK_SAMPLE], source.name)
                    first = False
                yield block
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's error, not the data's
            raise UserError(
                f"{source.name}: the {compression} data is cut short or damaged, "
                f"near byte {file.taken:,} ({error}): make the file anew or leave it out"
            ) from None
        if source.size_bytes is not None:
            # A decompressor may leave bytes behind the end of its data unread.
            counts.bytes_read += source.size_bytes - file.taken


def _decompressor(file: _Counted, compression: str | None, name: str) -> Callable[[int], bytes]:
    """A function that gives the next bytes, at most as many as asked for (but see zst), and none at the end."""
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
        raise UserError(f"{name}: reading zst needs an extra: pip install openalbert[zstd]") from None
    # Small steps, because one byte may unpack to 32,768; and an object a frame, because zstandard's own stream reader
    # takes a file that is cut short for a whole one.
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
    """Blocks of at least BLOCK bytes but for the last: pipes and decompressors like to give less."""
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


def _refuse_junk(sample: bytes, name: str) -> None:
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name}: this is UTF-16, but UTF-8 is read: iconv -f UTF-16 -t UTF-8 FILE converts it")
    found = Counts()
    text, _ = decode(sample, found, final=False)
    clean(text, found)
    bad = found.broken_utf8_replaced + found.control_characters_removed
    if bad > JUNK_SHARE * len(text):
        raise UserError(
            f"{name}: this is not UTF-8 text: {bad:,} of the first {len(text):,} characters are broken or control "
            "characters; leave the file out, or convert it (iconv -f LATIN1 -t UTF-8, say)"
        )


class _Hope:
    """Takes note of records without text; a file that has no others is refused with the first of them as the reason."""

    def __init__(self, name: str) -> None:
        self.name, self.first, self.failures = name, "", 0
        self.found = False

    def failed(self, reason: str) -> None:
        self.first = self.first or reason
        self.failures += 1
        if not self.found and self.failures >= HOPELESS_RECORDS:
            self.refuse()

    def refuse(self) -> None:
        """Raise, unless there was some text or nothing at all."""
        if self.first and not self.found:
            raise UserError(f"{self.name}: none of {self.failures:,} records gives a text; the first: {self.first}")


def _json_lines(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Lines of bytes; None in the place of one that is too long."""
    parts: list[bytes] = []
    size = 0
    for block in blocks:
        *ends, rest = block.split(b"\n")
        for end in ends:
            parts.append(end)
            yield b"".join(parts) if size + len(end) <= LONGEST_JSON_LINE else None
            parts, size = [], 0
        size += len(rest)
        parts = [*parts, rest] if size <= LONGEST_JSON_LINE else []
    yield b"".join(parts) if size <= LONGEST_JSON_LINE else None


def jsonl_records(source: Source, reading: Reading, counts: Counts) -> Iterator[str]:
    """The text of each JSON object of a file of one a line."""
    hope = _Hope(source.name)
    for number, line in enumerate(_json_lines(byte_blocks(source, counts)), 1):
        if line is None:
            counts.dropped_broken_lines += 1
            hope.failed(f"line {number} is over {LONGEST_JSON_LINE:,} bytes long")
            continue
        text = decode(line, counts)[0].removeprefix("\ufeff").strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            counts.dropped_broken_lines += 1
            array = " (a JSON array? jq -c '.[]' FILE makes lines of it)" if text.startswith("[") else ""
            hope.failed(f"line {number} is not JSON: {error}{array}")
            continue
        if not isinstance(record, dict):
            counts.dropped_broken_lines += 1
            hope.failed(f"line {number} holds a JSON {type(record).__name__}, not an object with the text in a field")
            continue
        value = record.get(reading.text_field)
        if isinstance(value, str):
            hope.found = True
            yield value
        else:
            counts.dropped_without_text += 1
            hope.failed(_no_text(f"line {number}", "field", reading, list(record), value))
    hope.refuse()


def _no_text(where: str, kind: str, reading: Reading, known: list[str], value: Any) -> str:
    if reading.text_field in known:
        return f"{where}: the {kind} '{reading.text_field}' is a {type(value).__name__}, not a string"
    return f"{where} has no {kind} '{reading.text_field}' (text_field): {suggestion(reading.text_field, known)}"


def parquet_records(source: Source, reading: Reading, counts: Counts) -> Iterator[str]:
    """The text of each row, a few rows in memory at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{source.name}: reading Parquet needs an extra: pip install openalbert[parquet]") from None
    size = source.size_bytes or 0
    hope = _Hope(source.name)
    try:
        with pyarrow.parquet.ParquetFile(source.name, buffer_size=BLOCK) as file:
            schema, total = file.schema_arrow, file.metadata.num_rows
            if reading.text_field not in schema.names:
                raise UserError(_no_text(source.name, "column", reading, schema.names, None))
            kind = schema.field(reading.text_field).type
            kind = getattr(kind, "value_type", kind)  # of a dictionary column
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise UserError(f"{source.name}: the column '{reading.text_field}' is {kind}, not string")
            done = advanced = 0
            for batch in file.iter_batches(batch_size=256, columns=[reading.text_field]):
                # As bytes, because Parquet does not promise that its strings are UTF-8.
                for value in batch.column(0).cast(pyarrow.large_binary()).to_pylist():
                    if value is None:
                        counts.dropped_without_text += 1
                        hope.failed(f"the column '{reading.text_field}' is null")
                    else:
                        hope.found = True
                        yield decode(value, counts)[0]
                done += batch.num_rows
                counts.bytes_read += size * done // total - advanced
                advanced = size * done // total
            counts.bytes_read += size - advanced
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{source.name}: not a whole Parquet file ({error}): make it anew or leave it out") from None
    hope.refuse()


def dataset_records(source: Source, reading: Reading, counts: Counts) -> Iterator[str]:
    """The text of each row of a Hugging Face dataset, streamed."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{source.name}: reading datasets needs an extra: pip install openalbert[datasets]") from None
    folder = Path(source.name)
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            rows = datasets.load_from_disk(source.name)
            if isinstance(rows, datasets.DatasetDict):
                if reading.dataset_split not in rows:
                    raise UserError(
                        f"{source.name} has no split '{reading.dataset_split}' (dataset_split): "
                        f"{suggestion(reading.dataset_split, list(rows))}"
                    )
                rows = rows[reading.dataset_split]
        else:
            rows = datasets.load_dataset(
                source.name, reading.dataset_config, split=reading.dataset_split, streaming=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{source.name}: Hugging Face datasets cannot read it: {error}") from None
    hope = _Hope(source.name)
    for number, row in enumerate(rows, 1):
        value = row.get(reading.text_field)
        if isinstance(value, str):
            hope.found = True
            yield value
        else:
            counts.dropped_without_text += 1
            hope.failed(_no_text(f"row {number}", "column", reading, list(row), value))
    hope.refuse()
