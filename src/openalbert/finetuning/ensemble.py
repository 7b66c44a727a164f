"""The models that are asked together (the paper's ensembles; one is the smallest), and the task as they know it."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from openalbert.errors import UserError
from openalbert.finetuning.predict import PRETRAINING
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import Pretraining, read_pretraining
from openalbert.interop.task_json import TaskInfo, read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.report.run_reader import examples_of
from openalbert.tasks.custom.columns import setting_of
from openalbert.tasks.registry import GLUE, TASKS, TaskMetadata, TaskSource, open_task
from openalbert.tasks.task import Reading, Task, are_pairs
from openalbert.text.tokenizer import Tokenizer

Said = TypeVar("Said", bound=str)
_UNNAMED = re.compile(r"LABEL_\d+|\d+")  # what Hugging Face writes where nobody named the classes


@dataclass(frozen=True)
class Loaded:
    """Models that answer together, and how they are to be asked."""

    names: tuple[str, ...]
    models: tuple[AlbertModel, ...]
    tokenizer: Tokenizer
    tuned: tuple[TaskInfo | None, ...]
    pretraining: tuple[Pretraining | None, ...]

    @property
    def head(self) -> Head:
        """The first of the heads that do a task."""
        return next(head for head in self.models[0].head_list if head.kind not in PRETRAINING)


def load_models(names: Sequence[str]) -> Loaded:
    """The models of these names; they must know the same pieces and answer the same question."""
    folders = [huggingface.find_folder(name) for name in names]
    models = [huggingface.load(folder) for folder in folders]
    tokenizers = [Tokenizer.load(folder) for folder in folders]
    for name, model, tokenizer in zip(names, models, tokenizers, strict=True):
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(f"{name} has another vocabulary than {names[0]}: only models of one can answer together")
        if tokenizer.vocab_size > model.config.vocab_size:
            raise UserError(
                f"{name}: its tokenizer has {tokenizer.vocab_size} pieces, but the model knows "
                f"{model.config.vocab_size}: they do not belong together"
            )
        heads, first = task_heads(model), task_heads(models[0])
        if not heads:
            raise UserError(f"{name} has no head for a task: fine-tune it first, with `openalbert finetune`")
        if heads != first:
            raise UserError(
                f"{name} answers {_in_words(heads)}, but {names[0]} answers {_in_words(first)}: "
                "models of one task can be averaged"
            )
    tuned, pretraining = tuple(map(read_task_info, folders)), tuple(map(read_pretraining, folders))
    return Loaded(tuple(names), tuple(models), tokenizers[0], tuned, pretraining)


def task_heads(model: AlbertModel) -> list[Head]:
    """The heads that do a task."""
    return [head for head in model.head_list if head.kind not in PRETRAINING]


def _in_words(heads: Sequence[Head]) -> str:
    return " and ".join(head.kind + (f" ({', '.join(head.labels)})" if head.labels else "") for head in heads)


def open_for(loaded: Loaded, name: str, source: TaskSource) -> Task:
    """The task, with the classes in the model's order; a model that cannot do it is refused."""
    name = name or next((tuned.task for tuned in loaded.tuned if tuned is not None), "")
    if not name:
        raise UserError(f"{loaded.names[0]} does not say what it was tuned for: name the task with --task")
    if name in TASKS and not source.is_given:
        raise _without_examples(loaded, name)
    given = [head.kind for head in task_heads(loaded.models[0])]
    # A model without that head may yet say that there is no answer, by its spans alone: then the files decide.
    may_have_no_answer = "answerability" in given or None
    known = TaskMetadata(_labels_for(loaded, name), may_have_no_answer)
    if name in TASKS and TASKS[name].kind == name:  # only files of one's own can be read in several ways
        known = replace(
            known,
            answer_format=_agreed(loaded, "how they name the right option", lambda tuned: tuned.answer_format),
            layout=_layout(loaded, source),
            separator=_agreed(loaded, "what stands between labels", lambda tuned: tuned.separator),
        )
    task = open_task(name, source, known)
    needed = task.heads[0].kind
    if needed not in given:
        raise UserError(
            f"{name} needs a {needed} head, but {loaded.names[0]} has {', '.join(given)}: is it tuned for another task?"
        )

    def read(split: str) -> Reading:
        reading = task.read(split)
        _check_pairs(loaded, split, are_pairs(reading.examples))
        return reading

    return replace(task, read=read)


