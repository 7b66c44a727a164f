"""task.json of a fine-tuned model's folder: its task, and how its inputs are prepared."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from openalbert import atomic_io
from openalbert.interop.huggingface import TASK, read_folder_config
from openalbert.interop.names import family_of
from openalbert.model.pooling import Pooling
from openalbert.settings import from_json, to_json
from openalbert.tasks.registry import GLUE
from openalbert.tasks.task import MAX_ANSWER_TOKENS, AnswerFormat, Kind, LongTexts

SENTENCE_TRANSFORMERS = (("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize"))


@dataclass(frozen=True)
class TaskInfo:
    """The task of a model, in addition to the heads and labels in config.json."""

    task: str
    """The name of the task."""
    kind: Kind
    max_length: int
    """Maximum tokens of an example, or of a window over a passage."""
    stride: int = 128
    """Distance in tokens between the starts of successive windows over a passage."""
    null_threshold: float | None = None
    """A question with a null score above this has no answer, where that is allowed."""
    split: str = ""
    """The split it was scored on."""
    scores: dict[str, float] = field(default_factory=dict)
    """Its metrics there, in percent."""
    metric: str = ""
    """The metric that was optimized."""
    of_pairs: bool | None = None
    """Whether it learned from pairs of texts, and not from single ones; None for kinds without such texts, or where
    nobody noted it."""
    answer_format: AnswerFormat | None = None
    """How the training file of custom multiple choice names the right option; None for other tasks."""
    layout: dict[str, str] = field(default_factory=dict)
    """The role of each column of the training file, for the user's own files."""
    separator: str | None = None
    """The separator between several labels in one cell there."""
    max_answer_tokens: int = MAX_ANSWER_TOKENS
    """The longest answer to a question, in tokens."""
    pooling: Pooling | None = None
    """For similarity: how the embedding of a text is made from those of its tokens."""
    long_texts: LongTexts = "truncate"
    """Whether texts beyond `max_length` are cut, or read in windows whose logits are combined by mean or maximum."""

    @property
    def reads_pairs(self) -> bool | None:
        """`of_pairs`, where it is not noted that of the GLUE task."""
        return bool(GLUE[self.task].second) if self.of_pairs is None and self.task in GLUE else self.of_pairs


def write_task_info(folder: Path, info: TaskInfo) -> None:
    """Write task.json into a model folder, and the files of sentence-transformers for a model of similarity."""
    atomic_io.write_text(folder / TASK, to_json(info))
    if info.kind == "similarity":
        config = read_folder_config(folder)
        if family_of(config) is not None:
            _write_sentence_transformers_files(folder, config.hidden_size, info.max_length)


def _write_sentence_transformers_files(folder: Path, hidden_size: int, max_length: int) -> None:
    """Make a model folder one of sentence-transformers: encoder, mean over tokens, normalization."""
    modules = [
        {"idx": int(number), "name": number, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, path, kind in SENTENCE_TRANSFORMERS
    ]
    pooling = {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for _, path, _ in SENTENCE_TRANSFORMERS[1:]:
        (folder / path).mkdir(exist_ok=True)
    for name, values in (
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False}),
        ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}),
        ("modules.json", modules),
    ):
        atomic_io.write_text(folder / name, json.dumps(values, indent=2) + "\n")


def read_task_info(folder: Path) -> TaskInfo | None:
    """The content of task.json; None where the model was fine-tuned elsewhere."""
    path = folder / TASK
    return from_json(path.read_bytes(), TaskInfo, str(path)) if path.is_file() else None
