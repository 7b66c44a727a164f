"""The loss of every kind of head on packed batches, class weights, and standardized regression targets.

The losses are those of section 4.1 of the paper and its sources.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.finetuning.batches import PackedBatch
from openalbert.finetuning.predict import Outputs
from openalbert.model.albert import AlbertModel
from openalbert.model.config import TOKEN_HEADS
from openalbert.tasks.task import UNLABELLED, Sequences, Task
from openalbert.train.cuda_graphs import CapturedEncoder
from openalbert.train.loop import Score, TrainingTask, score

ANSWERABILITY_WEIGHT = 0.5  # Google's: the loss is then as large as that of the span


def finetuning(
    model: AlbertModel, captured: CapturedEncoder | None = None, class_weights: Float[Tensor, "classes"] | None = None
) -> TrainingTask[PackedBatch]:
    """Fine-tuning as the loop needs it: one loss for each head of the model; by CUDA graphs where there are any."""
    kinds = [head.kind for head in model.head_list]

    def predictions(batch: PackedBatch) -> dict[str, Tensor]:
        # A choice is one prediction over its options, a tag is one for each word; everything else is one for each
        # sequence.
        if "tagging" in kinds:
            return {"tagging": (batch.targets["tagging"] != UNLABELLED).sum()}
        return dict.fromkeys(kinds, _number(len(batch), batch.tokens))

    def scores(batch: PackedBatch, depth: int) -> dict[str, Score]:
        return finetuning_scores(model, batch, depth, captured, class_weights)

    def tokens(batch: PackedBatch) -> Tensor:
        return _number(sum(batch.real_lengths), batch.tokens)

    config = model.config
    has_dropout = max(config.hidden_dropout, config.attention_dropout, config.classifier_dropout) > 0
    return TrainingTask(predictions, scores, tokens, has_dropout)


def finetuning_scores(
    model: AlbertModel,
    batch: PackedBatch,
    depth: int,
    captured: CapturedEncoder | None = None,
    class_weights: Float[Tensor, "classes"] | None = None,
) -> dict[str, Score]:
    """The losses of a batch. Without a head that scores tokens, the last layer computes [CLS] only."""
    if model.exits is not None:
        states = model.encode_packed(batch.tokens, batch.lengths, batch.segments, all_states=True)
        [kind] = model.heads
        by_depth = [head_loss(kind, given, batch, class_weights) for given in model.depth_scores(states)]
        return {kind: combine_depths(by_depth)}
    encoded = None
    if captured is not None and batch.is_filled:
        encoded = captured.encode(batch.tokens, batch.segments, batch.lengths, depth)
    if encoded is None:
        at = None if any(kind in model.heads for kind in TOKEN_HEADS) else batch.tokens.new_empty(0)
        encoded = model.encode_packed(batch.tokens, batch.lengths, batch.segments, depth=depth, at=at)
    scores: dict[str, Score] = {}
    for head in model.head_list:
        given = model.scores(head.kind, encoded)
        count = sum(batch.real_lengths) if head.kind in TOKEN_HEADS else len(batch.real_lengths)
        real = given[:count]
        scores[head.kind] = head_loss(head.kind, real, batch, class_weights)
    return scores


def combine_depths(scores: Sequence[Score]) -> Score:
    """One loss of all depths, for early exit: the mean weighted by the depth (PABEE, arXiv 2006.04152).

    Right are the decisions at full depth.
    """
    weights = range(1, len(scores) + 1)
    weighted = torch.stack([weight * one.loss_sum for weight, one in zip(weights, scores, strict=True)]).sum()
    return scores[-1]._replace(loss_sum=weighted / sum(weights))


def head_loss(
    kind: str, scores: Tensor, batch: PackedBatch, class_weights: Float[Tensor, "classes"] | None = None
) -> Score:
    """The loss of one head; class weights are for heads that have classes."""
    if class_weights is None:
        return LOSSES[kind](scores, batch)
    return WEIGHTED_LOSSES[kind](scores, batch, class_weights)


def classification_loss(
    scores: Float[Tensor, "sequences classes"],
    batch: PackedBatch,
    class_weights: Float[Tensor, "classes"] | None = None,
) -> Score:
    """Cross entropy, each example weighted by the weight of its class."""
    labels = batch.targets["classification"]
    return _weighted(score(scores, labels), scores, labels, class_weights)


def regression_loss(scores: Float[Tensor, "sequences 1"], batch: PackedBatch) -> Score:
    """Squared error; no value counts as right."""
    errors = scores[:, 0].float() - batch.targets["regression"]
    return Score(errors.square().sum(), *_counted(errors, torch.zeros_like(errors, dtype=torch.bool)))


def multi_label_loss(
    scores: Float[Tensor, "sequences classes"],
    batch: PackedBatch,
    class_weights: Float[Tensor, "classes"] | None = None,
) -> Score:
    """Binary cross entropy, the mean over the classes; a sequence is right if every class is.

    Class weights apply to positive targets.
    """
    scores, wanted = scores.float(), batch.targets["multi_label"]
    losses = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none", pos_weight=class_weights).mean(1)
    return Score(losses.sum(), *_counted(losses, ((scores > 0) == (wanted > 0.5)).all(1)))


def multiple_choice_loss(scores: Float[Tensor, "sequences 1"], batch: PackedBatch) -> Score:
    """Cross entropy of the right option among those of its example."""
    rows, is_real = _padded_indices(batch.options, scores.device)
    by_option = scores[:, 0].float()[rows].masked_fill(~is_real, -torch.inf)
    right = (batch.targets["multiple_choice"][rows] * is_real).argmax(1)
    return score(by_option, right)


def span_loss(scores: Float[Tensor, "tokens 2"], batch: PackedBatch) -> Score:
    """The mean of two cross entropies over a sequence's tokens: of the answer's first and of its last token."""
    rows, is_real = _padded_indices(batch.real_lengths, scores.device)
    by_token = scores.float()[rows].masked_fill(~is_real[:, :, None], -torch.inf)
    wanted = batch.targets["span"]
    losses = F.cross_entropy(by_token, wanted, reduction="none").mean(1)
    return Score(losses.sum(), *_counted(losses, (by_token.argmax(1) == wanted).all(1)))


def answerability_loss(scores: Float[Tensor, "sequences 1"], batch: PackedBatch) -> Score:
    """Binary cross entropy of "there is no answer here", weighted."""
    wanted, given = batch.targets["answerability"], scores[:, 0].float()
    losses = ANSWERABILITY_WEIGHT * F.binary_cross_entropy_with_logits(given, wanted, reduction="none")
    return Score(losses.sum(), *_counted(losses, (given > 0) == (wanted > 0.5)))


def tagging_loss(
    scores: Float[Tensor, "tokens labels"], batch: PackedBatch, class_weights: Float[Tensor, "labels"] | None = None
) -> Score:
    """Cross entropy of the first piece of each word; the other tokens are ignored."""
    labels = batch.targets["tagging"]
    return _weighted(score(scores, labels, labels != UNLABELLED), scores, labels, class_weights)


def _weighted(plain: Score, scores: Tensor, labels: Tensor, class_weights: Float[Tensor, "classes"] | None) -> Score:
    """The score with the loss of each prediction weighted by the weight of its class, where there are weights."""
    if class_weights is None:
        return plain
    return plain._replace(loss_sum=F.cross_entropy(scores.float(), labels, class_weights, reduction="sum"))


LOSSES: dict[str, Callable[[Tensor, PackedBatch], Score]] = {
    "classification": classification_loss,
    "regression": regression_loss,
    "multi_label": multi_label_loss,
    "multiple_choice": multiple_choice_loss,
    "span": span_loss,
    "answerability": answerability_loss,
    "tagging": tagging_loss,
}


WEIGHTED_LOSSES: dict[str, Callable[[Tensor, PackedBatch, Tensor], Score]] = {
    "classification": classification_loss,
    "multi_label": multi_label_loss,
    "tagging": tagging_loss,
}


def _counted(losses: Tensor, is_right: Bool[Tensor, "predictions"]) -> tuple[Tensor, Tensor]:
    """How many predictions there are, and how many are right."""
    return _number(len(losses), losses), is_right.detach().sum()


def _number(value: int, like: Tensor) -> Int64[Tensor, ""]:
    """A host number on the device, filled in there: a copy would synchronize."""
    return torch.full((), value, dtype=torch.int64, device=like.device)


def _padded_indices(
    counts: Sequence[int], device: torch.device
) -> tuple[Int64[Tensor, "groups most"], Bool[Tensor, "groups most"]]:
    """Indices of the members of each group, padded to the largest group; and which of them are real.

    Only logits are padded in this way, never hidden states.
    """
    starts = torch.tensor([0, *accumulate(counts)], device=device)
    indices = starts[:-1, None] + torch.arange(max(counts), device=device)
    is_real = indices < starts[1:, None]
    return indices.where(is_real, 0), is_real


def balanced_weights(task: Task, sequences: Sequences) -> Float64[np.ndarray, "classes"]:
    """A weight for each class from its frequency in the training set: what `--class-weights balanced` stands for.

    For classification and tagging it is n / (k · n_c): every class has the same total weight, and the mean weight of an
    example or word is 1. For multi_label it is the weight of the positive examples, negative / positive, so that both
    have the same total. A class without examples, or a label without a negative one, has weight 1.
    """
    if task.kind in ("classification", "tagging"):
        targets = sequences.targets[task.kind]
        counts = np.bincount(targets[targets != UNLABELLED], minlength=len(task.labels)).astype(np.float64)
        occurs = counts > 0
        return np.where(occurs, counts.sum() / (occurs.sum() * np.maximum(counts, 1)), 1.0)
    if task.kind == "multi_label":
        wanted = sequences.targets["multi_label"]
        positive = wanted.sum(0, dtype=np.float64)
        negative = len(wanted) - positive
        return np.where((positive > 0) & (negative > 0), negative / np.maximum(positive, 1), 1.0)
    raise UserError(
        f"--class-weights balanced is for classification, multi_label and tagging, but {task.name} is of the kind "
        f"{task.kind}, which has no classes to balance: leave it out"
    )


@dataclass(frozen=True)
class Standardization:
    """Mean and standard deviation of regression targets, which are learned as deviations in units of the latter.

    A new head predicts values near 0, and the learning rate moves it by a few units at most: it would never reach
    prices in thousands. The model folder gets a head that predicts the values themselves.
    """

    mean: float
    std: float

    @classmethod
    def fit(cls, values: Float64[np.ndarray, "examples"]) -> "Standardization":
        """From values that are not all the same."""
        return cls(float(values.mean()), float(values.std()))

    def standardize(self, sequences: Sequences, values: Float64[np.ndarray, "examples"]) -> Sequences:
        """The same examples with standardized targets.

        `values` are the targets as they were read: as 32-bit numbers, times within one hour would be a few values only.
        """
        targets = ((values - self.mean) / self.std).astype(np.float32)[sequences.example]
        return replace(sequences, targets={**sequences.targets, "regression": targets})

    def restore(self, outputs: Outputs) -> Outputs:
        """The outputs of a model in training, in the original units."""
        values = (outputs.logits["regression"].astype(np.float64) * self.std + self.mean).astype(np.float32)
        return Outputs({**outputs.logits, "regression": values})

    @torch.no_grad()
    def fold_into(self, model: AlbertModel) -> None:
        """Change the head from standardized to original values."""
        for head in _regression_heads(model):
            head.weight.mul_(self.std)
            head.bias.mul_(self.std).add_(self.mean)

    @torch.no_grad()
    def unfold_from(self, model: AlbertModel) -> None:
        """Change the head from original to standardized values."""
        for head in _regression_heads(model):
            head.weight.div_(self.std)
            head.bias.sub_(self.mean).div_(self.std)


def _regression_heads(model: AlbertModel) -> list[nn.Linear]:
    """The linear map of the head, and of every exit."""
    modules = [model.heads["regression"], *(model.exits or ())]
    return [cast(nn.Linear, module.dense) for module in modules]
