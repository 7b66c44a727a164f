"""The data of a fine-tuning run: the model to start from, and all examples, tokenized once for all seeds."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64

from openalbert.errors import UserError
from openalbert.finetuning.batches import fingerprint
from openalbert.finetuning.encode import STRIDE, Encoding, encode
from openalbert.finetuning.losses import Standardization, balanced_weights
from openalbert.finetuning.question_answering.null_threshold import few_questions_note
from openalbert.finetuning.settings import Finetune
from openalbert.finetuning.windows import select_questions
from openalbert.formatting import are, counted, percent_of
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import NONE, Pretraining, read_pretraining
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig
from openalbert.model.heads import check_exit_kind
from openalbert.objectives.keyed_random import Stream, bits, root
from openalbert.tasks.custom.similarity import check_has_contrast
from openalbert.tasks.data.holdout import hold_out
from openalbert.tasks.data.row_files import Exclusions
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
from openalbert.tasks.task import MAX_ANSWER_TOKENS, Example, LongTexts, QuestionExample, Reading, Task
from openalbert.text.tokenizer import Tokenizer

THRESHOLD_FRACTION = 0.05  # of the training questions, held out to fit the null threshold
MAX_FOR_THRESHOLD = 1_000  # examples: one number needs no more, and questions are answered at every evaluation
EXIT_FRACTION = 0.1  # of the training examples, held out to fit the rule of early exit
FROM_MNLI = ("rte", "stsb", "mrpc")  # tasks that the paper starts from a model of MNLI


@dataclass(frozen=True)
class EncodedSplit:
    """The examples of a split, as they were read and as a model takes them."""

    name: str
    reading: Reading
    encoding: Encoding
    max_length: int
    """The longest sequence, in tokens."""
    max_answer_tokens: int = MAX_ANSWER_TOKENS
    """The longest answer to a question that is predicted."""

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples as they were read."""
        return self.reading.examples

    @property
    def fingerprint(self) -> str:
        """A hash of the examples, which hold more than their tokens: which answers count as right, for example."""
        sums = hashlib.sha256(fingerprint(self.encoding.sequences).encode())
        for example in self.examples:
            sums.update(repr(example).encode())
        return sums.hexdigest()

    def without_unlearnable(self) -> "EncodedSplit":
        """Without the questions whose answer every window cuts; they are counted among the excluded ones.

        Each of their windows would teach that a question with an answer has none. The rest of a cut answer is no target
        either: it would teach to stop short, and where the border is has nothing to do with the question.
        """
        reading, sequences, windows = self.reading, self.encoding.sequences, self.encoding.windows
        if windows is None or "span" not in sequences.targets:
            return self
        is_learned = np.bincount(sequences.example, sequences.targets["span"][:, 0] > 0, len(reading.examples)) > 0
        kept = is_learned | ~_have_answers(reading.examples)
        if kept.all():
            return self
        excluded = Exclusions(reading.excluded)
        for example, stays in zip(reading.examples, kept, strict=True):
            if not stays:
                excluded.add(f"whose answer is whole in no window of {self.max_length} tokens", f"'{example.id}'")
        examples = tuple(example for example, stays in zip(reading.examples, kept, strict=True) if stays)
        rest = replace(reading, examples=examples, excluded=excluded.counted())
        if not examples:
            raise UserError(
                f"{rest.origin}: no question is left to learn from: raise --max-length, or shorten the answers"
            )
        return replace(self, reading=rest, encoding=Encoding(*select_questions(sequences, windows, kept)))

    def unreachable_answers(self) -> list[str]:
        """Sentences on gold answers that can never be predicted."""
        if self.encoding.windows is None:
            return []
        tokens = self.encoding.windows.answer_tokens
        sentences = []
        if cut := int((_have_answers(self.examples) & (tokens == 0)).sum()):
            what = f"{counted(cut, 'answer')} {are(cut)} cut by every window of {self.max_length} tokens"
            sentences.append(f"{what} and can never be predicted")
        if long := int((tokens > self.max_answer_tokens).sum()):
            what = f"{counted(long, 'answer')} {are(long)} longer than {counted(self.max_answer_tokens, 'token')}"
            sentences.append(f"{what} and can never be predicted: --max-answer-tokens {tokens.max()} is enough")
        return sentences


