"""The unit of work of `prepare`: a group of sources becomes pieces of shards, in any process.

Sources are divided into groups by size, the documents of a group into blocks, and the blocks fill one piece after the
other. All three divisions depend only on the texts and the settings, so that the number of processes, the assignment of
work and interruptions do not affect the result.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from openalbert import atomic_io
from openalbert.text import corpus, shards
from openalbert.text.corpus import CorpusReading, CorpusSource, Counts
from openalbert.text.sentences import split_sentences
from openalbert.text.shards import Piece, Tokens
from openalbert.text.tokenizer import Tokenizer

GROUP_BYTES = 64_000_000  # small files are grouped up to this size on disk
BLOCK_CHARACTERS = 1_000_000  # per block: a tenth of a second of work
MARK_BYTES = 16
DUPLICATES = "duplicates"  # temporary folder of fingerprints and duplicates


@dataclass(frozen=True)
class Job:
    """The settings that a worker process needs."""

    folder: Path
    reading: CorpusReading
    heldout: float
    drop_duplicates: bool
    shard_tokens: int
    dtype: str
    block_characters: int


@dataclass(frozen=True)
class Group:
    """Sources that are read one after the other."""

    number: int
    sources: tuple[CorpusSource, ...]


@dataclass(frozen=True)
class Block:
    """Consecutive documents."""

    texts: list[str]
    documents_done: int
    """Documents of the group up to here, including dropped ones: where to resume."""
    counts: Counts
    """Of the group up to here."""
    last: bool
    """This is the last block of the group; it may be empty."""


@dataclass(frozen=True)
class EncodedBlock:
    """The tokens of a block by split, and counts."""

    splits: dict[str, Tokens]
    counts: dict[str, int]


def make_groups(sources: Sequence[CorpusSource]) -> list[Group]:
    """Group consecutive small sources; a big one, or one of unknown size, is a group of its own."""
    groups: list[list[CorpusSource]] = []
    room = 0
    for source in sources:
        size = GROUP_BYTES if source.size_bytes is None else source.size_bytes
        if not groups or size > room:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(source)
        room -= size
    return [Group(number, tuple(group)) for number, group in enumerate(groups)]


def documents(group: Group, reading: CorpusReading, counts: Counts) -> Iterator[str]:
    """The clean documents of a group in order."""
    for source in group.sources:
        yield from corpus.documents(source, reading, counts)


def blocks(group: Group, job: Job, start: int) -> Iterator[Block]:
    """The documents from number `start` on in blocks, without duplicates."""
    counts = Counts()
    dropped = iter(read_duplicates(job.folder, group.number) if job.drop_duplicates else ())
    next_dropped = next(dropped, None)
    texts: list[str] = []
    size = done = 0
    for number, text in enumerate(documents(group, job.reading, counts)):
        done = number + 1
        if number == next_dropped:
            counts.dropped_duplicates += 1
            next_dropped = next(dropped, None)
        elif number >= start:
            texts.append(text)
            size += len(text)
            if size >= job.block_characters:
                yield Block(texts, done, dataclasses.replace(counts), last=False)
                texts, size = [], 0
    yield Block(texts, done, counts, last=True)


@lru_cache(1)
def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a folder of shards; cached per process."""
    return Tokenizer.load(folder / "tokenizer")


