"""GLUE's nine tasks (Wang et al., 2018): one table of their files, columns, labels and metrics, and one reader."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.tasks.data.labels import ClassNumbers, class_number, parse_value, read_texts
from openalbert.tasks.data.row_files import Quoting, Row, Table, check_no_rows_excluded, read_table, row_ids
from openalbert.tasks.data.source import TaskSource, build_task, open_splits
from openalbert.tasks.metrics import accuracy, f1, matthews, measure_classes, measure_values, pearson, spearman
from openalbert.tasks.task import Kind, Reading, Task

_SWALLOWED = re.compile(r"\n\d+\t")  # within a text: the index with which the next row begins
# The whole sets have the plain names. Subsets that were published elsewhere are named as such.
FILES = {
    "train": ("train.tsv", "train_subset*.tsv"),
    "dev": ("dev.tsv",),
    "heldout": ("heldout_subset*.tsv",),
    "test": ("test.tsv",),
}
MNLI_FILES = {
    "train": FILES["train"],
    "dev_matched": ("dev_matched.tsv",),  # the genres of the training set
    "dev_mismatched": ("dev_mismatched.tsv",),  # other genres
    "heldout": FILES["heldout"],
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
    "test_diagnostic": ("diagnostic.tsv",),
}
MNLI_SUBMISSION = {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "test_diagnostic": "AX.tsv"}
MNLI_HUB_SPLITS = {
    "train": "train",
    "dev_matched": "validation_matched",
    "dev_mismatched": "validation_mismatched",
    "test_matched": "test_matched",
    "test_mismatched": "test_mismatched",
}


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of GLUE: its files, its columns and its leaderboard."""

    name: str
    about: str
    """The question it asks."""
    folder: str
    """The folder's name in GLUE's download."""
    first: tuple[str, ...]
    """The column of the text, or of the first of two, and its other names."""
    second: tuple[str, ...] = ()
    """The column of the second text and its other names; empty where there is one text only."""
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the classes; empty for a regression."""
    codes: tuple[str, ...] = ()
    """What the files and the leaderboard write for each class, where it is not its name."""
    metrics: tuple[Callable[[Any, Any], float], ...] = (accuracy,)
    """The metrics; the first is the main one."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: FILES)
    """The names of each split's files."""
    submission_files: Mapping[str, str] = field(default_factory=dict)
    """The name of the file for the leaderboard by test split, where it is not the folder's name."""
    hub_splits: Mapping[str, str] | None = None
    """A dataset's names for the splits, where they are not train, validation and test."""
    without_header: tuple[str, ...] = ()
    """The columns of files that do not name them."""
    quoting: Quoting = "literal"

    @property
    def kind(self) -> Kind:
        """Classification or regression."""
        return "classification" if self.labels else "regression"

    @property
    def main_metric(self) -> str:
        """The metric used for selection."""
        return self.metrics[0].__name__

    @property
    def submission(self) -> Mapping[str, str]:
        """The name of the file for the leaderboard, for each test split."""
        return self.submission_files or {"test": f"{self.folder}.tsv"}

    def open(self, source: TaskSource, labels: tuple[str, ...] | None = None) -> Task:
        """The task with its examples from a source; `labels` are the classes in the order of a model's outputs."""
        names = labels or self.labels
        if self.labels and sorted(names) != sorted(self.labels):
            raise UserError(f"{self.name} has the classes {', '.join(self.labels)}, and not {', '.join(names)}")

        def read(path: Path) -> Table:
            return read_table(path, quoting=self.quoting, without_header=self.without_header, ragged_rows="exclude")

        def parse(table: Table, labelled: bool) -> Reading:
            return self._parse(table, labelled, names)

        opened = open_splits(self.name, source, read, self.files, (self.folder, self.name), self.hub_splits)
        measure = measure_classes(*self.metrics) if self.labels else measure_values(*self.metrics)
        return build_task(self.name, self.kind, source, opened, parse, measure, self.main_metric, labels=names)

    def _parse(self, table: Table, labelled: bool, names: tuple[str, ...]) -> Reading:
        """Ragged rows are excluded and counted in splits with labels, and refused in a test set."""
        texts = [table.column(self.first, "text")]
        texts += [table.column(self.second, "second text")] if self.second else []
        ids = row_ids(table, ("index", "idx"))
        if not labelled:
            check_no_rows_excluded(table.name, table.excluded)
            for row in table.rows:
                if any(_SWALLOWED.search(row.visible_text(column)) for column in texts):
                    raise UserError(
                        f"{row.place}: a text continues over the start of another row: its quotes are not closed, and "
                        "the rows after it would get no prediction: repair the row"
                    )
            return read_texts(table, ids, texts, None)
        label = table.column(self.label, "label")
        codes = zip(self.codes, self.labels, strict=bool(self.codes))
        numbers = ClassNumbers(names if self.labels else (), {code: names.index(name) for code, name in codes})

        def label_of(row: Row) -> int | float | None:
            return class_number(row, label, numbers) if self.labels else parse_value(row, label)

        return read_texts(table, ids, texts, label_of)


