"""Where the examples of a task come from: its folder, files, or a dataset; and how they become a `Task`."""

import fnmatch
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from openalbert.errors import UserError, suggestion
from openalbert.formatting import counted, percent_of
from openalbert.tasks.data.holdout import group_key, hold_out, hold_out_fold
from openalbert.tasks.data.row_files import Table, check_is_there
from openalbert.tasks.task import Example, Kind, Reading, Task, are_pairs

MANY_LEAKED = 0.1  # of the examples to score on: if so many are also in train, the score is hardly meaningful
TRAIN_SAMPLE = "train_sample"


@dataclass(frozen=True)
class TaskSource:
    """Where the examples come from."""

    data: Path | None = None
    """The folder of a known task, as it was published, or one that holds its folder: GLUE, SQuAD, RACE."""
    train: Path | None = None
    """A file to learn from: CSV, TSV, JSONL or Parquet; SQuAD's JSON; a file or folder of RACE; CoNLL for tagging."""
    dev: Path | None = None
    """A file to score on. Without one, some of the training examples are held out."""
    test: Path | None = None
    """A file to predict for; it needs no labels."""
    dataset: str | None = None
    """A Hugging Face dataset instead of files: its name, which may use the network, or a folder where one is saved."""
    dataset_config: str | None = None
    """The configuration of a Hugging Face dataset that has several."""
    dataset_dev: str | None = None
    """The split of a Hugging Face dataset to score on, where it is not validation; its labels are needed."""
    text_column: str | None = None
    """The column of the text, or of the first of two; given without --second-column, there is one text only.
    Columns that are not named are guessed and shown; an ambiguous guess is an error that lists the choices.
    In CoNLL files columns are numbered from 1, and the word is in the first."""
    second_column: str | None = None
    """The column of the second text of a pair."""
    negative_column: str | None = None
    """For similarity: the column of a text that is not similar to the first one."""
    label_column: str | None = None
    """The column of the label, of the value, of the score of similarity, or of all labels that apply.
    In CoNLL files the tag is in the last."""
    label_columns: tuple[str, ...] = ()
    """The columns of the labels of multi_label, where each label has one with 0 or 1."""
    label_separator: Annotated[str | None, arg(metavar="TEXT")] = None
    """The separator between labels of multi_label, or options of multiple_choice, in one column.
    Not given: whichever of ; | , is found."""
    positive_class: str | None = None
    """Of two classes of your own: the one that f1 is of. Not given: the second by name."""
    passage_column: str | None = None
    """The column of the passage that a question is about."""
    question_column: str | None = None
    """The column of the question."""
    options_columns: tuple[str, ...] = ()
    """The columns of the options of multiple_choice, one for each; or the column that has all of them."""
    answer_column: str | None = None
    """The column of the answer: its text, or for multiple_choice its letter, its number from 0, or the option."""
    id_column: str | None = None
    """The column that names each row in files of predictions; without one, rows are counted from 0 there.
    Pages count them from 1, without the header."""
    heldout_fraction: float = 0.1
    """The fraction of the training examples that is held out where there is nothing else to score on."""
    heldout_seed: int = 0
    """The seed that selects the held-out examples, or the folds."""
    fold: tuple[int, int] | None = None
    """The fold of the training examples to score on, and of how many: `2 5`; the other folds are learned from.
    `finetune --folds` sets it; with `0 5` all are learned from."""

    def __post_init__(self) -> None:
        if self.fold is not None:
            number, of = self.fold
            if of < 2 or not 0 <= number <= of:
                raise UserError(f"fold is {number} of {of}: give its number and how many there are, such as 2 5")
            if self.dev is not None:
                raise UserError("--dev is a file to score on, but the folds of the training file are: leave one out")
        if not 0 < self.heldout_fraction < 1:
            raise UserError(f"heldout_fraction is {self.heldout_fraction}: it must be a fraction, above 0 and below 1")

    @property
    def files(self) -> dict[str, Path]:
        """The given files by split."""
        named = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: path for split, path in named.items() if path is not None}

    @property
    def is_given(self) -> bool:
        """Whether a folder, a file or a dataset is given."""
        return self.data is not None or self.dataset is not None or bool(self.files)

    @property
    def command_line(self) -> str:
        """The source as options of a command line."""
        options: list[str] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                several = value if isinstance(value, tuple) else (value,)
                options += [f"--{one.name.replace('_', '-')}", *map(str, several)]
        return shlex.join(options)

    @property
    def named_columns(self) -> list[str]:
        """The settings that name columns and are given."""
        return [
            one.name for one in fields(self) if one.name.endswith(("_column", "_columns")) and getattr(self, one.name)
        ]


