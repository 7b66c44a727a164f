"""Mutation testing: which tests a mutant is given, and that a file is as before once a mutant has been tried."""

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import mutants
import mutation
import mutation_worker

SOURCE = """LIMIT = 3

def first(x, y=LIMIT):
    if (
        x > y
    ):
        return x
    else:
        y += 1
    return sum(
        [x, y]
    )
"""


@pytest.mark.parametrize(
    ("line", "first", "last", "is_called"),
    [(1, 1, 1, False), (3, 3, 3, False), (5, 4, 6, True), (7, 7, 7, True), (9, 9, 9, True), (11, 10, 12, True)],
)
def test_a_statement_is_all_its_lines_but_not_the_block_under_it(
    line: int, first: int, last: int, is_called: bool
) -> None:
    assert mutants.statement_at(ast.parse(SOURCE), line) == (first, last, is_called)


def test_an_edit_is_the_one_place_where_two_texts_differ() -> None:
    assert mutants.edit_between("a + b + c", "a + b - c") == (6, "+", "-")
    assert mutants.edit_between("f(x)", "f(x, x)") == (3, "", ", x")


def test_a_mutant_is_given_the_tests_that_execute_its_statement_quickest_first() -> None:
    lines = {"4": ["t.py::slow|call", "t.py::quick|call"], "7": ["t.py::other|call"], "9": ["t.py::other|setup"]}
    lines |= {"14": ["", "t.py::quick|call"]}
    seconds = {"t.py::slow": 9.0, "t.py::quick": 0.1, "t.py::other": 1.0}
    known = {"t.py": {"seconds": seconds, "lines": {"f.py": lines}}}

    def chosen(first: int, last: int, when: str = "call", most: float = 60.0) -> list[str]:
        mutant = {"file": "f.py", "statement": [first, last], "when": when}
        return [name.removeprefix("t.py::") for name in mutation.chosen_tests(mutant, ["t.py"], known, most)]

    assert chosen(4, 6) == ["quick", "slow"]
    assert chosen(4, 6, most=5.0) == ["quick"]
    assert chosen(7, 7) == ["other"]
    assert chosen(10, 12) == []
    assert chosen(9, 9) == ["quick", "other", "slow"]  # in a fixture, on which any test of the file may look
    assert chosen(14, 14) == ["quick", "other", "slow"]  # in a function that an import calls
    assert chosen(1, 1, when="import") == ["quick", "other", "slow"]


def test_a_mutated_file_is_restored_and_another_version_of_it_refused(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    compiled = tmp_path / "__pycache__" / "module.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"stale")
    mutation_worker.mutate(file, (8, "3", "4"), SOURCE)
    assert file.read_text() == SOURCE.replace("LIMIT = 3", "LIMIT = 4")
    assert not compiled.exists()
    mutation_worker.mutate(file, None, SOURCE)
    assert file.read_text() == SOURCE
    with pytest.raises(ValueError, match="run `make` again"):
        mutation_worker.mutate(file, (8, "5", "4"), SOURCE)


def test_the_score_leaves_out_equivalent_mutants_and_those_that_only_a_gpu_executes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["killed", "timeout", "equivalent", "gpu", "left", "mended", "not run"]
    listed = [
        {"id": name, "file": "src/openalbert/f.py", "line": 1, "operator": "number", "diff": ""} for name in names
    ]
    (tmp_path / "list.json").write_text(json.dumps({"possible": {"src/openalbert/f.py": 40}, "mutants": listed}))
    runs = [("mended", "survived"), *((name, "survived") for name in names[2:5]), ("mended", "killed")]
    runs += [("killed", "killed"), ("timeout", "timeout")]
    lines = [json.dumps({"id": name, "outcome": outcome, "by": None, "tests": 1}) for name, outcome in runs]
    (tmp_path / "outcomes.jsonl").write_text("\n".join(lines) + "\n")
    classes = {"equivalent": {"class": mutation.EQUIVALENT, "reason": "so"}, "gpu": {"class": mutation.GPU_ONLY}}
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    words = f"report --list {tmp_path}/list.json --outcomes {tmp_path}/outcomes.jsonl --out {tmp_path}"
    mutation.main(words.split())
    assert capsys.readouterr().out.splitlines()[-1] == "| all | 40 | 6 | 3 | 1 | 1 | 1 | 1 | 75.0 % |"
    rows = {row["id"]: row for row in json.loads((tmp_path / "mutants.json").read_text())}
    assert rows["mended"]["class"] == mutation.NEW_TEST
    assert rows["left"]["class"] == mutation.LEFT
    assert rows["equivalent"]["reason"] == "so"
    assert "not run" not in rows


def test_the_mutated_files_and_their_tests_are_there() -> None:
    found = mutation.sources()
    assert "src/openalbert/train/loop.py" in found
    assert "src/openalbert/optim/lamb_kernel.py" not in found
    for file, tests in found.items():
        assert all((mutation.ROOT / path).is_file() for path in (file, *tests))
        assert tests
