"""`openalbert report`: the page of pretraining or fine-tuning runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.report import charts
from openalbert.report.error_analysis import ErrorAnalysis, error_section
from openalbert.report.finetune_page import compared_with_the_paper, finetuning_page, tiles
from openalbert.report.html import document, element, now
from openalbert.report.pretrain_page import pretraining_page
from openalbert.report.run_reader import is_finetuning, read_runs
from openalbert.run_files import REPORT


@dataclass(frozen=True)
class Report:
    """Curves, settings, data, hardware and throughput of one run, or a comparison of several, as one HTML page."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Folders of runs, as `openalbert pretrain` and `openalbert finetune` write them."""
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
    kinds = [is_finetuning(folder) for folder in settings.runs]
    if any(kinds) and not all(kinds):
        one, other = settings.runs[kinds.index(True)], settings.runs[kinds.index(False)]
        raise UserError(f"{one} is a fine-tuning run and {other} is not: only runs of one kind can be compared")
    write_report(settings.runs, settings.target)
    print(settings.target)


def write_report(folders: Sequence[Path], target: Path) -> None:
    """Write the page of runs of one kind."""
    is_of_tasks = is_finetuning(folders[0])
    page = finetuning_page(folders, now()) if is_of_tasks else pretraining_page(read_runs(folders), now())
    atomic_io.make_folder(target.parent)
    atomic_io.write_text(target, page)


def evaluation_page(names: Sequence[str], shape: str, analyses: Sequence[ErrorAnalysis], pretraining: str = "") -> str:
    """The page of an evaluation: scores, compared with the paper, and the error analysis of each split."""
    first = analyses[0]
    models = names[0] if len(names) == 1 else f"{len(names)} models averaged: {', '.join(names)}"
    by_split = {one.split: one.scores for one in analyses}
    intervals = {one.split: one.intervals for one in analyses}
    headline = [element("p", f"{models}."), tiles(first.task, shape, by_split, first.main_metric, intervals)]
    model = "this model" if len(names) == 1 else "the ensemble"
    numbers = {one.split: one.num_examples for one in analyses}
    paper = compared_with_the_paper(first.task, model, by_split, numbers, shape, pretraining)
    sections = [paper, *map(error_section, analyses)]
    _, values = charts.draw([])
    return document(f"{first.task} · evaluation", headline, sections, values, now())
