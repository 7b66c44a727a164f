"""Semantic search: the texts nearest to a query by the cosine of their embeddings, in Python and as the verb `search`.

Up to a few hundred thousand texts every one is compared with the query. Beyond that an HNSW index (usearch) proposes
candidates, and these are compared. The verb keeps the embeddings of a file next to it for the next time; a file or a
model that has changed is embedded again.
"""

import hashlib
import itertools
import json as json_text
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float32, Int64
from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert import atomic_io
from openalbert.errors import UserError, explain_full_disk
from openalbert.formatting import counted
from openalbert.model.pooling import Pooling
from openalbert.progress import log
from openalbert.serve.embed import LINES, HowToEmbed, NpyRows, RowEmbedder, read_text
from openalbert.serve.files.rows import Rows, open_rows
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.serve.predictor import Predictor
from openalbert.serve.row_verbs import open_model, progress
from openalbert.settings import check_at_least_one, to_dict
from openalbert.tasks.data.row_files import Row
from openalbert.train.device import Speed

LARGE = 200_000  # texts from which on an index is worth its time
BLOCK = 65_536  # embeddings that are compared or indexed at a time
CANDIDATES = 10  # that the index proposes for each result
TOP = 5
INFO, EMBEDDINGS, INDEX = "info.json", "embeddings.npy", "index.usearch"
SUFFIX = ".search"  # of the folder that is kept
SHOWN = 300  # characters of a text that are printed


@dataclass(frozen=True)
class Hit:
    """A text that was found."""

    row: int
    """Its number among the texts, from 0."""
    score: float
    """The cosine with the query."""
    text: str


class SearchIndex:
    """Texts, embedded once, that are searched by meaning.

    >>> import openalbert
    >>> model = openalbert.load("albert-base-wikibooks")
    >>> index = openalbert.SearchIndex(model, ["A cat sat on the mat.", "It rained all day.", "Prices rose."])
    >>> index.search("rain", top=1)[0].text
    'It rained all day.'
    """

    def __init__(
        self, model: Predictor, texts: Iterable[str], pooling: Pooling | None = None, layer: int | None = None
    ) -> None:
        self.model, self.texts, self.pooling, self.layer = model, list(texts), pooling, layer
        if not self.texts:
            raise UserError("there are no texts to search: give at least one")
        self.embeddings: Float32[np.ndarray, "texts hidden"] = model.embed(self.texts, pooling, layer)

    def search(self, query: str | Sequence[str], top: int = TOP) -> Any:
        """The texts nearest to a query, the nearest first; a list of them for several queries."""
        queries = [query] if isinstance(query, str) else list(query)
        rows, scores = nearest(self.model.embed(queries, self.pooling, self.layer), self.embeddings, top)
        found = [
            [Hit(row, score, self.texts[row]) for row, score in zip(of_rows, of_scores, strict=True)]
            for of_rows, of_scores in zip(rows, scores, strict=True)
        ]
        return found[0] if isinstance(query, str) else found


