"""`openalbert report`: the page of pretraining runs or of fine-tuning runs, whichever the folders hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.interop.run_files import METRICS, REPORT
from openalbert.progress import Work
from openalbert.report.error_analysis import ErrorAnalysis
from openalbert.report.error_page import error_section
from openalbert.report.finetune_page import beside_the_paper, finetuning_page, tiles
from openalbert.report.finetuning_reader import is_finetuning
from openalbert.report.html import element
from openalbert.report.pretrain_page import document, now, page
from openalbert.report.run_reader import read_runs


@dataclass(frozen=True)
class Report:
    """Curves, settings, data, hardware and throughput of one run, or a comparison of several, as one HTML page."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Folders of runs, as `openalbert pretrain` writes them."""
    out: Path | None = None
    """The page. Not given: report.html in the run's folder, or here where there are several runs."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("no run is named: give the folder of a run, or of several to compare")
        if self.out is not None and self.out.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"--out is {self.out}, but the page is HTML: give a name that ends in .html")

    @property
    def target(self) -> Path:
        """Where the page is written."""
        if self.out is not None:
            return self.out
        return self.runs[0] / REPORT if len(self.runs) == 1 else Path(REPORT)


def report(settings: Report) -> None:
    """Write the page and print where it is."""
    tuned = [is_finetuning(folder) for folder in settings.runs]
    if not any(tuned):
        _write_pretraining_report(settings.runs, settings.target)
        print(settings.target)
        return
    if not all(tuned):
        one, other = settings.runs[tuned.index(True)], settings.runs[tuned.index(False)]
        raise UserError(f"{one} is a run of fine-tuning and {other} is not: only runs of one kind can be compared")
    write_report(settings.runs, settings.target)
    print(settings.target)


def _write_pretraining_report(folders: Sequence[Path], target: Path) -> None:
    total = sum(float(path.stat().st_size) for folder in folders if (path := folder / METRICS).is_file())
    with Work("reading metrics", total=total or None, unit="MB", scale=1e6) as work:
        runs = read_runs(folders, work.advance)
    atomic_io.make_folder(target.parent)
    atomic_io.write_text(target, page(runs, now()))


def write_report(folders: Sequence[Path], target: Path) -> None:
    """Write the page of fine-tuning runs."""
    atomic_io.make_folder(target.parent)
    atomic_io.write_text(target, finetuning_page(folders, now()))


def evaluation_page(names: Sequence[str], shape: str, analyses: Sequence[ErrorAnalysis], pretraining: str = "") -> str:
    """The page of an evaluation: what came out, beside the paper, and a closer look."""
    first = analyses[0]
    who = names[0] if len(names) == 1 else f"{len(names)} models averaged: {', '.join(names)}"
    by_split = {one.split: one.scores for one in analyses}
    intervals = {one.split: one.intervals for one in analyses}
    headline = [element("p", f"{who}."), tiles(first.task, shape, by_split, first.main_metric, intervals)]
    name = "this model" if len(names) == 1 else "the ensemble"
    numbers = {one.split: one.num_examples for one in analyses}
    beside = beside_the_paper(first.task, name, by_split, numbers, shape, pretraining)
    sections = [beside, *map(error_section, analyses)]
    return document(f"{first.task} · evaluation", headline, sections, [], [], now())
