"""The size of the code and how much of it a reader needs, before and after the packages were rearranged.

    python bench/house.py

Writes run.json and report.md into results/house/. "Before" is commit 39b738f, checked out into a temporary worktree;
"after" is this checkout, or the one that --tree names.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import itertools
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from house_report import report

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "39b738f"
PACKAGE = "openalbert"
SYLLABLES = "ka lo mi nu per sta vor bel dra gos hin tul wex".split()
MADE = (
    "tokenizer train text.txt --out vocabulary --vocab-size 300",
    "prepare text.txt --tokenizer vocabulary --out shards --workers 1",
)
ADDED = (  # beginnings of files whose capability came after BEFORE
    *("serve/", "studies/", "interop/onnx", "interop/quantization", "interop/exits", "interop/models", "model/lora"),
    *("model/pooling", "model/averaging", "optim/muon", "pretraining/distillation", "finetuning/exit_rules"),
    *("finetuning/folds", "finetuning/frozen", "finetuning/similarity", "finetuning/trainable", "tasks/tags"),
    *("finetuning/word_alignment", "tasks/custom/tagging", "tasks/custom/similarity", "tasks/data/conll"),
    *("tasks/baselines", "finetuning/evaluation/baselines", "cli_help", "cli_pages", "api.py", "run.py"),
)
TRACED_STEPS = (2, 5)  # from the end of the second optimizer step to that of the fifth
PRETRAINING = (
    "pretrain albert-micro --data shards --out run --steps 6 --batch-size 8 --objective.max-length 32 --log-every 1 "
    "--save-every 1000 --speed.threads 1"
).split()
FINETUNING = "finetune run --task classification --train texts.csv --out tuned --steps 4 --speed.threads 1".split()

# What can be counted without running anything.


def count(tree: Path) -> dict[str, Any]:
    """Files, lines and imports of a checkout."""
    source = tree / "src" / PACKAGE
    lines = {path.relative_to(source): _lines(path) for path in sorted(source.rglob("*.py"))}
    folders = Counter(path.parent for path in lines)
    packages: Counter[str] = Counter()
    for path, number in lines.items():
        packages[path.parts[0] if len(path.parts) > 1 else "(top level)"] += number
    folder, largest = max(folders, key=lambda one: folders[one]), max(lines, key=lambda one: lines[one])
    imports = read_imports(source)
    importers = Counter(name for names in imports.values() for name in names)
    tests = sum(_lines(path) for path in (tree / "tests").rglob("*.py"))
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "lines_of_code": sum(map(_lines_of_code, source.rglob("*.py"))),
        "lines_added": sum(number for path, number in lines.items() if path.as_posix().startswith(ADDED)),
        "lines_by_package": dict(packages.most_common()),
        "largest_folder": folder.as_posix(),
        "largest_folder_files": folders[folder],
        "largest_file": largest.as_posix(),
        "largest_file_lines": lines[largest],
        "single_importer": sum(importers[name] == 1 for name in imports),
        "two_way": two_way(imports),
        "test_ratio": round(tests / sum(lines.values()), 2),
    }


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _lines_of_code(path: Path) -> int:
    """Lines that are not blank, not a comment, and not a docstring."""
    text = path.read_text(encoding="utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in prose for number, line in lines)


def read_imports(source: Path) -> dict[str, set[str]]:
    """The modules of the package that each one imports; not packages' own `__init__`, nor imports for type checkers."""
    paths = {
        ".".join([PACKAGE, *path.relative_to(source).with_suffix("").parts]): path
        for path in source.rglob("*.py")
        if path.name != "__init__.py"
    }
    return {
        name: {found for found in _imported(ast.parse(path.read_text(encoding="utf-8"))) if found in paths} - {name}
        for name, path in paths.items()
    }


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value  # the command line imports its verbs by name
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def two_way(imports: dict[str, set[str]]) -> int:
    """How many pairs of packages import each other; a top-level module is none."""
    edges = {
        (name.split(".")[1], to.split(".")[1])
        for name, names in imports.items()
        for to in names
        if name.count(".") > 1 and to.count(".") > 1
    }
    return sum((b, a) in edges for a, b in edges if a < b)


# What is seen while it runs.


