"""A value for each of a user's own texts or pairs of texts."""

from openalbert.tasks.custom.columns import layout_of
from openalbert.tasks.custom.text import own_openings, read_texts, texts_of
from openalbert.tasks.data.fields import value
from openalbert.tasks.data.source import TaskSource, assemble
from openalbert.tasks.data.tables import Table
from openalbert.tasks.metrics import measure_values, pearson, r2, spearman
from openalbert.tasks.task import Known, Reading, Task


def open_regression(source: TaskSource, known: Known) -> Task:
    """The task; a model's label may name the value."""
    opened = own_openings("regression", source)
    layout = layout_of(known, opened, lambda table: texts_of(table, source, "values", labelled=True).layout)

    def parse(table: Table, labelled: bool) -> Reading:
        texts = texts_of(table, source, "values", labelled, layout)
        return read_texts(table, texts, labelled, lambda row: value(row, texts.label or ""))

    # A correlation is as high where all predictions are alike to the third digit: it says nothing of the values.
    measure = measure_values(r2, pearson, spearman)
    return assemble("regression", "regression", source, opened, parse, measure, "r2", labels=known.labels or ())
