"""CoNLL files: a word a line with its columns, an empty line between sentences.

Columns are separated by tabs or by spaces and numbered from 1. Skipped are comments, `-DOCSTART-`, and in CoNLL-U the
lines of contracted words (3-4) and of empty nodes (8.1).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.row_files import Row, Table, read_text
from openalbert.text.readers import MAGIC

SAMPLE = 1000  # lines that decide on the separator and the number of columns
LINES = "line"
TABLES = (".csv", ".jsonl", ".ndjson", ".json", ".parquet")
_NO_WORD = re.compile(r"\d+[-.]\d+")


def is_conll(path: Path) -> bool:
    """Whether a file is CoNLL by its name: it is not one of a table."""
    return _ending(path) not in TABLES


def is_conllu(path: Path) -> bool:
    """Whether a file is CoNLL-U by its name."""
    return _ending(path) == ".conllu"


def _ending(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix.removeprefix(".") in MAGIC else path
    return plain.suffix.lower()


@dataclass(frozen=True)
class ConllLines:
    """How the lines of a file are read."""

    separator: str
    """A tab, or a space, which stands for any number of them."""
    width: int
    """Columns of a line."""
    is_conllu: bool

    @classmethod
    def of(cls, path: Path, lines: Iterable[str]) -> "ConllLines":
        """From the first lines of a file."""
        some = list(islice((line for line in lines if line.strip() and not line.startswith("#")), SAMPLE))
        if not some:
            raise UserError(f"{path} has no words: a CoNLL file has a word and its tag on each line")
        separator = "\t" if 2 * sum("\t" in line for line in some) > len(some) else " "
        width = Counter(len(_fields(line, separator)) for line in some).most_common(1)[0][0]
        # Words alone: a column that is added to them is separated by a tab.
        return cls("\t" if width == 1 else separator, width, is_conllu(path))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, which are their numbers."""
        return tuple(str(number) for number in range(1, self.width + 1))

    def fields(self, line: str) -> list[str] | None:
        """The columns of a word, however many; none where a sentence ends; None for a line that is skipped."""
        fields = _fields(line, self.separator)
        if not any(fields) or fields[0] == "-DOCSTART-":
            return []
        if self._is_comment(line, fields) or (self.is_conllu and _NO_WORD.fullmatch(fields[0])):
            return None
        return fields

    def _is_comment(self, line: str, fields: list[str]) -> bool:
        """A line of # is a comment unless it has the columns of a word: # is also a word, and begins a hashtag."""
        looks_like_words = " " in fields[0] if self.separator == "\t" else "\t" in line
        return line.startswith("#") and (len(fields) != self.width or looks_like_words)

    def row(self, source: str, words: list[tuple[int, list[str]]]) -> Row:
        """A sentence of words, each with the number of its line: for each column the list of its values.

        The numbers of the lines are in `LINES`, which is no column.
        """
        numbers = [number for number, _ in words]
        cells = zip(*(fields for _, fields in words), strict=True)
        values = {column: list(some) for column, some in zip(self.columns, cells, strict=True)}
        return Row(source, numbers[0], {**values, LINES: numbers})


def _fields(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if separator == "\t" else line.split()


def read_conll(path: Path) -> Table:
    """A row for each sentence, at its first line."""
    lines = [line.rstrip("\r") for line in read_text(path).split("\n")]
    form = ConllLines.of(path, lines)
    rows = [form.row(f"{path}, line", words) for words in _sentences(path, lines, form)]
    if not rows:
        raise UserError(f"{path} has no words: every line is a comment, or marks a document")
    return Table(str(path), form.columns, rows)


def _sentences(path: Path, lines: list[str], form: ConllLines) -> Iterator[list[tuple[int, list[str]]]]:
    """The words of each sentence: the number of the line, and its columns."""
    words: list[tuple[int, list[str]]] = []
    for number, line in enumerate((*lines, ""), 1):
        fields = form.fields(line)
        if fields == []:
            if words:
                yield words
            words = []
        elif fields is not None and len(fields) != form.width:
            between = "a tab" if form.separator == "\t" else "spaces"
            raise UserError(
                f"{path}, line {number}: {counted(len(fields), 'column')} where most lines have {form.width}: a line "
                f"has a word and its tag, with {between} between them"
            )
        elif fields is not None:
            words.append((number, fields))
