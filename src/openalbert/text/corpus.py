"""A corpus as a stream of clean documents, from files, folders, globs, standard input or Hugging Face datasets.

Memory holds about one block of a file and one document of at most `CorpusReading.max_document_characters`, whatever the
size of the corpus, a file or a line. `readers` describes how bytes become clean text.
"""

import glob
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from openalbert.errors import UserError, suggestion
from openalbert.text.readers import (
    MAGIC,
    STANDARD_INPUT,
    CorpusReading,
    CorpusSource,
    Counts,
    clean,
    text_blocks,
)
from openalbert.text.records import record_texts

__all__ = ["CorpusReading", "CorpusSource", "Counts", "documents", "fingerprint", "sources"]

_FORMATS: dict[str, Literal["text", "jsonl", "csv", "tsv", "parquet"]] = {
    "": "text",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


def sources(files: Sequence[str | Path], reading: CorpusReading) -> list[CorpusSource]:
    """Resolve names in the order given: files, folders (all files below, sorted), globs (sorted), `-`.

    Hidden files in folders are skipped; a file that is reached twice is read once.
    """
    if not files:
        raise UserError("no text given: name files, folders or globs, or - for standard input")
    if reading.max_document_characters < 1000:
        raise UserError(f"max_document_characters is {reading.max_document_characters}: at least 1000 is needed")
    if reading.wrapped and reading.document == "line":
        raise UserError("a wrapped line cannot be a document: choose document blank-line or file, or leave out wrapped")
    found: list[CorpusSource] = []
    seen: set[Path] = set()
    for name in map(str, files):
        if reading.format == "datasets":
            found.append(CorpusSource(name, "datasets", None))
        elif name == STANDARD_INPUT:
            if reading.format == "parquet":
                raise UserError("Parquet cannot be read from standard input: name the file")
            found.append(CorpusSource(name, "text" if reading.format == "auto" else reading.format, None))
        else:
            for path in _files(name):
                if (real := path.resolve()) not in seen:
                    seen.add(real)
                    size = path.stat().st_size if path.is_file() else None
                    found.append(CorpusSource(str(path), _format(path, reading), size))
    if all(source.size_bytes == 0 for source in found):
        raise UserError(f"there is no text in {', '.join(map(str, files))}: every file is empty")
    return found


def _files(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        below = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not below:
            raise UserError(f"the folder {name} has no files (hidden ones do not count)")
        return below
    if path.exists():
        if path.is_file() and path.stat().st_size == 0:
            raise UserError(f"{name} is an empty file: leave it out")
        return [path]
    if any(sign in name for sign in "*?["):
        matches = [Path(match) for match in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207 (absolute patterns)
        if not matches:
            raise UserError(f"no file matches {name}")
        return [file for match in matches for file in (_files(str(match)) if match.is_dir() else [match])]
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    advice = f": {suggestion(path.name, sorted(siblings))}" if 0 < len(siblings) <= 1000 else ""
    raise UserError(f"there is no file {name}{advice}")


def _format(path: Path, reading: CorpusReading) -> Literal["text", "jsonl", "csv", "tsv", "parquet", "datasets"]:
    plain = path.with_suffix("") if path.suffix.removeprefix(".") in MAGIC else path
    kind = _FORMATS.get(plain.suffix.lower()) if reading.format == "auto" else reading.format
    if kind is None:
        raise UserError(
            f"{path}: the ending {plain.suffix} is unknown ({', '.join(filter(None, _FORMATS))} are known): give the "
            "format (text, jsonl, csv, tsv or parquet) with --reading.format, or leave the file out"
        )
    if kind == "parquet" and plain != path:
        raise UserError(f"{path}: Parquet has its own compression: decompress {path.suffix} first")
    return kind


def documents(source: CorpusSource, reading: CorpusReading, counts: Counts) -> Iterator[str]:
    """The documents of a source, in order: clean, stripped, non-empty paragraphs separated by `\\n`.

    `counts` is updated on the way.
    """
    before = counts.documents
    if source.format == "text":
        texts = _cut_documents(text_blocks(source, counts), reading.document, reading, counts)
    else:
        texts = _of_records(record_texts(source, reading, counts), reading, counts)
    for text in texts:
        counts.documents += 1
        counts.characters += len(text)
        yield text
    if counts.documents == before:
        counts.empty_files += 1


def _of_records(records: Iterable[str], reading: CorpusReading, counts: Counts) -> Iterator[str]:
    for record in records:
        empty = True
        for text in _cut_documents([clean(record, counts)], "file", reading, counts):
            empty = False
            yield text
        counts.dropped_empty += empty


def _cut_documents(
    blocks: Iterable[str], document: Literal["blank-line", "file", "line"], reading: CorpusReading, counts: Counts
) -> Iterator[str]:
    """Join lines into documents of at most the maximum length."""
    longest = reading.max_document_characters
    paragraphs: list[str] = []
    size = 0  # of the joined paragraphs and one separator more
    joint = "\n"  # separator before the next line
    for line, is_continuation in _lines(blocks, longest):
        text = line.strip()
        if not text:
            if is_continuation:
                continue
            joint = "\n"
            if document == "blank-line" and paragraphs:
                yield "".join(paragraphs)
                paragraphs, size = [], 0
            continue
        if paragraphs and (document == "line" or size + len(text) > longest):
            counts.long_documents_cut += document != "line" or is_continuation
            yield "".join(paragraphs)
            paragraphs, size = [], 0
        if paragraphs:
            paragraphs.append(joint)
        paragraphs.append(text)
        size += len(text) + 1
        joint = " " if reading.wrapped else "\n"
    if paragraphs:
        yield "".join(paragraphs)


def _lines(blocks: Iterable[str], longest: int) -> Iterator[tuple[str, bool]]:
    """The lines, and whether each continues the previous one: a line that is too long is split.

    The split points do not depend on where the blocks end.
    """
    rest: list[str] = []  # of the last line of the previous block
    size, is_continuation = 0, False
    for block in blocks:
        *ends, last = block.split("\n")
        for end in ends:
            for piece in _pieces("".join([*rest, end]) if rest else end, longest):
                yield piece, is_continuation
                is_continuation = True
            rest, size, is_continuation = [], 0, False
        rest.append(last)
        size += len(last)
        if size > longest:
            *pieces, last = _pieces("".join(rest), longest)
            for piece in pieces:
                yield piece, is_continuation
                is_continuation = True
            rest, size = [last], len(last)
    for piece in _pieces("".join(rest), longest):
        yield piece, is_continuation
        is_continuation = True


def _pieces(line: str, longest: int) -> Iterator[str]:
    start = 0
    while len(line) - start > longest:
        end = _border(line, start, start + longest)
        yield line[start:end]
        start = end
    yield line[start:]


def _border(line: str, start: int, end: int) -> int:
    """After the last sentence in the second half of the range, else after the last space there, else its end."""
    middle = (start + end) // 2
    for sign in (". ", "。", " "):
        if (found := line.rfind(sign, middle, end)) >= 0:
            return found + len(sign)
    return end


def fingerprint(text: str) -> bytes:
    """A 128-bit hash: among a billion documents the probability of a collision is 10**-21."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
