"""`openalbert export`: a model as ONNX, in fp32 or int8, compared with the original before anybody relies on it."""

import json as json_text
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert import atomic_io
from openalbert.errors import UserError, explain_full_disk
from openalbert.finetuning.predict import is_for_similarity, task_heads
from openalbert.formatting import counted
from openalbert.interop import huggingface
from openalbert.interop.onnx import ORIGINAL_CARD, Manifest, check_replaceable, size_of, write_export
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.interop.quantization import PARTS, Part
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.progress import log, plain_console
from openalbert.report.model_card import exported_card
from openalbert.run_files import model_name
from openalbert.serve.export_scores import (
    Comparison,
    Score,
    compare_on_task,
    compare_on_text,
    largest_differences,
    sample_sequences,
)
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.tasks.registry import TaskSource

MOST_LOST = 0.5  # points of the main metric that int8 may cost
TIMED_LENGTH = 128  # tokens
TIMED_RUNS = 9


@dataclass(frozen=True)
class Export:
    """Write a model as ONNX graphs for the CPU, and compare them with the original."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A model folder, a run, the name of a bundled checkpoint, or `owner/name` on Hugging Face's hub."""
    out: Path
    """The folder to write."""
    to: Literal["onnx"] = "onnx"
    """The format."""
    int8: bool = False
    """Store every weight matrix in 8 bits and compute with 8-bit integers: a quarter of the size, and the fastest."""
    keep_fp32: tuple[Part, ...] = ()
    """Parts of the model whose matrices stay in fp32 with --int8, where it would cost too much accuracy otherwise."""
    task: str = ""
    """The task to score on. Not given: the one that the model was fine-tuned for."""
    source: Annotated[TaskSource, OmitArgPrefixes] = field(default_factory=TaskSource)
    """Labelled examples to score the model on, before and after; for a pretrained model, --dev is a text file."""
    fresh: bool = False
    """Replace `out` if it exists."""
    json: bool = False
    """Print JSON for programs."""

    def __post_init__(self) -> None:
        if self.keep_fp32 and not self.int8:
            raise UserError("--keep-fp32 is for --int8: without it, everything is in fp32 anyway")


@dataclass(frozen=True)
class Report:
    """What an export was found to be."""

    out: str
    precision: str
    kept: tuple[str, ...]
    sizes: dict[str, int]
    """Bytes of the weights and the whole graph, by precision."""
    milliseconds: dict[str, float]
    """The median time of one input of `timed_tokens`, by precision."""
    timed_tokens: int
    differences: dict[str, tuple[float, float]]
    """The largest difference from the original and the largest value there: hidden states, logits of each head."""
    scores: list[Score]
    advice: str = ""
    """What to do where a score drops too much."""


def export(settings: Export) -> None:
    """Write the export, compare it, and print the report."""
    report = export_model(settings)
    if settings.json:
        print(json_text.dumps(asdict(report), indent=2))
    else:
        print_report(report)


def export_model(settings: Export) -> Report:
    """Write the export and compare it with the original.

    The folder appears, or an existing export is replaced, when everything is done.
    """
    if settings.out.exists() and not settings.fresh:
        raise UserError(f"{settings.out} exists already: give another name, or --fresh to replace it")
    check_replaceable(settings.out)
    folder = huggingface.find_folder(settings.model)
    model = huggingface.load(folder)
    compare = _comparison(settings, model, folder)
    with explain_full_disk(settings.out, "nothing is left of it"), atomic_io.new_folder(settings.out) as aside:
        manifest = write_export(model, aside, source=folder, int8=settings.int8, keep=settings.keep_fp32)
        report = _compare(settings, model, folder, aside, manifest, compare)
        _write_card(aside, model, folder, manifest, report)
    return report


def _compare(
    settings: Export, model: AlbertModel, folder: Path, out: Path, manifest: Manifest, compare: Comparison | None
) -> Report:
    """Measure the export in `out` next to the original."""
    exported = OnnxBackend(ExportedModel(out))
    models = {describe(manifest): exported}
    length = min(TIMED_LENGTH, model.config.max_positions)
    with tempfile.TemporaryDirectory() as temporary:
        if settings.int8:
            write_export(model, Path(temporary, "fp32"), source=folder, int8=False)
            models = {"fp32": OnnxBackend(ExportedModel(Path(temporary, "fp32"))), **models}
        sizes = {name: size_of(one.model.folder) for name, one in models.items()}
        milliseconds = time_models([one.model for one in models.values()], length)
    sample = sample_sequences(folder, model.config)
    scores = compare(exported) if compare is not None else []
    return Report(
        out=str(settings.out),
        precision=manifest.precision,
        kept=manifest.kept,
        sizes=sizes,
        milliseconds=dict(zip(models, milliseconds, strict=True)),
        timed_tokens=length,
        differences=largest_differences(model, exported, sample),
        scores=scores,
        advice="" if compare is None else _advice(settings, model, folder, compare, scores),
    )


def _write_card(out: Path, model: AlbertModel, folder: Path, manifest: Manifest, report: Report) -> None:
    """The export's README.md."""
    original = out / ORIGINAL_CARD
    card = exported_card(
        model.config,
        model_name(folder),
        num_parameters=manifest.num_parameters,
        precision=manifest.precision,
        kept=manifest.kept,
        original=original if original.is_file() else None,
        measured=_measured(report),
        is_fine_tuned=_is_fine_tuned(model, folder),
    )
    (out / "README.md").write_text(card, encoding="utf-8")


