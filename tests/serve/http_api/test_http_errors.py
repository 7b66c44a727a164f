"""What is refused is refused with a reason, in the shape that clients read, and costs the others nothing."""

import contextlib
import errno
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.serve.http_api.serving import Running, address, running, until

from openalbert.serve.http_api.batcher import Batcher
from openalbert.serve.http_api.limits import Limits

LIMITS = Limits(max_body=5000, max_inputs=4, max_requests=3, seconds=1.0)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Running]:
    with running(tiny, limits=LIMITS) as found:
        yield found


def error_of(answer: httpx.Response, status: int) -> str:
    """The message of an error in text-embeddings-inference's shape."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.headers["x-request-id"]
    return str(answer.json()["error"])


class Gate:
    """Holds back whatever a batcher computes until it is opened."""

    def __init__(self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        compute = batcher._compute

        def held(jobs: list[Any]) -> None:
            if jobs:
                self.entered.set()
                self.opened.wait(10)
            compute(jobs)

        monkeypatch.setattr(batcher, "_compute", held)


@pytest.fixture
def gate(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    [model] = server.models.values()
    found = Gate(model.batcher, monkeypatch)
    yield found
    found.opened.set()
    assert until(lambda: not in_flight(server))


def in_flight(server: Running) -> int:
    """Requests under way, but for the one that asks."""
    lines = server.client.get("/metrics").text.splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("openalbert_requests_in_flight ")]
    return int(float(value)) - 1


def test_unknown_paths_methods_and_models_are_named(server: Running) -> None:
    assert error_of(server.client.get("/nowhere"), 404) == "there is no such route: /openapi.json lists all"
    assert error_of(server.client.post("/embed/"), 404).startswith("there is no such route")
    assert server.client.get("/embed").headers["allow"] == "POST"
    assert error_of(server.client.get("/embed"), 405) == "not by GET: /openapi.json lists what each route takes"
    assert "there is no model 'other'" in error_of(server.post("/embed", inputs="a", model="other"), 404)
    openai_shape = server.client.post("/v1/nowhere").json()
    assert openai_shape["error"]["message"].startswith("there is no such route")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"inputs": ', "JSON decode error"),
        (b"", "the body: Field required"),
        (b"[]", "valid dictionary"),
        (b"{}", "inputs: Field required"),
        (b'{"inputs": 3}', "inputs: Input should be a valid string; or: Input should be a valid list"),
        (b'{"inputs": NaN}', "valid string"),
        (b'{"inputs": ["a", null]}', "valid string"),
        (b'{"inputs": []}', "there are no inputs"),
        (b'{"inputs": "a", "normalize": "perhaps"}', "normalize: Input should be a valid boolean"),
        (rb'{"inputs": "a\ud800"}', "half of a surrogate pair at character 1"),
        (rb'{"inputs": "a", "model": "\udfff"}', "half of a surrogate pair"),
        (b'{"inputs": " \\u200b "}', "the input has no visible characters"),
        (b'{"inputs": ["a", ""]}', "input 1 has no visible characters"),
    ],
)
def test_a_body_that_makes_no_sense_is_answered_with_the_reason(body: bytes, expected: str, server: Running) -> None:
    answer = server.client.post("/embed", content=body, headers={"content-type": "application/json"})
    assert expected in error_of(answer, 422)


@pytest.mark.parametrize(
    "body",
    [b"[" * 4000, b'{"inputs": "\xff\xfe"}', b'{"inputs": "a", "x": ' + b"9" * 4900 + b"}", b"\x00" * 100],
    ids=["nested", "not UTF-8", "huge number", "zeros"],
)
def test_bytes_that_no_parser_reads_are_refused_and_break_nothing(body: bytes, server: Running) -> None:
    answer = server.client.post("/embed", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]
    assert server.ask("/embed", inputs="a")


@pytest.mark.parametrize("depth", [-1, 0, 10**30, 1e400, float("nan"), "deep"])
def test_numbers_out_of_range_are_refused(depth: Any, server: Running) -> None:
    body = json.dumps({"inputs": "a", "max_depth": depth})
    answer = server.client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    ids = server.post("/v1/embeddings", input=[10**30])
    assert ids.status_code == 422
    assert ids.json()["error"]["message"]


def test_too_many_inputs_or_bytes_are_answered_with_413(server: Running) -> None:
    assert "5 inputs, but a request has 4 at most" in error_of(server.post("/embed", inputs=["a"] * 5), 413)
    assert "larger than 5,000 bytes" in error_of(server.post("/embed", inputs="a" * 6000), 413)

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    assert "larger than 5,000 bytes" in error_of(server.client.post("/embed", content=endless()), 413)
    assert server.ask("/embed", inputs=["a"] * 4)


def test_more_requests_than_the_limit_get_429_while_probes_are_answered(server: Running, gate: Gate) -> None:
    with ThreadPoolExecutor(3) as threads:
        first = [threads.submit(server.post, "/embed", inputs=f"text {number}") for number in range(3)]
        assert until(lambda: in_flight(server) == 3)
        refused = server.post("/embed", inputs="one more")
        assert "3 requests are in flight" in error_of(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model=next(iter(server.models)), input="one more")
        assert server.client.get("/health").status_code == 200
        gate.opened.set()
        assert [one.result().status_code for one in first] == [200, 200, 200]


def test_what_is_not_computed_in_time_is_answered_with_503(server: Running, gate: Gate) -> None:
    started = time.monotonic()
    late = server.post("/embed", inputs="a")
    assert "not computed within 1 seconds" in error_of(late, 503)
    assert late.headers["retry-after"]
    assert time.monotonic() - started < 5
    gate.opened.set()
    assert until(lambda: server.post("/embed", inputs="a").status_code == 200)


def test_a_client_that_has_gone_frees_its_place_and_is_not_computed(server: Running, gate: Gate) -> None:
    [model] = server.models.values()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.post, "/embed", inputs="the first")
        assert gate.entered.wait(5)
        gone = raw(server, "/embed", b'{"inputs": "another"}')
        assert until(lambda: model.batcher.num_waiting == 1)
        gone.close()
        assert until(lambda: in_flight(server) == 1, 0.8)
        gate.opened.set()
        assert first.result().status_code == 200
    assert until(lambda: model.batcher.num_waiting == 0)


def test_a_body_that_comes_too_slowly_is_answered_with_408_and_frees_its_place(server: Running) -> None:
    slow = raw(server, "/embed", b'{"inputs"', length=100)
    answer = b"".join(iter(lambda: slow.recv(4000), b"")).decode()
    assert answer.startswith("HTTP/1.1 408")
    assert '"error": "the body did not arrive within 1 s"' in answer
    slow.close()
    cut = raw(server, "/embed", b'{"inputs"', length=100)
    assert until(lambda: in_flight(server) == 1)
    cut.close()
    assert until(lambda: in_flight(server) == 0, 0.8)


def test_header_tricks_and_what_is_not_http_do_not_disturb_others(server: Running) -> None:
    tricks = (
        b"GARBAGE\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999999\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"\xff" * 1000 + b"\r\n\r\n",
        b"BREW /embed HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    )
    for trick in tricks:
        with socket.create_connection(address(server)) as connection:
            connection.settimeout(3)
            connection.sendall(trick)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4000)
            assert not answer.startswith(b"HTTP/1.1 500"), trick[:60]
    assert server.ask("/embed", inputs="a")
    assert until(lambda: in_flight(server) == 0)


def test_a_model_that_fails_gives_a_500_that_says_nothing_of_the_text(
    server: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    [model] = server.models.values()

    def broken(*_: object) -> None:
        raise ValueError("a secret text")

    monkeypatch.setattr(model.batcher, "_compute", broken)
    answer = server.client.post("/embed", json={"inputs": "a secret text"}, headers={"x-request-id": "mine-7"})
    assert "server's log has the request id" in error_of(answer, 500)
    assert answer.headers["x-request-id"] == "mine-7"
    logged: list[str] = []
    assert until(lambda: logged.append(capfd.readouterr().err) or "".join(logged).count("mine-7") == 2)
    # The line of a test before this one may come late.
    lines = [json.loads(line) for line in "".join(logged).splitlines() if "mine-7" in line]
    assert [line["request_id"] for line in lines] == ["mine-7", "mine-7"]
    assert lines[0]["error"] == "ValueError"
    assert "secret" not in "".join(logged)


def test_a_small_request_cannot_ask_for_an_answer_of_any_size(tiny: Path) -> None:
    with running(tiny) as server:
        many = server.post("/fill-mask", inputs=["[MASK] " * 60] * 32, top_k=1000)
        assert "806,400,000 characters" in error_of(many, 413)
        wide = server.post("/fill-mask", inputs=" " * 100_000 + "[MASK]", top_k=1000)
        assert "ask for fewer pieces" in error_of(wide, 413)
        assert "characters" in error_of(server.client.post("/", json={"inputs": "[MASK] " * 60_000}), 413)
        assert len(server.ask("/fill-mask", inputs="[MASK] " * 50, top_k=100)) == 50
        tokens = server.post("/tokenize", inputs="water " * 100_000)
        assert "more than 2,112 tokens" in error_of(tokens, 413)


def test_texts_that_take_long_to_read_are_answered_in_time(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    [model] = server.models.values()
    monkeypatch.setattr(model.predictor, "embed_texts", lambda *_, **__: held.wait(10))
    started = time.monotonic()
    assert "not computed within 1 seconds" in error_of(server.post("/embed", inputs="a"), 503)
    assert time.monotonic() - started < 5
    held.set()


def test_errors_name_the_model_and_not_where_it_lies(server: Running, quick_runs: dict[str, Path]) -> None:
    [name] = server.models
    wrong = server.post("/v1/embeddings", input=[9999])
    assert wrong.json()["error"]["message"] == f"9999 is not an id of {name}: they are 0 to 999"
    with running(quick_runs["classification"]) as other:
        pair = error_of(other.post("/predict", inputs=[["a", "b"]]), 422)
        assert pair.startswith(f"{next(iter(other.models))} was trained on single texts")


def test_refused_requests_are_counted_under_their_route(tiny: Path) -> None:
    with running(tiny, key="word-7") as server:
        assert server.post("/embed", inputs="a").status_code == 401
        metrics = server.client.get("/metrics", headers={"authorization": "Bearer word-7"})
    assert 'openalbert_requests_total{route="/embed",status="401"} 1.0' in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain; version=")


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: a\r\n"], ids=["silent", "half a head"])
def test_connections_without_a_request_are_closed_after_a_while(begun: bytes, tiny: Path) -> None:
    with running(tiny, idle_seconds=0.5) as server, socket.create_connection(address(server)) as connection:
        connection.settimeout(10)
        connection.sendall(begun)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        assert server.ask("/embed", inputs="a")


def test_an_answer_that_nobody_takes_is_dropped_after_a_while(tiny: Path) -> None:
    with running(tiny, limits=Limits(max_inputs=6000), idle_seconds=0.5) as server:
        body = json.dumps({"inputs": ["a text"] * 6000}).encode()
        with raw(server, "/embed", body, receive_buffer=4096) as slow:
            assert until(lambda: 'route="/embed",status="200"' in server.client.get("/metrics").text, 20)
            time.sleep(3)
            taken = b""
            with contextlib.suppress(ConnectionResetError):
                taken = b"".join(iter(lambda: slow.recv(65536), b""))
        head, _, begun = taken.partition(b"\r\n\r\n")
        assert not head or len(begun) < int(head.lower().split(b"content-length: ")[1].split()[0])


def test_a_passage_of_more_tokens_than_are_computed_at_once_is_answered_with_413(quick_runs: dict[str, Path]) -> None:
    with running(quick_runs["question_answering"]) as server:
        found = server.post("/answer", question="where", context="the key is in the water " * 1000)
        assert "tokens, but at most 2,112 are computed for one" in error_of(found, 413)
        assert server.ask("/answer", question="where", context="the key is in the water " * 20)["answer"]


def test_with_a_key_only_the_page_and_the_probe_are_open(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(tiny, key="word-7") as server:
        for header in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic word-7"}, {"x-key": "word-7"}):
            for method, route in (("GET", "/info"), ("GET", "/metrics"), ("POST", "/embed"), ("POST", "/")):
                answer = server.client.request(method, route, headers=header)
                assert "give the API key" in error_of(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
        assert server.client.get("/").status_code == server.client.get("/health").status_code == 200
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="word-7")
        assert client.embeddings.create(model=next(iter(server.models)), input="my own text").data
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="other").models.list()
    logged = capfd.readouterr().err
    assert "word-7" not in logged
    assert "my own text" not in logged
    assert logged.count('"status": 401') == 17


def test_texts_are_logged_where_asked_for_and_every_line_is_json(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(tiny, log_texts=True) as server:
        server.ask("/embed", inputs="my own text")
        server.client.get("/no%0Awhere", headers={"x-request-id": 'a" "b'})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert json.loads(lines[0]["body"]) == {"inputs": "my own text"}
    assert (lines[0]["route"], lines[0]["status"], lines[0]["method"]) == ("/embed", 200, "POST")
    assert len(lines[1]["request_id"]) == 32
    assert lines[1]["route"] == "none"


def test_a_log_that_cannot_be_written_stops_nobody(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        num_tried = 0

        def write(self, text: str) -> int:
            self.num_tried += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    full = Full()
    with monkeypatch.context() as patch, running(tiny) as server:
        patch.setattr("sys.stderr", full)
        for _ in range(3):
            assert server.ask("/embed", inputs="a")
    # A line is written after its answer was sent: only when the server has ended are all of them counted.
    assert full.num_tried >= 3


def test_pages_of_other_origins_may_ask_only_where_allowed(tiny: Path) -> None:
    origin = {"origin": "https://example.org"}
    preflight = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with running(tiny) as closed:
        answer = closed.client.post("/embed", json={"inputs": "a"}, headers=origin)
        assert not any(name.startswith("access-control") for name in answer.headers)
        assert closed.client.options("/embed", headers=preflight).status_code == 405
    with running(tiny, key="word-7", cors=("https://example.org",)) as opened:
        assert opened.client.options("/embed", headers=preflight).status_code == 200
        refused = opened.client.post("/embed", json={"inputs": "a"}, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://example.org"
        other = opened.client.options("/embed", headers={**preflight, "origin": "https://example.com"})
        assert other.status_code == 400


def raw(
    server: Running, route: str, body: bytes, length: int | None = None, receive_buffer: int | None = None
) -> socket.socket:
    """A connection that has sent a request, or the beginning of one."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(address(server))
    connection.settimeout(10)
    head = f"POST {route} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body)
    return connection
