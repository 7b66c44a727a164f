"""Predicting with exits, by torch and by an exported model: the same answers, fewer layers."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.finetuning.made_lessons import learn, lesson

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.exit_rules import predict_depths
from openalbert.interop import huggingface
from openalbert.interop.exits import ExitRule
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.serve.backend import Computation
from openalbert.serve.early_exit import Leaving
from openalbert.serve.export_scores import as_sequences, cpu
from openalbert.text.tokenizer import Tokenizer

TEXTS = ["the good people of the time", "the war of the people", "water", "a great day at school was good"] * 5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small: Tokenizer) -> Path:
    """A run with exits of a tiny model of four layers."""
    torch.manual_seed(0)
    config = AlbertConfig(small.vocab_size, 32, 64, 4, 2, 128, max_positions=64, initializer_range=0.1)
    folder = tmp_path_factory.mktemp("exits")
    huggingface.save(AlbertModel(config), folder / "start", small)
    file = lesson("classification", folder, 1200)
    learn(folder / "start", "classification", file, folder / "run", "--exits --exit-drop 0.5 --steps 300")
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    pytest.importorskip("onnxruntime")
    cli.main(["export", str(run), "--out", str(run.parent / "exported")])
    return run.parent / "exported"


def test_inputs_leave_at_the_depth_that_they_need(run: Path) -> None:
    model = openalbert.load(run)
    found = model.predict(TEXTS)
    assert model.exits is not None
    rule = model.exits.chosen.rule
    assert model.exits.chosen.mean_depth < 4
    assert all(1 <= one.depth <= 4 for one in found)
    if rule.kind == "confidence":
        assert all(one.probability >= rule.threshold or one.depth == 4 for one in found)
    full = model.predict(TEXTS, depth=4)
    assert {one.depth for one in full} == {4}
    assert [one.label for one in found] == [one.label for one in full]
    alone = dataclasses.replace(model.backend, depth=None)
    assert alone == model.backend


@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"depth": 4}, {"speedup": 1.5}], ids=str)
def test_an_exported_model_leaves_where_torch_does(run: Path, exported: Path, options: dict[str, float]) -> None:
    ours, theirs = (openalbert.load(folder).predict(TEXTS, **options) for folder in (run, exported))
    assert [one.depth for one in ours] == [one.depth for one in theirs]
    assert [one.label for one in ours] == [one.label for one in theirs]
    np.testing.assert_allclose([one.probability for one in ours], [one.probability for one in theirs], atol=1e-4)


def test_a_depth_is_that_of_a_model_cut_there(run: Path) -> None:
    model = openalbert.load(run)
    module = model.module
    found = model.predict(TEXTS[:4], depth=3)
    assert module.exits is not None
    for text, one in zip(TEXTS[:4], found, strict=True):
        ids = torch.tensor([[model.tokenizer.cls_id, *model.tokenizer.encode(text), model.tokenizer.sep_id]])
        with torch.inference_mode():
            likely = module.exits[2](module.encode(ids, depth=3).pooled).softmax(-1)
        assert one.probability == pytest.approx(float(likely.max()), abs=1e-5)


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_a_depth_that_is_the_same_for_all_needs_no_loop(
    form: str, run: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, backend = openalbert.load(run).module, openalbert.load(run if form == "torch" else exported).backend
    sequences = as_sequences([[2, *range(5, 5 + length), 3] for length in (3, 20, 4, 12, 1)])
    by_depth = predict_depths(module, sequences, cpu())
    monkeypatch.setattr("openalbert.serve.backend.run_with_exits", pytest.fail)
    for depth in (1, 3, 4):
        for leaving in (Leaving(ExitRule("depth", depth=depth)), Leaving(max_depth=depth)):
            found = Computation(backend, leaving=leaving).logits(sequences, ["classification"])
            np.testing.assert_allclose(found.logits["classification"], by_depth[depth - 1], atol=1e-4)
            assert found.depths is not None
            assert set(found.depths) == {depth}


def test_the_shell_logs_how_many_layers_were_computed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["predict", str(run), *TEXTS[:3], "--depth", "2"])
    assert "2.0 of 4 layers were computed on average" in capsys.readouterr().err
    cli.main(["predict", str(run), TEXTS[0], "--deadline-ms", "100000"])
    assert "layers were computed" in capsys.readouterr().err


def test_a_deadline_of_nothing_computes_one_layer(run: Path) -> None:
    assert {one.depth for one in openalbert.load(run).predict(TEXTS, deadline_ms=0.0)} == {1}


def test_a_depth_of_a_model_without_exits_is_computed_with_a_notice(
    run: Path, quick_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for words, is_noted in ((["--depth", "1"], True), (["--depth", "2"], False), (["--deadline-ms", "9000"], True)):
        cli.main(["predict", str(quick_runs["classification"]), "the war", *words])
        assert ("was fine-tuned without --exits" in capsys.readouterr().err) == is_noted
    cli.main(["predict", str(run), "the war", "--depth", "1"])
    assert "without --exits" not in capsys.readouterr().err


def test_a_saved_model_keeps_its_exits(run: Path, tmp_path: Path) -> None:
    model = openalbert.load(run)
    model.save(tmp_path / "copy")
    again = openalbert.load(tmp_path / "copy")
    assert [one.depth for one in again.predict(TEXTS)] == [one.depth for one in model.predict(TEXTS)]


def test_a_model_that_is_loaded_with_other_heads_has_no_exits(run: Path) -> None:
    model = openalbert.load(run, PRETRAINING_HEADS)
    assert model.exits is None


def test_wishes_that_a_model_cannot_meet_are_refused(run: Path, quick_runs: dict[str, Path]) -> None:
    without = openalbert.load(quick_runs["classification"])
    with pytest.raises(UserError, match="no exits"):
        without.predict("the war", speedup=2.0)
    with pytest.raises(UserError, match="from 1 to 2"):
        without.predict("the war", depth=3)
    with pytest.raises(UserError, match="give one"):
        openalbert.load(run).predict("the war", depth=3, speedup=2.0)
    with pytest.raises(UserError, match="a deadline is for"):
        openalbert.load(quick_runs["question_answering"]).predict(("what", "a war"), deadline_ms=5.0)
    assert openalbert.load(quick_runs["question_answering"]).predict(("what", "a good war"), depth=1)
