"""The verb `embed`: embeddings of texts and files of any size as .npy, Parquet or JSONL, in the order of rows."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
from jaxtyping import Float32
from numpy.lib import format as npy
from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert.errors import UserError
from openalbert.finetuning.predict import TOKENS_AT_A_TIME
from openalbert.model.pooling import Pooling
from openalbert.progress import log
from openalbert.serve.files.row_writers import JsonRows
from openalbert.serve.files.rows import Chunk, Rows, TextLines, first_table
from openalbert.serve.predictor import Embedded, Predictor
from openalbert.serve.row_verbs import RowCount, open_given, open_model, open_output, progress
from openalbert.tasks.custom.columns import Layout
from openalbert.tasks.custom.text import find_text_columns
from openalbert.tasks.data.row_files import Row
from openalbert.tasks.data.source import TaskSource
from openalbert.train.device import Speed

TEXT, EMBEDDING = "text", "embedding"
LINES = TextLines((TEXT,), lambda line: {TEXT: line})
DIGITS = 6  # significant ones in JSONL; a 32-bit number has 7


@dataclass(frozen=True)
class HowToEmbed:
    """How texts are embedded."""

    pooling: Pooling | None = None
    """The mean of the tokens, a mean in which rare words count more, or [CLS]. Not given: what the model is best at.
    That is the mean of the last layer for a model of similarity, else the weighted mean of an early layer."""
    layer: int | None = None
    """The layer whose output is taken. Not given: the last, or with no --pooling the one that the model is best at."""
    text_column: str | None = None
    """The column of the text. Not given: that of the training file, or the only one that has texts."""
    max_length: int | None = None
    """The longest text in tokens. Not given: as in fine-tuning, or 512."""
    tokens_at_a_time: int = TOKENS_AT_A_TIME
    """How many tokens are computed together: fewer need less memory."""


@dataclass(frozen=True)
class Embed:
    """Embed texts, or the rows of a file."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A model folder, a run, the name of a bundled checkpoint, or `owner/name` on Hugging Face's hub."""
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="[TEXT ...|FILE|-]")] = ()
    """Texts; or a file: CSV, TSV, JSONL, Parquet, or .txt with one text a line. Nothing, or -: standard input."""
    out: Path | None = None
    """The file to write, by its ending .npy, .parquet or .jsonl. Not given: JSONL on standard output."""
    normalize: bool = True
    """Scale embeddings to a length of 1, so that a dot product is a cosine."""
    how: Annotated[HowToEmbed, OmitArgPrefixes] = field(default_factory=HowToEmbed)
    """How texts are embedded."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""


def embed(settings: Embed) -> None:
    """Embed what was given, and write it."""
    if settings.out is not None and settings.out.suffix.lower() not in WRITERS:
        raise UserError(f"--out {settings.out}: its ending says no format to write: {', '.join(WRITERS)} do")
    with open_model(settings.model, settings.speed) as model:
        embedder = RowEmbedder(model, settings.how, settings.normalize)
        rows = open_given(settings.texts, settings.out, LINES, lambda words: [{TEXT: word} for word in words])
        first = next(rows.chunks)
        embedder.find_column(rows, first)
        make = WRITERS[".jsonl" if settings.out is None else settings.out.suffix.lower()]
        with open_output(settings.out) as file:
            with (
                contextlib.closing(make(file, rows, embedder.column, model.config.hidden_size)) as writer,
                progress("embed", rows) as advance,
            ):
                for chunk in itertools.chain([first], rows.chunks):
                    writer.write(chunk, embedder.embed(chunk))
                    advance(float(chunk.num_lines))
            embedder.report(rows)


class RowEmbedder:
    """Embeds chunk by chunk, and counts what has no text or is too long."""

    def __init__(self, model: Predictor, how: HowToEmbed, normalize: bool = True) -> None:
        self.model, self.how, self.normalize = model, how, normalize
        self.method = model.embedding_method(how.pooling, how.layer)
        self.column = TEXT
        self.count = RowCount()
        self.embed_texts([])  # refuses settings that do not fit the model before anything is written

    def find_column(self, rows: Rows, first: Chunk) -> None:
        """Find the column of the text by the first rows: the user's, that of the training file, or a guess."""
        if rows.format == "text":
            return
        table = first_table(rows, first)
        trained_on = self.model.task.layout.get(TEXT) if self.model.task is not None else None
        layout = Layout({TEXT: trained_on}) if trained_on in table.columns else None
        found = find_text_columns(table, TaskSource(text_column=self.how.text_column), "classes", False, layout)
        if "second" in found.roles and layout is None:
            raise UserError(
                f"{table.name}: '{found[TEXT]}' and '{found['second']}' have texts, and one is embedded: name it with "
                "--text-column"
            )
        self.column = found[TEXT]
        if layout is None and self.how.text_column is None:
            log(f"{table.name}: the text from '{self.column}' (guessed; change with --text-column)")

    def embed(self, chunk: Chunk) -> Float32[np.ndarray, "rows hidden"]:
        """A row for each record that is not a blank line; zeros where it has no text."""
        records = [record for record in chunk.records if not record.is_blank]
        texts, reasons = [], []
        for record in records:
            text = read_text(record.row, self.column) if record.row is not None else None
            texts.append(text or "")
            reasons.append(
                "without a text" if text is not None else record.problem or f"whose '{self.column}' is no text"
            )
        found = self.embed_texts(texts)
        for number in found.empty:
            self.count.problems.add(reasons[number], records[number].where)
        self.count.num_rows += len(records)
        self.count.num_truncated += found.num_truncated
        return found.embeddings

    def embed_texts(self, texts: Sequence[str]) -> Embedded:
        """The embeddings of texts by these settings."""
        how = self.how
        return self.model.embed_texts(
            texts, self.method, self.normalize, how.max_length, how.tokens_at_a_time, shows=False
        )

    def report(self, rows: Rows) -> None:
        """Log what was cut or has no embedding; nothing at all is an error."""
        longest = self.how.max_length or self.model.max_length
        self.count.report(rows.name, longest, "embedded", "embedded as zeros")


