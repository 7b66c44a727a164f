"""SQuAD's two figures, exact match and F1, computed as the official scorers of 1.1 and 2.0 do, to the last digit."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """What is compared of an answer: lower case, without ASCII punctuation and articles, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def overlap(gold: str, predicted: str, empty_is_right: bool) -> float:
    """F1 of the words of two normalized answers, in whatever order.

    Where either has no words, version 2.0 says that both must have none; 1.1 finds no agreement even then.
    """
    wanted, given = gold.split(), predicted.split()
    if empty_is_right and not (wanted and given):
        return float(wanted == given)
    same = sum((Counter(wanted) & Counter(given)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(given), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score_answers(
    gold: Sequence[tuple[str, ...]], predicted: Sequence[str], may_have_no_answer: bool
) -> dict[str, float]:
    """The figures in percent. Each prediction counts as it agrees best with one of its gold answers.

    By the rule of 2.0 a question without gold answers is right where nothing is predicted, and the figures are also
    given for questions with and without an answer.
    """
    exact: list[float] = []
    f1: list[float] = []
    for answers, prediction in zip(gold, predicted, strict=True):
        given, wanted = normalized(prediction), {normalized(answer) for answer in answers}
        if may_have_no_answer:
            wanted = (wanted - {""}) or {""}
        exact.append(float(given in wanted))
        f1.append(max((overlap(answer, given, may_have_no_answer) for answer in wanted), default=0.0))
    figures = {"exact_match": _percent(exact), "f1": _percent(f1)}
    if may_have_no_answer:
        for name, has_answer in (("has_answer", True), ("no_answer", False)):
            chosen = [number for number, answers in enumerate(gold) if bool(answers) == has_answer]
            if chosen:
                figures[f"{name}_exact_match"] = _percent([exact[number] for number in chosen])
                figures[f"{name}_f1"] = _percent([f1[number] for number in chosen])
    return figures


def _percent(scores: Iterable[float]) -> float:
    # One after another, as the official scorers did: `sum` rounds otherwise from Python 3.12 on.
    total, count = 0.0, 0
    for score in scores:
        total += score
        count += 1
    return 100.0 * total / count
