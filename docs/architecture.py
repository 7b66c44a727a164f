"""Draw docs/architecture.svg: the data path, and the packages with the imports between them.

    python docs/architecture.py

The imports are read from the source with `ast` and the layers from import-linter's contract in pyproject.toml. An arrow
that follows from others (A to B and B to C imply A to C) is left out. `tests/docs/test_architecture.py` compares the
picture with the source.
"""

import ast
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
SOURCE = ROOT / "src" / "openalbert"

Graph = dict[str, set[str]]

PURPOSES = {
    "cli": "verbs and settings",
    "api": "Python functions",
    "studies": "the paper's tables",
    "recipes": "named runs, demo",
    "serve": "predictions",
    "pretraining": "MLM and SOP runs",
    "finetuning": "task runs, scores",
    "report": "pages, model cards",
    "train": "loop, checkpoints",
    "interop": "model folders",
    "tasks": "GLUE, SQuAD, files",
    "text": "tokenizer, shards",
    "model": "encoder, heads",
    "optim": "LAMB, schedules",
    "objectives": "masking, pairing",
}
COLUMNS = {  # the column of a package within its layer; others take the middle
    "cli": 1, "api": 2, "serve": 0, "finetuning": 1, "pretraining": 3, "report": 1, "train": 3, "interop": 1,
    "tasks": 1, "text": 0, "model": 1, "optim": 2, "objectives": 3,
}  # fmt: skip
MIDDLE = 2
PRETRAINING_PATH = (
    ("text", "text files to token shards"),
    ("objectives", "shards to masked, paired batches"),
    ("model", "batches to logits"),
    ("optim", "gradients to a LAMB step"),
    ("interop", "weights to a model folder"),
)
FINETUNING_PATH = (
    ("tasks", "labelled files to examples"),
    ("finetuning", "examples to scores and weights"),
    ("interop", "weights to a model folder"),
    ("serve", "model folder to predictions"),
)

WIDTH, MARGIN = 1000, 40
STAGE_WIDTH, STAGE_HEIGHT = 168, 58
BOX_WIDTH, BOX_HEIGHT, ROW = 168, 44, 80
COLUMN = (WIDTH - 2 * MARGIN - BOX_WIDTH) / 3
LAYERS_TOP = 300


class Box(NamedTuple):
    """A package in the picture: its left edge and its top."""

    x: float
    y: float


