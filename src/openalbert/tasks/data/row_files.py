"""Rows of CSV, TSV, JSON, JSONL and Parquet files. Each row knows its place, for error messages.

Nothing is repaired silently: a file that is not UTF-8 is read as Excel writes it after a warning, and a row that
does not fit its header or a broken JSON line is refused with file and line, or excluded and counted where the published
files of a task are known to have such rows.
"""

import codecs
import contextlib
import io
import itertools
import json
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from openalbert.errors import InputWarning, UserError, suggestion
from openalbert.formatting import counted
from openalbert.text.readers import MAGIC, UTF16_MARKS, CorpusSource, Counts, byte_blocks
from openalbert.text.records import csv_rows

Quoting = Literal["literal", "quoted", "as_found"]
_WINDOWS_BYTES = bytes(number for number in range(256) if number not in (0x81, 0x8D, 0x8F, 0x90, 0x9D))
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Invisible characters that Unicode counts among letters, symbols or accents: fillers, an empty braille cell, joiners.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe0e\ufe0f")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the values of its columns, and its place in the file."""

    source: str
    """The file and the unit that is counted: `my.csv, line`."""
    number: int
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        """The file and the row's number, for messages."""
        return f"{self.source} {self.number}"

    def text(self, column: str) -> str:
        """The value of a column as text; "" where the row has none."""
        return as_text(self.values.get(column), f"{self.place}: '{column}'")

    def visible_text(self, column: str) -> str:
        """The stripped text of a column; "" where it has no visible character."""
        text = self.text(column).strip()
        return text if any(map(_is_visible, text)) else ""


@dataclass(frozen=True)
class Table:
    """The rows of one file or dataset."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    excluded: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def column(self, names: Iterable[str], role: str) -> str:
        """The first of the names that is a column; `role` names its content in an error."""
        names = tuple(names)
        for name in names:
            if name in self.columns:
                return name
        raise UserError(
            f"{self.name} has no column '{names[0]}' for the {role}: {suggestion(names[0], self.columns)}"
            f" (the first row is {self.rows[0].place}; in CSV and TSV the first line must name the columns)"
        )


class Exclusions:
    """Counts excluded rows by reason, and keeps the first place of each reason."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self._known = dict(known or {})
        self._first: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, reason: str, place: str) -> None:
        """Count one more row."""
        self._first.setdefault(reason, place)
        self._counts[reason] = self._counts.get(reason, 0) + 1

    def __len__(self) -> int:
        return sum(self._counts.values()) + sum(self._known.values())

    def counted(self) -> dict[str, int]:
        """The number of rows for each reason, which names its first place."""
        added = {f"{reason} (first: {self._first[reason]})": count for reason, count in self._counts.items()}
        return {**self._known, **added}


def row_ids(table: Table, columns: Iterable[str]) -> list[str]:
    """The id of each row: from the first of the columns that exists, else its number, from 0."""
    column = next((name for name in columns if name in table.columns), None)
    if column is None:
        return [str(number) for number in range(len(table.rows))]
    seen: dict[str, Row] = {}
    for row in table.rows:
        name = row.text(column).strip()
        if name in seen:
            raise UserError(f"{row.place}: the {column} '{name}' is also in {seen[name].place}: ids must be unique")
        seen[name] = row
    return list(seen)


def describe_empty_rows(empty: Exclusions) -> tuple[str, ...]:
    """Messages on rows of a test split that would otherwise be excluded: every row needs its prediction."""
    return tuple(
        f"{counted(count, 'row')} {reason}: predicted nevertheless" for reason, count in empty.counted().items()
    )


def check_no_rows_excluded(name: str, excluded: Mapping[str, int]) -> None:
    """Refuse a file to predict for whose rows would be excluded: a submission needs a prediction for each row."""
    if excluded:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in excluded.items())
        raise UserError(
            f"{name}: rows that cannot be read: {reasons}. Every row of a file to predict for needs its prediction, so "
            "none is skipped: repair these rows, or remove them from the file"
        )


def visible_characters(text: str) -> str:
    """The text without white space, control characters and characters without a width."""
    return "".join(filter(_is_visible, text))


def has_visible_characters(text: str) -> bool:
    """Whether there is any: it stops at the first, where `visible_characters` would read a long text to its end."""
    return any(map(_is_visible, text))


def _is_visible(character: str) -> bool:
    is_blank = character in _BLANK or character.isspace()
    return not is_blank and unicodedata.category(character) not in ("Cc", "Cf")


def whole_number(text: str) -> int | None:
    """A text of at most 18 digits as a number; None for anything else."""
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) <= 18 else None


def as_text(value: Any, what: str) -> str:
    """A value as text; `what` names it in an error. Lone surrogates, which JSON can escape, become U+FFFD.

    NaN becomes "": Parquet files and data frames write it for missing values.
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
        # A column of whole numbers becomes one of floats as soon as a value is missing.
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
    ragged_rows: Literal["refuse", "exclude"] = "refuse",
) -> Table:
    """All rows of a file, whose format is known by its ending, before .gz, .bz2, .xz or .zst.

    `quoting` is for TSV: whether " is an ordinary character, or quotes as in CSV, or whichever fits the file.
    `without_header` names the columns of a file whose first line does not have the last of them.
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
        f"{path}: the ending '{plain.suffix}' is not known: "
        ".csv, .tsv, .jsonl, .json and .parquet are, also with .gz, .bz2, .xz or .zst after them"
    )


def table_of(name: str, rows: Sequence[Row]) -> Table:
    """A table of all columns that occur in the rows."""
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row.values))
    if not rows:
        raise UserError(f"{name} has no rows")
    return Table(name, tuple(columns), rows)


