"""The user's files of a custom task: opened, read by the columns of the training file, and made a `Task`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openalbert.errors import UserError
from openalbert.tasks.custom.columns import Layout, sample
from openalbert.tasks.data.row_files import Table, read_table
from openalbert.tasks.data.source import SplitReader, TaskSource, build_task, open_splits
from openalbert.tasks.task import Example, Kind, Reading, Task, TaskMetadata


@dataclass(frozen=True)
class CustomFiles:
    """The files of one task; the name of a custom task is its kind."""

    kind: Kind
    source: TaskSource
    splits: Mapping[str, SplitReader]
    layout: Layout | None
    """The columns of all files: those of the fine-tuned model, else of the training file."""

    def labelled_table(self) -> Table | None:
        """The training file, else the one to score on."""
        return next((self.splits[split]() for split in ("train", "dev") if split in self.splits), None)

    def training_table(self) -> Table:
        """The training file, which defines the labels where there is no model that has them."""
        if "train" not in self.splits:
            raise UserError(f"{self.kind} has no labels yet: give the training file with --train")
        return self.splits["train"]()

    def has_labels(self, table: Table) -> bool:
        """Whether a table has the labels of the training file in columns of the same names."""
        columns = self.layout.columns if self.layout is not None else {}
        names = [name for role, name in columns.items() if role in ("label", "answer") or role.startswith("label ")]
        return bool(names) and set(names) <= set(table.columns) and any(sample(table, names[0]))

    def task(
        self,
        parse: Callable[[Table, bool], Reading],
        measure: Callable[[Sequence[Example], Sequence[object]], dict[str, float]],
        main_metric: str,
        *,
        labels: tuple[str, ...] = (),
        may_have_no_answer: bool = False,
        has_labels: Callable[[Table], bool] | None = None,
    ) -> Task:
        """The task of these files; see `build_task`."""
        return build_task(
            self.kind,
            self.kind,
            self.source,
            self.splits,
            parse,
            measure,
            main_metric,
            labels=labels,
            may_have_no_answer=may_have_no_answer,
            has_labels=has_labels or self.has_labels,
        )


def open_files(
    kind: Kind,
    source: TaskSource,
    metadata: TaskMetadata,
    roles_of: Callable[[Table], Mapping[str, str]],
    read: Callable[[Path], Table] = read_table,
) -> CustomFiles:
    """Open the user's files; `roles_of` finds the columns of the training file by role."""
    splits = open_splits(kind, source, read, {})
    if "train" in splits:
        splits["train"] = functools.cache(splits["train"])  # it also defines labels and columns
    if metadata.layout:
        return CustomFiles(kind, source, splits, Layout(metadata.layout))
    if "train" not in splits:
        return CustomFiles(kind, source, splits, None)
    table = splits["train"]()
    return CustomFiles(kind, source, splits, Layout(roles_of(table), table.name))
