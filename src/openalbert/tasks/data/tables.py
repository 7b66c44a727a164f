"""Rows of a task out of CSV, TSV, JSON, JSONL and Parquet files, each row knowing its place for what is said about it.

Nothing is repaired in silence: a file that is not UTF-8, a row that does not fit its header, a JSON line that is broken
are refused with file and line, or left out and counted where the task's own files are known to have such rows.
"""

import csv
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openalbert.errors import UserError, suggestion
from openalbert.formatting import counted
from openalbert.text.readers import MAGIC, CorpusSource, Counts, byte_blocks
from openalbert.text.records import delimiter_of, misquoted

Quoting = Literal["literal", "quoted", "as_found"]
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what stands in its columns, and where it stands."""

    source: str
    """The file and the unit that is counted: `my.csv, line`."""
    number: int
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Where the row stands, to be named in a sentence."""
        return f"{self.source} {self.number}"

    def text(self, column: str) -> str:
        """What stands in the column, as text; nothing where the row has nothing there."""
        return as_text(self.values.get(column), f"{self.place}: '{column}'")


@dataclass(frozen=True)
class Table:
    """The rows of one file or dataset."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    excluded: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def column(self, names: Iterable[str], role: str) -> str:
        """The first of the names that is a column; `role` says in an error what was to stand there."""
        names = tuple(names)
        for name in names:
            if name in self.columns:
                return name
        raise UserError(
            f"{self.name} has no column '{names[0]}' for the {role}: {suggestion(names[0], self.columns)}"
            f" (the first row is {self.rows[0].place}; in CSV and TSV the first line must name the columns)"
        )


class Exclusions:
    """Counts what is left out of a reading, by reason; the first place of each is kept."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self._known = dict(known or {})
        self._first: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, reason: str, place: str) -> None:
        """One more is left out."""
        self._first.setdefault(reason, place)
        self._counts[reason] = self._counts.get(reason, 0) + 1

    def __len__(self) -> int:
        return sum(self._counts.values()) + sum(self._known.values())

    def counted(self) -> dict[str, int]:
        """Each reason with its first place, and how many."""
        own = {f"{reason} (first: {self._first[reason]})": count for reason, count in self._counts.items()}
        return {**self._known, **own}


def whole_number(text: str) -> int | None:
    """A text of digits as a number; None for anything else, and for numbers that no file can mean."""
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) <= 18 else None


def as_text(value: Any, what: str) -> str:
    """A value as text; `what` names it in an error. Lone surrogates, which JSON can escape, become U+FFFD.

    NaN is no text: Parquet files and data frames have it where nothing stands.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        # A column of whole numbers becomes one of floats as soon as a row has none there.
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else str(value)
    if isinstance(value, int):
        return str(value)
    raise UserError(f"{what} is {_kind(value)}, but a text is needed there")


def _kind(value: object) -> str:
    names = {"dict": "an object", "list": "a list", "str": "a text", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")


def read_table(
    path: Path,
    *,
    quoting: Quoting = "as_found",
    without_header: tuple[str, ...] = (),
    ragged_rows: Literal["refuse", "leave_out"] = "refuse",
) -> Table:
    """All rows of a file; its ending, behind .gz, .bz2, .xz or .zst, says what it is.

    `quoting` is of TSV: whether " is a sign like any other, or CSV's quotes, or what the file proves to hold.
    `without_header` names the columns where the first line does not have the last of them.
    """
    plain = path.with_suffix("") if path.suffix.removeprefix(".") in MAGIC else path
    ending = plain.suffix.lower()
    if ending == ".parquet":
        return _parquet_table(path)
    if ending in (".jsonl", ".ndjson"):
        return table_of(str(path), list(json_lines(path)))
    if ending == ".json":
        return table_of(str(path), list(_json_items(path)))
    if ending in (".csv", ".tsv", ".txt"):
        return _delimited_table(path, ending, quoting, without_header, ragged_rows)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is needed")
    raise UserError(
        f"{path}: the ending '{plain.suffix}' does not say what it is: "
        ".csv, .tsv, .jsonl, .json and .parquet are known, and .gz, .bz2, .xz or .zst behind them"
    )


def table_of(name: str, rows: Sequence[Row]) -> Table:
    """A table whose columns are whatever the rows have."""
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row.values))
    if not rows:
        raise UserError(f"{name} has no rows")
    return Table(name, tuple(columns), rows)


def check_is_there(path: Path) -> None:
    """Refuse the name of a file that does not exist; the nearest that does is named."""
    if not path.exists():
        siblings = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
        advice = f": {suggestion(path.name, siblings)}" if 0 < len(siblings) <= 1000 else ""
        raise UserError(f"there is no file {path}{advice}")


def read_text(path: Path) -> str:
    """The whole text of a file, which must be UTF-8; compressed files are unpacked."""
    check_is_there(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is needed")
    data = b"".join(byte_blocks(CorpusSource(str(path), "text", path.stat().st_size), Counts()))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: the byte 0x{data[error.start]:02x} is not UTF-8: convert the file "
            "(iconv -f LATIN1 -t UTF-8 FILE, say)"
        ) from None


def json_lines(path: Path) -> Iterator[Row]:
    """The objects of a file of one a line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield _row(_parsed(line, f"{path}, line {number}"), f"{path}, line", number)


