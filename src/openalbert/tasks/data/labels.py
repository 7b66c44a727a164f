"""Labels as files write them, and the examples of rows with texts and a label.

A column of whole numbers with a missing value becomes one of floats in a data frame: it has 1.0 for 1, and NaN.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.row_files import Exclusions, Row, Table, describe_empty_rows
from openalbert.tasks.task import Reading, TextExample

LARGEST_VALUE = 1e30  # a model computes in 32 bits, and its predictions may be a multiple of the values
NO_LABEL = ("", "-", "-1")  # missing labels, or those on which annotators did not agree
_WHOLE = re.compile(r"(-?\d+)\.0+")


def plain(label: str) -> str:
    """A whole number without the `.0` of a float; everything else unchanged."""
    found = _WHOLE.fullmatch(label)
    if found is None:
        return label
    return "0" if found[1] == "-0" else found[1]


def is_nan(label: str) -> bool:
    """Whether it is NaN, which data frames write for a missing number."""
    return label.lower() == "nan"


def _are_numbers(labels: Iterable[str]) -> bool:
    """Whether all labels are numbers. NaN among numbers is a missing label; among words it may be one."""
    try:
        return all(float(label) == float(label) for label in labels)
    except ValueError:
        return False


def class_names(written: Iterable[str]) -> set[str]:
    """The distinct classes that labels name: numbers without `.0`, and no class for NaN among numbers."""
    labels = set(written)
    if _are_numbers(rest := {label for label in labels if not is_nan(label)}):
        return {plain(label) for label in rest}
    # Among words 1.0 may be the name of a version: it is kept, unless 1 occurs too.
    return {plain(label) if plain(label) in labels else label for label in labels}


class ClassNumbers:
    """Maps the labels in files to class numbers; `codes` are other names, and mean that the classes are fixed."""

    def __init__(self, names: Iterable[str], codes: Mapping[str, int] | None = None) -> None:
        self.names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self.names)} | dict(codes or {})
        self._plain = {plain(name): number for name, number in reversed(self._numbers.items())}
        self._nan_is_none = codes is not None or _are_numbers(self.names)

    def get(self, label: str) -> int | None:
        """The number of a class; None for an unknown label."""
        found = self._numbers.get(label)
        return self._plain.get(plain(label)) if found is None else found

    def is_none(self, label: str) -> bool:
        """Whether it marks a missing label."""
        return is_nan(label) and label not in self._numbers and self._nan_is_none

    @property
    def known(self) -> str:
        """The accepted labels for messages, 20 at most."""
        some = list(self._numbers)[:20]
        return ", ".join(some) + (", …" if len(self._numbers) > 20 else "")


def class_number(row: Row, column: str, numbers: ClassNumbers) -> int | None:
    """The number of the row's class; None where it has no label."""
    if not isinstance(numbers, ClassNumbers):  # a dictionary would do until the first label that it does not know
        raise TypeError(f"class_number needs ClassNumbers(names, codes), not a {type(numbers).__name__}")
    label = row.text(column).strip()
    if (number := numbers.get(label)) is not None:
        return number
    if plain(label) in NO_LABEL or numbers.is_none(label):
        return None
    raise UserError(f"{row.place}: the label '{label}' in '{column}' is not known: known are {numbers.known}")


def parse_value(row: Row, column: str) -> float | None:
    """The row's value; None where it has none."""
    text = row.text(column).strip()
    if not text or is_nan(text):
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{row.place}: '{text[:40]}' in '{column}' is not a number")
    if abs(number) > LARGEST_VALUE:
        raise UserError(
            f"{row.place}: {text[:40]} in '{column}' is too large to compute with: {LARGEST_VALUE:g} is the maximum, "
            "give the values in a larger unit"
        )
    return number


def describe_nan_labels(name: str, column: str, labels: Iterable[str]) -> tuple[str, ...]:
    """A message on a class named NaN, which may also be meant as a missing label."""
    found = [label for label in labels if is_nan(label)]
    if not found:
        return ()
    what = f"'{found[0]}' in '{column}' is taken for a label like the others ({counted(len(found), 'row')})"
    return (f"{name}: {what}: if it means a missing label, leave the cell empty",)


def read_texts(
    table: Table,
    ids: Sequence[str],
    columns: Sequence[str],
    label_of: Callable[[Row], int | float | tuple[int, ...] | None] | None,
) -> Reading:
    """An example from each row with its text, or its two texts, and its label; from every row without `label_of`.

    `columns` are those of the texts. Rows without a text or a label are excluded and counted.
    """
    examples: list[TextExample] = []
    excluded, empty = Exclusions(table.excluded), Exclusions()
    for number, (row, row_id) in enumerate(zip(table.rows, ids, strict=True), 1):
        first, *second = (row.visible_text(column) for column in columns)
        label = None
        if not all((first, *second)):
            (excluded if label_of is not None else empty).add("without a text", row.place)
            if label_of is not None:
                continue
        if label_of is not None and (label := label_of(row)) is None:
            excluded.add("without a label", row.place)
            continue
        # After an excluded row the following ones have another number in the file.
        number_in_file = None if table.excluded else number
        examples.append(TextExample(row_id, first, second[0] if second else None, label, row=number_in_file))
    return Reading(tuple(examples), excluded.counted(), (*table.remarks, *describe_empty_rows(empty)))
