"""Reads text from files of records: JSONL, CSV, TSV, Parquet, and Hugging Face datasets.

A record without text (a broken line, a missing field) is dropped and counted; a file that begins with too many of them,
or has no others, is refused.
"""

import contextlib
import csv
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from openalbert.errors import UserError, suggestion
from openalbert.formatting import listed
from openalbert.text.readers import BLOCK, CorpusReading, CorpusSource, Counts, byte_blocks, decode, decoded_blocks

LONGEST_JSON_LINE = 1 << 25  # bytes; a longer line is dropped, since a record is parsed in memory
LONGEST_ROW = 1 << 25  # characters; a longer CSV row is an unclosed quote
TSV_SAMPLE = 1 << 20  # characters at the start of a TSV file that decide whether " is a quote
DELIMITERS = ",;\t|"  # candidates for a CSV file
ONE_COLUMN = "\ufdd0"  # the delimiter of a CSV file with one column: a noncharacter, which no text contains
LONGEST_HEADER = 1 << 16  # characters at the start of a CSV file in which its header should end
MOST_COLUMNS_NAMED = 20
MAX_TEXTLESS_START = 1000  # a file that begins with this many records without text is refused


Row = tuple[int, Mapping[str, Any] | str]
"""The number of a line or row, and its fields; of a broken one what is wrong with it."""


def record_texts(source: CorpusSource, reading: CorpusReading, counts: Counts) -> Iterator[str]:
    """The text of each record of a source."""
    read = {
        "jsonl": _jsonl_rows,
        "csv": _delimited_rows,
        "tsv": _delimited_rows,
        "parquet": _parquet_rows,
        "datasets": _dataset_rows,
    }[source.format]
    has_text, textless, first = False, 0, ""
    for number, row in read(source, reading, counts):
        value = None if isinstance(row, str) else row.get(reading.text_field)
        if isinstance(value, str):
            has_text = True
            yield value
            continue
        if isinstance(row, str):
            counts.add_broken_line(source, number)
        else:
            counts.dropped_without_text += 1
        first = first or (row if isinstance(row, str) else _no_text(source, number, reading, row))
        textless += 1
        if textless >= MAX_TEXTLESS_START and not has_text:
            break
    if first and not has_text:
        raise UserError(f"{source.name}: none of {textless:,} records gives a text; the first: {first}")


def _no_text(source: CorpusSource, number: int, reading: CorpusReading, row: Mapping[str, Any]) -> str:
    place, kind = ("line", "field") if source.format == "jsonl" else ("row", "column")
    if reading.text_field in row:
        found = type(row[reading.text_field]).__name__
        return f"{place} {number}: the {kind} '{reading.text_field}' is a {found}, not a string"
    return f"{place} {number} has no {kind} '{reading.text_field}' (text_field): {suggestion(reading.text_field, row)}"