def read_json(path: Path) -> Any:
    """The one value that a JSON file holds."""
    return _parsed(read_text(path), str(path))


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON: {error}") from None


def _row(value: Any, source: str, number: int) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{source} {number} holds {_kind(value)}, but an object with a field for each column is needed")
    return Row(source, number, value)


def _json_items(path: Path) -> Iterator[Row]:
    text = read_text(path)
    if not text.lstrip().startswith("["):
        # Many a .json file holds an object a line.
        yield from json_lines(path)
        return
    for number, value in enumerate(_parsed(text, str(path)), 1):
        yield _row(value, f"{path}, item", number)


def _parquet_table(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs an extra: pip install 'openalbert[parquet]'") from None
    if not path.is_file():
        read_text(path)  # which says what is wrong with the name
    try:
        values = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: not a whole Parquet file ({error}): make it anew") from None
    return table_of(str(path), [Row(f"{path}, row", number, value) for number, value in enumerate(values, 1)])


def _delimited_table(
    path: Path,
    ending: str,
    quoting: Quoting,
    without_header: tuple[str, ...],
    ragged_rows: Literal["refuse", "leave_out"],
) -> Table:
    text = read_text(path)
    delimiter = delimiter_of(io.StringIO(text, newline=""))[0] if ending == ".csv" else "\t"
    ragged = ragged_rows == "refuse"
    if ending == ".csv" or quoting == "quoted":
        return _table(path, _quoted_lines(path, text, delimiter), without_header, ragged)
    if quoting == "as_found" and '"' in text:
        # Both ways of writing TSV are common, and the ending does not tell them apart. Quotes that are signs like any
        # other almost surely break the rules of CSV somewhere.
        try:
            return _table(path, _quoted_lines(path, text, delimiter), without_header, refuse_ragged=True)
        except UserError:
            table = _table(path, _literal_lines(text, delimiter), without_header, ragged)
            remark = f'{path}: " is read as a sign like any other, since the file does not quote as CSV does'
            return Table(table.name, table.columns, table.rows, table.excluded, (remark,))
    return _table(path, _literal_lines(text, delimiter), without_header, ragged)


def _literal_lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip("\r"):
            yield number, line.removesuffix("\r").split(delimiter)


def _quoted_lines(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the default refuses texts over 131,072 characters
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    number = 1
    try:
        for fields in reader:
            if fields:
                yield number, fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise misquoted(f"{path}, line {number}", error) from None


def _table(
    path: Path, lines: Iterator[tuple[int, list[str]]], without_header: tuple[str, ...], refuse_ragged: bool
) -> Table:
    number, header = next(lines, (0, []))
    if not header:
        raise UserError(f"{path} is empty")
    rest: list[tuple[int, list[str]]] = []
    if without_header and without_header[-1] not in header:
        rest.append((number, header))
        header = list(without_header)
    columns = tuple(name.strip() for name in header)
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise UserError(f"{path}: the column '{twice}' is named twice in the first line: give it two names")
    source, width = f"{path}, line", len(columns)
    rows: list[Row] = []
    excluded = Exclusions()
    for part in (rest, lines):
        for number, fields in part:
            if len(fields) == width:
                rows.append(Row(source, number, dict(zip(columns, fields, strict=True))))
            elif refuse_ragged:
                raise UserError(
                    f"{source} {number}: {counted(len(fields), 'column')} where the first line names {width}: "
                    "quote the texts that hold the sign between columns"
                )
            else:
                excluded.add(f"not {counted(width, 'column')}", f"{source} {number}")
    if not rows:
        raise UserError(f"{path} has a first line, but no rows")
    return Table(str(path), columns, rows, excluded.counted())
