"""The error analysis of an evaluation: a confusion matrix, metrics by group of examples, and the worst mistakes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from openalbert.finetuning.evaluation.intervals import intervals
from openalbert.finetuning.evaluation.split import Evaluation
from openalbert.finetuning.predict import by_example, sigmoid, softmax, tagged_words
from openalbert.finetuning.question_answering.span_decoding import Answers
from openalbert.finetuning.word_alignment import NO_TOKEN
from openalbert.formatting import counted, listed
from openalbert.report.error_analysis import ErrorAnalysis, Group, Mark, Mistake, Shown
from openalbert.tasks.label_checks import never_predicted
from openalbert.tasks.metrics import Retrieved
from openalbert.tasks.race import letter
from openalbert.tasks.tags import Entity, Tags, count_by_type, find_entities, gold_tags, mark_entities
from openalbert.tasks.task import ChoiceExample, QuestionExample, SimilarityExample, TaggingExample, TextExample

MAX_MISTAKES = 40
MAX_VALUES = 1_000
MAX_CLASSES = 30  # of a confusion matrix that is still readable
QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how many", "how much", "how")
MAX_NAMED = 8  # entities in a line
MAX_SHOWN = 1_200  # characters of a text
CONTEXT = 300  # characters that are shown of a long text on either side of the marks


Wrong = tuple[float, Callable[[], Mistake]]
"""How wrong an example is, and how to show it: only the worst ones are shown."""


def analyze_errors(evaluation: Evaluation) -> ErrorAnalysis:
    """The error analysis of a split whose examples have labels."""
    task, data = evaluation.task, evaluation.data
    analysis = ErrorAnalysis(
        task.name,
        task.kind,
        evaluation.split,
        task.main_metric,
        evaluation.metrics,
        len(data.examples),
        intervals(task, data.examples, evaluation.predictions, evaluation.metrics),
        never_predicted(task, data.examples, evaluation.predictions),
        num_models=evaluation.num_models,
        num_truncated=data.encoding.sequences.num_truncated,
        excluded=dict(data.reading.excluded),
        null_threshold=evaluation.threshold_note,
    )
    by_kind = {
        "classification": _classes,
        "regression": _values,
        "multi_label": _label_sets,
        "multiple_choice": _choices,
        "question_answering": _questions,
        "similarity": _similar,
        "tagging": _tags,
    }
    analysis, wrong = by_kind[task.kind](evaluation, analysis)
    worst = sorted(wrong, key=lambda one: -one[0])[:MAX_MISTAKES]
    return replace(analysis, mistakes=tuple(show() for _, show in worst), num_mistakes=len(wrong))


def _classes(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    labels = evaluation.task.labels
    gold = np.array([cast(int, example.label) for example in _texts(evaluation)], np.int64)
    given = np.array(evaluation.predictions, np.int64)
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (gold, given), 1)
    probabilities = softmax(evaluation.outputs.logits["classification"])
    wrong: list[Wrong] = []
    for number, example in enumerate(_texts(evaluation)):
        if gold[number] != given[number]:
            wrongly = float(probabilities[number, given[number]])
            rightly = float(probabilities[number, gold[number]])
            sure = f"{labels[given[number]]} {_percent(wrongly)}, {labels[gold[number]]} {_percent(rightly)}"
            names = labels[gold[number]], labels[given[number]]
            shown = partial(Mistake, example.id, _text_shown(example), *names, sure, row=example.row)
            wrong.append((wrongly - rightly, shown))
    confusion = _rows(counts) if len(labels) <= MAX_CLASSES else ()
    groups = _groups(counts, labels)
    return replace(analysis, labels=labels, confusion=confusion, grouped_by="class", groups=groups), wrong


def _values(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    gold = [float(cast(float, example.label)) for example in _texts(evaluation)]
    given = [float(cast(float, value)) for value in evaluation.predictions]
    step = max(1, len(gold) // MAX_VALUES)
    wrong: list[Wrong] = []
    for example, right, value in zip(_texts(evaluation), gold, given, strict=True):
        off = value - right
        sure = f"off by {off:+.3g}".replace("-", "−")
        names = f"{right:g}", f"{value:.3f}"
        wrong.append((abs(off), partial(Mistake, example.id, _text_shown(example), *names, sure, row=example.row)))
    return replace(analysis, values=tuple(zip(gold, given, strict=True))[::step]), wrong


def _label_sets(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    labels = evaluation.task.labels
    gold = [set(cast("tuple[int, ...]", example.label)) for example in _texts(evaluation)]
    given = [set(cast("tuple[int, ...]", labels_of)) for labels_of in evaluation.predictions]
    parts = []
    for number, name in enumerate(labels):
        both = sum(number in a and number in b for a, b in zip(gold, given, strict=True))
        wanted, found = sum(number in one for one in gold), sum(number in one for one in given)
        parts.append(Group(name, wanted, _precision_and_recall(both, wanted, found)))
    probabilities = sigmoid(evaluation.outputs.logits["multi_label"])
    wrong: list[Wrong] = []
    for number, (example, right, found_set) in enumerate(zip(_texts(evaluation), gold, given, strict=True)):
        if right != found_set:
            off = sorted(right ^ found_set, key=lambda one: -abs(probabilities[number, one] - (one in right)))
            sure = ", ".join(f"{labels[one]} {_percent(float(probabilities[number, one]))}" for one in off)
            distance = float(sum(abs(probabilities[number, one] - (one in right)) for one in off))
            names = [", ".join(labels[one] for one in sorted(chosen)) or "(none)" for chosen in (right, found_set)]
            shown = partial(Mistake, example.id, _text_shown(example), names[0], names[1], sure, row=example.row)
            wrong.append((distance, shown))
    return replace(analysis, labels=labels, grouped_by="label", groups=tuple(parts)), wrong


def _choices(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    examples = [example for example in evaluation.data.examples if isinstance(example, ChoiceExample)]
    logits = by_example(evaluation.data.encoding.sequences, evaluation.outputs.logits["multiple_choice"][:, 0])
    probabilities = [softmax(options[None])[0] for options in logits]
    wrong: list[Wrong] = []
    for example, given, each in zip(
        examples, cast("Sequence[int]", evaluation.predictions), probabilities, strict=True
    ):
        gold = cast(int, example.label)
        if gold != given:
            sure = ", ".join(f"{letter(option)} {_percent(float(value))}" for option, value in enumerate(each))
            names = [f"{letter(option)}: {example.options[option]}" for option in (gold, given)]
            shown = partial(Mistake, example.id, _choice_shown(example), names[0], names[1], sure, row=example.row)
            wrong.append((float(each[given] - each[gold]), shown))
    most = max((len(example.options) for example in examples), default=0)
    counts = np.zeros((most, most), np.int64)
    for example, given in zip(examples, cast("Sequence[int]", evaluation.predictions), strict=True):
        counts[cast(int, example.label), given] += 1
    letters = tuple(map(letter, range(most)))
    groups = _groups(counts, letters)
    return replace(analysis, labels=letters, confusion=_rows(counts), grouped_by="option", groups=groups), wrong


def _questions(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    task = evaluation.task
    examples = [example for example in evaluation.data.examples if isinstance(example, QuestionExample)]
    texts = cast("Sequence[str]", evaluation.predictions)
    groups: dict[str, list[int]] = {}
    wrong: list[Wrong] = []
    for number, (example, text, found) in enumerate(zip(examples, texts, evaluation.answers, strict=True)):
        groups.setdefault(_question_word(example.question), []).append(number)
        if text not in ([answer.text for answer in example.answers] or [""]):
            measured = task.measure([example], [text])
            score = measured.get("f1", next(iter(measured.values())))
            if score < 100:
                probability = found.candidates[0].probability if text and found.candidates else 0.5
                shown = partial(_question_mistake, example, text, found, score, task.may_have_no_answer)
                wrong.append((probability - score / 50, shown))
    parts = []
    for name in sorted(groups, key=lambda name: -len(groups[name])):
        chosen = groups[name]
        metrics = task.measure([examples[one] for one in chosen], [texts[one] for one in chosen])
        plain = {name: value for name, value in metrics.items() if "answer_" not in name}
        parts.append(Group(name, len(chosen), plain))
    analysis = replace(analysis, grouped_by="first word of the question", groups=tuple(parts))
    if task.may_have_no_answer:
        counts = np.zeros((2, 2), np.int64)
        for example, text in zip(examples, texts, strict=True):
            counts[int(not example.answers), int(not text)] += 1
        analysis = replace(analysis, labels=("an answer", "no answer"), confusion=_rows(counts))
    return analysis, wrong


def _similar(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    examples = [example for example in evaluation.data.examples if isinstance(example, SimilarityExample)]
    if not any(isinstance(one, Retrieved) for one in evaluation.predictions):
        return analysis, _wrongly_ordered(examples, cast("Sequence[float]", evaluation.predictions))
    texts = [text for example in examples for text in example.texts]
    wrong: list[Wrong] = []
    for example, found in zip(examples, cast("Sequence[Retrieved]", evaluation.predictions), strict=True):
        if found.rank > 1 and found.nearest is not None:
            negative = "" if found.negative is None else f", that of its negative {found.negative:.3f}"
            sure = f"rank {found.rank:,}; the cosine is {found.cosine:.3f}{negative}".replace("-", "−")
            shown = _cropped("text", example.first, ())
            names = example.second[:MAX_SHOWN], texts[found.nearest][:MAX_SHOWN]
            wrong.append((float(found.rank), partial(Mistake, example.id, shown, *names, sure, row=example.row)))
    return analysis, wrong


def _wrongly_ordered(examples: Sequence[SimilarityExample], cosines: Sequence[float]) -> list[Wrong]:
    """Pairs by how far apart their places are among all pairs, by score and by cosine."""
    scores = np.array([example.score for example in examples], np.float64)
    by_score, by_cosine = (100 * fractions_below(np.asarray(values)) for values in (scores, np.array(cosines)))
    wrong: list[Wrong] = []
    for number, example in enumerate(examples):
        sure = f"above {by_cosine[number]:.0f} % of the pairs by cosine, above {by_score[number]:.0f} % by score"
        shown = (*_cropped("first", example.first, ()), *_cropped("second", example.second, ()))
        names = f"{scores[number]:g}", f"{cosines[number]:.3f}".replace("-", "−")
        off = float(abs(by_cosine[number] - by_score[number]))
        wrong.append((off, partial(Mistake, example.id, shown, *names, sure, row=example.row)))
    return wrong


def fractions_below(values: np.ndarray) -> np.ndarray:
    """The fraction of the values below each; of equal values half counts."""
    ordered = np.sort(values)
    found: np.ndarray = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right")) / 2
    return found / len(values)


def _question_mistake(
    example: QuestionExample, text: str, found: Answers, score: float, may_have_no_answer: bool
) -> Mistake:
    gold = list(dict.fromkeys(answer.text for answer in example.answers))
    marks = [Mark("gold", answer.start, answer.start + len(answer.text)) for answer in example.answers]
    if text:
        start = found.candidates[0].start
        marks.append(Mark("predicted", start, start + len(text)))
    candidates = [f"“{one.text}” {_percent(one.probability)}" for one in found.candidates[:3]]
    null = f"; null score {found.null_score:+.2f}".replace("-", "−") if may_have_no_answer else ""
    sure = f"{', '.join(candidates)}{null}; agreement {score:.0f} %"
    return Mistake(
        example.id,
        (Shown("question", example.question), *_cropped("passage", example.passage, tuple(dict.fromkeys(marks)))),
        " / ".join(gold) or "(no answer)",
        text or "(no answer)",
        sure,
        row=example.row,
    )


def _tags(evaluation: Evaluation, analysis: ErrorAnalysis) -> tuple[ErrorAnalysis, list[Wrong]]:
    labels, marks_entities = evaluation.task.labels, mark_entities(evaluation.task.labels)
    examples = [example for example in evaluation.data.examples if isinstance(example, TaggingExample)]
    gold, given = gold_tags(examples), cast("Sequence[Tags]", evaluation.predictions)
    counts = count_by_type(gold, given, marks_entities)
    parts = [
        Group(name, wanted, _precision_and_recall(right, wanted, found))
        for name, (right, wanted, found) in sorted(counts.items(), key=lambda one: -one[1][1])
    ]
    tagged = tagged_words(evaluation.task, evaluation.data.encoding, evaluation.outputs)
    wrong: list[Wrong] = []
    for number, (example, actual, found) in enumerate(zip(examples, gold, tagged, strict=True)):
        if actual != found.tags:
            of_gold = _gold_probabilities(evaluation, number, actual)
            margins = [
                float(found.probabilities[word] - of_gold[word])
                for word, (one, other) in enumerate(zip(actual, found.tags, strict=True))
                if one != other
            ]
            wrong.append((sum(margins), partial(_tag_mistake, example, actual, found.tags, margins, marks_entities)))
    by = "type" if marks_entities else "tag"
    return replace(analysis, labels=labels, grouped_by=by, groups=tuple(parts)), wrong


def _gold_probabilities(evaluation: Evaluation, number: int, tags: Tags) -> list[float]:
    """The probability of the actual tag of each word of an example; 0 where the model cannot give it."""
    labels, words = evaluation.task.labels, evaluation.data.encoding.words
    assert words is not None
    tokens = words.token[words.starts[number] : words.starts[number + 1]]
    each = softmax(evaluation.outputs.logits["tagging"][np.maximum(tokens, 0)])
    return [
        float(each[word, labels.index(tag)]) if tag in labels and tokens[word] != NO_TOKEN else 0.0
        for word, tag in enumerate(tags)
    ]


def _tag_mistake(
    example: TaggingExample, gold: Tags, given: Tags, margins: Sequence[float], marks_entities: bool
) -> Mistake:
    """The text with its actual and predicted entities; of tags that mark none, the words that are wrong."""
    if marks_entities:
        actual, found = find_entities(gold), find_entities(given)
    else:
        places = [word for word, (one, other) in enumerate(zip(gold, given, strict=True)) if one != other]
        actual, found = ([Entity(word, word + 1, tags[word]) for word in places] for tags in (gold, given))
    marks = [
        Mark(kind, example.words[one.start][0], example.words[one.end - 1][1], one.label)
        for kind, entities in (("gold", actual), ("predicted", found))
        for one in entities
    ]
    number = len(margins)
    return Mistake(
        example.id,
        _cropped("text", example.text, tuple(marks)),
        _named_spans(example, actual),
        _named_spans(example, found),
        f"{counted(number, 'word')} wrong, by {_percent(sum(margins) / number)} on average",
        row=example.row,
    )


def _named_spans(example: TaggingExample, entities: Sequence[Entity]) -> str:
    named = [
        f"{example.text[example.words[one.start][0] : example.words[one.end - 1][1]]} ({one.label})" for one in entities
    ]
    return listed(named, MAX_NAMED) or "(none)"


def _cropped(name: str, text: str, marks: tuple[Mark, ...]) -> tuple[Shown, ...]:
    """A text, or the part of a long one around its marks, or its beginning."""
    if len(text) <= MAX_SHOWN:
        return (Shown(name, text, marks),)
    begin = max(0, min((mark.start for mark in marks), default=0) - CONTEXT)
    end = min(len(text), max((mark.end for mark in marks), default=0) + CONTEXT)
    if end - begin < MAX_SHOWN:
        end = min(len(text), begin + MAX_SHOWN)
    before, after = "… " * (begin > 0), " …" * (end < len(text))
    shift = len(before) - begin
    moved = tuple(replace(mark, start=mark.start + shift, end=mark.end + shift) for mark in marks)
    return (Shown(name, before + text[begin:end] + after, moved),)


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


def _texts(evaluation: Evaluation) -> list[TextExample]:
    return [example for example in evaluation.data.examples if isinstance(example, TextExample)]


def _rows(counts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in counts.tolist())


def _groups(counts: np.ndarray, names: Sequence[str]) -> tuple[Group, ...]:
    """The metrics of each class, from a confusion matrix."""
    both, wanted, found = (one.tolist() for one in (counts.diagonal(), counts.sum(1), counts.sum(0)))
    return tuple(
        Group(name, wanted[number], _precision_and_recall(both[number], wanted[number], found[number]))
        for number, name in enumerate(names)
    )


def _precision_and_recall(both: int, wanted: int, found: int) -> dict[str, float]:
    """Of one class, from the counts of hits, of gold and of predicted examples; in percent."""
    return {
        "precision": 100 * both / found if found else 0.0,
        "recall": 100 * both / wanted if wanted else 0.0,
        "f1": 200 * both / (wanted + found) if wanted + found else 0.0,
    }


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
