"""What a fine-tuning run leaves in its folder, and the scores that it prints."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.finetuning.data import TaskData
from openalbert.interop import huggingface
from openalbert.interop.task_json import TaskInfo, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.report.baselines import baseline_lines, describe_gain
from openalbert.report.error_analysis import ErrorAnalysis, explain_intervals, write_error_analyses, written_scores
from openalbert.report.model_card import finetuned_card
from openalbert.run_files import MODEL, SCORES
from openalbert.tasks.task import are_pairs


def write_outcome(
    folder: Path,
    model: AlbertModel,
    task_data: TaskData,
    stride: int,
    scores: dict[str, Any],
    analyses: Sequence[ErrorAnalysis],
) -> None:
    """Write the scores, the error analyses, and the model with its card and task.json into the run's folder."""
    task = task_data.task
    atomic_io.write_text(folder / SCORES, json.dumps(scores, indent=2) + "\n")
    write_error_analyses(folder, analyses)
    pairs = are_pairs(task_data.train.examples)
    collapsed = scores["collapsed"] or ""
    card = finetuned_card(
        model,
        task,
        folder,
        scores["scores"],
        outcome=scores,
        collapsed=collapsed,
        of_pairs=pairs,
        analyses=analyses,
    )
    huggingface.save(model, folder / MODEL, task_data.tokenizer, card=card, pretraining=task_data.pretraining)
    split, metrics = next(iter(scores["scores"].items()))
    task_info = TaskInfo(
        task=task.name,
        kind=task.kind,
        max_length=task_data.max_length,
        stride=stride,
        null_threshold=scores["null_threshold"],
        split=split,
        scores=metrics,
        metric=task.main_metric,
        of_pairs=pairs,
        answer_format=task.answer_format,
        layout=dict(task_data.layout),
        separator=task_data.separator,
        max_answer_tokens=task_data.train.max_answer_tokens,
        pooling="mean" if task.kind == "similarity" else None,
        long_texts=task_data.train.encoding.sequences.long_texts,
    )
    write_task_info(folder / MODEL, task_info)


def final_scores(scores: Mapping[str, Any]) -> str:
    """The scores of a run that has ended, a line for each split and its baselines, and what the model buys."""
    lines = []
    for split, metrics in scores["scores"].items():
        ends = scores["intervals"].get(split, {})
        line = f"{split}: {written_scores(metrics, scores['main_metric'], ends)}"
        lines.append(f"{line} ({explain_intervals(scores['num_examples'][split])})" if ends else line)
        lines += baseline_lines(scores, split, scores["main_metric"])
    if scores.get("gain"):
        lines.append(describe_gain(scores["gain"]))
    return "\n".join(lines)
