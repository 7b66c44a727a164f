"""The HTTP application: one or several models behind routes that text-embeddings-inference's, InferenceClient's and
OpenAI's clients know, and a page for people."""

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from openalbert.errors import UserError, suggestion
from openalbert.serve.http_api.guard import RETRY_SECONDS, App, Guard, Metrics, error_body
from openalbert.serve.http_api.limits import ClosedError, LateError, Limits, OverloadedError, TooLargeError
from openalbert.serve.http_api.service import (
    ClientGoneError,
    ServedModel,
    Service,
    TooManyInputsError,
    UnknownModelError,
)
from openalbert.serve.http_api.types import (
    AnswerBody,
    Answered,
    AnyBody,
    EmbedBody,
    FillBody,
    OpenAiBody,
    Parameters,
    PredictBody,
    Predicted,
    Question,
    Ranked,
    RerankBody,
    SimilarityBody,
    SimilarityInputs,
    Token,
    TokenizeBody,
)
from openalbert.serve.masks import MASK
from openalbert.version import __version__

ERRORS: dict[type[UserError], tuple[int, str]] = {
    UnknownModelError: (404, "Validation"),
    TooManyInputsError: (413, "Validation"),
    TooLargeError: (413, "Validation"),
    OverloadedError: (429, "Overloaded"),
    ClosedError: (503, "Unavailable"),
    LateError: (503, "Timeout"),
}
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src 'self'"
)


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
    # FastAPI's own pages on the routes load their scripts from elsewhere: ours describes them too, at /docs.
    app = FastAPI(title="openalbert", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    _add_errors(app)
    _add_pages(app, service)
    _add_routes(app, service)
    _add_client_routes(app, service)
    routes = [route.path for route in app.routes if isinstance(route, Route)]
    guarded = Guard(app, limits, metrics, routes, key=key, log_texts=log_texts)
    # Around the guard: a browser asks without the key first, and reads errors only where they are allowed too.
    return CORSMiddleware(guarded, cors, allow_methods=["*"], allow_headers=["*"]) if cors else guarded


def _add_errors(app: FastAPI) -> None:
    def answer(
        request: Request, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
    ) -> JSONResponse:
        if status in (429, 503):
            headers = {"retry-after": str(RETRY_SECONDS)}
        return JSONResponse(error_body(kind, message, request.url.path), status, headers)

    @app.exception_handler(UserError)
    async def refused(request: Request, error: UserError) -> JSONResponse:
        status, kind = ERRORS.get(type(error), (422, "Validation"))
        return answer(request, status, kind, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        unknown = [".".join(map(str, one["loc"][1:])) for one in found if one["type"] == "extra_forbidden"]
        if unknown:
            return answer(request, 422, "Validation", f"{unknown[0]} is not known here: leave it out")
        place = next((str(one) for one in found[0]["loc"][1:] if isinstance(one, str)), "the body")
        # Of an input that may have several shapes, there is an error for each.
        reasons = dict.fromkeys(one["msg"] for one in found if place in ("the body", *map(str, one["loc"][1:2])))
        return answer(request, 422, "Validation", f"{place}: {'; or: '.join(list(reasons)[:4])}")

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> JSONResponse:
        reason = {
            404: "there is no such route: /openapi.json lists all",
            405: f"not by {request.method}: /openapi.json lists what each route takes",
        }.get(error.status_code, error.detail)
        kind = "Validation" if error.status_code < 500 else "Internal"
        return answer(request, error.status_code, kind, reason, error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return answer(request, 500, "Internal", "something went wrong here: the server's log has the request id")

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=499)


def _add_pages(app: FastAPI, service: Service) -> None:
    html = resources.files("openalbert.serve.http_api").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html, headers={"content-security-policy": PAGE_POLICY})

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/health")
    @app.head("/health", include_in_schema=False)
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
            **_tei_info(first),
            "max_client_batch_size": service.limits.max_inputs,
            "max_concurrent_requests": service.limits.max_requests,
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
                    "embedding_layer": model.predictor.embedding_method().layer,
                }
                for model in service.models.values()
            ],
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        for model in service.models.values():
            service.metrics.waiting.labels(model.name).set(model.batcher.num_waiting)
            service.metrics.deaths.labels(model.name).set(model.batcher.num_deaths)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _tei_info(model: ServedModel) -> dict[str, Any]:
    """What text-embeddings-inference says of its model, about this one."""
    predictor, labels = model.predictor, model.predictor.labels
    by_number = {str(number): label for number, label in enumerate(labels)}
    classes = {"id2label": by_number, "label2id": {label: number for number, label in enumerate(labels)}}
    if predictor.kind == "regression" and predictor.of_pairs:
        kind: dict[str, Any] = {"reranker": classes}
    elif predictor.kind in ("classification", "multi_label", "regression"):
        kind = {"classifier": classes}
    else:
        kind = {"embedding": {"pooling": predictor.embedding_method().pooling}}
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": {"fp32": "float32", "bf16": "bfloat16"}.get(model.precision, model.precision),
        "model_type": kind,
        "max_input_length": predictor.max_length,
        "max_batch_tokens": model.batcher.tokens_at_a_time,
        "max_batch_requests": None,
        "auto_truncate": True,
        "tokenization_workers": model.batcher.max_waiting,
        "version": __version__,
    }


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/embed")
    async def embed(request: Request, body: EmbedBody) -> list[list[float]]:
        """Embeddings, normalized unless asked otherwise."""
        model = service.choose(request, body, "embed")
        _check_dimensions(model, body.dimensions)

        def work() -> list[list[float]]:
            texts = model.texts_of(body.inputs)
            service.check_count(len(texts))
            rows: list[list[float]] = service.embed(model, texts, body.normalize, body.cuts).tolist()
            return rows

        return await service.run(request, body, work)

    @app.post("/predict", response_model_exclude_none=True)
    async def predict(request: Request, body: PredictBody) -> Predicted | list[Predicted]:
        """Labels with scores, the best first; for a batch a list for each input. A tagger gives entities."""
        model = service.choose(request, body, "predict")
        inputs, is_batch = model.inputs_of(body.inputs)
        service.check_count(len(inputs))
        found = await service.run(request, body, partial(service.predict, model, inputs, body))
        return found if is_batch else found[0]

    @app.post("/rerank", response_model_exclude_none=True)
    async def rerank(request: Request, body: RerankBody) -> list[Ranked]:
        """Texts by their relevance for a query, the best first."""
        service.check_count(len(body.texts))
        model = service.choose(request, body, "embed")
        return await service.run(request, body, partial(service.rerank, model, body))

    @app.post("/similarity")
    async def similarity(request: Request, body: SimilarityBody) -> list[float]:
        """The cosines of a sentence with others."""
        service.check_count(len(body.inputs.sentences))
        model = service.choose(request, body, "embed")
        cuts = body.parameters is None or body.parameters.cuts
        return await service.run(request, body, partial(service.similarity, model, body.inputs, cuts))

    @app.post("/tokenize")
    async def tokenize(request: Request, body: TokenizeBody) -> list[list[Token]]:
        """Tokens with the characters that they stand for."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.check_count(len(texts))
        model = service.choose(request, body, "embed")
        return await service.run(request, body, partial(service.tokenize, model, texts, body.add_special_tokens))

    @app.post("/fill-mask")
    async def fill(request: Request, body: FillBody) -> list[Any]:
        """The most probable pieces for [MASK]; a list for each mask where a text has several."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.check_count(len(texts))
        work = partial(service.fill, service.choose(request, body, "fill-mask"), texts, body.top_k)
        found = [masks[0] if len(masks) == 1 else masks for masks in await service.run(request, body, work)]
        return found[0] if isinstance(body.inputs, str) else found

    @app.post("/answer")
    async def answer(request: Request, body: AnswerBody) -> Answered:
        """The answer to a question, as characters of the passage."""
        model = service.choose(request, body, "answer")
        return await service.run(request, body, partial(service.answer, model, body.question, body.context))


