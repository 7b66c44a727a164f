"""Made-up documents for the pairing tests: only the lengths of their sentences count."""

import numpy as np
from hypothesis import strategies as st

from openalbert.objectives.sentence_order import SHORTEST, Pairs, SentenceOrder, pair

Documents = list[list[int]]  # the length of each sentence

documents_of = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=12)
lengths_of = st.integers(SHORTEST, 100)
SOP = SentenceOrder()


def marks(documents: Documents) -> tuple[np.ndarray, np.ndarray]:
    sentences = [length for document in documents for length in document]
    return (
        np.concatenate([[0], np.cumsum(sentences)]).astype(np.int64),
        np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64),
    )


def paired(
    documents: Documents, how: SentenceOrder = SOP, max_length: int = 64, seed: int = 0, epoch: int = 0
) -> Pairs:
    return pair(*marks(documents), how, max_length, seed, epoch)


def english(num_documents: int, sentences: int = 40) -> Documents:
    rng = np.random.default_rng(0)
    return [np.clip(rng.lognormal(3, 0.6, sentences), 2, 200).astype(int).tolist() for _ in range(num_documents)]


def document_of(documents: Documents, token: np.ndarray) -> np.ndarray:
    starts, firsts = marks(documents)
    return np.searchsorted(starts[firsts], token, side="right") - 1
