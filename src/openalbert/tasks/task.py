"""What a task is: examples, heads that predict, metrics.

Every task, known or custom, is one `Task`. Each kind of example becomes `Sequences`: token sequences and their targets,
which is all that training and prediction see.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64

from openalbert.model.config import Head

Kind = Literal[
    "classification",
    "regression",
    "multi_label",
    "multiple_choice",
    "question_answering",
    "similarity",
    "tagging",
]
AnswerFormat = Literal["option text", "letter", "number from 0", "number from 1"]
"""How a file of multiple choice names the right option."""
UNLABELLED = -100  # the target of a token that the loss ignores
LongTexts = Literal["truncate", "mean", "max"]
"""What becomes of texts that are longer than the input: they are cut, or read in windows whose scores are combined."""
MAX_ANSWER_TOKENS = 30  # as in Google's SQuAD code


@dataclass(frozen=True)
class _Example:
    """What every example has."""

    id: str
    row: int | None = field(default=None, repr=False, compare=False, kw_only=True)
    """The number of its row in its file, from 1, without the header; in a CoNLL file, that of its sentence. None where
    it is not known. It is for messages: equality and the fingerprint of the data ignore it."""


@dataclass(frozen=True)
class TextExample(_Example):
    """A text or a pair of texts, and its label."""

    first: str
    second: str | None
    label: int | float | tuple[int, ...] | None
    """The number of the class, the value, or the numbers of all labels that apply; None where it is not known."""


@dataclass(frozen=True)
class ChoiceExample(_Example):
    """A question on a passage with options, one of them right. Passage or question may be empty."""

    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    group: str = ""
    """Metrics are also computed for each group: RACE's middle and high."""


@dataclass(frozen=True)
class Answer:
    """A span of the passage; `start` counts characters."""

    text: str
    start: int


@dataclass(frozen=True)
class QuestionExample(_Example):
    """A question on a passage that contains its answer, or does not."""

    passage: str
    question: str
    answers: tuple[Answer, ...]
    """All that count as right; none where the passage has no answer, or where it is not known."""
    title: str = ""
    """The article: its questions stay together when examples are held out."""
    is_labelled: bool = True


@dataclass(frozen=True)
class SimilarityExample(_Example):
    """Two texts with a score of how similar they are, or two that are, with or without a third that is not."""

    first: str
    """The anchor: what is searched for."""
    second: str
    """The positive; where there is a score, any other text."""
    negative: str | None = None
    """A text that is not similar to the first one although it may look so."""
    score: float | None = None
    """The higher, the more similar; None where the two are similar, or where it is not known."""
    is_labelled: bool = True
    """Whether it is known that they are similar, or how similar."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All of its texts, in the order of its sequences."""
        return (self.first, self.second) if self.negative is None else (self.first, self.second, self.negative)


@dataclass(frozen=True)
class TaggingExample(_Example):
    """A text whose words have a tag each: its entities, or parts of speech."""

    text: str
    words: tuple[tuple[int, int], ...]
    """Start and end of each word, in characters."""
    tags: tuple[str, ...] | None
    """The tag of each word, as BIO where tags mark entities; None where they are not known."""


Example: TypeAlias = TextExample | ChoiceExample | QuestionExample | SimilarityExample | TaggingExample


def are_pairs(examples: Sequence[Example]) -> bool | None:
    """Whether examples, all of one kind, are pairs of texts; None where they are not texts, or there are none."""
    first = examples[0] if examples else None
    if isinstance(first, SimilarityExample):
        return True
    return first.second is not None if isinstance(first, TextExample) else None


@dataclass(frozen=True)
class Reading:
    """The examples of one split, and how many rows were excluded: nothing is dropped silently."""

    examples: tuple[Example, ...]
    excluded: Mapping[str, int] = field(default_factory=dict)
    """The number of excluded rows by reason, which names the first place."""
    remarks: tuple[str, ...] = ()
    """Messages for the user on how it was read, such as the columns that were guessed."""
    file: str = ""
    """The file that was read."""
    layout: Mapping[str, str] = field(default_factory=dict)
    """The columns by role, in custom files."""
    separator: str | None = None
    """The separator between labels, where a cell has several."""
    num_rows: int | None = None
    """Rows of the file, those without an example included."""

    @property
    def origin(self) -> str:
        """The file and its excluded rows, for the start of an error message."""
        lost = "; ".join(f"{count:,} left out: {reason}" for reason, count in self.excluded.items())
        return (self.file or "these examples") + (f" ({lost})" if lost else "")


