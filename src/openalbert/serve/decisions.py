"""From examples to predictions: their tokens, the logits of the heads, and what these mean for each kind of task."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np
from jaxtyping import Float64, Int64

from openalbert.errors import UserError
from openalbert.finetuning.encode import STRIDE, Encoding, encode
from openalbert.finetuning.predict import PRETRAINING, Outputs, decide, probabilities, softmax, tagged_words
from openalbert.finetuning.question_answering.span_decoding import best_answers
from openalbert.finetuning.word_alignment import TaggedWords
from openalbert.interop.task_json import TaskInfo
from openalbert.serve.backend import Computation
from openalbert.serve.predictions import (
    IN_ORDER,
    SWAPPED,
    AnswerPrediction,
    ChoicePrediction,
    ClassPrediction,
    LabelsPrediction,
    Prediction,
    TagsPrediction,
    ValuePrediction,
)
from openalbert.tasks.tags import mark_entities
from openalbert.tasks.task import (
    MAX_ANSWER_TOKENS,
    ChoiceExample,
    Example,
    Kind,
    QuestionExample,
    Sequences,
    TaggingExample,
    Task,
)
from openalbert.text.tokenizer import Tokenizer


def predict_task(
    kind: Kind,
    labels: tuple[str, ...],
    info: TaskInfo | None,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_length: int,
    compute: Computation,
) -> tuple[list[Prediction], int]:
    """The predictions of a fine-tuned model, and how many examples were truncated; `info` is its task.json, if any."""
    heads = [head.kind for head in compute.backend.heads if head.kind not in PRETRAINING]
    task = _task(kind, labels, may_have_no_answer="answerability" in heads)
    stride = info.stride if info is not None else STRIDE
    long_texts = info.long_texts if info is not None else "truncate"
    encoding = encode(task, examples, tokenizer, max_length, stride=stride, long_texts=long_texts)
    sequences = encoding.sequences
    if kind == "similarity":
        outputs = Outputs({"similarity": compute.embed(sequences)})
    else:
        outputs = compute.logits(sequences, heads)
    predictions = predictions_of(task, info, examples, encoding, outputs)
    if outputs.depths is not None:
        predictions = _with_depths(predictions, sequences, outputs.depths)
    return predictions, sequences.num_truncated


def predict_order(
    pairs: Sequence[Example], tokenizer: Tokenizer, max_length: int, compute: Computation
) -> tuple[list[ClassPrediction], int]:
    """Whether the texts of each pair are in order, by the sentence-order head (paper, section 3.1)."""
    labels = (IN_ORDER, SWAPPED)
    sequences = encode(_task("classification", labels), pairs, tokenizer, max_length).sequences
    likely = softmax(compute.logits(sequences, ["sentence_order"]).logits["sentence_order"]).tolist()
    return [_most_probable(dict(zip(labels, one, strict=True))) for one in likely], sequences.num_truncated


def _task(kind: Kind, labels: tuple[str, ...], may_have_no_answer: bool = False) -> Task:
    """The task of a model that is given its inputs: it has no examples of its own to read or to measure."""

    def no_examples(*_: object) -> NoReturn:
        raise UserError(f"a model of {kind} has no examples of its own: evaluate it with `openalbert evaluate`")

    return Task(kind, kind, labels, (), no_examples, no_examples, "", may_have_no_answer)


def _with_depths(
    predictions: Sequence[Prediction], sequences: Sequences, depths: Int64[np.ndarray, "sequences"]
) -> list[Prediction]:
    """The predictions with the layers computed for each: of several windows, the most."""
    most = np.zeros(len(predictions), np.int64)
    np.maximum.at(most, sequences.example, depths)
    return [replace(cast(Any, one), depth=int(depth)) for one, depth in zip(predictions, most, strict=True)]


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
    return [_most_probable(of_one) for of_one in by_label]


def _tags(task: Task, example: TaggingExample, found: TaggedWords) -> TagsPrediction:
    words = tuple(example.text[start:end] for start, end in example.words)
    entities = tuple(found.entities(example)) if mark_entities(task.labels) else None
    return TagsPrediction(words, found.tags, tuple(map(float, found.probabilities)), entities)


def _most_probable(probabilities: dict[str, float]) -> ClassPrediction:
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