def _agreed(loaded: Loaded, what: str, said: Callable[[TaskInfo], Said | None]) -> Said | None:
    """What all models say that know it. Where they differ, nothing is known, so that their order does not matter."""
    by_name = {
        name: found
        for name, tuned in zip(loaded.names, loaded.tuned, strict=True)
        if tuned is not None and (found := said(tuned)) is not None
    }
    if len(set(by_name.values())) < 2:
        return next(iter(by_name.values()), None)
    each = ", ".join(f"'{found}' for {name}" for name, found in by_name.items())
    log(f"the models learned from files that differ in {what}: {each}; it is guessed from the file that is read")
    return None


def _layout(loaded: Loaded, source: TaskSource) -> dict[str, str]:
    """The columns that the models learned from. Where they differ, the user has to name the one that is read."""
    layout: dict[str, str] = {}
    first: dict[str, str] = {}  # the model that each is of
    differing: dict[str, str] = {}
    for name, tuned in zip(loaded.names, loaded.tuned, strict=True):
        for role, column in tuned.layout.items() if tuned is not None else ():
            if layout.setdefault(role, column) == column:
                first.setdefault(role, name)
            else:
                sentence = f"{first[role]} learned the {role} from '{layout[role]}', but {name} from '{column}'"
                differing.setdefault(role, sentence)
    if {True, False} <= {tuned.of_pairs for tuned in loaded.tuned if tuned is not None}:
        return {}  # one of them is refused once the file is read
    unsettled = []
    for role, sentence in differing.items():
        del layout[role]
        setting = setting_of(role)
        # Ids are no part of what is learned, and where an answer begins is not asked for.
        if setting is not None and role != "id" and not getattr(source, setting):
            unsettled.append((sentence, f"--{setting.replace('_', '-')}"))
    if unsettled:
        sentences, settings = zip(*unsettled, strict=True)
        raise UserError(
            f"{'; '.join(sentences)}: say which is to be read here with {' and '.join(dict.fromkeys(settings))}"
        )
    return layout


def _without_examples(loaded: Loaded, task: str) -> UserError:
    """What to say where no examples are given; a run knows its own."""
    folder = "" if task == TASKS[task].kind else "its folder with --data, or "
    sentence = f"{task} needs examples: give {folder}a file with --dev, or --test to predict for, or --dataset"
    first, tuned = loaded.names[0], loaded.tuned[0]
    known = examples_of(Path(first)) if tuned is not None and tuned.task == task else None
    if known is not None and known.is_given:
        sentence += f"; with those of {first}: `openalbert evaluate {shlex.join(loaded.names)} {known.command_line}`"
    return UserError(sentence)


def _check_pairs(loaded: Loaded, split: str, are_pairs: bool | None) -> None:
    """Refuse pairs of texts for a model that learned from single ones, and the other way round, where it is known."""
    for name, tuned in zip(loaded.names, loaded.tuned, strict=True):
        wants = tuned.of_pairs if tuned is not None else None
        if wants is None and tuned is not None and tuned.task in GLUE:
            wants = bool(GLUE[tuned.task].second)
        if wants is None or are_pairs is None or wants == are_pairs:
            continue
        if are_pairs:
            raise UserError(
                f"{name} learned from single texts, but {split} has pairs: take the column of the second text out of "
                "the file, or name a model that learned from pairs"
            )
        raise UserError(
            f"{name} learned from pairs of texts, but {split} has single ones: name the column of the second text with "
            "--second-column, or a model that learned from single texts"
        )


def _labels_for(loaded: Loaded, name: str) -> tuple[str, ...] | None:
    """The model's classes by the task's own names, in the model's order."""
    labels = loaded.head.labels
    known = GLUE[name].labels if name in GLUE else ()
    if not known or not labels:
        return labels or None
    by_name = {label.lower(): label for label in known}
    if sorted(label.lower() for label in labels) == sorted(by_name):
        return tuple(by_name[label.lower()] for label in labels)
    if len(labels) == len(known) and all(_UNNAMED.fullmatch(label) for label in labels):
        log(f"the model's classes have no names ({', '.join(labels)}): taken for {', '.join(known)}")
        return known
    raise UserError(
        f"{loaded.names[0]} knows the classes {', '.join(labels)}, but {name} has {', '.join(known)}: "
        "is it tuned for another task?"
    )


def log(sentence: str) -> None:
    """Tell the user something beside the result."""
    print(sentence, file=sys.stderr, flush=True)
