"""Early exit: heads at every depth are trained, the rule is fitted on held-out examples, and both are saved."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from tests.finetuning.made_lessons import command, learn, lesson

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.exit_rules import best_by_cost, candidate_rules, confidence, exit_depths, is_settled
from openalbert.finetuning.losses import combine_depths
from openalbert.interop import huggingface
from openalbert.interop.exits import NEVER, ExitInfo, ExitPoint, ExitRule, read_exit_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.loop import Score


@pytest.fixture(scope="module")
def deeper(tmp_path_factory: pytest.TempPathFactory, small: Tokenizer) -> Path:
    """A tiny model of four layers."""
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=small.vocab_size,
        embedding_size=32,
        hidden_size=64,
        num_layers=4,
        num_heads=2,
        ffn_size=128,
        max_positions=64,
        initializer_range=0.1,
    )
    folder = tmp_path_factory.mktemp("deeper") / "model"
    huggingface.save(AlbertModel(config), folder, small)
    return folder


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_a_run_with_exits_keeps_its_score_with_fewer_layers(
    kind: str, deeper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = learn(deeper, kind, lesson(kind, tmp_path, 1200), tmp_path / "run", "--exits --exit-drop 0.5 --steps 300")
    [early] = scores["exits"].values()
    assert early["mean_depth"] < 4
    assert early["full_score"] == pytest.approx(scores["scores"]["dev"][scores["main_metric"]], abs=1e-3)
    assert early["score"] > early["full_score"] - 5  # 120 examples: the rule was fitted on 108 others
    info = read_exit_info(tmp_path / "run" / "model")
    assert info is not None
    assert info.chosen.score >= info.full_score - 0.5
    assert (info.head, info.num_layers, info.num_examples) == (kind, 4, 108)
    assert (info.points[-1].rule, info.points[-1].score) == (NEVER, info.full_score)
    assert all(one.cost < 4 for one in info.points[:-1])
    log = capsys.readouterr().err
    assert (
        f"early exit at {info.chosen.rule}: dev {info.metric} {early['score']:.1f} at {early['mean_depth']:.1f}" in log
    )
    assert "108 held-out training examples" in log


def test_too_few_examples_fit_no_rule_and_a_speed_up_still_works(
    deeper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(deeper, "classification", lesson("classification", tmp_path), tmp_path / "run", "--exits")
    info = read_exit_info(tmp_path / "run" / "model")
    assert info is not None
    assert info.chosen == info.points[-1] == ExitPoint(NEVER, 4.0, info.full_score)
    assert (
        "all layers are computed (36 held-out training examples: 100 are needed to fit a rule)"
        in capsys.readouterr().err
    )
    model = openalbert.load(tmp_path / "run")
    assert model.predict("good").depth == 4
    assert model.predict("good", speedup=2.0).depth < 4


def test_exits_are_saved_and_transformers_loads_the_folder_all_the_same(deeper: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    learn(deeper, "classification", lesson("classification", tmp_path), tmp_path / "run", "--exits --steps 20")
    folder = tmp_path / "run" / "model"
    ours = huggingface.load(folder)
    assert ours.exits is not None
    assert len(ours.exits) == 3
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.tensor([[2, 40, 50, 60, 3]])
    with torch.no_grad():
        expected = ours.scores("classification", ours.encode(ids))
        torch.testing.assert_close(theirs(ids).logits, expected, atol=1e-5, rtol=0)
    # A second fine-tuning starts from the exits too.
    again = learn(folder, "classification", lesson("classification", tmp_path), tmp_path / "on", "--exits --steps 1")
    assert again["exits"]


def test_a_rule_or_exits_of_another_model_are_refused(deeper: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        file = lesson("classification", tmp_path / "data")
        learn(deeper, "classification", file, tmp_path / f"run{seed}", f"--exits --steps 2 --seed {seed}")
    one, other = (tmp_path / f"run{seed}" / "model" for seed in (1, 2))
    (one / "exits.json").write_text((other / "exits.json").read_text())
    with pytest.raises(UserError, match="fitted for other weights"):
        read_exit_info(one)
    other_shape = AlbertModel(AlbertConfig(10, 4, 8, 2, 2, 16), (Head("classification", ("a", "b")),), has_exits=True)
    huggingface.save(other_shape, tmp_path / "shape")
    (one / "exits.safetensors").write_bytes((tmp_path / "shape" / "exits.safetensors").read_bytes())
    with pytest.raises(UserError, match="early exit of another model"):
        huggingface.load(one)
    (one / "exits.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        huggingface.load(one)


@pytest.mark.parametrize("kind", ["multiple_choice", "question_answering"])
def test_exits_are_refused_where_an_example_is_not_one_decision(
    kind: str, deeper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(command(deeper, kind, lesson(kind, tmp_path), tmp_path / "run", "--exits"))
    assert "early exit is for classification, regression, multi_label" in capsys.readouterr().err


def test_an_interrupted_run_with_exits_ends_as_an_uninterrupted_one(deeper: Path, tmp_path: Path) -> None:
    file = lesson("classification", tmp_path)
    words = "--exits --steps 20 --evaluate-every 5 --save-every 5"
    whole = learn(deeper, "classification", file, tmp_path / "whole", words)
    line = command(deeper, "classification", file, tmp_path / "cut", words)

    import openalbert.finetuning.run as run_module

    class StopError(Exception):
        pass

    real = run_module.FinetuningRun._save

    def save_and_stop(self: run_module.FinetuningRun) -> None:
        real(self)
        if self.train_state.step == 10:
            raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module.FinetuningRun, "_save", save_and_stop)
        with pytest.raises(StopError):
            cli.main(line)
    cli.main(line)
    cut = json.loads((tmp_path / "cut" / "scores.json").read_text())
    assert cut["exits"] == whole["exits"]
    assert (tmp_path / "cut/model/exits.safetensors").read_bytes() == (
        tmp_path / "whole/model/exits.safetensors"
    ).read_bytes()


def test_the_loss_is_the_mean_over_depths_weighted_by_depth() -> None:
    one, two = torch.tensor(1), torch.tensor(2)
    scores = [Score(torch.tensor(loss), two, one * right) for loss, right in ((3.0, 0), (6.0, 1), (1.0, 2))]
    combined = combine_depths(scores)
    assert combined.loss_sum.item() == pytest.approx((1 * 3 + 2 * 6 + 3 * 1) / 6)
    assert combined.correct == 2


def test_each_exit_gives_what_a_shallower_model_with_that_head_gives() -> None:
    torch.manual_seed(0)
    config = AlbertConfig(40, 8, 16, 4, 2, 32, initializer_range=0.4)
    head = Head("classification", ("a", "b"))
    model = AlbertModel(config, (head,), has_exits=True).eval()
    assert model.exits is not None
    ids = torch.randint(5, 40, (3, 9))
    with torch.no_grad():
        found = model.depth_scores(model.encode(ids, all_states=True))
        for depth in range(1, 5):
            shallow = AlbertModel(dataclasses.replace(config, num_layers=depth), (head,)).eval()
            shallow.encoder.load_state_dict(model.encoder.state_dict())
            module = model.heads["classification"] if depth == 4 else model.exits[depth - 1]
            shallow.heads["classification"].load_state_dict(module.state_dict())
            torch.testing.assert_close(found[depth - 1], shallow.scores("classification", shallow.encode(ids)))


def test_confidence_and_patience_by_hand() -> None:
    logits = np.array([[0, 0], [3, 0]], np.float32)
    np.testing.assert_allclose(confidence("classification", logits), [0.5, 1 / (1 + np.exp(-3))], rtol=1e-6)
    np.testing.assert_allclose(confidence("multi_label", logits[1:]), [0.5])
    before = np.array([[1, 0], [0, 3]], np.float32)
    same = ExitRule("patience")
    assert is_settled("classification", same, logits, before).tolist() == [True, False]
    assert not is_settled("classification", same, logits, None).any()
    values = np.array([[1.0], [2.0]], np.float32)
    near = ExitRule("patience", threshold=0.5)
    assert is_settled("regression", near, values, values + np.array([[0.4], [0.6]], np.float32)).tolist() == [
        True,
        False,
    ]


def test_patience_counts_equal_decisions_in_a_row() -> None:
    decisions = np.array([[0, 0, 0], [1, 0, 1], [1, 0, 0], [1, 1, 1], [1, 1, 0]])  # layers x examples
    by_depth = np.eye(2, dtype=np.float32)[decisions]
    assert exit_depths("classification", ExitRule("patience", patience=2), by_depth).tolist() == [4, 3, 5]
    assert exit_depths("classification", NEVER, by_depth).tolist() == [5, 5, 5]
    assert exit_depths("classification", ExitRule("depth", depth=2), by_depth).tolist() == [2, 2, 2]


def test_the_best_rules_of_each_depth_are_kept_up_to_full_depth() -> None:
    """Shallow ones that no shallower one equals, then deep ones that no deeper one equals."""
    numbers = ((3.0, 80.0), (2.0, 70.0), (2.5, 69.0), (5.0, 78.0), (4.0, 77.0), (4.5, 78.5), (6.0, 76.0))
    points = [ExitPoint(NEVER, depth, score) for depth, score in numbers]
    kept = [(2.0, 70.0), (3.0, 80.0), (4.5, 78.5), (5.0, 78.0), (6.0, 76.0)]
    assert [(one.mean_depth, one.score) for one in best_by_cost(points)] == kept
    assert best_by_cost([*points, ExitPoint(NEVER, 6.0, 81.0)])[-1].score == 81.0


def test_a_rule_that_was_lucky_on_few_examples_is_not_chosen() -> None:
    """The cheapest rule looks best and is least sure; of the others the shallowest that is sure enough is taken."""
    numbers = ((2.0, 80.5, 3.0), (4.0, 80.6, 0.7), (6.0, 80.7, 0.4), (7.0, 80.9, 0.2), (12.0, 80.5, 0.0))
    points = tuple(ExitPoint(NEVER, depth, score, error) for depth, score, error in numbers)
    info = ExitInfo("classification", 12, "accuracy", 100, 80.5, points[-1], points)
    assert [info.cheapest(drop).mean_depth for drop in (5.0, 0.65, 0.5, 0.0)] == [2.0, 4.0, 6.0, 7.0]
    unsure = dataclasses.replace(info, points=(*points[:2], points[-1]))
    assert unsure.cheapest(0.0).mean_depth == 4.0  # the highest score
    assert dataclasses.replace(info, points=points[-1:]).cheapest(0.0).mean_depth == 12.0


def test_asking_after_every_layer_costs_more_than_a_depth_for_all() -> None:
    asking, same, full = (
        ExitPoint(ExitRule("patience"), 5.5, 80.0, 0.1),
        ExitPoint(ExitRule("depth", depth=6), 6.0, 80.0, 0.1),
        ExitPoint(NEVER, 12.0, 80.0),
    )
    assert asking.cost > same.cost == 6.0
    assert full.cost == 12.0
    info = ExitInfo("classification", 12, "accuracy", 500, 80.0, full, (same, asking, full))
    assert info.cheapest(0.2) == same
    assert best_by_cost([full, asking, same])[0] == same


@pytest.mark.parametrize("rule", [("depth", None), ("depth", 0), ("patience", 3)])
def test_a_rule_without_its_depth_is_refused(rule: tuple[Literal["depth", "patience"], int | None]) -> None:
    with pytest.raises(UserError, match=f"by {rule[0]} has a depth of {rule[1]}"):
        ExitRule(rule[0], depth=rule[1])


def test_of_rules_with_the_same_score_the_sure_one_is_chosen() -> None:
    numbers = ((1.3, 95.0, 1.6), (2.0, 95.0, 0.9), (3.0, 95.0, 0.0), (4.0, 95.0, 0.0))
    points = [ExitPoint(NEVER, depth, score, error) for depth, score, error in numbers]
    kept = best_by_cost(points)
    info = ExitInfo("classification", 4, "accuracy", 100, 95.0, kept[-1], tuple(kept))
    assert kept == points
    assert info.cheapest(0.0) == points[2]
    assert info.cheapest(1.0) == points[1]
    assert dataclasses.replace(info, points=(points[0], points[-1])).cheapest(0.0) == points[-1]


def test_a_run_that_diverged_has_no_rules() -> None:
    by_depth = np.full((4, 5, 2), np.nan, np.float32)
    assert {rule.kind for rule in candidate_rules("classification", by_depth)} == {"patience"}
    by_depth[:2] = 0
    assert [rule.depth for rule in candidate_rules("regression", by_depth[..., :1])][:2] == [1, 2]
    by_depth[:] = np.nan
    assert not list(candidate_rules("regression", by_depth[..., :1]))


def test_a_speed_up_takes_the_deepest_rule_that_is_as_good_as_any() -> None:
    numbers = ((2.0, 79.0, 1.0), (3.0, 80.6, 0.7), (5.0, 80.2, 0.4), (6.0, 79.7, 0.2), (12.0, 79.0, 0.0))
    points = tuple(ExitPoint(NEVER, depth, score, error) for depth, score, error in numbers)
    info = ExitInfo("classification", 12, "accuracy", 100, 79.0, points[1], points)
    assert [info.at_speedup(speedup).mean_depth for speedup in (1.0, 2.0, 2.4, 4.0, 6.0)] == [5.0, 5.0, 5.0, 3.0, 2.0]
    with pytest.raises(UserError, match=r"a speed-up of 7 is not reached: the fastest rule gives 6\.00"):
        info.at_speedup(7.0)


def test_a_missing_damaged_or_edited_rule_is_refused_in_a_sentence(deeper: Path, tmp_path: Path) -> None:
    learn(deeper, "classification", lesson("classification", tmp_path), tmp_path / "run", "--exits --steps 2")
    path = tmp_path / "run" / "model" / "exits.json"
    whole = json.loads(path.read_text())
    for edited, reason in (
        (
            {"head": "regression"},
            "is for a regression head and 4 layers, but the model has classification and 4 layers",
        ),
        ({"num_layers": 12}, "and 12 layers, but the model has"),
        ({"points": []}, "there are no points"),
        ({"chosen": {**whole["chosen"], "rule": {"kind": "patience", "patience": -3}}}, "patience of -3"),
        (
            {"chosen": {**whole["chosen"], "rule": {"kind": "confidence", "threshold": float("nan")}}},
            "threshold of nan",
        ),
    ):
        path.write_text(json.dumps({**whole, **edited}))
        with pytest.raises(UserError, match=reason):
            openalbert.load(tmp_path / "run")
    path.write_text("")
    with pytest.raises(
        UserError, match=r"not JSON.*copy the folder again, or remove exits\.safetensors and exits\.json"
    ):
        openalbert.load(tmp_path / "run")
    path.unlink()
    with pytest.raises(
        UserError, match=r"exits\.json is missing, the rule for exits\.safetensors: copy the folder again"
    ):
        openalbert.load(tmp_path / "run")


def test_evaluate_shows_the_score_by_the_rule_which_is_that_of_predict(
    deeper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(deeper, "classification", lesson("classification", tmp_path, 1200), tmp_path / "run", "--exits --steps 300")
    other = lesson("classification", tmp_path / "other", 300, seed=5)
    capsys.readouterr()
    cli.main(["evaluate", str(tmp_path / "run"), "--dev", str(other), "--json"])
    found = capsys.readouterr()
    early = json.loads(found.out[found.out.index("{\n") :])["splits"]["dev"]["early_exit"]
    with other.open(newline="") as file:
        rows = list(csv.DictReader(file))
    predicted = openalbert.load(tmp_path / "run").predict([row["text"] for row in rows])
    right = [one.label == row["label"] for one, row in zip(predicted, rows, strict=True)]
    assert early["accuracy"] == pytest.approx(100 * np.mean(right))
    assert early["mean_depth"] == pytest.approx(np.mean([one.depth for one in predicted]))
    assert early["mean_depth"] < 4
    assert "by its rule of early exit, which `predict` follows" in found.err


def test_a_converted_model_keeps_its_exits_and_their_rule(deeper: Path, tmp_path: Path) -> None:
    learn(deeper, "classification", lesson("classification", tmp_path), tmp_path / "run", "--exits --steps 2")
    cli.main(["convert", str(tmp_path / "run" / "model"), "--out", str(tmp_path / "other")])
    before, after = read_exit_info(tmp_path / "run" / "model"), read_exit_info(tmp_path / "other")
    assert before is not None
    assert after is not None
    assert (after.chosen, after.points) == (before.chosen, before.points)


@pytest.mark.parametrize("words", ["--metric loss", "--long-texts mean", "--trainable lora"])
def test_exits_are_refused_together_with_what_they_do_not_fit(
    words: str, deeper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    with pytest.raises(SystemExit):
        cli.main(command(deeper, "classification", file, tmp_path / "run", f"--exits {words}"))
    assert "exits" in capsys.readouterr().err
