"""Predictions of one or several models: logits of packed sequences, averaged over the models, and what they mean.

The paper's best results are of ensembles: "average the model predictions" (section 4.9), which here are the logits.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int, Int64
from torch import Tensor

from openalbert.errors import UserError
from openalbert.finetuning.encode import Encoding, concatenate_ranges
from openalbert.finetuning.question_answering.span_decoding import Answers
from openalbert.finetuning.similarity import predict_similarity
from openalbert.finetuning.word_alignment import TaggedWords, decide_tags
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import Pretraining, read_pretraining
from openalbert.interop.task_json import TaskInfo, read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import TOKEN_HEADS, Head, HeadKind
from openalbert.model.pooling import Pooling, embed_packed
from openalbert.tasks.task import Sequences, Task
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

PRETRAINING: tuple[HeadKind, ...] = ("masked_lm", "sentence_order")
TOKENS_AT_A_TIME = 16384
EMBEDDINGS_AT_A_TIME = 4096  # that stay on the device until they are copied
CPU_TOKENS = 2048  # on a CPU: more need more memory than its caches have, and are no faster
DEFAULT_MAX_LENGTH = 512  # tokens of an input, where the model folder has no task.json


@dataclass(frozen=True)
class Ensemble:
    """Fine-tuned models whose logits are averaged, or a single one."""

    names: tuple[str, ...]
    models: tuple[AlbertModel, ...]
    tokenizer: Tokenizer
    task_infos: tuple[TaskInfo | None, ...]
    """The task.json of each model, if it has one."""
    pretraining: tuple[Pretraining | None, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the first task head."""
        return next((head.labels for head in task_heads(self.models[0])), ())


def load_models(names: Sequence[str]) -> Ensemble:
    """Load models by their names; they must have the same vocabulary and the same task heads."""
    folders = [huggingface.find_folder(name) for name in names]
    models = [huggingface.load(folder) for folder in folders]
    tokenizers = [Tokenizer.load(folder) for folder in folders]
    for name, model, tokenizer in zip(names, models, tokenizers, strict=True):
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(f"{name} has another vocabulary than {names[0]}: only models with the same can be averaged")
        if tokenizer.vocab_size > model.config.vocab_size:
            raise UserError(
                f"{name}: its tokenizer has {tokenizer.vocab_size} pieces, but the model has "
                f"{model.config.vocab_size}: they do not belong together"
            )
        heads, first = task_heads(model), task_heads(models[0])
        if not heads and not is_for_similarity(read_task_info(folders[names.index(name)])):
            raise UserError(f"{name} has no head for a task: fine-tune it first, with `openalbert finetune`")
        if heads != first:
            raise UserError(
                f"{name} has the heads {_describe_heads(heads)}, but {names[0]} has {_describe_heads(first)}: "
                "only models for the same task can be averaged"
            )
    task_infos, pretraining = tuple(map(read_task_info, folders)), tuple(map(read_pretraining, folders))
    return Ensemble(tuple(names), tuple(models), tokenizers[0], task_infos, pretraining)


def is_for_similarity(info: TaskInfo | None) -> bool:
    """Whether a model was fine-tuned for similarity, which needs no head."""
    return info is not None and info.kind == "similarity"


def task_heads(model: AlbertModel) -> list[Head]:
    """The heads that are not for pretraining."""
    return [head for head in model.head_list if head.kind not in PRETRAINING]


def _describe_heads(heads: Sequence[Head]) -> str:
    return " and ".join(head.kind + (f" ({', '.join(head.labels)})" if head.labels else "") for head in heads)


@dataclass(frozen=True)
class Outputs:
    """The float32 logits of every head of a task."""

    logits: dict[str, np.ndarray]
    """By the kind of head: a row for each example, or for each option of a choice; for questions a row for each window.
    Heads that score tokens have a row for each, in the order of ids. Under `similarity` the
    normalized embedding of each sequence."""
    depths: Int64[np.ndarray, "sequences"] | None = None
    """The layers that were computed for each sequence, where they may leave early."""


def predict(
    models: Sequence[AlbertModel],
    sequences: Sequences,
    device: Device,
    *,
    kinds: Sequence[HeadKind] = (),
    depth: int | None = None,
    tokens_at_a_time: int = TOKENS_AT_A_TIME,
    advance: Callable[[float], None] = lambda tokens: None,
) -> Outputs:
    """The logits of these sequences, the mean over the models; `advance` is called with the tokens of each batch.

    `kinds` are the heads that compute them; not given: all heads for a task, which the models must have in common.
    `depth` is the number of layers; not given: all.
    Where long texts have several windows, the logits of their windows are combined: there is a row for each example.
    """
    kinds = kinds or _common_heads(models)
    num_sequences, num_tokens = len(sequences.example), len(sequences.ids)
    logits: dict[str, np.ndarray] = {
        head.kind: np.zeros((num_tokens if head.kind in TOKEN_HEADS else num_sequences, head.num_outputs), np.float32)
        for head in models[0].head_list
        if head.kind in kinds
    }
    for model in models:
        with inference(model):
            for chosen in batches_by_length(sequences.lengths, tokens_at_a_time, device):
                _add_logits(model, sequences, chosen, device, logits, len(models), depth)
                advance(float(sequences.lengths[chosen].sum()))
    return Outputs({kind: combine_windows(sequences, rows) for kind, rows in logits.items()})


