"""Token shards: memory-mapped tokens with sentence and document starts, and a manifest with checksums.

A folder of shards holds

    manifest.json                       settings, counts, vocabulary, and size and sha256 of every other file
    plan.json                           the settings and the input files
    tokenizer/                          the tokenizer of the tokens
    shards/00002-00000/piece.json       one piece of the corpus (source group 2, piece 0): what it was made of
    shards/00002-00000/train.*.npy      its tokens, its sentence starts and its document starts: plain numpy files

A piece appears under its name only when all of it is on disk, and the manifest is written last: a folder without a
manifest is not finished.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int, Integer

from openalbert import atomic_io
from openalbert.errors import UserError, suggestion
from openalbert.settings import from_dict, from_file, to_json

FORMAT = 1
MANIFEST = "manifest.json"
PLAN = "plan.json"  # there from the start of the work
PICTURE = "inspect.png"  # drawn by `openalbert inspect`; not in the manifest, but removed with the shards
REPAIR = "copy it again from an intact folder, or prepare the text again with --fresh"
PIECE = "piece.json"
SPLITS = ("train", "heldout")
MAX_OPEN_SHARDS = 128  # three file descriptors each; the usual limit of a process is 1024


@dataclass(frozen=True)
class ShardEntry:
    """The manifest's entry of one shard."""

    name: str
    """Path in the folder without the endings of its three files: `shards/00000-00000/train`."""
    documents: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class FileEntry:
    """The manifest's entry of one file."""

    name: str
    """Path in the folder, with `/` as separator."""
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a folder of shards, determined by the texts and the settings alone."""

    format: int
    settings: dict[str, Any]
    """Everything that determines the content of the shards, and nothing else."""
    inputs: tuple[str, ...]
    """The inputs in the order in which they were read."""
    counts: dict[str, int]
    """Documents, sentences and tokens kept, and what was dropped."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    vocab_size: int
    special_ids: dict[str, int]
    dtype: str
    """The type of a token on disk: `uint16`, or `uint32` for a vocabulary of more than 65,536."""
    splits: dict[str, tuple[ShardEntry, ...]]
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class VocabularyInfo:
    """The manifest's data on the vocabulary."""

    fingerprint: str
    vocab_size: int
    special_ids: Mapping[str, int]

    @property
    def dtype(self) -> str:
        """16 bits per token where that is enough."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"


@dataclass(frozen=True)
class Tokens:
    """Consecutive tokenized documents: tokens, sentence lengths, and document lengths in sentences."""

    tokens: Integer[np.ndarray, "T"]
    sentence_lengths: Integer[np.ndarray, "N"]
    document_lengths: Integer[np.ndarray, "D"]


@dataclass(frozen=True)
class Shard:
    """An open shard. `sentence_starts` ends with T and `document_starts` with N: an end is the next start."""

    tokens: Integer[np.ndarray, "T"]
    """Token ids, 16 or 32 bits each."""
    sentence_starts: Int[np.ndarray, "_"]
    """The first token of each sentence."""
    document_starts: Int[np.ndarray, "_"]
    """The first sentence of each document."""


@dataclass(frozen=True)
class Piece:
    """The content of `piece.json`."""

    state: dict[str, Any]
    """What its maker needs to resume the work."""
    shards: dict[str, ShardEntry]
    """By split."""
    files: tuple[FileEntry, ...]


# --- writing ---------------------------------------------------------------------------------------------------------


def piece_name(group: int, number: int) -> str:
    """The folder of a piece by its group of sources and its number there. Sorted names are in corpus order."""
    return f"shards/{group:05d}-{number:05d}"


def write_piece(
    folder: Path, name: str, splits: Mapping[str, Sequence[Tokens]], dtype: str, state: dict[str, Any]
) -> Piece:
    """Write one piece atomically, with a shard for each split that has tokens."""
    with atomic_io.new_folder(folder / name) as aside:
        shards: dict[str, ShardEntry] = {}
        files: list[FileEntry] = []
        for split, parts in splits.items():
            if sum(len(part.tokens) for part in parts) == 0:
                continue
            arrays = {
                "tokens": [part.tokens.astype(dtype, copy=False) for part in parts],
                "sentences": [_starts([part.sentence_lengths for part in parts])],
                "documents": [_starts([part.document_lengths for part in parts])],
            }
            for kind, chunks in arrays.items():
                file = f"{split}.{kind}.npy"
                size, sha256 = _write_array(aside / file, chunks)
                files.append(FileEntry(f"{name}/{file}", size, sha256))
            shards[split] = ShardEntry(
                f"{name}/{split}",
                documents=len(arrays["documents"][0]) - 1,
                sentences=len(arrays["sentences"][0]) - 1,
                tokens=sum(map(len, arrays["tokens"])),
            )
        piece = Piece(state, shards, tuple(files))
        (aside / PIECE).write_text(to_json(piece))
    return piece


def _starts(lengths: Sequence[Integer[np.ndarray, "_"]]) -> Int[np.ndarray, "_"]:
    starts: np.ndarray[Any, np.dtype[np.int64]] = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
    return starts


def _write_array(path: Path, chunks: Sequence[Integer[np.ndarray, "_"]]) -> tuple[int, str]:
    """Write arrays as one .npy file without concatenating them in memory; return its size and sha256."""
    dtype = np.lib.format.dtype_to_descr(chunks[0].dtype)
    with path.open("wb") as file:
        hashed = _Hashed(file)
        header = {"descr": dtype, "fortran_order": False, "shape": (sum(map(len, chunks)),)}
        np.lib.format.write_array_header_1_0(hashed, header)
        for chunk in chunks:
            hashed.write(chunk.tobytes())
    return hashed.size, hashed.sha256.hexdigest()


class _Hashed:
    """A file with the checksum of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.sha256 = file, 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.size += len(data)
        self.sha256.update(data)