SplitReader = Callable[[], Table]
"""Reads the rows of a split."""


def open_splits(
    task: str,
    source: TaskSource,
    read: Callable[[Path], Table],
    files: Mapping[str, tuple[str, ...]],
    folders: tuple[str, ...] = (),
    hub_splits: Mapping[str, str] | None = None,
) -> dict[str, SplitReader]:
    """A reader for each split: of files that the user named, files in the task's folder, or a dataset.

    `files` are patterns of each split's file names: all files that match the first pattern with a match are read.
    `folders` are the names of the task's folder; `hub_splits` are a dataset's names for the splits. A task without
    `files` is a custom one.
    """
    if source.data is not None and not files:
        raise UserError(f"{task} reads your files, not a folder: name them with --train and --dev")
    if files and source.named_columns:
        setting = source.named_columns[0].replace("_", "-")
        raise UserError(
            f"{task} has fixed columns, and --{setting} is for custom files: leave it out, or choose a custom task, "
            "such as --task classification"
        )
    if source.dataset is not None:
        if source.data is not None or source.files:
            raise UserError(f"examples of {task} come from --dataset or from files, not from both: give one of them")
        from openalbert.tasks.data.hf_datasets import open_dataset

        return open_dataset(source, hub_splits or {"train": "train", "dev": "validation", "test": "test"})
    found: dict[str, SplitReader] = {}
    if source.data is not None:
        folder = _folder(source.data, folders)
        for split, patterns in files.items():
            if paths := _matches(folder, patterns):
                found[split] = _reader(read, paths)
        if not found and not source.files:
            wanted = ", ".join(pattern for patterns in files.values() for pattern in patterns)
            raise UserError(f"{folder} has no file of {task}: one of these is expected: {wanted}")
    for split, path in source.files.items():
        check_is_there(path)  # also a file that is not read later
        found[split] = _reader(read, [path])
    if not found:
        known = "its folder with --data, or " if files else ""
        raise UserError(f"{task} needs examples: give {known}files with --train and --dev, or --dataset")
    if source.dev is not None:
        # The file that the user named comes first: it decides about early stopping.
        found = {"dev": found.pop("dev"), **found}
    return found


def _folder(data: Path, folders: tuple[str, ...]) -> Path:
    if not data.is_dir():
        kind = "is a file, and the task's folder is needed: name files with --train and --dev" if data.exists() else ""
        raise UserError(f"{data} {kind}" if kind else f"there is no folder {data}")
    below = {path.name.lower(): path for path in sorted(data.iterdir()) if path.is_dir()}
    return next((below[name.lower()] for name in folders if name.lower() in below), data)


