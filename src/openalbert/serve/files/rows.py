"""Rows of CSV, TSV, JSONL, Parquet, CoNLL and text files, a chunk in memory at a time, each as it stands in its file.

Unlike `tasks.data.row_files`, nothing is refused because of a single row: one that cannot be read keeps its place.
"""

import codecs
import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openalbert.errors import UserError
from openalbert.tasks.data.conll import SAMPLE, ConllLines
from openalbert.tasks.data.row_files import (
    Row,
    Table,
    check_is_there,
    find_encoding,
    table_blocks,
    table_of,
)
from openalbert.tasks.squad import read_questions
from openalbert.text.readers import MAGIC, STANDARD_INPUT, CorpusSource, Counts, byte_blocks
from openalbert.text.records import LONGEST_ROW, ONE_COLUMN, TSV_SAMPLE, delimiter_of, misquoted, quotes_as_csv

Format = Literal["csv", "tsv", "jsonl", "json", "parquet", "text", "conll"]
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".conll": "conll",
    ".conllu": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".iob2": "conll",
}
ROWS_AT_ONCE = 1024
CHARACTERS_AT_ONCE = 1 << 22  # with more, a chunk ends: a row may hold a book
PARQUET_BUFFER = 1 << 20  # bytes of each column that are read at a time