def read_piece(folder: Path, name: str) -> Piece | None:
    """The description of a complete piece; None if it is missing or incomplete."""
    path = folder / name / PIECE
    if not path.is_file():
        return None
    try:
        piece = from_file(path, Piece)
    except UserError:
        return None
    whole = all(visible_problem(folder, entry) is None for entry in piece.files)
    return piece if whole else None


def finish(
    folder: Path,
    vocabulary: VocabularyInfo,
    settings: dict[str, Any],
    inputs: Sequence[str],
    counts: Mapping[str, int],
    pieces: Mapping[str, Piece],
) -> Manifest:
    """Write the manifest of these pieces, in corpus order, with the checksum of every file."""
    splits: dict[str, list[ShardEntry]] = {}
    files: list[FileEntry] = []
    for name, piece in pieces.items():
        for split, entry in piece.shards.items():
            splits.setdefault(split, []).append(entry)
        files.extend(piece.files)
        files.append(file_entry(folder, folder / name / PIECE))
    others = sorted(path for path in (folder / "tokenizer").rglob("*") if path.is_file())
    files.extend(file_entry(folder, path) for path in [*others, *folder.glob(PLAN)])
    manifest = Manifest(
        format=FORMAT,
        settings=settings,
        inputs=tuple(inputs),
        counts=dict(counts),
        tokenizer=vocabulary.fingerprint,
        vocab_size=vocabulary.vocab_size,
        special_ids=dict(vocabulary.special_ids),
        dtype=vocabulary.dtype,
        splits={split: tuple(splits[split]) for split in SPLITS if split in splits},
        files=tuple(files),
    )
    write_manifest(folder, manifest)
    return manifest


# --- the manifest ----------------------------------------------------------------------------------------------------


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which marks the folder as finished."""
    atomic_io.write_text(folder / MANIFEST, _text(asdict(manifest)))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished folder; refuses one that is unfinished, damaged or of a newer format."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / PLAN).is_file():
            raise UserError(
                f"{folder}: these shards are not finished: run the same `openalbert prepare` again to resume"
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
    # The text itself must be as written, so that any changed bit is detected.
    if _text(values).encode() != text:
        raise UserError(f"{path}: damaged, its checksum {checksum} does not match: prepare the text again")
    return from_dict(values, Manifest, str(path))


def file_entry(folder: Path, path: Path) -> FileEntry:
    """The manifest's entry for a file."""
    return FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, atomic_io.sha256_of(path))


def _text(values: dict[str, Any]) -> str:
    """The manifest's text; its last line is the checksum of the text without that line."""
    body = json.dumps(values, indent=2, ensure_ascii=False)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(values | {"checksum": checksum}, indent=2, ensure_ascii=False) + "\n"


