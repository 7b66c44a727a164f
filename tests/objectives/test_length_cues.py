"""Lengths must not give the label of a pair away: a classifier that sees nothing else is at chance."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from openalbert.objectives.sentence_order import SentenceOrder, pair
from openalbert.text.prepare import Prepare, prepare
from openalbert.text.shards import open_shards

Marks = tuple[np.ndarray, np.ndarray]


def made_documents(documents: int, fewest: int, most: int) -> Marks:
    """Starts of sentences and documents; each document has sentences of its own typical length."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(fewest, most + 1, documents)
    typical = np.repeat(3 + 0.3 * rng.normal(size=documents), sizes)
    lengths = np.clip(rng.lognormal(typical, 0.6), 2, 200).astype(np.int64)
    return np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([[0], np.cumsum(sizes)])


LONG_DOCUMENTS, SHORT_DOCUMENTS = made_documents(3000, 20, 80), made_documents(25_000, 1, 9)


def length_features(rows: np.ndarray, starts: np.ndarray, limit: int) -> np.ndarray:
    """Tokens and sentences of the first and of the second segment and of both, and whether the example is full."""
    tokens, sentences = [], []
    for segment in ("first", "second"):
        begin = rows[f"{segment}_begin"]
        end = begin + rows[f"{segment}_length"]
        tokens.append(end - begin)
        sentences.append(np.searchsorted(starts, end) - np.searchsorted(starts, begin, side="right") + 1)
    both = [tokens[0] + tokens[1], sentences[0] + sentences[1], tokens[0] + tokens[1] == limit]
    return np.stack([*both, *tokens, *sentences], axis=1)


def excess(marks: Marks, how: SentenceOrder, max_length: int, features: int = 7) -> float:
    """How far the accuracy on pairs that the classifier did not learn from is above chance, in standard errors."""
    rows = pair(*marks, how, max_length, seed=1, epoch=0).rows
    seen, labels = length_features(rows, marks[0], max_length - 3)[:, :features], rows["swapped"]
    # Of one epoch, so no text is on both sides.
    border = 2 * len(rows) // 3
    classifier = HistGradientBoostingClassifier(random_state=0, max_iter=50).fit(seen[:border], labels[:border])
    accuracy = classifier.score(seen[border:], labels[border:])
    return float((accuracy - 0.5) / (0.5 / np.sqrt(len(rows) - border)))


@pytest.mark.parametrize("marks", [LONG_DOCUMENTS, SHORT_DOCUMENTS], ids=["long documents", "short documents"])
@pytest.mark.parametrize("max_length", [128, 512])
@pytest.mark.parametrize(("objective", "chunks"), [("nsp", "google"), ("nsp", "whole"), ("sop", "whole")])
def test_no_length_tells_the_label(
    marks: Marks, max_length: int, objective: Literal["sop", "nsp"], chunks: Literal["google", "whole"]
) -> None:
    assert excess(marks, SentenceOrder(objective, chunks=chunks), max_length) < 4


@pytest.mark.parametrize("max_length", [128, 512])
def test_of_googles_chunks_the_length_of_the_whole_example_does_not_tell_the_order(max_length: int) -> None:
    assert excess(LONG_DOCUMENTS, SentenceOrder("sop", chunks="google"), max_length, features=3) < 4
    # That the lengths of the segments do is the property of Google's chunks that its setting documents.
    if max_length == 128:
        assert excess(LONG_DOCUMENTS, SentenceOrder("sop", chunks="google"), max_length) > 8


@pytest.mark.parametrize("chunks", ["google", "whole"])
def test_no_length_tells_the_label_of_real_text(
    real_data: Path, tmp_path: Path, chunks: Literal["google", "whole"]
) -> None:
    texts = tuple(str(real_data / "corpus" / f"heldout-{name}.txt") for name in ("wikipedia", "books"))
    prepare(Prepare(texts, tokenizer=real_data / "vocab" / "spiece.model", out=tmp_path / "shards", workers=1))
    shard = open_shards(tmp_path / "shards").shards[0]
    marks = np.asarray(shard.sentence_starts), np.asarray(shard.document_starts)
    assert excess(marks, SentenceOrder("nsp", chunks=chunks), 128) < 4
