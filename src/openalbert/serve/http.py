"""The HTTP application: one or several models behind routes that text-embeddings-inference's, InferenceClient's and
OpenAI's clients know, and a page for people."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any, TypeVar

import anyio
import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from openalbert.errors import UserError, suggestion
from openalbert.serve.batcher import Batcher, LateError, OverloadedError, Ticket, ticket
from openalbert.serve.http_guard import RETRY_SECONDS, App, Guard, Limits, Metrics, error_body
from openalbert.serve.http_types import (
    AnswerBody,
    Answered,
    AnyBody,
    Body,
    Effort,
    EmbedBody,
    Entity,
    FillBody,
    Filled,
    OpenAiBody,
    PredictBody,
    QuestionInputs,
    Ranked,
    RerankBody,
    Scored,
    SimilarityBody,
    SimilarityInputs,
    Token,
    TokenizeBody,
)
from openalbert.serve.inputs import as_inputs
from openalbert.serve.masks import MASK
from openalbert.serve.predictions import (
    AnswerPrediction,
    ClassPrediction,
    FillPrediction,
    LabelsPrediction,
    TagsPrediction,
    Unpredictable,
    ValuePrediction,
)
from openalbert.serve.predictor import Predictor
from openalbert.version import __version__

T = TypeVar("T")
STATUS = {OverloadedError: (429, "Overloaded"), LateError: (503, "Timeout")}


@dataclass(frozen=True)
class ServedModel:
    """A model that is served: its predictor computes through its batcher."""

    name: str
    predictor: Predictor
    batcher: Batcher

    @property
    def routes(self) -> tuple[str, ...]:
        """What it can be asked for."""
        kind = self.predictor.kind
        heads = {head.kind for head in self.predictor.backend.heads}
        if kind == "question_answering":
            return ("answer", "embed")
        if kind is not None:
            return ("predict", "embed")
        return (*(("fill-mask",) if "masked_lm" in heads else ()), "embed")


class TooManyInputsError(UserError):
    """A request with more inputs than the server takes at once."""


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Service:
    """What the routes do, whatever their shape."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = {model.name: model for model in models}, limits, metrics
        self._threads = anyio.CapacityLimiter(limits.max_requests)

    def choose(self, name: str | None, route: str) -> ServedModel:
        """The model of that name, or the first that can do it."""
        if name is not None and name not in self.models:
            raise UserError(f"there is no model '{name}' here: {suggestion(name, self.models)}")
        able = [one for one in self.models.values() if name in (None, one.name) and route in one.routes]
        if not able:
            what = name or "no model here"
            can = "; ".join(f"{one.name}: {', '.join(one.routes)}" for one in self.models.values())
            raise UserError(f"{what} cannot do /{route} (what there is: {can})")
        return able[0]

    def check_count(self, count: int) -> None:
        """Refuse more inputs than the server takes at once, and none at all."""
        if count > self.limits.max_inputs:
            raise TooManyInputsError(
                f"{count} inputs, but a request has {self.limits.max_inputs} at most: send several"
            )
        if not count:
            raise UserError("there are no inputs: give at least one")

    async def run(self, request: Request, body: Body, work: Callable[[], T]) -> T:
        """Compute in a thread of its own, until it is done or the client has gone."""
        effort = body if isinstance(body, Effort) else Effort()
        deadline = None if effort.deadline_ms is None else effort.deadline_ms / 1000
        one = Ticket(self.limits.seconds, effort.max_depth, deadline)

        def counted() -> T:
            with ticket(one):
                return work()

        computing = asyncio.ensure_future(anyio.to_thread.run_sync(counted, limiter=self._threads))
        leaving = asyncio.ensure_future(request.receive())  # the body was read: only the client's leaving is left
        try:
            await asyncio.wait((computing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not computing.done():
                one.is_cancelled = True
                raise ClientGoneError
            return computing.result()
        finally:
            leaving.cancel()
            for served in one.served:
                self.metrics.take(served)

    # Each of these runs in a thread.

    def predict(self, model: ServedModel, texts: Sequence[Any], truncate: bool = True) -> list[Any]:
        """The predictions for inputs; one that cannot be predicted fails the request."""
        found = model.predictor.predict_inputs(as_inputs(list(texts), model.predictor.kind))
        if found.num_truncated and not truncate:
            raise UserError(f"an input has more than {model.predictor.max_length} tokens: shorten it, or let it be cut")
        for number, one in enumerate(found.predictions):
            if isinstance(one, Unpredictable):
                raise UserError(f"input {number} is {one.reason}: there is nothing to predict")
        return found.predictions

    def embed(
        self, model: ServedModel, texts: Sequence[str], normalize: bool = True, truncate: bool = True
    ) -> np.ndarray:
        """The embeddings of texts."""
        predictor = model.predictor
        found = predictor.embed_texts(list(texts), predictor.embedding_method(), normalize, shows=False)
        if found.num_truncated and not truncate:
            raise UserError(f"a text has more than {predictor.max_length} tokens: shorten it, or let it be cut")
        if found.empty:
            raise UserError(f"input {found.empty[0]} has no visible characters: there is nothing to embed")
        return found.embeddings

    def similarity(self, model: ServedModel, inputs: SimilarityInputs) -> list[float]:
        """The cosines of a sentence with others."""
        rows = self.embed(model, [inputs.source_sentence, *inputs.sentences]).astype(np.float64)
        return [float(value) for value in rows[1:] @ rows[0]]

    def rerank(self, model: ServedModel, body: RerankBody) -> list[Ranked]:
        """Texts by their relevance for a query: by a model of pairs where there is one, else by their cosines."""
        if model.predictor.of_pairs and model.predictor.kind != "similarity":
            scores = [_relevance(one) for one in self.predict(model, [(body.query, text) for text in body.texts])]
        else:
            scores = self.similarity(model, SimilarityInputs(source_sentence=body.query, sentences=body.texts))
        order = sorted(range(len(scores)), key=lambda number: -scores[number])
        texts = body.texts if body.return_text else [None] * len(scores)
        return [Ranked(index=number, score=scores[number], text=texts[number]) for number in order]

    def fill(self, model: ServedModel, texts: Sequence[str], top: int) -> list[list[list[Filled]]]:
        """For each text and each of its masks, the most probable pieces."""
        tokenizer, answers = model.predictor.tokenizer, []
        if top > tokenizer.vocab_size:
            raise UserError(f"top_k is {top}: the vocabulary has {tokenizer.vocab_size} pieces")
        for text, found in zip(texts, model.predictor.fill(list(texts), top), strict=True):
            assert isinstance(found, FillPrediction)
            masks = []
            for number, guesses in enumerate(found.masks):
                parts = text.split(MASK)
                before, behind = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
                masks.append(
                    [
                        Filled(
                            score=guess.probability,
                            token=guess.id,
                            token_str=guess.reading,
                            sequence=f"{before}{guess.reading.removeprefix('…')}{behind}",
                        )
                        for guess in guesses
                    ]
                )
            answers.append(masks)
        return answers

    def answer(self, model: ServedModel, question: str, context: str) -> Answered:
        """The answer to a question on a passage."""
        [found] = self.predict(model, [(question, context)])
        assert isinstance(found, AnswerPrediction)
        return Answered(answer=found.answer, score=found.probability, start=found.start, end=found.end)

    def tokenize(self, model: ServedModel, texts: Sequence[str], special: bool) -> list[list[Token]]:
        """The tokens of texts."""
        tokenizer, found = model.predictor.tokenizer, []
        for text in texts:
            encoding = tokenizer.encode_with_offsets(text)
            pieces = zip(encoding.ids, tokenizer.pieces(encoding.ids), encoding.offsets, strict=True)
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


def _relevance(prediction: Any) -> float:
    """How relevant a pair is: its value, or the probability of the last class, which says yes in most tasks."""
    if isinstance(prediction, ValuePrediction):
        return prediction.value
    return list(prediction.probabilities.values())[-1]


def shown(prediction: Any) -> list[Scored] | list[Entity]:
    """A prediction as JSON: labels with scores, the best first, or entities."""
    if isinstance(prediction, TagsPrediction):
        return [
            Entity(entity_group=one.label, word=one.text, start=one.start, end=one.end, score=one.probability)
            for one in prediction.entities or ()
        ]
    if isinstance(prediction, ValuePrediction):
        return [Scored(label="value", score=prediction.value, depth=prediction.depth)]
    if isinstance(prediction, ClassPrediction | LabelsPrediction):
        by_score = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])
        return [Scored(label=label, score=score, depth=prediction.depth) for label, score in by_score]
    likely = zip(prediction.all_probabilities(), prediction.probabilities, strict=True)
    return [Scored(label=label, score=score) for label, score in likely]


