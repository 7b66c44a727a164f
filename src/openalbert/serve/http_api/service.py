"""What a server does for a request, whatever the shape of its route: chosen model, counted inputs, an answer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import numpy as np
from fastapi import Request
from jaxtyping import Float32

from openalbert.errors import UserError, suggestion
from openalbert.serve.http_api.batcher import Batcher
from openalbert.serve.http_api.guard import PATH_MODEL, Metrics
from openalbert.serve.http_api.limits import TICKET, LateError, Limits, Ticket, TooLargeError, ticket
from openalbert.serve.http_api.types import (
    Answered,
    AnyBody,
    Body,
    Choice,
    Effort,
    Entity,
    Filled,
    PredictBody,
    Predicted,
    Ranked,
    RerankBody,
    Scored,
    SimilarityInputs,
    TextsOrIds,
    Token,
)
from openalbert.serve.inputs import as_inputs
from openalbert.serve.masks import MASK
from openalbert.serve.predictions import (
    AnswerPrediction,
    ChoicePrediction,
    ClassPrediction,
    FillPrediction,
    LabelsPrediction,
    Prediction,
    TagsPrediction,
    Unpredictable,
    ValuePrediction,
)
from openalbert.serve.predictor import Predictor
from openalbert.tasks.custom.tagging import split_words
from openalbert.text.tokenizer import SPACE

T = TypeVar("T")
GRACE = 0.5  # seconds
MAX_FILLED = 10_000_000  # characters of an answer to /fill-mask, which repeats the text for every piece


class UnknownModelError(UserError):
    """A request for a model that is not served."""


class TooManyInputsError(UserError):
    """A request with more inputs than the server takes at once."""


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class ServedModel:
    """A model that is served: its predictor computes through its batcher."""

    name: str
    predictor: Predictor
    batcher: Batcher
    precision: str = "fp32"

    @property
    def routes(self) -> tuple[str, ...]:
        """What it can be asked for."""
        kind = self.predictor.kind
        if kind == "question_answering":
            return ("answer", "embed")
        if kind is not None:
            return ("predict", "embed")
        heads = {head.kind for head in self.predictor.backend.heads}
        return (*(("fill-mask",) if "masked_lm" in heads else ()), "embed")

    def texts_of(self, given: TextsOrIds) -> list[str]:
        """The texts of a request; ids of the vocabulary are read as the text that they stand for."""
        of_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
        return [one if isinstance(one, str) else self._decoded(one) for one in ([given] if of_one else given)]  # type: ignore[arg-type]

    def _decoded(self, ids: list[int]) -> str:
        tokenizer = self.predictor.tokenizer
        for number in ids:
            if number >= tokenizer.vocab_size:
                raise UserError(f"{number} is not an id of {self.name}: they are 0 to {tokenizer.vocab_size - 1}")
        return tokenizer.decode(ids)

    def inputs_of(self, given: Any) -> tuple[list[Any], bool]:
        """The inputs of a request, and whether they are a batch; two texts may be a pair or a batch of two."""
        predictor = self.predictor
        reads_pairs = predictor.kind not in ("tagging", "multiple_choice") and predictor.of_pairs is not False
        if isinstance(given, str):
            return [given], False
        if isinstance(given, Choice):
            return [given.model_dump()], False
        if len(given) == 2 and reads_pairs and all(isinstance(one, str) for one in given):
            return [tuple(given)], False
        inputs: list[Any] = []
        for one in given:
            if isinstance(one, Choice):
                inputs.append(one.model_dump())
            else:
                inputs.append(one if isinstance(one, str) else one[0] if len(one) == 1 else tuple(one))
        return inputs, True


class Service:
    """The models, and what they answer."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = {model.name: model for model in models}, limits, metrics
        self._threads = anyio.CapacityLimiter(limits.max_requests)

    def choose(self, request: Request, body: Body, route: str = "") -> ServedModel:
        """The model that the body names, or the path; else the first that can do it."""
        name = body.model if body.model is not None else request.scope.get(PATH_MODEL)
        if name is not None and name not in self.models:
            raise UnknownModelError(f"there is no model '{name}' here: {suggestion(name, self.models)}")
        named = [one for one in self.models.values() if name in (None, one.name)]
        able = [one for one in named if not route or route in one.routes]
        if not able:
            can = "; ".join(f"{one.name}: {', '.join(one.routes)}" for one in self.models.values())
            raise UserError(f"{name or 'no model here'} cannot do {route} (what there is: {can})")
        return able[0]

    def check_count(self, count: int) -> None:
        """Refuse more inputs than the server takes at once, and none at all."""
        if count > self.limits.max_inputs:
            raise TooManyInputsError(
                f"{count} inputs, but a request has {self.limits.max_inputs} at most: send several requests"
            )
        if not count:
            raise UserError("there are no inputs: give at least one")

    async def run(self, request: Request, body: Body, work: Callable[[], T]) -> T:
        """Compute in a thread of its own, until it is done, or its time is over, or the client has gone."""
        effort = body if isinstance(body, Effort) else Effort()
        deadline = None if effort.deadline_ms is None else effort.deadline_ms / 1000
        one = Ticket(self.limits.seconds, effort.max_depth, deadline)

        def counted() -> T:
            with ticket(one):
                return work()

        computing = asyncio.ensure_future(anyio.to_thread.run_sync(counted, limiter=self._threads))
        leaving = asyncio.ensure_future(request.receive())  # the body was read: only the client's leaving is left
        try:
            # The batcher keeps the time too, and says so itself; texts that take long to read never come to it.
            late = GRACE + self.limits.seconds
            await asyncio.wait((computing, leaving), timeout=late, return_when=asyncio.FIRST_COMPLETED)
            if computing.done():
                return computing.result()
            one.is_cancelled = True
            computing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise ClientGoneError if leaving.done() else LateError(self.limits.seconds)
        finally:
            leaving.cancel()
            for served in one.served:
                self.metrics.add(served)

    # Each of these runs in a thread.

    def predict(self, model: ServedModel, inputs: Sequence[Any], body: PredictBody | AnyBody) -> list[Predicted]:
        """The predictions for inputs; one that cannot be predicted fails the request."""
        kind = model.predictor.kind
        if (body.max_depth is not None or body.deadline_ms is not None) and model.batcher.mixed is None:
            raise UserError(f"max_depth and deadline_ms are for classifiers and regressors: {model.name} is for {kind}")
        layers = model.predictor.config.num_layers
        if body.max_depth is not None and body.max_depth > layers:
            raise UserError(f"max_depth is {body.max_depth}: {model.name} has {layers} layers")
        found = self._predictions(model, inputs, body.cuts)
        answers = [shown(*one) for one in zip(inputs, found, strict=True)]
        if isinstance(body, PredictBody) and body.raw_scores:
            return self._with_logits(model, found, answers)
        top = body.parameters.top_k if isinstance(body, AnyBody) and body.parameters else None
        return [one[:top] for one in answers]

    def _with_logits(
        self, model: ServedModel, predictions: Sequence[Prediction], answers: Sequence[Predicted]
    ) -> list[Predicted]:
        """The answers with logits for scores; a value is one already."""
        if model.predictor.kind in ("regression", "similarity"):
            return list(answers)
        if model.predictor.kind not in ("classification", "multi_label"):
            raise UserError(
                f"raw_scores are for classes, labels and values: {model.name} is for {model.predictor.kind}"
            )
        one = TICKET.get()
        assert one is not None
        raw = [
            [
                Scored(label=label, score=float(score), depth=prediction.depth)
                for label, score in zip(model.predictor.labels, row, strict=True)
            ]
            for prediction, row in zip(predictions, one.logits[model.predictor.kind], strict=True)
            if isinstance(prediction, ClassPrediction | LabelsPrediction)
        ]
        return [sorted(scored, key=lambda one: -one.score) for scored in raw]

    def _predictions(self, model: ServedModel, inputs: Sequence[Any], truncate: bool = True) -> list[Prediction]:
        predictor = model.predictor
        found = predictor.predict_inputs(as_inputs(list(inputs), predictor.kind))
        if found.num_truncated and not truncate:
            raise UserError(f"an input has more than {predictor.max_length} tokens: shorten it, or let it be cut")
        predictions: list[Prediction] = []
        for number, one in enumerate(found.predictions):
            if isinstance(one, Unpredictable):
                raise UserError(f"{_which(number, inputs)} is {one.reason}: there is nothing to predict")
            predictions.append(one)
        return predictions

    def embed(
        self, model: ServedModel, texts: Sequence[str], normalize: bool = True, truncate: bool = True
    ) -> Float32[np.ndarray, "texts hidden"]:
        """The embeddings of texts."""
        predictor = model.predictor
        found = predictor.embed_texts(texts, predictor.embedding_method(), normalize, shows=False)
        if found.num_truncated and not truncate:
            raise UserError(f"a text has more than {predictor.max_length} tokens: shorten it, or let it be cut")
        if found.empty:
            which = _which(found.empty[0], texts)
            raise UserError(f"{which} has no visible characters: there is nothing to embed")
        return found.embeddings

    def similarity(self, model: ServedModel, inputs: SimilarityInputs, truncate: bool = True) -> list[float]:
        """The cosines of a sentence with others."""
        rows = self.embed(model, [inputs.source_sentence, *inputs.sentences], True, truncate).astype(np.float64)
        cosines: list[float] = (rows[1:] @ rows[0]).tolist()
        return cosines

    def rerank(self, model: ServedModel, body: RerankBody) -> list[Ranked]:
        """Texts by their relevance for a query: by the value of each pair where a model gives one, else by cosines."""
        if model.predictor.kind == "regression" and model.predictor.of_pairs:
            pairs = self._predictions(model, [(body.query, text) for text in body.texts], body.cuts)
            scores = [one.value for one in pairs if isinstance(one, ValuePrediction)]
        else:
            inputs = SimilarityInputs(source_sentence=body.query, sentences=body.texts)
            scores = self.similarity(model, inputs, body.cuts)
        order = sorted(range(len(scores)), key=lambda number: -scores[number])
        texts = body.texts if body.return_text else [None] * len(scores)
        return [Ranked(index=number, score=scores[number], text=texts[number]) for number in order]

    def count_tokens(self, model: ServedModel, texts: Sequence[str]) -> int:
        """The tokens that are computed for texts."""
        encode, most = model.predictor.tokenizer.encode, model.predictor.max_length
        return sum(min(len(encode(text)) + 2, most) for text in texts)

    def fill(self, model: ServedModel, texts: Sequence[str], top: int) -> list[list[list[Filled]]]:
        """For each text and each of its masks, the most probable pieces."""
        size = top * sum(len(text) * text.count(MASK) for text in texts)
        if size > MAX_FILLED:
            raise TooLargeError(
                f"the answer would have {size:,} characters, since every piece comes with its text, but at most "
                f"{MAX_FILLED:,} are sent: ask for fewer pieces (top_k), fewer masks or shorter texts"
            )
        found: list[FillPrediction] = model.predictor.fill(list(texts), top)
        return [_filled(text, one) for text, one in zip(texts, found, strict=True)]

    def answer(self, model: ServedModel, question: str, context: str) -> Answered:
        """The answer to a question on a passage."""
        [found] = self._predictions(model, [(question, context)])
        assert isinstance(found, AnswerPrediction)
        return Answered(answer=found.answer, score=found.probability, start=found.start, end=found.end)

    def tokenize(self, model: ServedModel, texts: Sequence[str], special: bool) -> list[list[Token]]:
        """The tokens of texts."""
        tokenizer, found = model.predictor.tokenizer, []
        left = model.batcher.max_tokens
        for text in texts:
            encoding = tokenizer.encode_with_offsets(text)
            left -= len(encoding.ids)
            if left < 0:
                raise TooLargeError(f"the texts have more than {model.batcher.max_tokens:,} tokens: send shorter ones")
            pieces = zip(encoding.ids, encoding.pieces, encoding.offsets, strict=True)
            tokens = [
                Token(id=number, text=piece, special=False, start=start, stop=stop)
                for number, piece, (start, stop) in pieces
            ]
            if special:
                first, last = (
                    Token(id=number, text=tokenizer.pieces([number])[0], special=True, start=None, stop=None)
                    for number in (tokenizer.cls_id, tokenizer.sep_id)
                )
                tokens = [first, *tokens, last]
            found.append(tokens)
        return found


