"""Guesses which columns of a custom file have the texts and the label, by their names and their content.

No guess depends on the order of the columns. A column of texts that is not used is always reported.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, TypeAlias

from openalbert.errors import UserError
from openalbert.tasks.custom.column_profile import Profile, hold_sets
from openalbert.tasks.custom.columns import Columns, normalize_name, option, sample
from openalbert.tasks.data.source import TaskSource

Labelling: TypeAlias = Literal["classes", "values", "sets"]
"""What a text is labelled with: one of several classes, a value, or any number of labels."""
SEPARATORS = (";", "|", ",")
LABELS = ("label", "labels", "goldlabel", "class", "classes", "y", "etiqueta", "étiquette", "classe", "clase", "klasse",
          "метка", "класс", "标签", "ラベル", "레이블")  # fmt: skip
"""Names that mark a column as the label."""
SUBJECTS = ("category", "categories", "target", "sentiment", "score", "rating", "stars", "value", "intent", "topic",
            "tags", "emotion", "verdict", "stance", "outcome", "decision", "judgment", "judgement", "polarity", "gold",
            "annotation", "kategorie", "categoría", "catégorie", "categoria", "sentimento", "stimmung", "категория",
            "类别", "カテゴリ")  # fmt: skip
"""Names that a label may have: of several such columns the user has to choose one."""
IDS = frozenset("id ids idx index uid uuid guid nr no number key hash".split())
SECOND = ("second", "hypothesis", "textpair", "pair")
"""Names that mark a column as the second text, whatever the name of the first."""
_TEXTS = frozenset(
    "text txt sentence sent s question q query document doc passage paragraph utterance phrase statement string title "
    "claim argument review comment post tweet message snippet abstract summary texto texte frase satz phrase текст "
    "文本 句子".split()
)
_ORDINALS = (("1", "2"), ("0", "1"), ("a", "b"), ("first", "second"), ("one", "two"), ("left", "right"))
_IMPLIED = ("2", "b", "second", "two", "pair")  # suffixes of the second where the first has none: text, text_b
_ROLES = (
    (("premise",), ("hypothesis", "conclusion")),
    (("question", "query"), ("answer", "passage", "context", "paragraph", "document", "doc", "sentence", "article")),
    (("claim",), ("evidence",)),
    (("context", "prompt", "dialogue", "dialog", "history"), ("response", "reply", "completion")),
)
ANSWERS = frozenset(("answer", "response", "reply", "conclusion"))
"""Words in names of second texts that may also be labels: yes or no."""


def name_words(name: str) -> tuple[str, ...]:
    """The words and numbers of a name: `questionText_1` is question, text, 1."""
    spaced = re.sub(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])", " ", unicodedata.normalize("NFKC", name))
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", spaced)
    found = [normalize_name(word) for word in re.split(r"[\W_]+", spaced) if normalize_name(word)]
    if len(found) == 1 and found[0][:-1] in _TEXTS and len(found[0]) > 3 and found[0][-1] in "ab":
        found = [found[0][:-1], found[0][-1]]  # texta, textb
    return tuple(found)


def is_id(name: str) -> bool:
    """Whether a name is that of ids, and not of class ids: `user_id`, but not `label_id`."""
    found = name_words(name)
    return bool(found) and found[-1] in IDS and not is_of_labels(name)


def is_of_labels(name: str) -> bool:
    """Whether a word of the name is one that labels have: `review_sentiment`."""
    return bool(set(name_words(name)) & set(map(normalize_name, (*LABELS, *SUBJECTS))))


@dataclass(frozen=True)
class Pair:
    """Two columns that form a pair by their names."""

    first: str
    second: str
    is_plain: bool
    """Whether the names have no other words: `sentence1` is plain, `sentence1_parse` is not."""
    is_of_texts: bool
    """Whether the names are those of texts; `a` and `b` are not."""


def pairs_of(columns: Sequence[str]) -> list[Pair]:
    """All pairs of columns that form a pair of texts by their names."""
    found = []
    for first, second in permutations(sorted(columns), 2):
        pair = _numbered(first, second) or _by_roles(first, second) or _implied(first, second)
        if pair is not None:
            found.append(pair)
    return found


def _numbered(first: str, second: str) -> Pair | None:
    """sentence1 and sentence2, text_a and text_b, first sentence and second sentence."""
    one, two = name_words(first), name_words(second)
    differing = [place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b]
    if len(one) != len(two) or len(differing) != 1:
        return None
    place = differing[0]
    if (one[place], two[place]) not in _ORDINALS:
        return None
    rest = {*one[:place], *one[place + 1 :]}
    is_first = one[place] == "first" and not rest
    return Pair(first, second, len(one) <= 2, bool(rest & _TEXTS) or is_first)


def _by_roles(first: str, second: str) -> Pair | None:
    """premise and hypothesis, question and passage, in names that may have other words too."""
    one, two = name_words(first), name_words(second)
    for begins, ends in _ROLES:
        if set(one) & set(begins) and set(two) & set(ends) and not set(two) & set(begins):
            return Pair(first, second, len(one) == len(two) == 1, True)
    return None


def _implied(first: str, second: str) -> Pair | None:
    """text and text2, text and text_pair."""
    one, two = name_words(first), name_words(second)
    if len(two) == len(one) + 1 and two[:-1] == one and two[-1] in _IMPLIED and set(one) & _TEXTS:
        return Pair(first, second, False, True)
    return None


def guess_columns(
    columns: Columns, source: TaskSource, labelling: Labelling, labelled: bool, finds_label: bool
) -> None:
    """Assign the roles of the texts and the label; without `finds_label` each label has a column."""
    label = columns.given("label", source.label_column if labelled else None) if finds_label else None
    if finds_label and label is None:
        label = _label_by_name(columns, source, labelling, labelled)
    first = _text_by_name(columns, source)
    second = columns.given("second", source.second_column)
    if second is None and first is not None:
        second = _second_by_name(columns, source, first)
    is_open = finds_label and labelled and label is None and _label_by_content(columns, labelling) is None
    if first is None:
        first = _text_by_content(columns, labelling, is_open)
    if is_open:
        _only_label(columns, labelling)
    if second is None:
        _second_by_content(columns, source, first)


# The label.


def _label_by_name(columns: Columns, source: TaskSource, labelling: Labelling, labelled: bool) -> str | None:
    """A column that is the label by its name; several such columns are an error."""
    sure, likely = set(map(normalize_name, LABELS)), set(map(normalize_name, SUBJECTS))
    found = [column for column in columns.guessable if normalize_name(column) in sure]
    candidates = [column for column in found if _is_fit_by_name(columns, column, labelling)] or found
    if not candidates:
        named = (source.text_column, source.second_column)
        free = [column for column in columns.guessable if column not in named]
        candidates = [
            name for name in free if normalize_name(name) in likely and _is_fit_by_name(columns, name, labelling)
        ]
        if candidates:  # then a longer name with such a word is another candidate
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
    """The only column with labels by its content; of several, the one that is also named like a label."""
    free = [column for column in columns.guessable if column and not is_id(column)]
    sets = [column for column in free if labelling == "sets" and _holds_sets(columns, column)]
    found = _without_twins(columns, sets or _fitting(columns, free, _is_label(labelling)))
    if len(found) > 1:
        found = [column for column in found if is_of_labels(column)] or found
    if len(found) > 1:
        raise _which_label(columns, found)
    return columns.take_as_named("label", found[0]) if found else None


def _only_label(columns: Columns, labelling: Labelling) -> None:
    """The label where no value repeats, as in a table of a few rows: the only column that is left."""
    free = [column for column in columns.guessable if not is_id(column) or len(columns.free) == 1]
    found = [column for column in free if not columns.profile(column).holds_text]
    if labelling != "values":
        may_be = _fitting(columns, found, lambda profile: profile.may_be_class)
        found = may_be or (found if len(columns.free) == 1 else [])
    elif len(columns.free) != 1:
        found = []
    if len(found) != 1:
        raise _which_label(columns, found)
    columns.take_as_named("label", found[0])


def _which_label(columns: Columns, candidates: Sequence[str]) -> UserError:
    """The error where no or several columns may be the label; a first line without names is refused first."""
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
    """Of columns that correspond one to one, such as a class and its number, the first by name."""
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
    """The text: named by the user, or that of the layout, or the first of a pair by name, or known by its name."""
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
    """The text that forms a pair with the first by name. Where the user named only the first, there is none."""
    if source.text_column is not None:
        return None
    pairs = _best([pair for pair in _pairs(columns, first) if pair.first == first])
    seconds = [pair.second for pair in pairs]
    if not seconds and len(pairs_of(columns.guessable)) == 0:
        seconds = [name for name in columns.guessable if normalize_name(name) in SECOND]
    if len(seconds) > 1:
        raise _which_texts(columns, [first, *seconds])
    return columns.take("second", seconds[0], guessed=True) if seconds else None


def _pairs(columns: Columns, *more: str) -> list[Pair]:
    """Pairs by name, of columns that can be texts by their content."""
    names = [*_fitting(columns, columns.guessable, _can_be_text), *more]
    return [pair for pair in pairs_of(names) if _is_likely(columns, pair)]


def _is_likely(columns: Columns, pair: Pair) -> bool:
    first, second = columns.profile(pair.first), columns.profile(pair.second)
    if not pair.is_of_texts:
        return first.holds_text and second.holds_text
    return not (set(name_words(pair.second)) & ANSWERS and second.is_class)


def _best(pairs: list[Pair]) -> list[Pair]:
    """The pairs with plain names, if there are any."""
    return [pair for pair in pairs if pair.is_plain] or pairs


def _text_by_content(columns: Columns, labelling: Labelling, label_is_open: bool) -> str:
    """The only column of texts, else the column with the longest texts."""
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


def _second_by_content(columns: Columns, source: TaskSource, first: str) -> None:
    """The only column of texts that is left, where the layout has pairs; other columns of texts are an error."""
    left = [name for name in columns.guessable if columns.profile(name).holds_text or _is_alike(columns, first, name)]
    if source.text_column is not None or not left:
        return
    if "second" in columns.layout and len(left) == 1:
        columns.take_as_named("second", left[0])
    elif "text" not in columns.from_layout:
        raise _which_texts(columns, [first, *left])


def _is_alike(columns: Columns, first: str, other: str) -> bool:
    """Whether a column of short texts may form a pair with the first: of its length and varied, or by name."""
    found = columns.profile(other)
    if not found.can_be_text or found.is_class or not found.is_as_long_as(columns.profile(first)):
        return False
    return bool(pairs_of([first, other])) or (
        found.holds_short_text and not is_id(other) and not _holds_sets(columns, other)
    )


def _which_texts(columns: Columns, texts: Sequence[str]) -> UserError:
    """The error where several columns have texts and their names do not decide."""
    one, two, *_ = texts = [column for column in columns.table.columns if column in texts]
    listed = ", ".join(f"'{column}'" for column in texts)
    each = " or ".join(option("text", column) for column in texts)
    return UserError(
        f"{columns.table.name}: {len(texts)} columns have texts: {listed}. To read a pair, name both in their order, "
        f"{option('text', one)} {option('second', two)} for example; to read one alone, add {each}"
    )
