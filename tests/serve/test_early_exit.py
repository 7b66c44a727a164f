"""The exit loop compared with logits of every depth, computed at once."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.finetuning.exit_rules import exit_depths, predict_depths
from openalbert.finetuning.predict import predict
from openalbert.interop.exits import NEVER, ExitInfo, ExitPoint, ExitRule
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head, Sharing
from openalbert.serve.early_exit import Leaving, TorchPool, choose_leaving, run_with_exits
from openalbert.tasks.task import Sequences
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=8, hidden_size=16, num_layers=5, num_heads=2, ffn_size=32, max_positions=40
)
CLASSES = Head("classification", ("a", "b", "c"))


def random_model(config: AlbertConfig = CONFIG, head: Head = CLASSES, has_exits: bool = True) -> AlbertModel:
    """Weights large enough that decisions change from layer to layer."""
    torch.manual_seed(0)
    model = AlbertModel(dataclasses.replace(config, initializer_range=0.6), (head,), has_exits=has_exits)
    return model.eval()


def random_sequences(lengths: list[int]) -> Sequences:
    generator = np.random.default_rng(1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = generator.integers(5, 50, starts[-1]).astype(np.int32)
    second = np.array([max(1, length // 2) for length in lengths], np.int64)
    return Sequences(ids, starts, second, np.arange(len(lengths)), {}, len(lengths), 0)


LENGTHS = [7, 3, 20, 11, 3, 31, 9, 16, 5, 12, 8, 4, 18, 26, 6]
RULES = [
    NEVER,
    ExitRule("confidence", 0.75),
    ExitRule("confidence", 0.6, patience=2),
    ExitRule("patience", patience=1),
    ExitRule("patience", patience=2),
    ExitRule("depth", depth=3),
]


@pytest.mark.parametrize("tokens_at_a_time", [1, 40, 10_000])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(5, 5), Sharing(1, 5)], ids=str)
def test_the_loop_gives_the_logits_of_the_depth_at_which_the_rule_is_met(
    sharing: Sharing, rule: ExitRule, tokens_at_a_time: int
) -> None:
    model, sequences = random_model(dataclasses.replace(CONFIG, sharing=sharing)), random_sequences(LENGTHS)
    by_depth = predict_depths(model, sequences, CPU)
    expected = exit_depths("classification", rule, by_depth)
    out = run_with_exits(TorchPool(model, CPU), sequences, Leaving(rule), tokens_at_a_time=tokens_at_a_time)
    assert out.depths.tolist() == expected.tolist()
    np.testing.assert_allclose(out.logits, by_depth[expected - 1, np.arange(len(expected))], atol=2e-5)


def test_the_rules_of_these_tests_let_examples_leave_at_different_depths() -> None:
    by_depth = predict_depths(random_model(), random_sequences(LENGTHS), CPU)
    assert all(rule.asks == (len(set(exit_depths("classification", rule, by_depth))) > 1) for rule in RULES)


def test_the_depth_that_is_the_same_for_all() -> None:
    assert Leaving(ExitRule("depth", depth=3), max_depth=2).same_depth(5) == 2
    assert Leaving(ExitRule("depth", depth=3), deadline=1.0).same_depth(5) is None
    assert Leaving(max_depth=4).same_depth(5) == 4
    assert Leaving().same_depth(5) == 5
    assert Leaving(RULES[1]).same_depth(5) is None


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=12), tokens=st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_any_lengths_in_any_batches_give_what_full_depth_gives_where_nothing_leaves(
    lengths: list[int], tokens: int
) -> None:
    model, sequences = random_model(), random_sequences(lengths)
    out = run_with_exits(TorchPool(model, CPU), sequences, Leaving(), tokens_at_a_time=tokens)
    expected = predict([model], sequences, CPU).logits["classification"]
    np.testing.assert_allclose(out.logits, expected, atol=2e-5)
    assert set(out.depths) == {5}


def test_a_depth_without_exits_is_read_by_the_models_own_head() -> None:
    model, sequences = random_model(has_exits=False), random_sequences(LENGTHS)
    out = run_with_exits(TorchPool(model, CPU), sequences, Leaving(max_depth=2))
    for number, (start, end) in enumerate(itertools.pairwise(sequences.starts)):
        ids = torch.from_numpy(sequences.ids[start:end])[None]
        segments = (torch.arange(end - start) >= sequences.second[number]).long()[None]
        with torch.inference_mode():
            expected = model.scores("classification", model.encode(ids, segments, depth=2))
        np.testing.assert_allclose(out.logits[number], expected[0].numpy(), atol=2e-5)


def test_shared_layers_take_new_sequences_while_others_are_deeper() -> None:
    seen = []

    class Watched(TorchPool):
        def run_layer(self, depths: np.ndarray) -> np.ndarray:
            seen.append(set(depths.tolist()))
            return super().run_layer(depths)

    run_with_exits(Watched(random_model(), CPU), random_sequences(LENGTHS), Leaving(RULES[1]), tokens_at_a_time=40)
    assert any(len(depths) > 1 for depths in seen)


def test_a_deadline_lets_sequences_leave_with_the_depth_they_have() -> None:
    ticks = itertools.count()
    leaving = Leaving(deadline=6.0)
    out = run_with_exits(
        TorchPool(random_model(), CPU), random_sequences([5, 5]), leaving, clock=lambda: float(next(ticks))
    )
    assert 1 <= out.depths.max() < 5


def test_with_a_deadline_each_sequence_is_computed_alone() -> None:
    seen = []

    class Watched(TorchPool):
        def run_layer(self, depths: np.ndarray) -> np.ndarray:
            seen.append(len(depths))
            return super().run_layer(depths)

    out = run_with_exits(Watched(random_model(), CPU), random_sequences(LENGTHS), Leaving(RULES[1], deadline=1e9))
    together = run_with_exits(TorchPool(random_model(), CPU), random_sequences(LENGTHS), Leaving(RULES[1]))
    assert set(seen) == {1}
    np.testing.assert_allclose(out.logits, together.logits, atol=1e-5)
    assert out.depths.tolist() == together.depths.tolist()


def test_a_depth_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match="from 1 to 5"):
        run_with_exits(TorchPool(random_model(), CPU), random_sequences([5]), Leaving(max_depth=6))


def test_no_sequences_give_no_outputs() -> None:
    out = run_with_exits(TorchPool(random_model(), CPU), random_sequences([]), Leaving(RULES[1]))
    assert out.logits.shape == (0, 3)


def info() -> ExitInfo:
    points = tuple(
        ExitPoint(ExitRule("confidence", threshold), depth, score)
        for threshold, depth, score in ((0.6, 2.0, 80.0), (0.8, 3.0, 88.0), (2.0, 12.0, 90.0))
    )
    return ExitInfo("classification", 12, "accuracy", 100, 90.0, points[1], points)


def test_a_speed_up_chooses_the_best_rule_that_is_fast_enough() -> None:
    assert choose_leaving(info(), 12, speedup=3.5).rule.threshold == 0.8
    assert choose_leaving(info(), 12, speedup=5.0).rule.threshold == 0.6
    assert choose_leaving(info(), 12).rule.threshold == 0.8
    with pytest.raises(UserError, match=r"fastest rule gives 6\.00"):
        choose_leaving(info(), 12, speedup=7.0)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"speedup": 0.0}, "a speed-up of 0 is none: give 1 or more"),
        ({"speedup": float("nan")}, "a speed-up of nan is none"),
        ({"deadline_ms": -1.0}, "a deadline of -1 milliseconds is none: give 0 or more"),
        ({"deadline_ms": float("nan")}, "a deadline of nan milliseconds is none"),
        ({"depth": 13}, "depth is 13, but it must be from 1 to 12"),
    ],
)
def test_a_wish_that_means_nothing_is_refused(wish: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        choose_leaving(info(), 12, **wish)


def test_a_model_without_exits_cannot_be_sped_up() -> None:
    with pytest.raises(UserError, match="--exits"):
        choose_leaving(None, 12, speedup=2.0)
