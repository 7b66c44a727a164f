"""Custom tasks on a text or a pair per row: classification, regression and multi_label.

The labels of multi_label are a list in a JSONL row; a CSV row has them in one column with a separator, or has a column
of 0 and 1 for each.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from openalbert.errors import UserError
from openalbert.tasks.custom.column_guess import LABELS, SEPARATORS, SUBJECTS, Labelling, guess_columns
from openalbert.tasks.custom.columns import (
    COLUMN_NAMES,
    Columns,
    Layout,
    columns_named,
    is_number,
    normalize_name,
    same_name,
    sample,
)
from openalbert.tasks.custom.files import open_files
from openalbert.tasks.data.labels import (
    ClassNumbers,
    class_names,
    class_number,
    describe_nan_labels,
    is_nan,
    parse_value,
    read_texts,
)
from openalbert.tasks.data.row_files import Row, Table, as_text
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.metrics import (
    accuracy,
    describe_positive_class,
    f1,
    macro_f1,
    matthews,
    measure_classes,
    measure_label_sets,
    measure_values,
    pearson,
    r2,
    spearman,
)
from openalbert.tasks.task import Reading, Task, TaskMetadata

Label: TypeAlias = int | float | tuple[int, ...]
Flags: TypeAlias = tuple[str, ...]
"""Columns of 0 and 1, one for each label."""
YES, NO = ("1", "1.0", "true", "True"), ("0", "0.0", "false", "False", "")


def find_text_columns(
    table: Table,
    source: TaskSource,
    labelling: Labelling,
    labelled: bool,
    layout: Layout | None = None,
    label_columns: tuple[str, ...] = (),
) -> Columns:
    """Find the columns; `layout` is that of the training file, `label_columns` are labels and cannot be text."""
    columns = Columns(table, layout)
    for column in label_columns:
        columns.take(f"label {column}", column)
    columns.find_ids(source.id_column)
    guess_columns(columns, source, labelling, labelled, finds_label=not label_columns)
    return columns


def roles_of(columns: Columns) -> dict[str, str]:
    """The columns by role, for other files: texts that are not used here are not used there either."""
    return columns.roles | {f"unused {column}": column for column in columns.unused_texts}


def _read(columns: Columns, labelled: bool, label_of: Callable[[Row], Label | None]) -> Reading:
    texts = [columns[role] for role in ("text", "second") if role in columns.roles]
    reading = read_texts(columns.table, columns.ids, texts, label_of if labelled else None)
    return replace(columns.describe(reading), layout=roles_of(columns))


def sort_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct label names in the order of the head's outputs: numbers by value, others by name."""
    distinct = set(names)
    if all(is_number(name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (float(name), name)))
    return tuple(sorted(distinct))


# Regression.


def open_regression(source: TaskSource, metadata: TaskMetadata) -> Task:
    """A value for each text or pair; a model's label may name the value."""

    def find(table: Table, labelled: bool, layout: Layout | None) -> Columns:
        return find_text_columns(table, source, "values", labelled, layout)

    files = open_files("regression", source, metadata, lambda table: roles_of(find(table, True, None)))

    def parse(table: Table, labelled: bool) -> Reading:
        columns = find(table, labelled, files.layout)
        return _read(columns, labelled, lambda row: parse_value(row, columns["label"]))

    # A correlation can be high where all predictions are equal to the third digit: it ignores their scale.
    return files.task(parse, measure_values(r2, pearson, spearman), "r2", labels=metadata.labels or ())


# Classification.


