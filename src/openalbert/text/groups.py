"""A group of sources becomes pieces of shards: the work that every engine hands out, and that any process may take up.

The sources are cut into groups by their sizes, the documents of a group into blocks, and the blocks fill one piece
after the other. All three cuts depend on the texts and the settings alone, so that it does not matter how many
processes do the work, which one does what, or how often they are stopped and started again.
"""

import dataclasses
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from openalbert import atomic_io
from openalbert.text import corpus, shards
from openalbert.text.corpus import CorpusSource, Counts, Reading
from openalbert.text.sentences import split_sentences
from openalbert.text.shards import Piece, Tokens
from openalbert.text.tokenizer import Tokenizer

GROUP_BYTES = 64_000_000  # small files are put together up to this size on disk
BLOCK_CHARACTERS = 1_000_000  # one worker's portion: a tenth of a second
MARK_BYTES = 16
MARKS_AT_ONCE = 1 << 18
DUPLICATES = "duplicates"  # the folder of what is known about them while the work goes on


@dataclass(frozen=True)
class Job:
    """All that a process needs to know to do its part."""

    folder: Path
    reading: Reading
    heldout: float
    drop_duplicates: bool
    shard_tokens: int
    dtype: str
    block_characters: int


@dataclass(frozen=True)
class Group:
    """Sources that are read one behind the other."""

    number: int
    sources: tuple[CorpusSource, ...]


@dataclass(frozen=True)
class Block:
    """Some documents in a row."""

    texts: list[str]
    documents_done: int
    """Documents of the group up to here, dropped ones too: where to go on."""
    counts: Counts
    """Of the group up to here."""
    last: bool
    """Nothing of the group comes after this block, which may be empty."""


@dataclass(frozen=True)
class EncodedBlock:
    """The tokens of a block by split, and what was seen on the way."""

    splits: dict[str, Tokens]
    counts: dict[str, int]


def make_groups(sources: Sequence[CorpusSource]) -> list[Group]:
    """Neighbouring small sources in one group; a big one, or one of unknown size, in a group of its own."""
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


def documents(group: Group, reading: Reading, counts: Counts) -> Iterator[str]:
    """The clean documents of a group in order."""
    for source in group.sources:
        for document in corpus.documents(source, reading, counts):
            yield document.text


def blocks(group: Group, job: Job, start: int) -> Iterator[Block]:
    """The documents from number `start` on, without those to be dropped, in blocks; the last one says that it is."""
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
    """The vocabulary of a folder of shards; a process loads it once."""
    return Tokenizer.load(folder / "tokenizer")


def encode(texts: list[str], job: Job) -> EncodedBlock:
    """Documents to tokens, in their split."""
    tokenizer = tokenizer_of(job.folder)
    sentences: list[str] = []
    document_lengths = np.empty(len(texts), np.int64)
    for number, text in enumerate(texts):
        found = split_sentences(text)
        sentences += found
        document_lengths[number] = len(found)
    ids, sentence_lengths = tokenizer.encode_joined(sentences)
    # A sentence of nothing but signs that the vocabulary leaves out has no tokens, and a document of such has none.
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


def is_held_out(text: str, share: float) -> bool:
    """Whether a document belongs to the held-out split: known from its clean text alone.

    What a small share holds out, a larger one holds out too.
    """
    return int.from_bytes(corpus.fingerprint(text)[:8], "big") < share * 2**64


def _select(tokens: Tokens, chosen: Bool[np.ndarray, "documents"]) -> Tokens:
    of_sentences = np.repeat(chosen, tokens.document_lengths)
    of_tokens = np.repeat(of_sentences, tokens.sentence_lengths)
    return Tokens(tokens.tokens[of_tokens], tokens.sentence_lengths[of_sentences], tokens.document_lengths[chosen])


EncodeAll = Callable[[Iterator[Block]], Iterator[tuple[Block, EncodedBlock]]]


