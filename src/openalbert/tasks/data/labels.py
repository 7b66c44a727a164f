"""Labels as files write them: which writings mean the same class, and what stands where there is no label.

A column of whole numbers with a gap becomes one of floats in a data frame: 1 is written 1.0 then, and the gap NaN.
"""

import re
from collections.abc import Iterable, Mapping

from openalbert.formatting import counted

_WHOLE = re.compile(r"(-?\d+)\.0+")


def plain(label: str) -> str:
    """A whole number without the `.0` that floats are written with; everything else as it is."""
    found = _WHOLE.fullmatch(label)
    if found is None:
        return label
    return "0" if found[1] == "-0" else found[1]


def is_nan(label: str) -> bool:
    """Is it what stands in the place of a number that is not there?"""
    return label.lower() == "nan"


def are_numbers(labels: Iterable[str]) -> bool:
    """Are these all numbers? Then NaN among them is no label, while among words it may be one."""
    try:
        return all(float(label) == float(label) for label in labels)
    except ValueError:
        return False


def class_names(written: Iterable[str]) -> set[str]:
    """The classes that these labels name: each once, numbers without `.0`, and none for NaN among numbers."""
    labels = set(written)
    if are_numbers(rest := {label for label in labels if not is_nan(label)}):
        return {plain(label) for label in rest}
    # Among words 1.0 may be the name of a version: it stays as it is, unless it is also written 1.
    return {plain(label) if plain(label) in labels else label for label in labels}


class ClassNumbers:
    """The numbers of classes by what files write; `codes` are other names of theirs, and say that there are no more."""

    def __init__(self, names: Iterable[str], codes: Mapping[str, int] | None = None) -> None:
        self.names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self.names)} | dict(codes or {})
        self._plain = {plain(name): number for name, number in reversed(self._numbers.items())}
        self._nan_is_none = codes is not None or are_numbers(self.names)

    def get(self, label: str) -> int | None:
        """The number of a class; None where it is not known."""
        found = self._numbers.get(label)
        return self._plain.get(plain(label)) if found is None else found

    def is_none(self, label: str) -> bool:
        """Does it stand where there is no label?"""
        return is_nan(label) and label not in self._numbers and self._nan_is_none

    @property
    def known(self) -> str:
        """All that may be written, to be named in a sentence; the first of many."""
        some = list(self._numbers)[:20]
        return ", ".join(some) + (", …" if len(self._numbers) > 20 else "")


def nan_told(name: str, column: str, labels: Iterable[str]) -> tuple[str, ...]:
    """A sentence on a class that is named as what is missing: it may be one, or may be none."""
    found = [label for label in labels if is_nan(label)]
    if not found:
        return ()
    what = f"'{found[0]}' in '{column}' is taken for a label like the others ({counted(len(found), 'row')})"
    return (f"{name}: {what}: where it stands for none, leave the cell empty",)
