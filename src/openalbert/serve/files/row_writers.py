"""Predictions next to the rows they are for: cells added to CSV and TSV, fields to JSONL, columns to Parquet and CoNLL.

What stood in a row stays as it was, to the byte where the format allows that.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol, runtime_checkable

from openalbert.errors import UserError
from openalbert.serve.files.rows import Chunk, Format, Record, Rows
from openalbert.serve.predictions import TAGS, CellKind
from openalbert.tasks.data.conll import ConllLines

Cells = Mapping[str, Any]
"""The columns that are added to a row; a value is None where there is no prediction."""
BYTE_ORDER_MARK = "\ufeff"
SEPARATOR = ";"  # between labels in one cell
OTHER_NAMES = "give the added columns other names with --prefix"


@runtime_checkable
class Writer(Protocol):
    """Writes the rows of an input in their order, with the cells that are added to each."""

    def write(self, chunk: Chunk, cells: Sequence[Cells]) -> None:
        """Write the next rows; `cells` has an entry for each record."""

    def close(self) -> None:
        """Write what is still to be written."""


def open_writer(file: IO[bytes], form: Format, rows: Rows, added: Mapping[str, CellKind]) -> Writer:
    """A writer of a format for these rows; `added` are the columns that are added."""
    for name in added:
        if name in (rows.columns or ()):
            raise UserError(f"{rows.name} has a column '{name}' already: {OTHER_NAMES}")
    if form == "parquet":
        if rows.schema is None:
            raise UserError(f"{rows.name} is not Parquet, so Parquet cannot be written: give --out another ending")
        return ParquetRows(file, rows, added)
    if form in ("csv", "tsv"):
        if rows.columns is None:
            raise UserError(f"{rows.name} is JSONL, whose rows may differ: give --out a name that ends in .jsonl")
        return DelimitedRows(file, form, rows, added)
    return JsonRows(file, rows) if rows.conll is None else ConllRows(file, rows.conll)


class DelimitedRows:
    """CSV or TSV: cells after those of the row, whose own text is copied where it is of that format."""

    def __init__(self, file: IO[bytes], form: Format, rows: Rows, added: Mapping[str, CellKind]) -> None:
        self.file, self.columns, self.added = file, rows.columns or (), added
        self.is_copied = rows.is_raw and form == rows.format
        self.is_quoted = rows.is_quoted if self.is_copied else True
        self.delimiter = rows.delimiter if self.is_copied else ("\t" if form == "tsv" else ",")
        first = BYTE_ORDER_MARK if rows.is_marked else ""
        header = rows.header if self.is_copied else self._line(self.columns) + "\n"
        self.line_end = header[len(header.rstrip("\r\n")) :] or "\n"
        self._put(first + self._with(header, list(self.added)))

    def write(self, chunk: Chunk, cells: Sequence[Cells]) -> None:
        """Write the rows with their cells."""
        for record, added in zip(chunk.records, cells, strict=True):
            if record.is_blank:
                self._put(record.raw if self.is_copied else "")
                continue
            raw = record.raw if self.is_copied else self._own(record)
            if self.is_copied and record.row is None:
                raw = self._filled_up(raw)
            self._put(self._with(raw, [_cell(added.get(name), kind) for name, kind in self.added.items()]))

    def close(self) -> None:
        """Nothing is left to write."""

    def _own(self, record: Record) -> str:
        """The row in this format; one that cannot be read has its text in the first column."""
        values = record.row.values if record.row is not None else {self.columns[0]: record.raw.rstrip("\r\n")}
        return self._line([_cell(values.get(column)) for column in self.columns]) + "\n"

    def _filled_up(self, raw: str) -> str:
        """A row with too few cells, filled up, so that what is added stands in its own columns."""
        text = raw.rstrip("\r\n")
        missing = len(self.columns) - 1 - text.count(self.delimiter)
        return text + self.delimiter * max(0, missing) + raw[len(text) :]

    def _with(self, raw: str, cells: Sequence[str]) -> str:
        """A row with more cells before its line end."""
        text = raw.rstrip("\r\n")
        return f"{text}{self.delimiter}{self._line(cells)}{raw[len(text) :] or self.line_end}"

    def _line(self, cells: Sequence[str]) -> str:
        if not self.is_quoted:  # nothing can be escaped there
            return self.delimiter.join(" ".join(cell.split()) for cell in cells)
        line = io.StringIO()
        csv.writer(line, delimiter=self.delimiter, lineterminator="").writerow(cells)
        return line.getvalue() if list(cells) != [""] else ""  # csv quotes a single empty cell

    def _put(self, text: str) -> None:
        self.file.write(text.encode(errors="replace"))


class JsonRows:
    """JSONL: an object for each row, to which fields are added; an object of JSONL stays as it was written."""

    def __init__(self, file: IO[bytes], rows: Rows) -> None:
        self.file, self.is_copied = file, rows.format == "jsonl"

    def write(self, chunk: Chunk, cells: Sequence[Cells]) -> None:
        """Write an object for each row."""
        for record, added in zip(chunk.records, cells, strict=True):
            if self.is_copied or not record.is_blank:
                self.file.write(f"{self._line(record, added)}\n".encode(errors="replace"))
        self.file.flush()

    def close(self) -> None:
        """Nothing is left to write."""

    def _line(self, record: Record, added: Cells) -> str:
        if record.is_blank:
            return ""
        if record.row is None:
            return _json({"unreadable": record.raw.rstrip("\r\n"), **added})
        if not self.is_copied:
            return _json(_finite({**record.row.values, **added}))
        for name in added:
            if name in record.row.values:
                raise UserError(f"{record.row.place} has a field '{name}' already: {OTHER_NAMES}")
        own = record.raw.strip().removesuffix("}").rstrip()
        return f"{own}{', ' if record.row.values else ''}{_json(added).removeprefix('{')}"


class ConllRows:
    """CoNLL: one more column, the predicted tag, in every line of a word; all other lines stay as they are."""

    def __init__(self, file: IO[bytes], form: ConllLines) -> None:
        self.file, self.form = file, form

    def write(self, chunk: Chunk, cells: Sequence[Cells]) -> None:
        """Write the sentences with their tags; one that cannot be predicted stays as it is."""
        for record, added in zip(chunk.records, cells, strict=True):
            tags = iter(added.get(TAGS) or ())
            for line in io.StringIO(record.raw, newline=""):  # as they were read: a word may hold other line breaks
                tag = next(tags, None) if self.form.fields(line) else None
                text = line.rstrip("\r\n")
                put = line if tag is None else f"{text}{self.form.separator}{tag}{line[len(text) :]}"
                self.file.write(put.encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Nothing is left to write."""


