"""Small tasks of every kind, made up: what encoding, prediction and evaluation are tried on."""

from collections.abc import Sequence
from dataclasses import replace

from openalbert.tasks.task import (
    Answer,
    ChoiceExample,
    Example,
    Kind,
    QuestionExample,
    Reading,
    TaggingExample,
    Task,
    TextExample,
)

PASSAGE = "The house was found in January 1900, by Mr. Smith."
CLASSES = ("bad", "good", "so-so")
TAGS = ("O", "B-bad", "I-bad", "B-good", "I-good")
EXAMPLES: dict[Kind, tuple[Example, ...]] = {
    "classification": (
        TextExample("a", "The first time was good.", None, 1),
        TextExample("b", "never again, never", "The world is old", 0),
        TextExample("c", "", "", 2),
        TextExample("d", "some people like it, others do not", None, 2),
    ),
    "regression": (
        TextExample("a", "A man made a house.", "A house was made by a man.", 4.6),
        TextExample("b", "two years", "three men", 0.25),
    ),
    "multi_label": (
        TextExample("a", "good and bad", None, (0, 1)),
        TextExample("b", "the state of the world", None, ()),
    ),
    "multiple_choice": (
        ChoiceExample("a", "He went home again. It was late.", "He went   _  .", ("home", "out", "to school"), 0),
        ChoiceExample("b", "", "What is small?", ("the world", "a hand"), 1),
        ChoiceExample("c", "People said so.", "Who said so?", ("the state", "people", "men", "the war"), 1),
    ),
    "question_answering": (
        QuestionExample("a", PASSAGE, "When?", (Answer("January 1900", 23),)),
        QuestionExample("b", PASSAGE, "Who?", (Answer("Mr. Smith", 40),)),
        QuestionExample("c", "Paris is old.", "Is London old?", ()),
    ),
    "tagging": (
        TaggingExample("a", "Mr. Smith was here", ((0, 3), (4, 9), (10, 13), (14, 18)), ("B-good", "I-good", "O", "O")),
        TaggingExample("b", "the world", ((0, 3), (4, 9)), ("O", "B-bad")),
        TaggingExample("c", "it", ((0, 2),), ("O",)),
    ),
}


def made_task(kind: Kind, examples: Sequence[Example] | None = None, may_have_no_answer: bool = True) -> Task:
    """A task whose every split is these examples, and whose only metric is the fraction of right predictions."""
    given = tuple(EXAMPLES[kind] if examples is None else examples)

    def read(split: str) -> Reading:
        return Reading(tuple(map(without_label, given)) if split == "test" else given)

    def measure(found: Sequence[Example], predictions: Sequence[object]) -> dict[str, float]:
        right = [is_right(example, prediction) for example, prediction in zip(found, predictions, strict=True)]
        return {"right": 100 * sum(right) / max(1, len(right))}

    labels = TAGS if kind == "tagging" else CLASSES if kind in ("classification", "multi_label") else ()
    may_be_silent = kind == "question_answering" and may_have_no_answer
    return Task(f"made_{kind}", kind, labels, ("dev",), read, measure, "right", may_have_no_answer=may_be_silent)


def without_label(example: Example) -> Example:
    if isinstance(example, QuestionExample):
        return replace(example, answers=(), is_labelled=False)
    if isinstance(example, TaggingExample):
        return replace(example, tags=None)
    return replace(example, label=None)


def is_right(example: Example, prediction: object) -> bool:
    if isinstance(example, QuestionExample):
        return prediction in ([answer.text for answer in example.answers] or [""])
    return prediction == (example.tags if isinstance(example, TaggingExample) else example.label)
