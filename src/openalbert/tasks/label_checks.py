"""What there is to tell apart: how many examples each class has, and where all examples are alike."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.fields import without_blanks
from openalbert.tasks.task import Example, Kind, Reading, Task, TextExample

MOST_TOLD = 10  # classes, or pairs of names that look alike: a line holds no more
SMALLEST_SPREAD = 1e-30  # of values
COARSE = 0.01  # of the standard deviation of values: steps between 32-bit numbers that are larger are told
LONGEST_NAME = 40  # characters of a name in a sentence


def classes_told(task: Task, examples: Sequence[Example]) -> list[str]:
    """How many examples each class has, as a sentence, and one on names that may mean the same."""
    if not task.labels or task.kind not in ("classification", "multi_label"):
        return []
    sets = [_numbers(example) for example in examples]
    frequency = Counter(number for numbers in sets for number in numbers)
    order = list(range(len(task.labels)))
    if len(order) > MOST_TOLD:
        order.sort(key=lambda number: -frequency[number])
    shown = ", ".join(f"{_short(task.labels[number])} {frequency[number]:,}" for number in order[:MOST_TOLD])
    more = f" and {len(order) - MOST_TOLD:,} more" if len(order) > MOST_TOLD else ""
    without = sum(not numbers for numbers in sets)
    rest = f"; {counted(without, 'example')} with none" if without else ""
    what = "class" if task.kind == "classification" else "label"
    plural = "" if len(order) == 1 else "es" if what == "class" else "s"
    return [f"{len(order):,} {what}{plural}: {shown}{more}{rest}", *_look_alike(task.labels)]


def absent_told(task: Task, train: Sequence[Example], scored: Sequence[Example]) -> list[str]:
    """A warning of classes that are learned but cannot be scored."""
    if task.kind != "classification":
        return []
    learned, there = ({number for example in some for number in _numbers(example)} for some in (train, scored))
    names = [_short(task.labels[number]) for number in sorted(learned - there)]
    if not names or not there:
        return []
    shown = ", ".join(names[:MOST_TOLD]) + (" and more" if len(names) > MOST_TOLD else "")
    return [
        f"WARNING: there is no example of class {shown} to score on, so no metric counts it: give a file with --dev "
        "that has some, or hold out more with --heldout-fraction"
    ]


def weights_told(task: Task, weights: Float64[np.ndarray, "classes"]) -> str:
    """The weights of the classes in the loss, as a sentence."""
    shown = ", ".join(
        f"{_short(name)} {weight:.3g}" for name, weight in list(zip(task.labels, weights, strict=True))[:MOST_TOLD]
    )
    more = f" and {len(task.labels) - MOST_TOLD:,} more" if len(task.labels) > MOST_TOLD else ""
    return f"class weights: {shown}{more}"


def never_predicted(task: Task, examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, int]:
    """The classes or labels that some examples have and no prediction, with the number of those examples."""
    if task.kind not in ("classification", "multi_label"):
        return {}
    wanted = Counter(number for example in examples for number in _numbers(example))
    given = {number for one in predictions for number in (one if isinstance(one, tuple) else (one,))}
    return {task.labels[number]: wanted[number] for number in sorted(wanted) if number not in given}


def never_predicted_told(kind: Kind, missing: Mapping[str, int], num_examples: int) -> list[str]:
    """The same as sentences."""
    what = "class" if kind == "classification" else "label"
    of_all = f"of {counted(num_examples, 'example')}"
    told = [
        f"{what} {_short(name)} was never predicted ({count:,} {of_all})"
        for name, count in sorted(missing.items(), key=lambda one: -one[1])[:MOST_TOLD]
    ]
    if len(missing) > MOST_TOLD:
        told.append(f"{len(missing) - MOST_TOLD:,} more were never predicted either")
    return told


def all_alike(task: Task, examples: Sequence[Example]) -> str | None:
    """In what way all examples are alike, as half a sentence; None where there is something to tell apart, or nobody
    has said what is true of them."""
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
    """The values of examples to learn from, with all digits that were read."""
    return np.array([example.label for example in examples if isinstance(example, TextExample)], np.float64)


def check_spread(reading: Reading) -> list[str]:
    """Refuse values to learn that are one and the same as 32-bit numbers, which is what a model gives.

    A sentence where they are not, but their differences are a few steps between such numbers only.
    """
    values = values_of(reading.examples)
    spread, largest = float(np.ptp(values)), float(np.abs(values).max())
    step = float(np.spacing(np.float32(largest)))
    if spread < SMALLEST_SPREAD:
        raise UserError(
            f"{reading.origin}: the values differ by {spread:.3g} at most, which is too little to be computed with: "
            "give them in a smaller unit"
        )
    if np.ptp(values.astype(np.float32)) == 0:
        raise UserError(
            f"{reading.origin}: the values differ by {spread:.3g} at most, and reach {largest:.3g}: a model gives "
            f"32-bit numbers, which go in steps of {step:.3g} there, so it could not tell them from one another; "
            "give them as differences from their mean"
        )
    if step > COARSE * float(values.std()):
        return [
            f"the model gives 32-bit numbers, which go in steps of {step:.3g} where values reach {largest:.3g}: "
            "for finer ones give the values as differences from their mean"
        ]
    return []


def alike_told(task: Task, examples: Sequence[Example]) -> list[str]:
    """A sentence on examples to score on that are all alike."""
    alike = all_alike(task, examples)
    if alike is None:
        return []
    if task.kind == "regression":
        return [f"{alike}: no figure says anything there, and what cannot be computed is told as 0"]
    return [f"{alike}: a score there says little"]


def _numbers(example: Example) -> tuple[int, ...]:
    label = example.label if isinstance(example, TextExample) else None
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, int) else ()


def _look_alike(labels: Sequence[str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(without_blanks(label).casefold(), []).append(f"'{_short(label)}'")
    alike = [" and ".join(names) for names in groups.values() if len(names) > 1]
    if not alike:
        return []
    more = f" and {len(alike) - MOST_TOLD:,} more" if len(alike) > MOST_TOLD else ""
    return [
        f"{', '.join(alike[:MOST_TOLD])}{more} differ by upper and lower case or by space alone: if they mean the "
        "same, write them alike"
    ]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
