"""Which columns hold the texts and which the label: guessed by names and by what stands there, or asked for.

No guess depends on the order of the columns. A column of texts that is left over is never passed over in silence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openalbert.errors import UserError
from openalbert.tasks.custom.columns import Columns, option, sample
from openalbert.tasks.custom.names import (
    ANSWERS,
    LABELS,
    SECOND,
    SUBJECTS,
    Pair,
    is_id,
    is_of_labels,
    pairs_of,
    parts,
    simple,
)
from openalbert.tasks.custom.profile import Profile, hold_sets
from openalbert.tasks.data.source import TaskSource

Labelling: TypeAlias = Literal["classes", "values", "sets"]
"""What is said of a text: one of some classes, a value, or any number of labels."""
SEPARATORS = (";", "|", ",")


@dataclass(frozen=True)
class Guess:
    """The columns that were chosen; the label is None where it is not needed."""

    first: str
    second: str | None
    label: str | None


def choose(columns: Columns, source: TaskSource, labelling: Labelling, labelled: bool, finds_label: bool) -> Guess:
    """Give the columns of the texts and of the label their roles; `finds_label` unless labels have columns each."""
    label = columns.given("label", source.label_column if labelled else None) if finds_label else None
    if finds_label and label is None:
        label = _label_by_name(columns, source, labelling, labelled)
    first = _text_by_name(columns, source)
    second = columns.given("second", source.second_column)
    if second is None and first is not None:
        second = _second_by_name(columns, source, first)
    is_open = finds_label and labelled and label is None
    if is_open:
        label = _label_by_content(columns, labelling)
        is_open = label is None
    if first is None:
        first = _text_by_content(columns, labelling, is_open)
    if is_open:
        label = _only_label(columns, labelling)
    if second is None:
        second = _second_by_content(columns, source, first)
    return Guess(first, second, label)


# The label.


def _label_by_name(columns: Columns, source: TaskSource, labelling: Labelling, labelled: bool) -> str | None:
    """A column whose name says that it is the label; several names that say so are asked about."""
    sure, likely = set(map(simple, LABELS)), set(map(simple, SUBJECTS))
    found = [column for column in columns.guessable if simple(column) in sure]
    candidates = [column for column in found if _is_fit_by_name(columns, column, labelling)] or found
    if not candidates:
        named = (source.text_column, source.second_column)
        free = [column for column in columns.guessable if column not in named]
        candidates = [name for name in free if simple(name) in likely and _is_fit_by_name(columns, name, labelling)]
        if candidates:  # then a longer name of the kind is another candidate
            candidates += [
                name for name in _fitting(columns, free, _is_label(labelling)) if is_of_labels(name) and not is_id(name)
            ]
    candidates = _without_twins(columns, dict.fromkeys(candidates))
    if len(candidates) > 1 and labelled:
        raise columns.missing("label", candidates)
    return columns.take("label", candidates[0], guessed=True) if len(candidates) == 1 else None


def _is_fit_by_name(columns: Columns, column: str, labelling: Labelling) -> bool:
    found = columns.profile(column)
    if labelling == "values":
        return found.is_value
    return found.is_class_if_named_so or (labelling == "sets" and _holds_sets(columns, column))


def _label_by_content(columns: Columns, labelling: Labelling) -> str | None:
    """The one column that holds labels by its content; of several, the one that is also named as labels are."""
    free = [column for column in columns.guessable if column and not is_id(column)]
    sets = [column for column in free if labelling == "sets" and _holds_sets(columns, column)]
    found = _without_twins(columns, sets or _fitting(columns, free, _is_label(labelling)))
    if len(found) > 1:
        found = [column for column in found if is_of_labels(column)] or found
    if len(found) > 1:
        raise _which_label(columns, found)
    return columns.take_as_named("label", found[0]) if found else None


def _only_label(columns: Columns, labelling: Labelling) -> str:
    """The label where nothing repeats, as in a table of a few rows: the only column that is left for it."""
    free = [column for column in columns.guessable if not is_id(column) or len(columns.free) == 1]
    found = [column for column in free if not columns.profile(column).holds_text]
    if labelling != "values":
        may_be = _fitting(columns, found, lambda profile: profile.may_be_class)
        found = may_be or (found if len(columns.free) == 1 else [])
    elif len(columns.free) != 1:
        found = []
    if len(found) != 1:
        raise _which_label(columns, found)
    return columns.take_as_named("label", found[0])


def _which_label(columns: Columns, candidates: Sequence[str]) -> UserError:
    """What to say where none or several may be the label; a first line that names no columns is refused before that."""
    for column in candidates:
        columns.check_name("label", column)
    return columns.missing("label", candidates)


def _fitting(columns: Columns, names: Sequence[str], is_fit: Callable[[Profile], bool]) -> list[str]:
    return [name for name in names if is_fit(columns.profile(name))]


def _is_label(labelling: Labelling) -> Callable[[Profile], bool]:
    return lambda profile: profile.may_be_value if labelling == "values" else profile.is_class


def _holds_sets(columns: Columns, column: str) -> bool:
    return hold_sets(sample(columns.table, column), SEPARATORS)


def _without_twins(columns: Columns, names: Iterable[str]) -> list[str]:
    """Of columns that say the same in other words, such as a class and its number, only the first by name."""
    kept: list[str] = []
    for name in sorted(names):
        if not any(_are_twins(columns, name, other) for other in kept):
            kept.append(name)
    return kept


def _are_twins(columns: Columns, one: str, other: str) -> bool:
    cells = list(zip(*(map(repr, sample(columns.table, name)) for name in (one, other)), strict=True))
    kinds = len(set(cells))
    return 1 < kinds < len(cells) and kinds == len({a for a, _ in cells}) == len({b for _, b in cells})


# The texts.


def _can_be_text(profile: Profile) -> bool:
    return profile.can_be_text


def _text_by_name(columns: Columns, source: TaskSource) -> str | None:
    """The text that the user named, or that was learned from, or the first of two that belong together by name, or one
    that is known by its name."""
    first = columns.given("text", source.text_column)
    if first is not None:
        return first
    pairs = _best(_pairs(columns))
    if source.second_column is not None:
        pairs = [pair for pair in pairs if pair.second == source.second_column]
    if len(pairs) == 1:
        return columns.take("text", pairs[0].first, guessed=True)
    if len(pairs) > 1:
        raise _which_texts(columns, sorted({column for pair in pairs for column in (pair.first, pair.second)}))
    return columns.by_name("text", _can_be_text)


def _second_by_name(columns: Columns, source: TaskSource, first: str) -> str | None:
    """The text that belongs to the first by its name. Where the user has named the first alone, there is none."""
    if source.text_column is not None:
        return None
    pairs = _best([pair for pair in _pairs(columns, first) if pair.first == first])
    seconds = [pair.second for pair in pairs]
    if not seconds and len(pairs_of(columns.guessable)) == 0:
        seconds = [name for name in columns.guessable if simple(name) in SECOND]
    if len(seconds) > 1:
        raise _which_texts(columns, [first, *seconds])
    return columns.take("second", seconds[0], guessed=True) if seconds else None


def _pairs(columns: Columns, *more: str) -> list[Pair]:
    """Pairs by name, of columns that can be texts by what stands there."""
    names = [*_fitting(columns, columns.guessable, _can_be_text), *more]
    return [pair for pair in pairs_of(names) if _is_likely(columns, pair)]


def _is_likely(columns: Columns, pair: Pair) -> bool:
    first, second = columns.profile(pair.first), columns.profile(pair.second)
    if not pair.is_of_texts:
        return first.holds_text and second.holds_text
    return not (set(parts(pair.second)) & ANSWERS and second.is_class)


def _best(pairs: list[Pair]) -> list[Pair]:
    """The pairs whose names say nothing else, if there are any."""
    return [pair for pair in pairs if pair.is_plain] or pairs


def _text_by_content(columns: Columns, labelling: Labelling, label_is_open: bool) -> str:
    """The one column that holds texts, else the longest."""
    free = [column for column in columns.guessable if not (labelling == "sets" and _holds_sets(columns, column))]
    texts = _fitting(columns, free, lambda profile: profile.holds_text)
    if len(texts) > 1:
        for column in texts:
            columns.check_name("text", column)
        if label_is_open and len(texts) == len(columns.free):
            raise columns.missing("label")
        raise _which_texts(columns, texts)
    if len(texts) == 1:
        return columns.take_as_named("text", texts[0])
    others = _fitting(columns, free, lambda profile: profile.can_be_text and not profile.is_class)
    first = columns.longest("text", others or free)
    if first is None:
        raise columns.missing("text")
    return first


def _second_by_content(columns: Columns, source: TaskSource, first: str) -> str | None:
    """The only column of texts that is left, where the model learned from pairs; else it is asked about."""
    left = [name for name in columns.guessable if columns.profile(name).holds_text or _is_alike(columns, first, name)]
    if source.text_column is not None or not left:
        return None
    if "second" in columns.layout and len(left) == 1:
        return columns.take_as_named("second", left[0])
    if "text" in columns.known:
        return None
    raise _which_texts(columns, [first, *left])


def _is_alike(columns: Columns, first: str, other: str) -> bool:
    """Whether a column of short texts may belong to the first: as long as that, and mostly different, or named so."""
    found = columns.profile(other)
    if not found.can_be_text or found.is_class or not found.is_as_long_as(columns.profile(first)):
        return False
    return bool(pairs_of([first, other])) or (
        found.holds_short_text and not is_id(other) and not _holds_sets(columns, other)
    )


def _which_texts(columns: Columns, texts: Sequence[str]) -> UserError:
    """What to say where several columns hold texts and their names do not say which are meant."""
    one, two, *_ = texts = [column for column in columns.table.columns if column in texts]
    listed = ", ".join(f"'{column}'" for column in texts)
    each = " or ".join(option("text", column) for column in texts)
    return UserError(
        f"{columns.table.name}: {len(texts)} columns hold texts: {listed}. To read a pair, name both in their order, "
        f"{option('text', one)} {option('second', two)} for example; to read one alone, add {each}"
    )
