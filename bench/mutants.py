"""Mutants for bench/mutation.py: what mutmut's operators, and two of our own, can change in a file."""

import ast
import collections
import difflib
import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEED = 16
AT_LEAST = 15  # mutants of a file, where it has as many
CRUDE = ("arg_removal", "assignment")  # None in place of a value, which almost any execution finds
MOST_CRUDE = 0.4  # of a file's mutants, where it has enough others


def edits(text: str, tree: ast.Module) -> Iterator[tuple[str, int, tuple[int, str, str]]]:
    """Each mutant of a file: operator, line, and what to put where (offset, old text, new text)."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
    from mutmut.mutation.mutators import mutation_operators, operator_string

    operators = [(kind, change) for kind, change in mutation_operators if change is not operator_string]
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    places = wrapper.resolve(PositionProvider)
    wide_places = wrapper.resolve(WhitespaceInclusivePositionProvider)
    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    found: list[tuple[str, int, Any, Any]] = []

    class Visitor(cst.CSTVisitor):
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.Annotation | cst.Decorator | cst.Raise | cst.Import | cst.ImportFrom):
                return False
            if (
                isinstance(node, cst.Call)
                and isinstance(node.func, cst.Name)
                and node.func.value in ("len", "isinstance", "TypeVar")
            ):
                return False
            line = places[node].start.line if node in places else 0
            for kind, change in operators:
                if isinstance(node, kind):
                    name = change.__name__.removeprefix("operator_")
                    found.extend((name, line, node, new) for new in change(node))
            if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
                found.append(("call_removed", line, node, cst.Pass()))
            if isinstance(node, cst.If):
                inside = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                negated = cst.UnaryOperation(cst.Not(), inside)
                found.append(("condition_negated", places[node.test].start.line, node.test, negated))
            return True

    wrapper.module.visit(Visitor())
    for name, line, node, new in found:
        place = wide_places.get(node)
        if place is None:
            continue
        offset = starts[place.start.line - 1] + place.start.column
        old_code, new_code = (wrapper.module.code_for_node(one) for one in (node, new))
        if text[offset : offset + len(old_code)] != old_code:  # several lines, of which libcst knows no outer indent
            first = statement_at(tree, line)[0]
            indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
            old_code, new_code = (code.replace("\n", f"\n{indent}") for code in (old_code, new_code))
        if text[offset : offset + len(old_code)] == old_code != new_code:
            inside, old, replacement = edit_between(old_code, new_code)
            yield name, line, (offset + inside, old, replacement)


def edit_between(old: str, new: str) -> tuple[int, str, str]:
    """The one place where two texts differ."""
    start = next((place for place, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), min(len(old), len(new)))
    most = min(len(old), len(new)) - start
    end = next((count for count in range(most) if old[-1 - count] != new[-1 - count]), most)
    return start, old[start : len(old) - end], new[start : len(new) - end]


def statement_at(tree: ast.Module, line: int) -> tuple[int, int, bool]:
    """First and last line of the statement on a line, without the block under it, and whether it is in a function."""
    first, last, is_called = line, line, False
    body: list[ast.stmt] = tree.body
    while True:
        around = [one for one in body if one.lineno <= line <= (one.end_lineno or one.lineno)]
        if not around:
            return first, last, is_called
        [one] = around[-1:]
        blocks = [block for _, block in ast.iter_fields(one) if isinstance(block, list)]
        blocks += [handler.body for handler in getattr(one, "handlers", [])]
        inner = [part for block in blocks for part in block if isinstance(part, ast.stmt)]
        first, last = one.lineno, one.end_lineno or one.lineno
        if inner:
            last = max(first, min(part.lineno for part in inner) - 1)
        if inner and line > last and isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            is_called = True
        if not inner or line <= last:
            return first, last, is_called
        body = inner
        first = last = line  # a line between the blocks, such as `else:`


def mutants_of(file: str) -> list[dict[str, Any]]:
    """All mutants of a file that differ from each other."""
    text = (ROOT / file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    mutants, count = {}, collections.Counter[str]()
    for operator, line, edit in edits(text, tree):
        if edit in mutants:
            continue
        first, last, is_called = statement_at(tree, line)
        what = "\n".join([file, operator, *text.splitlines()[first - 1 : last], *edit[1:]])
        count[what] += 1
        mutants[edit] = {
            "id": hashlib.sha256(f"{what}\n{count[what]}".encode()).hexdigest()[:12],
            "file": file,
            "line": line,
            "operator": operator,
            "edit": edit,
            "statement": [first, last],
            "when": "call" if is_called else "import",
        }
    return list(mutants.values())


def with_diff(mutant: dict[str, Any]) -> dict[str, Any] | None:
    """A mutant with its difference to the file, unless it is no Python."""
    text = (ROOT / mutant["file"]).read_text(encoding="utf-8")
    offset, old, new = mutant["edit"]
    mutated = text[:offset] + new + text[offset + len(old) :]
    try:
        compile(mutated, mutant["file"], "exec")
    except SyntaxError:
        return None
    lines = difflib.unified_diff(text.splitlines(), mutated.splitlines(), lineterm="", n=0)
    return {**mutant, "diff": "\n".join(list(lines)[2:])}


def make(files: Iterable[str], into: Path, number: int) -> None:
    """List mutants of these files, in an order drawn at random."""
    draw = random.Random(SEED)
    by_file = {file: mutants_of(file) for file in files}
    total = sum(map(len, by_file.values()))
    chosen = []
    for mutants in by_file.values():
        few = min(len(mutants), max(AT_LEAST, round(len(mutants) * number / total)))
        crude = [one for one in mutants if one["operator"] in CRUDE]
        fine = [one for one in mutants if one["operator"] not in CRUDE]
        of_fine = min(len(fine), few - min(len(crude), round(few * MOST_CRUDE)))
        drawn = draw.sample(fine, of_fine) + draw.sample(crude, few - of_fine)
        chosen += filter(None, map(with_diff, drawn))
    draw.shuffle(chosen)
    counts = {file: len(mutants) for file, mutants in by_file.items()}
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps({"seed": SEED, "possible": counts, "mutants": chosen}, indent=0) + "\n")
    print(f"{len(chosen)} of {total} mutants of {len(by_file)} files: {into}")
