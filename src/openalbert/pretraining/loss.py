"""The losses of pretraining, masked LM and sentence order, in training and on held-out text."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import Encoded
from openalbert.objectives.ngram_masking import mlm_loss
from openalbert.objectives.score import Score
from openalbert.objectives.sentence_order import sop_loss
from openalbert.pretraining.batches import Batches, PretrainingBatch
from openalbert.text.shards import ShardSet
from openalbert.train.device import Device
from openalbert.train.loop import TrainingTask

UNIGRAM_SAMPLE = 50_000_000  # tokens counted for the word frequencies, or up to twice as many
UNIGRAM_STRETCH = 65_536  # tokens counted at one place


def masked_lm_score(model: AlbertModel, encoded: Encoded, batch: PretrainingBatch) -> Score:
    """The MLM loss of an encoded batch: scores for the whole vocabulary at every hidden token."""
    return mlm_loss(model.scores("masked_lm", encoded), batch.labels, batch.valid)


def pretraining_scores(
    model: AlbertModel,
    batch: PretrainingBatch,
    depth: int,
    masked_lm_score: Callable[[AlbertModel, Encoded, PretrainingBatch], Score] = masked_lm_score,
    sentence_task: str = "sop",
) -> dict[str, Score]:
    """Both losses of a batch, by the prefix of their metrics.

    The last layer works on the masked positions and [CLS] only.
    """
    encoded = model.encode(batch.ids, batch.segments, batch.mask, depth=depth, at=batch.positions)
    scores = {"mlm": masked_lm_score(model, encoded, batch)}
    if "sentence_order" in model.heads:
        scores[sentence_task] = sop_loss(model.scores("sentence_order", encoded), batch.swapped)
    return scores


def pretraining(
    model: AlbertModel,
    *,
    is_compiled: bool = False,
    is_captured: bool = False,
    order_weight: float = 1.0,
    sentence_task: str = "sop",
) -> TrainingTask[PretrainingBatch]:
    """Pretraining as the loop needs it. Where a layer is compiled, so is the MLM loss: it is as large.

    `sentence_task` names the metrics of the sentence objective: sop or nsp.
    """

    def predictions(batch: PretrainingBatch) -> dict[str, Tensor]:
        counts = {"mlm": batch.valid.sum()}
        if "sentence_order" in model.heads:
            counts[sentence_task] = torch.full_like(counts["mlm"], len(batch.ids))
        return counts

    score_masked_lm = torch.compile(masked_lm_score, dynamic=False) if is_compiled else masked_lm_score

    def scores(batch: PretrainingBatch, depth: int) -> dict[str, Score]:
        return pretraining_scores(model, batch, depth, score_masked_lm, sentence_task)

    def tokens(batch: PretrainingBatch) -> Tensor:
        return batch.lengths.sum()

    has_dropout = model.config.hidden_dropout > 0 or model.config.attention_dropout > 0
    weights = {sentence_task: order_weight}
    return TrainingTask(predictions, scores, tokens, has_dropout, weights, is_captured)


@dataclass(frozen=True)
class Evaluation:
    """How a model does on text it has not seen."""

    examples: int
    losses: dict[str, tuple[float, float]]
    """Mean loss and accuracy."""

    def metrics(self) -> dict[str, int | float]:
        """By the names of metrics.jsonl."""
        metrics: dict[str, int | float] = {"examples": self.examples}
        for name, (loss, accuracy) in self.losses.items():
            metrics |= {f"{name}_loss": loss, f"{name}_acc": accuracy}
        # exp of a larger loss overflows, which must not end the run
        metrics["perplexity"] = math.exp(min(self.losses["mlm"][0], 700.0))
        return metrics

    def __str__(self) -> str:
        accuracies = [f"{name}_acc {100 * accuracy:.1f} %" for name, (_, accuracy) in self.losses.items()]
        return ", ".join([f"mlm_loss {self.losses['mlm'][0]:.3f}", *accuracies])


def evaluate(
    task: TrainingTask[PretrainingBatch], model: AlbertModel, heldout: Batches, steps: int, depth: int, device: Device
) -> Evaluation:
    """Score the first `steps` batches of held-out text: always the same examples under the same masks."""
    was_training = model.training
    model.eval()
    sums: Tensor | None = None
    names: list[str] = []
    with torch.no_grad():
        for step in range(steps):
            with device.autocast():
                scores = task.scores(heldout.at(step, device.rank, device.world), depth)
            names = list(scores)
            batch_sums = torch.stack([torch.stack([value.double() for value in score]) for score in scores.values()])
            sums = batch_sums if sums is None else sums + batch_sums
    model.train(was_training)
    assert sums is not None
    rows = device.sum_over_ranks(sums).tolist()
    losses = {
        name: (total / max(count, 1), right / max(count, 1))
        for name, (total, count, right) in zip(names, rows, strict=True)
    }
    return Evaluation(steps * heldout.batch_size, losses)


def unigram_entropy(shards: ShardSet) -> float:
    """The loss, in nats, of a model that knows nothing but how frequent each piece is.

    Of a large corpus a sample is counted, stretches from all over it: files differ, and so do their beginnings.
    """
    counts = np.zeros(shards.manifest.vocab_size, np.int64)
    every = max(1, shards.num_tokens // UNIGRAM_SAMPLE)
    for shard in shards.shards:
        for start in range(0, len(shard.tokens), every * UNIGRAM_STRETCH):
            tokens = np.asarray(shard.tokens[start : start + UNIGRAM_STRETCH])
            counts += np.bincount(tokens, minlength=len(counts))
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())
