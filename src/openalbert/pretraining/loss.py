"""The losses of pretraining, masked LM and sentence order: in training, on held-out text, and watched for failure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import Encoded
from openalbert.pretraining.batches import Batches, PretrainingBatch
from openalbert.pretraining.settings import Distillation
from openalbert.text.shards import ShardSet
from openalbert.train.device import Device
from openalbert.train.loop import Score, TrainingTask, score

UNIGRAM_SAMPLE = 50_000_000  # tokens counted for the word frequencies, or up to twice as many
UNIGRAM_STRETCH = 65_536  # tokens counted at one place
PLATEAU_PROGRESS = 0.2  # from here on a loss at the word frequencies is reported
PLATEAU_STEPS = 100  # and not before so many steps: every model learns the frequencies first
PLATEAU_MARGIN = 0.25  # nats under the unigram entropy that a model which learns more than frequencies has
LOST = 1.0  # nats over the lowest mean so far
LOST_STEPS = 100  # of which a mean is taken: fewer may be hard text, or noise


def masked_lm_scores(
    model: AlbertModel,
    encoded: Encoded,
    batch: PretrainingBatch,
    teacher_logits: Float[Tensor, "batch predictions vocabulary"] | None = None,
    temperature: float = 1.0,
) -> dict[str, Score]:
    """The MLM loss of an encoded batch, and with a teacher the divergence from it: scores for the whole vocabulary at
    every masked token."""
    logits = model.scores("masked_lm", encoded)
    scores = {"mlm": score(logits, batch.labels, batch.valid)}
    if teacher_logits is not None:
        scores["distillation"] = distillation_score(logits, teacher_logits, batch.valid, temperature)
    return scores


def distillation_score(
    logits: Float[Tensor, "*rows vocabulary"],
    teacher_logits: Float[Tensor, "*rows vocabulary"],
    valid: Bool[Tensor, "*rows"],
    temperature: float,
) -> Score:
    """The Kullback-Leibler divergence of the student's predictions from the teacher's, both at a temperature; "correct"
    is a prediction whose first choice is the teacher's.

    Times the squared temperature, so that gradients are of the same size at any.
    """
    student = F.log_softmax(logits.float() / temperature, -1)
    teacher = F.log_softmax(teacher_logits.float() / temperature, -1)
    divergence = (teacher.exp() * (teacher - student)).sum(-1)
    agrees = logits.detach().argmax(-1) == teacher_logits.argmax(-1)
    return Score(temperature**2 * (divergence * valid).sum(), valid.sum(), (agrees & valid).sum())


def teacher_predictions(teacher: AlbertModel, batch: PretrainingBatch) -> Float[Tensor, "batch predictions vocabulary"]:
    """The teacher's scores for the whole vocabulary at every masked token, through all of its layers."""
    with torch.no_grad():
        encoded = teacher.encode(batch.ids, batch.segments, batch.mask, at=batch.positions)
        return teacher.scores("masked_lm", encoded)


def pretraining_scores(
    model: AlbertModel,
    batch: PretrainingBatch,
    depth: int,
    masked_lm_scores: Callable[..., dict[str, Score]] = masked_lm_scores,
    sentence_task: str = "sop",
    teacher: AlbertModel | None = None,
    temperature: float = 1.0,
) -> dict[str, Score]:
    """The losses of a batch, by the prefix of their metrics.

    The last layer works on the masked positions and [CLS] only.
    """
    encoded = model.encode(batch.ids, batch.segments, batch.mask, depth=depth, at=batch.positions)
    if teacher is None:
        scores = masked_lm_scores(model, encoded, batch)
    else:
        scores = masked_lm_scores(model, encoded, batch, teacher_predictions(teacher, batch), temperature)
    if "sentence_order" in model.heads:
        scores[sentence_task] = score(model.scores("sentence_order", encoded), batch.swapped)
    return scores


