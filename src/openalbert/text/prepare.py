"""The verbs `prepare` (make token shards from text) and `verify` (compare them with their checksums)."""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from openalbert import atomic_io
from openalbert.errors import UserError, explain_full_disk
from openalbert.progress import Work, plain_console
from openalbert.settings import check_at_least_one, to_dict
from openalbert.text import corpus, shards, source_groups, workers
from openalbert.text.corpus import CorpusReading, CorpusSource, Counts
from openalbert.text.shards import (
    MANIFEST,
    PICTURE,
    PLAN,
    Manifest,
    Piece,
    VocabularyInfo,
    check_sizes,
    problems,
    read_manifest,
)
from openalbert.text.source_groups import Group, Job
from openalbert.text.tokenizer import Tokenizer
from openalbert.version import __version__


@dataclass(frozen=True)
class Prepare:
    """Make token shards from text: tokens, with the starts of sentences and documents."""

    files: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH [PATH ...]")]
    """Text to prepare: files, folders, globs, or - for standard input."""
    tokenizer: Path
    """The tokenizer: a folder that holds spiece.model, that file, or the bundled albert-base-wikibooks."""
    out: Path
    """The folder to make. The same command resumes work that was stopped."""
    reading: CorpusReading = field(default_factory=CorpusReading)
    """How the text files are read."""
    heldout: float = 0.0
    """Fraction of the documents for the split `heldout`, chosen by a hash of their text."""
    drop_duplicates: bool = False
    """Drop documents with the same text as an earlier one, in the order of the files. Reads everything twice."""
    shard_tokens: int = 1 << 25
    """Start a new shard after this many tokens."""
    workers: int | None = None
    """Number of processes; by default one per processor. The result does not depend on it."""
    engine: Literal["local", "ray"] = "local"
    """Where to run: on this machine, or on a Ray cluster with shared storage. The result is the same."""
    ray_address: str | None = None
    """The Ray cluster; by default RAY_ADDRESS or the one that runs on this machine."""
    fresh: bool = False
    """Remove existing shards in the folder and start over."""


@dataclass(frozen=True)
class Verify:
    """Read a folder of shards completely and compare it with the checksums in its manifest."""

    folder: tyro.conf.Positional[Path]
    """A folder made by `openalbert prepare`."""


def verify(settings: Verify) -> None:
    """Report every file that is not as it was written."""
    manifest = read_manifest(settings.folder)
    size = sum(entry.size for entry in manifest.files)
    found = []
    with Work("verifying", total=float(size), unit="MB", scale=1e6) as work:
        for entry, problem in problems(settings.folder, manifest):
            work.advance(float(entry.size))
            if problem is not None:
                print(problem, file=sys.stderr)
                found.append(entry.name)
    if found:
        raise UserError(
            f"{settings.folder}: {len(found)} of {len(manifest.files)} files are not as they were written: "
            f"{', '.join(found)}"
        )
    print(f"{settings.folder}: {len(manifest.files)} files, {size:,} bytes: every bit is as it was written")


def prepare(settings: Prepare) -> None:
    """Make a folder of shards, or finish one."""
    _check(settings)
    named = corpus.sources(settings.files, settings.reading)
    sources = [_absolute(source) for source in named]
    tokenizer = Tokenizer.load(settings.tokenizer)
    plan = _plan(settings, sources, tokenizer)
    with explain_full_disk(settings.out, "it resumes with what is finished"):
        settings.out.mkdir(parents=True, exist_ok=True)
        with atomic_io.locked(settings.out, "prepare"):
            if not _begin(settings, plan, tokenizer):
                print(f"{settings.out}: already done; --fresh would make it again", file=sys.stderr)
                manifest = read_manifest(settings.out)
                check_sizes(settings.out, manifest)
                first_broken_line = ""  # the manifest keeps numbers only
            else:
                pieces = _make_pieces(settings, sources, tokenizer)
                if _inputs(sources) != plan["inputs"]:
                    raise UserError("the texts changed while they were read: start over with --fresh")
                names = [source.name for source in named]
                settled = {"version": __version__, **_deciding(settings)}
                read = _read(pieces)
                first_broken_line = read.first_broken_line
                counts = _counts(read, pieces)
                manifest = shards.finish(settings.out, _vocabulary(tokenizer), settled, names, counts, pieces)
    _report(manifest, first_broken_line)