def encode(texts: list[str], job: Job) -> EncodedBlock:
    """Tokenize documents and divide them into splits."""
    tokenizer = tokenizer_of(job.folder)
    sentences: list[str] = []
    document_lengths = np.empty(len(texts), np.int64)
    for number, text in enumerate(texts):
        found = split_sentences(text)
        sentences += found
        document_lengths[number] = len(found)
    ids, sentence_lengths = tokenizer.encode_joined(sentences)
    # A sentence of characters that the tokenizer removes has no tokens, and neither has a document of such sentences.
    document_of = np.repeat(np.arange(len(texts)), document_lengths)[sentence_lengths > 0]
    document_lengths = np.bincount(document_of, minlength=len(texts))
    kept = document_lengths > 0
    counts = {
        "empty_sentences_dropped": int(np.count_nonzero(sentence_lengths == 0)),
        "empty_documents_dropped": int(np.count_nonzero(~kept)),
        "single_sentence_documents": int(np.count_nonzero(document_lengths == 1)),
        "unknown_tokens": int(np.count_nonzero(ids == tokenizer.unk_id)),
    }
    every = Tokens(ids.astype(job.dtype), sentence_lengths[sentence_lengths > 0], document_lengths[kept])
    if not job.heldout:
        return EncodedBlock({"train": every}, counts)
    held = np.array([is_held_out(text, job.heldout) for text, keep in zip(texts, kept, strict=True) if keep], bool)
    return EncodedBlock({"train": _select(every, ~held), "heldout": _select(every, held)}, counts)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out split, by its clean text alone.

    What a small fraction holds out, a larger one holds out too.
    """
    return int.from_bytes(corpus.fingerprint(text)[:8], "big") < fraction * 2**64


def _select(tokens: Tokens, chosen: Bool[np.ndarray, "documents"]) -> Tokens:
    of_sentences = np.repeat(chosen, tokens.document_lengths)
    of_tokens = np.repeat(of_sentences, tokens.sentence_lengths)
    return Tokens(tokens.tokens[of_tokens], tokens.sentence_lengths[of_sentences], tokens.document_lengths[chosen])


EncodeAll = Callable[[Iterator[Block]], Iterator[tuple[Block, EncodedBlock]]]


def make_pieces(job: Job, group: Group, encode_all: EncodeAll | None = None) -> Iterator[tuple[Block, EncodedBlock]]:
    """Write the missing pieces of a group; yields each block when it is done.

    `encode_all` applies `encode` to the blocks in order; by default in this process.
    """
    there = pieces_of(job.folder, group)
    if is_done(there):
        return
    number = len(there)
    start = list(there.values())[-1].state["documents_done"] if there else 0
    encode_all = encode_all or (lambda every: ((block, encode(block.texts, job)) for block in every))
    held: list[EncodedBlock] = []
    size = 0
    state: dict[str, Any] = {}
    for block, encoded in encode_all(blocks(group, job, start)):
        if size >= job.shard_tokens and block.texts:
            _write(job, group, number, held, state)
            number, held, size = number + 1, [], 0
        # Only the tokens are kept until the piece is full: the texts would take several times as much memory.
        held.append(encoded)
        size += sum(len(tokens.tokens) for tokens in encoded.splits.values())
        read = dataclasses.asdict(block.counts)
        state = {"documents_done": block.documents_done, "last": block.last, "read": read}
        yield block, encoded
    _write(job, group, number, held, state)


def _write(job: Job, group: Group, number: int, held: list[EncodedBlock], state: dict[str, Any]) -> None:
    counts: dict[str, int] = {}
    for encoded in held:
        for name, count in encoded.counts.items():
            counts[name] = counts.get(name, 0) + count
    splits = {split: [encoded.splits[split] for encoded in held] for split in held[0].splits}
    name = shards.piece_name(group.number, number)
    shards.write_piece(job.folder, name, splits, job.dtype, {**state, "encoded": counts})


def pieces_of(folder: Path, group: Group) -> dict[str, Piece]:
    """The complete pieces of a group, from the first on, by name."""
    found: dict[str, Piece] = {}
    while (piece := shards.read_piece(folder, name := shards.piece_name(group.number, len(found)))) is not None:
        found[name] = piece
    return found


def is_done(pieces: dict[str, Piece]) -> bool:
    """Whether these are all pieces of a group."""
    return bool(pieces) and bool(list(pieces.values())[-1].state["last"])


# --- duplicates ------------------------------------------------------------------------------------------------------
# Of documents with the same clean text, the first in the order of the sources is kept. Any process can fingerprint the
# documents of a group; then all fingerprints are compared once, in order; then any process can drop the duplicates.


def mark_documents(job: Job, group: Group, report: Callable[[int], None] = lambda _: None) -> None:
    """Store the fingerprint of each document of a group; `report` gets the bytes read."""
    path = _marks_file(job.folder, group)
    if path.exists():
        return
    with atomic_io.new_folder(path.parent) as aside, (aside / path.name).open("wb") as file:
        counts = Counts()
        before = 0
        for text in documents(group, job.reading, counts):
            file.write(corpus.fingerprint(text))
            report(counts.bytes_read - before)
            before = counts.bytes_read
        report(counts.bytes_read - before)


def find_duplicates(folder: Path, groups: Sequence[Group], at_once: int = 2_000_000) -> None:
    """Compare the fingerprints of all groups and store the numbers of the documents to drop in each.

    To bound the memory, about `at_once` are compared at a time, selected by one of their bytes.
    """
    marks = [_read_marks(folder, group) for group in groups]
    rounds = min(-(-sum(map(len, marks)) // at_once), 256)
    dropped: list[list[Int64[np.ndarray, _]]] = [[] for _ in groups]
    for turn in range(rounds):
        numbers = [np.flatnonzero(of_group[:, -1].astype(int) % rounds == turn) for of_group in marks]
        chosen = np.concatenate([of_group[here] for of_group, here in zip(marks, numbers, strict=True)])
        words = chosen.view(np.uint64)
        order = np.lexsort(words.T)  # stable: of equal fingerprints the first stays first
        is_repeated = np.zeros(len(order), bool)
        is_repeated[order[1:]] = (words[order[1:]] == words[order[:-1]]).all(1)
        borders = np.cumsum([len(here) for here in numbers])[:-1]
        for found, here, repeated in zip(dropped, numbers, np.split(is_repeated, borders), strict=True):
            found.append(here[repeated])
    for group, found in zip(groups, dropped, strict=True):
        in_order = np.sort(np.concatenate([np.zeros(0, np.int64), *found]))
        atomic_io.write_bytes(duplicates_file(folder, group.number), in_order.tobytes())


def _read_marks(folder: Path, group: Group) -> UInt8[np.ndarray, "documents bytes"]:
    """Mapped, not read: there are 16 bytes a document."""
    path = _marks_file(folder, group)
    if not path.stat().st_size:
        return np.zeros((0, MARK_BYTES), np.uint8)
    return np.memmap(path, np.uint8, "r").reshape(-1, MARK_BYTES)


def _marks_file(folder: Path, group: Group) -> Path:
    return folder / DUPLICATES / f"{group.number:05d}" / "marks"


def read_duplicates(folder: Path, group: int) -> Int64[np.ndarray, "documents"]:
    """The numbers of the documents to drop in a group, in order."""
    return np.fromfile(duplicates_file(folder, group), np.int64)


def duplicates_file(folder: Path, group: int) -> Path:
    """The file with these numbers."""
    return folder / DUPLICATES / f"{group:05d}.drop"
