"""Classes of a user's own texts or pairs of texts."""

from dataclasses import replace

from openalbert.errors import UserError
from openalbert.tasks.custom.columns import in_order, layout_of
from openalbert.tasks.custom.names import simple
from openalbert.tasks.custom.text import own_openings, read_texts, texts_of
from openalbert.tasks.data.fields import class_number
from openalbert.tasks.data.labels import ClassNumbers, class_names, nan_told
from openalbert.tasks.data.source import TaskSource, assemble
from openalbert.tasks.data.tables import Table
from openalbert.tasks.metrics import accuracy, f1, macro_f1, matthews, measure_classes
from openalbert.tasks.task import Known, Reading, Task


def open_classification(source: TaskSource, known: Known) -> Task:
    """The task; its labels are those of the training file, unless a model's own are known."""
    opened = own_openings("classification", source)
    layout = layout_of(known, opened, lambda table: texts_of(table, source, "classes", labelled=True).layout)
    labels = known.labels
    if labels is None:
        if "train" not in opened:
            raise UserError("classification has no labels yet: give the training file with --train")
        labels = _labels(opened["train"](), source)
    numbers = ClassNumbers(labels)

    def parse(table: Table, labelled: bool) -> Reading:
        texts = texts_of(table, source, "classes", labelled, layout)
        column = texts.label or ""
        reading = read_texts(table, texts, labelled, lambda row: class_number(row, column, numbers))
        if not labelled:
            return reading
        written = [label for row in table.rows if numbers.get(label := row.text(column).strip()) is not None]
        return replace(reading, remarks=reading.remarks + nan_told(table.name, column, written))

    of_two = (f1,) if len(labels) == 2 else ()
    measure = measure_classes(accuracy, macro_f1, *of_two, matthews)
    return assemble("classification", "classification", source, opened, parse, measure, "accuracy", labels=labels)


def _labels(table: Table, source: TaskSource) -> tuple[str, ...]:
    column = texts_of(table, source, "classes", labelled=True).label or ""
    # SNLI and MNLI write - there where the annotators did not agree; in any other column it may be a class beside +.
    none = ("", "-") if simple(column) == "goldlabel" else ("",)
    found = [label for row in table.rows if (label := row.text(column).strip()) not in none]
    names = in_order(class_names(found))
    if len(names) < 2:
        only = f"only one class, '{names[0]}'," if names else "no class at all"
        raise UserError(f"{table.name} has {only} in '{column}': there is nothing to tell apart; is the column right?")
    if len(names) > 20 and 2 * len(names) > len(found):
        raise UserError(
            f"{table.name} has {len(names):,} classes in {len(found):,} rows of '{column}': that is not a column of "
            "classes; name another with --label-column, or is it --task regression?"
        )
    return names