def open_classification(source: TaskSource, metadata: TaskMetadata) -> Task:
    """A class for each text or pair; the classes are those of the model, else of the training file."""

    def find(table: Table, labelled: bool, layout: Layout | None) -> Columns:
        return find_text_columns(table, source, "classes", labelled, layout)

    files = open_files("classification", source, metadata, lambda table: roles_of(find(table, True, None)))
    labels = metadata.labels
    if labels is None:
        table = files.training_table()
        labels = _find_classes(table, find(table, True, None)["label"])
    if source.positive_class is not None:
        labels = _with_positive_class(labels, source.positive_class, is_fixed=metadata.labels is not None)
    numbers = ClassNumbers(labels)
    is_binary = len(labels) == 2
    positive = (describe_positive_class(labels[1]),) if is_binary else ()

    def parse(table: Table, labelled: bool) -> Reading:
        columns = find(table, labelled, files.layout)
        reading = _read(columns, labelled, lambda row: class_number(row, columns["label"], numbers))
        if not labelled:
            return reading
        column = columns["label"]
        written = [label for row in table.rows if numbers.get(label := row.text(column).strip()) is not None]
        remarks = (*reading.remarks, *describe_nan_labels(table.name, column, written), *positive)
        return replace(reading, remarks=remarks)

    measure = measure_classes(accuracy, macro_f1, *((f1,) if is_binary else ()), matthews)
    return files.task(parse, measure, "accuracy", labels=labels)


def _with_positive_class(labels: tuple[str, ...], name: str, is_fixed: bool) -> tuple[str, ...]:
    """Two classes with the positive one second: f1 is that of the second, here and wherever the model is evaluated."""
    known = ", ".join(labels)
    if len(labels) != 2:
        raise UserError(f"--positive-class is for two classes, which f1 is defined for, but these are {known}")
    if name not in labels:
        raise UserError(f"--positive-class is '{name}', which is not a class: give one of {known}")
    if is_fixed and labels[1] != name:
        raise UserError(f"--positive-class is '{name}', but the model was fine-tuned with '{labels[1]}': leave it out")
    return labels if labels[1] == name else labels[::-1]


def _find_classes(table: Table, column: str) -> tuple[str, ...]:
    # SNLI and MNLI have - where the annotators did not agree; in any other column it may be a class, as + may.
    none = ("", "-") if normalize_name(column) == "goldlabel" else ("",)
    found = [label for row in table.rows if (label := row.text(column).strip()) not in none]
    names = sort_labels(class_names(found))
    if len(names) < 2:
        only = f"only one class, '{names[0]}'," if names else "no class at all"
        raise UserError(f"{table.name} has {only} in '{column}': there is nothing to learn; is the column right?")
    if len(names) > 20 and 2 * len(names) > len(found):
        raise UserError(
            f"{table.name} has {len(names):,} classes in {len(found):,} rows of '{column}': that is not a column of "
            "classes; name another with --label-column, or is it --task regression?"
        )
    return names


# Multi-label.


def open_multi_label(source: TaskSource, metadata: TaskMetadata) -> Task:
    """Any number of labels for each text or pair; the labels are those of the model, else of the training file."""

    def find(table: Table, labelled: bool, labels: tuple[str, ...], layout: Layout | None) -> tuple[Columns, Flags]:
        flags = _flag_columns(table, source, labels, layout)
        return find_text_columns(table, source, "sets", labelled, layout, flags), flags

    files = open_files(
        "multi_label", source, metadata, lambda table: roles_of(find(table, True, metadata.labels or (), None)[0])
    )
    labels, trained_separator = metadata.labels, metadata.separator
    if labels is None:
        columns, labels = find(files.training_table(), True, (), None)
        if not labels:
            trained_separator = _separator(columns, source, (), None)
            labels = _find_labels(columns, trained_separator)
    names, numbers = labels, ClassNumbers(labels)

    def parse(table: Table, labelled: bool) -> Reading:
        columns, flags = find(table, labelled, names, files.layout)
        # --label-columns may find a column whose name differs in case from that in the training file.
        label_of_flag = {flag: same_name(flag, names) or flag for flag in flags}
        separator = _separator(columns, source, names, trained_separator)

        def labels_of(row: Row) -> tuple[int, ...] | None:
            found = _flagged(row, label_of_flag) if flags else _listed(row, columns["label"], separator)
            given = [name for name in found or () if not numbers.is_none(name)]
            if found is None or (found and not given):
                return None
            chosen = set()
            for name in given:
                if (number := numbers.get(name)) is None:
                    raise UserError(f"{row.place}: the label '{name}' is not known: known are {numbers.known}")
                chosen.add(number)
            return tuple(sorted(chosen))

        reading = _read(columns, labelled, labels_of)
        if flags:
            listed = f"{table.name}: each of the columns {', '.join(flags)} is a label"
            guessed = () if source.label_columns else (f"{listed} (guessed; change with --label-columns)",)
            return replace(reading, remarks=reading.remarks + guessed)
        remarks = reading.remarks
        if labelled:
            written = [name for row in table.rows for name in _listed(row, columns["label"], separator) or ()]
            is_class = [name for name in written if numbers.get(name) is not None]
            remarks += describe_nan_labels(table.name, columns["label"], is_class)
            if not source.label_separator and any(separator in cell for cell in _cells(columns)):
                is_known = separator == trained_separator
                how = columns.other.like if columns.other is not None and is_known else "guessed"
                where = f"'{separator}' separates labels in '{columns['label']}'"
                remarks += (f"{table.name}: {where} ({how}; change with --label-separator)",)
        return replace(reading, remarks=remarks, separator=separator)

    return files.task(parse, measure_label_sets(len(names)), "f1", labels=names)


