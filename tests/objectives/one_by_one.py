"""The rules of pairing and masking in plain Python, one example and one token after the other: the oracle of the tests.

With a `random.Random` it is also the plain collator that the bench is measured against.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

CLS, SEP, MASK = 2, 3, 4


@dataclass
class Example:
    first: list[int]
    second: list[int]
    swapped: bool


def trim(first: list[int], second: list[int], limit: int, heads: Callable[[], bool]) -> None:
    """One token at a time off the longer segment, front or back, until the pair fits."""
    while len(first) + len(second) > limit:
        longer = first if len(first) > len(second) else second
        if heads():
            del longer[0]
        else:
            longer.pop()


def sentence_pairs(
    documents: Sequence[Sequence[Sequence[int]]], max_length: int, short_fraction: float, rng: random.Random
) -> Iterator[Example]:
    """Sentence order pairs of all documents, a chunk taking at least two sentences."""
    limit = max_length - 3
    for document in documents:
        begin = 0
        while begin < len(document):
            target = rng.randint(2, limit) if rng.random() < short_fraction else limit
            end, length = begin, 0
            while end < len(document) and (length < target or end - begin < 2):
                length += len(document[end])
                end += 1
            if end - begin >= 2:
                cut = rng.randint(begin + 1, end - 1)
                first = [token for sentence in document[begin:cut] for token in sentence]
                second = [token for sentence in document[cut:end] for token in sentence]
                swapped = rng.random() < 0.5
                if swapped:
                    first, second = second, first
                trim(first, second, limit, lambda: rng.random() < 0.5)
                yield Example(first, second, swapped)
            begin = end


def words_of(
    ids: Sequence[int], first_length: int, second_length: int, word_starts: Sequence[bool], by_token: bool = False
) -> list[list[list[int]]]:
    """The places of the tokens of each word, for each segment."""
    segments = []
    for begin, end in ((1, first_length + 1), (first_length + 2, first_length + second_length + 2)):
        words: list[list[int]] = []
        for place in range(begin, end):
            if by_token or place == begin or word_starts[ids[place]]:
                words.append([place])
            else:
                words[-1].append(place)
        segments.append(words)
    return segments


def choose_words(
    segments: list[list[list[int]]], order: Sequence[int], ngrams: Sequence[int], budget: int
) -> list[list[int]]:
    """The n-grams that are chosen, each as the places of its tokens; `order` and `ngrams` number words through."""
    words = segments[0] + segments[1]
    covered: set[int] = set()
    chosen = []
    for word in order:
        if not budget:
            break
        end = len(segments[0]) if word < len(segments[0]) else len(words)
        n = min(ngrams[word], end - word)
        while n and sum(map(len, words[word : word + n])) > budget:
            n -= 1
        if n and covered.isdisjoint(range(word, word + n)):
            covered.update(range(word, word + n))
            chosen.append([place for part in words[word : word + n] for place in part])
            budget -= len(chosen[-1])
    return chosen


def collate(
    example: Example,
    max_length: int,
    word_starts: Sequence[bool],
    probabilities: Sequence[float],
    budget: Callable[[int], int],
    rng: random.Random,
) -> tuple[list[int], list[int], list[int]]:
    """Ids with hidden tokens, where they are, and what stood there."""
    ids = [CLS, *example.first, SEP, *example.second, SEP]
    segments = words_of(ids, len(example.first), len(example.second), word_starts)
    num_words = len(segments[0]) + len(segments[1])
    order = list(range(num_words))
    rng.shuffle(order)
    ngrams = rng.choices(range(1, len(probabilities) + 1), probabilities, k=num_words)
    places = sorted(place for ngram in choose_words(segments, order, ngrams, budget(len(ids))) for place in ngram)
    labels = [ids[place] for place in places]
    for place in places:
        fate = rng.random()
        if fate < 0.8:
            ids[place] = MASK
        elif fate < 0.9:
            ids[place] = rng.randrange(len(word_starts))
    return ids + [0] * (max_length - len(ids)), places, labels
