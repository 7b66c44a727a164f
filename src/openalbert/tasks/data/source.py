"""Where the examples of a task come from: its folder, files, or a dataset; and how they become a `Task`."""

import fnmatch
import hashlib
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, cast

import numpy as np
from jaxtyping import Int64
from tyro.conf import arg

from openalbert.errors import UserError, suggestion
from openalbert.formatting import are, counted, percent_of
from openalbert.tasks.data.folds import assign_folds, rarest
from openalbert.tasks.data.tables import Table, check_is_there
from openalbert.tasks.task import (
    Example,
    Kind,
    QuestionExample,
    Reading,
    SimilarityExample,
    TaggingExample,
    Task,
    TextExample,
    are_pairs,
)

MANY_LEAKED = 0.1  # of the examples to score on: if so many are also in train, the score is hardly meaningful
MAX_SAMPLE = 500  # training examples that a run scores on where it learns from all
TRAIN_SAMPLE = "train_sample"
MIN_ARTICLES = 20  # with fewer, whole articles are too coarse to be held out, and passages are taken


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
    scored = tuple(split for split in opened if split != "train" and not split.startswith("test"))
    holds_out = "train" in opened and (not scored or source.fold is not None)
    whole: list[Reading] = []  # train, kept where two splits are made of it
    forms: dict[bool, str] = {}  # the first file with pairs of texts, and the first with single texts
    trained_on: set[int] = set()  # hashes of the texts and passages of train, once it was read

    def read(split: str) -> Reading:
        known = tuple(dict.fromkeys((*opened, *splits)))
        if split == "test" and split not in opened:
            split = next((other for other in opened if other.startswith("test")), split)
        if split not in known:
            advice = f", or give it with --{split}" if split in ("train", "dev", "test") else ""
            raise UserError(f"{name} has no split '{split}' here: {suggestion(split, known)}{advice}")
        if holds_out and split in ("train", *splits):
            if not whole:
                whole.append(_read("train"))
            if source.fold is not None:
                return hold_out_fold(whole[0], source.fold, source.heldout_seed)[split != "train"]
            return hold_out(whole[0], source.heldout_fraction, source.heldout_seed)[split == "dev"]
        return _read(split)

    def _read(split: str) -> Reading:
        table = opened[split]()
        reading = _parse_test(table) if split.startswith("test") else parse(table, True)
        reading = replace(reading, file=table.name, num_rows=len(table.rows))
        if not reading.examples:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in reading.excluded.items())
            raise UserError(f"{table.name} gives no example to {name}: {reasons or 'it has no rows'}")
        if (pairs := are_pairs(reading.examples)) is not None:
            forms.setdefault(pairs, table.name)
            if len(forms) == 2:
                raise UserError(
                    f"{forms[True]} has pairs of texts, but {forms[False]} has single texts: if the columns are "
                    "wrong, name them with --text-column and --second-column"
                )
        texts = [hash(_group_key(example, by_article=False)) for example in reading.examples]
        if split == "train":
            trained_on.update(texts)
        elif leaked := sum(text in trained_on for text in texts):
            number = f"{leaked:,} of {counted(len(texts), 'example')} ({percent_of(leaked, len(texts))})"
            verdict = ": a score there is hardly meaningful" if leaked >= MANY_LEAKED * len(texts) else ""
            remark = f"{table.name}: {number} {'has' if leaked == 1 else 'have'} a text that is also in train{verdict}"
            return replace(reading, remarks=(*reading.remarks, remark))
        return reading

    def _parse_test(table: Table) -> Reading:
        if not has_labels(table):
            return parse(table, False)
        try:
            labelled = parse(table, True)
            reason = "; ".join(f"{count:,} rows {why}" for why, count in labelled.excluded.items())
        except UserError as error:
            labelled, reason = Reading(()), str(error)
        if labelled.examples and not reason:
            return labelled
        reading = parse(table, False)
        return replace(reading, remarks=(*reading.remarks, f"the labels are not used, for not all are there: {reason}"))

    splits = scored
    if holds_out:
        splits = ("dev",) if source.fold is None or source.fold[0] else (TRAIN_SAMPLE,)
    return Task(name, kind, labels, splits, read, measure, main_metric, may_have_no_answer)