def _find_labels(columns: Columns, separator: str) -> tuple[str, ...]:
    """The labels of a table that has all labels of a row in one column."""
    rows, column = columns.table.rows, columns["label"]
    names = sort_labels(class_names(name for row in rows for name in _listed(row, column, separator) or ()))
    if not names:
        raise UserError(f"{columns.table.name} has no labels in '{column}': is the column right?")
    return names


def _flag_columns(table: Table, source: TaskSource, labels: tuple[str, ...], layout: Layout | None) -> Flags:
    """The columns that are a label each: named by the user, or a model's labels, or all that have only 0 and 1.

    There are none where the table has the label column of the layout.
    """
    if source.label_columns:
        return columns_named(table, source.label_columns, "--label-columns")
    if layout is not None and layout.columns.get("label") in table.columns:
        return ()
    if labels and set(labels) <= set(table.columns):
        return labels
    label_names = set(map(normalize_name, (*LABELS, *SUBJECTS)))
    if source.label_column or {normalize_name(column) for column in table.columns} & label_names:
        return ()
    others = (source.id_column, source.text_column, source.second_column)
    free = [name for name in table.columns if name not in others and normalize_name(name) not in COLUMN_NAMES["id"]]
    flags = tuple(name for name in free if {str(value).strip() for value in sample(table, name)} <= {*YES, *NO} - {""})
    return flags if len(flags) > 1 else ()


def _flagged(row: Row, label_of_flag: Mapping[str, str]) -> list[str] | None:
    """The labels of a row with a column for each; None where one is NaN."""
    if any(is_nan(str(row.values.get(column)).strip()) for column in label_of_flag):
        return None
    return [label for column, label in label_of_flag.items() if _is_set(row, column)]


def _is_set(row: Row, column: str) -> bool:
    value = row.text(column).strip()
    if value in YES or value in NO:
        return value in YES
    raise UserError(f"{row.place}: '{value}' in '{column}' is neither 0 nor 1")


def _separator(columns: Columns, source: TaskSource, labels: tuple[str, ...], trained: str | None) -> str:
    """The separator between labels: the user's, else one that gives known labels only (that of the training file
    first), else the first of the usual ones that occurs."""
    if source.label_separator:
        return source.label_separator
    cells = _cells(columns)
    separators = ((trained,) if trained is not None else ()) + SEPARATORS
    numbers = ClassNumbers(labels)
    for separator in separators if labels else ():
        names = {name.strip() for cell in cells for name in cell.split(separator)} - {""}
        if all(numbers.get(name) is not None or numbers.is_none(name) for name in names):
            return separator
    return next((one for one in separators if any(one in cell for cell in cells)), separators[0])


def _cells(columns: Columns) -> list[str]:
    values = sample(columns.table, columns["label"]) if "label" in columns.roles else []
    return [value for value in values if isinstance(value, str)]


def _listed(row: Row, column: str, separator: str) -> list[str] | None:
    """The labels of a row with one column for all; None where it has no value."""
    given = row.values.get(column)
    if given is None or given != given:  # NaN, which marks a missing value
        return None
    if isinstance(given, list):
        names = [as_text(name, f"{row.place}: a label") for name in given]
    else:
        names = row.text(column).split(separator)
    return [name.strip() for name in names if name.strip()]
