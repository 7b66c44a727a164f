"""What bench/house.py counts in a made-up checkout, and what it sees while that runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/house.py` has it

import house
import house_report

ROOT = house.ROOT

FILES = {
    "__init__.py": "",
    "cli.py": """
import sys
VERBS = ("openalbert.high.run",)
def main(words):
    import importlib
    importlib.import_module(VERBS[0]).work(words)
""",
    "high/__init__.py": "",
    "high/run.py": """
from typing import TYPE_CHECKING
import torch
from openalbert.low import used
from openalbert.low.more import Idle
if TYPE_CHECKING:
    from openalbert.high import never
def work(words):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(6):
        weight.grad = used.twice(weight.detach())
        if step == 5:
            Idle().report()
        optimizer.step()
""",
    "high/never.py": "AT_IMPORT = [number for number in range(3)]\n",
    "low/__init__.py": "",
    "low/used.py": '"""Doc\nstring."""\ndef twice(x):\n    # a comment\n    return 2 * x\n',
    "low/more.py": "class Idle:\n    def report(self):\n        return 'idle'\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "src" / "openalbert" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("# a test\n" * 30)
    return tmp_path


def test_files_lines_and_importers_are_counted(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ADDED", ("low/us", "high/n"))
    found = house.count(tree)
    assert found["files"] == 8
    assert found["lines"] == sum(len(text.splitlines()) for text in FILES.values()) == 30
    assert found["lines_by_package"] == {"high": 16, "(top level)": 6, "low": 8}
    assert (found["largest_folder"], found["largest_folder_files"]) == ("high", 3)
    assert (found["largest_file"], found["largest_file_lines"]) == ("high/run.py", 15)
    # run.py by a string of cli.py, used.py and more.py by run.py; never.py is imported for type checkers alone.
    assert found["single_importer"] == 3
    assert found["two_way"] == 0
    assert found["test_ratio"] == 1
    # Without the blank first lines of two files, a docstring of two lines and a comment.
    assert (found["lines_of_code"], found["lines_added"]) == (25, 6)


def test_packages_that_import_each_other_are_found(tree: Path) -> None:
    (tree / "src/openalbert/low/used.py").write_text("def twice(x):\n    from openalbert.high import never\n")
    assert house.count(tree)["two_way"] == 1


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("--trace-step", ["high/run.py", "low/used.py"]),
        ("--trace-run", ["cli.py", "high/run.py", "low/more.py", "low/used.py"]),
    ],
)
def test_files_count_as_run_where_a_line_of_a_function_is_executed(
    option: str, files: list[str], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
    words = [sys.executable, str(ROOT / "bench" / "house.py"), option, "found.json", "verb"]
    subprocess.run(words, cwd=tree, check=True)
    assert json.loads((tree / "found.json").read_text()) == files


def test_the_report_compares_before_and_after() -> None:
    side: dict[str, Any] = {
        **dict.fromkeys(house_report.ROWS, 1000),
        "lines_added": 300,
        "lines_by_package": {"model": 900, "optim": 100},
        "largest_folder": "model",
        "largest_file": "model/a.py",
        "commit": "0123456",
        "is_changed": False,
    }
    after = {**side, "files": 7, "lines_by_package": {"model": 800}, "is_changed": True}
    text = house_report.report({"python": "3.11", "before": side, "after": after})
    assert "| files in src | 1,000 | 7 |" in text
    assert "| lines in optim | 100 | 0 |" in text
    assert "Reached: 700 lines without files whose capability was added since (300, all of serve/" in " ".join(
        text.split()
    )
    assert "0123456 with uncommitted changes" in " ".join(text.split())
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Result", "## Setup", "## Limits"]


def test_the_committed_report_is_what_run_json_makes() -> None:
    place = ROOT / "results" / "house"
    assert house_report.report(json.loads((place / "run.json").read_text())) == (place / "report.md").read_text()