def pretraining(
    model: AlbertModel,
    *,
    is_compiled: bool = False,
    is_captured: bool = False,
    order_weight: float = 1.0,
    sentence_task: str = "sop",
    teacher: AlbertModel | None = None,
    distillation: Distillation | None = None,
) -> TrainingTask[PretrainingBatch]:
    """Pretraining as the loop needs it. Where a layer is compiled, so is the MLM loss: it is as large.

    `sentence_task` names the metrics of the sentence objective: sop or nsp. A teacher takes part in training only:
    evaluations are the same with and without one.
    """
    distillation = distillation or Distillation()

    def predictions(batch: PretrainingBatch) -> dict[str, Tensor]:
        counts = {"mlm": batch.valid.sum()}
        if teacher is not None:
            counts["distillation"] = counts["mlm"]
        if "sentence_order" in model.heads:
            counts[sentence_task] = torch.full_like(counts["mlm"], len(batch.ids))
        return counts

    score_masked_lm = torch.compile(masked_lm_scores, dynamic=False) if is_compiled else masked_lm_scores

    def scores(batch: PretrainingBatch, depth: int) -> dict[str, Score]:
        its_teacher = teacher if model.training else None
        temperature = distillation.temperature
        return pretraining_scores(model, batch, depth, score_masked_lm, sentence_task, its_teacher, temperature)

    def tokens(batch: PretrainingBatch) -> Tensor:
        return batch.lengths.sum()

    has_dropout = model.config.hidden_dropout > 0 or model.config.attention_dropout > 0
    weights = {sentence_task: order_weight}
    if teacher is not None:
        weights |= {"mlm": 1 - distillation.weight, "distillation": distillation.weight}
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


@dataclass
class LossMonitor:
    """Two ways in which pretraining fails without a crash, each reported once: the MLM loss never leaves the plateau of
    word frequencies, or what was learned is lost. It is given the loss of each record; a checkpoint holds its state."""

    unigram_entropy: float
    is_growing: bool = False
    """Whether the depth grows: then growing it is no advice."""
    lowest: float = math.inf
    """Of the means so far, since the last restart."""
    depth: int = 0
    sum_of_losses: float = 0.0
    """Over the steps since the last mean was taken."""
    steps: int = 0
    has_reported_plateau: bool = False
    has_reported_loss: bool = False

    def check(self, loss: float, steps: int, depth: int, step: int, progress: float) -> tuple[str, str] | None:
        """The kind and text of a warning, given the mean loss of the last so many steps; None if all is well."""
        return self._check_lost(loss, steps, depth) or self._check_plateau(loss, step, progress)

    def restart(self) -> None:
        """Forget the losses so far: from here on they are others."""
        self.lowest, self.sum_of_losses, self.steps = math.inf, 0.0, 0

    def _check_lost(self, loss: float, steps: int, depth: int) -> tuple[str, str] | None:
        if self.depth != depth:  # with more layers it may go up at first
            self.depth = depth
            self.restart()
        self.sum_of_losses += loss * steps
        self.steps += steps
        if self.steps < LOST_STEPS:
            return None
        mean, before = self.sum_of_losses / self.steps, self.lowest
        self.lowest, self.sum_of_losses, self.steps = min(before, mean), 0.0, 0
        if mean <= before + LOST or self.has_reported_loss:
            return None
        self.has_reported_loss = True
        return "lost", (
            f"the MLM loss has risen from {before:.3f} to {mean:.3f}: what was learned is being lost. Start "
            "over with a lower --optimizer.learning-rate; pretrained weights tolerate about a quarter of the rate that "
            "they were trained with"
        )

    def _check_plateau(self, loss: float, step: int, progress: float) -> tuple[str, str] | None:
        is_early = progress < PLATEAU_PROGRESS or step < PLATEAU_STEPS
        if is_early or self.has_reported_plateau or loss < self.unigram_entropy - PLATEAU_MARGIN:
            return None
        self.has_reported_plateau = True
        advice = "" if self.is_growing else "start shallow with --depth-schedule, or "
        return "plateau", (
            f"the MLM loss {loss:.3f} is no better than word frequencies ({self.unigram_entropy:.3f}): "
            f"{advice}take a smaller batch or a higher learning rate"
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, as JSON values."""
        return {name: value for name, value in vars(self).items() if name not in ("unigram_entropy", "is_growing")}
