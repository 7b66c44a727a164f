"""Text lines to JSON lines of ids and back, on files or standard input."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from openalbert.errors import UserError
from openalbert.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Settings of `openalbert tokenizer encode`."""

    file: tyro.conf.Positional[Path | None] = None
    """Text, one a line; standard input if none is named."""
    tokenizer: Path
    """A folder with spiece.model, such a file, or albert-base-wikibooks, which comes with openalbert."""
    pieces: bool = False
    """Give the pieces as well as their ids."""
    offsets: bool = False
    """Give the start and the end of each piece in its line, in characters."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Settings of `openalbert tokenizer decode`."""

    file: tyro.conf.Positional[Path | None] = None
    """What `tokenizer encode` wrote, or lists of ids, one a line; standard input if none is named."""
    tokenizer: Path
    """A folder with spiece.model, such a file, or albert-base-wikibooks, which comes with openalbert."""


def encode(settings: Encode) -> None:
    """Print one JSON object for each line of text."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    for _, line in _lines(settings.file):
        answer: dict[str, Any]
        if settings.pieces or settings.offsets:
            encoding = tokenizer.encode_with_offsets(line)
            answer = {"ids": encoding.ids}
            if settings.pieces:
                answer["pieces"] = encoding.pieces
            if settings.offsets:
                answer["offsets"] = encoding.offsets
        else:
            answer = {"ids": tokenizer.encode(line)}
        print(json.dumps(answer, ensure_ascii=False))


def decode(settings: Decode) -> None:
    """Print the text of each line of ids."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    for where, line in _lines(settings.file):
        try:
            print(tokenizer.decode(_ids(line)))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _lines(file: Path | None) -> Iterator[tuple[str, str]]:
    """Where each line stands, for errors, and the line; only a line feed ends one."""
    name = "standard input" if file is None else str(file)
    if file is not None and not file.is_file():
        raise UserError(f"{file} is not a file: name a file of lines, or none to read standard input")
    with sys.stdin.buffer if file is None else file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{name}, line {number}"
            try:
                yield where, line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{where}: byte {error.start + 1} is not UTF-8: convert the text to UTF-8 first"
                ) from None


def _ids(line: str) -> list[int]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        raise UserError('expected {"ids": [2, 13, …]} or [2, 13, …], but this is not JSON') from None
    ids = value.get("ids") if isinstance(value, dict) else value
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise UserError('expected {"ids": [2, 13, …]} or [2, 13, …], a list of whole numbers')
    return ids
