"""Whatever is sent, no answer is a 500: requests made from the OpenAPI schema, broken copies of good ones, and bytes
that are no proper HTTP, or come slowly, or stop in the middle, or whose sender leaves."""

import contextlib
import json
import os
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from tests.serve.http_api.serving import Running, address, running, until

NUM_MUTATED = 1800
NUM_RAW = 200
NUM_FROM_SCHEMA = 25  # for each route that takes a body
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/", {"inputs": "the [MASK] of it", "parameters": {"top_k": 2}}),
    ("/", {"inputs": {"source_sentence": "a text", "sentences": ["one", "two"]}}),
    ("/embed", {"inputs": ["a text", "another"], "normalize": True, "truncate": True}),
    ("/predict", {"inputs": [["good"], ["a war"]], "max_depth": 1, "deadline_ms": 5.0}),
    ("/embed", {"inputs": [[7, 8], "a text"], "truncate": None, "truncation_direction": "Right", "dimensions": None}),
    ("/predict", {"inputs": ["good", "a war", "water"], "raw_scores": True, "truncate": False, "prompt_name": None}),
    ("/predict", {"inputs": {"question": "what", "options": ["a", "b"], "passage": "a text"}}),
    ("/rerank", {"query": "water", "texts": ["the war", "the water"], "return_text": True}),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a text", "sentences": ["one", "two"]}, "parameters": {"truncate": True}},
    ),
    ("/tokenize", {"inputs": "a text with words", "add_special_tokens": False}),
    ("/fill-mask", {"inputs": ["the [MASK] [MASK]"], "top_k": 3}),
    ("/answer", {"question": "where is it", "context": "it is in the water"}),
    ("/v1/embeddings", {"model": None, "input": ["a text"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": [[7, 8, 9], [10]]}),
    ("/models/tiny/predict", {"inputs": "a text"}),
]
ODD_TEXTS = [
    "", " ", "\u200b", "\x00", "[MASK]", "[CLS][SEP]", "a" * 5000, "a " * 900, "\U0001f600" * 50, "e\u0301" * 200,
    "\u202e\u0000\ufeff", "\u4e2d\u6587", "\u0645\u0631\u062d\u0628\u0627", "\uff21\ufb01", "\n\r\t", "\\", "<s>",
]  # fmt: skip
ODD: list[Any] = [
    None, True, 0, -1, 2**63, 10**400, 1e308, float("nan"), float("inf"), "\ud800", [], [[]], {}, [None], [""],
    ["a"] * 40,
    {"inputs": "a"}, [["a", "b", "c"]], {"source_sentence": "a", "sentences": []}, [{"question": "a", "options": []}],
    {"question": "", "context": ""}, [2**31], [[1, 2], "a"],
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny: Path, quick_runs: dict[str, Path]) -> Iterator[Running]:
    kinds = ("classification", "multiple_choice", "question_answering", "tagging")
    with running(tiny, *(quick_runs[kind] for kind in kinds)) as found:
        yield found


def changed(value: Any, dice: random.Random) -> Any:
    """A copy with one part replaced, removed, doubled or nested."""
    if isinstance(value, dict) and value and dice.random() < 0.75:
        key = dice.choice(list(value))
        if dice.random() < 0.1:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.5:
        place = dice.randrange(len(value))
        return [*value[:place], changed(value[place], dice), *value[place + dice.randrange(2) :]]
    if isinstance(value, str) and dice.random() < 0.8:
        return dice.choice([value, ""]) + dice.choice(ODD_TEXTS)
    return dice.choice([dice.choice(ODD), dice.choice(ODD), [value], {"inputs": value}, [value] * 3])


def broken(body: bytes, dice: random.Random) -> bytes:
    """A copy with bytes changed, cut or repeated."""
    place = dice.randrange(len(body))
    return dice.choice(
        [
            body[:place],
            body[:place] + bytes([dice.randrange(256)]) + body[place + 1 :],
            body[:place] + body,
            body[:place] + b"[" * dice.choice([1, 50, 3000]) + body[place:],
            body + body,
        ]
    )


def mutated(seed: int) -> tuple[str, bytes, dict[str, str]]:
    """A route, a body and headers that all come from this number."""
    dice = random.Random(seed)
    route, body = dice.choice(GOOD)
    for _ in range(dice.choice([1, 1, 2, 3])):
        body = changed(body, dice)
    content = json.dumps(body).encode()
    if dice.random() < 0.25:
        content = broken(content, dice)
    kinds = ["application/json"] * 12 + ["text/plain", "application/json; charset=utf-16", "multipart/form-data", ""]
    headers = {"content-type": dice.choice(kinds), "x-request-id": dice.choice(["a", "\xff", "b" * 300])}
    if dice.random() < 0.05:
        route = dice.choice([route + "/", route.upper(), "//", "/../etc/passwd", "/%00", "/embed?inputs=a"])
    return route, content, headers


def send(client: httpx.Client, seed: int) -> int:
    """The status of a mutated request; an error must have the shape of errors."""
    route, content, headers = mutated(seed)
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = client.request("POST", route, content=content, headers=sent)
    assert answer.status_code < 500, f"{route} {content[:300]!r} {headers}\n{answer.text}"
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"] if route.startswith("/v1/") else error
    return answer.status_code


HEADERS = [  # each is a trick of its own
    b"",
    b"Content-Length: -5",
    b"Content-Length: 1e3",
    b"Content-Length: +7",
    b"Content-Length: 2\r\nContent-Length: 3",
    b"Content-Length: 99999999999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3",
    b"Expect: 100-continue",
    b"Expect: a miracle",
    b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c",
    b"Host: a\r\nHost: b",
    b"X : space",
    b"X\x00: zero",
    b"X: \xff\xfe",
    b"X: folded\r\n line",
    b": no name",
    b"no colon",
    b"X: " + b"a" * 70_000,
    b"\r\n".join(b"X-%d: a" % number for number in range(2000)),
    b"Authorization: Bearer \xff",
    b"Content-Type: application/json; charset=\xff",
    b"Accept-Encoding: gzip, br, *;q=0",
    b"Range: bytes=0-1",
]
TARGETS = [b"*", b"http://other/embed", b"/../../etc/passwd", b"/%00", b"/\xff", b"/a b", b"//", b"/embed?a=b#c", b""]


def raw_request(dice: random.Random) -> bytes:
    """A request as bytes, with one trick or more in its head or its framing."""
    route, body = dice.choice(GOOD)
    content = json.dumps(body).encode()
    method = dice.choice([b"POST"] * 8 + [b"GET", b"BREW", b"", b"post", b"\x16\x03\x01"])
    target = dice.choice([route.encode()] * 8 + TARGETS)
    version = dice.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"", b"http/1.1"])
    trick = dice.choice(HEADERS)
    length = b"" if b"ength" in trick or b"chunked" in trick else b"Content-Length: %d" % len(content)
    if b"chunked" in trick and dice.random() < 0.5:
        content = b"%x\r\n%s\r\n0\r\n\r\n" % (dice.choice([len(content), 3, 2**40]), content)
    lines = [b" ".join([method, target, version]), b"Host: a", b"Content-Type: application/json", length, trick]
    head = dice.choice([b"\r\n"] * 9 + [b"\n"]).join(line for line in lines if line)
    return (head + b"\r\n\r\n" + content) * dice.choice([1, 1, 1, 2])


