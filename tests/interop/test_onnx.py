"""Exported graphs compute what the model computes, in plain ONNX Runtime too; int8 is stored and computed in 8 bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.onnx import EXPORT, WHOLE_GRAPH, Manifest, read_manifest, size_of, write_export
from openalbert.interop.onnx_graph import OPSET
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.interop.quantization import WEIGHTS_FILE, Part, check_quantized, quantize
from openalbert.model.albert import AlbertModel
from openalbert.model.averaging import with_depth
from openalbert.model.config import AlbertConfig, Head, Sharing

HEADS = (
    Head("masked_lm"),
    Head("sentence_order"),
    Head("classification", ("a", "b", "c")),
    Head("regression"),
    Head("multi_label", ("x", "y")),
    Head("multiple_choice"),
    Head("span"),
    Head("answerability"),
    Head("tagging", ("O", "B-place")),
)
SIZES = {"vocab_size": 120, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "ffn_size": 64, "max_positions": 24}
FORMS = {
    "ALBERT": AlbertConfig(**SIZES, embedding_size=16),
    "attention shared": AlbertConfig(**SIZES, embedding_size=16, sharing=Sharing(1, 4), activation="gelu_erf"),
    "groups": AlbertConfig(**SIZES, embedding_size=16, sharing=Sharing(2, 2), activation="relu"),
    "BERT": AlbertConfig(**SIZES, embedding_size=32, sharing=Sharing(4, 4)),
}


def made_model(config: AlbertConfig, heads: tuple[Head, ...] = HEADS) -> AlbertModel:
    """Random weights, larger than in training, with biases and norms that are not 0 and 1."""
    torch.manual_seed(0)
    model = AlbertModel(config, heads).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module", params=FORMS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[AlbertModel, Path]:
    """A model and its fp32 export."""
    model, folder = made_model(FORMS[request.param]), tmp_path_factory.mktemp("export") / "model"
    write_export(model, folder, source=folder, int8=False)
    return model, folder


@pytest.mark.parametrize("int8", [False, True])
def test_blocks_with_the_same_weights_are_stored_once(int8: bool, tmp_path: Path) -> None:
    """`finetune --trainable head` adds a layer, for which Hugging Face's format needs copies of the shared block."""
    shared = made_model(FORMS["ALBERT"])
    model = with_depth(shared, shared.config.num_layers, averages=True)
    assert model.config.sharing == Sharing(3, 3)
    manifest = write_export(model, tmp_path / "more", source=tmp_path, int8=int8)
    assert manifest.layers == ("layer-0-0.onnx",) * 4 + ("layer-2-2.onnx",)
    write_export(shared, tmp_path / "shared", source=tmp_path, int8=int8)
    one_block = sum(
        parameter.numel() for parameter in (*shared.encoder.attention.parameters(), *shared.encoder.ffn.parameters())
    )
    grown = (tmp_path / "more" / WEIGHTS_FILE).stat().st_size - (tmp_path / "shared" / WEIGHTS_FILE).stat().st_size
    assert grown < 1.2 * one_block * (1 if int8 else 4) + 1000
    ids, segments, mask = batch()
    session = onnxruntime.InferenceSession(tmp_path / "more" / WHOLE_GRAPH)
    (found,) = session.run(["classification"], {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask})
    np.testing.assert_allclose(found, computed_by_torch(model)["classification"], atol=0.3 if int8 else 2e-5)


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, segments and mask of three sequences of different lengths."""
    ids = np.random.default_rng(0).integers(5, 120, (3, 11))
    mask = (np.arange(11) < np.array([[11], [7], [1]])).astype(np.int64)
    return ids, (np.arange(11) >= 4).astype(np.int64) * mask, mask


def computed_by_torch(model: AlbertModel, depth: int | None = None) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        encoded = model.encode(*map(torch.from_numpy, batch()), depth=depth)
        found = {"last_hidden_state": encoded.hidden, "pooler_output": encoded.pooled}
        found |= {head.kind: model.scores(head.kind, encoded) for head in model.head_list}
    return {name: tensor.numpy() for name, tensor in found.items()}


def test_the_whole_graph_computes_every_output_of_the_model(pair: tuple[AlbertModel, Path]) -> None:
    model, folder = pair
    session = onnxruntime.InferenceSession(folder / WHOLE_GRAPH)
    ids, segments, mask = batch()
    names = [one.name for one in session.get_outputs()]
    found = session.run(None, {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask})
    expected = computed_by_torch(model)
    assert set(names) == set(expected)
    for name, values in zip(names, found, strict=True):
        real = mask.astype(bool) if values.ndim == 3 else slice(None)
        np.testing.assert_allclose(values[real], expected[name][real], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("depth", [1, 3, None])
def test_the_pieces_compute_any_depth(pair: tuple[AlbertModel, Path], depth: int | None) -> None:
    model, folder = pair
    exported, (ids, segments, mask) = ExportedModel(folder, 1), batch()
    hidden = exported.encode(ids, segments, mask, depth=depth)
    expected = computed_by_torch(model, depth)
    real = mask.astype(bool)
    np.testing.assert_allclose(hidden[real], expected["last_hidden_state"][real], atol=2e-5)
    np.testing.assert_allclose(exported.pool(hidden[:, 0]), expected["pooler_output"], atol=2e-5)
    np.testing.assert_allclose(exported.scores("span", hidden[real]), expected["span"][real], atol=2e-5)
    np.testing.assert_allclose(exported.scores("regression", hidden[:, 0]), expected["regression"], atol=2e-5)
    rows = np.array([[0, 3, 3], [6, 0, 1], [0, 0, 0]])
    some = exported.encode(ids, segments, mask, depth=depth, rows=rows)
    np.testing.assert_allclose(some, np.take_along_axis(hidden, rows[..., None], 1), atol=2e-5)


def test_a_depth_that_the_model_does_not_have_is_refused(pair: tuple[AlbertModel, Path]) -> None:
    exported, (ids, segments, mask) = ExportedModel(pair[1], 1), batch()
    with pytest.raises(UserError, match="depth is 5, but it must be from 1 to 4"):
        exported.encode(ids, segments, mask, depth=5)
    wide = np.full((1, 25), 5)
    with pytest.raises(UserError, match="25 tokens, but the model has 24 positions"):
        exported.encode(wide, wide * 0, wide * 0 + 1)


def test_graphs_have_only_operators_of_onnx_and_pass_its_checker(pair: tuple[AlbertModel, Path]) -> None:
    for path in pair[1].glob("*.onnx"):
        onnx.checker.check_model(path, full_check=True)
        graph = onnx.load(path, load_external_data=False)
        assert [(one.domain, one.version) for one in graph.opset_import] == [("", OPSET)]


def test_every_parameter_is_stored_once(pair: tuple[AlbertModel, Path]) -> None:
    model, folder = pair
    padding = 64 * len(list(model.parameters()))
    assert 0 <= (folder / WEIGHTS_FILE).stat().st_size - 4 * model.num_parameters() <= padding


PLAIN = """
import json, sys
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx")
ids = np.array(json.loads(sys.argv[2]))
inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
hidden, pooled = session.run(["last_hidden_state", "pooler_output"], inputs)
assert not any(name.startswith(("openalbert", "torch")) for name in sys.modules)
print(json.dumps([hidden.tolist(), pooled.tolist()]))
"""


def test_plain_onnxruntime_computes_what_transformers_does(tmp_path: Path) -> None:
    model = made_model(FORMS["ALBERT"], ())
    huggingface.save(model, tmp_path / "model")
    write_export(model, tmp_path / "export", source=tmp_path / "model", int8=False)
    ids = [[2, 17, 33, 90, 3], [2, 8, 8, 119, 3]]
    words = [sys.executable, "-c", PLAIN, str(tmp_path / "export"), json.dumps(ids)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "model").eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids))
    hidden, pooled = json.loads(done.stdout)
    np.testing.assert_allclose(hidden, expected.last_hidden_state.numpy(), atol=2e-5)
    np.testing.assert_allclose(pooled, expected.pooler_output.numpy(), atol=2e-5)


# int8.


@given(arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)))
@example(np.full((3, 5), 1.3785e-41, np.float32))
def test_quantized_numbers_are_within_half_a_step_of_the_weights(matrix: np.ndarray) -> None:
    numbers, scale = quantize(matrix)
    assert numbers.dtype == np.int8
    assert np.abs(numbers).max() <= 127
    restored = numbers.astype(np.float64) * scale[:, None]
    assert (np.abs(restored - matrix) <= scale[:, None] * 0.5001).all()


@pytest.fixture(scope="module")
def int8_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[AlbertModel, Path]:
    model, folder = made_model(FORMS["ALBERT"]), tmp_path_factory.mktemp("int8") / "model"
    write_export(model, folder, source=folder, int8=True)
    return model, folder


def products_of(folder: Path, name: str) -> dict[str, int]:
    """How often each operator of a matrix product occurs in what ONNX Runtime makes of a graph."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / f"optimized-{name}")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(folder / name, options)
    graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    bodies = [graph, *(one.g for node in graph.node for one in node.attribute if one.name == "body")]
    kinds = [node.op_type for body in bodies for node in body.node]
    Path(options.optimized_model_filepath).unlink()
    return {kind: kinds.count(kind) for kind in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMul", "Gemm")}


def test_onnx_runtime_computes_every_product_of_a_matrix_in_8_bits(int8_pair: tuple[AlbertModel, Path]) -> None:
    # Four products in the layer, the map of the embedding, the pooler, two in the masked-LM head, eight other heads.
    found = products_of(int8_pair[1], WHOLE_GRAPH)
    assert found["MatMul"] == found["Gemm"] == 0
    assert found["DynamicQuantizeMatMul"] + found["MatMulIntegerToFloat"] == 4 + 1 + 1 + 2 + 8
    layer = products_of(int8_pair[1], "layer-0-0.onnx")
    assert layer == {"DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 0, "MatMul": 0, "Gemm": 0}


def test_int8_is_near_fp32_and_the_same_in_pieces_and_whole(int8_pair: tuple[AlbertModel, Path]) -> None:
    model, folder = int8_pair
    exported, (ids, segments, mask) = ExportedModel(folder, 1), batch()
    real = mask.astype(bool)
    hidden = exported.encode(ids, segments, mask)
    expected = computed_by_torch(model)["last_hidden_state"]
    assert np.corrcoef(hidden[real].ravel(), expected[real].ravel())[0, 1] > 0.998
    session = onnxruntime.InferenceSession(folder / WHOLE_GRAPH)
    inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
    np.testing.assert_array_equal(session.run(["last_hidden_state"], inputs)[0], hidden)


@pytest.mark.parametrize("part", ["embedding", "attention", "up", "down", "heads"])
def test_a_part_can_stay_in_fp32(part: Part, tmp_path: Path) -> None:
    model = made_model(FORMS["ALBERT"])
    manifest = write_export(model, tmp_path / "export", source=tmp_path, int8=True, keep=(part,))
    assert manifest.kept == (part,)
    graph = onnx.load(tmp_path / "export" / WHOLE_GRAPH, load_external_data=False)
    matrices = {one.name: one.data_type for one in graph.graph.initializer if len(one.dims) == 2}
    wide = {name for name, kind in matrices.items() if kind == onnx.TensorProto.FLOAT}
    start = {"embedding": "encoder.embedding.", "attention": "encoder.attention.", "heads": ("heads.", "encoder.pool")}
    assert wide == {name for name in matrices if name.startswith(start.get(part, f"encoder.ffn.0.{part}."))}
    assert wide
    with pytest.raises(AssertionError):
        check_quantized([graph], ())


def test_the_bundled_checkpoint_keeps_its_size_in_fp32_and_fits_into_13_mb_in_int8(tmp_path: Path) -> None:
    source = huggingface.find_folder("albert-base-wikibooks")
    model = huggingface.load(source)
    write_export(model, tmp_path / "fp32", source=source, int8=False)
    assert abs(size_of(tmp_path / "fp32") / (4 * model.num_parameters()) - 1) < 0.05
    write_export(model, tmp_path / "int8", source=source, int8=True)
    assert sum(path.stat().st_size for path in (tmp_path / "int8").glob("*.onnx")) < 100_000
    assert size_of(tmp_path / "int8") < 13_000_000


# Folders.


def test_an_export_has_the_tokenizer_and_the_task_and_a_manifest_that_reads_back(tiny: Path, tmp_path: Path) -> None:
    model = huggingface.load(tiny)
    manifest = write_export(model, tmp_path / "export", source=tiny, int8=True)
    assert read_manifest(tmp_path / "export") == manifest
    assert isinstance(manifest, Manifest)
    assert manifest.config == model.config
    assert (tmp_path / "export" / "spiece.model").read_bytes() == (tiny / "spiece.model").read_bytes()
    assert set(manifest.files) | {EXPORT} == {path.name for path in (tmp_path / "export").iterdir()}


def test_a_folder_with_other_things_is_not_replaced(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things than an export"):
        write_export(huggingface.load(tiny), tmp_path, source=tiny, int8=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_exported_folder_is_refused_where_weights_are_needed(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_export(huggingface.load(tiny), tmp_path / "export", source=tiny, int8=True)
    message = "is an exported model, for `openalbert predict`"
    with pytest.raises(UserError, match=message):
        huggingface.load(tmp_path / "export")
    with pytest.raises(SystemExit):
        cli.main(
            ["finetune", str(tmp_path / "export"), "--task", "classification", "--train", "any.csv", "--out", "run"]
        )
    assert message in capsys.readouterr().err
    (tmp_path / "export" / EXPORT).unlink()
    with pytest.raises(UserError, match=r"export\.json is missing, which an exported model needs: copy the whole"):
        openalbert.load(tmp_path / "export")


def test_the_parameters_of_a_manifest_are_the_models_own(tiny: Path, tmp_path: Path) -> None:
    model = huggingface.load(tiny)
    for int8 in (False, True):
        manifest = write_export(model, tmp_path / f"int8-{int8}", source=tiny, int8=int8)
        assert manifest.num_parameters == model.num_parameters()
