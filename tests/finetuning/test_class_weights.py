"""Weights of rare classes in the loss: scikit-learn's balanced ones, and what torch makes of them."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from tests.finetuning.made_sequences import made_sequences
from tests.tasks.made_tasks import CLASSES, made_task

from openalbert.errors import UserError
from openalbert.finetuning.batches import Packing
from openalbert.finetuning.class_weights import balanced_weights
from openalbert.finetuning.collapse import baseline_loss
from openalbert.finetuning.losses import head_loss


def test_weights_of_classes_are_scikit_learns_balanced_ones() -> None:
    sequences = made_sequences({"classification": 3}, 50)
    sequences.targets["classification"][:30] = 0
    classes, counts = np.unique(sequences.targets["classification"], return_counts=True)
    assert len(set(counts)) > 1
    oracle = compute_class_weight("balanced", classes=classes, y=sequences.targets["classification"])
    assert balanced_weights(made_task("classification"), sequences) == pytest.approx(oracle)


def test_a_class_without_training_examples_changes_no_other_weight() -> None:
    sequences = made_sequences({"classification": 2}, 50)
    oracle = compute_class_weight("balanced", classes=np.arange(2), y=sequences.targets["classification"])
    assert balanced_weights(made_task("classification"), sequences) == pytest.approx([*oracle, 1.0])


def test_weights_of_labels_are_negative_over_positive_examples() -> None:
    sequences = made_sequences({"multi_label": 3}, 40)
    wanted = sequences.targets["multi_label"]
    wanted[:, 0], wanted[:, 1], wanted[:, 2] = np.arange(40) < 4, 1, 0
    assert balanced_weights(made_task("multi_label"), sequences) == pytest.approx([9, 1, 1])


@pytest.mark.parametrize("kind", ["regression", "multiple_choice", "question_answering"])
def test_what_has_no_classes_has_no_weights(kind: str) -> None:
    with pytest.raises(
        UserError, match=f"balanced is for classification and multi_label, but made_{kind} is of the kind"
    ):
        balanced_weights(made_task(kind), made_sequences({"regression": 1}))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_the_weighted_loss_is_torchs(kind: str) -> None:
    sequences = made_sequences({kind: 3}, 30)
    [batch] = Packing(sequences, 30, 1, tokens_at_a_time=10**6).at(0)
    scores, weights = torch.randn(30, 3), torch.tensor([0.5, 2.0, 7.0])
    found = head_loss(kind, scores, batch, weights)
    wanted = batch.targets[kind]
    if kind == "classification":
        each = torch.stack(
            [weights[label] * -row.log_softmax(0)[label] for row, label in zip(scores, wanted, strict=True)]
        )
    else:
        each = F.binary_cross_entropy(
            scores.sigmoid(), wanted, weight=1 + wanted * (weights - 1), reduction="none"
        ).mean(1)
    torch.testing.assert_close(found.loss_sum, each.sum())
    plain = head_loss(kind, scores, batch)
    assert (found.predictions, found.correct) == (plain.predictions, plain.correct)


def test_the_baseline_of_a_balanced_loss_is_that_of_classes_that_are_equally_frequent() -> None:
    sequences = made_sequences({"classification": 3}, 50)
    sequences.targets["classification"][:30] = 0
    weights = balanced_weights(made_task("classification"), sequences)
    assert math.isclose(baseline_loss(sequences, weights), math.log(len(CLASSES)))
    labels = made_sequences({"multi_label": 3}, 40)
    weights = balanced_weights(made_task("multi_label"), labels)
    # The lowest loss of a constant prediction, found by trying.
    rates = torch.linspace(-6, 6, 4001, dtype=torch.float64)[:, None, None].expand(-1, 40, 3)
    wanted = torch.from_numpy(labels.targets["multi_label"]).double().expand(4001, -1, -1)
    tried = F.binary_cross_entropy_with_logits(rates, wanted, reduction="none", pos_weight=torch.from_numpy(weights))
    assert math.isclose(baseline_loss(labels, weights), float(tried.mean(1).min(0).values.mean()), rel_tol=1e-4)