def _json_lines(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Lines as bytes; None for a line that is too long."""
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


def _jsonl_rows(source: CorpusSource, reading: CorpusReading, counts: Counts) -> Iterator[Row]:
    """The JSON objects of a file with one per line."""
    for number, line in enumerate(_json_lines(byte_blocks(source, counts)), 1):
        if line is None:
            yield number, f"line {number} is over {LONGEST_JSON_LINE:,} bytes long"
            continue
        text = decode(line, counts)[0].removeprefix("\ufeff").strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield number, f"line {number} is not JSON: {error} (jq -c . FILE makes a line of each object)"
            continue
        wrong = f"line {number} holds a JSON {type(record).__name__}, not an object with the text in a field "
        yield number, record if isinstance(record, dict) else wrong + "(jq -c '.[]' FILE makes lines of an array)"


def _delimited_rows(source: CorpusSource, reading: CorpusReading, counts: Counts) -> Iterator[Row]:
    """The rows of a CSV or TSV file with a header, one in memory at a time."""
    lines = _lines_of(source, counts)
    rows = _tsv_rows(source, lines) if source.format == "tsv" else csv_rows(source.name, lines)
    _, header = next(rows, (0, []))
    columns = [name.strip() for name in header]
    if columns.count(reading.text_field) != 1:
        if not columns:
            return  # counted as a file without any text
        named = listed([f"'{name[:40]}'" for name in columns], MOST_COLUMNS_NAMED)
        problem = "two columns" if reading.text_field in columns else "no column"
        raise UserError(
            f"{source.name} has {problem} '{reading.text_field}' (text_field): its first line names the columns "
            f"{named}; name the one that holds the text with --reading.text-field"
        )
    place = columns.index(reading.text_field)
    for number, fields in rows:
        if len(fields) == len(columns):
            yield number, {reading.text_field: fields[place]}
        else:
            what = "column" if len(fields) == 1 else "columns"
            yield number, f"line {number} has {len(fields)} {what} where the first line names {len(columns)}"


def _lines_of(source: CorpusSource, counts: Counts) -> Iterator[str]:
    """The lines of a file with their ends, by the rules of CSV: `\\n`, `\\r\\n` or `\\r`. Texts are cleaned later."""
    rest, is_first = "", True
    for text in decoded_blocks(source, counts):
        lines = list(io.StringIO(rest + (text.removeprefix("\ufeff") if is_first else text), newline=""))
        # A carriage return at the end may be the first half of a line break.
        rest = lines.pop() if lines and not lines[-1].endswith("\n") else ""
        if len(rest) > LONGEST_ROW:
            raise UserError(f"{source.name}: a line is over {LONGEST_ROW:,} characters long: is it a CSV or TSV file?")
        yield from lines
        is_first = False
    yield from io.StringIO(rest, newline="")


def delimiter_of(lines: Iterator[str]) -> tuple[str, list[str]]:
    """The delimiter of a CSV file, and the lines that were read to find it.

    It is the one that splits the header into the most columns, outside of quotes. If none does, there is one column.
    """
    taken: list[str] = []
    size = quotes = 0
    is_blank = True
    while size < LONGEST_HEADER and (is_blank or quotes % 2) and (line := next(lines, None)) is not None:
        taken.append(line)
        size, quotes, is_blank = size + len(line), quotes + line.count('"'), is_blank and not line.strip("\r\n")
    widths = {delimiter: _num_columns(taken, delimiter) for delimiter in DELIMITERS}
    widest = max(DELIMITERS, key=lambda delimiter: widths[delimiter])
    return (widest if widths[widest] > 1 else ONE_COLUMN), taken


def _num_columns(lines: list[str], delimiter: str) -> int:
    """Columns of the first row; 0 where the quotes are invalid with this delimiter."""
    try:
        return len(next(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)), []))
    except csv.Error:
        return 0


def csv_rows(name: str, lines: Iterator[str], delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
    """The rows of a file with CSV quoting, each with the number of its first line; blank lines are skipped.

    Without a delimiter, it is found by `delimiter_of`.
    """
    fed = 0

    def feed(lines: Iterable[str]) -> Iterator[str]:
        nonlocal fed
        for line in lines:
            fed += len(line)
            if fed > LONGEST_ROW:
                raise UserError(f'{name}, line {number}: a " that opens a text here is never closed')
            yield line

    csv.field_size_limit(sys.maxsize)  # the default refuses texts over 131,072 characters
    taken: list[str] = []
    if not delimiter:
        delimiter, taken = delimiter_of(lines)
    reader = csv.reader(feed(itertools.chain(taken, lines)), delimiter=delimiter, strict=True)
    number = 1
    try:
        for fields in reader:
            if fields:
                yield number, fields
            number, fed = reader.line_num + 1, 0
    except csv.Error as error:
        raise misquoted(f"{name}, line {number}", error) from None


def misquoted(place: str, error: csv.Error) -> UserError:
    """The error for a row with invalid CSV quoting."""
    what = str(error).replace(f"'{ONE_COLUMN}'", "the end of the row")
    return UserError(
        f'{place}: the quotes do not fit ({what}): a text that holds " is quoted, with every " in it doubled'
    )


def _tsv_rows(source: CorpusSource, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a TSV file. In some, quotes work as in CSV; in others " is ordinary text. A sample decides."""
    sample: list[str] = []
    size = 0
    while size < TSV_SAMPLE and (line := next(lines, None)) is not None:
        sample.append(line)
        size += len(line)
    lines = itertools.chain(sample, lines)
    if quotes_as_csv(source, sample, is_whole=size < TSV_SAMPLE):
        yield from csv_rows(source.name, lines, "\t")
        return
    for number, line in enumerate(lines, 1):
        if text := line.rstrip("\r\n"):
            yield number, text.split("\t")


def quotes_as_csv(source: CorpusSource, sample: list[str], is_whole: bool) -> bool:
    """Whether there are quotes, all valid in CSV, in rows that all match the header."""
    if not any('"' in line for line in sample):
        return False
    widths: set[int] = set()
    try:
        for _, fields in csv_rows(source.name, iter(sample), "\t"):
            widths.add(len(fields))
    except UserError as error:
        # The sample may end within a row.
        return not is_whole and "unexpected end of data" in str(error) and len(widths) == 1
    return len(widths) == 1


def _parquet_rows(source: CorpusSource, reading: CorpusReading, counts: Counts) -> Iterator[Row]:
    """The rows of a Parquet file, a few in memory at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{source.name}: reading Parquet needs an extra: pip install 'openalbert[parquet]'") from None
    size = source.size_bytes or 0
    try:
        with pyarrow.parquet.ParquetFile(source.name, buffer_size=BLOCK) as file:
            schema, total = file.schema_arrow, file.metadata.num_rows
            if reading.text_field not in schema.names:
                known = suggestion(reading.text_field, schema.names)
                raise UserError(f"{source.name} has no column '{reading.text_field}' (text_field): {known}")
            kind = schema.field(reading.text_field).type
            kind = getattr(kind, "value_type", kind)  # of a dictionary column
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise UserError(f"{source.name}: the column '{reading.text_field}' is {kind}, not string")
            done = advanced = 0
            for batch in file.iter_batches(batch_size=256, columns=[reading.text_field]):
                # As bytes, because Parquet does not guarantee that its strings are UTF-8.
                for number, value in enumerate(batch.column(0).cast(pyarrow.large_binary()).to_pylist(), done + 1):
                    yield number, {reading.text_field: None if value is None else decode(value, counts)[0]}
                done += batch.num_rows
                counts.bytes_read += size * done // total - advanced
                advanced = size * done // total
            counts.bytes_read += size - advanced
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{source.name}: not a whole Parquet file ({error}): make it again or leave it out") from None


def _dataset_rows(source: CorpusSource, reading: CorpusReading, counts: Counts) -> Iterator[Row]:
    """The rows of a Hugging Face dataset, streamed."""
    with dataset_errors(source.name):
        rows = load_dataset(source.name, reading.dataset_config, split=reading.dataset_split, streaming=True)
        if isinstance(rows, dict):  # saved with all of its splits
            if reading.dataset_split not in rows:
                known = suggestion(reading.dataset_split, list(rows))
                raise UserError(f"{source.name} has no split '{reading.dataset_split}' (dataset_split): {known}")
            rows = rows[reading.dataset_split]
        yield from enumerate(rows, 1)


def load_dataset(name: str, config: str | None, **options: Any) -> Any:
    """A Hugging Face dataset from a folder where it is saved, or by its name, with the options of `load_dataset`."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{name}: reading datasets needs an extra: pip install 'openalbert[datasets]'") from None
    if any((Path(name) / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
        return datasets.load_from_disk(name)
    return datasets.load_dataset(name, config, **options)


@contextlib.contextmanager
def dataset_errors(name: str) -> Iterator[None]:
    """Errors of the library as sentences for the user."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: Hugging Face datasets cannot read it: {error}") from None
