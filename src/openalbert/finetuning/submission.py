"""Predictions as files: GLUE's leaderboard, SQuAD's scorer, and JSON lines for every task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float64

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.examine import Examined
from openalbert.finetuning.predict import probabilities
from openalbert.formatting import counted
from openalbert.tasks.race import letter
from openalbert.tasks.registry import GLUE
from openalbert.tasks.task import Example, Task


def write_files(task: Task, examined: Examined, folder: Path) -> list[Path]:
    """The predictions of a split in every form that its task has."""
    examples, predictions = examined.reading.examples, examined.predictions
    name = f"{task.name}.{examined.split}"
    shares = probabilities(task, examined.encoding, examined.outputs, examined.answers)
    written = [write_lines(task, examples, predictions, folder / f"{name}.jsonl", shares)]
    if task.name in GLUE:
        written.append(write_glue(task, examined.split, examples, predictions, folder))
    if task.kind == "question_answering":
        odds = [one.null_score for one in examined.answers] if task.may_have_no_answer else None
        written += write_squad(examples, predictions, folder / f"{name}.json", odds)
        best = {
            example.id: [asdict(candidate) for candidate in answers.candidates]
            for example, answers in zip(examples, examined.answers, strict=True)
        }
        written.append(_written(folder / f"{name}_nbest.json", _json(best)))
    return written


def write_glue(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[object], folder: Path
) -> Path:
    """Write a split's predictions as the leaderboard wants them; the file that was written.

    A test split has the leaderboard's file name; another has the split's name added, so that none is taken for it.
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
            # Annotators could say 0 to 5 and nothing else.
            told = f"{min(5.0, max(0.0, float(cast('float', prediction)))):.3f}"
        else:
            label = task.labels[int(cast("int", prediction))]
            told = glue.codes[glue.labels.index(label)] if glue.codes else label
        lines.append(f"{example.id}\t{told}")
    return _written(folder / name, "\n".join(lines) + "\n")


def write_squad(
    examples: Sequence[Example],
    answers: Sequence[object],
    file: Path,
    null_odds: Sequence[float] | None = None,
) -> list[Path]:
    """Write answers as SQuAD's scorers read them, `""` for none; beside them the odds of no answer, for 2.0.

    The odds (higher: rather no answer) go to a file of the same name that ends in `_null_odds.json`, as the scorer's
    `--na-prob-file` takes it.
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


def write_lines(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[object],
    file: Path,
    shares: Sequence[Float64[np.ndarray, "_"]] = (),
) -> Path:
    """Write an object a line: the id, the prediction in words, as labels, values, letters or answers, and how likely.

    `shares` are what `probabilities` gives.
    """
    _one_for_each(examples, predictions)
    lines = []
    for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        values: dict[str, object] = {"id": example.id, "prediction": in_words(task, prediction)}
        if len(shares):
            values |= _named(task, shares[number])
        lines.append(json.dumps(values, ensure_ascii=False))
    return _written(file, "\n".join(lines) + "\n")


def _named(task: Task, shares: Float64[np.ndarray, "_"]) -> dict[str, object]:
    """The probabilities of one example, by the names of what they are of."""
    # Six digits are more than any model is sure of.
    told = [float(f"{share:.6g}") if np.isfinite(share) else None for share in shares]
    if task.kind == "question_answering":
        return dict(zip(("answer_probability", "no_answer_probability"), told, strict=False))
    names = task.labels or tuple(map(letter, range(len(told))))
    return {"probabilities": dict(zip(names, told, strict=True))}


def in_words(task: Task, prediction: object) -> str | float | list[str] | None:
    """A prediction as a person reads it; None for a value that is not a number, for which JSON has no word."""
    if task.kind == "classification":
        return task.labels[int(cast("int", prediction))]
    if task.kind == "regression":
        value = float(cast("float", prediction))
        return value if np.isfinite(value) else None
    if task.kind == "multi_label":
        return [task.labels[number] for number in cast("tuple[int, ...]", prediction)]
    if task.kind == "multiple_choice":
        return letter(int(cast("int", prediction)))
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
