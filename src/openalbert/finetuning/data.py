"""What a fine-tuning run works with: the model to begin with, and all examples, tokenized once for all seeds."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from openalbert.errors import UserError
from openalbert.finetuning.batches import fingerprint
from openalbert.finetuning.class_weights import balanced_weights
from openalbert.finetuning.encode import Encoding, encode
from openalbert.finetuning.reach import learnable, out_of_reach
from openalbert.finetuning.settings import Finetune
from openalbert.finetuning.span_decoding import how_sure
from openalbert.finetuning.units import Units
from openalbert.formatting import are, counted, percent_of
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import NONE, Pretraining, read_pretraining
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig
from openalbert.tasks.data.source import hold_out
from openalbert.tasks.label_checks import (
    check_spread,
    describe_absent_classes,
    describe_class_weights,
    describe_classes,
    describe_constant_label,
    find_constant_label,
    values_of,
)
from openalbert.tasks.metrics import describe_positive_class, metric_names, with_metric
from openalbert.tasks.registry import open_task
from openalbert.tasks.task import MAX_ANSWER_TOKENS, Example, Reading, Task
from openalbert.text.tokenizer import Tokenizer

THRESHOLD_SHARE = 0.05  # of the training questions, held out where the threshold of the null score is to be fitted
MOST_FOR_THRESHOLD = 1_000  # questions: one number needs no more, and they are answered at every evaluation
FROM_MNLI = ("rte", "stsb", "mrpc")  # what the paper begins with a model of MNLI


@dataclass(frozen=True)
class Part:
    """The examples of a split, as they are and as a model takes them."""

    examples: tuple[Example, ...]
    encoding: Encoding
    max_answer_tokens: int = MAX_ANSWER_TOKENS
    """The longest answer to a question that is given."""

    @property
    def fingerprint(self) -> str:
        """The same only for the same examples, which say more than their tokens: which answers count as right, say."""
        sums = hashlib.sha256(fingerprint(self.encoding.sequences).encode())
        for example in self.examples:
            sums.update(repr(example).encode())
        return sums.hexdigest()


@dataclass(frozen=True)
class TaskData:
    """All that a run needs beside its settings."""

    task: Task
    folder: Path
    """The model to begin with."""
    pretraining: Pretraining | None
    """What the weights to begin with have had, if that is known."""
    config: AlbertConfig
    """Its configuration, with the dropout of this run."""
    tokenizer: Tokenizer
    max_length: int
    train: Part
    scored: Mapping[str, Part]
    """What to score on; the first decides."""
    class_weights: Float64[np.ndarray, "classes"] | None
    """Weights of the classes in the loss, in the order of the labels."""
    units: Units | None
    """For values that are learned in units of their spread."""
    threshold: Part | None
    """Where a question may have no answer: training questions held out to fit the threshold of the null score."""
    layout: Mapping[str, str]
    """Which column of the training file was taken for what, in files of one's own."""
    separator: str | None
    """What stands between labels there, where several stand in one cell."""
    remarks: tuple[str, ...]
    """What the user should know of it, a sentence each."""

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """One of what is learned from, and of each split that is scored on."""
        learned = [fingerprint(self.train.encoding.sequences), *self.task.labels]
        learned += [self.threshold.fingerprint] if self.threshold is not None else []
        train = hashlib.sha256(repr(learned).encode()).hexdigest()
        return {"train": train, **{split: part.fingerprint for split, part in self.scored.items()}}

    def make_model(self, seed: int, from_scratch: bool) -> AlbertModel:
        """The model to be tuned: the encoder of the folder, and heads of its own where they are for this task."""
        torch.manual_seed(seed)
        model = AlbertModel(self.config, self.task.heads)
        if from_scratch:
            return model
        source = huggingface.load(self.folder)
        known = [f"heads.{head.kind}." for head in self.task.heads if head in source.head_list]
        weights = dict(source.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith(("encoder.", *known)):
                    parameter.copy_(weights[name])
        if known and self.units is not None:
            self.units.from_values(model)
        return model


def load_data(settings: Finetune) -> TaskData:
    """Read, check and tokenize everything, before anything is learned."""
    remarks: list[str] = []
    folder = _start_folder(settings)
    pretraining = NONE if settings.from_scratch else read_pretraining(folder)
    config = huggingface.read_folder_config(folder)
    config = replace(
        config,
        hidden_dropout=settings.dropout,
        attention_dropout=settings.dropout,
        classifier_dropout=settings.classifier_dropout,
    )
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} pieces, but its model knows {config.vocab_size} only"
        )
    max_length = min(settings.max_length, config.max_positions)
    if max_length < settings.max_length:
        remarks.append(f"inputs are cut at {max_length} tokens: the model has no more positions")
    task = open_task(settings.task, settings.source)
    if not task.splits:
        raise UserError(f"{task.name} has nothing to score on here: give a file with --dev")
    never_tuned = not _is_tuned(folder) if settings.start else True
    if settings.start and never_tuned:
        remarks.append(f"--from {settings.start} was never tuned for a task: it is begun with as MODEL would be")
    if task.name in FROM_MNLI and never_tuned:
        remarks.append(f"the paper begins {task.name} with a model of MNLI: give one with --from")

    def encoded(examples: tuple[Example, ...]) -> Part:
        encoding = encode(task, examples, tokenizer, max_length, stride=settings.stride)
        return Part(examples, encoding, settings.max_answer_tokens)

    train, threshold = task.read("train"), None
    if task.may_have_no_answer:
        held_out = min(THRESHOLD_SHARE, MOST_FOR_THRESHOLD / len(train.examples))
        otherwise = "questions on another passage are needed, to fit the threshold of the null score on"
        # Passages from all over: so small a share would be one article or two, and articles differ in how many of their
        # questions have an answer.
        rest, held = hold_out(train, held_out, settings.source.heldout_seed, otherwise, articles_stay_whole=False)
        # Its remarks speak of a part to score on, which this is not.
        train = replace(train, examples=rest.examples)
        threshold = encoded(held.examples)
        number = len(held.examples)
        told = f"{counted(number, 'training question')} {are(number)} held out to fit the threshold of the null score"
        remarks.append(told + how_sure(number))
    readings = {split: task.read(split) for split in task.splits}

    decisive = next(iter(readings.values())).examples
    if settings.metric is not None:
        task = with_metric(task, settings.metric, decisive)
    if task.kind == "classification" and "f1" in metric_names(task, decisive):
        remarks.append(describe_positive_class(task.labels[1]))

    train, encoding = learnable(train, encoded(train.examples).encoding, max_length)
    learned = Part(train.examples, encoding, settings.max_answer_tokens)
    remarks += _remarks("train", train, learned, max_length, remarks)
    remarks += [f"train: {told}" for told in describe_classes(task, train.examples)]
    _check_differ(task, train, readings)
    class_weights = None
    if settings.class_weights == "balanced":
        class_weights = balanced_weights(task, learned.encoding.sequences)
        remarks.append(describe_class_weights(task, class_weights))
    units = None
    if task.kind == "regression":
        remarks += [f"train: {told}" for told in check_spread(train)]
        if settings.standardize:
            values = values_of(train.examples)
            units = Units.of(values)
            learned = replace(learned, encoding=Encoding(units.learned(learned.encoding.sequences, values)))

    scored = {}
    for split, reading in readings.items():
        scored[split] = encoded(reading.examples)
        remarks += _remarks(split, reading, scored[split], max_length, remarks)
        remarks += [f"{split}: {told}" for told in describe_constant_label(task, reading.examples)]
        remarks += [f"{split}: {told}" for told in describe_absent_classes(task, train.examples, reading.examples)]
    return TaskData(
        task=task,
        folder=folder,
        pretraining=pretraining,
        config=config,
        tokenizer=tokenizer,
        max_length=max_length,
        train=learned,
        scored=scored,
        class_weights=class_weights,
        units=units,
        threshold=threshold,
        layout=train.layout,
        separator=train.separator,
        remarks=tuple(remarks),
    )