def trace(words: list[str], out: Path, *, is_step: bool) -> None:
    """Run a command line and write the files of the package that had a line of a function executed.

    All modules are imported before, so that what runs at import does not count. `is_step` is whether to look at three
    training steps only: each from the end of one optimizer step to that of the next.
    """
    source = Path(str(importlib.import_module(PACKAGE).__file__)).parent
    for name in read_imports(source):
        with contextlib.suppress(ImportError):
            if not name.endswith(".__main__"):
                importlib.import_module(name)
    found: set[str] = set()
    prefix, is_on = str(source) + os.sep, not is_step

    def see(frame: FrameType, event: str, _: object) -> None:
        file, is_function = frame.f_code.co_filename, frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if is_on and event in ("call", "line") and is_function and file.startswith(prefix):
            found.add(file.removeprefix(prefix))

    def after_step(*_: object) -> None:
        nonlocal is_on, taken
        taken += 1
        is_on = TRACED_STEPS[0] <= taken < TRACED_STEPS[1]
        # Functions that were called before, such as the loop itself, are seen by their lines.
        sys.settrace((lambda *_: None) if is_on else None)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = see if is_on else None
            frame = frame.f_back

    taken = 0
    if is_step:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(after_step)
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        importlib.import_module(f"{PACKAGE}.cli").main(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    out.write_text(json.dumps(sorted(found)))


def run_modules(tree: Path) -> dict[str, list[str]]:
    """The files that run in pretraining steps and in a fine-tuning run of this checkout, on a CPU and made-up text."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        dice = random.Random(0)
        words = ["".join(dice.choices(SYLLABLES, k=3)) for _ in range(400)]
        sentences = [" ".join(dice.choices(words, k=12)).capitalize() + "." for _ in range(3000)]
        (folder / "text.txt").write_text("\n\n".join("\n".join(sentences[n : n + 10]) for n in range(0, 3000, 10)))
        rows = [f"{sentence},{'yes' if 'ka' in sentence else 'no'}\n" for sentence in sentences[:80]]
        (folder / "texts.csv").write_text("text,label\n" + "".join(rows))
        for line in MADE:
            _python(tree, folder, "-m", PACKAGE, *line.split())
        here = str(Path(__file__).resolve())
        _python(tree, folder, here, "--trace-step", "step.json", *PRETRAINING)
        _python(tree, folder, here, "--trace-run", "run.json", *FINETUNING)
        return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("step", "run")}


def _python(tree: Path, folder: Path, *words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str((tree / "src").resolve()), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(words)} failed in {tree}:\n{done.stderr[-2000:]}")


def help_seconds(tree: Path) -> float:
    """The processor time of `openalbert --help`, the start of Python included: the fastest of five."""
    marks = [_time_of_children()]
    for _ in range(5):
        _python(tree, tree, "-m", PACKAGE, "--help")
        marks.append(_time_of_children())
    return round(min(end - start for start, end in itertools.pairwise(marks)), 2)


def _time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(tree: Path) -> dict[str, Any]:
    """All numbers of a checkout."""
    modules = run_modules(tree)
    return {
        "commit": _git(tree, "rev-parse", "--short", "HEAD"),
        "is_changed": bool(_git(tree, "status", "--porcelain", "src", "tests")),
        **count(tree),
        "step_modules": len(modules["step"]),
        "finetuning_modules": len(modules["run"]),
        "help_seconds": help_seconds(tree),
        "modules": modules,
    }


def _git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary worktree of a commit."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "tree"
        _git(ROOT, "worktree", "add", "--detach", str(folder), commit)
        try:
            yield folder
        finally:
            _git(ROOT, "worktree", "remove", "--force", str(folder))


def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    if words[:1] in (["--trace-step"], ["--trace-run"]):
        trace(words[2:], Path(words[1]), is_step=words[0] == "--trace-step")
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure as after")
    parser.add_argument("--before", default=BEFORE, help="the commit to compare with")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "house")
    asked = parser.parse_args(words)
    with checked_out(asked.before) as tree:
        before = measure(tree)
    found = {"python": platform.python_version(), "before": before, "after": measure(asked.tree)}
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "run.json").write_text(json.dumps(found, indent=2) + "\n")
    (asked.out / "report.md").write_text(report(found))
    print(report(found))


if __name__ == "__main__":
    main()