def hold_out(
    reading: Reading,
    fraction: float,
    seed: int,
    otherwise: str = "give a file to score on with --dev",
    articles_stay_whole: bool = True,
) -> tuple[Reading, Reading]:
    """Split a reading in two: the examples to train on, and about a fraction of them that is held out.

    The choice depends on the seed and the texts alone, and is stratified by class. Examples of the same text or passage
    stay together, and with `articles_stay_whole` those of the same article where there are enough articles.
    `otherwise` is the advice in the error for a reading that cannot be split.
    """
    articles = {example.title for example in reading.examples if isinstance(example, QuestionExample)}
    by_article = articles_stay_whole and len(articles) >= MIN_ARTICLES
    groups: dict[str, list[Example]] = {}
    for example in reading.examples:
        groups.setdefault(_group_key(example, by_article), []).append(example)
    if len(groups) < 2:
        raise UserError(
            f"{reading.origin}: {counted(len(reading.examples), 'example')} of one text cannot be split: {otherwise}"
        )
    strata: dict[Hashable, list[str]] = {}
    for key, members in groups.items():
        first = members[0]
        # Values and label sets are too many to stratify by.
        label = first.label if isinstance(first, TextExample) and isinstance(first.label, int) else None
        strata.setdefault(label, []).append(key)

    def draw(key: str) -> bytes:
        return hashlib.blake2b(f"{seed}\0{key}".encode()).digest()

    held_out: set[str] = set()
    for keys in strata.values():
        wanted = fraction * sum(len(groups[key]) for key in keys)
        for key in sorted(keys, key=draw)[:-1]:
            if 2 * wanted >= len(groups[key]):
                held_out.add(key)
                wanted -= len(groups[key])
    if not held_out:
        largest = max(strata.values(), key=len)
        held_out = {min(largest if len(largest) > 1 else groups, key=draw)}
    train, heldout = (
        tuple(example for example in reading.examples if (_group_key(example, by_article) in held_out) == is_held_out)
        for is_held_out in (False, True)
    )
    number = len(heldout)
    remark = (
        f"{number:,} of {counted(len(reading.examples), 'example')} {are(number)} held out to score on: "
        "no file was given"
    )
    return (
        replace(reading, examples=train, remarks=(*reading.remarks, remark)),
        Reading(heldout, {}, (remark,), reading.file),
    )


def hold_out_fold(reading: Reading, fold: tuple[int, int], seed: int) -> tuple[Reading, Reading]:
    """The examples of all folds but one, and those of that one.

    Without one (fold 0) all are learned from, and some of those are scored on, which shows a collapse and nothing else.
    """
    number, of = fold
    if number == 0:
        fold_numbers(reading, of, seed)  # too many folds are an error here too
        step = max(1, -(-len(reading.examples) // MAX_SAMPLE))
        remark = f"all {counted(len(reading.examples), 'example')} are learned from"
        sample = Reading(reading.examples[::step], {}, (remark,), reading.file)
        return replace(reading, remarks=(*reading.remarks, remark)), sample
    is_held_out = fold_numbers(reading, of, seed) == number
    remark = f"fold {number} of {of}: {is_held_out.sum():,} of {counted(len(is_held_out), 'example')} to score on"
    train, heldout = (
        tuple(example for example, held in zip(reading.examples, is_held_out, strict=True) if held == wanted)
        for wanted in (False, True)
    )
    return (
        replace(reading, examples=train, remarks=(*reading.remarks, remark)),
        Reading(heldout, {}, (remark,), reading.file),
    )


def fold_numbers(reading: Reading, num_folds: int, seed: int) -> Int64[np.ndarray, "examples"]:
    """The fold of each example, from 1: stratified by class or by the rarest label.

    Examples of the same text, passage or article are in one fold, as where some are held out.
    """
    examples = reading.examples
    articles = {example.title for example in examples if isinstance(example, QuestionExample)}
    by_article = len(articles) >= max(MIN_ARTICLES, num_folds)
    groups = [_group_key(example, by_article) for example in examples]
    labels = [example.label if isinstance(example, TextExample) else None for example in examples]
    strata: Sequence[Hashable] = [label if isinstance(label, int) else None for label in labels]
    if all(isinstance(label, tuple) for label in labels):
        strata = rarest(cast("list[tuple[int, ...]]", labels))
    return assign_folds(groups, strata, num_folds, seed, reading.origin)


def _group_key(example: Example, by_article: bool) -> str:
    if isinstance(example, QuestionExample):
        return example.title if by_article else example.passage
    if isinstance(example, TaggingExample):
        return example.text
    if isinstance(example, TextExample):
        return f"{example.first}\0{example.second or ''}"
    if isinstance(example, SimilarityExample):
        return example.first  # another positive of it would give its own away
    return example.passage or f"{example.question}\0{example.options}"
