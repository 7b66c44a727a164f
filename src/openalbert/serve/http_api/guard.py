"""What every HTTP request passes: its id, the API key, the limits on body and time, metrics, and one log line.

It is plain ASGI around the application, so that a request that is refused costs nothing more.
"""

import asyncio
import contextlib
import hmac
import json
import re
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from openalbert.serve.http_api.limits import Limits, Served

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN_ROUTES = (
    "/",
    "/docs",
    "/health",
    "/favicon.ico",
)  # without a key: the page itself holds nothing, and probes have none
PATH_MODEL = "openalbert.model"
"""Where a request's scope has the model that its path names."""
MODEL_PATH = re.compile(r"/models/([^/]+)(/.*)?")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE")
RETRY_SECONDS = 1
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """What /metrics shows."""

    def __init__(self, num_layers: int) -> None:
        self.registry = CollectorRegistry()
        new: Any = {"registry": self.registry}
        self.requests = Counter("openalbert_requests", "Requests.", ["route", "status"], **new)
        self.in_flight = Gauge("openalbert_requests_in_flight", "Requests being answered.", **new)
        self.seconds = Histogram("openalbert_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, **new)
        self.queue = Histogram("openalbert_queue_seconds", "Time before computing.", buckets=SECONDS, **new)
        self.compute = Histogram("openalbert_compute_seconds", "Time of computing.", buckets=SECONDS, **new)
        self.tokens = Histogram("openalbert_batch_tokens", "Tokens computed together.", buckets=TOKENS, **new)
        depths = tuple(range(1, num_layers + 1))
        self.depth = Histogram("openalbert_exit_depth", "Layers computed for a sequence.", buckets=depths, **new)
        self.waiting = Gauge("openalbert_requests_waiting", "Requests not yet computed.", ["model"], **new)
        self.deaths = Gauge("openalbert_worker_deaths", "Worker threads that died.", ["model"], **new)

    def add(self, served: Served) -> None:
        """Count a computation."""
        self.queue.observe(served.queue_seconds)
        self.compute.observe(served.compute_seconds)
        self.tokens.observe(served.batch_tokens)
        for depth in served.depths:
            self.depth.observe(depth)


class RefusedError(Exception):
    """A request that is answered with an error before the application sees it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def error_body(kind: str, message: str, route: str = "") -> dict[str, Any]:
    """An error as JSON: text-embeddings-inference's shape, and OpenAI's below /v1."""
    if route.startswith("/v1/"):
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return {"error": message, "error_type": kind}


class Guard:
    """The application with everything around it that does not depend on the route."""

    def __init__(
        self,
        app: App,
        limits: Limits,
        metrics: Metrics,
        routes: Collection[str],
        *,
        key: str = "",
        log_texts: bool = False,
    ) -> None:
        """`routes`: the paths that logs and metrics name; one of a stranger's choice would fill them."""
        self.app, self.limits, self.metrics, self.log_texts = app, limits, metrics, log_texts
        self.routes = frozenset(routes)
        self._key = key.encode()
        self._in_flight = 0
        metrics.in_flight.set_function(lambda: self._in_flight)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        started = time.perf_counter()
        scope = _with_model_of_path(scope)
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state: dict[str, Any] = {"status": 500, "body": b"", "has_begun": False}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"], state["has_begun"] = message["status"], True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        self._in_flight += 1
        try:
            self._check(scope, headers)
            state["body"] = await self._body(headers, receive)
            await self.app(scope, _replayed(state["body"], receive), answer)
        except RefusedError as error:
            await _send_error(answer, error, scope["path"])
        except asyncio.CancelledError:  # by a second signal, or when draining takes too long: it ends here
            if not state["has_begun"]:
                await _send_error(answer, RefusedError(503, "Unavailable", "the server has stopped"), scope["path"])
        except Exception as error:
            self._log_failure(request_id, error)  # the application has answered it
        finally:
            self._in_flight -= 1
            self._record(scope, state, request_id, time.perf_counter() - started)

    def _check(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
        is_read = scope["method"] in ("GET", "HEAD")
        if self._key and not (is_read and scope["path"] in OPEN_ROUTES):
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
                raise RefusedError(401, "Unauthorized", "give the API key: Authorization: Bearer KEY")
        if self._in_flight > self.limits.max_requests and not is_read:  # probes are answered under any load
            raise RefusedError(429, "Overloaded", f"{self.limits.max_requests} requests are in flight: try again")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, within the limits on its size and on the time that it takes to arrive."""
        too_large = RefusedError(413, "Validation", f"the body is larger than {self.limits.max_body:,} bytes")
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self.limits.max_body:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(499, "Disconnected", "the client has gone")
                    body += message.get("body", b"")
                    if len(body) > self.limits.max_body:
                        raise too_large
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise RefusedError(408, "Timeout", f"the body did not arrive within {self.limits.seconds:g} s") from None

    def _record(self, scope: MutableMapping[str, Any], state: dict[str, Any], request_id: str, seconds: float) -> None:
        matched = getattr(scope.get("route"), "path", None)  # not where it was refused before it came that far
        route = matched or (scope["path"] if scope["path"] in self.routes else "none")
        self.metrics.requests.labels(route, str(state["status"])).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "method": scope["method"] if scope["method"] in METHODS else "other",
            "route": route,
            "status": state["status"],
            "milliseconds": round(1000 * seconds, 2),
            "bytes": len(state["body"]),
        }
        if self.log_texts:
            line["body"] = state["body"].decode("utf-8", "replace")
        _log(line)

    def _log_failure(self, request_id: str, error: Exception) -> None:
        """Where something unforeseen happened; its message may have words of a request in it."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = {"request_id": request_id, "level": "error", "error": type(error).__name__}
        _log(
            {
                **line,
                "at": f"{Path(place.filename).name}:{place.lineno}",
                **({"message": str(error)} if self.log_texts else {}),
            }
        )


def _with_model_of_path(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """POST /models/NAME/predict asks that model for /predict: for clients that take an address, but no model."""
    found = MODEL_PATH.fullmatch(scope["path"])
    if scope["method"] != "POST" or not found:
        return scope
    return {**scope, "path": found[2] or "/", PATH_MODEL: found[1]}


def _log(line: dict[str, Any]) -> None:
    # A full disk, or a reader of the log that has gone, is no reason to answer nobody.
    with contextlib.suppress(OSError):
        print(json.dumps(line), file=sys.stderr, flush=True)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body that was read, once more; then whatever comes, such as the client's leaving."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _send_error(send: Send, error: RefusedError, route: str) -> None:
    body = json.dumps(error_body(error.kind, str(error), route)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status in (429, 503):
        headers.append((b"retry-after", str(RETRY_SECONDS).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status in (408, 413):  # what is left of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