def nearest(
    queries: Float32[np.ndarray, "queries hidden"], embeddings: Float32[np.ndarray, "texts hidden"], top: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The rows with the highest dot products with each query, and these; equal ones in the order of rows.

    Rows of zeros, which stand for empty texts, are never found. `embeddings` may be a memory-mapped file.
    """
    if top < 1:
        raise UserError(f"top is {top}: it must be at least 1")
    rows: list[np.ndarray] = [np.empty(0, np.int64)] * len(queries)
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(queries)
    for start in range(0, len(embeddings), BLOCK):
        block = np.asarray(embeddings[start : start + BLOCK])
        there = np.flatnonzero(block.any(1))
        for number, found in enumerate(queries @ block[there].T):
            best = _best(found, top)
            both = np.concatenate((scores[number], found[best]))
            kept = _best(both, top)
            rows[number] = np.concatenate((rows[number], start + there[best]))[kept]
            scores[number] = both[kept]
    return [one.tolist() for one in rows], [one.tolist() for one in scores]


def _best(scores: Float32[np.ndarray, "n"], top: int) -> Int64[np.ndarray, "_"]:
    """The places of the highest scores, in descending order; of equal ones the first."""
    places = np.arange(len(scores))
    if len(scores) > top:
        places = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
    return places[np.argsort(-scores[places], kind="stable")][:top]


def usearch_index() -> Any:
    """usearch's class of indexes; None where it is not installed."""
    try:
        from usearch.index import Index
    except ImportError:
        return None
    return Index


def make_index(embeddings: Float32[np.ndarray, "texts hidden"], path: Path) -> bool:
    """Write an HNSW index of the embeddings; False where usearch is not installed."""
    make = usearch_index()
    if make is None:
        return False
    index = make(ndim=embeddings.shape[1], metric="ip", dtype="f16")
    for start in range(0, len(embeddings), BLOCK):
        block = np.asarray(embeddings[start : start + BLOCK])
        there = np.flatnonzero(block.any(1))
        index.add(start + there, block[there])
    index.save(str(path))
    return True


def nearest_by_index(
    queries: Float32[np.ndarray, "queries hidden"],
    embeddings: Float32[np.ndarray, "texts hidden"],
    path: Path,
    top: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """As `nearest`, among the candidates that an index proposes."""
    index = usearch_index().restore(str(path), view=True)
    rows, scores = [], []
    for query in queries:
        candidates = np.sort(index.search(query, CANDIDATES * top).keys.astype(np.int64))
        [found], [of_query] = nearest(query[None], embeddings[candidates], top)
        rows.append([int(candidates[one]) for one in found])
        scores.append(of_query)
    return rows, scores


# The verb.


@dataclass(frozen=True)
class Search:
    """Search a file by meaning."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A model folder, a run, the name of a bundled checkpoint, or `owner/name` on Hugging Face's hub. One that was
    fine-tuned for similarity finds most."""
    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """What is searched: the rows of a CSV, TSV, JSONL or Parquet file, or the lines of a .txt file."""
    queries: Annotated[Positional[tuple[str, ...]], arg(metavar="[QUERY ...]")] = ()
    """What is searched for; by default the lines of standard input."""
    top: int = TOP
    """Rows to show for each query."""
    json: bool = False
    """Print one JSON object per query."""
    cache: Path | None = None
    """A folder to keep the embeddings in. Not given: that of the file."""
    exact: bool = False
    """Compare every row with the query, however many there are, and use no index."""
    how: Annotated[HowToEmbed, OmitArgPrefixes] = field(default_factory=HowToEmbed)
    """How texts are embedded."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "top")


@dataclass(frozen=True)
class Kept:
    """The embeddings of a file, as they are kept."""

    folder: Path
    column: str
    embeddings: Float32[np.ndarray, "rows hidden"]

    @property
    def index(self) -> Path | None:
        """The index, where there is one."""
        path = self.folder / INDEX
        return path if path.is_file() else None


def search(settings: Search) -> None:
    """Embed the file, or read its embeddings, and print the rows nearest to each query."""
    with open_model(settings.model, settings.speed) as model:
        embedder = RowEmbedder(model, settings.how)
        kept = _embeddings(settings, model, embedder)
        asked = [settings.queries] if settings.queries else ([line] for line in _lines())
        for queries in asked:
            found = embedder.embed_texts(queries)
            if found.empty:
                raise UserError("a query without visible characters finds nothing: give words")
            if kept.index is not None and not settings.exact and usearch_index() is not None:
                rows, scores = nearest_by_index(found.embeddings, kept.embeddings, kept.index, settings.top)
            else:
                rows, scores = nearest(found.embeddings, kept.embeddings, settings.top)
            texts = _rows_at(settings.file, {row for of_query in rows for row in of_query})
            for query, of_rows, of_scores in zip(queries, rows, scores, strict=True):
                hits = [(texts[row], row, score) for row, score in zip(of_rows, of_scores, strict=True)]
                print(_as_json(query, hits) if settings.json else _readable(query, hits, kept.column), flush=True)


def _readable(query: str, hits: Sequence[tuple[Row, int, float]], column: str) -> str:
    lines = [query]
    for row, _, score in hits:
        text = " ".join((read_text(row, column) or "").split())
        text = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
        lines.append(f"  {score:.3f}  {row.place}: {text}".replace("-0.", "−0."))
    return "\n".join(lines)


def _as_json(query: str, hits: Sequence[tuple[Row, int, float]]) -> str:
    found = [
        {"row": number, "score": float(f"{score:.6g}"), "place": row.place, "values": dict(row.values)}
        for row, number, score in hits
    ]
    return json_text.dumps({"query": query, "hits": found}, ensure_ascii=False, default=str)


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        print("a query on each line, Ctrl-D to end:", file=sys.stderr)
    for line in sys.stdin:
        if line.strip():
            yield line.strip()


def _rows_at(file: Path, wanted: set[int]) -> dict[int, Row]:
    """Some rows of a file by their numbers; it is read up to the last of them."""
    found: dict[int, Row] = {}
    for number, record in enumerate(_records(open_rows(file, LINES))):
        if number in wanted and record.row is not None:
            found[number] = record.row
            if len(found) == len(wanted):
                break
    return found


def _records(rows: Rows) -> Iterator[Any]:
    return (record for chunk in rows.chunks for record in chunk.records if not record.is_blank)


# What is kept.


def _embeddings(settings: Search, model: Predictor, embedder: RowEmbedder) -> Kept:
    """The embeddings of the file: those that are kept where they are whole and of this file and model."""
    folder = (settings.cache or settings.file.parent) / f"{settings.file.name}{SUFFIX}"
    rows = open_rows(settings.file, LINES)
    first = next(rows.chunks)
    embedder.find_column(rows, first)
    wanted = {
        "file": _file_fingerprint(settings.file),
        "model": _model_fingerprint(model),
        "method": to_dict(embedder.method),
        "max_length": settings.how.max_length or model.max_length,
        "column": embedder.column,
    }
    kept = _read(folder, wanted)
    if isinstance(kept, np.ndarray):
        return Kept(folder, embedder.column, kept)
    if kept:
        log(f"{folder}: {kept}: the file is embedded again")
    elif folder.exists() and not (folder / INFO).exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder} holds other things than embeddings, which would be deleted: give --cache another folder"
        )
    atomic_io.make_folder(folder.parent)
    atomic_io.check_writable(folder.parent)
    with explain_full_disk(folder, "or give --cache another folder"), atomic_io.new_folder(folder) as aside:
        with (aside / EMBEDDINGS).open("wb") as file, progress("embed", rows) as advance:
            writer = NpyRows(file, rows, embedder.column, model.config.hidden_size)
            for chunk in itertools.chain([first], rows.chunks):
                writer.write(chunk, embedder.embed(chunk))
                advance(float(chunk.num_lines))
            writer.close()
        embedder.report(rows)
        embeddings = np.load(aside / EMBEDDINGS, mmap_mode="r")
        if len(embeddings) >= LARGE and not make_index(embeddings, aside / INDEX):
            log(
                f"{counted(len(embeddings), 'row')} are compared one by one, which an index would make faster: "
                "pip install 'openalbert[search]'"
            )
        info = {**wanted, "rows": len(embeddings), "checksum": _checksum(embeddings), "index": _index_checksum(aside)}
        (aside / INFO).write_text(json_text.dumps(info, indent=2) + "\n", encoding="utf-8")
    log(f"embeddings of {counted(len(embeddings), 'row')} are kept in {folder}")
    return Kept(folder, embedder.column, np.load(folder / EMBEDDINGS, mmap_mode="r"))


def _read(folder: Path, wanted: dict[str, Any]) -> np.ndarray | str:
    """The embeddings that are kept, or why they cannot be used; "" where there are none."""
    if not (folder / INFO).is_file():
        return ""
    try:
        info = json_text.loads((folder / INFO).read_text(encoding="utf-8"))
        differing = [name for name, value in wanted.items() if info[name] != value]
        if differing:
            return f"the {' and the '.join(differing).replace('_', ' ')} changed"
        embeddings: np.ndarray = np.load(folder / EMBEDDINGS, mmap_mode="r", allow_pickle=False)
        sums = (len(embeddings), _checksum(embeddings), _index_checksum(folder))
        if sums != (info["rows"], info["checksum"], info["index"]):
            return "it is damaged"
    except (OSError, ValueError, KeyError, TypeError):
        return "it is damaged"
    return embeddings


def _checksum(embeddings: Float32[np.ndarray, "rows hidden"]) -> int:
    found = 0
    for start in range(0, len(embeddings), BLOCK):
        found = zlib.crc32(np.ascontiguousarray(embeddings[start : start + BLOCK]).data, found)
    return found


def _index_checksum(folder: Path) -> str | None:
    path = folder / INDEX
    return _file_fingerprint(path) if path.is_file() else None


def _file_fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _model_fingerprint(model: Predictor) -> str:
    sums = hashlib.sha256(f"{model.config}{model.tokenizer.fingerprint}".encode())
    if isinstance(model.backend, OnnxBackend):
        sums.update(repr(sorted(model.backend.model.manifest.files.items())).encode())
        return sums.hexdigest()
    for name, parameter in model.module.encoder.named_parameters():
        sums.update(name.encode())
        sums.update(parameter.detach().cpu().numpy().data)
    return sums.hexdigest()
