"""How a model does on the examples of a split, and where questions have no answer: while it learns, and at the end."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from openalbert.finetuning.batches import PackedBatch
from openalbert.finetuning.data import Part
from openalbert.finetuning.losses import head_loss
from openalbert.finetuning.predict import Outputs, decide, predict
from openalbert.finetuning.span_decoding import Answers, best_answers, fit_threshold
from openalbert.finetuning.units import Units
from openalbert.model.albert import AlbertModel
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.squad import score_answers
from openalbert.tasks.task import QuestionExample, Task
from openalbert.train.device import Device


@dataclass(frozen=True)
class Scored:
    """Predictions and what they are worth."""

    figures: dict[str, float]
    """In percent."""
    predictions: list[object]
    outputs: Outputs
    null_threshold: float
    """Above which null score a question was taken to have no answer."""
    loss: float
    """Of the kind that is minimized in training, weights of classes included."""


def score_part(
    model: AlbertModel,
    task: Task,
    part: Part,
    device: Device,
    null_threshold: float,
    units: Units | None = None,
    class_weights: Float64[np.ndarray, "classes"] | None = None,
) -> Scored:
    """Predict and measure; `units` are given for a model that is still learning in them."""
    outputs = predict([model], part.encoding.sequences, device)
    if units is not None:
        outputs = units.told(outputs)
    predictions = decide(
        task,
        part.examples,
        part.encoding,
        outputs,
        null_threshold=null_threshold,
        max_answer_tokens=part.max_answer_tokens,
    )
    figures, loss = task.measure(part.examples, predictions), evaluation_loss(part, outputs, class_weights)
    if task.main_metric == LOSS:
        figures[LOSS] = loss
    return Scored(figures, predictions, outputs, null_threshold, loss)


def evaluation_loss(part: Part, outputs: Outputs, class_weights: Float64[np.ndarray, "classes"] | None = None) -> float:
    """The loss of these outputs, the sum of all heads', as it is in training; of values in their own units."""
    sequences = part.encoding.sequences
    is_choice = "multiple_choice" in sequences.targets
    options = np.bincount(sequences.example) if is_choice else np.ones(len(sequences.example), np.int64)
    nothing = torch.empty(0, dtype=torch.int64)  # what was read is in the outputs
    targets = {kind: torch.from_numpy(wanted) for kind, wanted in sequences.targets.items()}
    batch = PackedBatch(nothing, nothing, tuple(sequences.lengths.tolist()), tuple(options.tolist()), targets)
    weights = None if class_weights is None else torch.from_numpy(class_weights).float()
    losses = [head_loss(kind, torch.from_numpy(outputs.scores[kind]), batch, weights).mean for kind in targets]
    return float(sum(losses))


def threshold_on(model: AlbertModel, part: Part | None, device: Device) -> float:
    """The threshold of the null score at which F1 is highest on some held-out questions; 0 where there are none."""
    if part is None:
        return 0.0
    outputs = predict([model], part.encoding.sequences, device)
    return fit_threshold(questions_of(part), answers_to(part, outputs), _f1)


def questions_of(part: Part) -> list[QuestionExample]:
    """Its questions on passages; none where it is of something else."""
    return [example for example in part.examples if isinstance(example, QuestionExample)]


def answers_to(part: Part, outputs: Outputs) -> list[Answers]:
    """The answers to them."""
    if not (questions := questions_of(part)):
        return []
    return best_answers(questions, part.encoding, outputs.scores, max_answer_tokens=part.max_answer_tokens)


def _f1(question: QuestionExample, answer: str) -> float:
    gold = tuple(one.text for one in question.answers)
    return score_answers([gold], [answer], may_have_no_answer=True)["f1"]
