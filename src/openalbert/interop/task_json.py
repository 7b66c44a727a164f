"""task.json of a fine-tuned model's folder: what it was tuned for, and how it is to be asked."""

from dataclasses import dataclass, field
from pathlib import Path

from openalbert import atomic_io
from openalbert.interop.huggingface import TASK
from openalbert.settings import from_json, to_json
from openalbert.tasks.task import MAX_ANSWER_TOKENS, AnswerFormat, Kind


@dataclass(frozen=True)
class TaskInfo:
    """What a model folder says of its task beside the heads and labels in config.json."""

    task: str
    """The name of the task."""
    kind: Kind
    max_length: int
    """Tokens that an example was cut to, or that a window over a passage had."""
    stride: int = 128
    """How many tokens after one window over a passage the next one begins."""
    null_threshold: float | None = None
    """Above which null score a question has no answer, where there may be none."""
    split: str = ""
    """What it was scored on."""
    scores: dict[str, float] = field(default_factory=dict)
    """Its figures there, in percent."""
    metric: str = ""
    """The one that was optimized."""
    of_pairs: bool | None = None
    """Whether it learned from pairs of texts, and not from single ones; None for kinds without such texts, or where
    nobody noted it."""
    answer_format: AnswerFormat | None = None
    """How the training file of custom multiple choice names the right option; None for other tasks."""
    layout: dict[str, str] = field(default_factory=dict)
    """Which column of the training file was taken for what, in files of one's own."""
    separator: str | None = None
    """What stands between labels there, where several stand in one cell."""
    max_answer_tokens: int = MAX_ANSWER_TOKENS
    """The longest answer to a question, in tokens."""


def write_task_info(folder: Path, tuned: TaskInfo) -> None:
    """Put it beside the weights."""
    atomic_io.write_text(folder / TASK, to_json(tuned))


def read_task_info(folder: Path) -> TaskInfo | None:
    """What the folder says; nothing where the model was tuned elsewhere."""
    path = folder / TASK
    return from_json(path.read_text(encoding="utf-8"), TaskInfo, str(path)) if path.is_file() else None
