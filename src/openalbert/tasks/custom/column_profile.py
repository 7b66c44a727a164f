"""What a column of a custom file holds, by a sample of its cells: text, classes, values, dates, links or ids."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from openalbert.errors import UserError
from openalbert.tasks.data.labels import is_nan
from openalbert.tasks.data.row_files import as_text

TEXT_WORDS = 4.0  # mean words of a cell from which a column is certainly text; names of people and places have fewer
SHORT_TEXT_WORDS = 2.0
LABEL_WORDS = 6.0  # mean words of a label at most
FEW_CLASSES = 20
MOSTLY = 0.9  # the fraction of cells that makes a column one of dates, links or numbers
_DENSE = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")  # no spaces between words
_NUMBER = re.compile(r"[-+]?[$€£]? ?\d[\d.,]*(e[-+]?\d+)? ?%?", re.IGNORECASE)
_LINK = re.compile(r"(https?://|www\.)\S+|[^\s@]+@[^\s@]+\.\w+", re.IGNORECASE)
_DATE_WORDS = frozenset(
    "jan feb mar apr may jun jul aug sep sept oct nov dec january february march april june july august september "
    "october november december mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday "
    "am pm t z utc gmt st nd rd th of".split()
)


@dataclass(frozen=True)
class Profile:
    """Statistics of one column, from a sample of its rows."""

    filled: int
    """Non-empty cells of the sample."""
    distinct: int
    words: float
    """Mean words of a cell; two characters are a word in scripts without spaces."""
    is_nested: bool
    """Whether cells are lists or objects."""
    is_numeric: bool
    """Numbers, also with a currency, a percent sign or thousands separators."""
    is_value: bool
    """Finite numbers only, as regression needs them."""
    is_whole: bool
    is_date: bool
    is_link: bool
    """URLs or e-mail addresses."""
    counts_rows: bool
    """Whole numbers that grow evenly from row to row."""

    @property
    def can_be_text(self) -> bool:
        """Whether it can be text: no numbers, dates, links or nested values."""
        return self.filled > 0 and not (self.is_nested or self.is_numeric or self.is_date or self.is_link)

    @property
    def holds_text(self) -> bool:
        """Whether it is certainly text: several words per cell, and not a few repeated values."""
        varied = self.distinct > FEW_CLASSES or 5 * self.distinct >= self.filled
        return self.can_be_text and self.words >= TEXT_WORDS and varied

    @property
    def holds_short_text(self) -> bool:
        """Whether it may be text: a few words, mostly different, as names of people and places are too."""
        return self.can_be_text and self.words >= SHORT_TEXT_WORDS and 2 * self.distinct > self.filled

    def is_as_long_as(self, other: "Profile") -> bool:
        """Whether the mean words differ by a factor of two at most."""
        return self.words <= 2 * other.words and other.words <= 2 * self.words

    @property
    def is_class(self) -> bool:
        """Whether it has classes: few and short values that repeat."""
        repeats = 2 * self.distinct <= self.filled if self.filled >= 8 else self.distinct < self.filled
        few = repeats and self.distinct <= FEW_CLASSES
        if self.is_numeric:
            return self._may_be_class and few and (self.is_whole or self.distinct <= FEW_CLASSES // 2)
        return self._may_be_class and (few or 5 * self.distinct <= self.filled) and not self.holds_text

    @property
    def may_be_class(self) -> bool:
        """Whether it could have classes if no other column does: in a small table they need not repeat."""
        return self._may_be_class and not self.holds_text and (self.is_class or self.filled < FEW_CLASSES)

    @property
    def is_class_if_named_so(self) -> bool:
        """Whether it can have classes, given that its name says so."""
        odd = self.is_nested or self.is_date or self.is_link or self.holds_text
        too_many = self.is_numeric and self.distinct > FEW_CLASSES and 2 * self.distinct > self.filled
        return self.filled > 0 and self.words <= LABEL_WORDS and not odd and not too_many

    @property
    def _may_be_class(self) -> bool:
        odd = self.is_nested or self.is_date or self.is_link or self.counts_rows
        return self.distinct > 1 and self.words <= LABEL_WORDS and not odd

    @property
    def may_be_value(self) -> bool:
        """Whether it could have the values of a regression."""
        return self.is_value and self.distinct > 1 and not self.counts_rows


def profile(values: Sequence[object]) -> Profile:
    """The statistics of a column's cells, in their order."""
    cells: list[str] = []
    is_nested = False
    for value in values:
        try:
            cell = as_text(value, "").strip()
        except UserError:
            is_nested = True
            cell = repr(value) if value else ""
        if cell and not is_nan(cell):
            cells.append(cell)
    filled = len(cells)
    numbers = [_finite(cell) for cell in cells]
    found = [number for number in numbers if number is not None]
    is_value = filled > 0 and len(found) == filled and not is_nested
    is_whole = is_value and all(number.is_integer() for number in found)
    return Profile(
        filled=filled,
        distinct=len(set(cells)),
        words=sum(map(_num_words, cells)) / max(1, filled),
        is_nested=is_nested,
        is_numeric=_are_mostly([bool(_NUMBER.fullmatch(cell)) or _finite(cell) is not None for cell in cells]),
        is_value=is_value,
        is_whole=is_whole,
        is_date=_are_mostly([_is_date(cell) for cell in cells]),
        is_link=_are_mostly([bool(_LINK.fullmatch(cell)) for cell in cells]),
        counts_rows=is_whole and filled > 2 and _grow_evenly(found),
    )


def hold_sets(values: Sequence[object], separators: Sequence[str]) -> bool:
    """Whether cells are sets of labels: lists, or short items that repeat with a separator between them."""
    if any(isinstance(value, list) for value in values):
        return all(value is None or isinstance(value, list) for value in values)
    cells = [value for value in values if isinstance(value, str) and value.strip()]
    for separator in separators:
        items = [item.strip() for cell in cells for item in cell.split(separator)]
        if len(items) > len(cells) and 2 * len(set(items)) <= len(items):
            return sum(map(_num_words, items)) <= LABEL_WORDS / 2 * len(items)
    return False


def _num_words(cell: str) -> float:
    dense = len(_DENSE.findall(cell))
    return len(_DENSE.sub(" ", cell).split()) + dense / 2


def _finite(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _grow_evenly(numbers: Sequence[float]) -> bool:
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    return len(steps) == 1 and steps != {0.0}


def _is_date(cell: str) -> bool:
    """Whether it is a date or a time: digits with punctuation, and no words but those of dates."""
    words = re.findall(r"[^\W\d_]+", cell.casefold())
    if len(cell) > 40 or not set(words) <= _DATE_WORDS:
        return False
    return bool(re.search(r"\d[-/.:]\d+[-/.:]\d|\d:\d", cell) or (words and re.search(r"\d", cell)))


def _are_mostly(flags: Sequence[bool]) -> bool:
    return bool(flags) and sum(flags) >= MOSTLY * len(flags)