class ParquetRows:
    """Parquet: the batches of the input with columns added, compressed and typed as before."""

    def __init__(self, file: IO[bytes], rows: Rows, added: Mapping[str, CellKind]) -> None:
        import pyarrow
        import pyarrow.parquet

        kinds = {
            "text": pyarrow.string(),
            "number": pyarrow.float64(),
            "whole number": pyarrow.int64(),
            "texts": pyarrow.list_(pyarrow.string()),
        }
        self._array, self._added = pyarrow.array, added
        self._fields = {name: pyarrow.field(name, kinds[kind]) for name, kind in added.items()}
        schema = rows.schema
        for field in self._fields.values():
            schema = schema.append(field)
        self._writer = pyarrow.parquet.ParquetWriter(file, schema)

    def write(self, chunk: Chunk, cells: Sequence[Cells]) -> None:
        """Write a batch with its columns."""
        batch = chunk.batch
        for name, field in self._fields.items():
            values = [one.get(name) for one in cells]
            if self._added[name] == "text":
                values = [None if value is None else _cell(value) for value in values]
            batch = batch.append_column(field, self._array(values, field.type))
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the end of the file, which lists its parts."""
        self._writer.close()


def _cell(value: Any, kind: CellKind = "text") -> str:
    """A value as the text of a cell: several labels with a separator, anything nested as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if kind == "texts":
        return SEPARATOR.join(value)
    return _json(value) if isinstance(value, list | dict | bool) else str(value)


def _finite(value: Any) -> Any:
    """A value of Parquet without the numbers that JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(value: Any) -> str:
    # Parquet has values, such as dates, that JSON has not.
    return json.dumps(value, ensure_ascii=False, default=str)
