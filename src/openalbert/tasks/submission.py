"""Predictions as files: GLUE's leaderboard, SQuAD's scorer, and JSON lines for every other task."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from openalbert import durable
from openalbert.errors import UserError
from openalbert.tasks.race import LETTERS
from openalbert.tasks.registry import GLUE
from openalbert.tasks.task import Example, Task


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
) -> Path:
    """Write answers as SQuAD's scorers read them, `""` for none; beside them the odds of no answer, for 2.0.

    The odds (higher: rather no answer) go to a file of the same name that ends in `_null_odds.json`, as the scorer's
    `--na-prob-file` takes it.
    """
    _one_for_each(examples, answers)
    by_id = {example.id: str(answer) for example, answer in zip(examples, answers, strict=True)}
    if null_odds is not None:
        _one_for_each(examples, null_odds)
        odds = {example.id: float(one) for example, one in zip(examples, null_odds, strict=True)}
        _written(file.with_name(f"{file.stem}_null_odds.json"), _json(odds))
    return _written(file, _json(by_id))


def write_lines(task: Task, examples: Sequence[Example], predictions: Sequence[object], file: Path) -> Path:
    """Write an object a line: the id and the prediction in words, as labels, values, letters or answers."""
    _one_for_each(examples, predictions)
    lines = []
    for example, prediction in zip(examples, predictions, strict=True):
        lines.append(json.dumps({"id": example.id, "prediction": in_words(task, prediction)}, ensure_ascii=False))
    return _written(file, "\n".join(lines) + "\n")


def in_words(task: Task, prediction: object) -> str | float | list[str]:
    """A prediction as a person reads it."""
    if task.kind == "classification":
        return task.labels[int(cast("int", prediction))]
    if task.kind == "regression":
        return float(cast("float", prediction))
    if task.kind == "multi_label":
        return [task.labels[number] for number in cast("tuple[int, ...]", prediction)]
    if task.kind == "multiple_choice":
        number = int(cast("int", prediction))
        return LETTERS[number] if number < len(LETTERS) else str(number)
    return str(prediction)


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=0) + "\n"


def _one_for_each(examples: Sequence[Example], predictions: Sequence[object]) -> None:
    if len(examples) != len(predictions):
        raise UserError(f"{len(predictions)} predictions for {len(examples)} examples: one for each is needed")


def _written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(file, text)
    return file
