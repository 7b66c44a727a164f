"""What a row of a table says about its text: its id, its class, its value, each refused with file and row if wrong."""

import math
import unicodedata
from collections.abc import Iterable, Mapping

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.data.labels import ClassNumbers, is_nan, plain
from openalbert.tasks.data.tables import Exclusions, Row, Table

LARGEST_VALUE = 1e30  # a model computes in 32 bits, and what it says of values may be a multiple of them
NO_LABEL = ("", "-", "-1")  # what stands where annotators did not agree, or nobody has said


# Signs without a shape that Unicode counts among letters, symbols or accents: fillers, an empty braille cell, joiners.
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe0e\ufe0f")


def without_blanks(text: str) -> str:
    """What is to be seen of a text: no space, no control characters, nothing that has no width."""
    return "".join(filter(_is_seen, text))


def _is_seen(sign: str) -> bool:
    return not (sign in BLANK or sign.isspace() or unicodedata.category(sign) in ("Cc", "Cf"))


def seen_text(row: Row, column: str) -> str:
    """The row's text; "" where there is nothing to be seen in it."""
    text = row.text(column).strip()
    return text if any(map(_is_seen, text)) else ""


def ids(table: Table, columns: Iterable[str]) -> list[str]:
    """The name of each row: from the first of the columns that there is, else its number, from 0."""
    column = next((name for name in columns if name in table.columns), None)
    if column is None:
        return [str(number) for number in range(len(table.rows))]
    seen: dict[str, Row] = {}
    for row in table.rows:
        name = row.text(column).strip()
        if name in seen:
            raise UserError(
                f"{row.place}: the {column} '{name}' stands in {seen[name].place} already: every row needs its own"
            )
        seen[name] = row
    return list(seen)


def predicted_all_the_same(empty: Exclusions) -> tuple[str, ...]:
    """What to say of rows to predict for that should have been left out; every row needs its prediction."""
    return tuple(
        f"{counted(count, 'row')} {reason}: predicted all the same" for reason, count in empty.counted().items()
    )


def check_none_lost(name: str, excluded: Mapping[str, int]) -> None:
    """Refuse a file to predict for of which rows would be left out: a submission needs a prediction for each row."""
    if excluded:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in excluded.items())
        raise UserError(
            f"{name}: rows that cannot be read: {reasons}. Every row of a file to predict for needs its prediction, so "
            "none is skipped there: repair these rows, or remove them from the file"
        )


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


def value(row: Row, column: str) -> float | None:
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
            f"{row.place}: {text[:40]} in '{column}' is too large to be computed with: {LARGEST_VALUE:g} is the most, "
            "give the values in a larger unit"
        )
    return number
