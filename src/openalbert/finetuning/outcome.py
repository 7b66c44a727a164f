"""What a fine-tuning run leaves behind: scores, a closer look at them, and the model with its card and task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.finetuning.closer_look import Predicted, look_closely
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.scoring import Scored, answers_to
from openalbert.finetuning.span_decoding import how_sure
from openalbert.formatting import counted
from openalbert.interop import huggingface
from openalbert.interop.task_json import TaskInfo, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.report.error_analysis import ErrorAnalysis, explain_intervals, write_error_analyses, written_scores
from openalbert.report.model_card import finetuned_card
from openalbert.tasks.task import are_pairs
from openalbert.train.run_dir import MODEL

SCORES, REPORT = "scores.json", "report.html"


def look_at(task_data: TaskData, scored: Mapping[str, Scored]) -> list[ErrorAnalysis]:
    """A closer look at each split that was scored."""
    analyses = []
    for split, found in scored.items():
        part = task_data.scored[split]
        answers = answers_to(part, found.outputs)
        predicted = Predicted(task_data.task, part.examples, part.encoding, found.outputs, found.predictions, answers)
        looked = look_closely(predicted, split, found.figures)
        if task_data.threshold is not None:
            number = len(task_data.threshold.examples)
            where = f"fitted on {counted(number, 'training question')} held out{how_sure(number)}"
            looked = replace(looked, null_threshold=f"{found.null_threshold:.3f}, {where}")
        analyses.append(looked)
    return analyses


def write_outcome(
    folder: Path,
    model: AlbertModel,
    task_data: TaskData,
    stride: int,
    scores: dict[str, Any],
    analyses: Sequence[ErrorAnalysis],
) -> None:
    """Write all of it into the run's folder."""
    task, threshold = task_data.task, scores["null_threshold"]
    atomic_io.write_text(folder / SCORES, json.dumps(scores, indent=2) + "\n")
    write_error_analyses(folder, analyses)
    pairs = are_pairs(task_data.train.examples)
    collapsed = scores["collapsed"] or ""
    card = finetuned_card(model, task, folder, scores["scores"], collapsed=collapsed, of_pairs=pairs, analyses=analyses)
    huggingface.save(model, folder / MODEL, task_data.tokenizer, card=card, pretraining=task_data.pretraining)
    split, figures = next(iter(scores["scores"].items()))
    tuned = TaskInfo(
        task=task.name,
        kind=task.kind,
        max_length=task_data.max_length,
        stride=stride,
        null_threshold=threshold,
        split=split,
        scores=figures,
        metric=task.main_metric,
        of_pairs=pairs,
        answer_format=task.answer_format,
        layout=dict(task_data.layout),
        separator=task_data.separator,
        max_answer_tokens=task_data.train.max_answer_tokens,
    )
    write_task_info(folder / MODEL, tuned)


def final_scores(scores: Mapping[str, Any]) -> str:
    """The scores of a run that has ended, a line for each split; those of an earlier version have no intervals."""
    lines = []
    for split, figures in scores["scores"].items():
        intervals = scores.get("intervals", {}).get(split, {})
        line = f"{split}: {written_scores(figures, scores['main_metric'], intervals)}"
        lines.append(f"{line} ({explain_intervals(scores['num_examples'][split])})" if intervals else line)
    return "\n".join(lines)
