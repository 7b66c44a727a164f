"""Any number of labels for each of a user's own texts or pairs of texts.

A JSONL row has a list of labels; a CSV row has them in one column with a sign between, or a column of 0 and 1 for each.
"""

from collections.abc import Mapping
from dataclasses import replace

from openalbert.errors import UserError
from openalbert.tasks.custom.columns import KNOWN, Layout, in_order, layout_of, of_another, sample
from openalbert.tasks.custom.guess import SEPARATORS
from openalbert.tasks.custom.names import LABELS, SUBJECTS, simple
from openalbert.tasks.custom.text import Texts, own_openings, read_texts, texts_of
from openalbert.tasks.data.labels import ClassNumbers, class_names, is_nan, nan_told
from openalbert.tasks.data.source import TaskSource, assemble
from openalbert.tasks.data.tables import Row, Table, as_text
from openalbert.tasks.metrics import measure_label_sets
from openalbert.tasks.task import Known, Reading, Task

YES, NO = ("1", "1.0", "true", "True"), ("0", "0.0", "false", "False", "")


def open_multi_label(source: TaskSource, known: Known) -> Task:
    """The task; its labels are those of the training file, unless a model's own are known."""
    opened = own_openings("multi_label", source)
    layout = layout_of(known, opened, lambda table: _columns(table, source, known.labels or ()))
    labels, learned = known.labels, known.separator
    if labels is None:
        if "train" not in opened:
            raise UserError("multi_label has no labels yet: give the training file with --train")
        labels, learned = _names(opened["train"](), source)
    names = labels
    numbers = ClassNumbers(names)

    def parse(table: Table, labelled: bool) -> Reading:
        flags = _flag_columns(table, source, names, layout)
        texts = texts_of(table, source, "sets", labelled, layout, flags)
        separator = _separator(table, texts, source, names, learned)

        def labels_of(row: Row) -> tuple[int, ...] | None:
            found = _flagged(row, flags) if flags else _listed(row, texts, separator)
            there = [name for name in found or () if not numbers.is_none(name)]
            if found is None or (found and not there):
                return None
            chosen = set()
            for name in there:
                if (number := numbers.get(name)) is None:
                    raise UserError(f"{row.place}: the label '{name}' is not known: known are {numbers.known}")
                chosen.add(number)
            return tuple(sorted(chosen))

        reading = read_texts(table, texts, labelled, labels_of)
        if not flags:
            remarks = reading.remarks
            if labelled:
                written = [name for row in table.rows for name in _listed(row, texts, separator) or ()]
                is_class = [name for name in written if numbers.get(name) is not None]
                remarks += nan_told(table.name, texts.label or "", is_class)
            if labelled and not source.label_separator and any(separator in cell for cell in _cells(table, texts)):
                other = of_another(layout, table)
                how = other.like if other is not None and separator == learned else "guessed"
                told = (
                    f"'{separator}' stands between labels in '{texts.label}' ({how}; --label-separator says otherwise)"
                )
                remarks += (f"{table.name}: {told}",)
            return replace(reading, remarks=remarks, separator=separator)
        if source.label_columns:
            return reading
        remark = (
            f"{table.name}: each of the columns {', '.join(flags)} is a label (guessed; --label-columns says otherwise)"
        )
        return replace(reading, remarks=(*reading.remarks, remark))

    measure = measure_label_sets(len(names))
    return assemble("multi_label", "multi_label", source, opened, parse, measure, "f1", labels=names)


def _columns(table: Table, source: TaskSource, labels: tuple[str, ...]) -> Mapping[str, str]:
    return texts_of(table, source, "sets", labelled=True, label_columns=_flag_columns(table, source, labels)).layout


def _names(table: Table, source: TaskSource) -> tuple[tuple[str, ...], str | None]:
    """The labels of a table, and what stands between them, if anything."""
    flags = _flag_columns(table, source, ())
    if flags:
        return flags, None
    texts = texts_of(table, source, "sets", labelled=True)
    separator = _separator(table, texts, source, (), None)
    names = in_order(class_names(name for row in table.rows for name in _listed(row, texts, separator) or ()))
    if not names:
        raise UserError(f"{table.name} has no labels in '{texts.label}': is the column right?")
    return names, separator


def _flag_columns(
    table: Table, source: TaskSource, labels: tuple[str, ...], layout: Layout | None = None
) -> tuple[str, ...]:
    """The columns that are a label each: named by the user, or a model's labels, or all that hold 0 and 1 only.

    Where labels were learned from one column that is found again, there are none.
    """
    if source.label_columns:
        for name in source.label_columns:
            table.column((name,), "label (--label-columns)")
        return source.label_columns
    if layout is not None and layout.columns.get("label") in table.columns:
        return ()
    if labels and set(labels) <= set(table.columns):
        return labels
    if source.label_column or {simple(column) for column in table.columns} & set(map(simple, (*LABELS, *SUBJECTS))):
        return ()
    others = (source.id_column, source.text_column, source.second_column)
    free = [name for name in table.columns if name not in others and simple(name) not in KNOWN["id"]]
    flags = tuple(name for name in free if {str(value).strip() for value in sample(table, name)} <= {*YES, *NO} - {""})
    return flags if len(flags) > 1 else ()


def _flagged(row: Row, flags: tuple[str, ...]) -> list[str] | None:
    """The labels of a row whose columns say yes or no; None where one says NaN."""
    if any(is_nan(str(row.values.get(name)).strip()) for name in flags):
        return None
    return [name for name in flags if _is_set(row, name)]


def _is_set(row: Row, column: str) -> bool:
    value = row.text(column).strip()
    if value in YES or value in NO:
        return value in YES
    raise UserError(f"{row.place}: '{value}' in '{column}' is neither 0 nor 1")


def _separator(table: Table, texts: Texts, source: TaskSource, labels: tuple[str, ...], known: str | None) -> str:
    """What stands between labels: as the user says, else a sign that leaves known labels, first of all the one that was
    learned with, else the first of the usual signs that is found."""
    if source.label_separator:
        return source.label_separator
    cells = _cells(table, texts)
    signs = ((known,) if known is not None else ()) + SEPARATORS
    numbers = ClassNumbers(labels)
    for sign in signs if labels else ():
        parts = {part.strip() for cell in cells for part in cell.split(sign)} - {""}
        if all(numbers.get(part) is not None or numbers.is_none(part) for part in parts):
            return sign
    return next((sign for sign in signs if any(sign in cell for cell in cells)), signs[0])


def _cells(table: Table, texts: Texts) -> list[str]:
    """What stands in the column of labels as text, in the first rows."""
    values = sample(table, texts.label) if texts.label is not None else []
    return [value for value in values if isinstance(value, str)]


def _listed(row: Row, texts: Texts, separator: str) -> list[str] | None:
    given = row.values.get(texts.label or "")
    if given is None or given != given:  # NaN, which stands where nothing does
        return None
    if isinstance(given, list):
        parts = [as_text(part, f"{row.place}: a label") for part in given]
    else:
        parts = row.text(texts.label or "").split(separator)
    return [part.strip() for part in parts if part.strip()]
