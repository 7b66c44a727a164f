"""The architecture picture shows the imports that there are."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.test_guides import ROOT


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    path = ROOT / "docs" / "architecture.py"
    spec = importlib.util.spec_from_file_location("architecture", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_architecture_picture_is_what_its_script_draws_from_the_source(architecture: ModuleType) -> None:
    drawn = architecture.draw()
    assert drawn == architecture.PICTURE.read_text(), "run `python docs/architecture.py` and look at the picture"


def test_the_architecture_picture_names_every_package(architecture: ModuleType) -> None:
    drawn = architecture.draw()
    names = set(re.findall(r'<text class="name"[^>]*>(\w+)</text>', drawn))
    assert names == {"cli", "api", *(path.parent.name for path in architecture.SOURCE.glob("*/__init__.py"))}


def test_imports_are_read_from_statements_and_from_names_of_modules_but_not_for_type_checkers(
    architecture: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "high").mkdir()
    (tmp_path / "high" / "a.py").write_text(
        "from typing import TYPE_CHECKING\nfrom openalbert import low\nimport openalbert.lower.b\n"
        "if TYPE_CHECKING:\n    import torch\n    from openalbert.never import c\n"
    )
    (tmp_path / "low.py").write_text("import torch.nn\nVERB = 'openalbert.lower.b'\n")
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "b.py").write_text("import json\n")
    (tmp_path / "lower" / "c.py").write_text("import torch\n")
    (tmp_path / "plain.py").write_text("from openalbert.lower import b\n")
    graph, with_torch = architecture.read_imports(tmp_path)
    assert graph == {"high": {"low", "lower"}, "low": {"lower"}, "lower": set(), "plain": {"lower"}}
    assert with_torch == {"high", "low", "lower"}


def test_an_arrow_that_follows_from_two_others_is_left_out(architecture: ModuleType) -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert architecture.reduce_graph(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}
