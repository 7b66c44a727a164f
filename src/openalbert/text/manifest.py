"""The manifest of a folder of shards: what they are, what they were made of, and size and sha256 of every file.

It is written last. A folder without one is not finished, whatever else it holds.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.settings import from_dict

FORMAT = 1
MANIFEST = "manifest.json"
PLAN = "plan.json"  # stands beside the manifest, and alone while the work is not finished
PICTURE = "inspect.png"  # what `openalbert inspect` draws of the shards: not one of their files, but gone with them
HASHED_AT_ONCE = 1 << 20
REPAIR = "copy it again from where it is whole, or prepare the text again with --fresh"


@dataclass(frozen=True)
class ShardEntry:
    """What the manifest says about one shard."""

    name: str
    """Path in the folder, without the three endings: `shards/00000-00000/train`."""
    documents: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says about one file."""

    name: str
    """Path in the folder, with `/` between its parts."""
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a folder of shards; everything in it follows from the texts and the settings alone."""

    format: int
    settings: dict[str, Any]
    """What was asked for: everything that decides the bytes, and nothing that does not."""
    inputs: tuple[str, ...]
    """The texts, in the order in which they were read."""
    counts: dict[str, int]
    """Documents, sentences and tokens kept, and everything that was dropped."""
    tokenizer: str
    """Fingerprint of the vocabulary."""
    vocab_size: int
    special_ids: dict[str, int]
    dtype: str
    """The type of a token on disk: `uint16`, or `uint32` for a vocabulary of more than 65,536."""
    splits: dict[str, tuple[ShardEntry, ...]]
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Vocabulary:
    """What the manifest has to know of the vocabulary."""

    fingerprint: str
    vocab_size: int
    special_ids: Mapping[str, int]

    @property
    def dtype(self) -> str:
        """16 bits a token where they are enough."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Declare a folder finished."""
    atomic_io.write_text(folder / MANIFEST, _text(asdict(manifest)))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished folder; refuses what is not finished, not ours, newer than ours, or altered."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / PLAN).is_file():
            raise UserError(
                f"{folder}: these shards are not finished: run the same `openalbert prepare` again to go on"
            )
        raise UserError(f"{folder}: no shards here (no {MANIFEST}): make them with `openalbert prepare`")
    text = path.read_bytes()
    try:
        values = json.loads(text)
        checksum = values.pop("checksum")
        newer = values["format"] > FORMAT
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path}: this is not a manifest of shards, or it is damaged: prepare the text again") from None
    if newer:
        raise UserError(
            f"{path}: written in format {values['format']} but this openalbert knows formats up to {FORMAT}: update it"
        )
    # The text, not only its meaning, must be as written: no flipped bit is too small to be seen.
    if _text(values).encode() != text:
        raise UserError(f"{path}: damaged, its checksum {checksum} does not fit: prepare the text again")
    return from_dict(values, Manifest, str(path))


def file_entry(folder: Path, path: Path) -> FileEntry:
    """What the manifest shall say about a file."""
    return FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(HASHED_AT_ONCE):
            digest.update(data)
    return digest.hexdigest()


def _text(values: dict[str, Any]) -> str:
    """The manifest's text; its last line is the checksum of the text without that line."""
    body = json.dumps(values, indent=2, ensure_ascii=False)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(values | {"checksum": checksum}, indent=2, ensure_ascii=False) + "\n"


def visible_problem(folder: Path, entry: FileEntry) -> str | None:
    """What can be seen to be wrong with a file without reading it."""
    path = folder / entry.name
    if not path.is_file():
        return f"{path}: missing, though the manifest lists it: {REPAIR}"
    if path.stat().st_size != entry.size:
        return f"{path}: has {path.stat().st_size} bytes but the manifest says {entry.size}: {REPAIR}"
    return None


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder in which a file is missing or has another size."""
    for entry in manifest.files:
        if problem := visible_problem(folder, entry):
            raise UserError(problem)


def problems(folder: Path, manifest: Manifest) -> Iterator[tuple[FileEntry, str | None]]:
    """Read every file the manifest lists; with each comes a sentence on what is wrong with it, or None."""
    for entry in manifest.files:
        problem = visible_problem(folder, entry)
        try:
            if problem is None and _sha256(folder / entry.name) != entry.sha256:
                problem = f"{folder / entry.name}: its content is not what was written: {REPAIR}"
        except OSError as error:
            problem = f"{folder / entry.name}: cannot be read ({error.strerror}): {REPAIR}"
        yield entry, problem