def combine_windows(sequences: Sequences, logits: Float[np.ndarray, "sequences outputs"]) -> np.ndarray:
    """The logits of each example: mean or maximum of those of its windows, as the sequences say; else unchanged.

    The mean is of logits, as it is over the models of an ensemble. A window that shows nothing has logits near those of
    the label frequencies, so that one that shows much decides.
    """
    if sequences.long_texts == "truncate" or not len(logits):
        return logits
    combined = (np.add if sequences.long_texts == "mean" else np.maximum).reduceat(logits, sequences.first_of_examples)
    if sequences.long_texts == "mean":
        combined /= np.bincount(sequences.example)[:, None]
    return combined


@contextlib.contextmanager
def inference(model: AlbertModel) -> Iterator[None]:
    """Without dropout and gradients; a model in training is in training again after the block."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def _common_heads(models: Sequence[AlbertModel]) -> list[HeadKind]:
    heads = [task_heads(model) for model in models]
    if not heads:
        raise UserError("no model is given to predict with")
    if not heads[0]:
        raise UserError("this model has no head for a task: fine-tune it first, with `openalbert finetune`")
    if any(others != heads[0] for others in heads[1:]):
        raise UserError("the models have different heads or labels: an ensemble is of models for one task")
    return [head.kind for head in heads[0]]


def bound_tokens(tokens_at_a_time: int, device: Device) -> int:
    """The most tokens that this device computes together, of those that are allowed."""
    return min(tokens_at_a_time, CPU_TOKENS) if device.torch_device.type == "cpu" else tokens_at_a_time


def batches_by_length(
    lengths: Int64[np.ndarray, "n"], tokens_at_a_time: int, device: Device
) -> Iterator[Int64[np.ndarray, "_"]]:
    """The numbers of the sequences that are computed together, longest first.

    Sequences of similar length are together, which attention on a padded copy needs; the largest batch comes first, so
    that too little memory shows at once.
    """
    tokens_at_a_time = bound_tokens(tokens_at_a_time, device)
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + tokens_at_a_time, side="right")))
        yield order[start:end]
        start = end


@dataclass(frozen=True)
class Embedding:
    """Which vector of a sequence is its embedding."""

    pooling: Pooling = "mean"
    layer: int | None = None
    """The layer whose output is taken, from 1 on; None: the last."""
    weights: Float32[np.ndarray, "vocabulary"] | None = field(default=None, compare=False)
    """Those of the pieces of the vocabulary, for a weighted mean. A model has one set of them."""
    normalize: bool = True


MEAN = Embedding()


def embed(
    models: Sequence[AlbertModel],
    sequences: Sequences,
    device: Device,
    how: Embedding = MEAN,
    *,
    tokens_at_a_time: int = TOKENS_AT_A_TIME,
    advance: Callable[[float], None] = lambda tokens: None,
) -> Float32[np.ndarray, "sequences hidden"]:
    """The embedding of each sequence; of several models side by side, so that the cosine is the mean of theirs.

    They are copied from the device a few thousand at a time: while a GPU computes one batch, the next one is packed.
    """
    found = []
    weights = None if how.weights is None else torch.from_numpy(how.weights).to(device.torch_device)
    for model in models:
        embeddings = np.empty((len(sequences.example), model.config.hidden_size), np.float32)
        numbers, waiting = [], []
        with inference(model):
            for chosen in batches_by_length(sequences.lengths, tokens_at_a_time, device):
                packed = pack(sequences, chosen, device)
                with device.autocast():
                    pooled = embed_packed(
                        model,
                        packed.ids,
                        packed.lengths,
                        packed.segments,
                        pooling=how.pooling,
                        layer=how.layer,
                        weights=weights,
                    )
                if how.normalize:
                    pooled = torch.nn.functional.normalize(pooled, dim=1) / len(models) ** 0.5
                numbers.append(chosen)
                waiting.append(pooled)
                advance(float(len(packed.tokens)))
                if sum(map(len, numbers)) >= EMBEDDINGS_AT_A_TIME:
                    embeddings[np.concatenate(numbers)] = torch.cat(waiting).cpu().numpy()
                    numbers, waiting = [], []
        if numbers:
            embeddings[np.concatenate(numbers)] = torch.cat(waiting).cpu().numpy()
        found.append(embeddings)
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def _add_logits(
    model: AlbertModel,
    sequences: Sequences,
    chosen: Int64[np.ndarray, "_"],
    device: Device,
    logits: dict[str, np.ndarray],
    num_models: int,
    depth: int | None,
) -> None:
    packed = pack(sequences, chosen, device)
    # Without a head that scores tokens, the last layer computes [CLS] alone.
    scores_tokens = any(kind in logits for kind in TOKEN_HEADS)
    at = None if scores_tokens else torch.empty(0, dtype=torch.int64, device=device.torch_device)
    with device.autocast():
        encoded = model.encode_packed(packed.ids, packed.lengths, packed.segments, at=at, depth=depth)
        found = {kind: model.scores(kind, encoded, depth) for kind in model.heads if kind in logits}  # type: ignore[arg-type]
    for kind, values in found.items():
        rows = packed.tokens if kind in TOKEN_HEADS else chosen
        logits[kind][rows] += values.float().cpu().numpy() / num_models


@dataclass(frozen=True)
class PackedInputs:
    """Some of the sequences, as `AlbertModel.encode_packed` takes them."""

    ids: Int[Tensor, "packed"]
    lengths: list[int]
    segments: Int[Tensor, "packed"]
    tokens: Int64[np.ndarray, "packed"]
    """The place of each token in `Sequences.ids`."""


def pack(sequences: Sequences, chosen: Int64[np.ndarray, "_"], device: Device) -> PackedInputs:
    """Pack the chosen sequences, in this order, on a device."""
    lengths = sequences.lengths[chosen]
    tokens = concatenate_ranges(sequences.starts[chosen], lengths)
    positions = tokens - np.repeat(sequences.starts[chosen], lengths)
    is_second = positions >= np.repeat(sequences.second[chosen], lengths)
    ids, segments = device.copy(sequences.ids[tokens]), device.copy(is_second.astype(np.int64))
    return PackedInputs(ids, lengths.tolist(), segments, tokens)


def decide(
    task: Task,
    encoding: Encoding,
    outputs: Outputs,
    answers: Sequence[Answers] = (),
    null_threshold: float | None = None,
) -> list[object]:
    """One prediction for each example, as `Task.measure` takes it.

    `answers` are those to questions; one whose null score is above the threshold is predicted to have no answer.
    """
    logits = outputs.logits
    if task.kind == "classification":
        return list(map(int, logits["classification"].argmax(1)))
    if task.kind == "regression":
        return list(map(float, logits["regression"][:, 0]))
    if task.kind == "multi_label":
        return [tuple(map(int, np.flatnonzero(row > 0))) for row in logits["multi_label"]]
    if task.kind == "multiple_choice":
        return [int(options.argmax()) for options in by_example(encoding.sequences, logits["multiple_choice"][:, 0])]
    if task.kind == "similarity":
        return predict_similarity(encoding.sequences, logits["similarity"])
    if task.kind == "tagging":
        return [one.tags for one in tagged_words(task, encoding, outputs)]
    return [one.text(null_threshold) for one in answers]


def tagged_words(task: Task, encoding: Encoding, outputs: Outputs) -> list[TaggedWords]:
    """The tags of each text's words; none where the task has other examples."""
    return [] if encoding.words is None else decide_tags(outputs.logits["tagging"], encoding.words, task.labels)