def _check(settings: Prepare) -> None:
    if not 0 <= settings.heldout < 1:
        raise UserError(f"heldout is {settings.heldout} but must be a fraction from 0 up to, not including, 1")
    check_at_least_one(settings, "shard_tokens", "workers")
    atomic_io.check_writable(settings.out)
    if "-" in settings.files and settings.engine == "ray":
        raise UserError("standard input cannot be read with --engine ray: put the text into a file")
    if "-" in settings.files and settings.drop_duplicates:
        raise UserError("standard input cannot be read twice, as --drop-duplicates must: put the text into a file")


def _absolute(source: CorpusSource) -> CorpusSource:
    """With an absolute path, since another process may have another working directory."""
    path = Path(source.name)
    if source.name == "-" or source.format == "datasets":
        return source
    return dataclasses.replace(source, name=str(path.absolute()))


# --- the plan of the work --------------------------------------------------------------------------------------------


def _plan(settings: Prepare, sources: Sequence[CorpusSource], tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that determines the result. Inputs are identified by name, size and modification time."""
    known = {"version": __version__, "tokenizer": tokenizer.fingerprint, **_deciding(settings)}
    return {**known, "inputs": _inputs(sources)}


def _deciding(settings: Prepare) -> dict[str, Any]:
    return {
        "reading": to_dict(settings.reading),
        "heldout": settings.heldout,
        "drop_duplicates": settings.drop_duplicates,
        "shard_tokens": settings.shard_tokens,
        "block_characters": source_groups.BLOCK_CHARACTERS,
        "group_bytes": source_groups.GROUP_BYTES,
    }


def _inputs(sources: Sequence[CorpusSource]) -> list[list[str | int | None]]:
    found: list[list[str | int | None]] = []
    for source in sources:
        status = None if source.size_bytes is None else Path(source.name).stat()
        found.append([source.name, status and status.st_size, status and status.st_mtime_ns])
    return found


def _begin(settings: Prepare, plan: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """Prepare the folder; whether there is anything to do."""
    folder = settings.out
    path = folder / PLAN
    if path.is_file() and (settings.fresh or not _has_begun(folder)):
        # The manifest first: a partly removed folder must not look complete.
        for name in (MANIFEST, PICTURE, "shards", source_groups.DUPLICATES, "tokenizer"):
            _remove(folder / name)
        atomic_io.write_text(path, json.dumps(plan, indent=2) + "\n")
    elif not path.is_file():
        if strangers := sorted(file.name for file in folder.iterdir() if not file.name.endswith(atomic_io.PARTIAL)):
            raise UserError(
                f"{folder}: there is something else here ({', '.join(strangers[:3])}): give a new folder as --out"
            )
        atomic_io.write_text(path, json.dumps(plan, indent=2) + "\n")
    else:
        _compare(folder, path, plan)
        if "-" in settings.files:
            raise UserError(f"{folder}: work on standard input cannot be resumed: start over with --fresh")
    if not (folder / "tokenizer").is_dir():
        with atomic_io.new_folder(folder / "tokenizer") as aside:
            tokenizer.save(aside)
    return not (folder / MANIFEST).is_file()


def _has_begun(folder: Path) -> bool:
    """Whether there are results that a corrected command would lose."""
    made = (
        file for name in ("shards", source_groups.DUPLICATES) for file in (folder / name).rglob("*") if file.is_file()
    )
    return (folder / MANIFEST).is_file() or any(not file.name.endswith(atomic_io.PARTIAL) for file in made)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _compare(folder: Path, path: Path, asked: dict[str, Any]) -> None:
    """Refuse to resume with other settings or other texts."""
    try:
        there = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise UserError(f"{path}: damaged: start over with --fresh") from None
    for name in asked:
        was, now = there.get(name), asked[name]
        if was == now:
            continue
        if name == "inputs":
            old = {entry[0]: entry for entry in was or ()}
            changed = [entry[0] for entry in now if old.get(entry[0]) != entry] or ["the list of files"]
            what = f"made from other texts ({changed[0]} is new or has changed)"
        elif name == "tokenizer":
            what = "made with another tokenizer"
        else:
            what = f"made with {name} {was}, not {now}"
        raise UserError(f"{folder}: the shards here are {what}: give another --out, or start over with --fresh")


# --- the work --------------------------------------------------------------------------------------------------------


def _vocabulary(tokenizer: Tokenizer) -> VocabularyInfo:
    special_ids = {name: getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask")}
    return VocabularyInfo(tokenizer.fingerprint, tokenizer.vocab_size, special_ids)


def _make_pieces(settings: Prepare, sources: Sequence[CorpusSource], tokenizer: Tokenizer) -> dict[str, Piece]:
    """Make the missing pieces; return all of them in corpus order."""
    job = Job(
        settings.out.absolute(),
        settings.reading,
        settings.heldout,
        settings.drop_duplicates,
        settings.shard_tokens,
        _vocabulary(tokenizer).dtype,
        source_groups.BLOCK_CHARACTERS,
    )
    groups = source_groups.make_groups(sources)
    with _engine(settings) as engine:
        if settings.drop_duplicates and not all(
            source_groups.is_done(source_groups.pieces_of(job.folder, group)) for group in groups
        ):
            _find_duplicates(job, groups, engine)
        watch = workers.Watch(job, groups)
        sizes = [source.size_bytes for source in sources]
        total = None if None in sizes else float(sum(size or 0 for size in sizes) - watch.bytes_done)
        with Work("preparing", total=total, unit="MB", scale=1e6) as work:
            watch.show_on(work)
            engine.prepare(job, groups, watch)
    pieces = {name: piece for group in groups for name, piece in source_groups.pieces_of(job.folder, group).items()}
    if not any(piece.shards for piece in pieces.values()):
        raise UserError(f"there is no text in {', '.join(settings.files)}: nothing was made")
    _remove(job.folder / source_groups.DUPLICATES)
    return pieces


@contextlib.contextmanager
def _engine(settings: Prepare) -> Iterator[workers.Engine]:
    if settings.engine == "ray":
        with workers.ray_cluster(settings.ray_address) as engine:
            yield engine
    else:
        processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        yield workers.Local(settings.workers or processors)


def _find_duplicates(job: Job, groups: list[Group], engine: workers.Engine) -> None:
    (job.folder / source_groups.DUPLICATES).mkdir(exist_ok=True)
    if not all(source_groups.duplicates_file(job.folder, group.number).exists() for group in groups):
        total = float(sum(map(workers.size_of, groups)))
        with Work("looking for duplicates", total=total, unit="MB", scale=1e6) as work:
            engine.mark(job, groups, work)
            source_groups.find_duplicates(job.folder, groups)


def _read(pieces: dict[str, Piece]) -> Counts:
    # The last piece of a group has the counts of the whole group.
    every = (Counts(**piece.state["read"]) for piece in pieces.values() if piece.state["last"])
    return sum(every, Counts())


def _counts(read: Counts, pieces: dict[str, Piece]) -> dict[str, int]:
    """What was read and dropped, and what is in each split."""
    others: Counter[str] = Counter()
    for piece in pieces.values():
        others.update(piece.state["encoded"])
        for split, entry in piece.shards.items():
            for kind in ("documents", "sentences", "tokens"):
                others[f"{split}_{kind}"] += getattr(entry, kind)
    numbers = {name: value for name, value in dataclasses.asdict(read).items() if isinstance(value, int)}
    return {**numbers, **others}


def _report(manifest: Manifest, first_broken_line: str) -> None:
    """Print the splits, and everything that was dropped or changed."""
    counts = dict(manifest.counts)
    table = Table("split", "shards", "documents", "sentences", "tokens", title=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for split, entries in manifest.splits.items():
        numbers = [counts[f"{split}_{kind}"] for kind in ("documents", "sentences", "tokens")]
        table.add_row(split, str(len(entries)), *(f"{number:,}" for number in numbers))
    plain_console().print(table)
    numbers_read = {field.name: counts[field.name] for field in dataclasses.fields(Counts) if field.name in counts}
    read = Counts(first_broken_line=first_broken_line, **numbers_read)
    remarks = read.remarks()
    for name, what in _REMARKS.items():
        if counts.get(name):
            remarks.append(f"{counts[name]:,} {what}")
    print(f"{read.documents:,} documents of {read.characters:,} characters were read", end="")
    print(":" if remarks else "; nothing was dropped or changed")
    for remark in remarks:
        print(f"  {remark}")
    if manifest.settings["heldout"] and "heldout" not in manifest.splits:
        print("no document is held out: the fraction is too small for so few documents", file=sys.stderr)


_REMARKS = {
    "empty_sentences_dropped": "sentences dropped because nothing of them is in the vocabulary",
    "empty_documents_dropped": "documents dropped because nothing of them is in the vocabulary",
    "single_sentence_documents": "documents of one sentence kept: no sentence pair can be made of them",
    "unknown_tokens": "tokens unknown to the vocabulary",
}
