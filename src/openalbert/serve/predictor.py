"""`Predictor`: a trained model that takes text and gives predictions, for Python, the shell and servers alike."""

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Integer
from torch import Tensor

from openalbert.errors import InputWarning, UserError
from openalbert.finetuning.encode import MIN_LENGTH, STRIDE, encode, encode_single
from openalbert.finetuning.predict import (
    DEFAULT_MAX_LENGTH,
    PRETRAINING,
    TOKENS_AT_A_TIME,
    Embedding,
    Outputs,
    combine_windows,
    softmax,
)
from openalbert.formatting import counted
from openalbert.interop import huggingface
from openalbert.interop.exits import ExitInfo, read_exit_info, weights_of, write_exit_info
from openalbert.interop.onnx import is_exported
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.interop.pretraining_json import Pretraining, read_pretraining
from openalbert.interop.task_json import TaskInfo, read_task_info, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head, HeadKind
from openalbert.model.encoder import Encoded
from openalbert.model.heads import EXIT_KINDS
from openalbert.model.pooling import Pooling
from openalbert.model.presets import PRESETS
from openalbert.progress import Work
from openalbert.serve.backend import Advance, Backend, LayeredBackend, Pace, TorchBackend, not_shown
from openalbert.serve.decisions import most_probable, predictions_of
from openalbert.serve.early_exit import Leaving, choose_leaving, run_with_exits
from openalbert.serve.embeddings import EmbeddingMethod, choose_method, piece_weights
from openalbert.serve.inputs import Input, as_example, as_inputs, expected, is_one
from openalbert.serve.masks import MASK, encode_masked, masked_sequences
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.serve.predictions import (
    IN_ORDER,
    SWAPPED,
    AnswerPrediction,
    ClassPrediction,
    FillPrediction,
    Guess,
    Prediction,
    Unpredictable,
)
from openalbert.tasks.data.tables import as_text, visible_characters
from openalbert.tasks.registry import GLUE
from openalbert.tasks.task import Example, Kind, Sequences, Task, are_pairs
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer
from openalbert.train.device import Device, usable_device

LONG_INPUT = 200_000  # tokens from which on progress is shown
TOP = 5  # pieces for each [MASK]
KIND_OF_HEAD: dict[HeadKind, Kind] = {
    "classification": "classification",
    "regression": "regression",
    "multi_label": "multi_label",
    "multiple_choice": "multiple_choice",
    "span": "question_answering",
    "tagging": "tagging",
}


@dataclass(frozen=True)
class Computing:
    """How predictions are computed."""

    tokens_at_a_time: int
    leaving: Leaving | None = None
    """At which depth inputs leave; None: all layers are computed."""
    shows: bool = False
    """Whether long work shows its progress."""


@dataclass(frozen=True)
class Predicted:
    """The predictions for some inputs, in their order."""

    predictions: list[Prediction | Unpredictable]
    num_truncated: int
    """Inputs that were too long, and were cut."""


@dataclass(frozen=True)
class Embedded:
    """The embeddings of some texts, in their order."""

    embeddings: Float32[np.ndarray, "texts hidden"]
    empty: list[int]
    """The numbers of texts without visible characters, whose embeddings are zeros."""
    num_truncated: int
    """Texts that were too long, and were cut."""


