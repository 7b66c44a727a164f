"""The texts of files that hold records: JSONL, Parquet, and Hugging Face datasets.

A record without text (a broken line, a missing field) is dropped and counted; a file that begins with too many of them,
or has no others, is refused.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from openalbert.errors import UserError, suggestion
from openalbert.text.readers import BLOCK, Counts, Reading, Source, byte_blocks, decode

LONGEST_JSON_LINE = 1 << 25  # bytes; a longer line is dropped, for a record must be in memory to be parsed
HOPELESS_RECORDS = 1000  # records in a row at the start of a file that give no text before it is refused


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
            hope.failed(f"line {number} is not JSON: {error} (jq -c . FILE makes a line of each object)")
            continue
        if not isinstance(record, dict):
            counts.dropped_broken_lines += 1
            hope.failed(
                f"line {number} holds a JSON {type(record).__name__}, not an object with the text in a field "
                "(jq -c '.[]' FILE makes lines of an array)"
            )
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
    hope = _Hope(source.name)
    try:
        for number, row in enumerate(_dataset_rows(datasets, source.name, reading), 1):
            value = row.get(reading.text_field)
            if isinstance(value, str):
                hope.found = True
                yield value
            else:
                counts.dropped_without_text += 1
                hope.failed(_no_text(f"row {number}", "column", reading, list(row), value))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{source.name}: Hugging Face datasets cannot read it: {error}") from None
    hope.refuse()


def _dataset_rows(datasets: Any, name: str, reading: Reading) -> Iterable[dict[str, Any]]:
    saved = any((Path(name) / mark).is_file() for mark in ("state.json", "dataset_dict.json"))
    if not saved:
        return datasets.load_dataset(name, reading.dataset_config, split=reading.dataset_split, streaming=True)  # type: ignore[no-any-return]
    rows = datasets.load_from_disk(name)
    if not isinstance(rows, datasets.DatasetDict):
        return rows  # type: ignore[no-any-return]
    if reading.dataset_split not in rows:
        known = suggestion(reading.dataset_split, list(rows))
        raise UserError(f"{name} has no split '{reading.dataset_split}' (dataset_split): {known}")
    return rows[reading.dataset_split]  # type: ignore[no-any-return]
