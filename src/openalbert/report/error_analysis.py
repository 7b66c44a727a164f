"""What became of a split's examples, closer than one figure says: by class, which for which, and the worst mistakes.

It is written as error_analysis.json into a run, so that its page can be drawn when neither data nor model are at hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.interop.run_files import ERROR_ANALYSIS
from openalbert.settings import from_json, to_json
from openalbert.tasks.task import Kind


@dataclass(frozen=True)
class Mark:
    """A stretch of a text that stands out: what is right, or what was predicted."""

    kind: str
    """gold or predicted."""
    start: int
    end: int


@dataclass(frozen=True)
class Shown:
    """A text of an example, as a person reads it."""

    name: str
    """What it is to the example: text, second text, passage, question, option."""
    text: str
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """An example that was answered wrongly."""

    id: str
    texts: tuple[Shown, ...]
    gold: str
    """What is right, in words."""
    predicted: str
    """What the model says, in words."""
    how_sure: str
    """How sure it was, in words."""
    row: int | None = None
    """The number of its row in its file, from 1, the header not counted; None where that is not known."""

    @property
    def place(self) -> str:
        """Where a person finds it. An id that only counts the rows from 0 says nothing more than the row."""
        if self.row is None:
            return f"id {self.id}"
        return f"row {self.row:,}" if self.id == str(self.row - 1) else f"id {self.id}, row {self.row:,}"


@dataclass(frozen=True)
class Part:
    """Figures of some of the examples: of a class, of a kind of question."""

    name: str
    num_examples: int
    figures: dict[str, float]
    """In percent."""


@dataclass(frozen=True)
class ErrorAnalysis:
    """A closer look at one split."""

    task: str
    kind: Kind
    split: str
    main_metric: str
    scores: dict[str, float]
    """The task's own figures, in percent."""
    num_examples: int
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % interval of each score that has one: on few examples."""
    never_predicted: dict[str, int] = field(default_factory=dict)
    """Classes that occur and were never predicted, with the number of their examples."""
    num_models: int = 1
    """More than one: an ensemble."""
    num_truncated: int = 0
    """Examples of which something had to be left out to fit."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Why rows were left out, and how many."""
    null_threshold: str = ""
    """Where a question may have no answer: above which null score it has none, and where that number is from."""
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """For classes: how often each (row) was taken for each (column)."""
    values: tuple[tuple[float, float], ...] = ()
    """For regression: what is right beside what was predicted, of some examples."""
    parts_title: str = ""
    """What the parts are: classes, options, kinds of questions."""
    parts: tuple[Part, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    """The worst first."""
    num_mistakes: int = 0


def write_error_analyses(folder: Path, analyses: Sequence[ErrorAnalysis]) -> None:
    """Put the findings of some splits into a run; the first one is of the split that decides."""
    atomic_io.write_text(folder / ERROR_ANALYSIS, to_json(_Several(tuple(analyses))))


def read_error_analyses(folder: Path) -> tuple[ErrorAnalysis, ...]:
    """The findings of a run; none where it has not come to its end."""
    path = folder / ERROR_ANALYSIS
    if not path.is_file():
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError:
        raise UserError(f"{path}: not UTF-8: the file is damaged") from None
    return from_json(text, _Several, str(path)).splits


@dataclass(frozen=True)
class _Several:
    splits: tuple[ErrorAnalysis, ...]


def written_scores(
    scores: Mapping[str, float], main_metric: str, intervals: Mapping[str, Sequence[float]] | None = None
) -> str:
    """The figures in one line, the main one first, with their intervals where they have one."""
    names = sorted(scores, key=lambda name: name != main_metric)
    return ", ".join(f"{name} {with_interval(scores[name], (intervals or {}).get(name))}" for name in names)


def with_interval(score: float, interval: Sequence[float] | None) -> str:
    """A score with its interval, if it has one: `97.44 [86.82, 99.55]`."""
    return f"{score:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval is not None else "")


def explained(num_examples: int) -> str:
    """What the brackets mean, as a sentence."""
    return f"in brackets: 95 % intervals, from {counted(num_examples, 'example')}"
