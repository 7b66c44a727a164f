"""What GLUE's nine tasks have in common: TSV files in a folder, one text or two a row, a label, a submission file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openalbert.errors import UserError
from openalbert.tasks.data.fields import check_none_lost, class_number, ids, predicted_all_the_same, seen_text, value
from openalbert.tasks.data.labels import ClassNumbers
from openalbert.tasks.data.source import TaskSource, assemble, openings
from openalbert.tasks.data.tables import Exclusions, Quoting, Table, read_table
from openalbert.tasks.metrics import Measure
from openalbert.tasks.task import Kind, Reading, Task, TextExample

_SWALLOWED = re.compile(r"\n\d+\t")  # within a text: the index with which the next row begins
# Whole sets have the plain names; subsets that were published elsewhere say that they are.
PLAIN_NAMES = {
    "train": ("train.tsv", "train_subset*.tsv"),
    "dev": ("dev.tsv",),
    "heldout": ("heldout_subset*.tsv",),
    "test": ("test.tsv",),
}


@dataclass(frozen=True)
class Glue:
    """One task of GLUE, as its files and its leaderboard have it."""

    name: str
    about: str
    """What it asks."""
    folder: str
    """The folder's name in GLUE's own download."""
    first: tuple[str, ...]
    """The column of the text, or of the first of two, and its other names."""
    measure: Measure
    main_metric: str
    submission: Mapping[str, str]
    """The file's name on the leaderboard, for each test split."""
    second: tuple[str, ...] = ()
    """The same for the second text; none where there is one text only."""
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the classes; none where a value is asked for."""
    codes: tuple[str, ...] = ()
    """What stands for each class in the files and on the leaderboard, where it is not its name."""
    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PLAIN_NAMES)
    hub_splits: Mapping[str, str] | None = None
    """A dataset's names for the splits, where they are not train, validation and test."""
    without_header: tuple[str, ...] = ()
    """The columns of files that do not name them."""
    quoting: Quoting = "literal"

    @property
    def kind(self) -> Kind:
        """Classes or a value."""
        return "classification" if self.labels else "regression"

    def open(self, source: TaskSource, labels: tuple[str, ...] | None = None) -> Task:
        """The task with its examples from a source; `labels` may give the classes another order."""
        names = self._names(labels)

        def read(path: Path) -> Table:
            return read_table(path, quoting=self.quoting, without_header=self.without_header, ragged_rows="leave_out")

        def parse(table: Table, labelled: bool) -> Reading:
            return self._parse(table, labelled, names)

        opened = openings(self.name, source, read, self.patterns, (self.folder, self.name), self.hub_splits)
        return assemble(self.name, self.kind, source, opened, parse, self.measure, self.main_metric, labels=names)

    def _names(self, given: tuple[str, ...] | None) -> tuple[str, ...]:
        """The classes in the order of a model that has them."""
        if not given:
            return self.labels
        if self.labels and sorted(given) != sorted(self.labels):
            raise UserError(f"{self.name} has the classes {', '.join(self.labels)}, and not {', '.join(given)}")
        return given

    def _parse(self, table: Table, labelled: bool, names: tuple[str, ...]) -> Reading:
        """Rows that do not fit the header are left out and counted where there are labels; in a test set, refused."""
        if not labelled:
            check_none_lost(table.name, table.excluded)
        first = table.column(self.first, "text")
        second = table.column(self.second, "second text") if self.second else None
        label = table.column(self.label, "label") if labelled else ""
        pairs = zip(self.codes, self.labels, strict=bool(self.codes))
        numbers = ClassNumbers(names if self.labels else (), {code: names.index(name) for code, name in pairs})
        examples: list[TextExample] = []
        excluded, empty = Exclusions(table.excluded), Exclusions()
        for number, (row, row_id) in enumerate(zip(table.rows, ids(table, ("index", "idx")), strict=True), 1):
            texts = seen_text(row, first), seen_text(row, second) if second else None
            if not labelled and any(_SWALLOWED.search(text or "") for text in texts):
                raise UserError(
                    f"{row.place}: a text goes on over the beginning of another row: its quotes are not closed, and "
                    "the rows behind it would get no prediction: repair the row"
                )
            if "" in texts:
                (excluded if labelled else empty).add("without a text", row.place)
                if labelled:
                    continue
            answer: int | float | None = None
            if labelled:
                answer = class_number(row, label, numbers) if self.labels else value(row, label)
                if answer is None:
                    excluded.add("without a label", row.place)
                    continue
            # Where rows were left out before, those behind them have another number in the file.
            examples.append(TextExample(row_id, *texts, answer, row=None if table.excluded else number))
        remarks = (*table.remarks, *predicted_all_the_same(empty))
        return Reading(tuple(examples), excluded.counted(), remarks)
