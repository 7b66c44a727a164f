"""`openalbert report`: the page of pretraining runs or of fine-tuning runs, whichever the folders hold."""

from collections.abc import Sequence
from pathlib import Path

from openalbert import durable
from openalbert.errors import UserError
from openalbert.report.markup import element
from openalbert.report.page import document, now
from openalbert.report.report import Report
from openalbert.report.report import report as pretraining_report
from openalbert.tasks.findings import Findings
from openalbert.tasks.findings_page import findings_section
from openalbert.tasks.page import beside_the_paper, finetuning_page, tiles
from openalbert.tasks.tunings import is_finetuning

__all__ = ["Report", "evaluation_page", "report", "write_report"]


def report(settings: Report) -> None:
    """Write the page and print where it is."""
    tuned = [is_finetuning(folder) for folder in settings.runs]
    if not any(tuned):
        pretraining_report(settings)
        return
    if not all(tuned):
        one, other = settings.runs[tuned.index(True)], settings.runs[tuned.index(False)]
        raise UserError(f"{one} is a run of fine-tuning and {other} is not: only runs of one kind can be compared")
    write_report(settings.runs, settings.target)
    print(settings.target)


def write_report(folders: Sequence[Path], target: Path) -> None:
    """Write the page of fine-tuning runs."""
    durable.make_folder(target.parent)
    durable.write_text(target, finetuning_page(folders, now()))


def evaluation_page(names: Sequence[str], shape: str, findings: Sequence[Findings], pretraining: str = "") -> str:
    """The page of an evaluation: what came out, beside the paper, and a closer look."""
    first = findings[0]
    who = names[0] if len(names) == 1 else f"{len(names)} models averaged: {', '.join(names)}"
    by_split = {one.split: one.scores for one in findings}
    intervals = {one.split: one.intervals for one in findings}
    headline = [element("p", f"{who}."), tiles(first.task, shape, by_split, first.main_metric, intervals)]
    name = "this model" if len(names) == 1 else "the ensemble"
    numbers = {one.split: one.num_examples for one in findings}
    beside = beside_the_paper(first.task, name, by_split, numbers, shape, pretraining)
    sections = [beside, *map(findings_section, findings)]
    return document(f"{first.task} · evaluation", headline, sections, [], [], now())
