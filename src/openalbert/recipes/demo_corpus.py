"""Text that is on every machine with Python: its documentation topics and the docstrings of what is installed.

Source files are parsed, never imported or run. What is kept is prose: examples, tables, signatures and lists of
parameters are left out, lines are joined to paragraphs, and what was said before is not said again.
"""

import ast
import hashlib
import inspect
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.progress import Work
from openalbert.text.sentences import split_sentences

FEWEST_SENTENCES = 2  # of a document: a pair of segments needs two
FEWEST_WORDS = 6  # of a paragraph
LARGEST_SOURCE = 1_000_000  # bytes; beyond it are tables, generated code and the like
TOPICS = Path("pydoc_data/topics.py")

# Folders whose docstrings speak of tests or are copies of other packages.
_PASSED_OVER = frozenset(
    "test tests testing _internal _vendor vendored site-packages dist-packages __pycache__".split()
)
_SECTION = re.compile(
    r"(parameters?|params|other parameters|args|arguments|call args|kwargs|keyword (args|arguments)|inputs?|outputs?"
    r"|returns?|yields?|receives|raises|warns|shapes?|attributes?|methods|members|signature|callback|examples?|usages?"
    r"|see also|references|citation|todo)\b[^.]{0,40}:?:?",
    re.IGNORECASE,
)
_UNDERLINE = re.compile(r"([=\-~^*#+\"'`.])\1{2,}")
_DIRECTIVE = re.compile(r"\.\. ?([\w-]+)::\s*(.*)")
_SPOKEN_DIRECTIVES = frozenset("note warning tip important seealso attention caution hint admonition".split())
_FIELD = re.compile(
    r"[:@]\w+[^:]*:(?!`)|\w+ ?\([^)]*\) ?:|\w+ : |\.\. |\|.*\||\+[-=+]+\+|>>> ?|\.\.\. |\$ |#+ |```|</?\w+"
)
_ITEM = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
_ROLE = re.compile(r":[\w:+.-]+:`~?\.?([^`<]*?)(?:\s*<[^`]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`]*>`_{0,2}|\[([^\]]+)\]\([^)]*\)")
_QUOTES = re.compile(r"`+([^`]*)`+_{0,2}")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\S)([^*\n]+?)(?<=\S)\1(?![\w*])")
_FOOTNOTE = re.compile(r"\s*\[#?[\w*]*\]_")
_STRANGE = re.compile(r"https?:|www\.|\\|\{|\}|<|>|==|__|\||=|;$|[^\x00-\u024f\u2010-\u2030]|@|\$\$|\.\. ")


@dataclass(frozen=True)
class Collected:
    """What was found, and what became of it."""

    files: int
    """Source files that were read."""
    documents: int
    paragraphs: int
    characters: int
    repeated: int
    """Paragraphs left out because most of what they say was there before."""
    packages: tuple[tuple[str, int], ...]
    """The ten that gave most, with their characters."""


def source_files(roots: Iterable[Path]) -> list[tuple[str, Path]]:
    """The Python files below some folders, each with its package, in an order that depends on their names alone."""
    found = []
    for root in roots:
        for folder, below, names in os.walk(root):
            below[:] = sorted(name for name in below if name not in _PASSED_OVER)
            place = Path(folder).relative_to(root)
            for name in sorted(names):
                if name.endswith(".py"):
                    package = place.parts[0] if place.parts else name.removesuffix(".py")
                    found.append((package, Path(folder) / name))
    return found


def installed_roots() -> list[Path]:
    """Python's own library, then the installed packages."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def docstrings(path: Path) -> list[str]:
    """The docstrings of a source file in their order, or the texts of pydoc's topics; none of a broken file."""
    try:
        if path.stat().st_size > LARGEST_SOURCE and path.parts[-2:] != TOPICS.parts:
            return []
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source and path.parts[-2:] != TOPICS.parts:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escapes in strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return []
    if path.parts[-2:] == TOPICS.parts:
        return [value.value for value in _values(tree) if isinstance(value.value, str)]
    return [inspect.cleandoc(text) for text in _literals(tree) if "\n" in text]


