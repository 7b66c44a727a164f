"""What a task is: examples that are read, a head that answers, figures that say how well.

Every task, GLUE's and a user's own, is one `Task`. Each kind of example becomes `Sequences`: rows of tokens with what
is to be learned from each, which is all that training and prediction ever see.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64

from openalbert.model.config import Head

Kind = Literal["classification", "regression", "multi_label", "multiple_choice", "question_answering"]
Writing = Literal["the option itself", "its letter", "its number from 0", "its number from 1"]
"""How a file says which option is right."""
MAX_ANSWER_TOKENS = 30  # as in Google's SQuAD code


@dataclass(frozen=True)
class TextExample:
    """One text or a pair, and what is true of it."""

    id: str
    first: str
    second: str | None
    label: int | float | tuple[int, ...] | None
    """The number of the class, the value, the numbers of all classes that apply; None where nobody has said."""
    row: int | None = field(default=None, repr=False, compare=False)
    """The number of its row in its file, from 1, the header not counted; None where that is not known. It is for people
    to read and no part of the example: equality and the fingerprints of data leave it out."""


@dataclass(frozen=True)
class ChoiceExample:
    """A question on a passage with some options, one of them right. Passage or question may be empty."""

    id: str
    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    group: str = ""
    """What scores are also given by: RACE's middle and high."""
    row: int | None = field(default=None, repr=False, compare=False)
    """As of a TextExample."""


@dataclass(frozen=True)
class Answer:
    """A stretch of the passage, counted in characters."""

    text: str
    start: int


@dataclass(frozen=True)
class QuestionExample:
    """A question on a passage whose answer stands in it, or does not."""

    id: str
    passage: str
    question: str
    answers: tuple[Answer, ...]
    """All that count as right; none where the passage does not answer, or where nobody has said."""
    title: str = ""
    """The article: what belongs together when a part is held out."""
    is_labelled: bool = True
    row: int | None = field(default=None, repr=False, compare=False)
    """As of a TextExample."""


Example: TypeAlias = TextExample | ChoiceExample | QuestionExample


def of_pairs(examples: Sequence[Example]) -> bool | None:
    """Whether some examples, all alike, are pairs of texts; None where they are not of texts, or there are none."""
    first = examples[0] if examples else None
    return first.second is not None if isinstance(first, TextExample) else None


@dataclass(frozen=True)
class Reading:
    """The examples of one split, and what was left out of it: nothing is lost without a word."""

    examples: tuple[Example, ...]
    excluded: Mapping[str, int] = field(default_factory=dict)
    """Why rows were left out, as a phrase that names the first place, and how many."""
    remarks: tuple[str, ...] = ()
    """What the user should see of how it was read, a sentence each: the columns that were guessed, say."""
    file: str = ""
    """Where it was read."""
    layout: Mapping[str, str] = field(default_factory=dict)
    """Which column was taken for what, where that is not the same in every file."""
    separator: str | None = None
    """What stands between labels, where several stand in one cell."""

    @property
    def origin(self) -> str:
        """The file, and what was left out of it: to stand before what is wrong with the rest."""
        lost = "; ".join(f"{count:,} left out: {reason}" for reason, count in self.excluded.items())
        return (self.file or "these examples") + (f" ({lost})" if lost else "")


@dataclass(frozen=True)
class Known:
    """What a model was already taught, for tasks whose own files say it otherwise: what it learned from need not be at
    hand to score it."""

    labels: tuple[str, ...] | None = None
    may_have_no_answer: bool | None = None
    writing: Writing | None = None
    layout: Mapping[str, str] = field(default_factory=dict)
    """Which column of its file was taken for what."""
    separator: str | None = None
    """What stood between labels there."""


@dataclass(frozen=True)
class Task:
    """One task: how it is read, what answers it, how it is scored."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    """Names of the classes, in the order of the head's outputs; none where the kind has no classes."""
    splits: tuple[str, ...]
    """What there is beside `train` to score on; the first decides about early stopping."""
    read: Callable[[str], Reading]
    """The examples of a split: `train`, one of `splits`, or `test`, whose examples have no labels."""
    measure: Callable[[Sequence[Example], Sequence[object]], dict[str, float]]
    """Figures in percent, as the paper prints them, from examples and predictions in the same order. A prediction is a
    class number, a value, a tuple of class numbers, the number of an option, or the text of an answer ("" for none)."""
    main_metric: str
    """Which of the figures is looked at first; all figures are better when higher."""
    may_have_no_answer: bool = False
    """Whether a question may have no answer (SQuAD 2.0)."""
    writing: Writing | None = None
    """How a user's own files say which option is right: as the one that is learned from does."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """What answers it, on top of the encoder."""
        if self.kind == "question_answering":
            return (Head("span"), Head("answerability")) if self.may_have_no_answer else (Head("span"),)
        return (Head(self.kind, self.labels),)


@dataclass(frozen=True)
class Sequences:
    """Examples as rows of tokens, one after another: `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`."""

    ids: Int32[np.ndarray, "tokens"]
    starts: Int64[np.ndarray, "sequences_and_end"]
    """Sequence i is ids[starts[i]:starts[i + 1]]."""
    second: Int64[np.ndarray, "sequences"]
    """Where in each sequence segment 1 begins; its length where it has one segment only."""
    example: Int64[np.ndarray, "sequences"]
    """The number of the example that each is of, rising. A choice has a sequence for each option, in their order; a
    question one for each window of its passage."""
    targets: Mapping[str, np.ndarray]
    """By the kind of head, a row for each sequence: classification int64 class, regression float32 value, multi_label
    float32 0 or 1 for each class, multiple_choice int64 1 for the right option's sequence and 0 for the others, span
    int64 first and last token within the sequence (0 and 0 where the window has no answer), answerability float32 1
    where the window has none. Empty where the examples have no labels."""
    num_examples: int
    num_truncated: int
    """Examples of which something had to be left out to fit."""

    @property
    def lengths(self) -> Int64[np.ndarray, "sequences"]:
        """Tokens of each sequence."""
        return np.diff(self.starts)
