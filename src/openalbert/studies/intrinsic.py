"""What a pretrained model knows, on held-out text: MLM, SOP and NSP accuracy, and how far each layer moves its input.

All models read the same examples under the same masks. A model that was not trained on SOP or NSP is probed: its
encoder is frozen, and a fresh pooler and linear head are trained on its [CLS], with equally many steps on the same
examples for each model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from openalbert.model.albert import AlbertModel, initialize
from openalbert.objectives.ngram_masking import NgramMasking
from openalbert.pretraining.batches import Batches, Objective, PretrainingBatch
from openalbert.pretraining.run import HELDOUT_SEED
from openalbert.studies.budgets import Intrinsic
from openalbert.text.shards import ShardSet
from openalbert.train.device import Device

SentenceTask = Literal["sop", "nsp"]
AT_A_TIME = 64
PROBE_SEED = 1_000_003  # of the probes' examples, which are the same for all models and seeds


@dataclass(frozen=True)
class MaskedTokens:
    """How many masked tokens each held-out example has, and how many a model predicts."""

    right: Int64[np.ndarray, "examples"]
    total: Int64[np.ndarray, "examples"]

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * float(self.right.sum() / max(1, self.total.sum()))


@dataclass(frozen=True)
class LayerDistances:
    """How far each layer moves its input: means over the tokens of each example."""

    distances: Float64[np.ndarray, "examples layers"]
    """L2 distance between input and output."""
    angles: Float64[np.ndarray, "examples layers"]
    """Angle between input and output, in degrees."""
    tokens: Int64[np.ndarray, "examples"]

    def of_layers(self) -> dict[str, list[float]]:
        """Means over all tokens, for each layer."""
        found = {"distance": self.distances, "angle": self.angles}
        return {name: np.average(values, axis=0, weights=self.tokens).tolist() for name, values in found.items()}

    def of_examples(self) -> dict[str, Float64[np.ndarray, "examples"]]:
        """Means over the layers, and how much the distance changes from layer to layer."""
        change = np.abs(np.diff(self.distances, axis=1))
        return {
            "distance": self.distances.mean(1),
            "angle": self.angles.mean(1),
            "roughness": change.mean(1) if change.shape[1] else np.zeros(len(change)),
        }


def _objective(settings: Intrinsic, task: Literal["sop", "nsp", "none"]) -> Objective:
    objective = settings.objective
    masks = NgramMasking()  # the paper's, for all models
    return replace(objective, masked_lm=masks, sentence_order=replace(objective.sentence_order, objective=task))


def _batches(shards: ShardSet, objective: Objective, examples: int, device: Device) -> Iterator[PretrainingBatch]:
    """Held-out examples, each at most once, the last batch perhaps smaller."""
    batches = Batches(shards, objective, AT_A_TIME, HELDOUT_SEED, device=device.torch_device)
    count = min(examples, batches.examples_per_epoch)
    for start in range(0, count, AT_A_TIME):
        yield batches.examples(np.arange(start, min(start + AT_A_TIME, count), dtype=np.int64))


@torch.no_grad()
def masked_lm(model: AlbertModel, heldout: ShardSet, settings: Intrinsic, device: Device) -> MaskedTokens:
    """Masked tokens of text in its natural order, which every model has seen whatever its sentence objective."""
    right, total = [], []
    for batch in _batches(heldout, _objective(settings, "none"), settings.examples, device):
        with device.autocast():
            encoded = model.encode(batch.ids, batch.segments, batch.mask, at=batch.positions)
            predicted = model.scores("masked_lm", encoded).argmax(-1)
        right.append(((predicted == batch.labels) & batch.valid).sum(1).cpu().numpy())
        total.append(batch.valid.sum(1).cpu().numpy())
    return MaskedTokens(np.concatenate(right), np.concatenate(total))


def sentence_task(
    model: AlbertModel,
    train: ShardSet,
    heldout: ShardSet,
    task: SentenceTask,
    settings: Intrinsic,
    device: Device,
    is_trained: bool,
) -> Bool[np.ndarray, "examples"]:
    """Which held-out pairs a model has right: by its own head if it was trained on the task, else by a probe."""
    probe = None if is_trained else train_probe(model, train, task, settings, device)
    right = []
    with torch.no_grad():
        for batch in _batches(heldout, _objective(settings, task), settings.examples, device):
            if probe is None:
                with device.autocast():
                    encoded = model.encode(batch.ids, batch.segments, batch.mask, at=batch.positions)
                    logits = model.scores("sentence_order", encoded)
            else:
                logits = probe(_first_token(model, batch, device))
            right.append((logits.argmax(-1) == batch.swapped).cpu().numpy())
    return np.concatenate(right)


@torch.no_grad()
def _first_token(model: AlbertModel, batch: PretrainingBatch, device: Device) -> Float[Tensor, "batch hidden"]:
    """What the last layer has at [CLS]."""
    with device.autocast():
        return model.encode(batch.ids, batch.segments, batch.mask).hidden[:, 0].float()


def train_probe(
    model: AlbertModel, train: ShardSet, task: SentenceTask, settings: Intrinsic, device: Device
) -> nn.Sequential:
    """A fresh pooler and linear head, trained on a frozen encoder."""
    hidden = model.config.hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(PROBE_SEED)
        probe = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        initialize(probe, model.config.initializer_range)
    probe.to(device.torch_device)
    batches = Batches(train, _objective(settings, task), settings.probe_batch, PROBE_SEED, device=device.torch_device)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=settings.probe_rate, weight_decay=0.01)
    for step in range(settings.probe_steps):
        batch = batches.at(step)
        optimizer.param_groups[0]["lr"] = settings.probe_rate * (1 - step / settings.probe_steps)
        loss = F.cross_entropy(probe(_first_token(model, batch, device)), batch.swapped)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return probe


@torch.no_grad()
def layer_distances(model: AlbertModel, heldout: ShardSet, settings: Intrinsic, device: Device) -> LayerDistances:
    """Figure 1 of the paper, on held-out text of which nothing is masked, in fp32."""
    objective = _objective(settings, "none")
    unmasked = replace(objective, masked_lm=NgramMasking(mask_fraction=0.0, random_fraction=0.0))
    distances, angles, tokens = [], [], []
    for batch in _batches(heldout, unmasked, settings.layer_examples, device):
        states = model.encode(batch.ids, batch.segments, batch.mask, all_states=True).states
        real = batch.mask.double() / batch.lengths[:, None]
        tokens.append(batch.lengths.cpu().numpy())
        moved, turned = [], []
        for before, after in pairwise(state.double() for state in states):
            cosine = F.cosine_similarity(before, after, dim=-1).clamp(-1, 1)
            moved.append(((after - before).norm(dim=-1) * real).sum(1))
            turned.append((torch.rad2deg(torch.arccos(cosine)) * real).sum(1))
        distances.append(torch.stack(moved, 1).cpu().numpy())
        angles.append(torch.stack(turned, 1).cpu().numpy())
    return LayerDistances(np.concatenate(distances), np.concatenate(angles), np.concatenate(tokens))