def read_text(row: Row, column: str) -> str | None:
    """The text of a row; None where it is a list or an object."""
    try:
        return row.text(column)
    except UserError:
        return None


# The formats.


class NpyRows:
    """.npy: a matrix with a row for each row of the input, blank lines not counted."""

    def __init__(self, file: IO[bytes], rows: Rows, column: str, width: int) -> None:
        self._file, self._num_rows, self._width = file, 0, width
        self._write_header()

    def _write_header(self) -> None:
        """Numpy leaves room for a larger first number: the header can be written again with the final one."""
        values = {"descr": "<f4", "fortran_order": False, "shape": (self._num_rows, self._width)}
        npy.write_array_header_1_0(self._file, values)

    def write(self, chunk: Chunk, embeddings: Float32[np.ndarray, "rows hidden"]) -> None:
        """Append the embeddings."""
        self._file.write(np.ascontiguousarray(embeddings, "<f4").data)
        self._num_rows += len(embeddings)

    def close(self) -> None:
        """Write how many they are."""
        self._file.seek(0)
        self._write_header()


class JsonEmbeddings:
    """JSONL: the objects or rows of the input with a list of numbers added."""

    def __init__(self, file: IO[bytes], rows: Rows, column: str, width: int) -> None:
        self._writer = JsonRows(file, rows)

    def write(self, chunk: Chunk, embeddings: Float32[np.ndarray, "rows hidden"]) -> None:
        """Write an object for each row; blank lines are left out."""
        records = [record for record in chunk.records if not record.is_blank]
        cells = [{EMBEDDING: [float(f"{value:.{DIGITS}g}") for value in row]} for row in embeddings.tolist()]
        self._writer.write(Chunk(records), cells)

    def close(self) -> None:
        """Nothing is left to write."""


class ParquetEmbeddings:
    """Parquet: the columns of the input, of JSONL the text alone, and a list of 32-bit numbers."""

    def __init__(self, file: IO[bytes], rows: Rows, column: str, width: int) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UserError("writing Parquet needs an extra: pip install 'openalbert[parquet]'") from None
        self._arrow, self._columns = pyarrow, rows.columns or (column,)
        if EMBEDDING in self._columns:
            raise UserError(f"{rows.name} has a column '{EMBEDDING}' already: rename it, or write .npy")
        own = rows.schema
        if own is None:
            own = pyarrow.schema([(name, pyarrow.string()) for name in self._columns])
        self._kind = pyarrow.list_(pyarrow.float32(), width)
        self._schema = own.append(pyarrow.field(EMBEDDING, self._kind))
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema)

    def write(self, chunk: Chunk, embeddings: Float32[np.ndarray, "rows hidden"]) -> None:
        """Write a batch."""
        arrow = self._arrow
        flat = arrow.array(embeddings.ravel(), arrow.float32())
        added = arrow.FixedSizeListArray.from_arrays(flat, embeddings.shape[1])
        if chunk.batch is not None:
            columns = list(chunk.batch.columns)
        else:
            rows = [record.row for record in chunk.records if not record.is_blank]
            values = [row.values if row is not None else {} for row in rows]
            columns = [arrow.array([_plain(one.get(name)) for one in values], arrow.string()) for name in self._columns]
        self._writer.write_batch(arrow.record_batch([*columns, added], schema=self._schema))

    def close(self) -> None:
        """Write the end of the file, which lists its parts."""
        self._writer.close()


def _plain(value: Any) -> str | None:
    """As Parquet takes it: JSON may hold half a character."""
    return None if value is None else str(value).encode(errors="replace").decode()


WRITERS: dict[str, Any] = {".npy": NpyRows, ".parquet": ParquetEmbeddings, ".jsonl": JsonEmbeddings}