def read_imports(source: Path = SOURCE) -> tuple[Graph, set[str]]:
    """The packages and top-level modules that each one imports, and those with a module that needs torch.

    A module needs torch if it imports it, directly or through other modules: `tasks` reads the model's configuration,
    and still runs without torch.
    """
    by_module: Graph = {
        ".".join(path.relative_to(source).with_suffix("").parts): {
            module.removeprefix("openalbert.") for module in imported_modules(ast.parse(path.read_text()))
        }
        for path in source.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph: Graph = {package_of(name): set() for name in by_module}
    with_torch: set[str] = set()
    for name, imported in by_module.items():
        package = package_of(name)
        graph[package] |= {package_of(module) for module in imported} & graph.keys() - {package}
        if any(package_of(module) == "torch" for module in reachable(by_module, name)):
            with_torch.add(package)
    return graph, with_torch


def package_of(module: str) -> str:
    """The package or top-level module that a module belongs to."""
    return module.partition(".")[0]


def imported_modules(node: ast.AST) -> Iterator[str]:
    """The full names of the modules that a syntax tree imports; imports for type checkers only do not count.

    The command line imports its verbs by name when they are called, so strings that name a module count as well.
    """
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("openalbert."):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from imported_modules(child)


def read_layers(packages: set[str]) -> list[list[str]]:
    """The layers of import-linter's contract from the top down, with the packages that exist."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = [one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    layers = [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]
    kept = [[name for name in layer if name in packages] for layer in layers]
    return [layer for layer in kept if layer]


def reachable(graph: Graph, start: str) -> set[str]:
    """Everything that a package imports, directly or through others."""
    seen: set[str] = set()
    left = list(graph.get(start, ()))
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left.extend(graph.get(name, ()))
    return seen


def reduce_graph(graph: Graph) -> Graph:
    """The same graph without the edges that follow from others."""
    return {
        name: {to for to in targets if not any(to in reachable(graph, other) for other in targets - {to})}
        for name, targets in graph.items()
    }


def draw() -> str:
    """The picture as SVG."""
    graph, with_torch = read_imports()
    packages = {name for name in graph if (SOURCE / name).is_dir() and (SOURCE / name / "__init__.py").exists()}
    packages |= {"cli", "api"}
    modules = sorted(graph.keys() - packages - {"__main__", "cli_help", "cli_pages", "run"})
    layers = read_layers(packages)
    edges = reduce_graph({name: graph[name] & packages for name in packages})
    boxes = {
        name: Box(MARGIN + column * COLUMN, LAYERS_TOP + 26 + row * ROW)
        for row, layer in enumerate(layers)
        for name, column in columns_of(layer).items()
    }
    bottom = LAYERS_TOP + 26 + len(layers) * ROW
    height = bottom + 84
    parts = [header(height)]
    parts += draw_path("Pretraining", 62, PRETRAINING_PATH)
    parts += draw_path("Fine-tuning", 182, FINETUNING_PATH)
    parts.append(text(MARGIN, LAYERS_TOP, "Packages: an arrow means “imports”", "head"))
    for name in sorted(packages):
        parts += draw_arrows(boxes, name, sorted(edges[name], key=lambda to: (boxes[to].x, boxes[to].y)), edges)
    for name, box in sorted(boxes.items()):
        parts += draw_box(box, name, BOX_WIDTH, BOX_HEIGHT, PURPOSES.get(name, ""), name not in with_torch)
    parts.append(f'<rect class="base" x="{MARGIN}" y="{bottom}" width="{WIDTH - 2 * MARGIN}" height="34" rx="6"/>')
    parts.append(text(WIDTH / 2, bottom + 22, "below all of them: " + ", ".join(modules), "note", "middle"))
    parts.append(f'<rect class="plain" x="{MARGIN}" y="{bottom + 52}" width="16" height="12" rx="3"/>')
    parts.append(text(MARGIN + 24, bottom + 63, "runs without PyTorch", "note"))
    parts.append(text(WIDTH - MARGIN, bottom + 63, "drawn from the imports by docs/architecture.py", "note", "end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def columns_of(layer: list[str]) -> dict[str, float]:
    """The column of each package of a layer; where two would have the same, all are spread over the width."""
    columns = {name: float(COLUMNS.get(name, MIDDLE)) for name in layer}
    if len(set(columns.values())) == len(layer):
        return columns
    ordered = sorted(layer, key=lambda name: (columns[name], name))
    return {name: 3 * number / (len(layer) - 1) for number, name in enumerate(ordered)}


def header(height: float) -> str:
    """The opening of the file, with colours for light and dark."""
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img"
     aria-label="The data path of openalbert, and its packages with the imports between them">
<style>
  text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2933; }}
  .head {{ font-size: 17px; font-weight: 600; }}
  .name {{ font-size: 15px; font-weight: 600; }}
  .note {{ font-size: 12px; fill: #52606d; }}
  .page {{ fill: #ffffff; }}
  .torch {{ fill: #e3ecf9; stroke: #3b6fb6; stroke-width: 1.2; }}
  .plain {{ fill: #e3f4ea; stroke: #2f855a; stroke-width: 1.2; }}
  .base {{ fill: #f0f2f5; stroke: #9aa5b1; }}
  .arrow {{ fill: none; stroke: #52606d; stroke-width: 1.4; marker-end: url(#tip); }}
  .tip {{ fill: #52606d; }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e4e7eb; }}
    .note {{ fill: #b0bac5; }}
    .page {{ fill: #1e2129; }}
    .torch {{ fill: #22344f; stroke: #7ba7e0; }}
    .plain {{ fill: #1f3d2e; stroke: #68c28f; }}
    .base {{ fill: #2a2e37; stroke: #6b7480; }}
    .arrow {{ stroke: #b0bac5; }}
    .tip {{ fill: #b0bac5; }}
  }}
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
  <path class="tip" d="M0 1 L10 5 L0 9 z"/></marker></defs>
<rect class="page" width="{WIDTH}" height="{height:g}" rx="10"/>"""


def draw_path(title: str, y: float, stages: tuple[tuple[str, str], ...]) -> list[str]:
    """One row of the data path: packages from left to right, each with what it makes of what."""
    graph, with_torch = read_imports()
    step = (WIDTH - 2 * MARGIN - STAGE_WIDTH) / (len(PRETRAINING_PATH) - 1)
    parts = [text(MARGIN, y - 18, f"Data path: {title.lower()}", "head")]
    for number, (name, purpose) in enumerate(stages):
        if name not in graph:
            raise ValueError(f"the data path names {name}, which is no package: change the table in {__file__}")
        box = Box(MARGIN + number * step, y)
        parts += draw_box(box, name, STAGE_WIDTH, STAGE_HEIGHT, purpose, name not in with_torch)
        if number:
            start, end, middle = box.x - step + STAGE_WIDTH, box.x - 1, y + STAGE_HEIGHT / 2
            parts.append(f'<path class="arrow" d="M{start:.1f} {middle:g} L{end:.1f} {middle:g}"/>')
    return parts


def draw_box(box: Box, name: str, width: float, height: float, purpose: str, is_plain: bool) -> list[str]:
    """A package: its name, and below it one or two lines of what it does."""
    kind = "plain" if is_plain else "torch"
    lines = wrap(purpose, 24)
    top = box.y + height / 2 - 15 * len(lines) / 2 + 5
    parts = [f'<rect class="{kind}" x="{box.x:.1f}" y="{box.y:g}" width="{width}" height="{height}" rx="6"/>']
    parts.append(text(box.x + width / 2, top, name, "name", "middle"))
    for number, line in enumerate(lines, start=1):
        parts.append(text(box.x + width / 2, top + 1 + 15 * number, line, "note", "middle"))
    return parts


def draw_arrows(boxes: dict[str, Box], name: str, targets: list[str], edges: Graph) -> list[str]:
    """Curves from the lower edge of a package to the upper edges of those that it imports."""
    parts = []
    for number, to in enumerate(targets, start=1):
        above = sorted((one for one in edges if to in edges[one]), key=lambda one: (boxes[one].x, -boxes[one].y))
        start_x = boxes[name].x + BOX_WIDTH * number / (len(targets) + 1)
        end_x = boxes[to].x + BOX_WIDTH * (above.index(name) + 1) / (len(above) + 1)
        start_y, end_y = boxes[name].y + BOX_HEIGHT, boxes[to].y - 1
        middle = (start_y + end_y) / 2
        curve = f"M{start_x:.1f} {start_y:g} C{start_x:.1f} {middle:g} {end_x:.1f} {middle:g} {end_x:.1f} {end_y:g}"
        parts.append(f'<path class="arrow" d="{curve}"/>')
    return parts


def wrap(sentence: str, width: int) -> list[str]:
    """The sentence in lines of at most so many characters."""
    lines = [""]
    for word in sentence.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return [line for line in lines if line]


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(f"wrote {PICTURE}")
