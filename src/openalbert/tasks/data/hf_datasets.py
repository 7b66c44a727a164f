"""The splits of a Hugging Face dataset as tables, by its name or from a folder where it is saved."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from openalbert.errors import UserError, suggestion
from openalbert.tasks.data.row_files import Row, Table, table_of
from openalbert.tasks.data.source import SplitReader, TaskSource
from openalbert.text.records import dataset_errors, load_dataset


def open_dataset(source: TaskSource, names: Mapping[str, str]) -> dict[str, SplitReader]:
    """A reader for each split of the dataset; `names` are its names for our splits."""
    name = str(source.dataset)
    with dataset_errors(name):
        loaded = load_dataset(name, source.dataset_config)
    dataset: Mapping[str, Any] = loaded if isinstance(loaded, dict) else {"train": loaded}
    if source.dataset_dev is not None:
        if source.dataset_dev not in dataset:
            known = suggestion(source.dataset_dev, list(dataset))
            raise UserError(f"{source.dataset} has no split '{source.dataset_dev}' (--dataset-dev): {known}")
        train = {"train": names["train"]} if "train" in names else {}
        names = {**train, "dev": source.dataset_dev}
    found: dict[str, SplitReader] = {
        split: functools.partial(_table, f"{source.dataset}, {name}", dataset[name])
        for split, name in names.items()
        if name in dataset
    }
    if not found:
        raise UserError(
            f"{source.dataset} has none of the splits {', '.join(names.values())}: it has {', '.join(dataset)}; "
            "name the one to score on with --dataset-dev"
        )
    return found


def _table(name: str, rows: Any) -> Table:
    names_of = {column: names for column, feature in rows.features.items() if (names := _class_names(feature))}
    plain = [
        Row(f"{name}, row", number, {**row, **{column: named(row[column]) for column, named in names_of.items()}})
        for number, row in enumerate(rows, 1)
    ]
    return table_of(name, plain)


def _class_names(feature: Any) -> Callable[[Any], Any] | None:
    """A function that maps a column's class numbers to their names; None where it has none."""
    if hasattr(feature, "int2str"):

        def named(number: int | None) -> str | None:
            # Datasets have -1 for a missing label.
            return None if number is None or number < 0 else str(feature.int2str(number))

        return named
    inner = _class_names(feature.feature) if hasattr(feature, "feature") else None
    return None if inner is None else lambda numbers: [inner(number) for number in numbers or ()]