class Predictor:
    """A model with its tokenizer and its task: text in, predictions out.

    It computes on the CPU until `to` moves it.

        >>> import openalbert
        >>> model = openalbert.load("runs/mails")
        >>> model.predict("Please send me the invoice again.").label in model.labels
        True
        >>> len(model.predict(["The first mail.", "The second one."]))
        2
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer | None,
        task: TaskInfo | None = None,
        exits: ExitInfo | None = None,
        *,
        name: str = "this model",
        pretraining: Pretraining | None = None,
        card: str | None = None,
    ) -> None:
        self.backend = backend
        """What computes."""
        self._tokenizer, self._pretraining, self._card = tokenizer, pretraining, card
        self.task = task
        """The task.json of a fine-tuned model; None for a pretrained one, and one that was fine-tuned elsewhere."""
        self.exits = exits
        """When inputs leave early, where the model was fine-tuned with exits."""
        self.name = name

    @classmethod
    def load(cls, name: str, heads: Sequence[Head] | None = None) -> "Predictor":
        """A model by the path of its folder or its run, or by its name, as `openalbert.load` finds it."""
        device = Device(torch.device("cpu"), "fp32")
        if name in PRESETS:
            return cls(TorchBackend(huggingface.load(name, heads), device), None, name=name)
        folder = huggingface.find_folder(name, tuple(PRESETS))
        card = folder / "README.md"
        backend: Backend
        if is_exported(folder):
            _check_no_heads(folder, heads)
            backend = OnnxBackend(ExportedModel(folder))
        else:
            backend = TorchBackend(huggingface.load(folder, heads), device)
        return cls(
            backend,
            Tokenizer.load(folder) if (folder / MODEL_FILE).is_file() else None,
            read_task_info(folder),
            read_exit_info(folder),
            name=name,
            pretraining=read_pretraining(folder),
            card=card.read_text(encoding="utf-8") if heads is None and card.is_file() else None,
        )

    # What it is.

    @property
    def module(self) -> AlbertModel:
        """The model itself, a torch module."""
        if not isinstance(self.backend, TorchBackend):
            raise UserError(f"{self.name} is not computed by torch, so there is no module: load a model folder")
        return self.backend.module

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""
        return self.backend.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; a model without one takes ids only."""
        if self._tokenizer is None:
            raise UserError(
                f"{self.name} has no tokenizer ({MODEL_FILE}), so it takes ids, by `encode`, but no texts: load a "
                "trained model, or copy its tokenizer into its folder"
            )
        if self._tokenizer.vocab_size > self.config.vocab_size:
            raise UserError(
                f"the tokenizer {self._tokenizer.where} has {self._tokenizer.vocab_size} pieces but the model has "
                f"{self.config.vocab_size}: they do not belong together"
            )
        return self._tokenizer

    @property
    def kind(self) -> Kind | None:
        """The kind of its task; None for a pretrained model."""
        if self.task is not None and self.task.kind == "similarity":
            return "similarity"  # it has no head
        kinds = [KIND_OF_HEAD[head.kind] for head in self.backend.heads if head.kind in KIND_OF_HEAD]
        return kinds[0] if kinds else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its classes or labels; a pretrained model has those of sentence order."""
        if self.kind is None:
            return (IN_ORDER, SWAPPED) if self._has("sentence_order") else ()
        return next((head.labels for head in self.backend.heads if head.kind not in PRETRAINING), ())

    @property
    def of_pairs(self) -> bool | None:
        """Whether it was trained on pairs of texts; None where that is not known."""
        if self.kind == "similarity":
            return True
        if self.task is None or self.kind not in ("classification", "regression", "multi_label"):
            return None
        if self.task.of_pairs is None and self.task.task in GLUE:
            return bool(GLUE[self.task.task].second)
        return self.task.of_pairs

    @property
    def max_length(self) -> int:
        """The longest input in tokens, as in fine-tuning."""
        known = self.task.max_length if self.task is not None else DEFAULT_MAX_LENGTH
        return min(known, self.config.max_positions)

    def __repr__(self) -> str:
        labels = f", labels {', '.join(self.labels)}" if self.kind and self.labels else ""
        return f"Predictor({self.name!r}): {self._describe()}{labels}"

    def _describe(self) -> str:
        heads = " and ".join(head.kind for head in self.backend.heads)
        return self.kind or (f"pretrained, {heads}" if heads else "no heads")

    def _has(self, kind: HeadKind) -> bool:
        return any(head.kind == kind for head in self.backend.heads)

    # What it does.

    def encode(
        self,
        ids: Integer[Tensor, "batch length"],
        segments: Integer[Tensor, "batch length"] | None = None,
        mask: Bool[Tensor, "batch length"]
        | Integer[Tensor, "batch length"]
        | Float[Tensor, "batch length"]
        | None = None,
        **options: Any,
    ) -> Encoded:
        """Hidden states of token ids, as `AlbertModel.encode` gives them."""
        return self.module.encode(ids, segments, mask, **options)

    def predict(
        self,
        texts: Any,
        *,
        max_length: int | None = None,
        tokens_at_a_time: int = TOKENS_AT_A_TIME,
        depth: int | None = None,
        speedup: float | None = None,
        deadline_ms: float | None = None,
    ) -> Any:
        """The prediction for a text, or a list of them for several: a list, a pandas Series or any iterable.

        A pair is a tuple of two texts; a question on a passage a tuple or a dict; a choice is a dict with `question`,
        `options` and perhaps `passage`. A pretrained model fills in `[MASK]`, and of a pair it predicts the order. An
        input without text has the prediction None, with a warning.

        With exits (`finetune --exits`), each input leaves at the depth that it needs, by the rule that was fitted;
        `speedup` chooses a faster or a better one. `depth` is the number of layers for all inputs. `deadline_ms` lets
        an input leave with what it has, counted from when its batch was begun.
        """
        inputs = as_inputs(texts, self.kind)
        found = self.predict_inputs(
            inputs,
            max_length=max_length,
            tokens_at_a_time=tokens_at_a_time,
            leaving=self.leaving(depth=depth, speedup=speedup, deadline_ms=deadline_ms),
            shows=True,
        )
        if is_one(texts):
            [only] = found.predictions
            if isinstance(only, Unpredictable):
                raise UserError(f"there is nothing to predict for an input {only.reason}: {expected(self.kind)}")
            return only
        reasons: dict[str, list[int]] = {}
        for number, one in enumerate(found.predictions):
            if isinstance(one, Unpredictable):
                reasons.setdefault(one.reason, []).append(number)
        for reason, numbers in reasons.items():
            what = f"{counted(len(numbers), 'input')} {reason} (first: number {numbers[0]})"
            warnings.warn(f"{what}: predicted as None", InputWarning, stacklevel=2)
        return [None if isinstance(one, Unpredictable) else one for one in found.predictions]

    def embed(
        self,
        texts: Any,
        pooling: Pooling | None = None,
        layer: int | None = None,
        normalize: bool = True,
        *,
        max_length: int | None = None,
        tokens_at_a_time: int = TOKENS_AT_A_TIME,
    ) -> Float32[np.ndarray, "*texts hidden"]:
        """The embedding of a text, or a row for each of several: a list, a pandas Series or any iterable.

        `pooling` is mean, weighted (rare words count more) or cls, of the output of a layer, by default the last. With
        neither, it is what the model is best at: the mean of the last layer for a model of similarity, else the
        weighted mean of an early one. The dot product of normalized embeddings is their cosine. A text without visible
        characters has a row of zeros, with a warning.
        """
        if isinstance(texts, bytes | Mapping) or not hasattr(texts, "__iter__"):
            raise UserError(f"the input is a {type(texts).__name__}: give a text, or several")
        given = [texts] if isinstance(texts, str) else list(texts)
        method = self.embedding_method(pooling, layer)
        found = self.embed_texts(given, method, normalize, max_length, tokens_at_a_time)
        if found.empty and isinstance(texts, str):
            raise UserError("there is nothing to embed in a text without visible characters: give another")
        if found.empty:
            what = f"{counted(len(found.empty), 'text')} without visible characters (first: number {found.empty[0]})"
            warnings.warn(f"{what}: embedded as zeros", InputWarning, stacklevel=2)
        return found.embeddings[0] if isinstance(texts, str) else found.embeddings

    def answer(self, question: str, passage: str, *, max_length: int | None = None) -> AnswerPrediction:
        """The answer to a question, as characters of the passage, however long that is."""
        if self.kind != "question_answering":
            raise UserError(f"{self.name} cannot answer questions on a passage: {self._what_it_can()}")
        found: AnswerPrediction = self.predict((question, passage), max_length=max_length)
        return found

    def fill(self, text: str | Iterable[str], top: int = TOP) -> Any:
        """The most probable pieces for each `[MASK]` of a text, the best first; a list of them for several texts."""
        self._check_masked_lm()
        texts = [text] if isinstance(text, str) else list(text)
        found = self._fill(texts, top, Computing(TOKENS_AT_A_TIME, shows=True))
        for one, given in zip(found, texts, strict=True):
            if isinstance(one, Unpredictable):
                shortened = given if len(given) <= 60 else given[:59] + "…"
                advice = f"write {MASK}, in capitals, where a word is wanted" if MASK not in given else "shorten it"
                raise UserError(f"'{shortened}' is a text {one.reason}: {advice}")
        return found[0] if isinstance(text, str) else found

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder, which `load` and `transformers` read."""
        target = Path(folder)
        huggingface.save(self.module, target, self._tokenizer, card=self._card, pretraining=self._pretraining)
        if self.task is not None:
            write_task_info(target, self.task)
        if self.exits is not None:
            write_exit_info(target, replace(self.exits, weights=weights_of(target)))

    def to(self, device: str) -> "Predictor":
        """Compute on another device from now on: cpu, cuda, cuda:1 or mps. On a CUDA device it is in bf16."""
        found = usable_device(device)
        self.compute_on(Device(found, "bf16" if found.type == "cuda" else "fp32"))
        return self

    # How it does it.

    def compute_on(self, device: Device) -> None:
        """Compute on a device. An exported model computes on the CPU whatever devices there are."""
        if isinstance(self.backend, TorchBackend):
            self.backend = TorchBackend(self.backend.module.to(device.torch_device), device)

    def embedding_method(self, pooling: Pooling | None = None, layer: int | None = None) -> EmbeddingMethod:
        """How it embeds texts: as asked for, else what the model is best at."""
        return choose_method(self.kind, self.config, pooling, layer)

    def embed_texts(
        self,
        texts: Sequence[Any],
        method: EmbeddingMethod,
        normalize: bool = True,
        max_length: int | None = None,
        tokens_at_a_time: int = TOKENS_AT_A_TIME,
        shows: bool = True,
    ) -> Embedded:
        """The embeddings of texts, which texts have nothing visible, and how many were truncated."""
        length = self._checked_length(max_length)
        plain = [as_text(text, f"text {number}").strip() for number, text in enumerate(texts)]
        there = [number for number, text in enumerate(plain) if visible_characters(text)]
        sequences = encode_single([plain[number] for number in there], self.tokenizer, length)
        embeddings = np.zeros((len(plain), self.config.hidden_size), np.float32)
        with self._work(sequences, shows) as advance:
            embeddings[there] = self.backend.embed(
                sequences,
                Embedding(
                    method.pooling,
                    method.layer,
                    self._piece_weights if method.pooling == "weighted" else None,
                    normalize,
                ),
                Pace(tokens_at_a_time, advance),
            )
        empty = sorted(set(range(len(plain))) - set(there))
        return Embedded(embeddings, empty, sequences.num_truncated)

    @cached_property
    def _piece_weights(self) -> Float32[np.ndarray, "vocabulary"]:
        return piece_weights(self.tokenizer)

    def predict_inputs(
        self,
        inputs: Sequence[Input],
        *,
        max_length: int | None = None,
        tokens_at_a_time: int = TOKENS_AT_A_TIME,
        top: int = TOP,
        leaving: Leaving | None = None,
        shows: bool = False,
    ) -> Predicted:
        """The predictions for inputs by role, in their order; one that cannot be predicted has its reason there.

        `leaving`: at which depth inputs leave; None: all layers are computed. `shows`: whether long work shows its
        progress.
        """
        length = self._checked_length(max_length)
        if tokens_at_a_time < 1:
            raise UserError(f"tokens_at_a_time is {tokens_at_a_time}: it must be at least 1")
        found = [as_example(one, self.kind, number) for number, one in enumerate(inputs)]
        places = [place for place, one in enumerate(found) if not isinstance(one, Unpredictable)]
        examples = [one for one in found if not isinstance(one, Unpredictable)]
        self._check_pairs(examples)
        predictions: list[Prediction | Unpredictable] = [
            one if isinstance(one, Unpredictable) else Unpredictable("") for one in found
        ]
        made, num_truncated = self._predict(examples, length, top, Computing(tokens_at_a_time, leaving, shows))
        for place, one in zip(places, made, strict=True):
            predictions[place] = one
        return Predicted(predictions, num_truncated)

    def _predict(
        self, examples: list[Example], max_length: int, top: int, how: "Computing"
    ) -> tuple[list[Prediction | Unpredictable], int]:
        """The predictions for examples that have text, and how many of them were truncated."""
        if not examples:
            return [], 0
        if self.kind is not None:
            heads = [head.kind for head in self.backend.heads if head.kind not in PRETRAINING]
            task = _task(self.kind, self.labels, may_have_no_answer="answerability" in heads)
            stride = self.task.stride if self.task is not None else STRIDE
            long_texts = self.task.long_texts if self.task is not None else "truncate"
            encoding = encode(task, examples, self.tokenizer, max_length, stride=stride, long_texts=long_texts)
            if self.kind == "similarity":
                outputs = self._embedded(encoding.sequences, how)
            else:
                outputs = self._logits(encoding.sequences, heads, how)
            predictions = predictions_of(task, self.task, examples, encoding, outputs)
            if outputs.depths is not None:
                predictions = with_depths(predictions, encoding.sequences, outputs.depths)
            return [*predictions], encoding.sequences.num_truncated
        found: dict[int, Prediction | Unpredictable] = {}
        texts = {place: one.first for place, one in enumerate(examples) if are_pairs([one]) is False}  # type: ignore[union-attr]
        if texts:
            self._check_masked_lm()
            found |= zip(texts, self._fill(list(texts.values()), top, how), strict=True)
        pairs = {place: one for place, one in enumerate(examples) if place not in texts}
        num_truncated = 0
        if pairs:
            predicted, num_truncated = self._order(list(pairs.values()), max_length, how)
            found |= zip(pairs, predicted, strict=True)
        return [found[place] for place in range(len(examples))], num_truncated

    def _order(self, pairs: list[Example], max_length: int, how: "Computing") -> tuple[list[ClassPrediction], int]:
        """Whether the texts of each pair are in order, by the sentence-order head (paper, section 3.1)."""
        if not self._has("sentence_order"):
            raise UserError(f"{self.name} has no sentence-order head, so it cannot read pairs: {self._what_it_can()}")
        labels = (IN_ORDER, SWAPPED)
        sequences = encode(_task("classification", labels), pairs, self.tokenizer, max_length).sequences
        outputs = self._logits(sequences, ["sentence_order"], how)
        likely = softmax(outputs.logits["sentence_order"]).tolist()
        return [most_probable(dict(zip(labels, one, strict=True))) for one in likely], sequences.num_truncated

    def _fill(self, texts: Sequence[str], top: int, how: "Computing") -> list[Prediction | Unpredictable]:
        """The most probable pieces for each [MASK] of each text, by the masked-LM head (paper, section 3.1)."""
        tokenizer, longest = self.tokenizer, self.config.max_positions
        if not 1 <= top <= tokenizer.vocab_size:
            raise UserError(f"top is {top}: give a number from 1 to {tokenizer.vocab_size}, the size of the vocabulary")
        encoded = [encode_masked(tokenizer, text) if MASK in text else [] for text in texts]
        fits = [MASK in text and len(ids) + 2 <= longest for text, ids in zip(texts, encoded, strict=True)]
        sequences, masks = masked_sequences(tokenizer, [ids for ids, fit in zip(encoded, fits, strict=True) if fit])
        with self._work(sequences, how.shows) as advance:
            best = self._backend(how).masked_pieces(
                sequences, masks, top, tokenizer.vocab_size, Pace(how.tokens_at_a_time, advance)
            )
        guesses = [
            tuple(map(Guess, tokenizer.pieces(ids), ids, likely))
            for ids, likely in zip(best.ids.tolist(), best.probabilities.tolist(), strict=True)
        ]
        borders = np.searchsorted(masks, sequences.starts).tolist()
        filled = iter(FillPrediction(tuple(guesses[start:end])) for start, end in pairwise(borders))
        too_long = Unpredictable(f"of more than {longest} tokens, the most that the model reads")
        return [
            next(filled) if fit else too_long if MASK in text else Unpredictable(f"without {MASK}")
            for text, fit in zip(texts, fits, strict=True)
        ]

    def leaving(
        self, *, depth: int | None = None, speedup: float | None = None, deadline_ms: float | None = None
    ) -> Leaving | None:
        """At which depth inputs leave: as asked for, else by the fitted rule; None where all layers are computed."""
        found = choose_leaving(self.exits, depth=depth, speedup=speedup, deadline_ms=deadline_ms)
        if deadline_ms is not None and self.kind not in EXIT_KINDS:
            raise UserError(f"a deadline is for {', '.join(EXIT_KINDS)}: {self.name} is {self._describe()}")
        return found

    def _logits(self, sequences: Sequences, kinds: Sequence[HeadKind], how: "Computing") -> Outputs:
        """The logits of these heads, and the depth at which each sequence left, where they may leave early."""
        backend = self._backend(how)
        with self._work(sequences, how.shows) as advance:
            if how.leaving is not None and kinds[0] in EXIT_KINDS and isinstance(backend, LayeredBackend):
                left = run_with_exits(
                    backend.pool(), sequences, how.leaving, tokens_at_a_time=how.tokens_at_a_time, advance=advance
                )
                return Outputs({kinds[0]: combine_windows(sequences, left.logits)}, left.depths)
            return backend.logits(sequences, kinds, Pace(how.tokens_at_a_time, advance))

    def _backend(self, how: "Computing") -> Backend:
        depth = how.leaving.max_depth if how.leaving is not None else None
        return (
            self.backend
            if depth is None or not isinstance(self.backend, LayeredBackend)
            else self.backend.at_depth(depth)
        )

    def _embedded(self, sequences: Sequences, how: "Computing") -> Outputs:
        with self._work(sequences, how.shows) as advance:
            backend = self._backend(how)
            embeddings = backend.embed(sequences, pace=Pace(how.tokens_at_a_time, advance))
        return Outputs({"similarity": embeddings})

    @contextlib.contextmanager
    def _work(self, sequences: Sequences, shows: bool) -> Iterator[Advance]:
        """Show the progress of long work, and explain what it lacks memory for."""
        try:
            if shows and len(sequences.ids) >= LONG_INPUT:
                with Work("predict", total=float(len(sequences.ids)), unit="k tokens", scale=1e3) as work:
                    yield work.advance
            else:
                yield not_shown
        except torch.OutOfMemoryError:
            raise UserError(
                "so many tokens at a time do not fit into the memory: give fewer with tokens_at_a_time"
            ) from None

    # What it refuses.

    def _checked_length(self, max_length: int | None) -> int:
        positions = self.config.max_positions
        if max_length is not None and not MIN_LENGTH <= max_length <= positions:
            raise UserError(f"max_length is {max_length}: give a number from {MIN_LENGTH} to {positions} tokens")
        return max_length or self.max_length

    def _check_pairs(self, examples: Sequence[Example]) -> None:
        """Refuse pairs for a model of single texts and the reverse; a model without a head for texts is refused too."""
        if self.kind is None and not self.backend.heads:
            raise UserError(f"{self.name} has no heads, so it predicts nothing: {self._what_it_can()}")
        wanted = self.of_pairs
        for example in examples if wanted is not None else ():
            if are_pairs([example]) != wanted:
                was, give = ("pairs of texts", "tuples of two texts") if wanted else ("single texts", "a text for each")
                raise UserError(f"{self.name} was trained on {was}: give {give}")

    def _check_masked_lm(self) -> None:
        if not self._has("masked_lm"):
            has = ", ".join(head.kind for head in self.backend.heads) or "none"
            raise UserError(f"{self.name} has no masked-LM head (its heads: {has}): {self._what_it_can()}")

    def _what_it_can(self) -> str:
        """The method that the model's head serves, for errors."""
        if self.kind == "question_answering":
            return "it answers questions on a passage, by answer(question, passage)"
        if self.kind == "similarity":
            return "it compares two texts, by predict((first, second)), and embeds texts, by embed(texts)"
        if self.kind is not None:
            what = {
                "multiple_choice": "options",
                "regression": "values",
                "multi_label": "labels",
                "tagging": "tags of words",
            }
            return f"it predicts {what.get(self.kind, 'classes')}, by predict(…); for {MASK} use a pretrained model"
        if self.backend.heads:
            return f"it is a pretrained model, for fill(text) with {MASK}; fine-tune it with `openalbert finetune`"
        return "it gives hidden states, by encode(ids); fine-tune it with `openalbert finetune`"


def with_depths(
    predictions: Sequence[Prediction], sequences: Sequences, depths: Int64[np.ndarray, "sequences"]
) -> list[Prediction]:
    """The predictions with the layers computed for each: of several windows, the most."""
    most = np.zeros(len(predictions), np.int64)
    np.maximum.at(most, sequences.example, depths)
    return [replace(cast(Any, one), depth=int(depth)) for one, depth in zip(predictions, most, strict=True)]


def _task(kind: Kind, labels: tuple[str, ...], may_have_no_answer: bool = False) -> Task:
    """The task of a model that is given its inputs: it has no examples of its own to read or to measure."""

    def no_examples(*_: object) -> NoReturn:
        raise UserError(f"a model of {kind} has no examples of its own: evaluate it with `openalbert evaluate`")

    return Task(kind, kind, labels, (), no_examples, no_examples, "", may_have_no_answer)


def _check_no_heads(folder: Path, heads: Sequence[Head] | None) -> None:
    if heads is not None:
        raise UserError(f"{folder} is an exported model, whose heads cannot be changed: load the model it was made of")
