"""What a fine-tuning run leaves behind: scores, a closer look at them, and the model with its card and task."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from openalbert import durable
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.tasks.answers import how_sure
from openalbert.tasks.card import tuned_card
from openalbert.tasks.closer_look import Predicted, look_closely
from openalbert.tasks.findings import write_findings
from openalbert.tasks.material import Material
from openalbert.tasks.scoring import Scored, answers_to
from openalbert.tasks.task import of_pairs
from openalbert.tasks.tuned import Tuned, write_tuned
from openalbert.tasks.wording import counted
from openalbert.train.claim import MODEL

SCORES, REPORT = "scores.json", "report.html"


def write_outcome(
    folder: Path,
    model: AlbertModel,
    material: Material,
    stride: int,
    scores: dict[str, Any],
    scored: dict[str, Scored],
) -> None:
    """Write all of it into the run's folder."""
    task, threshold = material.task, scores["null_threshold"]
    durable.write_text(folder / SCORES, json.dumps(scores, indent=2) + "\n")
    findings = []
    for split, found in scored.items():
        part = material.scored[split]
        answers = answers_to(part, found.outputs)
        predicted = Predicted(task, part.examples, part.encoding, found.outputs, found.predictions, answers)
        looked = look_closely(predicted, split, found.figures)
        if threshold is not None and material.threshold is not None:
            number = len(material.threshold.examples)
            fitted = f"{threshold:.3f}, fitted on {counted(number, 'training question')} held out{how_sure(number)}"
            looked = replace(looked, null_threshold=fitted)
        findings.append(looked)
    write_findings(folder, findings)
    pairs = of_pairs(material.train.examples)
    card = tuned_card(model, task, folder, scores["scores"], collapsed=scores["collapsed"] or "", of_pairs=pairs)
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
        of_pairs=pairs,
        writing=task.writing,
        layout=dict(material.layout),
        separator=material.separator,
        max_answer_tokens=material.train.max_answer_tokens,
    )
    write_tuned(folder / MODEL, tuned)
