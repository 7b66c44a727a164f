"""Examples of every kind as `Sequences`: what is read first, what is cut where it is too long, what is to be learned.

Nothing is cut without being counted: `Sequences.num_truncated`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Int64

from openalbert.errors import UserError
from openalbert.finetuning.slices import NONE, Rows, Texts
from openalbert.finetuning.windows import Windows, encode_questions
from openalbert.tasks.task import ChoiceExample, Example, QuestionExample, Sequences, Task, TextExample
from openalbert.text.tokenizer import Tokenizer

E = TypeVar("E", TextExample, ChoiceExample, QuestionExample)
SHORTEST = 8  # tokens of an input: room for a word on both sides of a pair
# RACE's blank: underscores that do not stand within a word, as they do in snake_case.
_BLANK = re.compile(r"(?<!\w)_+|_+(?!\w)")


@dataclass(frozen=True)
class Encoding:
    """Examples as a model takes them."""

    sequences: Sequences
    windows: Windows | None = None
    """For questions: what leads from tokens back to characters of the passages."""


def encode(
    task: Task, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, *, stride: int = 128
) -> Encoding:
    """The sequences of some examples, none of more than `max_length` tokens.

    `stride`: how many tokens after one window over a passage the next one begins, half a window at most.
    """
    if max_length < SHORTEST:
        raise UserError(f"max_length is {max_length}: an input needs {SHORTEST} tokens at least")
    if stride < 1:
        raise UserError(f"stride is {stride}: a window begins at least 1 token after the one before")
    if task.kind == "question_answering":
        questions = _all(task, examples, QuestionExample)
        return Encoding(*encode_questions(questions, tokenizer, max_length, stride, task.may_have_no_answer))
    if task.kind == "multiple_choice":
        return Encoding(_choices(_all(task, examples, ChoiceExample), tokenizer, max_length))
    return Encoding(_texts(task, _all(task, examples, TextExample), tokenizer, max_length))


def _all(task: Task, examples: Sequence[Example], kind: type[E]) -> list[E]:
    """The examples, all of which are of the kind that the task has."""
    found = [example for example in examples if isinstance(example, kind)]
    if len(found) < len(examples):
        other = next(example for example in examples if not isinstance(example, kind))
        raise UserError(
            f"{task.name} is a task of {task.kind}, whose examples are of {kind.__name__}, but '{other.id}' is a "
            f"{type(other).__name__}: mend what reads it"
        )
    return found


def _texts(task: Task, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int) -> Sequences:
    texts = Texts()
    first = np.array([texts.number(example.first) for example in examples], np.int64)
    second = np.array(
        [NONE if example.second is None else texts.number(example.second) for example in examples], np.int64
    )
    ids = texts.tokenize(tokenizer)
    is_pair = second != NONE
    lengths = ids.lengths[first], np.where(is_pair, ids.lengths[second], NONE)
    room = np.where(is_pair, max_length - 3, max_length - 2)
    kept = longest_first(lengths[0], np.maximum(lengths[1], 0), room)
    rows = Rows(ids.starts[first], kept[0], ids.starts[second], np.where(is_pair, kept[1], NONE))
    is_cut = (kept[0] < lengths[0]) | (kept[1] < lengths[1])
    out, starts, seconds = rows.put_together(ids.ids, tokenizer)
    numbers = np.arange(len(examples))
    return Sequences(out, starts, seconds, numbers, _text_targets(task, examples), len(examples), int(is_cut.sum()))


def longest_first(
    first: Int64[np.ndarray, "n"], second: Int64[np.ndarray, "n"], room: Int64[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """How much stays of each part if the longer one always gives its last token, the second one where they are equal.

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


def _choices(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int) -> Sequences:
    """A sequence for each option: the passage, then the question with that option in it (Google's RACE).

    Of a long passage the end is left out; of a question and option longer than half the room, the beginning is.
    """
    texts = Texts()
    pairs = [
        (number, texts.number(first), texts.number(second))
        for number, example in enumerate(examples)
        for first, second in readings(example)
    ]
    numbers, first, second = np.array(pairs, np.int64).reshape(-1, 3).T
    ids = texts.tokenize(tokenizer)
    first_length, second_length = ids.lengths[first], ids.lengths[second]
    room = max_length - 3
    second_kept = np.minimum(second_length, np.maximum(room // 2, room - first_length))
    first_kept = np.minimum(first_length, room - second_kept)
    behind = ids.starts[second] + second_length - second_kept
    out, starts, seconds = Rows(ids.starts[first], first_kept, behind, second_kept).put_together(ids.ids, tokenizer)
    is_cut = (first_kept < first_length) | (second_kept < second_length)
    targets = {}
    if all(example.label is not None for example in examples):
        right = [option == example.label for example in examples for option in range(len(example.options))]
        targets["multiple_choice"] = np.array(right, np.int64)
    return Sequences(out, starts, seconds, numbers, targets, len(examples), len(np.unique(numbers[is_cut])))


def readings(example: ChoiceExample) -> list[tuple[str, str]]:
    """For each option the two parts that are read: without a passage they are the question and the option."""
    if not example.passage:
        return [(example.question, option) for option in example.options]
    return [(example.passage, in_question(example.question, option)) for option in example.options]


def in_question(question: str, option: str) -> str:
    """The option in the blank of the question, or behind a question that has none."""

    def filled(blank: re.Match[str]) -> str:
        before, behind = question[: blank.start()][-1:], question[blank.end() :][:1]
        return f"{' ' * before.isalnum()}{option}{' ' * behind.isalnum()}"

    if _BLANK.search(question):
        return _BLANK.sub(filled, question)
    return f"{question} {option}" if question else option