def make_app(
    models: Sequence[ServedModel],
    limits: Limits | None = None,
    *,
    key: str = "",
    cors: Sequence[str] = (),
    log_texts: bool = False,
) -> App:
    """The application, guarded."""
    limits = limits or Limits()
    metrics = Metrics(max(model.predictor.config.num_layers for model in models))
    service = Service(models, limits, metrics)
    app = FastAPI(title="openalbert", version=__version__, description="Models served by openalbert.")
    _add_errors(app)
    _add_pages(app, service)
    _add_routes(app, service)
    _add_client_routes(app, service)
    if cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])
    return Guard(app, limits, metrics, key, log_texts)


def _add_errors(app: FastAPI) -> None:
    def answer(request: Request, status: int, kind: str, message: str) -> JSONResponse:
        headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else None
        return JSONResponse(error_body(kind, message, request.url.path), status, headers)

    @app.exception_handler(UserError)
    async def refused(request: Request, error: UserError) -> JSONResponse:
        status, kind = STATUS.get(type(error), (413 if isinstance(error, TooManyInputsError) else 422, "Validation"))
        return answer(request, status, kind, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(one) for one in first["loc"][1:])
        return answer(request, 422, "Validation", f"{place or 'the body'}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> JSONResponse:
        return answer(request, error.status_code, "Validation" if error.status_code < 500 else "Internal", error.detail)

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=499)


