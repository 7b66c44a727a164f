"""Semantic search: the texts nearest to a query by the cosine of their embeddings, in Python and as the verb `search`.

Up to a few hundred thousand texts every one is compared with the query. Beyond that an HNSW index (usearch) proposes
candidates, and these are compared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from openalbert.errors import UserError
from openalbert.model.pooling import Pooling
from openalbert.serve.predictor import Predictor

LARGE = 200_000  # texts from which on an index is worth its time
BLOCK = 65_536  # embeddings that are compared or indexed at a time
CANDIDATES = 10  # that the index proposes for each result
TOP = 5


@dataclass(frozen=True)
class Hit:
    """A text that was found."""

    row: int
    """Its number among the texts, from 0."""
    score: float
    """The cosine with the query."""
    text: str


class SearchIndex:
    """Texts, embedded once, that are searched by meaning.

    >>> import openalbert
    >>> model = openalbert.load("albert-base-wikibooks")
    >>> index = openalbert.SearchIndex(model, ["A cat sat on the mat.", "It rained all day.", "Prices rose."])
    >>> index.search("rain", top=1)[0].text
    'It rained all day.'
    """

    def __init__(
        self, model: Predictor, texts: Iterable[str], pooling: Pooling | None = None, layer: int | None = None
    ) -> None:
        self.model, self.texts, self.pooling, self.layer = model, list(texts), pooling, layer
        if not self.texts:
            raise UserError("there are no texts to search: give at least one")
        self.embeddings: Float32[np.ndarray, "texts hidden"] = model.embed(self.texts, pooling, layer)

    def search(self, query: str | Sequence[str], top: int = TOP) -> Any:
        """The texts nearest to a query, the nearest first; a list of them for several queries."""
        queries = [query] if isinstance(query, str) else list(query)
        rows, scores = nearest(self.model.embed(queries, self.pooling, self.layer), self.embeddings, top)
        found = [
            [Hit(row, score, self.texts[row]) for row, score in zip(of_rows, of_scores, strict=True)]
            for of_rows, of_scores in zip(rows, scores, strict=True)
        ]
        return found[0] if isinstance(query, str) else found


def nearest(
    queries: Float32[np.ndarray, "queries hidden"], embeddings: Float32[np.ndarray, "texts hidden"], top: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The rows with the highest dot products with each query, and these; equal ones in the order of rows.

    Rows of zeros, which stand for empty texts, are never found. `embeddings` may be a memory-mapped file.
    """
    if top < 1:
        raise UserError(f"top is {top}: give 1 or more")
    rows: list[np.ndarray] = [np.empty(0, np.int64)] * len(queries)
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(queries)
    for start in range(0, len(embeddings), BLOCK):
        block = np.asarray(embeddings[start : start + BLOCK])
        there = np.flatnonzero(block.any(1))
        for number, found in enumerate(queries @ block[there].T):
            best = _best(found, top)
            both = np.concatenate((scores[number], found[best]))
            kept = _best(both, top)
            rows[number] = np.concatenate((rows[number], start + there[best]))[kept]
            scores[number] = both[kept]
    return [one.tolist() for one in rows], [one.tolist() for one in scores]


def _best(scores: Float32[np.ndarray, "n"], top: int) -> Int64[np.ndarray, "_"]:
    """The places of the highest scores, in descending order; of equal ones the first."""
    places = np.arange(len(scores))
    if len(scores) > top:
        places = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
    return places[np.argsort(-scores[places], kind="stable")][:top]


def make_index(embeddings: Float32[np.ndarray, "texts hidden"], path: Path) -> bool:
    """Write an HNSW index of the embeddings; False where usearch is not installed."""
    try:
        from usearch.index import Index
    except ImportError:
        return False
    index = Index(ndim=embeddings.shape[1], metric="ip", dtype="f16")
    for start in range(0, len(embeddings), BLOCK):
        block = np.asarray(embeddings[start : start + BLOCK])
        there = np.flatnonzero(block.any(1))
        index.add(start + there, block[there])
    index.save(str(path))
    return True


def nearest_by_index(
    queries: Float32[np.ndarray, "queries hidden"],
    embeddings: Float32[np.ndarray, "texts hidden"],
    path: Path,
    top: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """As `nearest`, among the candidates that an index proposes."""
    from usearch.index import Index

    index = Index.restore(str(path), view=True)
    rows, scores = [], []
    for query in queries:
        candidates = np.sort(index.search(query, CANDIDATES * top).keys.astype(np.int64))
        [found], [of_query] = nearest(query[None], embeddings[candidates], top)
        rows.append([int(candidates[one]) for one in found])
        scores.append(of_query)
    return rows, scores
