"""What models say of sequences: packed, so that nothing is spent on padding, and averaged over models (section 4.9).

The paper's best results are of ensembles: "average the model predictions", which here are the heads' scores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64

from openalbert.errors import UserError
from openalbert.finetuning.encode import Encoding
from openalbert.finetuning.slices import stretches
from openalbert.finetuning.span_decoding import Answers, best_answers
from openalbert.model.albert import AlbertModel
from openalbert.model.config import HeadKind
from openalbert.tasks.task import MAX_ANSWER_TOKENS, Example, QuestionExample, Sequences, Task
from openalbert.train.device import Device

PRETRAINING: tuple[HeadKind, ...] = ("masked_lm", "sentence_order")


@dataclass(frozen=True)
class Outputs:
    """The scores of every head of a task, float32, before any softmax."""

    scores: dict[str, np.ndarray]
    """By the kind of head: a row for each sequence, in their order; for `span` a row for each token, in the order of
    ids."""


def predict(
    models: Sequence[AlbertModel],
    sequences: Sequences,
    device: Device,
    *,
    tokens_at_a_time: int = 16384,
    advance: Callable[[float], None] = lambda tokens: None,
) -> Outputs:
    """The scores of these sequences, the mean over the models where there are several; `advance` is told of tokens."""
    kinds = _kinds(models)
    num_sequences, num_tokens = len(sequences.example), len(sequences.ids)
    scores: dict[str, np.ndarray] = {
        head.kind: np.zeros((num_tokens if head.kind == "span" else num_sequences, head.num_outputs), np.float32)
        for head in models[0].head_list
        if head.kind in kinds
    }
    for model in models:
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            for chosen in portions(sequences.lengths, tokens_at_a_time):
                _add_scores(model, sequences, chosen, device, scores, len(models))
                advance(float(sequences.lengths[chosen].sum()))
        model.train(was_training)
    return Outputs(scores)


def _kinds(models: Sequence[AlbertModel]) -> list[HeadKind]:
    if not models:
        raise UserError("no model is given to predict with")
    heads = [[head for head in model.head_list if head.kind not in PRETRAINING] for model in models]
    if not heads[0]:
        raise UserError("this model has no head for a task: fine-tune it first, with `openalbert finetune`")
    for others in heads[1:]:
        if others != heads[0]:
            raise UserError("the models have different heads or labels: an ensemble is of models for one task")
    return [head.kind for head in heads[0]]


def portions(lengths: Int64[np.ndarray, "n"], tokens_at_a_time: int) -> Iterator[Int64[np.ndarray, "_"]]:
    """The numbers of the sequences that are computed together, longest first.

    Sequences of like length stand together, which attention on a padded copy needs; the largest comes first, so that
    memory that will not do is found out at once.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + tokens_at_a_time, side="right")))
        yield order[start:end]
        start = end


def _add_scores(
    model: AlbertModel,
    sequences: Sequences,
    chosen: Int64[np.ndarray, "_"],
    device: Device,
    scores: dict[str, np.ndarray],
    num_models: int,
) -> None:
    lengths = sequences.lengths[chosen]
    places = stretches(sequences.starts[chosen], lengths)
    within = places - np.repeat(sequences.starts[chosen], lengths)
    is_second = within >= np.repeat(sequences.second[chosen], lengths)
    ids = torch.from_numpy(sequences.ids[places]).to(device.torch_device, non_blocking=True)
    segments = torch.from_numpy(is_second.astype(np.int64)).to(device.torch_device, non_blocking=True)
    # Where no token is asked for, the last layer works on [CLS] alone.
    at = None if "span" in scores else torch.empty(0, dtype=torch.int64, device=device.torch_device)
    with device.autocast():
        encoded = model.encode_packed(ids, lengths.tolist(), segments, at=at)
        found = {kind: model.scores(kind, encoded) for kind in model.heads if kind in scores}  # type: ignore[arg-type]
    for kind, score in found.items():
        rows = places if kind == "span" else chosen
        scores[kind][rows] += score.float().cpu().numpy() / num_models


def decide(
    task: Task,
    examples: Sequence[Example],
    encoding: Encoding,
    outputs: Outputs,
    *,
    null_threshold: float = 0.0,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[object]:
    """What the scores come to, as `Task.measure` takes it: one prediction for each example."""
    scores = outputs.scores
    if task.kind == "classification":
        return list(map(int, scores["classification"].argmax(1)))
    if task.kind == "regression":
        return list(map(float, scores["regression"][:, 0]))
    if task.kind == "multi_label":
        return [tuple(map(int, np.flatnonzero(row > 0))) for row in scores["multi_label"]]
    if task.kind == "multiple_choice":
        return [int(options.argmax()) for options in by_example(encoding.sequences, scores["multiple_choice"][:, 0])]
    questions = [example for example in examples if isinstance(example, QuestionExample)]
    return [
        answers.text(null_threshold if task.may_have_no_answer else None)
        for answers in best_answers(questions, encoding, scores, max_answer_tokens=max_answer_tokens)
    ]


def by_example(sequences: Sequences, scores: np.ndarray) -> list[np.ndarray]:
    """The scores of each example's sequences, apart: of its options, of its windows."""
    borders = np.searchsorted(sequences.example, np.arange(1, sequences.num_examples))
    return np.split(scores, borders) if sequences.num_examples else []


def probabilities(
    task: Task, encoding: Encoding, outputs: Outputs, answers: Sequence[Answers] = ()
) -> list[Float64[np.ndarray, "_"]]:
    """How likely the models take each thing that could be said of an example; of several models, by their mean scores.

    Of classes and options they add up to 1, of labels each is for itself. Of a question it is the best answer, as a
    share among the candidates, and where there may be none, that there is none. Of values there are none.
    """
    scores = outputs.scores
    if task.kind == "classification":
        return list(softmax(scores["classification"]))
    if task.kind == "multi_label":
        return list(sigmoid(scores["multi_label"]))
    if task.kind == "multiple_choice":
        options = by_example(encoding.sequences, scores["multiple_choice"][:, 0])
        return [softmax(of_one[None])[0] for of_one in options]
    if task.kind == "regression":
        return []
    shares = np.array([one.candidates[0].probability if one.candidates else 0.0 for one in answers])
    if not task.may_have_no_answer:
        return list(shares[:, None])
    none = sigmoid(np.array([one.null_score for one in answers]))
    return list(np.stack([shares * (1 - none), none], axis=1))


def softmax(scores: Float[np.ndarray, "rows classes"]) -> Float64[np.ndarray, "rows classes"]:
    """Scores as probabilities that add up to 1."""
    powers = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(1, keepdims=True)
    return shares


def sigmoid(scores: Float[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    """Log-odds as probabilities, each for itself; by way of the tangent, which never overflows."""
    shares: np.ndarray = (1 + np.tanh(scores.astype(np.float64) / 2)) / 2
    return shares
