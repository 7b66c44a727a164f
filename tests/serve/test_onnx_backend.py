"""The predictor takes an exported folder like any other model, and answers the same."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.predict import Embedding
from openalbert.interop import huggingface, onnx_runtime
from openalbert.interop.onnx import write_export
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.model.config import Head
from openalbert.serve.backend import Backend, TorchBackend
from openalbert.serve.early_exit import Leaving, run_with_exits
from openalbert.serve.export_scores import as_sequences, cpu
from openalbert.serve.onnx_backend import MOST_PADDING, OnnxBackend, alike, padded_batches
from openalbert.serve.row_verbs import open_model
from openalbert.train.device import Speed

KINDS = (
    "classification",
    "regression",
    "multi_label",
    "multiple_choice",
    "question_answering",
    "some_without_answer",
)
SEQUENCES = as_sequences([[2, *range(5, 5 + length), 3] for length in (3, 20, 4, 12, 1, 13, 20)])


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_gives_the_logits_of_its_model(kind: str, quick_runs: dict[str, Path], tmp_path: Path) -> None:
    folder = huggingface.find_folder(str(quick_runs[kind]))
    model = huggingface.load(folder)
    write_export(model, tmp_path / "export", source=folder, int8=False)
    backend = OnnxBackend(ExportedModel(tmp_path / "export", 1))
    assert isinstance(backend, Backend)
    kinds = [head.kind for head in model.head_list]
    found = backend.logits(SEQUENCES, kinds).logits
    expected = TorchBackend(model, cpu()).logits(SEQUENCES, kinds).logits
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, err_msg=name)


def test_batches_hold_every_sequence_once_with_little_padding() -> None:
    seen = []
    for batch in padded_batches(SEQUENCES, 44):
        lengths = batch.is_real.sum(1)
        assert (lengths.max() - lengths <= MOST_PADDING).all()
        assert batch.ids.size <= 44
        seen += batch.chosen.tolist()
        for row, number in enumerate(batch.chosen):
            start, end = SEQUENCES.starts[number : number + 2]
            np.testing.assert_array_equal(batch.ids[row][batch.is_real[row]], SEQUENCES.ids[start:end])
    assert sorted(seen) == list(range(7))


def test_a_sequence_longer_than_a_batch_is_a_batch() -> None:
    assert [one.tolist() for one in alike(np.array([50, 3, 50]), 40)] == [[0], [2], [1]]


def test_the_bundled_checkpoint_fills_masks_in_int8_as_before(tmp_path: Path) -> None:
    source = huggingface.find_folder("albert-base-wikibooks")
    write_export(huggingface.load(source), tmp_path / "export", source=source, int8=True)
    original, exported = openalbert.load(source), openalbert.load(tmp_path / "export")
    texts = ["She opened the [MASK] and walked into the [MASK].", "The capital of France is [MASK]."]
    for before, after in zip(original.fill(texts, 3), exported.fill(texts, 3), strict=True):
        for these, those in zip(before.masks, after.masks, strict=True):
            assert these[0].piece == those[0].piece
            assert abs(these[0].probability - those[0].probability) < 0.05


def test_predict_and_load_take_an_exported_folder(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = huggingface.find_folder(str(quick_runs["classification"]))
    write_export(huggingface.load(folder), tmp_path / "export", source=folder, int8=False)
    texts = ["the first text of all", "and another one"]
    before, after = openalbert.load(folder).predict(texts), openalbert.load(tmp_path / "export").predict(texts)
    assert [one.label for one in before] == [one.label for one in after]
    lines = []
    for model in (folder, tmp_path / "export"):
        cli.main(["predict", str(model), texts[0], "--speed.device", "cpu"])
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]


def test_an_exported_model_has_no_module_and_no_other_heads(tiny: Path, tmp_path: Path) -> None:
    write_export(huggingface.load(tiny), tmp_path / "export", source=tiny, int8=True)
    with pytest.raises(UserError, match="is not computed by torch"):
        _ = openalbert.load(tmp_path / "export").module
    with pytest.raises(UserError, match="exported model, whose heads cannot be changed"):
        openalbert.load(tmp_path / "export", [Head("span")])


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("pooling", ["mean", "weighted", "cls"])
def test_embeddings_are_those_of_the_hidden_states_of_torch(
    pooling: Literal["mean", "weighted", "cls"], layer: int | None, tiny: Path, tmp_path: Path
) -> None:
    model = huggingface.load(tiny)
    write_export(model, tmp_path / "export", source=tiny, int8=False)
    weights = np.random.default_rng(0).random(model.config.vocab_size, np.float32) if pooling == "weighted" else None
    backend = OnnxBackend(ExportedModel(tmp_path / "export", 1))
    found = backend.embed(SEQUENCES, Embedding(pooling, layer, weights))
    for number in range(7):
        ids = SEQUENCES.ids[SEQUENCES.starts[number] : SEQUENCES.starts[number + 1]].astype(np.int64)
        with torch.inference_mode():
            hidden = model.encode(torch.from_numpy(ids)[None], depth=layer).hidden[0].numpy()
        one = hidden[0] if pooling == "cls" else np.average(hidden, 0, weights[ids] if weights is not None else None)
        np.testing.assert_allclose(found[number], one / np.linalg.norm(one), atol=2e-5)


def test_a_long_sequence_pads_no_short_ones_where_each_leaves_at_its_own_depth(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = huggingface.find_folder(str(quick_runs["classification"]))
    write_export(huggingface.load(folder), tmp_path / "export", source=folder, int8=False)
    exported = ExportedModel(tmp_path / "export", 1)
    shapes: list[tuple[int, ...]] = []
    run = exported.layer
    monkeypatch.setattr(
        exported, "layer", lambda number, hidden, *more: (shapes.append(hidden.shape), run(number, hidden, *more))[1]
    )
    sequences = as_sequences([[2, *range(5, 5 + length), 3] for length in (1, 60, 2, 1, 2)])
    left = run_with_exits(OnnxBackend(exported).pool(), sequences, Leaving())
    layers = exported.config.num_layers
    computed = sum(batch * length for batch, length, _ in shapes)
    assert computed <= layers * (62 + 4 * 4)
    np.testing.assert_allclose(
        left.logits, OnnxBackend(exported).logits(sequences, ["classification"]).logits["classification"], atol=1e-5
    )


def test_the_graphs_of_the_exit_loop_are_loaded_before_a_deadline_runs(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = huggingface.find_folder(str(quick_runs["classification"]))
    write_export(huggingface.load(folder), tmp_path / "export", source=folder, int8=False)
    pool = OnnxBackend(ExportedModel(tmp_path / "export", 1)).pool()

    def load_late(path: Path, threads: int) -> None:
        raise AssertionError(f"{path} is loaded in the loop")

    monkeypatch.setattr(onnx_runtime, "open_session", load_late)
    assert len(run_with_exits(pool, SEQUENCES, Leaving(deadline=60.0)).depths) == 7


def test_an_export_computes_with_the_threads_that_predict_is_given(tiny: Path, tmp_path: Path) -> None:
    write_export(huggingface.load(tiny), tmp_path / "export", source=tiny, int8=False)
    usual = torch.get_num_threads()
    with open_model(str(tmp_path / "export"), Speed(threads=3)) as model:
        assert isinstance(model.backend, OnnxBackend)
        assert model.backend.model.threads == 3
    torch.set_num_threads(usual)