def _values(tree: ast.Module) -> Iterator[ast.Constant]:
    """The values of the dictionaries that a module assigns."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            yield from (value for value in node.value.values if isinstance(value, ast.Constant))


def _literals(node: ast.AST) -> Iterator[str]:
    """Docstrings, and strings handed to a function that attaches them (numpy's add_newdoc, torch's add_docstr)."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        for child in node.body:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                if isinstance(child.value.value, str):
                    yield child.value.value
            elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
                yield from _attached(child.value)
            elif isinstance(child, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _literals(child)
    elif isinstance(node, ast.If | ast.Try):
        for child in node.body:
            yield from _literals(child)


def _attached(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if "doc" not in name:
        return
    for argument in call.args:
        for part in ast.walk(argument):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def prose(text: str) -> list[str]:
    """The paragraphs of a documentation text that are prose, each on one line.

    Blank lines separate blocks; what is indented belongs to the block before it.
    """
    paragraphs: list[str] = []
    skipping = -1  # everything indented deeper than this is left out
    section = False  # so is everything up to the next heading
    for block in _blocks(_with_notes(text.expandtabs().split("\n"))):
        indent = _indent(block[0])
        first = block[0].strip()
        if 0 <= skipping < indent:
            continue
        skipping = -1
        if len(block) > 1 and _UNDERLINE.fullmatch(block[1].strip()):
            section = bool(_SECTION.fullmatch(first))
            block = block[2:]
            if section or not block:
                continue
            first = block[0].strip()
        elif section and indent == 0 and not _SECTION.fullmatch(first):
            # numpy's sections reach to the next underlined heading
            continue
        if _DIRECTIVE.match(first):
            skipping = indent
            continue
        if _SECTION.fullmatch(first) and (first.endswith(":") or len(block) == 1):
            skipping = indent
            continue
        if block[-1].rstrip().endswith("::"):
            skipping = indent
        if indent >= 4:
            continue
        _take(block, paragraphs)
    return paragraphs


def _with_notes(lines: list[str]) -> Iterator[str]:
    """Take notes, warnings and the like for what they are: paragraphs as all others."""
    margin, shift = -1, 0  # of the directive, and how much deeper its text stands
    for line in lines:
        indent = _indent(line)
        if margin >= 0 and line.strip():
            if indent <= margin:
                margin = -1
            else:
                shift = shift or indent - margin
                line = line[min(shift, indent) :]
        directive = _DIRECTIVE.match(line.strip())
        if directive and directive[1] in _SPOKEN_DIRECTIVES:
            margin, shift = _indent(line), 0
            yield ""
            yield " " * margin + directive[2]
        else:
            yield line


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _take(block: list[str], paragraphs: list[str]) -> None:
    """One block: a paragraph, or a list whose items are paragraphs if they are long enough."""
    base = _indent(block[0])
    parts: list[list[str]] = [[]]
    for line in block:
        text = line.strip()
        if _SECTION.fullmatch(text) and text.endswith(":"):
            break  # Google's style: a heading within the block, its list indented below
        if _ITEM.match(text):
            parts.append([_ITEM.sub("", text, count=1)])
        elif _indent(line) > base + 3 and len(parts) == 1:
            return  # columns, a formula or a signature
        else:
            parts[-1].append(text)
    for part in parts:
        if part and not any(_FIELD.match(line) for line in part) and (paragraph := _paragraph(" ".join(part))):
            paragraphs.append(paragraph)


def _paragraph(text: str) -> str:
    """Markup taken away, and the sentences dropped that are no plain words; nothing if too little is left."""
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(lambda link: link[1] or link[2], text)
    text = _QUOTES.sub(r"\1", text)
    text = _EMPHASIS.sub(r"\2", text)
    text = _FOOTNOTE.sub("", text)
    text = " ".join(text.split())
    if text.endswith("::"):
        text = text[:-1]
    sentences = [sentence for sentence in split_sentences(text) if _is_plain(sentence)]
    kept = " ".join(sentences)
    return kept if len(kept.split()) >= FEWEST_WORDS else ""


def _is_plain(sentence: str) -> bool:
    if sentence[-1] not in ".!?:)\"'" or not (sentence[0].isalnum() or sentence[0] in "\"'("):
        return False
    if _STRANGE.search(sentence):
        return False
    letters = sum(char.isalpha() or char.isspace() for char in sentence)
    return letters >= 0.85 * len(sentence) and len(sentence.split()) >= 3


def texts_of(path: Path) -> list[list[str]]:
    """The documents of one source file, each a list of paragraphs."""
    documents = [prose(text) for text in docstrings(path)]
    return [paragraphs for paragraphs in documents if paragraphs]


class Novelty:
    """Finds sentences that were seen before; numbers do not count as a difference."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self.repeated = 0

    def new(self, paragraphs: list[str]) -> tuple[list[str], int]:
        """The paragraphs of a document that are mostly new, and how many sentences they have."""
        kept, count = [], 0
        for paragraph in paragraphs:
            sentences = split_sentences(paragraph)
            marks = [hashlib.blake2b(_plain_key(sentence), digest_size=8).digest() for sentence in sentences]
            old = sum(len(sentence) for sentence, mark in zip(sentences, marks, strict=True) if mark in self._seen)
            self._seen.update(marks)
            if 2 * old >= len(paragraph):
                self.repeated += 1
                continue
            kept.append(paragraph)
            count += len(sentences)
        return kept, count


def _plain_key(sentence: str) -> bytes:
    return "".join(char for char in sentence.lower() if char.isalpha()).encode()


def write_corpus(out: Path, max_characters: int, roots: Iterable[Path] | None = None, workers: int = 2) -> Collected:
    """Write the documents of everything installed to a file: a paragraph a line, an empty line between documents."""
    files = source_files(installed_roots() if roots is None else roots)
    novelty = Novelty()
    documents: list[str] = []
    by_package: Counter[str] = Counter()
    paragraphs = characters = read = 0
    with Work("collecting documentation", total=float(len(files)), unit="files") as work:
        for (package, _), found in zip(files, _all_texts([path for _, path in files], workers), strict=False):
            work.advance(1.0, f"{characters / 1e6:.1f} MB of prose")
            read += 1
            for document in found:
                kept, sentences = novelty.new(document)
                if sentences < FEWEST_SENTENCES:
                    continue
                documents.append("\n".join(kept) + "\n")
                by_package[package] += len(documents[-1])
                paragraphs += len(kept)
                characters += len(documents[-1])
            if characters >= max_characters:
                break
    if not documents:
        raise UserError("no documentation was found in this Python's library or its packages: is it a full Python?")
    atomic_io.write_text(out, "\n".join(documents))
    return Collected(read, len(documents), paragraphs, characters, novelty.repeated, tuple(by_package.most_common(10)))


def _all_texts(paths: list[Path], workers: int) -> Iterator[list[list[str]]]:
    if workers < 2:
        yield from map(texts_of, paths)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(texts_of, paths, chunksize=16)
    finally:
        pool.shutdown(cancel_futures=True)