def _check_differ(task: Task, train: Reading, scored: Mapping[str, Reading]) -> None:
    """Refuse examples to learn from that are all alike, by themselves or because the others are held out."""
    alike = find_constant_label(task, train.examples)
    if alike is None:
        return
    whole = [*train.examples]
    for reading in scored.values():
        whole += reading.examples if reading.file == train.file else ()
    if find_constant_label(task, whole) is None:
        raise UserError(
            f"{train.origin}: {counted(len(whole), 'example')} are too few to hold some out to score on: in the rest "
            f"{alike}; give a file to score on with --dev, or more rows"
        )
    raise UserError(f"{train.origin}: in train, {alike}: there is nothing to tell apart")


def _remarks(split: str, reading: Reading, part: Part, max_length: int, told: list[str]) -> list[str]:
    sequences = part.encoding.sequences
    told_now = [remark for remark in reading.remarks if remark not in told]
    told_now += [f"{split}: {count:,} left out: {reason}" for reason, count in reading.excluded.items()]
    mean = len(sequences.ids) / max(1, len(sequences.example))
    windows = (
        f" in {counted(len(sequences.example), 'sequence')}" if len(sequences.example) != sequences.num_examples else ""
    )
    told_now.append(
        f"{split}: {counted(sequences.num_examples, 'example')}{windows}, {mean:.1f} tokens each in the mean"
    )
    if sequences.num_truncated:
        cut = sequences.num_truncated
        of_all = percent_of(cut, sequences.num_examples)
        told_now.append(f"{split}: {counted(cut, 'example')} ({of_all}) {are(cut)} cut to {max_length} tokens")
    beyond = out_of_reach(part.examples, part.encoding, max_length, part.max_answer_tokens)
    told_now += [f"{split}: {sentence}" for sentence in beyond]
    return told_now


def _start_folder(settings: Finetune) -> Path:
    """The folder of the model to begin with; MODEL and --from must be of one kind where both are given."""
    if not settings.model and not settings.start:
        raise UserError("name the model right after the verb: `openalbert finetune MODEL --task …`")
    named = huggingface.find_folder(settings.start or settings.model)
    if not (settings.model and settings.start):
        return named
    other = huggingface.find_folder(settings.model)
    for what, sizes in (
        ("tokenizer", [Tokenizer.load(folder).fingerprint for folder in (named, other)]),
        ("shape", [_shape(huggingface.read_folder_config(folder)) for folder in (named, other)]),
    ):
        if sizes[0] != sizes[1]:
            raise UserError(
                f"--from {settings.start} has another {what} than {settings.model}: leave one of the two out"
            )
    return named


def _is_tuned(folder: Path) -> bool:
    """Whether a model was tuned for a task, here or elsewhere."""
    return read_task_info(folder) is not None or huggingface.has_task_head(folder)


def _shape(config: AlbertConfig) -> AlbertConfig:
    return replace(config, hidden_dropout=0.0, attention_dropout=0.0, classifier_dropout=0.0)
