"""Examples to score on, from the training examples: a held-out fraction, or the folds of cross-validation.

Both are stratified, keep examples of the same text or passage together, and depend on the seed and the texts alone.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from jaxtyping import Int64

from openalbert.errors import UserError
from openalbert.formatting import are, counted
from openalbert.tasks.task import Example, QuestionExample, Reading, SimilarityExample, TaggingExample, TextExample

MAX_SAMPLE = 500  # training examples that a run scores on where it learns from all
MIN_ARTICLES = 20  # with fewer, whole articles are too coarse to be held out, and passages are taken


def hold_out(
    reading: Reading,
    fraction: float,
    seed: int,
    otherwise: str = "give a file to score on with --dev",
    articles_stay_whole: bool = True,
) -> tuple[Reading, Reading]:
    """Split a reading in two: the examples to train on, and about a fraction of them that is held out.

    The choice depends on the seed and the texts alone, and is stratified by class. Examples of the same text or passage
    stay together, and with `articles_stay_whole` those of the same article where there are enough articles.
    `otherwise` is the advice in the error for a reading that cannot be split.
    """
    groups = _groups(reading.examples, MIN_ARTICLES if articles_stay_whole else None)
    sizes = Counter(groups)
    if len(sizes) < 2:
        raise UserError(f"{reading.origin}: {counted(len(groups), 'example')} of one text cannot be split: {otherwise}")
    # Values and label sets are too many to stratify by.
    strata = _by_stratum(groups, [_class_of(example) for example in reading.examples])
    held_out: set[str] = set()
    for members in strata.values():
        wanted = fraction * sum(sizes[group] for group in members)
        for group in sorted(members, key=lambda one: _draw(seed, one))[:-1]:
            if 2 * wanted >= sizes[group]:
                held_out.add(group)
                wanted -= sizes[group]
    if not held_out:
        largest = max(strata.values(), key=len)
        held_out = {min(largest if len(largest) > 1 else sizes, key=lambda one: _draw(seed, one))}
    is_held_out = [group in held_out for group in groups]
    number = sum(is_held_out)
    remark = f"{number:,} of {counted(len(groups), 'example')} {are(number)} held out to score on: no file was given"
    return _split(reading, is_held_out, remark)


def hold_out_fold(reading: Reading, fold: tuple[int, int], seed: int) -> tuple[Reading, Reading]:
    """The examples of all folds but one, and those of that one.

    Without one (fold 0) all are learned from, and some of those are scored on, which shows a collapse and nothing else.
    """
    number, of = fold
    is_held_out = (fold_numbers(reading, of, seed) == number).tolist()  # too many folds are an error for fold 0 too
    if number:
        remark = f"fold {number} of {of}: {sum(is_held_out):,} of {counted(len(is_held_out), 'example')} to score on"
        return _split(reading, is_held_out, remark)
    remark = f"all {counted(len(reading.examples), 'example')} are learned from"
    train, _ = _split(reading, is_held_out, remark)
    step = max(1, -(-len(reading.examples) // MAX_SAMPLE))
    return train, Reading(reading.examples[::step], {}, (remark,), reading.file)


def _split(reading: Reading, is_held_out: Sequence[bool], remark: str) -> tuple[Reading, Reading]:
    train, held_out = (
        tuple(example for example, held in zip(reading.examples, is_held_out, strict=True) if held == wanted)
        for wanted in (False, True)
    )
    rest = replace(reading, examples=train, remarks=(*reading.remarks, remark))
    return rest, Reading(held_out, {}, (remark,), reading.file)


def fold_numbers(reading: Reading, num_folds: int, seed: int) -> Int64[np.ndarray, "examples"]:
    """The fold of each example, from 1: stratified by class or by the rarest label.

    Examples of the same text, passage or article are in one fold, as where some are held out.
    """
    groups = _groups(reading.examples, max(MIN_ARTICLES, num_folds))
    labels = [example.label if isinstance(example, TextExample) else None for example in reading.examples]
    strata: Sequence[Hashable] = [_class_of(example) for example in reading.examples]
    if all(isinstance(label, tuple) for label in labels):
        strata = rarest(cast("list[tuple[int, ...]]", labels))
    return assign_folds(groups, strata, num_folds, seed, reading.origin)


def assign_folds(
    groups: Sequence[str], strata: Sequence[Hashable], num_folds: int, seed: int, origin: str
) -> Int64[np.ndarray, "examples"]:
    """The number of each example's fold, from 1, given its group and its stratum.

    A group is in one fold. Each fold has an equal number of the examples of a stratum, and in all, as far as groups
    allow; without groups the numbers differ by 1 at most. The choice depends on the seed and the groups alone. `origin`
    begins the error for more folds than groups.
    """
    sizes = Counter(groups)
    if num_folds > len(sizes):
        texts = counted(len(sizes), "different text")
        raise UserError(f"{origin}: {texts} cannot make {num_folds} folds: give --folds {max(2, len(sizes))} or fewer")
    fold_of: dict[str, int] = {}
    in_all = [0] * num_folds
    # Rare strata first: the others can still make up for them.
    for members in sorted(
        _by_stratum(groups, strata).values(), key=lambda some: (sum(sizes[one] for one in some), _draw(seed, min(some)))
    ):
        here = [0] * num_folds
        for group in sorted(members, key=lambda one: (-sizes[one], _draw(seed, one))):
            fold = min(range(num_folds), key=lambda one: (here[one], in_all[one]))
            here[fold] += sizes[group]
            in_all[fold] += sizes[group]
            fold_of[group] = fold + 1
    return np.array([fold_of[group] for group in groups], np.int64)


def rarest(labels: Sequence[tuple[int, ...]]) -> list[int]:
    """The stratum of each set of labels: its rarest label, -1 for none. So every label is spread over the folds."""
    frequency = Counter(number for one in labels for number in one)
    return [min(one, key=lambda number: (frequency[number], number), default=-1) for one in labels]


def _draw(seed: int, group: str) -> bytes:
    """A random key of a group."""
    return hashlib.blake2b(f"{seed}\0{group}".encode()).digest()


def _by_stratum(groups: Sequence[str], strata: Sequence[Hashable]) -> dict[Hashable, list[str]]:
    """The groups of each stratum; that of a group is the stratum of its first example."""
    first = dict(zip(reversed(groups), reversed(strata), strict=True))
    found: dict[Hashable, list[str]] = {}
    for group in dict.fromkeys(groups):
        found.setdefault(first[group], []).append(group)
    return found


def _class_of(example: Example) -> int | None:
    return example.label if isinstance(example, TextExample) and isinstance(example.label, int) else None


def _groups(examples: Sequence[Example], least_articles: int | None) -> list[str]:
    """The group of each example: its text or passage, or its article where there are so many articles."""
    articles = {example.title for example in examples if isinstance(example, QuestionExample)}
    by_article = least_articles is not None and len(articles) >= least_articles
    return [group_key(example, by_article) for example in examples]


def group_key(example: Example, by_article: bool) -> str:
    """The text that examples share which must not be split: the passage or article of a question, or the text."""
    if isinstance(example, QuestionExample):
        return example.title if by_article else example.passage
    if isinstance(example, TaggingExample):
        return example.text
    if isinstance(example, TextExample):
        return f"{example.first}\0{example.second or ''}"
    if isinstance(example, SimilarityExample):
        return example.first  # another positive of it would give its own away
    return example.passage or f"{example.question}\0{example.options}"
