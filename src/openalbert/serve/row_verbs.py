"""What the verbs `predict`, `embed` and `search` share: a model, rows, an output, progress, and a count of rows."""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO, cast

from openalbert import atomic_io
from openalbert.errors import UserError, explain_full_disk
from openalbert.formatting import counted, percent_of, were
from openalbert.interop.huggingface import find_folder
from openalbert.progress import Work, log
from openalbert.serve.backend import Advance, not_shown
from openalbert.serve.files.rows import Rows, TextLines, format_of, given_rows, input_rows, open_rows
from openalbert.serve.predictor import Predictor
from openalbert.tasks.data.row_files import Exclusions
from openalbert.text.readers import STANDARD_INPUT
from openalbert.train.device import Speed, open_device


@contextlib.contextmanager
def open_model(name: str, speed: Speed) -> Iterator[Predictor]:
    """A model on the device that the settings ask for."""
    find_folder(name)  # refuses a preset, which has no tokenizer
    with open_device(speed) as device:
        model = Predictor.load(name)
        model.compute_on(device)
        yield model


def open_given(
    words: tuple[str, ...],
    out: Path | None,
    lines: TextLines,
    typed: Callable[[tuple[str, ...]], Sequence[Mapping[str, Any]]],
) -> Rows:
    """The rows of the file that is named, of standard input, or of texts that were typed."""
    if words in ((), (STANDARD_INPUT,)):
        return input_rows(lines)
    files = [word for word in words if _is_file(word)]
    if not files:
        texts = typed(words)
        return given_rows(texts, tuple(dict.fromkeys(role for one in texts for role in one)))
    if len(words) > 1:
        raise UserError(f"{files[0]} is a file: give one file alone, or texts")
    path = Path(files[0])
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"--out {out} is the file that is read: give it another name")
    return open_rows(path, lines)


def _is_file(word: str) -> bool:
    """Whether a word names a file: one that exists, or one by its ending."""
    if not word or len(word) > 4096 or "\n" in word:
        return False
    path = Path(word)
    with contextlib.suppress(OSError, ValueError):
        if path.exists():
            return True
    return format_of(path) is not None and not any(character.isspace() for character in path.name)


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """The file to write, which is complete or absent; standard output where there is none."""
    if path is None:
        sys.stdout.flush()
        yield cast("IO[bytes]", getattr(sys.stdout, "buffer", None) or _TextStream(sys.stdout))
        sys.stdout.flush()
        return
    atomic_io.make_folder(path.absolute().parent)
    with explain_full_disk(path, "nothing is left of it"), atomic_io.new_file(path) as file:
        yield file


class _TextStream(io.RawIOBase):
    """Standard output where it is replaced by a stream of text, as in notebooks."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, data: Any) -> int:
        return self.stream.write(bytes(data).decode())


@contextlib.contextmanager
def progress(label: str, rows: Rows) -> Iterator[Advance]:
    """Progress over the lines of a file; there is none for texts that were typed."""
    if not rows.total:
        yield not_shown
        return
    with Work(label, total=float(rows.total), unit="rows" if rows.format in ("parquet", "json") else "lines") as work:
        yield work.advance


class RowCount:
    """Counts the rows of an input, and those that were cut or have no result."""

    def __init__(self) -> None:
        self.num_rows = self.num_truncated = 0
        self.problems = Exclusions()
        """Rows without a result, by reasons: clauses that follow the number of such rows."""

    def report(self, name: str, longest: int, verb: str, outcome: str) -> None:
        """Log what was cut and what has no result; where no row has one, that is an error."""
        if self.num_truncated:
            number = self.num_truncated
            percent = percent_of(number, self.num_rows)
            log(f"{counted(number, 'row')} ({percent}) {were(number)} too long, and cut to {longest} tokens")
        reasons = [f"{counted(count, 'row')} {reason}" for reason, count in self.problems.counted().items()]
        if len(self.problems) == self.num_rows:
            raise UserError(f"{name}: nothing can be {verb}: {'; '.join(reasons)}")
        for reason in reasons:
            log(f"warning: {reason}: {outcome}")
