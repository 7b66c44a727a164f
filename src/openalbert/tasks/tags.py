"""Tags of words: the schemes that mark entities, the entities in a sequence of tags, and their metrics.

Files mark entities in several schemes: IOB1, IOB2 (BIO), BIOES, BILOU, BMEWO, or without prefixes (IO). All become BIO:
`B-` for the first word of an entity, `I-` for the others, `O` outside. Tags that mark no entities, such as parts of
speech, stay as they are. Metrics are those of conlleval, which are seqeval's by default.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from openalbert.errors import UserError
from openalbert.tasks.metrics import Measure, check_same_number
from openalbert.tasks.task import Example, TaggingExample

OUTSIDE = "O"
UNTYPED = "entity"
"""The type of entities in files that have only B, I and O."""
# The role of a word in its entity: first, inside, last (E), or the only one (S).
ROLES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
_PREFIXED = re.compile(rf"([{''.join(ROLES)}])(?:-(.+))?")
Tags: TypeAlias = Sequence[str]


class Entity(NamedTuple):
    """Consecutive words of one type."""

    start: int
    """Its first word."""
    end: int
    """The word after its last."""
    label: str


def are_prefixed(tags: Iterable[str]) -> bool:
    """Whether every tag but O has a prefix that marks the place of a word in an entity."""
    return all(tag == OUTSIDE or _PREFIXED.fullmatch(tag) for tag in tags)


def mark_entities(tags: Iterable[str]) -> bool:
    """Whether tags mark entities: they have prefixes, or some words are outside of them."""
    distinct = set(tags)
    return OUTSIDE in distinct or are_prefixed(distinct)


def scheme_of(sequences: Sequence[Tags]) -> str:
    """The scheme in which these tags mark entities; "" where they mark none."""
    distinct = {tag for tags in sequences for tag in tags}
    if not mark_entities(distinct):
        return ""
    prefixes = {tag[0] for tag in distinct - {OUTSIDE}}
    if not are_prefixed(distinct):
        return "IO, without prefixes"
    for name, letters in (("BMEWO", "MW"), ("BILOU", "LU"), ("BIOES", "ES")):
        if prefixes & set(letters):
            return name
    begins_with_i = any(tags[entity.start].startswith("I") for tags in sequences for entity in find_entities(tags))
    if not begins_with_i:
        return "BIO (IOB2)"
    return "BIO, with I- at the start of some entities" if _has_needless_b(sequences) else "IOB1"


def _has_needless_b(sequences: Sequence[Tags]) -> bool:
    """Whether a B- follows anything but its own type: IOB1 has it only between two entities of one type."""
    return any(
        tag.startswith("B") and (before == OUTSIDE or before[2:] != tag[2:])
        for tags in sequences
        for before, tag in pairwise((OUTSIDE, *tags))
    )


def find_entities(tags: Tags) -> list[Entity]:
    """The entities of tags with prefixes, by conlleval's rule: every sequence of tags has a meaning.

    An entity begins at B- and S-, and at any other tag that does not continue the one before. It ends after E- and S-,
    and before a tag of another type.
    """
    found: list[Entity] = []
    start, kind, before = 0, "", OUTSIDE
    for place, tag in enumerate((*tags, OUTSIDE)):
        role, label = _split(tag)
        is_continued = role in ("I", "E") and before in ("B", "I") and label == kind
        if before != OUTSIDE and not is_continued:
            found.append(Entity(start, place, kind))
        if role != OUTSIDE and not is_continued:
            start, kind = place, label
        before = role
    return found


def _split(tag: str) -> tuple[str, str]:
    """The role of a word in its entity, and the entity's type."""
    found = _PREFIXED.fullmatch(tag)
    return (OUTSIDE, "") if found is None else (ROLES[found[1]], found[2] or UNTYPED)


def bio_tags(entities: Iterable[Entity], num_words: int) -> tuple[str, ...]:
    """The tags of some words with these entities, which do not overlap."""
    tags = [OUTSIDE] * num_words
    for start, end, label in entities:
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tuple(tags)


def to_bio(tags: Tags, prefixed: bool = True) -> tuple[str, ...]:
    """Tags of any scheme that marks entities as BIO; without prefixes, neighbours with the same tag are one entity."""
    written = tags if prefixed else [tag if tag == OUTSIDE else f"I-{tag}" for tag in tags]
    return bio_tags(find_entities(written), len(tags))


def entity_labels(types: Iterable[str]) -> tuple[str, ...]:
    """The labels of a model of these types of entities: O, then B- and I- of each."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in "BI"))


# Metrics.


def gold_tags(examples: Sequence[Example]) -> list[tuple[str, ...]]:
    """The actual tags of examples that have them."""
    found = []
    for example in examples:
        if not isinstance(example, TaggingExample) or example.tags is None:
            raise UserError(f"the example '{example.id}' has no tags to compare with: nothing can be scored")
        found.append(example.tags)
    return found


def count_matches(gold: Sequence[Tags], predicted: Sequence[Tags]) -> Int64[np.ndarray, "texts 5"]:
    """For each text: entities that are right in place and type, actual and predicted ones; right words, words."""
    rows = []
    for wanted, given in zip(gold, predicted, strict=True):
        if len(wanted) != len(given):
            raise UserError(f"{len(given)} tags were predicted for {len(wanted)} words: one for each is needed")
        actual, found = set(find_entities(wanted)), set(find_entities(given))
        right = sum(one == other for one, other in zip(wanted, given, strict=True))
        rows.append((len(actual & found), len(actual), len(found), right, len(wanted)))
    return np.array(rows, np.int64).reshape(-1, 5)


def tag_scores(counts: Int64[np.ndarray, "*sums 5"], marks_entities: bool) -> dict[str, Float64[np.ndarray, "*sums"]]:
    """Metrics in percent from sums of `count_matches`; 0 where there is nothing to divide by."""
    right, actual, found, right_words, words = (np.asarray(one, np.float64) for one in np.moveaxis(counts, -1, 0))
    ratios = {"accuracy": (100 * right_words, words)}
    if marks_entities:
        ratios = {
            "f1": (200 * right, actual + found),
            "precision": (100 * right, found),
            "recall": (100 * right, actual),
            **ratios,
        }
    return {name: np.asarray(part / np.maximum(whole, 1)) for name, (part, whole) in ratios.items()}


def measure_tags(marks_entities: bool) -> Measure:
    """Measures tuples of tags: precision, recall and F1 of whole entities, and the accuracy of words."""

    def measure(examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        check_same_number(examples, predictions)
        counts = count_matches(gold_tags(examples), predictions)  # type: ignore[arg-type]
        return {name: float(value) for name, value in tag_scores(counts.sum(0), marks_entities).items()}

    return measure


def count_by_type(
    gold: Sequence[Tags], predicted: Sequence[Tags], marks_entities: bool
) -> dict[str, tuple[int, int, int]]:
    """For each type of entity, or each tag where they mark none: how many are right, actual and predicted."""
    counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for wanted, given in zip(gold, predicted, strict=True):
        if marks_entities:
            actual, found = set(find_entities(wanted)), set(find_entities(given))
        else:
            actual, found = ({Entity(n, n + 1, tag) for n, tag in enumerate(tags)} for tags in (wanted, given))
        for counter, entities in zip(counts, (actual & found, actual, found), strict=True):
            counter.update(entity.label for entity in entities)
    names = sorted({*counts[1], *counts[2]})
    return {name: (counts[0][name], counts[1][name], counts[2][name]) for name in names}