@dataclass(frozen=True)
class TextLines:
    """What the lines of a text file are: the roles that they have, and how a line is split into their values."""

    roles: tuple[str, ...]
    split: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the input."""

    raw: str
    """As it stands in its file, with its line end; "" where it comes from elsewhere."""
    row: Row | None
    """Its values; None for a blank line between rows, and where it cannot be read."""
    problem: str = ""
    """Why it cannot be read: a clause that follows the number of such rows."""
    place: str = ""
    """File and line, where it cannot be read."""

    @property
    def where(self) -> str:
        """File and line."""
        return self.place if self.row is None else self.row.place

    @property
    def is_blank(self) -> bool:
        """Whether it is no row, but a blank line between rows."""
        return self.row is None and not self.problem


@dataclass(frozen=True)
class Chunk:
    """Some rows, in their order."""

    records: list[Record]
    batch: Any = None
    """Of a Parquet file: the same as a pyarrow RecordBatch."""
    num_lines: int = 0
    """Lines of the file, or rows of a Parquet file."""


@dataclass(frozen=True)
class Rows:
    """The rows of one input."""

    name: str
    """The file, for messages."""
    format: Format
    columns: tuple[str, ...] | None
    """The names of the columns; None for JSONL, whose objects may differ and are not all known."""
    chunks: Iterator[Chunk]
    total: int = 0
    """How many lines, or rows of Parquet and JSON, there are."""
    header: str = ""
    """The first line of CSV and TSV, with its line end."""
    delimiter: str = ""
    is_quoted: bool = True
    """Whether quotes work as in CSV: in some TSV files they are ordinary characters."""
    is_marked: bool = False
    """Whether it begins with a byte order mark, or comes from Excel, which needs one."""
    schema: Any = None
    """Of a Parquet file: its schema."""
    conll: ConllLines | None = None
    """Of a CoNLL file: how its lines are read."""

    @property
    def is_raw(self) -> bool:
        """Whether cells can be added to the rows as they stand in the file."""
        return bool(self.delimiter) and self.delimiter != ONE_COLUMN


def format_of(path: Path) -> Format | None:
    """The format of a file by its ending, before .gz, .bz2, .xz or .zst; None where it is not known."""
    plain = path.with_suffix("") if path.suffix.removeprefix(".") in MAGIC else path
    return ENDINGS.get(plain.suffix.lower())


def open_rows(path: Path, text_lines: TextLines) -> Rows:
    """The rows of a file."""
    check_is_there(path)
    found = format_of(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is needed")
    if found is None:
        known = ", ".join(ENDINGS)
        raise UserError(f"{path}: the ending '{path.suffix}' is not known: {known} are, also with .gz, .bz2, .xz, .zst")
    if found == "parquet":
        return _parquet_rows(path)
    if found == "json":
        return _json_rows(path)
    encoding = find_encoding(table_blocks(path), str(path))
    lines = _lines(table_blocks(path), encoding.name, str(path))
    if found in ("csv", "tsv"):
        return _delimited_rows(path, found, lines, encoding.num_lines, is_marked=encoding.name != "utf-8")
    if found == "conll":
        return _conll_rows(path, lines, encoding.num_lines)
    is_text = found == "text"
    records = _text_records(str(path), lines, text_lines) if is_text else _json_records(str(path), lines)
    columns = text_lines.roles if is_text else None
    return Rows(str(path), found, columns, _some(_chunks(records), str(path)), encoding.num_lines)


def input_rows(text_lines: TextLines) -> Rows:
    """The lines of standard input; each is a chunk where they are typed."""
    name = "standard input"
    if sys.stdin.isatty():
        print("one text on each line, Ctrl-D to end:", file=sys.stderr)
        records = _text_records(name, sys.stdin, text_lines)
        return Rows(name, "text", text_lines.roles, (Chunk([record], num_lines=1) for record in records))
    blocks = byte_blocks(CorpusSource(STANDARD_INPUT, "text", None), Counts())
    records = _text_records(name, _lines(blocks, "utf-8-sig", name), text_lines)
    return Rows(name, "text", text_lines.roles, _some(_chunks(records), name))


def given_rows(values: Sequence[Mapping[str, Any]], roles: tuple[str, ...]) -> Rows:
    """Rows that the user typed as words of the command line."""
    name = "the command line"
    records = [Record("", Row(f"{name}, text", number, one)) for number, one in enumerate(values, 1)]
    return Rows(name, "text", roles, iter([Chunk(records)]))


def _text_records(name: str, lines: Iterable[str], text_lines: TextLines) -> Iterator[Record]:
    """A row for each line."""
    for number, line in enumerate(lines, 1):
        yield Record(line, Row(f"{name}, line", number, text_lines.split(line.rstrip("\r\n"))))


def first_table(rows: Rows, chunk: Chunk) -> Table:
    """The rows of a chunk that can be read, to find the columns by."""
    found = [record.row for record in chunk.records if record.row is not None]
    if rows.columns is not None:
        return Table(rows.name, rows.columns, found)
    if not found:
        problem = next(record for record in chunk.records if record.problem)
        raise UserError(f"{rows.name}: none of the first rows can be read (first: {problem.place}, {problem.problem})")
    return table_of(rows.name, found)


def _some(chunks: Iterator[Chunk], name: str) -> Iterator[Chunk]:
    """The same chunks; none at all are an error."""
    first = next(chunks, None)
    if first is None:
        raise UserError(f"{name} is empty: there are no rows to read")
    return itertools.chain([first], chunks)


def _chunks(records: Iterable[Record]) -> Iterator[Chunk]:
    """Chunks of a bounded size; one without any row is added to the next."""
    found: list[Record] = []
    num_rows = size = num_lines = 0
    for record in records:
        found.append(record)
        num_rows += not record.is_blank
        num_lines += max(1, record.raw.count("\n"))
        size += len(record.raw)
        if num_rows >= ROWS_AT_ONCE or (size >= CHARACTERS_AT_ONCE and num_rows):
            yield Chunk(found, num_lines=num_lines)
            found, num_rows, size, num_lines = [], 0, 0, 0
    if num_rows:
        yield Chunk(found, num_lines=num_lines)


def _lines(blocks: Iterable[bytes], encoding: str, name: str) -> Iterator[str]:
    """The lines of a file with their ends: `\\n`, `\\r\\n` or `\\r`."""
    decoder = codecs.getincrementaldecoder(encoding)("replace" if encoding == "utf-16" else "strict")
    rest = ""
    try:
        for block in itertools.chain(blocks, [None]):
            lines = list(io.StringIO(rest + decoder.decode(block or b"", final=block is None), newline=""))
            # A carriage return at the end may be the first half of a line break.
            rest = lines.pop() if block is not None and lines and not lines[-1].endswith("\n") else ""
            if len(rest) > LONGEST_ROW:
                raise UserError(f"{name}: a line is over {LONGEST_ROW:,} characters long: split it")
            yield from lines
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8 (byte 0x{error.object[error.start]:02x}): give the file by its name"
        ) from None


# CSV and TSV.


def _delimited_rows(path: Path, found: Format, lines: Iterator[str], total: int, is_marked: bool) -> Rows:
    delimiter, is_quoted = "\t", True
    if found == "csv":
        delimiter, taken = delimiter_of(lines)
    else:
        taken = _sample(lines)
        source = CorpusSource(str(path), "tsv", None)
        is_quoted = quotes_as_csv(source, taken, is_whole=sum(map(len, taken)) < TSV_SAMPLE)
    lines = itertools.chain(taken, lines)
    cut = _quoted_lines(str(path), lines, delimiter) if is_quoted else _literal_lines(lines, delimiter)
    above = []
    for raw, number, fields in cut:
        if fields:
            header = fields
            break
        if fields is None:
            raise misquoted(f"{path}, line {number}", csv.Error("in the first line"))
        above.append(raw)
    else:
        raise UserError(f"{path} is empty: there are no rows to read")
    columns = tuple(name.strip() for name in header)
    _check_names(path, columns)
    chunks = _chunks(_delimited_records(str(path), cut, columns))
    first = next(chunks, None)
    if first is None:
        raise UserError(f"{path} has a first line, but no rows")
    return Rows(
        str(path),
        found,
        columns,
        itertools.chain([first], chunks),
        total - len(above) - raw.count("\n"),
        header="".join(above) + raw,
        delimiter=delimiter,
        is_quoted=is_quoted,
        is_marked=is_marked,
    )


def _check_names(path: Path, columns: Sequence[str]) -> None:
    """Refuse two columns of one name, one of which would be lost; those without a name may be many."""
    twice = [name for name in columns if name and columns.count(name) > 1]
    if twice:
        raise UserError(f"{path}: the column '{twice[0]}' is named twice: give it two names")


def _sample(lines: Iterator[str]) -> list[str]:
    sample: list[str] = []
    size = 0
    while size < TSV_SAMPLE and (line := next(lines, None)) is not None:
        sample.append(line)
        size += len(line)
    return sample


Line = tuple[str, int, list[str] | None]
"""A row as it stands in its file, the number of its first line, and its fields: none of a blank line, None where its
quotes do not fit."""


def _quoted_lines(name: str, lines: Iterator[str], delimiter: str) -> Iterator[Line]:
    taken: list[str] = []
    size, number = 0, 1

    def feed() -> Iterator[str]:
        nonlocal size
        for line in lines:
            taken.append(line)
            size += len(line)
            if size > LONGEST_ROW:
                raise UserError(f'{name}, line {number}: a " that opens a text here is never closed')
            yield line

    csv.field_size_limit(sys.maxsize)  # the default refuses texts over 131,072 characters
    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        fields: list[str] | None
        try:
            fields = next(reader, None)
            if fields is None:
                return
        except csv.Error as error:
            if "unexpected end of data" in str(error):  # all rows after an open quote would be one
                raise misquoted(f"{name}, line {number}", error) from None
            fields = None
        yield "".join(taken), number, fields
        number, size = number + len(taken), 0
        taken.clear()


def _literal_lines(lines: Iterator[str], delimiter: str) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        yield line, number, text.split(delimiter) if text else []


def _delimited_records(name: str, cut: Iterator[Line], columns: tuple[str, ...]) -> Iterator[Record]:
    source = f"{name}, line"
    for raw, number, fields in cut:
        if fields is not None and len(fields) == len(columns):
            yield Record(raw, Row(source, number, dict(zip(columns, fields, strict=True))))
        elif fields == []:
            yield Record(raw, None)
        else:
            other = f"with another number of columns than the {len(columns)} of the first line"
            problem = "whose quotes do not fit" if fields is None else other
            yield Record(raw, None, problem, f"{source} {number}")


# CoNLL.


def _conll_rows(path: Path, lines: Iterator[str], total: int) -> Rows:
    first = list(itertools.islice(lines, SAMPLE))
    form = ConllLines.of(path, first)
    chunks = _chunks(_conll_records(str(path), itertools.chain(first, lines), form))
    return Rows(str(path), "conll", form.columns, _some(chunks, str(path)), total, delimiter=form.separator, conll=form)


def _conll_records(name: str, lines: Iterable[str], form: ConllLines) -> Iterator[Record]:
    """A row for each sentence, with the lines above it that are none of its words."""
    raw: list[str] = []
    words: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines, 1):
        fields = form.fields(line)
        raw.append(line)
        if fields:
            words.append((number, fields))
        elif fields is not None and words:
            yield _conll_record(name, "".join(raw), words, form)
            raw, words = [], []
    if raw:
        yield _conll_record(name, "".join(raw), words, form)


def _conll_record(name: str, raw: str, words: list[tuple[int, list[str]]], form: ConllLines) -> Record:
    wrong = next((number for number, fields in words if len(fields) != form.width), None)
    if wrong is not None:
        problem = f"with another number of columns than the {form.width} of most lines"
        return Record(raw, None, problem, f"{name}, line {wrong}")
    return Record(raw, form.row(f"{name}, line", words) if words else None)


# JSONL and Parquet.


def _json_records(name: str, lines: Iterator[str]) -> Iterator[Record]:
    source = f"{name}, line"
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield Record(line, None)
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            yield Record(line, None, "not in JSON", f"{source} {number}")
            continue
        if isinstance(values, dict):
            yield Record(line, Row(source, number, values))
        else:
            yield Record(line, None, "without a JSON object", f"{source} {number}")


def _json_rows(path: Path) -> Rows:
    """A .json file, which is read as a whole: a list of objects, an object on each line, or SQuAD's questions."""
    table = read_questions(path)
    chunks = _chunks(Record("", row) for row in table.rows)
    return Rows(str(path), "json", table.columns, chunks, len(table.rows))


def _parquet_rows(path: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs an extra: pip install 'openalbert[parquet]'") from None

    def explained(error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        return UserError(f"{path}: not a whole Parquet file ({error}): write it again")

    problems = (pyarrow.ArrowException, UnicodeDecodeError, OSError)

    def chunks() -> Iterator[Chunk]:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                rows = [
                    Row(f"{path}, row", number + place, values) for place, values in enumerate(batch.to_pylist(), 1)
                ]
                number += len(rows)
                yield Chunk([Record("", row) for row in rows], batch, len(rows))
        except problems as error:
            raise explained(error) from None

    try:
        # By default a whole group of rows is read at once: often a million of them.
        file = pyarrow.parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER, pre_buffer=False)
    except problems as error:
        raise explained(error) from None
    schema = file.schema_arrow
    _check_names(path, schema.names)
    total = file.metadata.num_rows
    return Rows(str(path), "parquet", tuple(schema.names), _some(chunks(), str(path)), total, schema=schema)