@dataclass(frozen=True)
class TaskMetadata:
    """What a fine-tuned model knows of its task. Its training file is then not needed to read other files."""

    labels: tuple[str, ...] | None = None
    may_have_no_answer: bool | None = None
    answer_format: AnswerFormat | None = None
    layout: Mapping[str, str] = field(default_factory=dict)
    """The columns of its training file by role."""
    separator: str | None = None
    """The separator between labels there."""


@dataclass(frozen=True)
class Task:
    """One task: how it is read, which heads predict, how predictions are scored."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    """Names of the classes, in the order of the head's outputs; none where the kind has no classes."""
    splits: tuple[str, ...]
    """The splits with labels other than `train`; the first decides about early stopping."""
    read: Callable[[str], Reading]
    """The examples of a split: `train`, one of `splits`, or `test`, whose examples need no labels."""
    measure: Callable[[Sequence[Example], Sequence[object]], dict[str, float]]
    """Metrics in percent, from examples and predictions in the same order. A prediction is a class number, a value, a
    tuple of class numbers, the number of an option, the text of an answer ("" for none), a tuple of tags, or for
    similarity a cosine or what was `Retrieved`."""
    main_metric: str
    """The metric used for selection; all metrics are better when higher."""
    may_have_no_answer: bool = False
    """Whether a question may have no answer (SQuAD 2.0)."""
    answer_format: AnswerFormat | None = None
    """How the training file of custom multiple choice names the right option."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads on top of the encoder."""
        if self.kind == "question_answering":
            return (Head("span"), Head("answerability")) if self.may_have_no_answer else (Head("span"),)
        if self.kind == "similarity":
            return ()  # the embedding is the mean of the encoder's output
        return (Head(self.kind, self.labels),)


@dataclass(frozen=True)
class Sequences:
    """Examples as concatenated token sequences: `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`."""

    ids: Int32[np.ndarray, "tokens"]
    starts: Int64[np.ndarray, "sequences_and_end"]
    """Sequence i is ids[starts[i]:starts[i + 1]]."""
    second: Int64[np.ndarray, "sequences"]
    """The position in each sequence where segment 1 starts; its length where it has one segment only."""
    example: Int64[np.ndarray, "sequences"]
    """The number of the example of each sequence, ascending. A choice has a sequence for each option, in their order; a
    question has one for each window of its passage, a text whose words are tagged and a long text may have several; of
    similarity each text is one."""
    targets: Mapping[str, np.ndarray]
    """By the kind of head, a row for each sequence: classification int64 class, regression float32 value, multi_label
    float32 0 or 1 for each class, multiple_choice int64 1 for the right option's sequence and 0 for the others, span
    int64 first and last token within the sequence (0 and 0 where the window has no answer), answerability float32 1
    where the window has none. Similarity has int64 numbers, equal for equal texts, and float32 scores under `score`
    where there are any. Only tagging has a row for each token: the int64 label, or UNLABELLED. Empty where the examples
    have no labels."""
    num_examples: int
    num_truncated: int
    """Examples that were truncated to fit."""
    long_texts: LongTexts = "truncate"
    """How the scores of the windows over one text are combined; `truncate` where a text has one sequence."""

    @property
    def lengths(self) -> Int64[np.ndarray, "sequences"]:
        """Tokens of each sequence."""
        return np.diff(self.starts)

    @property
    def first_of_examples(self) -> Int64[np.ndarray, "examples"]:
        """The first sequence of each example."""
        return np.flatnonzero(np.diff(self.example, prepend=-1))

    @property
    def num_in_windows(self) -> int:
        """Long texts that are read in several windows."""
        return 0 if self.long_texts == "truncate" else int(np.count_nonzero(np.bincount(self.example) > 1))
