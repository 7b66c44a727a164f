"""What pretraining asks of a model: masked words and the order of sentences, in training and on held-out text."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import Encoded
from openalbert.objectives.ngram_masking import masked_lm_loss
from openalbert.objectives.score import Score
from openalbert.objectives.sentence_order import sentence_order_loss
from openalbert.pretraining.batches import Batches, PretrainingBatch
from openalbert.text.shards import ShardSet
from openalbert.train.device import Device
from openalbert.train.micro_batch import Learning

UNIGRAM_SAMPLE = 50_000_000  # tokens counted for the word frequencies, or up to twice as many
UNIGRAM_STRETCH = 65_536  # tokens counted at one place


def score_words(model: AlbertModel, encoded: Encoded, batch: PretrainingBatch) -> Score:
    """The masked-LM loss of an encoded batch: scores for the whole vocabulary at every hidden token."""
    return masked_lm_loss(model.scores("masked_lm", encoded), batch.labels, batch.valid)


def pretraining_scores(
    model: AlbertModel,
    batch: PretrainingBatch,
    depth: int,
    score_words: Callable[[AlbertModel, Encoded, PretrainingBatch], Score] = score_words,
) -> dict[str, Score]:
    """Both losses of a batch. The last layer works on the masked positions and [CLS] only."""
    encoded = model.encode(batch.ids, batch.segments, batch.mask, depth=depth, at=batch.positions)
    scores = {"masked_lm": score_words(model, encoded, batch)}
    if "sentence_order" in model.heads:
        scores["sentence_order"] = sentence_order_loss(model.scores("sentence_order", encoded), batch.swapped)
    return scores


def pretraining(
    model: AlbertModel, *, is_compiled: bool = False, is_recorded: bool = False, order_weight: float = 1.0
) -> Learning[PretrainingBatch]:
    """Pretraining as the loop needs it. Where a layer is compiled, so is what scores the words: it is as large."""

    def predictions(batch: PretrainingBatch) -> dict[str, Tensor]:
        counts = {"masked_lm": batch.valid.sum()}
        if "sentence_order" in model.heads:
            counts["sentence_order"] = torch.full_like(counts["masked_lm"], len(batch.ids))
        return counts

    of_words = torch.compile(score_words, dynamic=False) if is_compiled else score_words

    def scores(batch: PretrainingBatch, depth: int) -> dict[str, Score]:
        return pretraining_scores(model, batch, depth, of_words)

    def tokens(batch: PretrainingBatch) -> Tensor:
        return batch.lengths.sum()

    drops_out = model.config.hidden_dropout > 0 or model.config.attention_dropout > 0
    weights = {"sentence_order": order_weight}
    return Learning(predictions, scores, tokens, drops_out, weights, is_recorded)


@dataclass(frozen=True)
class Evaluation:
    """How a model does on text it has not seen."""

    examples: int
    losses: dict[str, tuple[float, float]]
    """Mean loss and share of right answers."""

    def figures(self) -> dict[str, int | float]:
        """By the names of metrics.jsonl."""
        figures: dict[str, int | float] = {"examples": self.examples}
        for name, (loss, accuracy) in self.losses.items():
            figures |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        # exp of a loss this large says nothing; it must not end the run either
        figures["perplexity"] = math.exp(min(self.losses["masked_lm"][0], 700.0))
        return figures

    def __str__(self) -> str:
        words = [
            f"masked-LM loss {self.losses['masked_lm'][0]:.3f}",
            f"words {100 * self.losses['masked_lm'][1]:.1f} %",
        ]
        if "sentence_order" in self.losses:
            words.append(f"order {100 * self.losses['sentence_order'][1]:.1f} %")
        return ", ".join(words)


def evaluate(
    learning: Learning[PretrainingBatch], model: AlbertModel, heldout: Batches, steps: int, depth: int, device: Device
) -> Evaluation:
    """Score the first `steps` batches of held-out text: always the same examples under the same masks."""
    was_training = model.training
    model.eval()
    sums: Tensor | None = None
    names: list[str] = []
    with torch.no_grad():
        for step in range(steps):
            with device.autocast():
                scores = learning.scores(heldout.at(step, device.rank, device.world), depth)
            names = list(scores)
            figures = torch.stack([torch.stack([figure.double() for figure in score]) for score in scores.values()])
            sums = figures if sums is None else sums + figures
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

    Of much text a sample is counted: stretches from all over it, for files differ, and their beginnings too.
    """
    counts = np.zeros(shards.manifest.vocab_size, np.int64)
    every = max(1, shards.num_tokens // UNIGRAM_SAMPLE)
    for shard in shards.shards:
        for start in range(0, len(shard.tokens), every * UNIGRAM_STRETCH):
            tokens = np.asarray(shard.tokens[start : start + UNIGRAM_STRETCH])
            counts += np.bincount(tokens, minlength=len(counts))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
