"""Folds for cross-validation: stratified, with examples of the same text or passage in one fold."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Int64

from openalbert.errors import UserError
from openalbert.formatting import counted


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
    by_stratum: dict[Hashable, list[str]] = {}
    seen: set[str] = set()
    for group, stratum in zip(groups, strata, strict=True):
        if group not in seen:
            seen.add(group)
            by_stratum.setdefault(stratum, []).append(group)

    def draw(key: str) -> bytes:
        return hashlib.blake2b(f"{seed}\0{key}".encode()).digest()

    fold_of: dict[str, int] = {}
    in_all = [0] * num_folds
    # Rare strata first: the others can still make up for them.
    for members in sorted(by_stratum.values(), key=lambda some: (sum(sizes[one] for one in some), draw(min(some)))):
        here = [0] * num_folds
        for group in sorted(members, key=lambda one: (-sizes[one], draw(one))):
            fold = min(range(num_folds), key=lambda one: (here[one], in_all[one]))
            here[fold] += sizes[group]
            in_all[fold] += sizes[group]
            fold_of[group] = fold + 1
    return np.array([fold_of[group] for group in groups], np.int64)


def rarest(labels: Sequence[tuple[int, ...]]) -> list[int]:
    """The stratum of each set of labels: its rarest label, -1 for none. So every label is spread over the folds."""
    frequency = Counter(number for one in labels for number in one)
    return [min(one, key=lambda number: (frequency[number], number), default=-1) for one in labels]