def _add_client_routes(app: FastAPI, service: Service) -> None:
    @app.post("/")
    async def anything(request: Request, body: AnyBody) -> Any:
        """What the model is for, in the shape that `huggingface_hub.InferenceClient` sends and reads."""
        inputs, parameters = body.inputs, body.parameters or Parameters()
        if isinstance(inputs, SimilarityInputs):
            service.check_count(len(inputs.sentences))
            model = service.choose(request, body, "embed")
            return await service.run(request, body, partial(service.similarity, model, inputs, body.cuts))
        if isinstance(inputs, Question):
            model = service.choose(request, body, "answer")
            return await service.run(request, body, partial(service.answer, model, inputs.question, inputs.context))
        model = service.choose(request, body)
        if "predict" in model.routes and model.predictor.kind != "similarity":
            given, _ = model.inputs_of(inputs)
            service.check_count(len(given))
            found = await service.run(request, body, partial(service.predict, model, given, body))
            is_flat = isinstance(inputs, str) and model.predictor.kind == "tagging"
            return jsonable_encoder(found[0] if is_flat else found, exclude_none=True)
        if "fill-mask" in model.routes and isinstance(inputs, str) and MASK in inputs:
            [masks] = await service.run(request, body, partial(service.fill, model, [inputs], parameters.top_k or 5))
            return masks[0] if len(masks) == 1 else masks
        texts = _texts(inputs)
        service.check_count(len(texts))
        normalize = next((one for one in (body.normalize, parameters.normalize) if one is not None), True)
        rows = await service.run(request, body, partial(service.embed, model, texts, normalize, body.cuts))
        return rows.tolist()

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The models, as OpenAI's clients read them."""
        return {"object": "list", "data": [_openai_model(name) for name in service.models]}

    @app.get("/v1/models/{name}")
    async def show_model(name: str) -> dict[str, Any]:
        """One of the models, as OpenAI's clients read it."""
        if name not in service.models:
            raise UnknownModelError(f"there is no model '{name}' here: {suggestion(name, service.models)}")
        return _openai_model(name)

    @app.post("/v1/embeddings")
    async def embeddings(request: Request, body: OpenAiBody) -> dict[str, Any]:
        """Embeddings, as OpenAI's clients ask for them; ids are those of this model's vocabulary."""
        model = service.choose(request, body, "embed")
        _check_dimensions(model, body.dimensions)

        def work() -> dict[str, Any]:
            texts = model.texts_of(body.input)
            service.check_count(len(texts))
            rows, count = service.embed(model, texts), service.count_tokens(model, texts)
            coded = map(_in_base64, rows) if body.encoding_format == "base64" else rows.tolist()
            data = [{"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(coded)]
            usage = {"prompt_tokens": count, "total_tokens": count}
            return {"object": "list", "data": data, "model": model.name, "usage": usage}

        return await service.run(request, body, work)


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "openalbert"}


def _check_dimensions(model: ServedModel, given: int | None) -> None:
    hidden = model.predictor.config.hidden_size
    if given not in (None, hidden):
        raise UserError(f"dimensions is {given}: embeddings of {model.name} have {hidden}, and cannot be shortened")


def _texts(inputs: Any) -> list[str]:
    given = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise UserError("inputs: give a text, or a list of texts")
    return given


def _in_base64(row: np.ndarray) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
