"""Sequences of random tokens, with targets for any kind of head: what encoding would give for some examples."""

from typing import Any

import numpy as np

from openalbert.tasks.task import UNLABELLED, Sequences

VOCABULARY = 1000


def made_sequences(
    heads: dict[str, int],
    num_examples: int = 20,
    options: tuple[int, ...] = (1,),
    lengths: tuple[int, int] = (4, 40),
    seed: int = 0,
) -> Sequences:
    """`heads`: kinds, and how many outputs each has; `options`: sequences of the examples, in turn."""
    dice = np.random.default_rng(seed)
    counts = np.array([options[number % len(options)] for number in range(num_examples)], np.int64)
    example = np.repeat(np.arange(num_examples), counts)
    sizes = dice.integers(*lengths, len(example), endpoint=True)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ids = dice.integers(5, VOCABULARY, starts[-1]).astype(np.int32)
    ids[starts[:-1]] = 2
    second = dice.integers(1, sizes + 1)
    targets = {kind: _targets(kind, outputs, counts, sizes, dice) for kind, outputs in heads.items()}
    return Sequences(ids, starts, second, example, targets, num_examples, 0)


def _targets(kind: str, outputs: int, counts: Any, sizes: Any, dice: np.random.Generator) -> np.ndarray:
    count = len(sizes)
    if kind == "classification":
        return dice.integers(0, outputs, count)
    if kind == "regression":
        return dice.normal(size=count).astype(np.float32)
    if kind == "multi_label":
        return dice.integers(0, 2, (count, outputs)).astype(np.float32)
    if kind == "multiple_choice":
        right = np.zeros(count, np.int64)
        right[np.cumsum(counts) - counts + dice.integers(0, counts)] = 1
        return right
    if kind == "tagging":
        labels = dice.integers(0, outputs, sizes.sum())
        return np.where(dice.random(sizes.sum()) < 0.4, UNLABELLED, labels)
    if kind == "span":
        first = dice.integers(0, sizes)
        return np.stack([first, dice.integers(first, sizes)], axis=1)
    return dice.integers(0, 2, count).astype(np.float32)
