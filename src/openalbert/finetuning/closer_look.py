"""Which class was taken for which, how each kind of example fared, and what went wrong most: made from predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from openalbert.finetuning.encode import Encoding
from openalbert.finetuning.intervals import intervals
from openalbert.finetuning.predict import Outputs, by_example, sigmoid, softmax
from openalbert.finetuning.span_decoding import Answers, best_answers
from openalbert.report.error_analysis import ErrorAnalysis, Group, Mark, Mistake, Shown
from openalbert.tasks.label_checks import never_predicted
from openalbert.tasks.race import letter
from openalbert.tasks.task import ChoiceExample, Example, QuestionExample, Task, TextExample

MOST_MISTAKES = 40
MOST_VALUES = 1_000
MOST_CLASSES = 30  # of a confusion matrix that a person can still read
QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how many", "how much", "how")
LONGEST_SHOWN = 1_200  # characters of a text
AROUND = 300  # characters that are shown of a long text on either side of what is marked


@dataclass(frozen=True)
class Predicted:
    """A split with all that was predicted for it."""

    task: Task
    examples: Sequence[Example]
    encoding: Encoding
    outputs: Outputs
    predictions: Sequence[object]
    answers: Sequence[Answers] = ()
    """To questions, if they have been looked for already: it takes a while."""


Wrong = tuple[float, Callable[[], Mistake]]
"""How wrong an example is, and how it is shown: only the worst ones are."""


def look_closely(predicted: Predicted, split: str, scores: dict[str, float]) -> ErrorAnalysis:
    """The findings of a split whose examples have labels."""
    task = predicted.task
    analyses = ErrorAnalysis(
        task.name,
        task.kind,
        split,
        task.main_metric,
        scores,
        len(predicted.examples),
        intervals(task, predicted.examples, predicted.predictions, scores),
        never_predicted(task, predicted.examples, predicted.predictions),
        num_truncated=predicted.encoding.sequences.num_truncated,
    )
    looks = {
        "classification": _classes,
        "regression": _values,
        "multi_label": _label_sets,
        "multiple_choice": _choices,
        "question_answering": _questions,
    }
    analyses, wrong = looks[task.kind](predicted, analyses)
    worst = sorted(wrong, key=lambda one: -one[0])[:MOST_MISTAKES]
    return replace(analyses, mistakes=tuple(show() for _, show in worst), num_mistakes=len(wrong))


def _classes(predicted: Predicted, analyses: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    labels = predicted.task.labels
    gold = np.array([cast(int, example.label) for example in _texts(predicted)], np.int64)
    given = np.array(predicted.predictions, np.int64)
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (gold, given), 1)
    groups = [
        Group(name, int(counts[number].sum()), _precision_and_recall(*_hits(counts, number)))
        for number, name in enumerate(labels)
    ]
    shares = softmax(predicted.outputs.scores["classification"])
    wrong: list[Wrong] = []
    for number, example in enumerate(_texts(predicted)):
        if gold[number] != given[number]:
            share, right = float(shares[number, given[number]]), float(shares[number, gold[number]])
            sure = f"{labels[given[number]]} {_percent(share)}, {labels[gold[number]]} {_percent(right)}"
            names = labels[gold[number]], labels[given[number]]
            shown = partial(Mistake, example.id, _text_shown(example), *names, sure, row=example.row)
            wrong.append((share - right, shown))
    confusion = _rows(counts) if len(labels) <= MOST_CLASSES else ()
    return replace(analyses, labels=labels, confusion=confusion, grouped_by="class", groups=tuple(groups)), wrong


def _values(predicted: Predicted, analyses: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    gold = [float(cast(float, example.label)) for example in _texts(predicted)]
    given = [float(cast(float, value)) for value in predicted.predictions]
    step = max(1, len(gold) // MOST_VALUES)
    wrong: list[Wrong] = []
    for example, right, value in zip(_texts(predicted), gold, given, strict=True):
        off = value - right
        sure = f"off by {off:+.3g}".replace("-", "−")
        names = f"{right:g}", f"{value:.3f}"
        wrong.append((abs(off), partial(Mistake, example.id, _text_shown(example), *names, sure, row=example.row)))
    return replace(analyses, values=tuple(zip(gold, given, strict=True))[::step]), wrong


def _label_sets(predicted: Predicted, analyses: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    labels = predicted.task.labels
    gold = [set(cast("tuple[int, ...]", example.label)) for example in _texts(predicted)]
    given = [set(cast("tuple[int, ...]", labels_of)) for labels_of in predicted.predictions]
    groups = []
    for number, name in enumerate(labels):
        both = sum(number in a and number in b for a, b in zip(gold, given, strict=True))
        wanted, found = sum(number in one for one in gold), sum(number in one for one in given)
        groups.append(Group(name, wanted, _precision_and_recall(both, wanted, found)))
    shares = sigmoid(predicted.outputs.scores["multi_label"])
    wrong: list[Wrong] = []
    for number, (example, right, found_set) in enumerate(zip(_texts(predicted), gold, given, strict=True)):
        if right != found_set:
            off = sorted(right ^ found_set, key=lambda one: -abs(shares[number, one] - (one in right)))
            sure = ", ".join(f"{labels[one]} {_percent(float(shares[number, one]))}" for one in off)
            howfar = float(sum(abs(shares[number, one] - (one in right)) for one in off))
            names = [", ".join(labels[one] for one in sorted(chosen)) or "(none)" for chosen in (right, found_set)]
            shown = partial(Mistake, example.id, _text_shown(example), names[0], names[1], sure, row=example.row)
            wrong.append((howfar, shown))
    return replace(analyses, labels=labels, grouped_by="label", groups=tuple(groups)), wrong


def _choices(predicted: Predicted, analyses: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    examples = [example for example in predicted.examples if isinstance(example, ChoiceExample)]
    scores = by_example(predicted.encoding.sequences, predicted.outputs.scores["multiple_choice"][:, 0])
    shares = [softmax(options[None])[0] for options in scores]
    wrong: list[Wrong] = []
    for example, given, share in zip(examples, cast("Sequence[int]", predicted.predictions), shares, strict=True):
        gold = cast(int, example.label)
        if gold != given:
            sure = ", ".join(f"{letter(option)} {_percent(float(value))}" for option, value in enumerate(share))
            names = [f"{letter(option)}: {example.options[option]}" for option in (gold, given)]
            shown = partial(Mistake, example.id, _choice_shown(example), names[0], names[1], sure, row=example.row)
            wrong.append((float(share[given] - share[gold]), shown))
    most = max((len(example.options) for example in examples), default=0)
    counts = np.zeros((most, most), np.int64)
    for example, given in zip(examples, cast("Sequence[int]", predicted.predictions), strict=True):
        counts[cast(int, example.label), given] += 1
    letters = tuple(map(letter, range(most)))
    groups = [
        Group(letter, int(counts[number].sum()), _precision_and_recall(*_hits(counts, number)))
        for number, letter in enumerate(letters)
    ]
    return replace(analyses, labels=letters, confusion=_rows(counts), grouped_by="option", groups=tuple(groups)), wrong


def _questions(predicted: Predicted, analyses: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    task = predicted.task
    examples = [example for example in predicted.examples if isinstance(example, QuestionExample)]
    texts = cast("Sequence[str]", predicted.predictions)
    by_word: dict[str, list[int]] = {}
    wrong: list[Wrong] = []
    answers = predicted.answers or best_answers(examples, predicted.encoding, predicted.outputs.scores)
    for number, (example, text, found) in enumerate(zip(examples, texts, answers, strict=True)):
        by_word.setdefault(_question_word(example.question), []).append(number)
        if text not in ([answer.text for answer in example.answers] or [""]):
            measured = task.measure([example], [text])
            score = measured.get("f1", next(iter(measured.values())))
            if score < 100:
                share = found.candidates[0].probability if text and found.candidates else 0.5
                shown = partial(_question_mistake, example, text, found, score, task.may_have_no_answer)
                wrong.append((share - score / 50, shown))
    groups = []
    for name in sorted(by_word, key=lambda name: -len(by_word[name])):
        chosen = by_word[name]
        figures = task.measure([examples[one] for one in chosen], [texts[one] for one in chosen])
        plain = {name: value for name, value in figures.items() if "answer_" not in name}
        groups.append(Group(name, len(chosen), plain))
    analyses = replace(analyses, grouped_by="first word of the question", groups=tuple(groups))
    if task.may_have_no_answer:
        counts = np.zeros((2, 2), np.int64)
        for example, text in zip(examples, texts, strict=True):
            counts[int(not example.answers), int(not text)] += 1
        analyses = replace(analyses, labels=("an answer", "no answer"), confusion=_rows(counts))
    return analyses, wrong


def _question_mistake(
    example: QuestionExample, text: str, found: Answers, score: float, may_have_no_answer: bool
) -> Mistake:
    gold = list(dict.fromkeys(answer.text for answer in example.answers))
    marks = [Mark("gold", answer.start, answer.start + len(answer.text)) for answer in example.answers]
    if text:
        start = found.candidates[0].start
        marks.append(Mark("predicted", start, start + len(text)))
    shares = [f"“{one.text}” {_percent(one.probability)}" for one in found.candidates[:3]]
    null = f"; null score {found.null_score:+.2f}".replace("-", "−") if may_have_no_answer else ""
    sure = f"{', '.join(shares)}{null}; agreement {score:.0f} %"
    return Mistake(
        example.id,
        (Shown("question", example.question), *_cropped("passage", example.passage, tuple(dict.fromkeys(marks)))),
        " / ".join(gold) or "(no answer)",
        text or "(no answer)",
        sure,
        row=example.row,
    )


def _cropped(name: str, text: str, marks: tuple[Mark, ...]) -> tuple[Shown, ...]:
    """A text, or of a long one what stands around its marks, or its beginning."""
    if len(text) <= LONGEST_SHOWN:
        return (Shown(name, text, marks),)
    begin = max(0, min((mark.start for mark in marks), default=0) - AROUND)
    end = min(len(text), max((mark.end for mark in marks), default=0) + AROUND)
    if end - begin < LONGEST_SHOWN:
        end = min(len(text), begin + LONGEST_SHOWN)
    before, behind = "… " * (begin > 0), " …" * (end < len(text))
    shift = len(before) - begin
    moved = tuple(Mark(mark.kind, mark.start + shift, mark.end + shift) for mark in marks)
    return (Shown(name, before + text[begin:end] + behind, moved),)


def _text_shown(example: TextExample) -> tuple[Shown, ...]:
    if example.second is None:
        return _cropped("text", example.first, ())
    return (*_cropped("first", example.first, ()), *_cropped("second", example.second, ()))


def _choice_shown(example: ChoiceExample) -> tuple[Shown, ...]:
    passage = _cropped("passage", example.passage, ()) if example.passage else ()
    question = (Shown("question", example.question),) if example.question else ()
    return (*passage, *question, *(Shown(letter(n), option) for n, option in enumerate(example.options)))


def _question_word(question: str) -> str:
    words = question.lower().split()
    return next((word for word in QUESTION_WORDS if words[: word.count(" ") + 1] == word.split()), "other")


def _texts(predicted: Predicted) -> list[TextExample]:
    return [example for example in predicted.examples if isinstance(example, TextExample)]


def _rows(counts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in counts.tolist())


def _hits(counts: np.ndarray, number: int) -> tuple[int, int, int]:
    return int(counts[number, number]), int(counts[number].sum()), int(counts[:, number].sum())


def _precision_and_recall(both: int, wanted: int, found: int) -> dict[str, float]:
    """Of one class: how many of those found are right, how many of those wanted were found, and their F1."""
    return {
        "precision": 100 * both / found if found else 0.0,
        "recall": 100 * both / wanted if wanted else 0.0,
        "f1": 200 * both / (wanted + found) if wanted + found else 0.0,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