def _which(number: int, inputs: Sequence[Any]) -> str:
    return "the input" if len(inputs) == 1 else f"input {number}"


def _filled(text: str, found: FillPrediction) -> list[list[Filled]]:
    """The text with each of the pieces for each of its masks."""
    parts, masks = text.split(MASK), []
    for number, guesses in enumerate(found.masks):
        before, behind = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
        filled = []
        for guess in guesses:
            word, continues = guess.piece.replace(SPACE, " ").strip(), not guess.piece.startswith(SPACE)
            first = before.rstrip() if continues else before + " " * (before[-1:] not in ("", " ", "\n"))
            filled.append(
                Filled(
                    score=guess.probability,
                    token=guess.id,
                    token_str=word,
                    sequence=f"{first}{word}{behind}",
                    continues=continues,
                )
            )
        masks.append(filled)
    return masks


def shown(given: Any, prediction: Prediction) -> Predicted:
    """A prediction as JSON: labels with scores, the best first, or entities; of tags that mark none, the words."""
    if isinstance(prediction, TagsPrediction) and prediction.entities is not None:
        return [
            Entity(entity_group=one.label, word=one.text, start=one.start, end=one.end, score=one.probability)
            for one in prediction.entities
        ]
    if isinstance(prediction, TagsPrediction):
        words = zip(split_words(given), prediction.words, prediction.tags, prediction.probabilities, strict=True)
        return [
            Entity(entity_group=tag, word=word, start=start, end=end, score=score)
            for (start, end), word, tag, score in words
        ]
    if isinstance(prediction, ValuePrediction):
        return [Scored(label="value", score=prediction.value, depth=prediction.depth)]
    if isinstance(prediction, ChoicePrediction):
        scored = [Scored(label=one, score=p) for one, p in zip(given["options"], prediction.probabilities, strict=True)]
    else:
        assert isinstance(prediction, ClassPrediction | LabelsPrediction)
        scored = [
            Scored(label=label, score=score, depth=prediction.depth)
            for label, score in prediction.probabilities.items()
        ]
    return sorted(scored, key=lambda one: -one.score)
