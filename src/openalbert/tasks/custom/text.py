"""Custom tasks on a text or a pair per row: classification, regression and multi_label.

The labels of multi_label are a list in a JSONL row; a CSV row has them in one column with a separator, or has a column
of 0 and 1 for each.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from openalbert.errors import UserError
from openalbert.tasks.custom.column_guess import LABELS, SEPARATORS, SUBJECTS, Labelling, guess_columns
from openalbert.tasks.custom.columns import (
    COLUMN_NAMES,
    Columns,
    Layout,
    columns_named,
    find_layout,
    has_labels,
    is_number,
    layout_of_other_file,
    normalize_name,
    same_name,
    sample,
)
from openalbert.tasks.data.source import SplitReader, TaskSource, build_task, open_splits
from openalbert.tasks.data.tables import Exclusions, Row, Table, as_text, describe_empty_rows, read_table
from openalbert.tasks.label_checks import (
    ClassNumbers,
    class_names,
    class_number,
    describe_nan_labels,
    is_nan,
    parse_value,
)
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
from openalbert.tasks.task import Reading, Task, TaskMetadata, TextExample

Label: TypeAlias = int | float | tuple[int, ...]
YES, NO = ("1", "1.0", "true", "True"), ("0", "0.0", "false", "False", "")


@dataclass(frozen=True)
class TextColumns:
    """The columns of the texts and the label of a table."""

    first: str
    second: str | None
    label: str | None
    ids: list[str]
    remarks: tuple[str, ...]
    layout: Mapping[str, str]
    """All columns with a role, by role, and the unused columns of texts."""


def open_custom_splits(
    task: str, source: TaskSource, read: Callable[[Path], Table] = read_table
) -> dict[str, SplitReader]:
    """A reader for each of the user's files. Train is read only once: it also defines labels and columns."""
    opened = open_splits(task, source, read, {})
    if "train" in opened:
        kept: list[Table] = []
        read_train = opened["train"]

        def read_once() -> Table:
            if not kept:
                kept.append(read_train())
            return kept[0]

        opened["train"] = read_once
    return opened


def find_text_columns(
    table: Table,
    source: TaskSource,
    labelling: Labelling,
    labelled: bool,
    layout: Layout | None = None,
    label_columns: tuple[str, ...] = (),
) -> TextColumns:
    """Find the columns; `layout` is that of the training file, `label_columns` are labels and cannot be text."""
    columns = Columns(table, layout)
    for column in label_columns:
        columns.take(f"label {column}", column)
    ids, remark = columns.ids(source.id_column)
    found = guess_columns(columns, source, labelling, labelled, finds_label=not label_columns)
    remarks = (*table.remarks, *columns.remark(), *((remark,) if remark else ()))
    # Texts that are not used here are not used in any other file either.
    unused = {f"unused {column}": column for column in columns.unused_texts}
    return TextColumns(found.first, found.second, found.label, ids, remarks, {**columns.roles, **unused})


def read_texts(table: Table, columns: TextColumns, labelled: bool, label_of: Callable[[Row], Label | None]) -> Reading:
    """An example from each row with text and label; from every row where labels are not needed."""
    examples: list[TextExample] = []
    excluded, empty = Exclusions(table.excluded), Exclusions()
    for number, (row, row_id) in enumerate(zip(table.rows, columns.ids, strict=True), 1):
        first = row.visible_text(columns.first)
        second = row.visible_text(columns.second) if columns.second else None
        if not first or second == "":
            (excluded if labelled else empty).add("without a text", row.place)
            if labelled:
                continue
        label = label_of(row) if labelled else None
        if labelled and label is None:
            excluded.add("without a label", row.place)
            continue
        examples.append(TextExample(row_id, first, second, label, row=number))
    remarks = (*columns.remarks, *describe_empty_rows(empty))
    return Reading(tuple(examples), excluded.counted(), remarks, layout=columns.layout)


