"""Questions on passages of any length: overlapping windows, and the way from their tokens back to characters.

`[CLS] question [SEP] a window of the passage [SEP]`, as in BERT's and ALBERT's SQuAD code. An answer is a stretch of
the passage's own characters: the tokenizer's offsets lead there, nothing is decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from openalbert.finetuning.slices import Ids, Rows, Texts, stretches
from openalbert.tasks.task import QuestionExample, Sequences
from openalbert.text.tokenizer import Tokenizer

MOST_OF_A_QUESTION = 64  # tokens, as in Google's code
NEVER = np.iinfo(np.int32).max  # tokens


@dataclass(frozen=True)
class Windows:
    """For every token of some `Sequences`, where in its passage it stands."""

    begin: Int32[np.ndarray, "tokens"]
    """The first character of the token; -1 for what is not of the passage, or stands for nothing visible in it."""
    end: Int32[np.ndarray, "tokens"]
    """Behind its last character."""
    own_from: Int32[np.ndarray, "tokens"]
    """From how many tokens on a stretch that begins here is this window's own: of all windows that hold the whole of
    it, this one has the most of the passage around its first token. Every stretch is one window's own."""
    answer_tokens: Int32[np.ndarray, "questions"]
    """How long the shortest right answer is that is whole in a window. 0 where there is none."""
    is_cut: Bool[np.ndarray, "questions"]
    """Whether the question itself was too long."""


@dataclass(frozen=True)
class Passage:
    """A tokenized passage."""

    ids: Int32[np.ndarray, "tokens"]
    begin: Int32[np.ndarray, "tokens"]
    end: Int32[np.ndarray, "tokens"]

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> "Passage":
        """Tokenize a passage; pieces that stand for nothing visible have no place in it."""
        encoding = tokenizer.encode_with_offsets(text)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        is_visible = offsets[:, 0] < offsets[:, 1]
        return cls(
            np.array(encoding.ids, np.int32),
            np.where(is_visible, offsets[:, 0], np.int32(-1)),
            np.where(is_visible, offsets[:, 1], np.int32(-1)),
        )

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that hold any of these characters; None where no token does."""
        (inside,) = np.nonzero((self.begin < end) & (self.end > start) & (self.begin >= 0))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None


def spread(num_tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Start and length of the windows over a passage, so that each token is in one at least.

    A window begins no later than in the middle of the one before: an answer across the border of two that only touch
    would be whole in neither, and models of few positions have windows shorter than the usual stride.
    """
    step = min(stride, max(1, room // 2))
    start = 0
    while True:
        length = min(room, num_tokens - start)
        yield start, length
        if start + length >= num_tokens:
            return
        start += step


def own_stretches(windows: Sequence[tuple[int, int]]) -> list[Int32[np.ndarray, "_"]]:
    """For each window and token: from how many tokens on is a stretch that begins there the window's own?

    It is of the window with the most context for its first token: what counts is the shorter side of the two, and the
    length of the window a little, as in BERT's code; the first one where they are equal. BERT gives no stretch that
    this window does not hold whole. Here the next one does, whose context is the most of those that reach further.
    """
    num_tokens = windows[-1][0] + windows[-1][1]
    best = np.full(num_tokens, -1.0)
    owner = np.zeros(num_tokens, np.int64)
    for number, (start, length) in enumerate(windows):
        place = np.arange(length)
        context = np.minimum(place, length - 1 - place) + 0.01 * length
        inside = slice(start, start + length)
        is_better = context > best[inside]
        owner[inside] = np.where(is_better, number, owner[inside])
        best[inside] = np.where(is_better, context, best[inside])
    found = []
    for number, (start, length) in enumerate(windows):
        tokens = np.arange(start, start + length)
        reached = sum(windows[number - 1]) if number else 0
        # Behind the owner contexts only fall: what the window before this one holds is never its own. Windows before
        # the owner reach less far than it.
        later = np.where(owner[tokens] < number, reached - tokens + 1, NEVER)
        found.append(np.where(owner[tokens] == number, 1, later).astype(np.int32))
    return found


def encode_questions(
    examples: Sequence[QuestionExample], tokenizer: Tokenizer, max_length: int, stride: int, may_have_no_answer: bool
) -> tuple[Sequences, Windows]:
    """A sequence for each window of each question.

    Of the right answers the first is learned that is whole in a window.
    """
    questions = Texts()
    asked = np.array([questions.number(example.question) for example in examples], np.int64)
    question_ids = questions.tokenize(tokenizer)
    passages: dict[str, int] = {}
    read: list[Passage] = []
    rows: list[tuple[int, int, int, int]] = []  # example, passage, start and length of the window
    owned: list[np.ndarray] = []
    spans: list[tuple[int, int]] = []
    answer_tokens = np.zeros(len(examples), np.int32)
    most = min(MOST_OF_A_QUESTION, (max_length - 3) // 2)
    question_kept = np.minimum(question_ids.lengths, most)
    for number, example in enumerate(examples):
        place = passages.setdefault(example.passage, len(read))
        if place == len(read):
            read.append(Passage.of(example.passage, tokenizer))
        passage = read[place]
        before = int(question_kept[asked[number]]) + 2
        windows = list(spread(len(passage.ids), max_length - before - 1, stride))
        rows += [(number, place, start, length) for start, length in windows]
        owned += own_stretches(windows)
        places = _places(example, passage)
        spans += _targets(places, windows, before)
        answer_tokens[number] = _shortest(places, windows)
    example_of, passage_of, start, length = np.array(rows, np.int64).reshape(-1, 4).T
    passage_ids = Ids.of([one.ids for one in read], [np.array([len(one.ids) for one in read], np.int64)])
    pool = np.concatenate([question_ids.ids, passage_ids.ids])
    question = asked[example_of]
    at = passage_ids.starts[passage_of] + start
    out, starts, second = Rows(
        question_ids.starts[question], question_kept[question], len(question_ids.ids) + at, length
    ).put_together(pool, tokenizer)
    is_cut = question_ids.lengths[asked] > most
    windows_of = _windows(read, at, length, len(out), starts[:-1] + second, owned, answer_tokens, is_cut)
    targets = _as_arrays(spans, may_have_no_answer) if all(example.is_labelled for example in examples) else {}
    sequences = Sequences(out, starts, second, example_of, targets, len(examples), int(is_cut.sum()))
    return sequences, windows_of


def of_some(sequences: Sequences, windows: Windows, kept: Bool[np.ndarray, "questions"]) -> tuple[Sequences, Windows]:
    """What the questions that are kept would have come to alone."""
    stays = kept[sequences.example]
    tokens = np.repeat(stays, sequences.lengths)
    is_cut = windows.is_cut[kept]
    some = Sequences(
        ids=sequences.ids[tokens],
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(sequences.lengths[stays])]),
        second=sequences.second[stays],
        example=(np.cumsum(kept) - 1)[sequences.example[stays]],
        targets={kind: rows[stays] for kind, rows in sequences.targets.items()},
        num_examples=int(kept.sum()),
        num_truncated=int(is_cut.sum()),
    )
    answer_tokens = windows.answer_tokens[kept]
    return some, Windows(windows.begin[tokens], windows.end[tokens], windows.own_from[tokens], answer_tokens, is_cut)


def _places(example: QuestionExample, passage: Passage) -> list[tuple[int, int]]:
    """First and last token of each right answer that has any."""
    found = [passage.tokens_of(answer.start, answer.start + len(answer.text)) for answer in example.answers]
    return [place for place in found if place is not None]


def _targets(
    places: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]], before: int
) -> list[tuple[int, int]]:
    """First and last token of the answer in each window, counted from [CLS]; 0 and 0 where it is not whole in it."""
    for first, last in places:
        is_whole = [start <= first and last < start + length for start, length in windows]
        if any(is_whole):
            return [
                (before + first - start, before + last - start) if whole else (0, 0)
                for (start, _), whole in zip(windows, is_whole, strict=True)
            ]
    return [(0, 0)] * len(windows)