def _measured(report: Report) -> list[tuple[str, str]]:
    """What was measured, as rows of a table."""
    rows = [(f"size in {name}", f"{size / 1e6:.1f} MB") for name, size in report.sizes.items()]
    rows += [
        (f"largest difference of {name}", f"{gap:.2g} (largest value: {size:.2g})")
        for name, (gap, size) in report.differences.items()
    ]
    rows += [(score.name, _describe_score(score)) for score in report.scores]
    return rows if report.scores else [*rows, ("score", "not measured")]


def describe(manifest: Manifest) -> str:
    """The precision, with what is kept."""
    return manifest.precision + (f", {' and '.join(manifest.kept)} in fp32" if manifest.kept else "")


def _is_fine_tuned(model: AlbertModel, folder: Path) -> bool:
    return bool(task_heads(model)) or is_for_similarity(read_task_info(folder))


def _comparison(settings: Export, model: AlbertModel, folder: Path) -> Comparison | None:
    """How the export will be scored, with data that are read and checked now; None where none are given."""
    if not settings.source.is_given:
        if settings.task:
            raise UserError(
                f"--task {settings.task} is the task to score on: give labelled examples too, with --dev or --data"
            )
        return None
    if _is_fine_tuned(model, folder):
        return compare_on_task(model, folder, settings.task, settings.source)
    if settings.task:
        raise UserError(f"{settings.model} is not fine-tuned, so it has no --task: leave it out, and give a text file")
    if settings.source.dev is None or "masked_lm" not in model.heads:
        raise UserError(f"{settings.model} has no head for a task: give a text file with --dev, for MLM accuracy")
    return compare_on_text(model, folder, settings.source.dev)


def time_models(models: Sequence[ExportedModel], length: int) -> list[float]:
    """The median milliseconds for one input of so many tokens, the models in turn."""
    ids, ones = np.full((1, length), 5, np.int64), np.ones((1, length), np.int64)
    first = np.zeros((1, 1), np.int64)
    times: list[list[float]] = [[] for _ in models]
    for number in range(TIMED_RUNS + 2):
        for model, mine in zip(models, times, strict=True):
            start = time.perf_counter()
            model.pool(model.encode(ids, ones - 1, ones, rows=first)[:, 0])
            if number >= 2:  # the first runs load the graphs
                mine.append(1000 * (time.perf_counter() - start))
    return [statistics.median(mine) for mine in times]


def _advice(settings: Export, model: AlbertModel, folder: Path, compare: Comparison, scores: Sequence[Score]) -> str:
    """A warning where a score drops too much, with the part to keep in fp32: tried, on the same examples."""
    worst = max(scores, key=lambda score: score.drop)
    if worst.drop <= MOST_LOST:
        return ""
    lost = f"{worst.name} drops by {worst.drop:.1f} points, more than {MOST_LOST}"
    rest = [part for part in PARTS if part not in settings.keep_fp32]
    if not settings.int8 or not rest:
        return f"{lost}: use the model as it is"
    log(f"{lost}: trying which part of the model is best kept in fp32")
    drops: dict[Part, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for part in rest:
            out = Path(temporary, part)
            write_export(model, out, source=folder, int8=True, keep=(*settings.keep_fp32, part))
            drops[part] = max(score.drop for score in compare(OnnxBackend(ExportedModel(out))))
    best = min(drops, key=lambda part: drops[part])
    words = f"--keep-fp32 {' '.join((*settings.keep_fp32, best))}"
    if drops[best] >= worst.drop:
        return f"{lost}, and no part of it in fp32 alone makes that better: leave out --int8"
    enough = "" if drops[best] <= MOST_LOST else f", still more than {MOST_LOST}: leave out --int8 if that is too much"
    return f"{lost}; with {words} by {max(0.0, drops[best]):.1f}{enough}"


def print_report(report: Report) -> None:
    """Print sizes, times, differences and scores."""
    table = Table("", *report.sizes, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("size", *(f"{size / 1e6:.1f} MB" for size in report.sizes.values()))
    table.add_row(f"{report.timed_tokens} tokens take", *map(_describe_time, report.milliseconds.values()))
    print(f"{report.out}: model.onnx, and its pieces, in {next(reversed(report.sizes))}")
    plain_console().print(table)
    parts = ", ".join(f"{name} {gap:.2g} of {size:.2g}" for name, (gap, size) in report.differences.items())
    print(f"largest difference from the original: {parts}")
    for score in report.scores:
        print(f"{score.name}: {_describe_score(score)}")
    if not report.scores:
        print("not scored: give labelled examples with --dev or --data to see what the export costs in accuracy")
    if report.advice:
        print(f"WARNING: {report.advice}")


def _describe_score(score: Score) -> str:
    counts = [counted(score.num_examples, "masked token" if score.name.endswith("MLM accuracy") else "example")]
    counts += [] if score.layers is None else [f"{score.layers:.1f} layers on average"]
    return f"{score.before:.2f} before, {score.after:.2f} after ({', '.join(counts)})"


def _describe_time(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