def make_pieces(job: Job, group: Group, encode_all: EncodeAll | None = None) -> Iterator[tuple[Block, EncodedBlock]]:
    """Write the pieces of a group that are not there yet, telling of each block when it is done.

    `encode_all` puts the blocks through `encode` and keeps their order; this process does it itself if there is none.
    """
    there = pieces_of(job.folder, group)
    if is_done(there):
        return
    number = len(there)
    start = list(there.values())[-1].run_info["documents_done"] if there else 0
    encode_all = encode_all or (lambda every: ((block, encode(block.texts, job)) for block in every))
    held: list[EncodedBlock] = []
    size = 0
    last_facts: dict[str, Any] = {}
    for block, encoded in encode_all(blocks(group, job, start)):
        if size >= job.shard_tokens and block.texts:
            _write(job, group, number, held, last_facts)
            number, held, size = number + 1, [], 0
        # Only the tokens are held till the piece is full: the texts would take several times as much memory.
        held.append(encoded)
        size += sum(len(tokens.tokens) for tokens in encoded.splits.values())
        read = dataclasses.asdict(block.counts)
        last_facts = {"documents_done": block.documents_done, "last": block.last, "read": read}
        yield block, encoded
    _write(job, group, number, held, last_facts)


def _write(job: Job, group: Group, number: int, held: list[EncodedBlock], run_info: dict[str, Any]) -> None:
    counts: dict[str, int] = {}
    for encoded in held:
        for name, count in encoded.counts.items():
            counts[name] = counts.get(name, 0) + count
    splits = {split: [encoded.splits[split] for encoded in held] for split in held[0].splits}
    name = shards.piece_name(group.number, number)
    shards.write_piece(job.folder, name, splits, job.dtype, {**run_info, "encoded": counts})


def pieces_of(folder: Path, group: Group) -> dict[str, Piece]:
    """The pieces of a group that are whole, from the first on, by their names."""
    found: dict[str, Piece] = {}
    while (piece := shards.read_piece(folder, name := shards.piece_name(group.number, len(found)))) is not None:
        found[name] = piece
    return found


def is_done(pieces: dict[str, Piece]) -> bool:
    """Whether these pieces of a group are all there are."""
    return bool(pieces) and bool(list(pieces.values())[-1].run_info["last"])


# --- duplicates ------------------------------------------------------------------------------------------------------
# Of documents with the same clean text the first in the order of the sources stays. Any process can mark the documents
# of a group; then all marks are compared, once, in order; then any process can drop those that were found.


def mark_documents(job: Job, group: Group, told: Callable[[int], None] = lambda _: None) -> None:
    """Write down the fingerprint of each document of a group, telling how many bytes were read for it."""
    path = _marks_file(job.folder, group)
    if path.exists():
        return
    with atomic_io.new_folder(path.parent) as aside, (aside / path.name).open("wb") as file:
        counts = Counts()
        before = 0
        for text in documents(group, job.reading, counts):
            file.write(corpus.fingerprint(text))
            told(counts.bytes_read - before)
            before = counts.bytes_read
        told(counts.bytes_read - before)


def find_duplicates(folder: Path, groups: Sequence[Group], at_once: int = 2_000_000) -> None:
    """Compare the marks of all groups and write down the numbers of the documents to drop in each.

    However many there are, no more than about `at_once` are compared at a time, in classes by a byte of theirs.
    """
    total = sum(_marks_file(folder, group).stat().st_size for group in groups) // MARK_BYTES
    rounds = min(-(-total // at_once), 256)
    found = {group.number: array("q") for group in groups}
    for turn in range(rounds):
        seen = corpus.DuplicateFilter()
        for group in groups:
            for start, marks in _marks(_marks_file(folder, group)):
                # The last byte, because the filter goes by the first ones.
                numbers = np.flatnonzero(marks[:, -1].astype(int) % rounds == turn).tolist()
                found[group.number].extend(start + at for at in numbers if not seen.add(marks[at].tobytes()))
    for group in groups:
        in_order = np.sort(np.array(found[group.number], np.int64))
        atomic_io.write_bytes(duplicates_file(folder, group.number), in_order.tobytes())


def _marks_file(folder: Path, group: Group) -> Path:
    return folder / DUPLICATES / f"{group.number:05d}" / "marks"


def _marks(path: Path) -> Iterator[tuple[int, UInt8[np.ndarray, "documents bytes"]]]:
    """Marks, many at a time, and the number of the first of them."""
    start = 0
    with path.open("rb") as file:
        while data := file.read(MARKS_AT_ONCE * MARK_BYTES):
            yield start, np.frombuffer(data, np.uint8).reshape(-1, MARK_BYTES)
            start += MARKS_AT_ONCE


def read_duplicates(folder: Path, group: int) -> Int64[np.ndarray, "documents"]:
    """The numbers of the documents of a group to drop, in order."""
    return np.fromfile(duplicates_file(folder, group), np.int64)


def duplicates_file(folder: Path, group: int) -> Path:
    """Where they are written down."""
    return folder / DUPLICATES / f"{group:05d}.drop"
