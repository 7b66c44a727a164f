"""`Predictor`: a trained model that takes text and gives predictions, for Python, the shell and servers alike."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float32

from openalbert.errors import InputWarning, UserError
from openalbert.finetuning.encode import MIN_LENGTH, encode_single
from openalbert.finetuning.predict import TOKENS_AT_A_TIME, Embedding
from openalbert.formatting import counted, were
from openalbert.model.heads import EXIT_KINDS
from openalbert.model.pooling import Pooling
from openalbert.serve.backend import Computation
from openalbert.serve.decisions import predict_order, predict_task
from openalbert.serve.early_exit import Leaving, choose_leaving
from openalbert.serve.embedding_method import EmbeddingMethod, choose_method, piece_weights
from openalbert.serve.inputs import Input, as_example, as_inputs, check_is_several, expected, is_one
from openalbert.serve.masks import MASK, fill_masks
from openalbert.serve.predictions import AnswerPrediction, Prediction, Unpredictable
from openalbert.serve.trained_model import TrainedModel
from openalbert.tasks.data.row_files import as_text, has_visible_characters
from openalbert.tasks.task import Example, are_pairs

TOP = 5  # pieces for each [MASK]


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


class Predictor(TrainedModel):
    """A model with its tokenizer and its task: text in, predictions out.

    It computes on the CPU until `to` moves it.

        >>> import openalbert
        >>> model = openalbert.load("runs/mails")
        >>> model.predict("Please send me the invoice again.").label in model.labels
        True
        >>> len(model.predict(["The first mail.", "The second one."]))
        2
    """

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
        `speedup` chooses a faster or a better one. `depth` is the number of layers for all inputs. With
        `deadline_ms` each input is computed alone, and leaves with what it has then.
        """
        inputs = as_inputs(texts, self.kind)
        found = self.predict_inputs(
            inputs,
            max_length=max_length,
            tokens_at_a_time=tokens_at_a_time,
            leaving=self.leaving(depth=depth, speedup=speedup, deadline_ms=deadline_ms),
            shows=True,
        )
        self._warn_of_truncated(found.num_truncated, max_length)
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
        check_is_several(texts, "give a text, or several")
        given = [texts] if isinstance(texts, str) else list(texts)
        method = self.embedding_method(pooling, layer)
        found = self.embed_texts(given, method, normalize, max_length, tokens_at_a_time)
        self._warn_of_truncated(found.num_truncated, max_length)
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
        found = fill_masks(Computation(self.backend, shows=True), self.tokenizer, texts, top)
        for one, given in zip(found, texts, strict=True):
            if isinstance(one, Unpredictable):
                shortened = given if len(given) <= 60 else given[:59] + "…"
                advice = f"write {MASK}, in capitals, where a word is wanted" if MASK not in given else "shorten it"
                raise UserError(f"'{shortened}' is a text {one.reason}: {advice}")
        return found[0] if isinstance(text, str) else found

    # How it does it.

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
        there = [number for number, text in enumerate(plain) if has_visible_characters(text)]
        sequences = encode_single([plain[number] for number in there], self.tokenizer, length)
        embeddings = np.zeros((len(plain), self.config.hidden_size), np.float32)
        weights = self._piece_weights if method.pooling == "weighted" else None
        compute = Computation(self.backend, tokens_at_a_time, shows=shows)
        embeddings[there] = compute.embed(sequences, Embedding(method.pooling, method.layer, weights, normalize))
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
        compute = Computation(self.backend, tokens_at_a_time, leaving, shows)
        found = [as_example(one, self.kind, number) for number, one in enumerate(inputs)]
        examples = [one for one in found if not isinstance(one, Unpredictable)]
        self._check_pairs(examples)
        made, num_truncated = self._predict(examples, length, top, compute)
        in_order = iter(made)
        predictions = [one if isinstance(one, Unpredictable) else next(in_order) for one in found]
        return Predicted(predictions, num_truncated)

    def _predict(
        self, examples: list[Example], max_length: int, top: int, compute: Computation
    ) -> tuple[Sequence[Prediction | Unpredictable], int]:
        """The predictions for examples that have text, and how many of them were truncated."""
        if not examples:
            return [], 0
        if self.kind is not None:
            return predict_task(self.kind, self.labels, self.task, examples, self.tokenizer, max_length, compute)
        found: dict[int, Prediction | Unpredictable] = {}
        texts = {place: one.first for place, one in enumerate(examples) if are_pairs([one]) is False}  # type: ignore[union-attr]
        if texts:
            self._check_masked_lm()
            found |= zip(texts, fill_masks(compute, self.tokenizer, list(texts.values()), top), strict=True)
        pairs = {place: one for place, one in enumerate(examples) if place not in texts}
        num_truncated = 0
        if pairs:
            self._check_sentence_order()
            predicted, num_truncated = predict_order(list(pairs.values()), self.tokenizer, max_length, compute)
            found |= zip(pairs, predicted, strict=True)
        return [found[place] for place in range(len(examples))], num_truncated

    def leaving(
        self, *, depth: int | None = None, speedup: float | None = None, deadline_ms: float | None = None
    ) -> Leaving | None:
        """At which depth inputs leave: as asked for, else by the fitted rule; None where all layers are computed."""
        found = choose_leaving(
            self.exits, self.config.num_layers, depth=depth, speedup=speedup, deadline_ms=deadline_ms
        )
        if deadline_ms is not None and self.kind not in EXIT_KINDS:
            raise UserError(f"a deadline is for {', '.join(EXIT_KINDS)}: {self.name} is {self._describe()}")
        return found

    # What it refuses.

    def _warn_of_truncated(self, number: int, max_length: int | None) -> None:
        if number:
            what = f"{counted(number, 'input')} {were(number)} too long"
            longest = self._checked_length(max_length)
            warnings.warn(f"{what}, and cut to {longest} tokens", InputWarning, stacklevel=3)

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

    def _check_sentence_order(self) -> None:
        if not self._has("sentence_order"):
            raise UserError(f"{self.name} has no sentence-order head, so it cannot read pairs: {self._what_it_can()}")

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