def _add_pages(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(resources.files("openalbert.serve").joinpath("page.html").read_text(encoding="utf-8"))

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/health")
    async def health() -> Response:
        """200 while every model computes."""
        dead = [model.name for model in service.models.values() if not model.batcher.is_alive]
        if dead:
            return JSONResponse(error_body("Unhealthy", f"{dead[0]} does not compute any more"), 503)
        return JSONResponse({"status": "ok"})

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """The models and the limits."""
        first = next(iter(service.models.values()))
        return {
            "model_id": first.name,
            "max_client_batch_size": service.limits.max_inputs,
            "max_concurrent_requests": service.limits.max_requests,
            "max_input_length": first.predictor.max_length,
            "version": __version__,
            "models": [
                {
                    "name": model.name,
                    "kind": model.predictor.kind or "pretrained",
                    "routes": list(model.routes),
                    "labels": list(model.predictor.labels),
                    "num_layers": model.predictor.config.num_layers,
                    "has_exits": model.batcher.leaves_early,
                    "of_pairs": model.predictor.of_pairs,
                    "max_input_length": model.predictor.max_length,
                }
                for model in service.models.values()
            ],
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Metrics for Prometheus."""
        for model in service.models.values():
            service.metrics.waiting.labels(model.name).set(model.batcher.num_waiting)
        return PlainTextResponse(generate_latest(service.metrics.registry).decode())


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/embed")
    async def embed(request: Request, body: EmbedBody) -> list[list[float]]:
        """Embeddings, normalized unless asked otherwise."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.check_count(len(texts))
        work = partial(service.embed, service.choose(body.model, "embed"), texts, body.normalize, body.truncate)
        rows: list[list[float]] = (await service.run(request, body, work)).tolist()
        return rows

    @app.post("/predict")
    async def predict(
        request: Request, body: PredictBody
    ) -> list[Scored] | list[Entity] | list[list[Scored]] | list[list[Entity]]:
        """Labels with scores, the best first; for a batch a list for each input. A tagger gives entities."""
        is_batch = not isinstance(body.inputs, str) and any(isinstance(one, list) for one in body.inputs)
        given = body.inputs if is_batch else [body.inputs]
        inputs = [one if isinstance(one, str) else one[0] if len(one) == 1 else tuple(one) for one in given]
        service.check_count(len(inputs))
        work = partial(service.predict, service.choose(body.model, "predict"), inputs, body.truncate)
        found = [shown(one) for one in await service.run(request, body, work)]
        return found if is_batch else found[0]  # type: ignore[return-value]

    @app.post("/rerank")
    async def rerank(request: Request, body: RerankBody) -> list[Ranked]:
        """Texts by their relevance for a query, the best first."""
        service.check_count(len(body.texts))
        able = [one for one in service.models.values() if one.predictor.of_pairs and body.model in (None, one.name)]
        model = able[0] if able else service.choose(body.model, "embed")
        return await service.run(request, body, partial(service.rerank, model, body))

    @app.post("/similarity")
    async def similarity(request: Request, body: SimilarityBody) -> list[float]:
        """The cosines of a sentence with others."""
        service.check_count(len(body.inputs.sentences))
        model = service.choose(body.model, "embed")
        return await service.run(request, body, partial(service.similarity, model, body.inputs))

    @app.post("/tokenize")
    async def tokenize(request: Request, body: TokenizeBody) -> list[list[Token]]:
        """Tokens with the characters that they stand for."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.check_count(len(texts))
        model = service.choose(body.model, "embed")
        return await service.run(request, body, partial(service.tokenize, model, texts, body.add_special_tokens))

    @app.post("/fill-mask")
    async def fill(request: Request, body: FillBody) -> list[Any]:
        """The most probable pieces for [MASK]; a list for each mask where a text has several."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.check_count(len(texts))
        work = partial(service.fill, service.choose(body.model, "fill-mask"), texts, body.top_k)
        found = [masks[0] if len(masks) == 1 else masks for masks in await service.run(request, body, work)]
        return found[0] if isinstance(body.inputs, str) else found

    @app.post("/answer")
    async def answer(request: Request, body: AnswerBody) -> Answered:
        """The answer to a question, as characters of the passage."""
        model = service.choose(body.model, "answer")
        return await service.run(request, body, partial(service.answer, model, body.question, body.context))


def _add_client_routes(app: FastAPI, service: Service) -> None:
    @app.post("/")
    async def anything(request: Request, body: AnyBody) -> Any:
        """What the model is for, in the shape that `huggingface_hub.InferenceClient` sends and reads."""
        inputs, first = body.inputs, next(iter(service.models.values()))
        if isinstance(inputs, SimilarityInputs):
            service.check_count(len(inputs.sentences))
            model = service.choose(body.model, "embed")
            return await service.run(request, body, partial(service.similarity, model, inputs))
        if isinstance(inputs, QuestionInputs):
            model = service.choose(body.model, "answer")
            return await service.run(request, body, partial(service.answer, model, inputs.question, inputs.context))
        given: list[Any] = [inputs] if isinstance(inputs, str) else inputs
        service.check_count(len(given))
        model = service.models.get(body.model or "", first)
        if "predict" in model.routes and model.predictor.kind != "similarity":
            pairs = [tuple(one) if isinstance(one, list) else one for one in given]
            found = [shown(one) for one in await service.run(request, body, partial(service.predict, model, pairs))]
            return found[0] if isinstance(inputs, str) and model.predictor.kind == "tagging" else found
        if "fill-mask" in model.routes and isinstance(inputs, str) and MASK in inputs:
            top = (body.parameters or {}).get("top_k") or 5
            checked = FillBody(inputs=inputs, top_k=top)
            masks = await service.run(request, body, partial(service.fill, model, [inputs], checked.top_k))
            return masks[0][0] if len(masks[0]) == 1 else masks[0]
        texts = [one if isinstance(one, str) else " ".join(one) for one in given]
        rows = await service.run(request, body, partial(service.embed, model, texts, body.normalize))
        return rows.tolist()

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The models, as OpenAI's clients read them."""
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "openalbert"} for name in service.models]
        return {"object": "list", "data": data}

    @app.post("/v1/embeddings")
    async def embeddings(request: Request, body: OpenAiBody) -> dict[str, Any]:
        """Embeddings, as OpenAI's clients ask for them; tokens are those of this model's vocabulary."""
        known = body.model if body.model in service.models else None
        model = service.choose(known, "embed")
        given: list[Any] = [body.input] if isinstance(body.input, str) or _are_ids(body.input) else list(body.input)
        service.check_count(len(given))
        if body.dimensions not in (None, model.predictor.config.hidden_size):
            raise UserError(f"dimensions is {body.dimensions}: {model.name} has {model.predictor.config.hidden_size}")
        tokenizer = model.predictor.tokenizer
        texts = [one if isinstance(one, str) else tokenizer.decode(one) for one in given]
        rows = await service.run(request, body, partial(service.embed, model, texts))
        count = sum(len(tokenizer.encode(text)) + 2 for text in texts)
        as_given = _in_base64 if body.encoding_format == "base64" else np.ndarray.tolist
        data = [{"object": "embedding", "index": number, "embedding": as_given(row)} for number, row in enumerate(rows)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": model.name, "usage": usage}


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], int)


def _in_base64(row: np.ndarray) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