def by_example(sequences: Sequences, logits: np.ndarray) -> list[np.ndarray]:
    """The logits of the sequences, split by example: those of its options, or of its windows."""
    borders = np.searchsorted(sequences.example, np.arange(1, sequences.num_examples))
    return np.split(logits, borders) if sequences.num_examples else []


def probabilities(
    task: Task, encoding: Encoding, outputs: Outputs, answers: Sequence[Answers] = ()
) -> list[Float64[np.ndarray, "_"]]:
    """The probabilities of each example; of several models, those of their mean logits.

    Those of classes and options sum to 1, those of labels are independent. A question has that of its best answer among
    the candidates and, where there may be none, that of no answer. Regression and similarity have none; those of tags
    are in `tagged_words`.
    """
    logits = outputs.logits
    if task.kind == "classification":
        return list(softmax(logits["classification"]))
    if task.kind == "multi_label":
        return list(sigmoid(logits["multi_label"]))
    if task.kind == "multiple_choice":
        options = by_example(encoding.sequences, logits["multiple_choice"][:, 0])
        return [softmax(of_one[None])[0] for of_one in options]
    if task.kind in ("regression", "similarity", "tagging"):
        return []
    best = np.array([one.candidates[0].probability if one.candidates else 0.0 for one in answers])
    if not task.may_have_no_answer:
        return list(best[:, None])
    none = sigmoid(np.array([one.null_score for one in answers]))
    return list(np.stack([best * (1 - none), none], axis=1))


def softmax(logits: Float[np.ndarray, "rows classes"]) -> Float64[np.ndarray, "rows classes"]:
    """Probabilities that sum to 1 in each row."""
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    result: np.ndarray = powers / powers.sum(1, keepdims=True)
    return result


def sigmoid(logits: Float[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    """Independent probabilities; computed from tanh, which never overflows."""
    result: np.ndarray = (1 + np.tanh(logits.astype(np.float64) / 2)) / 2
    return result
