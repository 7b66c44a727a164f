"""CoNLL files: a word a line with its columns, an empty line between sentences.

Columns are separated by tabs or by spaces and numbered from 1. Skipped are comments, `-DOCSTART-`, and in CoNLL-U the
lines of contracted words (3-4) and of empty nodes (8.1).
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.tables import Row, Table, read_text
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


def read_conll(path: Path) -> Table:
    """A row for each sentence, at its first line: for each column, named by its number, the list of its values.

    The numbers of its lines are in `LINES`, which is no column.
    """
    lines = [line.rstrip("\r") for line in read_text(path).split("\n")]
    some = list(islice((line for line in lines if line.strip() and not line.startswith("#")), SAMPLE))
    if not some:
        raise UserError(f"{path} has no words: a CoNLL file has a word and its tag on each line")
    tabs = 2 * sum("\t" in line for line in some) > len(some)
    width = Counter(len(_fields(line, tabs)) for line in some).most_common(1)[0][0]
    columns = tuple(str(number) for number in range(1, width + 1))
    rows = []
    for words in _sentences(path, lines, tabs, width):
        numbers = [number for number, _ in words]
        cells = zip(*(fields for _, fields in words), strict=True)
        values = {column: list(some) for column, some in zip(columns, cells, strict=True)}
        rows.append(Row(f"{path}, line", numbers[0], {**values, LINES: numbers}))
    if not rows:
        raise UserError(f"{path} has no words: every line is a comment, or marks a document")
    return Table(str(path), columns, rows)


def _fields(line: str, tabs: bool) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if tabs else line.split()


def _sentences(path: Path, lines: list[str], tabs: bool, width: int) -> Iterator[list[tuple[int, list[str]]]]:
    """The words of each sentence: the number of the line, and its columns."""
    words: list[tuple[int, list[str]]] = []
    for number, line in enumerate((*lines, ""), 1):
        fields = _fields(line, tabs)
        if not any(fields) or fields[0] == "-DOCSTART-":
            if words:
                yield words
            words = []
        elif _is_comment(line, fields, tabs, width) or (is_conllu(path) and _NO_WORD.fullmatch(fields[0])):
            continue
        elif len(fields) != width:
            raise UserError(
                f"{path}, line {number}: {counted(len(fields), 'column')} where most lines have {width}: a line has a "
                f"word and its tag, with {'a tab' if tabs else 'spaces'} between them"
            )
        else:
            words.append((number, fields))


def _is_comment(line: str, fields: list[str], tabs: bool, width: int) -> bool:
    """A line of # is a comment unless it has the columns of a word: # is also a word, and begins a hashtag."""
    looks_like_words = " " in fields[0] if tabs else "\t" in line
    return line.startswith("#") and (len(fields) != width or looks_like_words)
