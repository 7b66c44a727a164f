"""A value for each of a user's own texts or pairs of texts."""

from collections.abc import Mapping

from openalbert.tasks.metrics import measure_values, pearson, r2, spearman
from openalbert.tasks.own.texts import own_openings, read_texts, texts_of
from openalbert.tasks.source import Source, assemble
from openalbert.tasks.tables import Table
from openalbert.tasks.task import Reading, Task
from openalbert.tasks.texts import value


def open_regression(
    source: Source, labels: tuple[str, ...] | None = None, layout: Mapping[str, str] | None = None
) -> Task:
    """The task; `labels` may name the value."""
    opened = own_openings("regression", source)

    def parse(table: Table, labelled: bool) -> Reading:
        texts = texts_of(table, source, labelled, layout)
        return read_texts(table, texts, labelled, lambda row: value(row, texts.label or ""))

    # A correlation is as high where all predictions are alike to the third digit: it says nothing of the values.
    measure = measure_values(r2, pearson, spearman)
    return assemble("regression", "regression", source, opened, parse, measure, "r2", labels=labels or ())
