"""The verb `predict`: predictions of a model for texts and files of any size, in the order of their rows."""

import contextlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert.errors import UserError
from openalbert.finetuning.predict import TOKENS_AT_A_TIME
from openalbert.model.heads import EXIT_KINDS
from openalbert.progress import log
from openalbert.serve.files.roles import InputColumns, RowReader, find_roles, lines_for, words_for
from openalbert.serve.files.row_writers import Cells, open_writer
from openalbert.serve.files.rows import (
    ENDINGS,
    Chunk,
    Format,
    Rows,
    first_table,
)
from openalbert.serve.inputs import Input
from openalbert.serve.predictions import (
    PROBABILITIES,
    PROBABILITY,
    TAGS,
    CellKind,
    Prediction,
    Unpredictable,
    added_columns,
)
from openalbert.serve.predictor import TOP, Predicted, Predictor
from openalbert.serve.row_verbs import RowCount, open_given, open_model, open_output, progress
from openalbert.train.device import Speed

DIGITS = 6  # significant ones of probabilities and values in files


@dataclass(frozen=True)
class Predict:
    """Predict for texts or for the rows of a file."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A fine-tuned or pretrained model: a model folder, a run, the name of a bundled checkpoint, or `owner/name` on
    Hugging Face's hub."""
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="[TEXT ...|FILE|-]")] = ()
    """Texts; or a file: CSV, TSV, JSONL, JSON, Parquet, CoNLL, or .txt, a text a line. Nothing, or -: standard
    input."""
    out: Path | None = None
    """The file to write: with the ending of the input, or .jsonl. Not given: standard output."""
    all_probabilities: bool = False
    """Write the probabilities of all classes, labels or options."""
    prefix: Annotated[str, arg(metavar="TEXT")] = ""
    """Put this before the names of the added columns, where the file has such columns already."""
    columns: Annotated[InputColumns, OmitArgPrefixes] = field(default_factory=InputColumns)
    """The columns to read."""
    top: int = TOP
    """For [MASK]: how many pieces --all-probabilities writes for each."""
    max_length: int | None = None
    """The longest input in tokens. Not given: as in fine-tuning."""
    tokens_at_a_time: int = TOKENS_AT_A_TIME
    """How many tokens are computed together: fewer need less memory."""
    depth: int | None = None
    """How many layers are computed, for all inputs. Not given: all, or as many as each input needs where the model
    was fine-tuned with --exits."""
    speedup: float | None = None
    """With --exits: the deepest rule that is as good as any with so many times fewer layers where it was fitted. Not
    given: the one chosen in fine-tuning."""
    deadline_ms: float | None = None
    """An input leaves with what it has after so many milliseconds. Each is computed alone, so that the time is its
    own."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""


def predict(settings: Predict) -> None:
    """Predict for what was given, and write it."""
    with open_model(settings.model, settings.speed) as model:
        rows = open_given(settings.texts, settings.out, lines_for(model), lambda words: words_for(model, words))
        form = _output_format(rows, settings.out)
        first = next(rows.chunks)
        reader = _reader(model, rows, first, settings.columns)
        for remark in reader.remarks:
            log(remark)
        added = _added(model, settings, form)
        predictor = _RowPredictor(model, settings, reader, added)
        with open_output(settings.out) as file:
            with (
                contextlib.closing(open_writer(file, form, rows, added)) as writer,
                progress("predict", rows) as advance,
            ):
                for chunk in itertools.chain([first], rows.chunks):
                    writer.write(chunk, predictor.cells(chunk))
                    advance(float(chunk.num_lines))
            predictor.report(rows)


def _reader(model: Predictor, rows: Rows, first: Chunk, columns: InputColumns) -> RowReader:
    if rows.format == "conll" and model.kind != "tagging":
        raise UserError(f"{rows.name} is a CoNLL file, whose words {model.name} does not tag: it is for {model.kind}")
    if rows.format == "text":
        return RowReader(lambda row: row.values)
    return find_roles(model, first_table(rows, first), columns)


def _added(model: Predictor, settings: Predict, form: Format) -> dict[str, CellKind]:
    """The columns that are added. In JSONL all probabilities are one object, elsewhere a column for each label."""
    answer_format = model.task.answer_format if model.task is not None else None
    labels = model.labels if form != "jsonl" else ()
    if form == "conll":
        return {TAGS: "texts"}
    added = added_columns(model.kind, labels, answer_format, settings.all_probabilities)
    return {f"{settings.prefix}{name}": kind for name, kind in added.items()}


class _RowPredictor:
    """Predicts chunk by chunk, and counts what could not be predicted."""

    def __init__(self, model: Predictor, settings: Predict, reader: RowReader, added: Mapping[str, CellKind]) -> None:
        self.model, self.settings, self.reader, self.added = model, settings, reader, added
        self.leaving = model.leaving(depth=settings.depth, speedup=settings.speedup, deadline_ms=settings.deadline_ms)
        is_cut = settings.deadline_ms is not None or (settings.depth or math.inf) < model.config.num_layers
        if is_cut and model.exits is None and model.kind in EXIT_KINDS:
            log(
                f"{model.name} was fine-tuned without --exits: its head did not learn to decide after fewer layers, so "
                "early predictions may be far worse"
            )
        self.count = RowCount()
        self.num_predicted = self.num_layers = 0
        self._predict([])  # refuses settings that do not fit the model before anything is written

    def _predict(self, inputs: list[Input]) -> Predicted:
        return self.model.predict_inputs(
            inputs,
            max_length=self.settings.max_length,
            tokens_at_a_time=self.settings.tokens_at_a_time,
            top=self.settings.top,
            leaving=self.leaving,
        )

    def cells(self, chunk: Chunk) -> list[Cells]:
        """The cells that are added to each record of a chunk."""
        inputs: dict[int, Input] = {}
        cells: list[Cells] = [dict.fromkeys(self.added) for _ in chunk.records]
        for place, record in enumerate(chunk.records):
            if record.row is not None:
                try:
                    inputs[place] = self.reader.read(record.row)
                except UserError as error:  # a list where a text belongs, which the error says with the place
                    self.count.problems.add(f"that cannot be read ({error})", record.where)
            elif record.problem:
                self.count.problems.add(record.problem, record.where)
        found = self._predict(list(inputs.values()))
        for (place, _), one in zip(inputs.items(), found.predictions, strict=True):
            if isinstance(one, Unpredictable):
                self.count.problems.add(one.reason, chunk.records[place].where)
            else:
                cells[place] = self._cells(one)
                self.num_predicted += 1
                self.num_layers += getattr(one, "depth", None) or 0
        self.count.num_rows += sum(not record.is_blank for record in chunk.records)
        self.count.num_truncated += found.num_truncated
        return cells

    def _cells(self, prediction: Prediction) -> Cells:
        values = prediction.cells()
        if self.settings.all_probabilities:
            likely = prediction.all_probabilities()
            values[PROBABILITIES] = likely
            if isinstance(likely, dict):
                values |= {f"{PROBABILITY}_{label}": one for label, one in likely.items()}
        named = {f"{self.settings.prefix}{name}": _rounded(value) for name, value in values.items()}
        return {name: named.get(name) for name in self.added}

    def report(self, rows: Rows) -> None:
        """Log what was truncated or could not be predicted; nothing at all is an error."""
        if self.num_layers:
            mean = self.num_layers / self.num_predicted
            log(f"{mean:.1f} of {self.model.config.num_layers} layers were computed on average")
        if self.model.kind is None and not self.num_predicted:
            log(f"{self.model.name} is a pretrained model: fine-tune it for a task first")
        longest = self.settings.max_length or self.model.max_length
        self.count.report(rows.name, longest, "predicted", "no prediction")


def _rounded(value: Any) -> Any:
    """Numbers with the digits that matter; one that is not finite, which JSON cannot hold, is None."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _output_format(rows: Rows, out: Path | None) -> Format:
    if out is None:
        return rows.format if rows.format in ("csv", "tsv", "conll") else "jsonl"
    form = ENDINGS.get(out.suffix.lower())
    if (form == "conll") != (rows.format == "conll"):
        raise UserError(
            f"--out {out}: predictions for a CoNLL file are a column of it, and only for such a file: give --out the "
            "ending of the input"
        )
    if form is None or form in ("text", "json"):
        raise UserError(f"--out {out}: its ending says no format to write: .csv, .tsv, .jsonl and .parquet do")
    return form
