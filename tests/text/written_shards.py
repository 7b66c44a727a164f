"""Shards of tokenized documents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from openalbert.text.shards import Manifest, Piece, Tokens, VocabularyInfo, finish, piece_name, write_piece


def write_shards(
    folder: Path,
    documents: Mapping[str, Iterable[Sequence[Sequence[int]]]],
    vocabulary: VocabularyInfo,
    shard_tokens: int = 1 << 25,
) -> Manifest:
    """Write tokenized documents: for each split, documents of sentences of token ids."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, Piece] = {}
    for group, (split, tokenized) in enumerate(documents.items()):
        for number, part in enumerate(_cut(tokenized, shard_tokens, vocabulary.dtype)):
            name = piece_name(group, number)
            pieces[name] = write_piece(folder, name, {split: [part]}, vocabulary.dtype, {})
    return finish(folder, vocabulary, {"shard_tokens": shard_tokens}, (), {}, pieces)


def _cut(documents: Iterable[Sequence[Sequence[int]]], shard_tokens: int, dtype: str) -> Iterator[Tokens]:
    held: list[Sequence[Sequence[int]]] = []
    size = 0
    for document in documents:
        held.append(document)
        size += sum(map(len, document))
        if size >= shard_tokens:
            yield _tokens(held, dtype)
            held, size = [], 0
    if held:
        yield _tokens(held, dtype)


def _tokens(documents: list[Sequence[Sequence[int]]], dtype: str) -> Tokens:
    sentences = [sentence for document in documents for sentence in document]
    return Tokens(
        np.array([token for sentence in sentences for token in sentence], dtype),
        np.array([len(sentence) for sentence in sentences], np.int64),
        np.array([len(document) for document in documents], np.int64),
    )
