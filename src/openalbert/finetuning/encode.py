"""Examples of every kind as token sequences: which texts are read, what is truncated, which targets are learned.

Every truncation is counted in `Sequences.num_truncated`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int32, Int64

from openalbert.errors import UserError
from openalbert.finetuning.windows import (
    UNOWNED,
    Passage,
    Windows,
    answer_spans,
    assign_spans,
    shortest_whole_span,
    span_targets,
    split_into_windows,
    spread_windows,
)
from openalbert.finetuning.word_alignment import WordTokens, align_words, tag_targets
from openalbert.tasks.task import (
    ChoiceExample,
    Example,
    LongTexts,
    QuestionExample,
    Sequences,
    SimilarityExample,
    TaggingExample,
    Task,
    TextExample,
)
from openalbert.text.tokenizer import Tokenizer

E = TypeVar("E", TextExample, ChoiceExample, QuestionExample, SimilarityExample, TaggingExample)
MIN_LENGTH = 8  # tokens of an input: room for a word on both sides of a pair
STRIDE = 128  # tokens between the starts of two windows, as in Google's code
MAX_QUESTION_TOKENS = 64  # as in Google's code
TEXTS_AT_ONCE = SEQUENCES_AT_ONCE = 20_000
NO_SECOND = -1  # the length of a second text where there is none
# RACE's blank: underscores that do not stand within a word, as they do in snake_case.
_BLANK = re.compile(r"(?<!\w)_+|_+(?!\w)")


@dataclass(frozen=True)
class Encoding:
    """Examples as a model takes them."""

    sequences: Sequences
    windows: Windows | None = None
    """For question answering: the characters of the passages that tokens stand for."""
    words: WordTokens | None = None
    """For tagging: the tokens that decide on words."""


def encode(
    task: Task,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    stride: int = STRIDE,
    long_texts: LongTexts = "truncate",
) -> Encoding:
    """Encode examples as sequences of at most `max_length` tokens.

    `stride`: the distance in tokens between the starts of two windows over a passage, half a window at most. Texts
    whose words are tagged have windows that are half a window apart.
    `long_texts`: whether longer texts and pairs are cut, or have a sequence for each window, with the same target.
    """
    if max_length < MIN_LENGTH:
        raise UserError(f"max_length is {max_length}: an input needs {MIN_LENGTH} tokens at least")
    if stride < 1:
        raise UserError(f"stride is {stride}: a window begins at least 1 token after the one before")
    if long_texts != "truncate" and task.kind not in ("classification", "regression", "multi_label"):
        raise UserError(
            f"--long-texts {long_texts} is for a label or a value of a text, but {task.name} is of the kind {task.kind}"
            + (", whose passages are always read in windows" if task.kind == "question_answering" else "")
            + (", whose texts are always read in windows" if task.kind == "tagging" else "")
            + ": leave it out"
        )
    if long_texts == "max" and task.kind == "regression":
        raise UserError(
            "--long-texts max finds the window that shows a label most, but the value of a text is no maximum over its "
            "windows, each of which learns the value of the whole: give --long-texts mean"
        )
    if task.kind == "question_answering":
        questions = _require_kind(task, examples, QuestionExample)
        return Encoding(*_encode_questions(questions, tokenizer, max_length, stride, task.may_have_no_answer))
    if task.kind == "tagging":
        return _encode_words(task, _require_kind(task, examples, TaggingExample), tokenizer, max_length)
    if task.kind == "multiple_choice":
        return Encoding(_encode_choices(_require_kind(task, examples, ChoiceExample), tokenizer, max_length))
    if task.kind == "similarity":
        return Encoding(_encode_similar(_require_kind(task, examples, SimilarityExample), tokenizer, max_length))
    texts = _require_kind(task, examples, TextExample)
    return Encoding(_encode_texts(task, texts, tokenizer, max_length, long_texts))


def _require_kind(task: Task, examples: Sequence[Example], kind: type[E]) -> list[E]:
    """The examples, checked to be of the kind that the task has."""
    found = [example for example in examples if isinstance(example, kind)]
    if len(found) < len(examples):
        other = next(example for example in examples if not isinstance(example, kind))
        raise UserError(
            f"{task.name} is a task of {task.kind}, whose examples are of {kind.__name__}, but '{other.id}' is a "
            f"{type(other).__name__}: mend what reads it"
        )
    return found


def _encode_texts(
    task: Task, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int, long_texts: LongTexts
) -> Sequences:
    texts = UniqueTexts()
    first = np.array([texts.add(example.first) for example in examples], np.int64)
    second = np.array(
        [NO_SECOND if example.second is None else texts.add(example.second) for example in examples], np.int64
    )
    ids = texts.tokenize(tokenizer)
    is_pair = second != NO_SECOND
    lengths = ids.lengths[first], np.where(is_pair, ids.lengths[second], NO_SECOND)
    room = np.where(is_pair, max_length - 3, max_length - 2)
    kept = truncate_pairs(lengths[0], np.maximum(lengths[1], 0), room)
    slices = PairSlices(ids.starts[first], kept[0], ids.starts[second], np.where(is_pair, kept[1], NO_SECOND))
    is_cut = (kept[0] < lengths[0]) | (kept[1] < lengths[1])
    numbers = np.arange(len(examples))
    if long_texts != "truncate":
        slices, numbers, is_cut = _window_texts(slices, lengths, room, is_cut)
    out, starts, seconds = slices.assemble(ids.ids, tokenizer)
    targets = {kind: rows[numbers] for kind, rows in _text_targets(task, examples).items()}
    return Sequences(out, starts, seconds, numbers, targets, len(examples), int(is_cut.sum()), long_texts)


def _window_texts(
    slices: "PairSlices",
    lengths: tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]],
    room: Int64[np.ndarray, "n"],
    is_long: Bool[np.ndarray, "n"],
) -> tuple["PairSlices", Int64[np.ndarray, "sequences"], Bool[np.ndarray, "n"]]:
    """The slices of all windows, the example of each, and which examples are cut nevertheless.

    Of a long pair, the longer text is read in windows, each with the shorter one. That has half the room at most, and
    is cut where it is longer.
    """
    rows: list[tuple[int, int, int, int, int]] = []  # example, then start and length of both texts
    is_cut = np.zeros_like(is_long)
    for number in range(len(is_long)):
        starts = [int(slices.first_start[number]), int(slices.second_start[number])]
        kept = [int(slices.first_length[number]), int(slices.second_length[number])]
        if not is_long[number]:
            rows.append((number, starts[0], kept[0], starts[1], kept[1]))
            continue
        whole, space = [int(one[number]) for one in lengths], int(room[number])
        longer = int(whole[1] > whole[0])
        if whole[1] != NO_SECOND:
            kept[1 - longer] = min(whole[1 - longer], space // 2)
            is_cut[number] = kept[1 - longer] < whole[1 - longer]
            space -= kept[1 - longer]
        for begin, length in spread_windows(whole[longer], space):
            window = [(start, length_kept) for start, length_kept in zip(starts, kept, strict=True)]
            window[longer] = (starts[longer] + begin, length)
            rows.append((number, *window[0], *window[1]))
    numbers, *columns = np.array(rows, np.int64).reshape(-1, 5).T
    return PairSlices(*columns), numbers, is_cut


def truncate_pairs(
    first: Int64[np.ndarray, "n"], second: Int64[np.ndarray, "n"], room: Int64[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """How many tokens remain of each text if the longer one always loses its last token, the second one on a tie.

    Google's rule for pairs, without the loop.
    """
    second_half = room // 2
    first_half = room - second_half
    first_kept = np.minimum(first, np.maximum(first_half, room - second))
    second_kept = np.minimum(second, room - first_kept)
    return first_kept, second_kept


def _text_targets(task: Task, examples: Sequence[TextExample]) -> dict[str, np.ndarray]:
    labels = [example.label for example in examples]
    if any(label is None for label in labels):
        return {}
    if task.kind == "multi_label":
        wanted = np.zeros((len(labels), len(task.labels)), np.float32)
        for row, label in zip(wanted, labels, strict=True):
            assert isinstance(label, tuple)
            row[list(label)] = 1
        return {task.kind: wanted}
    return {task.kind: np.array(labels, np.float32 if task.kind == "regression" else np.int64)}


def _encode_choices(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int) -> Sequences:
    """A sequence for each option: the passage, then the question with that option in it (Google's RACE).

    A long passage loses its end; a question and option longer than half the room lose their beginning.
    """
    texts = UniqueTexts()
    pairs = [
        (number, texts.add(first), texts.add(second))
        for number, example in enumerate(examples)
        for first, second in option_pairs(example)
    ]
    numbers, first, second = np.array(pairs, np.int64).reshape(-1, 3).T
    ids = texts.tokenize(tokenizer)
    first_length, second_length = ids.lengths[first], ids.lengths[second]
    room = max_length - 3
    second_kept = np.minimum(second_length, np.maximum(room // 2, room - first_length))
    first_kept = np.minimum(first_length, room - second_kept)
    second_start = ids.starts[second] + second_length - second_kept
    out, starts, seconds = PairSlices(ids.starts[first], first_kept, second_start, second_kept).assemble(
        ids.ids, tokenizer
    )
    is_cut = (first_kept < first_length) | (second_kept < second_length)
    targets = {}
    if all(example.label is not None for example in examples):
        right = [option == example.label for example in examples for option in range(len(example.options))]
        targets["multiple_choice"] = np.array(right, np.int64)
    return Sequences(out, starts, seconds, numbers, targets, len(examples), len(np.unique(numbers[is_cut])))


def encode_single(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Sequences:
    """A sequence for each text, without targets."""
    unique = UniqueTexts()
    numbers = np.array([unique.add(text) for text in texts], np.int64)
    ids = unique.tokenize(tokenizer)
    lengths = ids.lengths[numbers]
    kept = np.minimum(lengths, max_length - 2)
    none = np.full(len(numbers), NO_SECOND, np.int64)
    out, starts, second = PairSlices(ids.starts[numbers], kept, none, none).assemble(ids.ids, tokenizer)
    return Sequences(out, starts, second, np.arange(len(numbers)), {}, len(numbers), int((kept < lengths).sum()))


def _encode_similar(examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int) -> Sequences:
    """A sequence for each text of each example. Texts with the same tokens count as equal."""
    single = encode_single([text for example in examples for text in example.texts], tokenizer, max_length)
    numbers = np.repeat(np.arange(len(examples)), [len(example.texts) for example in examples])
    targets: dict[str, np.ndarray] = {}
    if all(example.is_labelled for example in examples):
        known: dict[bytes, int] = {}
        pieces = (single.ids[start:end].tobytes() for start, end in pairwise(single.starts.tolist()))
        targets["similarity"] = np.array([known.setdefault(one, len(known)) for one in pieces], np.int64)
        if all(example.score is not None for example in examples):
            targets["score"] = np.array([example.score for example in examples], np.float32)[numbers]
    return replace(single, example=numbers, targets=targets, num_examples=len(examples))


def option_pairs(example: ChoiceExample) -> list[tuple[str, str]]:
    """The two texts of each option's sequence: without a passage they are the question and the option."""
    if not example.passage:
        return [(example.question, option) for option in example.options]
    return [(example.passage, fill_blank(example.question, option)) for option in example.options]


def fill_blank(question: str, option: str) -> str:
    """Put the option into the blank of the question, or after a question that has none."""

    def filled(blank: re.Match[str]) -> str:
        before, behind = question[: blank.start()][-1:], question[blank.end() :][:1]
        return f"{' ' * before.isalnum()}{option}{' ' * behind.isalnum()}"

    if _BLANK.search(question):
        return _BLANK.sub(filled, question)
    return f"{question} {option}" if question else option


def _encode_questions(
    examples: Sequence[QuestionExample], tokenizer: Tokenizer, max_length: int, stride: int, may_have_no_answer: bool
) -> tuple[Sequences, Windows]:
    """`[CLS] question [SEP] window of the passage [SEP]` for each window of each question, as in Google's SQuAD code.

    The target is the first gold answer that is whole in a window.
    """
    questions = UniqueTexts()
    question_of = np.array([questions.add(example.question) for example in examples], np.int64)
    question_ids = questions.tokenize(tokenizer)
    max_question = min(MAX_QUESTION_TOKENS, (max_length - 3) // 2)
    question_lengths = np.minimum(question_ids.lengths, max_question)
    passage_numbers: dict[str, int] = {}
    passages: list[Passage] = []
    rows: list[tuple[int, int, int, int]] = []  # example, passage, start and length of the window
    owned: list[np.ndarray] = []
    targets: list[tuple[int, int]] = []
    answer_tokens = np.zeros(len(examples), np.int32)
    for number, example in enumerate(examples):
        place = passage_numbers.setdefault(example.passage, len(passages))
        if place == len(passages):
            passages.append(Passage.of(example.passage, tokenizer))
        passage = passages[place]
        offset = int(question_lengths[question_of[number]]) + 2
        windows = list(split_into_windows(len(passage.ids), max_length - offset - 1, stride))
        rows += [(number, place, start, length) for start, length in windows]
        owned += assign_spans(windows)
        spans = answer_spans(example, passage)
        targets += span_targets(spans, windows, offset)
        answer_tokens[number] = shortest_whole_span(spans, windows)
    example_of, passage_of, start, length = np.array(rows, np.int64).reshape(-1, 4).T
    passage_ids = TokenizedTexts.of(
        [one.ids for one in passages], [np.array([len(one.ids) for one in passages], np.int64)]
    )
    question = question_of[example_of]
    source = passage_ids.starts[passage_of] + start
    ids, starts, second = PairSlices(
        question_ids.starts[question], question_lengths[question], len(question_ids.ids) + source, length
    ).assemble(np.concatenate([question_ids.ids, passage_ids.ids]), tokenizer)
    is_cut = question_ids.lengths[question_of] > max_question
    sequences = Sequences(
        ids,
        starts,
        second,
        example_of,
        _question_targets(targets, may_have_no_answer) if all(example.is_labelled for example in examples) else {},
        len(examples),
        int(is_cut.sum()),
    )
    from_token, to_token = concatenate_ranges(source, length), concatenate_ranges(starts[:-1] + second, length)
    begin, end = np.full(len(ids), -1, np.int32), np.full(len(ids), -1, np.int32)
    owned_from = np.full(len(ids), UNOWNED, np.int32)
    if passages:
        begin[to_token] = np.concatenate([passage.begin for passage in passages])[from_token]
        end[to_token] = np.concatenate([passage.end for passage in passages])[from_token]
        owned_from[to_token] = np.concatenate(owned)
    return sequences, Windows(begin, end, owned_from, answer_tokens, is_cut)


def _encode_words(task: Task, examples: Sequence[TaggingExample], tokenizer: Tokenizer, max_length: int) -> Encoding:
    """`[CLS] window of the text [SEP]` for each window; none is truncated."""
    pieces = align_words(examples, tokenizer, max_length - 2)
    no_second = np.full(len(pieces.first), NO_SECOND, np.int64)
    ids, starts, second = PairSlices(pieces.first, pieces.length, no_second, no_second).assemble(pieces.ids, tokenizer)
    targets = {}
    if all(example.tags is not None for example in examples):
        targets["tagging"] = tag_targets(examples, pieces.words, task.labels, len(ids))
    return Encoding(Sequences(ids, starts, second, pieces.example, targets, len(examples), 0), words=pieces.words)


def _question_targets(spans: Sequence[tuple[int, int]], may_have_no_answer: bool) -> dict[str, np.ndarray]:
    span = np.array(spans, np.int64).reshape(-1, 2)
    has_none = (span[:, 0] == 0).astype(np.float32)
    return {"span": span, "answerability": has_none} if may_have_no_answer else {"span": span}


class UniqueTexts:
    """Texts without duplicates, so that each is tokenized once: a passage has several questions or options."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of a text, which may have been added before."""
        return self._numbers.setdefault(text, len(self._numbers))

    def tokenize(self, tokenizer: Tokenizer) -> "TokenizedTexts":
        """Tokenize all texts, in the order of their numbers."""
        texts = list(self._numbers)
        chunks = [
            tokenizer.encode_joined(texts[start : start + TEXTS_AT_ONCE])
            for start in range(0, len(texts), TEXTS_AT_ONCE)
        ]
        return TokenizedTexts.of([ids for ids, _ in chunks], [lengths for _, lengths in chunks])


@dataclass(frozen=True)
class TokenizedTexts:
    """The concatenated token ids of some texts."""

    ids: Int32[np.ndarray, "tokens"]
    starts: Int64[np.ndarray, "texts"]
    lengths: Int64[np.ndarray, "texts"]

    @classmethod
    def of(cls, ids: Iterable[np.ndarray], lengths: Iterable[np.ndarray]) -> "TokenizedTexts":
        """Concatenate the ids and the lengths of several chunks of texts."""
        joined = np.concatenate([np.empty(0, np.int32), *ids])
        counts = np.concatenate([np.empty(0, np.int64), *lengths])
        return cls(joined, np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class PairSlices:
    """The slices of a pool of token ids that sequences are assembled from: one each, and for pairs a second one."""

    first_start: Int64[np.ndarray, "sequences"]
    first_length: Int64[np.ndarray, "sequences"]
    second_start: Int64[np.ndarray, "sequences"]
    second_length: Int64[np.ndarray, "sequences"]
    """-1 where there is no second text, which is not the same as an empty one."""

    def assemble(
        self, ids: Int32[np.ndarray, "tokens"], tokenizer: Tokenizer
    ) -> tuple[Int32[np.ndarray, "all_tokens"], Int64[np.ndarray, "sequences_and_end"], Int64[np.ndarray, "sequences"]]:
        """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`: ids, starts, and where each second text begins."""
        is_pair = self.second_length != NO_SECOND
        second_length = np.maximum(self.second_length, 0)
        second = self.first_length + 2
        lengths = second + np.where(is_pair, second_length + 1, 0)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        out = np.full(starts[-1], tokenizer.sep_id, np.int32)
        out[starts[:-1]] = tokenizer.cls_id
        # Block by block: the indices of all tokens at once would take several times the memory of the tokens.
        for start in range(0, len(lengths), SEQUENCES_AT_ONCE):
            block = slice(start, start + SEQUENCES_AT_ONCE)
            first_length, begin = self.first_length[block], starts[:-1][block]
            out[concatenate_ranges(begin + 1, first_length)] = ids[
                concatenate_ranges(self.first_start[block], first_length)
            ]
            into = concatenate_ranges(begin + second[block], second_length[block])
            out[into] = ids[concatenate_ranges(self.second_start[block], second_length[block])]
        return out, starts, second


def concatenate_ranges(starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "total"]:
    """The indices of several ranges, one range after another."""
    before = np.cumsum(lengths) - lengths
    indices: np.ndarray = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return indices