def _shortest(places: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]]) -> int:
    """Tokens of the shortest of these answers that is whole in a window; 0 for none."""
    lengths = [
        last - first + 1
        for first, last in places
        if any(start <= first and last < start + length for start, length in windows)
    ]
    return min(lengths, default=0)


def _as_arrays(spans: Sequence[tuple[int, int]], may_have_no_answer: bool) -> dict[str, np.ndarray]:
    span = np.array(spans, np.int64).reshape(-1, 2)
    has_none = (span[:, 0] == 0).astype(np.float32)
    return {"span": span, "answerability": has_none} if may_have_no_answer else {"span": span}


def _windows(
    passages: Sequence[Passage],
    at: Int64[np.ndarray, "sequences"],
    length: Int64[np.ndarray, "sequences"],
    num_tokens: int,
    into: Int64[np.ndarray, "sequences"],
    owned: Sequence[Int32[np.ndarray, "_"]],
    answer_tokens: Int32[np.ndarray, "questions"],
    is_cut: Bool[np.ndarray, "questions"],
) -> Windows:
    source, target = stretches(at, length), stretches(into, length)
    begin, end = np.full(num_tokens, -1, np.int32), np.full(num_tokens, -1, np.int32)
    own_from = np.full(num_tokens, NEVER, np.int32)
    if len(passages):
        begin[target] = np.concatenate([passage.begin for passage in passages])[source]
        end[target] = np.concatenate([passage.end for passage in passages])[source]
        own_from[target] = np.concatenate(owned)
    return Windows(begin, end, own_from, answer_tokens, is_cut)