_CODES = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_TASKS = (
    # Warstadt et al., 2018
    GlueTask(name="cola", about="is a sentence acceptable English?", folder="CoLA", first=("sentence",),
             labels=("unacceptable", "acceptable"), codes=_CODES, metrics=(matthews, accuracy),
             without_header=("source", "label", "mark", "sentence")),
    # Socher et al., 2013
    GlueTask(name="sst2", about="is a phrase of a film review in favour of the film?", folder="SST-2",
             first=("sentence",), labels=("negative", "positive"), codes=_CODES),
    # Dolan and Brockett, 2005. Microsoft publishes the test set, under another file name.
    GlueTask(name="mrpc", about="do two sentences of the news say the same?", folder="MRPC",
             first=("#1 String", "sentence1"), second=("#2 String", "sentence2"), label=("Quality", "label"),
             labels=("not_equivalent", "equivalent"), codes=_CODES, metrics=(accuracy, f1),
             files={**FILES, "test": ("test.tsv", "msr_paraphrase_test.txt")}),
    # Cer et al., 2017
    GlueTask(name="stsb", about="how near in meaning are two sentences, from 0 to 5?", folder="STS-B",
             first=("sentence1",), second=("sentence2",), label=("score", "label"), metrics=(pearson, spearman)),
    # Iyer et al., 2017. The only set of GLUE whose texts are quoted as in CSV, with line breaks in them.
    GlueTask(name="qqp", about="do two questions of Quora's users ask the same?", folder="QQP",
             first=("question1",), second=("question2",), label=("is_duplicate", "label"),
             labels=("not_duplicate", "duplicate"), codes=_CODES, metrics=(accuracy, f1), quoting="as_found"),
    # Williams et al., 2018
    GlueTask(name="mnli", about="does a sentence follow from another, contradict it, or neither?", folder="MNLI",
             first=("sentence1", "premise"), second=("sentence2", "hypothesis"), label=("gold_label", "label"),
             labels=("entailment", "neutral", "contradiction"),
             files=MNLI_FILES, submission_files=MNLI_SUBMISSION, hub_splits=MNLI_HUB_SPLITS),
    # Made from SQuAD by Wang et al., 2018
    GlueTask(name="qnli", about="does a sentence of Wikipedia answer the question?", folder="QNLI",
             first=("question",), second=("sentence",), labels=_ENTAILMENT),
    # Dagan et al., 2005, and the three challenges after it
    GlueTask(name="rte", about="does a sentence follow from a text?", folder="RTE",
             first=("sentence1",), second=("sentence2",), labels=_ENTAILMENT),
    # Made from Winograd's schemas (Levesque et al., 2011)
    GlueTask(name="wnli", about="is a pronoun replaced by what it stands for?", folder="WNLI",
             first=("sentence1",), second=("sentence2",), labels=("not_entailment", "entailment"), codes=_CODES),
)  # fmt: skip
GLUE: dict[str, GlueTask] = {task.name: task for task in _TASKS}