def sort_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct label names in the order of the head's outputs: numbers by value, others by name."""
    distinct = set(names)
    if all(is_number(name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (float(name), name)))
    return tuple(sorted(distinct))


# Regression.


def open_regression(source: TaskSource, metadata: TaskMetadata) -> Task:
    """A value for each text or pair; a model's label may name the value."""
    opened = open_custom_splits("regression", source)
    layout = find_layout(
        metadata, opened, lambda table: find_text_columns(table, source, "values", labelled=True).layout
    )

    def parse(table: Table, labelled: bool) -> Reading:
        columns = find_text_columns(table, source, "values", labelled, layout)
        return read_texts(table, columns, labelled, lambda row: parse_value(row, columns.label or ""))

    # A correlation can be high where all predictions are equal to the third digit: it ignores their scale.
    measure = measure_values(r2, pearson, spearman)
    return build_task(
        "regression",
        "regression",
        source,
        opened,
        parse,
        measure,
        "r2",
        labels=metadata.labels or (),
        has_labels=lambda table: has_labels(table, layout),
    )


# Classification.


def open_classification(source: TaskSource, metadata: TaskMetadata) -> Task:
    """A class for each text or pair; the classes are those of the model, else of the training file."""
    opened = open_custom_splits("classification", source)
    layout = find_layout(
        metadata, opened, lambda table: find_text_columns(table, source, "classes", labelled=True).layout
    )
    labels = metadata.labels
    if labels is None:
        if "train" not in opened:
            raise UserError("classification has no labels yet: give the training file with --train")
        labels = _find_classes(opened["train"](), source)
    if source.positive_class is not None:
        labels = _with_positive_class(labels, source.positive_class, is_fixed=metadata.labels is not None)
    numbers = ClassNumbers(labels)
    is_binary = len(labels) == 2
    positive = (describe_positive_class(labels[1]),) if is_binary else ()

    def parse(table: Table, labelled: bool) -> Reading:
        columns = find_text_columns(table, source, "classes", labelled, layout)
        column = columns.label or ""
        reading = read_texts(table, columns, labelled, lambda row: class_number(row, column, numbers))
        if not labelled:
            return reading
        written = [label for row in table.rows if numbers.get(label := row.text(column).strip()) is not None]
        remarks = (*reading.remarks, *describe_nan_labels(table.name, column, written), *positive)
        return replace(reading, remarks=remarks)

    measure = measure_classes(accuracy, macro_f1, *((f1,) if is_binary else ()), matthews)
    return build_task(
        "classification",
        "classification",
        source,
        opened,
        parse,
        measure,
        "accuracy",
        labels=labels,
        has_labels=lambda table: has_labels(table, layout),
    )


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