def check_is_there(path: Path) -> None:
    """Refuse a file that does not exist; the error names the nearest that does."""
    if not path.exists():
        siblings = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
        advice = f": {suggestion(path.name, siblings)}" if 0 < len(siblings) <= 1000 else ""
        raise UserError(f"there is no file {path}{advice}")


def read_text(path: Path) -> str:
    """The text of a file, unpacked: UTF-8, or with a warning Windows-1252, or UTF-16 with its mark."""
    data = b"".join(table_blocks(path))
    return data.decode(find_encoding([data], str(path)).name, errors="replace")  # broken in UTF-16 alone


def table_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file of rows, unpacked; a folder, a missing file and binary data are refused."""
    check_is_there(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is needed")
    return byte_blocks(CorpusSource(str(path), "text", path.stat().st_size), Counts(), takes_utf16=True)


@dataclass(frozen=True)
class FileEncoding:
    """The encoding of a text file, and its length."""

    name: str
    """As Python names it; utf-8-sig where the file begins with a byte order mark."""
    num_lines: int


def find_encoding(blocks: Iterable[bytes], name: str) -> FileEncoding:
    """The encoding of a file from all its bytes, which are not kept.

    A file that is not UTF-8 is taken for Windows-1252, which Excel writes, with a warning. One that holds more UTF-8
    than anything else is UTF-8 with a broken byte, and is refused.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_lines = broken = sound = first_line = 0
    is_windows, is_utf16, is_marked, is_open = True, None, False, False
    for block in itertools.chain(blocks, [b""]):
        if is_utf16 is None:
            is_utf16, is_marked = block.startswith(UTF16_MARKS), block.startswith(codecs.BOM_UTF8)
        text = decoder.decode(block, final=not block)
        is_windows = is_windows and not block.translate(None, _WINDOWS_BYTES)
        if not text.isascii():
            replaced = text.count("\ufffd") - block.count("\ufffd".encode())
            if replaced > 0 and not broken:
                first_line = num_lines + 1 + text.count("\n", 0, text.index("\ufffd"))
            broken += max(0, replaced)
            sound += len(text) - len(text.encode("ascii", "ignore")) - max(0, replaced)
        num_lines += text.count("\n")
        is_open = not text.endswith("\n") if text else is_open
    num_lines += is_open
    if is_utf16:
        return FileEncoding("utf-16", num_lines)
    if not broken:
        return FileEncoding("utf-8-sig" if is_marked else "utf-8", num_lines)
    where = f"{name}, line {first_line} is not UTF-8"
    if sound >= broken or not is_windows:
        raise UserError(f"{where}: convert the file (for example with iconv -f LATIN1 -t UTF-8 FILE)")
    warnings.warn(
        f"{where}: the file is read as Windows-1252, as Excel writes it; if it is in another encoding, convert it to "
        "UTF-8",
        InputWarning,
        stacklevel=2,
    )
    return FileEncoding("cp1252", num_lines)


def json_lines(path: Path) -> Iterator[Row]:
    """The objects of a file with one per line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield _row(_parsed(line, f"{path}, line {number}"), f"{path}, line", number)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return _parsed(read_text(path), str(path))


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON: {error}") from None


def _row(value: Any, source: str, number: int) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{source} {number} is {_kind(value)}, but an object with a field for each column is needed")
    return Row(source, number, value)


def _json_items(path: Path) -> Iterator[Row]:
    text = read_text(path)
    if not text.lstrip().startswith("["):
        # Some .json files have one object per line.
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
        read_text(path)  # raises the error that names what is wrong
    try:
        values = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: not a whole Parquet file ({error}): write it again") from None
    return table_of(str(path), [Row(f"{path}, row", number, value) for number, value in enumerate(values, 1)])


def _delimited_table(
    path: Path,
    ending: str,
    quoting: Quoting,
    without_header: tuple[str, ...],
    ragged_rows: Literal["refuse", "exclude"],
) -> Table:
    text, is_csv = read_text(path), ending == ".csv"

    def read(lines: Iterator[tuple[int, list[str]]]) -> Table:
        return _table(path, lines, without_header, refuse_ragged=ragged_rows == "refuse")

    def quoted_lines() -> Iterator[tuple[int, list[str]]]:
        return csv_rows(str(path), io.StringIO(text, newline=""), "" if is_csv else "\t")

    if is_csv or quoting == "quoted":
        return read(quoted_lines())
    if quoting == "literal" or '"' not in text:
        return read(_literal_lines(text))
    # Both ways of writing TSV are common, and the ending does not tell them apart. Literal quotes almost surely break
    # the rules of CSV somewhere, or join rows, which makes them ragged.
    with contextlib.suppress(UserError):
        table = read(quoted_lines())
        num_ragged, width = sum(table.excluded.values()), len(table.columns)
        if not num_ragged or num_ragged <= sum(len(fields) != width for _, fields in _literal_lines(text)):
            return table
    remark = f'{path}: " is read as an ordinary character, since the file does not quote as CSV does'
    return replace(read(_literal_lines(text)), remarks=(remark,))


def _literal_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip("\r"):
            yield number, line.removesuffix("\r").split("\t")


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
    for number, fields in itertools.chain(rest, lines):
        if len(fields) == width:
            rows.append(Row(source, number, dict(zip(columns, fields, strict=True))))
        elif refuse_ragged:
            raise UserError(
                f"{source} {number}: {counted(len(fields), 'column')} where the first line names {width}: "
                "quote the texts that contain the delimiter"
            )
        else:
            excluded.add(f"not {counted(width, 'column')}", f"{source} {number}")
    if not rows:
        raise UserError(f"{path} has a first line, but no rows")
    return Table(str(path), columns, rows, excluded.counted())
