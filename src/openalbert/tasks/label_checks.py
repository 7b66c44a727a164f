"""What the distribution of labels allows to learn and to score."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from jaxtyping import Float64

from openalbert.errors import UserError
from openalbert.formatting import counted, listed
from openalbert.tasks.data.row_files import visible_characters
from openalbert.tasks.tags import Tags, count_by_type, gold_tags, mark_entities
from openalbert.tasks.task import Example, Kind, Reading, Task, TextExample

MAX_NAMES = 10  # classes, or pairs of similar names, in one message
MAX_NAME_LENGTH = 40  # characters of a name in a message
SMALLEST_SPREAD = 1e-30  # of values
COARSE = 0.01  # of the standard deviation of values: larger steps between 32-bit numbers are reported


def describe_classes(task: Task, examples: Sequence[Example]) -> list[str]:
    """A message with the number of examples of each class, and one on names that may mean the same."""
    if task.kind == "tagging":
        return [_describe_tags(task, examples)]
    if not task.labels or task.kind not in ("classification", "multi_label"):
        return []
    sets = [_numbers(example) for example in examples]
    frequency = Counter(number for numbers in sets for number in numbers)
    order = list(range(len(task.labels)))
    if len(order) > MAX_NAMES:
        order.sort(key=lambda number: -frequency[number])
    shown = listed([f"{_short(task.labels[number])} {frequency[number]:,}" for number in order], MAX_NAMES)
    without = sum(not numbers for numbers in sets)
    rest = f"; {counted(without, 'example')} with none" if without else ""
    what = "class" if task.kind == "classification" else "label"
    plural = "" if len(order) == 1 else "es" if what == "class" else "s"
    return [f"{len(order):,} {what}{plural}: {shown}{rest}", *_describe_similar_names(task.labels)]


def _describe_tags(task: Task, examples: Sequence[Example]) -> str:
    """A message with the number of entities of each type, or of words with each tag."""
    tags = gold_tags(examples)
    marks_entities = mark_entities(task.labels)
    counts = {name: wanted for name, (_, wanted, _) in count_by_type(tags, tags, marks_entities).items()}
    order = sorted(counts, key=lambda name: -counts[name])
    shown = listed([f"{_short(name)} {counts[name]:,}" for name in order], MAX_NAMES)
    entities = f"{sum(counts.values()):,} entities in " if marks_entities else ""
    return f"{entities}{counted(sum(map(len, tags)), 'word')}: {shown}"


def describe_absent_classes(task: Task, train: Sequence[Example], scored: Sequence[Example]) -> list[str]:
    """A warning about classes that are in the training examples but not in those to score on."""
    if task.kind != "classification":
        return []
    learned, scorable = ({number for example in some for number in _numbers(example)} for some in (train, scored))
    names = [_short(task.labels[number]) for number in sorted(learned - scorable)]
    if not names or not scorable:
        return []
    shown = ", ".join(names[:MAX_NAMES]) + (" and more" if len(names) > MAX_NAMES else "")
    return [
        f"WARNING: there is no example of class {shown} to score on, so no metric counts it: give a file with --dev "
        "that has some, or hold out more with --heldout-fraction"
    ]


def describe_class_weights(task: Task, weights: Float64[np.ndarray, "classes"]) -> str:
    """A message with the weights of the classes in the loss."""
    named = [f"{_short(name)} {weight:.3g}" for name, weight in zip(task.labels, weights, strict=True)]
    return f"class weights: {listed(named, MAX_NAMES)}"


def never_predicted(task: Task, examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, int]:
    """The classes or labels that occur in examples and in no prediction, with their numbers of examples."""
    if task.kind == "tagging":
        given = cast("Sequence[Tags]", predictions)
        counts = count_by_type(gold_tags(examples), given, mark_entities(task.labels))
        return {name: wanted for name, (_, wanted, found) in counts.items() if not found}
    if task.kind not in ("classification", "multi_label"):
        return {}
    gold = Counter(number for example in examples for number in _numbers(example))
    predicted = {number for one in predictions for number in (one if isinstance(one, tuple) else (one,))}
    return {task.labels[number]: gold[number] for number in sorted(gold) if number not in predicted}


def describe_never_predicted(kind: Kind, missing: Mapping[str, int], num_examples: int) -> list[str]:
    """Messages on the result of `never_predicted`."""
    what = {"classification": "class", "tagging": "type"}.get(kind, "label")
    of_all = f"in {counted(num_examples, 'text')}" if kind == "tagging" else f"of {counted(num_examples, 'example')}"
    messages = [
        f"{what} {_short(name)} was never predicted ({count:,} {of_all})"
        for name, count in sorted(missing.items(), key=lambda one: -one[1])[:MAX_NAMES]
    ]
    if len(missing) > MAX_NAMES:
        messages.append(f"{len(missing) - MAX_NAMES:,} more were never predicted either")
    return messages


def find_constant_label(task: Task, examples: Sequence[Example]) -> str | None:
    """A phrase on the label that all examples have; None where labels differ, or examples have none."""
    found = {example.label for example in examples if isinstance(example, TextExample)}
    label = found.pop() if len(found) == 1 else None
    if isinstance(label, tuple):
        names = ", ".join(f"'{_short(task.labels[number])}'" for number in label)
        return f"all examples have the same labels, {names}" if label else "no example has a label"
    if label is None:
        return None
    if task.kind == "regression":
        return f"all examples have the same value, {label:g}"
    return f"all examples are of one class, '{_short(task.labels[int(label)])}'"


def values_of(examples: Sequence[Example]) -> Float64[np.ndarray, "examples"]:
    """The values of regression examples, in double precision."""
    return np.array([example.label for example in examples if isinstance(example, TextExample)], np.float64)


def check_spread(reading: Reading) -> list[str]:
    """Refuse values that are equal as 32-bit numbers, which is what a model predicts.

    Returns a message where they differ by a few steps between such numbers only.
    """
    values = values_of(reading.examples)
    spread, largest = float(np.ptp(values)), float(np.abs(values).max())
    step = float(np.spacing(np.float32(largest)))
    if spread < SMALLEST_SPREAD:
        raise UserError(
            f"{reading.origin}: the values differ by {spread:.3g} at most, which is too little to compute with: "
            "give them in a smaller unit"
        )
    if np.ptp(values.astype(np.float32)) == 0:
        raise UserError(
            f"{reading.origin}: the values differ by {spread:.3g} at most, and reach {largest:.3g}: a model predicts "
            f"32-bit numbers, which have steps of {step:.3g} there, so it cannot distinguish them; "
            "give them as differences from their mean"
        )
    if step > COARSE * float(values.std()):
        return [
            f"the model predicts 32-bit numbers, which have steps of {step:.3g} where values reach {largest:.3g}: "
            "for finer steps give the values as differences from their mean"
        ]
    return []


def describe_constant_label(task: Task, examples: Sequence[Example]) -> list[str]:
    """A message on examples to score on that all have the same label."""
    constant = find_constant_label(task, examples)
    if constant is None:
        return []
    if task.kind == "regression":
        return [f"{constant}: no metric is meaningful there, and those that are not defined are reported as 0"]
    return [f"{constant}: a score there is hardly meaningful"]


def _numbers(example: Example) -> tuple[int, ...]:
    label = example.label if isinstance(example, TextExample) else None
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, int) else ()


def _describe_similar_names(labels: Sequence[str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(visible_characters(label).casefold(), []).append(f"'{_short(label)}'")
    similar = [" and ".join(names) for names in groups.values() if len(names) > 1]
    if not similar:
        return []
    named = listed(similar, MAX_NAMES)
    return [f"{named} differ by case or white space only: if they mean the same, write them in one way"]


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