def _matches(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    names = sorted(path.name for path in folder.iterdir())
    for pattern in patterns:
        if found := fnmatch.filter(names, pattern):
            return [folder / name for name in found]
    return []


def _reader(read: Callable[[Path], Table], files: Sequence[Path]) -> SplitReader:
    def opened() -> Table:
        tables = [read(path) for path in files]
        if len(tables) == 1:
            return tables[0]
        columns = dict.fromkeys(column for table in tables for column in table.columns)
        rows = [row for table in tables for row in table.rows]
        excluded = {reason: count for table in tables for reason, count in table.excluded.items()}
        remarks = tuple(remark for table in tables for remark in table.remarks)
        return Table(", ".join(table.name for table in tables), tuple(columns), rows, excluded, remarks)

    return opened


def build_task(
    name: str,
    kind: Kind,
    source: TaskSource,
    opened: Mapping[str, SplitReader],
    parse: Callable[[Table, bool], Reading],
    measure: Callable[[Sequence[Example], Sequence[object]], dict[str, float]],
    main_metric: str,
    *,
    labels: tuple[str, ...] = (),
    may_have_no_answer: bool = False,
    has_labels: Callable[[Table], bool] = lambda table: False,
) -> Task:
    """A task from the readers of its splits, from `parse(table, labelled)`, which makes examples of rows, and from its
    metrics. Where there is no split to score on, some of the training examples are held out.

    A test file needs no labels; one that has them, by `has_labels`, in every row is scored.
    """
    reader = _TaskReader(name, source, opened, parse, has_labels)
    return Task(name, kind, labels, reader.scored, reader.read, measure, main_metric, may_have_no_answer)


class _TaskReader:
    """Reads the splits of a task."""

    def __init__(
        self,
        task: str,
        source: TaskSource,
        opened: Mapping[str, SplitReader],
        parse: Callable[[Table, bool], Reading],
        has_labels: Callable[[Table], bool],
    ) -> None:
        self.task, self.source, self.opened = task, source, opened
        self.parse, self.has_labels = parse, has_labels
        self.scored = tuple(split for split in opened if split != "train" and not split.startswith("test"))
        self.holds_out = "train" in opened and (not self.scored or source.fold is not None)
        if self.holds_out:
            self.scored = ("dev",) if source.fold is None or source.fold[0] else (TRAIN_SAMPLE,)
        self._whole: Reading | None = None  # train, kept where two splits are made of it
        self._forms: dict[bool, str] = {}  # the first file with pairs of texts, and the first with single texts
        self._trained_on: set[int] = set()  # hashes of the texts and passages of train, once it was read

    def read(self, split: str) -> Reading:
        """The examples of a split, some of them held out where that is asked for."""
        known = tuple(dict.fromkeys((*self.opened, *self.scored)))
        if split == "test" and split not in self.opened:
            split = next((other for other in self.opened if other.startswith("test")), split)
        if split not in known:
            advice = f", or give it with --{split}" if split in ("train", "dev", "test") else ""
            raise UserError(f"{self.task} has no split '{split}' here: {suggestion(split, known)}{advice}")
        if not self.holds_out or split not in ("train", *self.scored):
            return self._read_file(split)
        source, self._whole = self.source, self._whole or self._read_file("train")
        if source.fold is not None:
            train, held_out = hold_out_fold(self._whole, source.fold, source.heldout_seed)
        else:
            train, held_out = hold_out(self._whole, source.heldout_fraction, source.heldout_seed)
        return train if split == "train" else held_out

    def _read_file(self, split: str) -> Reading:
        table = self.opened[split]()
        reading = self._parse_test(table) if split.startswith("test") else self.parse(table, True)
        reading = replace(reading, file=table.name, num_rows=len(table.rows))
        if not reading.examples:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in reading.excluded.items())
            raise UserError(f"{table.name} gives no example to {self.task}: {reasons or 'it has no rows'}")
        self._check_form(reading)
        texts = [hash(group_key(example, by_article=False)) for example in reading.examples]
        if split == "train":
            self._trained_on.update(texts)
            return reading
        leaked = sum(text in self._trained_on for text in texts)
        if not leaked:
            return reading
        number = f"{leaked:,} of {counted(len(texts), 'example')} ({percent_of(leaked, len(texts))})"
        verdict = ": a score there is hardly meaningful" if leaked >= MANY_LEAKED * len(texts) else ""
        remark = f"{table.name}: {number} {'has' if leaked == 1 else 'have'} a text that is also in train{verdict}"
        return replace(reading, remarks=(*reading.remarks, remark))

    def _check_form(self, reading: Reading) -> None:
        """Refuse pairs of texts in one file and single texts in another."""
        if (pairs := are_pairs(reading.examples)) is not None:
            self._forms.setdefault(pairs, reading.file)
        if len(self._forms) == 2:
            raise UserError(
                f"{self._forms[True]} has pairs of texts, but {self._forms[False]} has single texts: if the columns "
                "are wrong, name them with --text-column and --second-column"
            )

    def _parse_test(self, table: Table) -> Reading:
        """With labels, where all rows have them."""
        if not self.has_labels(table):
            return self.parse(table, False)
        try:
            labelled = self.parse(table, True)
            reason = "; ".join(f"{count:,} rows {why}" for why, count in labelled.excluded.items())
        except UserError as error:
            labelled, reason = Reading(()), str(error)
        if labelled.examples and not reason:
            return labelled
        reading = self.parse(table, False)
        return replace(reading, remarks=(*reading.remarks, f"the labels are not used, for not all are there: {reason}"))
