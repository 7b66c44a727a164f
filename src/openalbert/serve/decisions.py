"""From the logits of a fine-tuned model to its predictions, one for each example; every kind of task has a function."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from jaxtyping import Float64

from openalbert.finetuning.encode import Encoding
from openalbert.finetuning.predict import Outputs, decide, probabilities, tagged_words
from openalbert.finetuning.span_decoding import best_answers
from openalbert.finetuning.words import TaggedWords
from openalbert.interop.task_json import TaskInfo
from openalbert.serve.predictions import (
    AnswerPrediction,
    ChoicePrediction,
    ClassPrediction,
    LabelsPrediction,
    Prediction,
    TagsPrediction,
    ValuePrediction,
)
from openalbert.tasks.tags import mark_entities
from openalbert.tasks.task import MAX_ANSWER_TOKENS, ChoiceExample, Example, QuestionExample, TaggingExample, Task


def predictions_of(
    task: Task, info: TaskInfo | None, examples: Sequence[Example], encoding: Encoding, outputs: Outputs
) -> list[Prediction]:
    """The predictions for examples of one task; `info` is the task.json of the model, where it has one."""
    if task.kind == "question_answering":
        return list(_answers(task, info, cast(Sequence[QuestionExample], examples), encoding, outputs))
    if task.kind == "tagging":
        tagged = zip(cast(Sequence[TaggingExample], examples), tagged_words(task, encoding, outputs), strict=True)
        return [_tags(task, example, found) for example, found in tagged]
    decided = decide(task, encoding, outputs)
    if task.kind in ("regression", "similarity"):
        return [ValuePrediction(cast(float, one)) for one in decided]
    likely = probabilities(task, encoding, outputs)
    if task.kind == "multiple_choice":
        return [
            _choice(cast(ChoiceExample, example), cast(int, one), of_one, info)
            for example, one, of_one in zip(examples, decided, likely, strict=True)
        ]
    by_label = [dict(zip(task.labels, map(float, of_one), strict=True)) for of_one in likely]
    if task.kind == "multi_label":
        sets = [tuple(task.labels[number] for number in cast(tuple[int, ...], one)) for one in decided]
        return [LabelsPrediction(labels, of_one) for labels, of_one in zip(sets, by_label, strict=True)]
    return [most_probable(of_one) for of_one in by_label]


def _tags(task: Task, example: TaggingExample, found: TaggedWords) -> TagsPrediction:
    words = tuple(example.text[start:end] for start, end in example.words)
    entities = tuple(found.entities(example)) if mark_entities(task.labels) else None
    return TagsPrediction(words, found.tags, tuple(map(float, found.probabilities)), entities)


def most_probable(probabilities: dict[str, float]) -> ClassPrediction:
    """The class with the highest probability."""
    label = max(probabilities, key=lambda name: probabilities[name])
    return ClassPrediction(label, probabilities[label], probabilities)


def _choice(
    example: ChoiceExample, number: int, likely: Float64[np.ndarray, "options"], info: TaskInfo | None
) -> ChoicePrediction:
    values = tuple(map(float, likely))
    named = (info.answer_format if info is not None else None) or "option text"
    return ChoicePrediction(example.options[number], number, values[number], values, named)


def _answers(
    task: Task, info: TaskInfo | None, examples: Sequence[QuestionExample], encoding: Encoding, outputs: Outputs
) -> list[AnswerPrediction]:
    longest = info.max_answer_tokens if info is not None else MAX_ANSWER_TOKENS
    answers = best_answers(examples, encoding, outputs.logits, max_answer_tokens=longest)
    threshold = ((info.null_threshold if info is not None else None) or 0.0) if task.may_have_no_answer else None
    likely = probabilities(task, encoding, outputs, answers)
    found = []
    for one, of_one in zip(answers, likely, strict=True):
        text = one.text(threshold)
        none = float(of_one[1]) if task.may_have_no_answer else None
        if not text:
            found.append(AnswerPrediction("", None, None, 0.0 if none is None else none, none))
        else:
            start = one.candidates[0].start
            found.append(AnswerPrediction(text, start, start + len(text), float(of_one[0]), none))
    return found