def send_raw(address: tuple[str, int], seed: int) -> int:
    """The status of what is sent over a connection of its own; 0 where it is closed without an answer, or left."""
    dice = random.Random(seed)
    content = raw_request(dice)
    how = dice.choice(["whole"] * 4 + ["cut", "slow", "leave", "half-closed"])
    answer = b""
    with socket.create_connection(address) as connection, contextlib.suppress(OSError):
        connection.settimeout(0.2)
        if how == "cut":
            content = content[: dice.randrange(len(content))]
        pieces = 5 if how == "slow" else 1
        for number in range(pieces):
            connection.sendall(content[len(content) * number // pieces : len(content) * (number + 1) // pieces])
            time.sleep(0.005 * (pieces > 1))
        if how == "half-closed":
            connection.shutdown(socket.SHUT_WR)
        if how != "leave":
            answer = connection.recv(100)
    status = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    assert status is None or int(status[1]) < 500, f"{how} {content[:300]!r}\n{answer!r}"
    return int(status[1]) if status else 0


def test_bytes_that_are_no_proper_request_get_no_500_and_leave_no_place_taken(server: Running) -> None:
    statuses = Counter(send_raw(address(server), seed) for seed in range(NUM_RAW))
    assert {0, 200, 400} <= set(statuses), statuses
    assert until(lambda: "openalbert_requests_in_flight 1.0" in server.client.get("/metrics").text), "places are taken"
    assert server.client.get("/health").json() == {"status": "ok"}


def test_mutated_requests_are_answered_or_refused_with_a_reason(server: Running) -> None:
    first = int(os.environ.get("OPENALBERT_FUZZ_SEED", "0"))
    statuses = Counter(send(server.client, first + number) for number in range(NUM_MUTATED))
    assert {200, 422} <= set(statuses), statuses
    assert statuses[200] > NUM_MUTATED / 20, statuses
    assert server.client.get("/health").json() == {"status": "ok"}


@pytest.mark.slow
def test_a_hundred_thousand_mutated_requests_get_no_500_and_leave_no_memory_behind(server: Running) -> None:
    process, first = psutil.Process(), 1_000_000
    statuses = Counter(send(server.client, first + number) for number in range(5000))
    before = process.memory_info().rss
    for number in range(5000, 100_000):
        is_raw = number % 25 == 0
        status = send_raw(address(server), first + number) if is_raw else send(server.client, first + number)
        statuses[status] += 1
    grown = process.memory_info().rss / before
    print(dict(statuses), f"memory x {grown:.3f}")
    assert statuses.total() == 100_000
    assert grown < 1.05
    assert server.client.get("/health").json() == {"status": "ok"}


def test_requests_made_from_the_schema_never_get_a_500(server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    sent: Counter[int] = Counter()
    session = requests.Session()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method != "post":
            continue

        @settings(
            max_examples=NUM_FROM_SCHEMA,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE))
        def check(case: Any) -> None:
            answer = case.call(session=session, timeout=30)
            sent[answer.status_code] += 1
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.text}"

        check()
    assert sum(sent.values()) >= 9 * NUM_FROM_SCHEMA / 2, sent
    assert sent[200], sent
