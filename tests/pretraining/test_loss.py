"""What pretraining asks of a model, against cross entropy by hand; evaluation; the entropy of word frequencies."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import openalbert.pretraining.loss as pretraining_module
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import Evaluation, evaluate, pretraining, pretraining_scores, unigram_entropy
from openalbert.text.shards import open_shards
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
OBJECTIVE = Objective(max_length=32)


def model(dropout: float = 0.0) -> AlbertModel:
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=300, embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, ffn_size=64, max_positions=32,
        initializer_range=0.2, hidden_dropout=dropout, attention_dropout=dropout,
    )  # fmt: skip
    return AlbertModel(config, PRETRAINING_HEADS)


@pytest.mark.parametrize("depth", [1, 2])
def test_both_losses_are_the_cross_entropies_of_the_whole_model(easy_shards: Path, depth: int) -> None:
    batch = Batches(open_shards(easy_shards), OBJECTIVE, 6, seed=3).at(0)
    albert = model().eval()
    scores = pretraining_scores(albert, batch, depth)
    # The long way: every position through every layer, then only the hidden ones are looked at.
    encoded = albert.encode(batch.ids, batch.segments, batch.mask, depth=depth)
    rows = torch.arange(6)[:, None].expand_as(batch.positions)
    words = albert.scores("masked_lm", encoded)[rows, batch.positions][batch.valid]
    labels = batch.labels[batch.valid]
    order = albert.scores("sentence_order", encoded)
    expected = {"mlm": (words, labels), "sop": (order, batch.swapped)}
    for name, (logits, right) in expected.items():
        torch.testing.assert_close(scores[name].loss_sum, cross_entropy(logits, right, reduction="sum"))
        assert scores[name].predictions == len(right)
        assert scores[name].correct == (logits.argmax(-1) == right).sum()


def test_the_predictions_are_counted_before_any_is_made(easy_shards: Path) -> None:
    batch = Batches(open_shards(easy_shards), OBJECTIVE, 6, seed=3).at(1)
    learning = pretraining(model())
    counted = learning.predictions(batch)
    assert {name: int(count) for name, count in counted.items()} == {
        name: int(score.predictions) for name, score in learning.scores(batch, 2).items()
    }
    assert int(learning.tokens(batch)) == int(batch.mask.sum())


def test_an_evaluation_is_the_same_each_time_and_leaves_training_as_it_was(easy_shards: Path) -> None:
    albert = model(dropout=0.5).train()
    heldout = Batches(open_shards(easy_shards, "heldout"), OBJECTIVE, 8, seed=0)
    first, again = (evaluate(pretraining(albert), albert, heldout, 3, 2, CPU) for _ in range(2))
    assert first == again
    assert first.examples == 24
    assert albert.training
    whole = Batches(open_shards(easy_shards, "heldout"), OBJECTIVE, 24, seed=0)
    at_once = evaluate(pretraining(albert), albert, whole, 1, 2, CPU)
    for name, (loss, accuracy) in first.losses.items():
        assert math.isclose(loss, at_once.losses[name][0], rel_tol=1e-5)
        assert accuracy == at_once.losses[name][1]


def test_a_hopeless_loss_has_a_perplexity_that_can_be_written_down() -> None:
    figures = Evaluation(1, {"mlm": (1e9, 0.0)}).metrics()
    assert math.isfinite(figures["perplexity"])
    assert "sop_loss" not in figures


def test_the_unigram_entropy_is_that_of_the_counted_pieces(easy_shards: Path) -> None:
    shards = open_shards(easy_shards)
    counts = Counter(int(token) for shard in shards.shards for token in shard.tokens)
    total = sum(counts.values())
    expected = -sum(count / total * math.log(count / total) for count in counts.values())
    assert math.isclose(unigram_entropy(shards), expected, rel_tol=1e-9)


def test_the_unigram_entropy_of_much_text_is_counted_all_over_it(
    easy_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = open_shards(easy_shards)
    whole = unigram_entropy(shards)
    monkeypatch.setattr(pretraining_module, "UNIGRAM_SAMPLE", shards.num_tokens // 4)
    monkeypatch.setattr(pretraining_module, "UNIGRAM_STRETCH", 16)
    sampled = unigram_entropy(shards)
    assert sampled != whole
    assert math.isclose(sampled, whole, rel_tol=0.02)
