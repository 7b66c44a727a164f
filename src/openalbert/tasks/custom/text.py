"""A text or a pair in a row, and what is said about it: what classification, regression and multi_label share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from openalbert.tasks.custom.columns import Columns, Layout
from openalbert.tasks.custom.guess import Labelling, choose
from openalbert.tasks.data.fields import predicted_all_the_same, seen_text
from openalbert.tasks.data.source import Opening, TaskSource, openings
from openalbert.tasks.data.tables import Exclusions, Row, Table, read_table
from openalbert.tasks.task import Reading, TextExample

Label: TypeAlias = int | float | tuple[int, ...]


@dataclass(frozen=True)
class Texts:
    """Where the texts of a table are."""

    first: str
    second: str | None
    label: str | None
    ids: list[str]
    remarks: tuple[str, ...]
    layout: Mapping[str, str]
    """All columns that have a role, by it, and those of texts that are not used."""


def own_openings(task: str, source: TaskSource, read: Callable[[Path], Table] = read_table) -> dict[str, Opening]:
    """The user's files, each split read when it is asked for, and train only once: it also names labels and columns."""
    opened = openings(task, source, read, {})
    if "train" in opened:
        kept: list[Table] = []
        opening = opened["train"]

        def once() -> Table:
            if not kept:
                kept.append(opening())
            return kept[0]

        opened["train"] = once
    return opened


def texts_of(
    table: Table,
    source: TaskSource,
    labelling: Labelling,
    labelled: bool,
    layout: Layout | None = None,
    label_columns: tuple[str, ...] = (),
) -> Texts:
    """Find the columns; `layout` are those that are learned from, `label_columns` those that cannot be text."""
    columns = Columns(table, layout)
    for column in label_columns:
        columns.take(f"label {column}", column)
    ids, remark = columns.ids(source.id_column)
    found = choose(columns, source, labelling, labelled, finds_label=not label_columns)
    remarks = (*table.remarks, *columns.remark(), *((remark,) if remark else ()))
    # Texts that are left out here are left out of every other file too.
    unused = {f"unused {column}": column for column in columns.unused_texts}
    return Texts(found.first, found.second, found.label, ids, remarks, {**columns.roles, **unused})


def read_texts(table: Table, texts: Texts, labelled: bool, label_of: Callable[[Row], Label | None]) -> Reading:
    """An example from each row that has text and label. Where labels are not needed, every row gives one."""
    examples: list[TextExample] = []
    excluded, empty = Exclusions(table.excluded), Exclusions()
    for number, (row, row_id) in enumerate(zip(table.rows, texts.ids, strict=True), 1):
        first = seen_text(row, texts.first)
        second = seen_text(row, texts.second) if texts.second else None
        if not first or second == "":
            (excluded if labelled else empty).add("without a text", row.place)
            if labelled:
                continue
        label = label_of(row) if labelled else None
        if labelled and label is None:
            excluded.add("without a label", row.place)
            continue
        examples.append(TextExample(row_id, first, second, label, row=number))
    remarks = (*texts.remarks, *predicted_all_the_same(empty))
    return Reading(tuple(examples), excluded.counted(), remarks, layout=texts.layout)
