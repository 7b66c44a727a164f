"""What a model predicts for one input, as small values that print readably: one class for each kind of prediction.

`cells` are the columns that the verb `predict` adds to a row; `added_columns` names them before any row is predicted.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from openalbert.finetuning.word_alignment import FoundEntity
from openalbert.tasks.race import letter
from openalbert.tasks.task import AnswerFormat, Kind
from openalbert.text.tokenizer import SPACE

PREDICTION, PROBABILITY, PROBABILITIES = "prediction", "probability", "probabilities"
START, END = "start", "end"
TAGS = "tags"
CellKind = Literal["text", "number", "whole number", "texts"]
"""What the cells of an added column hold."""
IN_ORDER, SWAPPED = "in order", "swapped"
"""Labels of the sentence-order head: whether two texts follow each other, or the second comes first."""


@runtime_checkable
class Prediction(Protocol):
    """What all predictions have in common."""

    def cells(self) -> dict[str, Any]:
        """The prediction as columns, with values that JSON has."""

    def all_probabilities(self) -> Any:
        """Every probability there is: by label, in the order of options, or by piece for each mask."""


@dataclass(frozen=True)
class Unpredictable:
    """An input that cannot be predicted."""

    reason: str
    """A clause that follows the number of such inputs: `without a text`."""


@dataclass(frozen=True, repr=False)
class ClassPrediction:
    """The class of a text or a pair; for a pretrained model, whether two texts are in order."""

    label: str
    """The most probable class."""
    probability: float
    """Its probability."""
    probabilities: Mapping[str, float]
    """Those of all classes, which sum to 1."""
    depth: int | None = None
    """The layers that were computed, where inputs may leave early."""

    def __repr__(self) -> str:
        return f"ClassPrediction({self.label!r}, probability={self.probability:.3f})"

    def cells(self) -> dict[str, Any]:
        """Label and probability."""
        return {PREDICTION: self.label, PROBABILITY: self.probability}

    def all_probabilities(self) -> dict[str, float]:
        """Those of all classes."""
        return dict(self.probabilities)


@dataclass(frozen=True, repr=False)
class LabelsPrediction:
    """All labels that apply to a text: those with a probability above 0.5."""

    labels: tuple[str, ...]
    """The labels that apply; there may be none."""
    probabilities: Mapping[str, float]
    """Those of all labels, each on its own."""
    depth: int | None = None
    """The layers that were computed, where inputs may leave early."""

    @property
    def probability(self) -> float:
        """That exactly these labels apply, if labels are independent."""
        return math.prod(one if label in self.labels else 1 - one for label, one in self.probabilities.items())

    def __repr__(self) -> str:
        shown = ", ".join(f"{label!r}: {self.probabilities[label]:.3f}" for label in self.labels)
        return f"LabelsPrediction({{{shown}}})"

    def cells(self) -> dict[str, Any]:
        """The labels, and the probability of this set."""
        return {PREDICTION: list(self.labels), PROBABILITY: self.probability}

    def all_probabilities(self) -> dict[str, float]:
        """Those of all labels."""
        return dict(self.probabilities)


@dataclass(frozen=True, repr=False)
class ValuePrediction:
    """The value of a text or a pair."""

    value: float
    depth: int | None = None
    """The layers that were computed, where inputs may leave early."""

    def __repr__(self) -> str:
        return f"ValuePrediction({self.value:.4g})"

    def cells(self) -> dict[str, Any]:
        """The value."""
        return {PREDICTION: self.value}

    def all_probabilities(self) -> dict[str, float]:
        """A value has none."""
        return {}


@dataclass(frozen=True, repr=False)
class AnswerPrediction:
    """The answer to a question on a passage."""

    answer: str
    """The characters `passage[start:end]`; "" where the passage has no answer."""
    start: int | None
    """Its first character; None where the passage has no answer."""
    end: int | None
    """The end of its last character, exclusive."""
    probability: float
    """Among the candidate answers; where the passage has no answer, of that."""
    no_answer_probability: float | None
    """That the passage has no answer; None for a model that always answers."""

    def __repr__(self) -> str:
        what = "no answer" if self.start is None else f"{self.answer!r}, start={self.start}, end={self.end}"
        return f"AnswerPrediction({what}, probability={self.probability:.3f})"

    def cells(self) -> dict[str, Any]:
        """The answer, its probability and its place."""
        return {PREDICTION: self.answer, PROBABILITY: self.probability, START: self.start, END: self.end}

    def all_probabilities(self) -> dict[str, float]:
        """That of no answer, where there may be none."""
        return {} if self.no_answer_probability is None else {"no answer": self.no_answer_probability}


@dataclass(frozen=True, repr=False)
class ChoicePrediction:
    """The option that answers a question."""

    option: str
    """Its text."""
    number: int
    """Its number, from 0."""
    probability: float
    probabilities: tuple[float, ...]
    """Those of all options, in their order; they sum to 1."""
    answer_format: AnswerFormat = "option text"
    """How the training file named the right option, and so how `cells` does."""

    def __repr__(self) -> str:
        return f"ChoicePrediction({self.option!r}, number={self.number}, probability={self.probability:.3f})"

    def cells(self) -> dict[str, Any]:
        """The option as the training file named it, and its probability."""
        named: dict[AnswerFormat, Any] = {
            "option text": self.option,
            "letter": letter(self.number),
            "number from 0": self.number,
            "number from 1": self.number + 1,
        }
        return {PREDICTION: named[self.answer_format], PROBABILITY: self.probability}

    def all_probabilities(self) -> list[float]:
        """Those of the options, in their order."""
        return list(self.probabilities)


@dataclass(frozen=True, repr=False)
class TagsPrediction:
    """The tags of a text's words, and the entities that they mark."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    """One for each word."""
    probabilities: tuple[float, ...]
    """That of each tag."""
    entities: tuple[FoundEntity, ...] | None
    """In the order of the text, as its characters; None where tags mark no entities."""

    def __repr__(self) -> str:
        if self.entities is None:
            return f"TagsPrediction({' '.join(map('/'.join, zip(self.words, self.tags, strict=True)))})"
        shown = (f"{one.text!r} {one.label} {one.probability:.3f}" for one in self.entities)
        return f"TagsPrediction({', '.join(shown)})"

    def cells(self) -> dict[str, Any]:
        """The entities, or the tags where they mark none; and the tags for a column of words."""
        tags = list(self.tags)
        return {PREDICTION: tags if self.entities is None else [asdict(one) for one in self.entities], TAGS: tags}

    def all_probabilities(self) -> list[dict[str, float]]:
        """That of the tag of each word."""
        return [{tag: one} for tag, one in zip(self.tags, self.probabilities, strict=True)]


