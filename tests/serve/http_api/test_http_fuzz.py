"""Whatever is sent, no answer is a 500: requests made from the OpenAPI schema, and broken copies of good ones."""

import json
import os
import random
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
from tests.serve.http_api.serving import Running, running

NUM_MUTATED = 1800
NUM_FROM_SCHEMA = 25  # for each route that takes a body
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/", {"inputs": "the [MASK] of it", "parameters": {"top_k": 2}}),
    ("/", {"inputs": {"source_sentence": "a text", "sentences": ["one", "two"]}}),
    ("/embed", {"inputs": ["a text", "another"], "normalize": True, "truncate": True}),
    ("/predict", {"inputs": [["good"], ["a war"]], "max_depth": 1, "deadline_ms": 5.0}),
    ("/predict", {"inputs": {"question": "what", "options": ["a", "b"], "passage": "a text"}}),
    ("/rerank", {"query": "water", "texts": ["the war", "the water"], "return_text": True}),
    ("/similarity", {"inputs": {"source_sentence": "a text", "sentences": ["one", "two"]}}),
    ("/tokenize", {"inputs": "a text with words", "add_special_tokens": False}),
    ("/fill-mask", {"inputs": ["the [MASK] [MASK]"], "top_k": 3}),
    ("/answer", {"question": "where is it", "context": "it is in the water"}),
    ("/v1/embeddings", {"model": None, "input": ["a text"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": [[7, 8, 9], [10]]}),
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
        statuses[send(server.client, first + number)] += 1
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
