"""From a split to its metrics: logits, predictions, the null threshold, metrics and loss.

Fine-tuning and the verb `evaluate` both use `evaluate_split`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64

from openalbert.finetuning import similarity
from openalbert.finetuning.batches import without_tokens
from openalbert.finetuning.data import EncodedSplit
from openalbert.finetuning.frozen import FrozenStates
from openalbert.finetuning.losses import Standardization, head_loss
from openalbert.finetuning.predict import TOKENS_AT_A_TIME, Outputs, decide, embed, predict
from openalbert.finetuning.question_answering.null_threshold import (
    answer_f1,
    decide_by_halves,
    few_questions_note,
    fit_threshold,
)
from openalbert.finetuning.question_answering.span_decoding import N_BEST, Answers, best_answers
from openalbert.formatting import counted
from openalbert.interop.exits import ExitPoint
from openalbert.model.albert import AlbertModel
from openalbert.tasks.data.row_files import check_no_rows_excluded
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.task import QuestionExample, Task
from openalbert.train.device import Device


@dataclass(frozen=True)
class Evaluation:
    """The predictions for a split, and their metrics."""

    task: Task
    data: EncodedSplit
    num_models: int
    outputs: Outputs
    answers: list[Answers]
    """To questions: the best few, and the null score."""
    predictions: list[object]
    """As `Task.measure` takes them."""
    metrics: dict[str, float]
    """In percent; empty where the examples have no labels."""
    loss: float
    """As in training, class weights included; NaN without labels, or where a head for one of the targets is missing."""
    null_threshold: float | None
    """Where a question may have no answer: the given threshold, or the best one on all questions of this split."""
    threshold_origin: str
    """How the threshold was found, as a clause."""
    threshold_note: str
    """The threshold or thresholds that were used, for the reader."""
    early_exit: ExitPoint | None = None
    """What a model's rule of early exit gives on this split, where it was measured; all else is of full depth."""

    @property
    def split(self) -> str:
        """The name of the split."""
        return self.data.name

    @property
    def is_labelled(self) -> bool:
        """Whether there is anything to compare predictions with."""
        return bool(self.data.encoding.sequences.targets)


def evaluate_split(
    models: Sequence[AlbertModel],
    task: Task,
    data: EncodedSplit,
    device: Device,
    *,
    null_threshold: float | None = None,
    threshold_origin: str = "",
    standardization: Standardization | None = None,
    class_weights: Float64[np.ndarray, "classes"] | None = None,
    n_best: int = N_BEST,
    tokens_at_a_time: int = TOKENS_AT_A_TIME,
    advance: Callable[[float], None] = lambda tokens: None,
    frozen: FrozenStates | None = None,
) -> Evaluation:
    """Predict a split with the mean of some models, and measure the predictions.

    `standardization` is for a model in training, `frozen` for one whose encoder is not trained. The other options are
    those of `evaluate_outputs`.
    """
    if not data.encoding.sequences.targets:
        check_no_rows_excluded(data.reading.file or f"{task.name} {data.name}", data.reading.excluded)
    sequences = data.encoding.sequences
    if frozen is not None:
        outputs = frozen.outputs(models[0], data.name, sequences)
    elif task.kind == "similarity":
        embeddings = embed(models, sequences, device, tokens_at_a_time=tokens_at_a_time, advance=advance)
        outputs = Outputs({"similarity": embeddings})
    else:
        outputs = predict(models, sequences, device, tokens_at_a_time=tokens_at_a_time, advance=advance)
    if standardization is not None:
        outputs = standardization.restore(outputs)
    return evaluate_outputs(
        task,
        data,
        outputs,
        null_threshold=null_threshold,
        threshold_origin=threshold_origin,
        class_weights=class_weights,
        n_best=n_best,
        num_models=len(models),
    )


def evaluate_outputs(
    task: Task,
    data: EncodedSplit,
    outputs: Outputs,
    *,
    null_threshold: float | None = None,
    threshold_origin: str = "",
    class_weights: Float64[np.ndarray, "classes"] | None = None,
    n_best: int = N_BEST,
    num_models: int = 1,
) -> Evaluation:
    """Decide on predictions, and measure them.

    Without a null threshold, each half of the questions is decided with the one that is best on the other half: no
    threshold is fitted on the questions that its metrics are reported on.
    """
    is_labelled = bool(data.encoding.sequences.targets)
    questions, answers = find_answers(data, outputs, n_best)
    note = ""
    if task.may_have_no_answer and is_labelled and null_threshold is None:
        predictions, null_threshold, note = decide_by_halves(questions, answers)
    else:
        null_threshold = (null_threshold or 0.0) if task.may_have_no_answer else None
        predictions = decide(task, data.encoding, outputs, answers, null_threshold)
        if null_threshold is not None:
            note = f"{null_threshold:.3f}" + (f", {threshold_origin}" if threshold_origin else "")
    metrics = task.measure(data.examples, predictions) if is_labelled else {}
    loss = evaluation_loss(data, outputs, class_weights)
    if is_labelled and task.main_metric == LOSS:
        metrics[LOSS] = loss
    return Evaluation(
        task=task,
        data=data,
        num_models=num_models,
        outputs=outputs,
        answers=answers,
        predictions=predictions,
        metrics=metrics,
        loss=loss,
        null_threshold=null_threshold,
        threshold_origin=threshold_origin,
        threshold_note=note.replace("-", "−"),
    )


def find_answers(
    data: EncodedSplit, outputs: Outputs, n_best: int = N_BEST
) -> tuple[list[QuestionExample], list[Answers]]:
    """The questions of a split with their answers; none where it has other examples."""
    questions = [example for example in data.examples if isinstance(example, QuestionExample)]
    if not questions:
        return [], []
    longest = data.max_answer_tokens
    return questions, best_answers(questions, data.encoding, outputs.logits, n_best=n_best, max_answer_tokens=longest)


def evaluation_loss(
    data: EncodedSplit, outputs: Outputs, class_weights: Float64[np.ndarray, "classes"] | None = None
) -> float:
    """The loss of these outputs, summed over the heads, as in training; of regression in the original units."""
    sequences = data.encoding.sequences
    if "similarity" in sequences.targets:
        return similarity.evaluation_loss(sequences, outputs.logits["similarity"])
    has_heads = sequences.targets.keys() <= outputs.logits.keys()
    if not sequences.targets or not has_heads or not sequences.num_examples:
        return math.nan
    batch = without_tokens(sequences)
    if sequences.long_texts != "truncate":  # the outputs are those of whole texts
        first = sequences.first_of_examples
        options = tuple(batch.options[number] for number in first.tolist())
        batch = replace(batch, options=options, targets={kind: one[first] for kind, one in batch.targets.items()})
    weights = None if class_weights is None else torch.from_numpy(class_weights).float()
    losses = [head_loss(kind, torch.from_numpy(outputs.logits[kind]), batch, weights).mean for kind in batch.targets]
    return float(sum(losses))


def fit_null_threshold(model: AlbertModel, data: EncodedSplit | None, device: Device) -> tuple[float | None, str]:
    """The threshold with the highest F1 on held-out training questions, and its origin; None where there are none."""
    if data is None:
        return None, ""
    questions, answers = find_answers(data, predict([model], data.encoding.sequences, device))
    number = len(questions)
    origin = f"fitted on {counted(number, 'training question')} held out{few_questions_note(number)}"
    return fit_threshold(questions, answers, answer_f1), origin