@dataclass(frozen=True)
class Guess:
    """A predicted piece for a [MASK]."""

    piece: str
    """As in the vocabulary: a leading `▁` begins a word."""
    id: int
    probability: float

    @property
    def reading(self) -> str:
        """The piece as readable text; a continuation of a word begins with an ellipsis."""
        return self.piece.removeprefix(SPACE) or "(space)" if self.piece.startswith(SPACE) else f"…{self.piece}"


@dataclass(frozen=True, repr=False)
class FillPrediction:
    """The most probable pieces for each [MASK] of a text."""

    masks: tuple[tuple[Guess, ...], ...]
    """For each mask, in order, its pieces, the best first."""

    @property
    def words(self) -> tuple[str, ...]:
        """The best piece for each mask, as text."""
        return tuple(of_mask[0].piece.removeprefix(SPACE) for of_mask in self.masks)

    def __repr__(self) -> str:
        shown = (", ".join(f"{guess.reading} {guess.probability:.3f}" for guess in of_mask) for of_mask in self.masks)
        return f"FillPrediction({'; '.join(shown)})"

    def cells(self) -> dict[str, Any]:
        """The best pieces and their joint probability, as if masks were independent."""
        probability = math.prod(of_mask[0].probability for of_mask in self.masks)
        return {PREDICTION: " ".join(self.words), PROBABILITY: probability}

    def all_probabilities(self) -> list[dict[str, float]]:
        """The best few pieces of each mask."""
        return [{guess.piece: guess.probability for guess in of_mask} for of_mask in self.masks]


def added_columns(
    kind: Kind | None, labels: tuple[str, ...], answer_format: AnswerFormat | None, all_probabilities: bool
) -> dict[str, CellKind]:
    """The columns that predictions of a kind are written to, before any is made; a pretrained model has the kind None.

    All probabilities have a column for each label, where the labels are known, else one for all of them.
    """
    prediction: CellKind = "text"
    if kind in ("regression", "similarity"):
        return {PREDICTION: "number"}
    if kind == "tagging":
        return {PREDICTION: "text", PROBABILITIES: "text"} if all_probabilities else {PREDICTION: "text"}
    if kind == "multi_label":
        prediction = "texts"
    elif kind == "multiple_choice" and answer_format in ("number from 0", "number from 1"):
        prediction = "whole number"
    columns: dict[str, CellKind] = {PREDICTION: prediction, PROBABILITY: "number"}
    if kind == "question_answering":
        columns |= {START: "whole number", END: "whole number"}
    if all_probabilities and labels and kind in ("classification", "multi_label"):
        return {**columns, **{f"{PROBABILITY}_{label}": "number" for label in labels}}
    return {**columns, PROBABILITIES: "text"} if all_probabilities else columns
