"""What the names of columns say of their roles, in any case and with any signs between their parts."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

LABELS = ("label", "labels", "goldlabel", "class", "classes", "y", "etiqueta", "étiquette", "classe", "clase", "klasse",
          "метка", "класс", "标签", "ラベル", "레이블")  # fmt: skip
"""Names that say that a column is the label, whatever else there is."""
SUBJECTS = ("category", "categories", "target", "sentiment", "score", "rating", "stars", "value", "intent", "topic",
            "tags", "emotion", "verdict", "stance", "outcome", "decision", "judgment", "judgement", "polarity", "gold",
            "annotation", "kategorie", "categoría", "catégorie", "categoria", "sentimento", "stimmung", "категория",
            "类别", "カテゴリ")  # fmt: skip
"""Names of what people classify by: each may be the label, and several are to be chosen from."""
IDS = frozenset("id ids idx index uid uuid guid nr no number key hash".split())
SECOND = ("second", "hypothesis", "textpair", "pair")
"""Names that say that a column is the second text, whatever the first is called."""
_TEXTS = frozenset(
    "text txt sentence sent s question q query document doc passage paragraph utterance phrase statement string title "
    "claim argument review comment post tweet message snippet abstract summary texto texte frase satz phrase текст "
    "文本 句子".split()
)
_ORDINALS = (("1", "2"), ("0", "1"), ("a", "b"), ("first", "second"), ("one", "two"), ("left", "right"))
_IMPLIED = ("2", "b", "second", "two", "pair")  # of the second where the first has none: text, text_b
_ROLES = (
    (("premise",), ("hypothesis", "conclusion")),
    (("question", "query"), ("answer", "passage", "context", "paragraph", "document", "doc", "sentence", "article")),
    (("claim",), ("evidence",)),
    (("context", "prompt", "dialogue", "dialog", "history"), ("response", "reply", "completion")),
)
ANSWERS = frozenset(("answer", "response", "reply", "conclusion"))
"""Parts of names that may as well be the label's: yes or no."""


def simple(name: str) -> str:
    """A column's name as it is compared: without case, accents, and all that is neither letter nor digit."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(sign for sign in plain if sign.isalnum())


def parts(name: str) -> tuple[str, ...]:
    """The words and numbers that a name is made of: `questionText_1` is question, text, 1."""
    spaced = re.sub(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])", " ", unicodedata.normalize("NFKC", name))
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", spaced)
    found = [simple(part) for part in re.split(r"[\W_]+", spaced) if simple(part)]
    if len(found) == 1 and found[0][:-1] in _TEXTS and len(found[0]) > 3 and found[0][-1] in "ab":
        found = [found[0][:-1], found[0][-1]]  # texta, textb
    return tuple(found)


def is_id(name: str) -> bool:
    """Whether a name says that a column holds ids, and not those of classes: `user_id`, but not `label_id`."""
    found = parts(name)
    return bool(found) and found[-1] in IDS and not is_of_labels(name)


def is_of_labels(name: str) -> bool:
    """Whether a part of a name is one that labels have: `review_sentiment`."""
    return bool(set(parts(name)) & set(map(simple, (*LABELS, *SUBJECTS))))


@dataclass(frozen=True)
class Pair:
    """Two columns whose names belong together."""

    first: str
    second: str
    is_plain: bool
    """Whether the names say nothing else: `sentence1` does not, `sentence1_parse` does."""
    is_of_texts: bool
    """Whether the names say that both are texts; `a` and `b` do not."""


def pairs_of(columns: Sequence[str]) -> list[Pair]:
    """All pairs of columns that are the two texts of a pair by their names."""
    found = []
    for first, second in permutations(sorted(columns), 2):
        pair = _numbered(first, second) or _by_roles(first, second) or _implied(first, second)
        if pair is not None:
            found.append(pair)
    return found


def _numbered(first: str, second: str) -> Pair | None:
    """sentence1 and sentence2, text_a and text_b, first sentence and second sentence."""
    one, two = parts(first), parts(second)
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
    """premise and hypothesis, question and passage, in names that may say more than that."""
    one, two = parts(first), parts(second)
    for begins, ends in _ROLES:
        if set(one) & set(begins) and set(two) & set(ends) and not set(two) & set(begins):
            return Pair(first, second, len(one) == len(two) == 1, True)
    return None


def _implied(first: str, second: str) -> Pair | None:
    """text and text2, text and text_pair."""
    one, two = parts(first), parts(second)
    if len(two) == len(one) + 1 and two[:-1] == one and two[-1] in _IMPLIED and set(one) & _TEXTS:
        return Pair(first, second, False, True)
    return None
