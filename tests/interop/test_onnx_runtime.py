"""Exported folders that are damaged, foreign, or too new are refused with a sentence."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import openalbert
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.onnx import EMBEDDING, EXPORT, _sha256, write_export
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.interop.quantization import WEIGHTS_FILE
from openalbert.model.config import Head


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    folder = tmp_path_factory.mktemp("good") / "export"
    write_export(huggingface.load(tiny), folder, source=tiny, int8=True)
    return folder


@pytest.fixture
def export(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "export"))


def sign_again(folder: Path) -> None:
    """Make the manifest agree with the files, as an older or newer openalbert might have written them."""
    values = json.loads((folder / EXPORT).read_text())
    values["files"] = {name: _sha256(folder / name) for name in values["files"]}
    (folder / EXPORT).write_text(json.dumps(values))


def cut(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", [WEIGHTS_FILE, "model.onnx", "layer-0-0.onnx", "spiece.model"])
def test_a_truncated_file_is_refused_by_its_checksum(export: Path, name: str) -> None:
    cut(export, name)
    with pytest.raises(UserError, match=f"{name}: its content is not what was exported .* copy the whole folder again"):
        ExportedModel(export, 1)


def test_a_missing_file_is_named(export: Path) -> None:
    (export / WEIGHTS_FILE).unlink()
    with pytest.raises(UserError, match=f"{WEIGHTS_FILE} is missing: copy the whole folder again"):
        ExportedModel(export, 1)


def foreign(folder: Path) -> None:
    (folder / EMBEDDING).write_text("this is not ONNX")


def cut_graph(folder: Path) -> None:
    cut(folder, EMBEDDING)


def too_new(folder: Path) -> None:
    graph = onnx.load(folder / EMBEDDING, load_external_data=False)
    graph.opset_import[0].version = 999
    (folder / EMBEDDING).write_bytes(graph.SerializeToString())


def test_a_graph_of_another_part_is_refused_when_it_is_run(export: Path) -> None:
    shutil.copyfile(export / "layer-0-0.onnx", export / EMBEDDING)
    sign_again(export)
    with pytest.raises(
        UserError, match=r"embedding\.onnx takes .* and not input_ids, token_type_ids, so it is another graph: copy"
    ):
        openalbert.load(export).embed("a text")


@pytest.mark.parametrize("content", ["", "[]", '{"precision": "int4"}'])
def test_a_damaged_manifest_is_refused_with_what_to_do(export: Path, content: str) -> None:
    (export / EXPORT).write_text(content)
    with pytest.raises(UserError, match=r"export\.json.*: copy the whole folder again, or export the model again"):
        openalbert.load(export)


@pytest.mark.parametrize(
    ("layers", "labels", "message"),
    [
        ([], ("a", "b"), r"0 graphs of layers, but the model has 2 layers: copy the whole folder again"),
        (["layer-0-0.onnx"], ("a", "b"), r"1 graphs of layers, but the model has 2 layers"),
        (
            None,
            ("a", "b", "c"),
            r"has 3 outputs for head-classification\.onnx, which has 2: copy the whole folder again",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_its_graphs_is_refused(
    layers: list[str] | None, labels: tuple[str, ...], message: str, tiny: Path, tmp_path: Path
) -> None:
    model = huggingface.load(tiny, [Head("classification", ("a", "b"))])
    write_export(model, tmp_path / "export", source=tiny, int8=True)
    path = tmp_path / "export" / EXPORT
    values = json.loads(path.read_text())
    values["layers"] = values["layers"] if layers is None else layers
    values["heads"][0]["labels"] = labels
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        openalbert.load(tmp_path / "export").predict("a text")


@pytest.mark.parametrize("damage", [foreign, cut_graph, too_new])
def test_a_graph_that_the_runtime_cannot_load_is_refused(export: Path, damage: Callable[[Path], None]) -> None:
    damage(export)
    sign_again(export)
    with pytest.raises(
        UserError, match=r"embedding.onnx: ONNX Runtime .* cannot load this graph .*: update it with"
    ) as found:
        ExportedModel(export, 1)
    assert "::" not in str(found.value)  # nothing of its C++


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"{}", "precision is missing"),
        (b'{"precision": "int4"}', "precision"),
    ],
)
def test_a_manifest_that_is_none_is_refused(export: Path, content: bytes, message: str) -> None:
    (export / EXPORT).write_bytes(content)
    with pytest.raises(UserError, match=message):
        ExportedModel(export, 1)


def test_a_machine_without_onnx_runtime_gets_the_name_of_the_extra(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'openalbert\[onnx\]'"):
        ExportedModel(good, 1)
