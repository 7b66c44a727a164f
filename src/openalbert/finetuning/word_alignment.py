"""Words of a text as pieces of the vocabulary: which token decides on a word, and the tags and entities that follow.

A word is decided by its first visible piece; the loss ignores its other pieces. A text longer than the model's input is
read in overlapping windows, and each word is decided in the window with the most context around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int32, Int64

from openalbert.finetuning.windows import assign_spans, split_into_windows
from openalbert.tasks.tags import OUTSIDE, bio_tags, find_entities, mark_entities
from openalbert.tasks.task import UNLABELLED, TaggingExample
from openalbert.text.tokenizer import Tokenizer

NO_TOKEN = -1


@dataclass(frozen=True)
class WordTokens:
    """The token of some `Sequences` that decides on each word."""

    token: Int64[np.ndarray, "words"]
    """Its place in `Sequences.ids`; NO_TOKEN for a word without visible text. Two words that share a piece, as ' and s
    in 's may, have the same."""
    starts: Int64[np.ndarray, "examples_and_end"]
    """The words of example i are those from starts[i] to starts[i + 1]."""


@dataclass(frozen=True)
class TaggedPieces:
    """Examples as slices of their concatenated pieces, one slice for each window, before [CLS] and [SEP] are added."""

    ids: Int32[np.ndarray, "pieces"]
    first: Int64[np.ndarray, "windows"]
    """The first piece of each window."""
    length: Int64[np.ndarray, "windows"]
    example: Int64[np.ndarray, "windows"]
    words: WordTokens


def align_words(examples: Sequence[TaggingExample], tokenizer: Tokenizer, room: int) -> TaggedPieces:
    """Tokenize texts into windows of at most `room` pieces, half of which overlap, and find the token of each word.

    A sequence is taken to be `[CLS] window [SEP]`, one after another.
    """
    pieces: list[np.ndarray] = []
    windows: list[tuple[int, int, int]] = []  # first piece, length, example
    tokens: list[np.ndarray] = []
    num_pieces = num_tokens = 0
    for number, example in enumerate(examples):
        encoding = tokenizer.encode_with_offsets(example.text)
        of_word = first_pieces(example.words, np.array(encoding.offsets, np.int64).reshape(-1, 2))
        token_of_piece = np.empty(len(encoding.ids) + 1, np.int64)
        token_of_piece[-1] = NO_TOKEN  # where NO_TOKEN leads to
        parts = list(split_into_windows(len(encoding.ids), room, stride=room))
        for (start, length), owned in zip(parts, assign_spans(parts), strict=True):
            inside = np.arange(start, start + length)[owned == 1]
            token_of_piece[inside] = num_tokens + 1 + inside - start
            windows.append((num_pieces + start, length, number))
            num_tokens += length + 2
        tokens.append(token_of_piece[of_word])
        pieces.append(np.array(encoding.ids, np.int32))
        num_pieces += len(encoding.ids)
    firsts, lengths, numbers = np.array(windows, np.int64).reshape(-1, 3).T
    starts = np.cumsum([0, *(len(example.words) for example in examples)], dtype=np.int64)
    words = WordTokens(np.concatenate([np.empty(0, np.int64), *tokens]), starts)
    return TaggedPieces(np.concatenate([np.empty(0, np.int32), *pieces]), firsts, lengths, numbers, words)


def first_pieces(
    words: Sequence[tuple[int, int]], offsets: Int64[np.ndarray, "pieces 2"]
) -> Int64[np.ndarray, "words"]:
    """The first visible piece of each word, by the characters of both; NO_TOKEN where it has none."""
    spans = np.array(words, np.int64).reshape(-1, 2)
    (visible,) = np.nonzero(offsets[:, 0] < offsets[:, 1])
    if not len(visible):
        return np.full(len(spans), NO_TOKEN, np.int64)
    begins, ends = offsets[visible].T
    place = np.searchsorted(ends, spans[:, 0], side="right")  # the first that ends after the word begins
    near = np.minimum(place, len(visible) - 1)
    overlaps = (place < len(visible)) & (begins[near] < spans[:, 1])
    return np.where(overlaps, visible[near], NO_TOKEN)


def tag_targets(
    examples: Sequence[TaggingExample], words: WordTokens, labels: Sequence[str], num_tokens: int
) -> Int64[np.ndarray, "tokens"]:
    """The label of each token that decides on a word; a tag that is not among the labels is not learned."""
    numbers = {label: number for number, label in enumerate(labels)}
    wanted = np.array([numbers.get(tag, UNLABELLED) for example in examples for tag in example.tags or ()], np.int64)
    targets = np.full(num_tokens, UNLABELLED, np.int64)
    has_token = words.token != NO_TOKEN
    # In reverse order, so that where words share a piece the label of the first one is kept.
    targets[words.token[has_token][::-1]] = wanted[has_token][::-1]
    return targets


@dataclass(frozen=True)
class TaggedWords:
    """The decision on the words of one text."""

    tags: tuple[str, ...]
    """As BIO where tags mark entities: no I- without its B-."""
    probabilities: Float64[np.ndarray, "words"]
    """That of each word's tag, as the model gives it to the first piece; 1 for a word without visible text."""

    def entities(self, example: TaggingExample) -> list["FoundEntity"]:
        """The entities as characters of the text."""
        found = []
        for first, end, label in find_entities(self.tags):
            start, stop = example.words[first][0], example.words[end - 1][1]
            probability = float(self.probabilities[first:end].mean())
            found.append(FoundEntity(example.text[start:stop], label, start, stop, probability))
        return found


@dataclass(frozen=True)
class FoundEntity:
    """An entity in a text."""

    text: str
    label: str
    start: int
    """Its first character."""
    end: int
    """The character after its last."""
    probability: float
    """The mean over its words."""


def decide_tags(
    logits: Float[np.ndarray, "tokens labels"], words: WordTokens, labels: Sequence[str]
) -> list[TaggedWords]:
    """The most likely tag of each word; an I- that continues nothing begins an entity, as in conlleval."""
    marks_entities = mark_entities(labels)
    names = np.array(labels, dtype=object)
    has_token: Bool[np.ndarray, words] = words.token != NO_TOKEN
    chosen = logits[words.token[has_token]].astype(np.float64)
    best = chosen.argmax(1)
    # Of a softmax the largest term is 1 / (sum of all others relative to it).
    likely = 1 / np.exp(chosen - chosen.max(1, keepdims=True)).sum(1)
    tags = np.full(len(words.token), OUTSIDE if OUTSIDE in labels else labels[0], dtype=object)
    tags[has_token] = names[best]
    probabilities = np.ones(len(words.token))
    probabilities[has_token] = likely
    is_shared = has_token & (words.token == np.roll(words.token, 1))
    is_shared[words.starts[:-1][words.starts[:-1] < len(is_shared)]] = False
    found = []
    for start, end in zip(words.starts[:-1].tolist(), words.starts[1:].tolist(), strict=True):
        some = tags[start:end].tolist()
        if marks_entities:
            some = [
                f"I-{tag[2:]}" if shared and tag.startswith("B-") else tag
                for tag, shared in zip(some, is_shared[start:end].tolist(), strict=True)
            ]
            some = bio_tags(find_entities(some), end - start)
        found.append(TaggedWords(tuple(some), probabilities[start:end]))
    return found
