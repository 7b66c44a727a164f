"""What a fine-tuning run leaves behind: scores, a closer look at them, and the model with its card and task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.finetuning.closer_look import Predicted, look_closely
from openalbert.finetuning.data import Material
from openalbert.finetuning.scoring import Scored, answers_to
from openalbert.finetuning.span_decoding import how_sure
from openalbert.formatting import counted
from openalbert.interop import huggingface
from openalbert.interop.task_json import Tuned, write_tuned
from openalbert.model.albert import AlbertModel
from openalbert.report.error_analysis import Findings, explained, write_findings, written_scores
from openalbert.report.finetuned_card import tuned_card
from openalbert.tasks.task import of_pairs
from openalbert.train.run_dir import MODEL

SCORES, REPORT = "scores.json", "report.html"


def look_at(material: Material, scored: Mapping[str, Scored]) -> list[Findings]:
    """A closer look at each split that was scored."""
    findings = []
    for split, found in scored.items():
        part = material.scored[split]
        answers = answers_to(part, found.outputs)
        predicted = Predicted(material.task, part.examples, part.encoding, found.outputs, found.predictions, answers)
        looked = look_closely(predicted, split, found.figures)
        if material.threshold is not None:
            number = len(material.threshold.examples)
            where = f"fitted on {counted(number, 'training question')} held out{how_sure(number)}"
            looked = replace(looked, null_threshold=f"{found.null_threshold:.3f}, {where}")
        findings.append(looked)
    return findings


def write_outcome(
    folder: Path,
    model: AlbertModel,
    material: Material,
    stride: int,
    scores: dict[str, Any],
    findings: Sequence[Findings],
) -> None:
    """Write all of it into the run's folder."""
    task, threshold = material.task, scores["null_threshold"]
    atomic_io.write_text(folder / SCORES, json.dumps(scores, indent=2) + "\n")
    write_findings(folder, findings)
    pairs = of_pairs(material.train.examples)
    collapsed = scores["collapsed"] or ""
    card = tuned_card(model, task, folder, scores["scores"], collapsed=collapsed, of_pairs=pairs, findings=findings)
    huggingface.save(model, folder / MODEL, material.tokenizer, card=card, pretraining=material.pretraining)
    split, figures = next(iter(scores["scores"].items()))
    tuned = Tuned(
        task=task.name,
        kind=task.kind,
        max_length=material.max_length,
        stride=stride,
        null_threshold=threshold,
        split=split,
        scores=figures,
        metric=task.main_metric,
        of_pairs=pairs,
        writing=task.writing,
        layout=dict(material.layout),
        separator=material.separator,
        max_answer_tokens=material.train.max_answer_tokens,
    )
    write_tuned(folder / MODEL, tuned)


def final_scores(scores: Mapping[str, Any]) -> str:
    """The scores of a run that has ended, a line for each split; those of an earlier version have no intervals."""
    lines = []
    for split, figures in scores["scores"].items():
        intervals = scores.get("intervals", {}).get(split, {})
        line = f"{split}: {written_scores(figures, scores['main_metric'], intervals)}"
        lines.append(f"{line} ({explained(scores['num_examples'][split])})" if intervals else line)
    return "\n".join(lines)
