"""Files of predictions: for GLUE's leaderboard, for SQuAD's scorer, and JSON lines for every task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float64

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.evaluation.split import Evaluation
from openalbert.finetuning.predict import probabilities, tagged_words
from openalbert.finetuning.word_alignment import TaggedWords
from openalbert.formatting import counted
from openalbert.tasks.metrics import Retrieved
from openalbert.tasks.race import letter
from openalbert.tasks.registry import GLUE
from openalbert.tasks.tags import mark_entities
from openalbert.tasks.task import Example, TaggingExample, Task


def write_files(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write the predictions of a split in every format that its task has."""
    task, examples, predictions = evaluation.task, evaluation.data.examples, evaluation.predictions
    name = f"{task.name}.{evaluation.split}"
    if task.kind == "tagging":
        tagged = tagged_words(task, evaluation.data.encoding, evaluation.outputs)
        return write_tags(task, examples, tagged, folder / f"{name}.jsonl")
    likely = probabilities(task, evaluation.data.encoding, evaluation.outputs, evaluation.answers)
    written = [write_lines(task, examples, predictions, folder / f"{name}.jsonl", likely)]
    if task.name in GLUE:
        written.append(write_glue(task, evaluation.split, examples, predictions, folder))
    if task.kind == "question_answering":
        odds = [one.null_score for one in evaluation.answers] if task.may_have_no_answer else None
        written += write_squad(examples, predictions, folder / f"{name}.json", odds)
        best = {
            example.id: [asdict(candidate) for candidate in answers.candidates]
            for example, answers in zip(examples, evaluation.answers, strict=True)
        }
        written.append(_written(folder / f"{name}_nbest.json", _json(best)))
    return written


def write_glue(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[object], folder: Path
) -> Path:
    """Write a split's predictions in the leaderboard's format.

    A test split has the leaderboard's file name; another has the split's name added.
    """
    if task.name not in GLUE:
        raise UserError(f"{task.name} is not a task of GLUE: its leaderboard has {', '.join(GLUE)}")
    glue = GLUE[task.name]
    _one_for_each(examples, predictions)
    if split == "test":
        split = next(iter(glue.submission))
    name = glue.submission.get(split) or f"{glue.folder}.{split}.tsv"
    lines = ["index\tprediction"]
    for example, prediction in zip(examples, predictions, strict=True):
        if glue.kind == "regression":
            # The labels are within 0 and 5.
            value = f"{min(5.0, max(0.0, float(cast('float', prediction)))):.3f}"
        else:
            label = task.labels[int(cast("int", prediction))]
            value = glue.codes[glue.labels.index(label)] if glue.codes else label
        lines.append(f"{example.id}\t{value}")
    return _written(folder / name, "\n".join(lines) + "\n")


def write_squad(
    examples: Sequence[Example],
    answers: Sequence[object],
    file: Path,
    null_odds: Sequence[float] | None = None,
) -> list[Path]:
    """Write answers as SQuAD's scorers read them, `""` for none, and for 2.0 the odds of no answer.

    The odds go to a file of the same name that ends in `_null_odds.json`, for the scorer's `--na-prob-file`.
    """
    _one_for_each(examples, answers)
    by_id = {example.id: str(answer) for example, answer in zip(examples, answers, strict=True)}
    if len(by_id) < len(examples):
        raise UserError(
            f"{counted(len(examples), 'question')} have {counted(len(by_id), 'id')}, and answers are written by id: "
            "every question needs its own"
        )
    written = [_written(file, _json(by_id))]
    if null_odds is not None:
        _one_for_each(examples, null_odds)
        odds = {example.id: float(one) for example, one in zip(examples, null_odds, strict=True)}
        written.append(_written(file.with_name(f"{file.stem}_null_odds.json"), _json(odds)))
    return written


def write_tags(task: Task, examples: Sequence[Example], tagged: Sequence[TaggedWords], file: Path) -> list[Path]:
    """Write JSON lines with the entities as characters of the text, or the tags of words where they mark none; and a
    CoNLL file with the word, the actual tag if it is known, and the predicted one, as conlleval reads it."""
    _one_for_each(examples, tagged)
    marks_entities = mark_entities(task.labels)
    lines, columns = [], []
    for example, found in zip(examples, tagged, strict=True):
        assert isinstance(example, TaggingExample)
        words = [example.text[start:end] for start, end in example.words]
        values: dict[str, object] = {"id": example.id, "text": example.text}
        if marks_entities:
            values["prediction"] = [_rounded(asdict(entity)) for entity in found.entities(example)]
        else:
            values |= {"words": words, "prediction": found.tags}
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
        rows = zip(words, *((example.tags,) if example.tags is not None else ()), found.tags, strict=True)
        columns.append("".join("\t".join(row) + "\n" for row in rows) + "\n")
    return [_written(file, "".join(lines)), _written(file.with_suffix(".conll"), "".join(columns))]


def _rounded(entity: dict[str, object]) -> dict[str, object]:
    return entity | {"probability": float(f"{entity['probability']:.6g}")}


def write_lines(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[object],
    file: Path,
    likely: Sequence[Float64[np.ndarray, "_"]] = (),
) -> Path:
    """Write JSON lines: the id, the readable prediction, and the probabilities, which `likely` holds."""
    _one_for_each(examples, predictions)
    lines = []
    for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        values = prediction_record(task, example, prediction, likely[number] if len(likely) else None)
        lines.append(json.dumps(values, ensure_ascii=False))
    return _written(file, "\n".join(lines) + "\n")


def prediction_record(
    task: Task, example: Example, prediction: object, likely: Float64[np.ndarray, "_"] | None
) -> dict[str, object]:
    """The id, the readable prediction and the probabilities of one example."""
    values: dict[str, object] = {"id": example.id, "prediction": format_prediction(task, prediction)}
    return values if likely is None else values | _by_name(task, likely)


def _by_name(task: Task, likely: Float64[np.ndarray, "_"]) -> dict[str, object]:
    """The probabilities of one example by class, label, option or kind of answer."""
    values = [float(f"{one:.6g}") if np.isfinite(one) else None for one in likely]
    if task.kind == "question_answering":
        return dict(zip(("answer_probability", "no_answer_probability"), values, strict=False))
    names = task.labels or tuple(map(letter, range(len(values))))
    return {"probabilities": dict(zip(names, values, strict=True))}


def format_prediction(task: Task, prediction: object) -> str | float | list[str] | None:
    """A readable prediction; None for a value that is not finite, which JSON cannot hold."""
    if task.kind == "classification":
        return task.labels[int(cast("int", prediction))]
    if task.kind in ("regression", "similarity"):
        value = prediction.cosine if isinstance(prediction, Retrieved) else float(cast("float", prediction))
        return value if np.isfinite(value) else None
    if task.kind == "multi_label":
        return [task.labels[number] for number in cast("tuple[int, ...]", prediction)]
    if task.kind == "multiple_choice":
        return letter(int(cast("int", prediction)))
    if task.kind == "tagging":
        return list(cast("tuple[str, ...]", prediction))
    return str(prediction)


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=0) + "\n"


def _one_for_each(examples: Sequence[Example], predictions: Sequence[object]) -> None:
    if len(examples) != len(predictions):
        raise UserError(
            f"{counted(len(predictions), 'prediction')} for {counted(len(examples), 'example')}: one for each is needed"
        )


def _written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_io.write_text(file, text)
    return file