def _find_classes(table: Table, source: TaskSource) -> tuple[str, ...]:
    column = find_text_columns(table, source, "classes", labelled=True).label or ""
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
    opened = open_custom_splits("multi_label", source)
    layout = find_layout(metadata, opened, lambda table: _multi_label_layout(table, source, metadata.labels or ()))
    labels, trained_separator = metadata.labels, metadata.separator
    if labels is None:
        if "train" not in opened:
            raise UserError("multi_label has no labels yet: give the training file with --train")
        labels, trained_separator = _find_labels(opened["train"](), source)
    names = labels
    numbers = ClassNumbers(names)

    def parse(table: Table, labelled: bool) -> Reading:
        flags = _flag_columns(table, source, names, layout)
        # --label-columns may find a column whose name differs in case from that in the training file.
        label_of_flag = {flag: same_name(flag, names) or flag for flag in flags}
        columns = find_text_columns(table, source, "sets", labelled, layout, flags)
        separator = _separator(table, columns, source, names, trained_separator)

        def labels_of(row: Row) -> tuple[int, ...] | None:
            found = _flagged(row, label_of_flag) if flags else _listed(row, columns, separator)
            given = [name for name in found or () if not numbers.is_none(name)]
            if found is None or (found and not given):
                return None
            chosen = set()
            for name in given:
                if (number := numbers.get(name)) is None:
                    raise UserError(f"{row.place}: the label '{name}' is not known: known are {numbers.known}")
                chosen.add(number)
            return tuple(sorted(chosen))

        reading = read_texts(table, columns, labelled, labels_of)
        remarks = reading.remarks
        if flags:
            if not source.label_columns:
                listed = ", ".join(flags)
                remarks += (
                    f"{table.name}: each of the columns {listed} is a label (guessed; change with --label-columns)",
                )
            return replace(reading, remarks=remarks)
        if labelled:
            written = [name for row in table.rows for name in _listed(row, columns, separator) or ()]
            is_class = [name for name in written if numbers.get(name) is not None]
            remarks += describe_nan_labels(table.name, columns.label or "", is_class)
            if not source.label_separator and any(separator in cell for cell in _cells(table, columns)):
                other = layout_of_other_file(layout, table)
                how = other.like if other is not None and separator == trained_separator else "guessed"
                where = f"'{separator}' separates labels in '{columns.label}'"
                remarks += (f"{table.name}: {where} ({how}; change with --label-separator)",)
        return replace(reading, remarks=remarks, separator=separator)

    measure = measure_label_sets(len(names))
    return build_task(
        "multi_label",
        "multi_label",
        source,
        opened,
        parse,
        measure,
        "f1",
        labels=names,
        has_labels=lambda table: has_labels(table, layout),
    )


def _multi_label_layout(table: Table, source: TaskSource, labels: tuple[str, ...]) -> Mapping[str, str]:
    flags = _flag_columns(table, source, labels)
    return find_text_columns(table, source, "sets", labelled=True, label_columns=flags).layout


def _find_labels(table: Table, source: TaskSource) -> tuple[tuple[str, ...], str | None]:
    """The labels of a table, and their separator, if any."""
    flags = _flag_columns(table, source, ())
    if flags:
        return flags, None
    columns = find_text_columns(table, source, "sets", labelled=True)
    separator = _separator(table, columns, source, (), None)
    names = sort_labels(class_names(name for row in table.rows for name in _listed(row, columns, separator) or ()))
    if not names:
        raise UserError(f"{table.name} has no labels in '{columns.label}': is the column right?")
    return names, separator


def _flag_columns(
    table: Table, source: TaskSource, labels: tuple[str, ...], layout: Layout | None = None
) -> tuple[str, ...]:
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


def _separator(
    table: Table, columns: TextColumns, source: TaskSource, labels: tuple[str, ...], trained: str | None
) -> str:
    """The separator between labels: the user's, else one that gives known labels only (that of the training file
    first), else the first of the usual ones that occurs."""
    if source.label_separator:
        return source.label_separator
    cells = _cells(table, columns)
    separators = ((trained,) if trained is not None else ()) + SEPARATORS
    numbers = ClassNumbers(labels)
    for separator in separators if labels else ():
        names = {name.strip() for cell in cells for name in cell.split(separator)} - {""}
        if all(numbers.get(name) is not None or numbers.is_none(name) for name in names):
            return separator
    return next((one for one in separators if any(one in cell for cell in cells)), separators[0])


def _cells(table: Table, columns: TextColumns) -> list[str]:
    values = sample(table, columns.label) if columns.label is not None else []
    return [value for value in values if isinstance(value, str)]


def _listed(row: Row, columns: TextColumns, separator: str) -> list[str] | None:
    """The labels of a row with one column for all; None where it has no value."""
    given = row.values.get(columns.label or "")
    if given is None or given != given:  # NaN, which marks a missing value
        return None
    if isinstance(given, list):
        names = [as_text(name, f"{row.place}: a label") for name in given]
    else:
        names = row.text(columns.label or "").split(separator)
    return [name.strip() for name in names if name.strip()]
