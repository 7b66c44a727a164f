"""What fine-tuning asks of a model: a loss for every kind of head, on packed batches (section 4.1 and its sources)."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from openalbert.finetuning.batches import PackedBatch
from openalbert.model.albert import AlbertModel
from openalbert.objectives.score import Score, score
from openalbert.train.cuda_graphs import CapturedEncoder
from openalbert.train.loop import TrainingTask

ANSWERABILITY_WEIGHT = 0.5  # Google's, so that the loss is of the size of the one on the span


def finetuning(
    model: AlbertModel, captured: CapturedEncoder | None = None, class_weights: Float[Tensor, "classes"] | None = None
) -> TrainingTask[PackedBatch]:
    """Fine-tuning as the loop needs it: one loss for each head of the model; by CUDA graphs where there are any."""
    kinds = [head.kind for head in model.head_list]

    def predictions(batch: PackedBatch) -> dict[str, Tensor]:
        # A choice is one prediction over its options; everything else is one for each sequence.
        count = _number(len(batch), batch.tokens)
        return dict.fromkeys(kinds, count)

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
    """The losses of a batch. Where nobody asks for single tokens, the last layer works on [CLS] only."""
    encoded = None
    if captured is not None and batch.is_filled:
        encoded = captured.encode(batch.tokens, batch.segments, batch.lengths, depth)
    if encoded is None:
        at = None if "span" in model.heads else batch.tokens.new_empty(0)
        encoded = model.encode_packed(batch.tokens, batch.lengths, batch.segments, depth=depth, at=at)
    scores: dict[str, Score] = {}
    for head in model.head_list:
        given = model.scores(head.kind, encoded)
        real = given if head.kind == "span" else given[: len(batch.real_lengths)]
        scores[head.kind] = head_loss(head.kind, real, batch, class_weights)
    return scores


def head_loss(
    kind: str, scores: Tensor, batch: PackedBatch, class_weights: Float[Tensor, "classes"] | None = None
) -> Score:
    """The loss of one head; weights of classes are for heads that have classes."""
    if class_weights is None:
        return LOSSES[kind](scores, batch)
    return WEIGHTED_LOSSES[kind](scores, batch, class_weights)


def classification_loss(
    scores: Float[Tensor, "sequences classes"],
    batch: PackedBatch,
    class_weights: Float[Tensor, "classes"] | None = None,
) -> Score:
    """Cross entropy of the right class, times the weight of that class."""
    labels = batch.targets["classification"]
    plain = score(scores, labels)
    if class_weights is None:
        return plain
    return plain._replace(loss_sum=F.cross_entropy(scores.float(), labels, class_weights, reduction="sum"))


def regression_loss(scores: Float[Tensor, "sequences 1"], batch: PackedBatch) -> Score:
    """The squared error; no value is simply right or wrong, so none is counted as right."""
    errors = scores[:, 0].float() - batch.targets["regression"]
    return Score(errors.square().sum(), *_counted(errors, torch.zeros_like(errors, dtype=torch.bool)))


def multi_label_loss(
    scores: Float[Tensor, "sequences classes"],
    batch: PackedBatch,
    class_weights: Float[Tensor, "classes"] | None = None,
) -> Score:
    """Binary cross entropy, the mean over the classes; right is a sequence of which every class is.

    Weights are those of a class that applies.
    """
    scores, wanted = scores.float(), batch.targets["multi_label"]
    losses = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none", pos_weight=class_weights).mean(1)
    return Score(losses.sum(), *_counted(losses, ((scores > 0) == (wanted > 0.5)).all(1)))


def multiple_choice_loss(scores: Float[Tensor, "sequences 1"], batch: PackedBatch) -> Score:
    """Cross entropy of the right option among those of its example."""
    rows, is_real = _padded_places(batch.options, scores.device)
    by_option = scores[:, 0].float()[rows].masked_fill(~is_real, -torch.inf)
    right = (batch.targets["multiple_choice"][rows] * is_real).argmax(1)
    return score(by_option, right)


def span_loss(scores: Float[Tensor, "tokens 2"], batch: PackedBatch) -> Score:
    """The mean of two cross entropies over a sequence's tokens, of the first and of the last one of the answer."""
    rows, is_real = _padded_places(batch.real_lengths, scores.device)
    by_token = scores.float()[rows].masked_fill(~is_real[:, :, None], -torch.inf)
    wanted = batch.targets["span"]
    losses = F.cross_entropy(by_token, wanted, reduction="none").mean(1)
    return Score(losses.sum(), *_counted(losses, (by_token.argmax(1) == wanted).all(1)))


def answerability_loss(scores: Float[Tensor, "sequences 1"], batch: PackedBatch) -> Score:
    """Binary cross entropy of "there is no answer here", weighted."""
    wanted, given = batch.targets["answerability"], scores[:, 0].float()
    losses = ANSWERABILITY_WEIGHT * F.binary_cross_entropy_with_logits(given, wanted, reduction="none")
    return Score(losses.sum(), *_counted(losses, (given > 0) == (wanted > 0.5)))


LOSSES: dict[str, Callable[[Tensor, PackedBatch], Score]] = {
    "classification": classification_loss,
    "regression": regression_loss,
    "multi_label": multi_label_loss,
    "multiple_choice": multiple_choice_loss,
    "span": span_loss,
    "answerability": answerability_loss,
}


WEIGHTED_LOSSES: dict[str, Callable[[Tensor, PackedBatch, Tensor], Score]] = {
    "classification": classification_loss,
    "multi_label": multi_label_loss,
}


def _counted(losses: Tensor, is_right: Bool[Tensor, "predictions"]) -> tuple[Tensor, Tensor]:
    """How many predictions there are, and how many are right."""
    return _number(len(losses), losses), is_right.detach().sum()


def _number(value: int, like: Tensor) -> Int64[Tensor, ""]:
    """A number of the host on the device: filled in there, for a copy would have to be waited for."""
    return torch.full((), value, dtype=torch.int64, device=like.device)


def _padded_places(
    counts: Sequence[int], device: torch.device
) -> tuple[Int64[Tensor, "groups most"], Bool[Tensor, "groups most"]]:
    """Where the members of each group stand, groups lying behind each other; and which places are really a member's.

    Only numbers of the heads are filled up in this way, never a hidden state.
    """
    starts = torch.tensor([0, *accumulate(counts)], device=device)
    places = starts[:-1, None] + torch.arange(max(counts), device=device)
    is_real = places < starts[1:, None]
    return places.where(is_real, 0), is_real