def encode_split(
    task: Task,
    name: str,
    reading: Reading,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    stride: int = STRIDE,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    long_texts: LongTexts = "truncate",
) -> EncodedSplit:
    """Tokenize the examples of a split."""
    encoding = encode(task, reading.examples, tokenizer, max_length, stride=stride, long_texts=long_texts)
    return EncodedSplit(name, reading, encoding, max_length, max_answer_tokens)


def _have_answers(examples: Sequence[Example]) -> Bool[np.ndarray, "examples"]:
    return np.array([isinstance(example, QuestionExample) and bool(example.answers) for example in examples], bool)


@dataclass(frozen=True)
class TaskData:
    """Everything that a run needs in addition to its settings."""

    task: Task
    folder: Path
    """The model to start from."""
    pretraining: Pretraining | None
    """How its weights were pretrained, if that is known."""
    config: AlbertConfig
    """Its configuration, with the dropout of this run."""
    tokenizer: Tokenizer
    max_length: int
    encode: Callable[[str, Reading], EncodedSplit]
    """Encodes another split, given its name, as those of the run."""
    train: EncodedSplit
    scored: Mapping[str, EncodedSplit]
    """The splits to evaluate on; the first one selects the weights."""
    class_weights: Float64[np.ndarray, "classes"] | None
    """Class weights of the loss, in the order of the labels."""
    standardization: Standardization | None
    """For standardized regression targets."""
    threshold: EncodedSplit | None
    """Training examples held out to fit a threshold on: above which null score a question has no answer, or when an
    example leaves early."""
    has_exits: bool
    """Whether the model gets a head after every layer, for early exit."""
    layout: Mapping[str, str]
    """The role of each column of the training file, in the user's own files."""
    separator: str | None
    """The separator between the labels of one cell there."""
    remarks: tuple[str, ...]
    """What the user should know about it, a sentence each."""

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training data and of each split that is evaluated on."""
        learned = [fingerprint(self.train.encoding.sequences), *self.task.labels]
        learned += [self.threshold.fingerprint] if self.threshold is not None else []
        train = hashlib.sha256(repr(learned).encode()).hexdigest()
        return {"train": train, **{name: split.fingerprint for name, split in self.scored.items()}}

    @cached_property
    def source(self) -> AlbertModel:
        """The model of the folder, read once for all seeds and attempts."""
        return huggingface.load(self.folder)

    @property
    def has_known_head(self) -> bool:
        """Whether the folder has all heads of this task, with its labels."""
        return all(head in self.source.head_list for head in self.task.heads)

    def make_model(self, seed: int, from_scratch: bool) -> AlbertModel:
        """The model to fine-tune: the encoder of the folder, and its heads where they are for this task."""
        torch.manual_seed(seed)
        model = AlbertModel(self.config, self.task.heads, has_exits=self.has_exits)
        if from_scratch:
            return model
        known = [f"heads.{head.kind}." for head in self.task.heads if head in self.source.head_list]
        weights = dict(self.source.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith(("encoder.", *known)):
                    parameter.copy_(weights[name])
            if known and model.exits is not None and self.source.exits is not None:
                model.exits.load_state_dict(self.source.exits.state_dict())
        if known and self.standardization is not None:
            self.standardization.unfold_from(model)
        return model


def load_data(settings: Finetune) -> TaskData:
    """Read, check and tokenize everything before training starts."""
    folder = _start_folder(settings)
    config, tokenizer = _read_config(settings, folder), Tokenizer.load(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} pieces, but its model has {config.vocab_size} only"
        )
    task = open_task(settings.task, settings.source)
    if settings.exits:
        check_exit_kind(task.kind)
    if not task.splits:
        raise UserError(f"{task.name} has nothing to score on here: give a file with --dev")
    max_length = min(settings.max_length, config.max_positions)
    remarks = _describe_start(settings, task, folder, max_length)
    encoded = partial(
        encode_split,
        task,
        tokenizer=tokenizer,
        max_length=max_length,
        stride=settings.stride,
        max_answer_tokens=settings.max_answer_tokens,
        long_texts=settings.long_texts,
    )
    reading, held_out = _hold_out_to_fit(settings, task, task.read("train"), remarks)
    readings = {split: task.read(split) for split in task.splits}
    decisive = next(iter(readings.values())).examples
    if settings.metric is not None:
        task = with_metric(task, settings.metric, decisive)
    if task.kind == "classification" and "f1" in metric_names(task, decisive):
        remarks.append(describe_positive_class(task.labels[1]))

    train = encoded("train", reading).without_unlearnable()
    remarks += _describe_split(train, remarks)
    remarks += [f"train: {sentence}" for sentence in describe_classes(task, train.examples)]
    _check_differ(task, train.reading, readings)
    if task.kind == "similarity":
        check_has_contrast(train.reading)
    class_weights = None
    if settings.class_weights == "balanced":
        class_weights = balanced_weights(task, train.encoding.sequences)
        remarks.append(describe_class_weights(task, class_weights))
    standardization = None
    if task.kind == "regression":
        remarks += [f"train: {sentence}" for sentence in check_spread(train.reading)]
        if settings.standardize:
            values = values_of(train.examples)
            standardization = Standardization.fit(values)
            train = replace(train, encoding=Encoding(standardization.standardize(train.encoding.sequences, values)))

    scored = {name: encoded(name, reading) for name, reading in readings.items()}
    for name, split in scored.items():
        remarks += _describe_split(split, remarks)
        sentences = describe_constant_label(task, split.examples)
        if settings.source.fold is None:  # of folds, rare classes are named once for all
            sentences += describe_absent_classes(task, train.examples, split.examples)
        remarks += [f"{name}: {sentence}" for sentence in sentences]
    return TaskData(
        task=task,
        folder=folder,
        pretraining=NONE if settings.from_scratch else read_pretraining(folder),
        config=config,
        tokenizer=tokenizer,
        max_length=max_length,
        encode=encoded,
        train=train,
        scored=scored,
        class_weights=class_weights,
        standardization=standardization,
        threshold=None if held_out is None else encoded("threshold", held_out),
        has_exits=settings.exits,
        layout=train.reading.layout,
        separator=train.reading.separator,
        remarks=tuple(remarks),
    )


def _read_config(settings: Finetune, folder: Path) -> AlbertConfig:
    return replace(
        huggingface.read_folder_config(folder),
        hidden_dropout=settings.dropout,
        attention_dropout=settings.dropout,
        classifier_dropout=settings.classifier_dropout,
    )


def _describe_start(settings: Finetune, task: Task, folder: Path, max_length: int) -> list[str]:
    """Sentences on the model that the run starts from."""
    remarks = []
    if max_length < settings.max_length:
        how = "read in windows of" if task.kind == "tagging" else "cut at"
        remarks.append(f"inputs are {how} {max_length} tokens: the model has no more positions")
    is_fine_tuned = bool(settings.start) and _is_fine_tuned(folder)
    if settings.start and not is_fine_tuned:
        remarks.append(f"--from {settings.start} was not fine-tuned for a task: it is used as MODEL would be")
    if task.name in FROM_MNLI and not is_fine_tuned:
        remarks.append(f"the paper starts {task.name} from a model of MNLI: give one with --from")
    return remarks


def _hold_out_to_fit(
    settings: Finetune, task: Task, reading: Reading, remarks: list[str]
) -> tuple[Reading, Reading | None]:
    """The training examples to learn from, and those that a threshold is fitted on, where the task has one."""
    held_out, seed = None, settings.source.heldout_seed

    def hold_some_out(fraction: float, otherwise: str, articles_stay_whole: bool = True) -> tuple[Reading, Reading]:
        fraction = min(fraction, MAX_FOR_THRESHOLD / len(reading.examples))
        rest, some = hold_out(reading, fraction, seed, otherwise, articles_stay_whole)
        # The remarks of `rest` are about a split to evaluate on, which this is not.
        return replace(reading, examples=rest.examples), some

    if task.may_have_no_answer:
        # Passages from all over: so small a fraction would be one article or two, and articles differ in how many of
        # their questions have an answer.
        otherwise = "questions on another passage are needed, to fit the null threshold on"
        reading, held_out = hold_some_out(THRESHOLD_FRACTION, otherwise, articles_stay_whole=False)
        number = len(held_out.examples)
        sentence = f"{counted(number, 'training question')} {are(number)} held out to fit the null threshold"
        remarks.append(sentence + few_questions_note(number))
    if settings.train_examples is not None and settings.train_examples < len(reading.examples):
        remarks.append(f"train: {settings.train_examples:,} of {counted(len(reading.examples), 'example')} are used")
        reading = _some_of(reading, settings.train_examples, seed)
    if settings.exits:
        reading, held_out = hold_some_out(EXIT_FRACTION, "more are needed, to fit early exit on")
        number = len(held_out.examples)
        remarks.append(f"{counted(number, 'training example')} {are(number)} held out to fit the rule of early exit")
    return reading, held_out


def _some_of(reading: Reading, count: int, seed: int) -> Reading:
    """So many of the examples, in their order."""
    drawn = bits(root(seed, 0, Stream.ORDER), np.arange(len(reading.examples), dtype=np.int64))
    return replace(reading, examples=tuple(reading.examples[number] for number in np.sort(np.argsort(drawn)[:count])))


def _check_differ(task: Task, train: Reading, scored: Mapping[str, Reading]) -> None:
    """Refuse training examples that all have the same label, by themselves or because the others are held out."""
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


def _describe_split(split: EncodedSplit, known: list[str]) -> list[str]:
    """Sentences on how a split was read and encoded, without those of the reader that are already known."""
    name, reading, sequences = split.name, split.reading, split.encoding.sequences
    sentences = [remark for remark in reading.remarks if remark not in known]
    sentences += [f"{name}: {count:,} left out: {reason}" for reason, count in reading.excluded.items()]
    mean = len(sequences.ids) / max(1, len(sequences.example))
    windows = (
        f" in {counted(len(sequences.example), 'sequence')}" if len(sequences.example) != sequences.num_examples else ""
    )
    sentences.append(
        f"{name}: {counted(sequences.num_examples, 'example')}{windows}, {mean:.1f} tokens each on average"
    )
    if sequences.num_truncated:
        cut = sequences.num_truncated
        percent = percent_of(cut, sequences.num_examples)
        sentences.append(f"{name}: {counted(cut, 'example')} ({percent}) {are(cut)} cut to {split.max_length} tokens")
    if windows := describe_windows(split):
        sentences.append(f"{name}: {windows}")
    return sentences + [f"{name}: {sentence}" for sentence in split.unreachable_answers()]


def describe_windows(split: EncodedSplit) -> str:
    """How many long texts are read in several windows; "" for none."""
    sequences = split.encoding.sequences
    if not (long := sequences.num_in_windows):
        return ""
    mean = (len(sequences.example) - sequences.num_examples + long) / long
    return (
        f"{counted(long, 'example')} ({percent_of(long, sequences.num_examples)}) {are(long)} longer than "
        f"{split.max_length} tokens and read in {mean:.1f} windows on average, whose scores are combined by their "
        f"{'mean' if sequences.long_texts == 'mean' else 'maximum'}"
    )


def _start_folder(settings: Finetune) -> Path:
    """The folder of the model to start from; where both are given, MODEL and --from must have the same shape."""
    if not settings.model and not settings.start:
        raise UserError("name the model right after the verb: `openalbert finetune MODEL --task …`")
    named = huggingface.find_folder(settings.start or settings.model)
    huggingface.refuse_exported(named)
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


def _is_fine_tuned(folder: Path) -> bool:
    return read_task_info(folder) is not None or huggingface.has_task_head(folder)


def _shape(config: AlbertConfig) -> AlbertConfig:
    return replace(config, hidden_dropout=0.0, attention_dropout=0.0, classifier_dropout=0.0)