def visible_problem(folder: Path, entry: FileEntry) -> str | None:
    """A problem with a file that shows without reading it: missing, or of another size."""
    path = folder / entry.name
    if not path.is_file():
        return f"{path}: missing, though the manifest lists it: {REPAIR}"
    if path.stat().st_size != entry.size:
        return f"{path}: has {path.stat().st_size} bytes but the manifest says {entry.size}: {REPAIR}"
    return None


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder with a file that is missing or of another size."""
    for entry in manifest.files:
        if problem := visible_problem(folder, entry):
            raise UserError(problem)


def problems(folder: Path, manifest: Manifest) -> Iterator[tuple[FileEntry, str | None]]:
    """Read every file in the manifest; yields each with its problem, or None."""
    for entry in manifest.files:
        problem = visible_problem(folder, entry)
        try:
            if problem is None and atomic_io.sha256_of(folder / entry.name) != entry.sha256:
                problem = f"{folder / entry.name}: its content is not what was written: {REPAIR}"
        except OSError as error:
            problem = f"{folder / entry.name}: cannot be read ({error.strerror}): {REPAIR}"
        yield entry, problem


# --- reading ---------------------------------------------------------------------------------------------------------


class MappedShards:
    """A list of shards, each memory-mapped on access."""

    def __init__(self, folder: Path, entries: tuple[ShardEntry, ...], dtype: str) -> None:
        self.folder, self.entries, self.dtype = folder, entries, dtype
        self._open = functools.lru_cache(MAX_OPEN_SHARDS)(self._open_now)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Shard:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._open(index % len(self))

    def __iter__(self) -> Iterator[Shard]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> Any:
        # A data worker opens its own memory maps.
        return (MappedShards, (self.folder, self.entries, self.dtype))

    def _open_now(self, index: int) -> Shard:
        entry = self.entries[index]
        return Shard(
            self._map(f"{entry.name}.tokens.npy", entry.tokens, self.dtype),
            self._map(f"{entry.name}.sentences.npy", entry.sentences + 1, "int64"),
            self._map(f"{entry.name}.documents.npy", entry.documents + 1, "int64"),
        )

    def _map(self, name: str, length: int, dtype: str) -> Integer[np.ndarray, "_"]:
        path = self.folder / name
        try:
            array: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be opened ({error}): {REPAIR}") from None
        if array.shape != (length,) or array.dtype != np.dtype(dtype):
            raise UserError(
                f"{path}: the manifest says {length} numbers of type {dtype} but the file holds "
                f"{array.size} of type {array.dtype}: {REPAIR}"
            )
        return array


@dataclass(frozen=True)
class ShardSet:
    """The shards of one split, in corpus order."""

    folder: Path
    manifest: Manifest
    split: str
    shards: MappedShards

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """The manifest's entries of the shards."""
        return self.manifest.splits[self.split]

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards of the split."""
        return sum(entry.tokens for entry in self.entries)

    @property
    def sha256(self) -> str:
        """Checksum of the split, computed from the manifest's checksums of its files in corpus order."""
        sums = {file.name: file.sha256 for file in self.manifest.files}
        kinds = ("tokens", "sentences", "documents")
        lines = (sums[f"{entry.name}.{kind}.npy"] + "\n" for entry in self.entries for kind in kinds)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer."""
        return self.folder / "tokenizer"

    def check_vocabulary(self, fingerprint: str, vocab_size: int) -> None:
        """Refuse a tokenizer other than the one the tokens were made with."""
        if (fingerprint, vocab_size) != (self.manifest.tokenizer, self.manifest.vocab_size):
            raise UserError(
                f"{self.folder}: these shards were made with the vocabulary {self.manifest.tokenizer[:12]} of "
                f"{self.manifest.vocab_size} pieces, not with {fingerprint[:12]} of {vocab_size}: use the vocabulary "
                f"in {self.tokenizer_folder}, or prepare the text again with the other"
            )


def heldout_split(folder: Path) -> str:
    """The split to evaluate on: shards of held-out text alone have it as `train`."""
    return "heldout" if "heldout" in read_manifest(folder).splits else "train"


def open_shards(folder: Path, split: str = "train") -> ShardSet:
    """Open the shards of one split. Sizes of files are checked; `verify` checks their content."""
    manifest = read_manifest(folder)
    if split not in manifest.splits:
        hint = suggestion(split, manifest.splits) if manifest.splits else "there are none"
        raise UserError(f"{folder}: no split '{split}' in these shards: {hint}")
    check_sizes(folder, manifest)
    return ShardSet(folder, manifest, split, MappedShards(folder, manifest.splits[split], manifest.dtype))
