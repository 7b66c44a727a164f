"""Continuous batching: many threads get what each would get alone, and a failure or an overload is theirs alone."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.serve.test_early_exit import CLASSES, CPU, random_model, random_sequences

from openalbert.errors import UserError
from openalbert.finetuning.exit_rules import exit_depths, predict_depths
from openalbert.finetuning.predict import Embedding, Outputs
from openalbert.interop.exits import ExitRule
from openalbert.model.config import Head, HeadKind
from openalbert.model.pooling import Pooling
from openalbert.serve.backend import USUAL_PACE, Pace, TorchBackend
from openalbert.serve.early_exit import TorchPool
from openalbert.serve.http_api.batcher import MAX_RESTARTS, Batcher, BatchingBackend
from openalbert.serve.http_api.limits import (
    ClosedError,
    LateError,
    OverloadedError,
    Ticket,
    TooLargeError,
    ticket,
)
from openalbert.tasks.task import Sequences

RULE = ExitRule("confidence", 0.75)
REQUESTS = [random_sequences([length, 3 + length // 2][: 1 + length % 2]) for length in range(2, 38)]


@pytest.fixture
def mixed() -> Iterator[Batcher]:
    model = random_model()
    batcher = Batcher(TorchBackend(model, CPU), TorchPool(model, CPU), RULE, tokens_at_a_time=90)
    yield batcher
    assert batcher.close(10.0)


def test_requests_of_many_threads_leave_as_each_would_alone(mixed: Batcher) -> None:
    model, backend = random_model(), BatchingBackend(mixed)

    def ask(request: Sequences) -> tuple[np.ndarray, tuple[int, ...]]:
        with ticket(Ticket()) as one:
            logits = backend.logits(request, ["classification"]).logits["classification"]
        [served] = one.served
        return logits, served.depths

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(ask, REQUESTS))
    for request, (logits, depths) in zip(REQUESTS, found, strict=True):
        by_depth = predict_depths(model, request, CPU)
        expected = exit_depths("classification", RULE, by_depth)
        assert depths == tuple(expected)
        np.testing.assert_allclose(logits, by_depth[expected - 1, np.arange(len(expected))], atol=2e-5)


@pytest.mark.parametrize("head", [CLASSES, Head("span"), Head("masked_lm")], ids=lambda head: head.kind)
def test_requests_computed_together_are_cut_apart_again(head: Head) -> None:
    model = random_model(head=head, has_exits=False)
    direct, batcher = TorchBackend(model, CPU), Batcher(TorchBackend(model, CPU), tokens_at_a_time=200)
    shared = BatchingBackend(batcher)

    def ask(request: Sequences) -> Any:
        if head.kind != "masked_lm":
            return shared.logits(request, [head.kind]).logits[head.kind]
        found = shared.masked_pieces(request, request.starts[:-1] + 1, 3, 50)
        return np.stack([found.ids, found.probabilities])

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(ask, REQUESTS))
    assert batcher.close(10.0)
    for request, given in zip(REQUESTS, found, strict=True):
        if head.kind == "masked_lm":
            pieces = direct.masked_pieces(request, request.starts[:-1] + 1, 3, 50)
            expected = np.stack([pieces.ids, pieces.probabilities])
        else:
            expected = direct.logits(request, [head.kind]).logits[head.kind]
        np.testing.assert_allclose(given, expected, atol=2e-5)


@pytest.mark.parametrize(("pooling", "layer"), [("mean", None), ("weighted", 1), ("cls", 2)])
def test_embeddings_of_requests_computed_together_are_those_of_each(pooling: Pooling, layer: int | None) -> None:
    direct = TorchBackend(random_model(has_exits=False), CPU)
    weights = np.linspace(0.1, 1, direct.config.vocab_size, dtype=np.float32)
    batcher = Batcher(direct, tokens_at_a_time=200)
    shared = BatchingBackend(batcher)

    def ask(request: Sequences) -> np.ndarray:
        return shared.embed(request, Embedding(pooling, layer, weights))

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(ask, REQUESTS))
    assert batcher.close(10.0)
    for request, given in zip(REQUESTS, found, strict=True):
        expected = direct.embed(request, Embedding(pooling, layer, weights))
        np.testing.assert_allclose(given, expected, atol=2e-5)


def test_a_request_of_too_many_tokens_is_refused_before_others_wait_for_it() -> None:
    batcher = Batcher(TorchBackend(random_model(has_exits=False), CPU), max_tokens=40)
    shared = BatchingBackend(batcher)
    with pytest.raises(TooLargeError, match="has 60 tokens, but at most 40"):
        shared.logits(random_sequences([30, 30]), ["classification"])
    assert shared.logits(random_sequences([30, 10]), ["classification"]).logits["classification"].shape == (2, 3)
    assert batcher.close(10.0)


class Dying(TorchBackend):
    """Ends its thread for requests of one token."""

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
        if 1 in sequences.lengths:
            raise SystemExit
        return super().logits(sequences, kinds)


def test_a_worker_that_dies_fails_its_own_request_and_the_next_is_computed() -> None:
    said: list[str] = []
    batcher = Batcher(Dying(random_model(has_exits=False), CPU), report=said.append)
    shared = BatchingBackend(batcher)
    for _ in range(MAX_RESTARTS + 2):  # one request that is computed in between, and the count begins anew
        started = time.monotonic()
        with pytest.raises(ClosedError, match="is lost: send the request again"):
            shared.logits(random_sequences([1]), ["classification"])
        assert time.monotonic() - started < 5
        assert shared.logits(random_sequences([5]), ["classification"]).logits["classification"].shape == (1, 3)
    assert batcher.num_deaths == len(said) == MAX_RESTARTS + 2
    assert said[0] == "a worker thread ended with SystemExit: another one takes over"
    assert batcher.is_alive
    assert batcher.close(5.0)


def test_requests_that_wait_while_a_worker_dies_are_computed_by_the_next() -> None:
    entered, allowed = threading.Event(), threading.Event()

    class Held(Dying):
        def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
            entered.set()
            assert allowed.wait(10)
            return super().logits(sequences, kinds)

    batcher = Batcher(Held(random_model(has_exits=False), CPU))
    shared = BatchingBackend(batcher)
    with ThreadPoolExecutor(4) as threads:
        deadly = threads.submit(shared.logits, random_sequences([1]), ["classification"])
        assert entered.wait(10)
        waiting = [threads.submit(shared.logits, random_sequences([5]), ["classification"]) for _ in range(3)]
        while batcher.num_waiting < 3:
            time.sleep(0.001)
        allowed.set()
        with pytest.raises(ClosedError):
            deadly.result(10)
        assert [one.result(10).logits["classification"].shape for one in waiting] == [(1, 3)] * 3
    assert batcher.close(5.0)


def test_workers_that_die_one_after_another_end_the_batcher_and_leave_nobody_waiting() -> None:
    said: list[str] = []
    batcher = Batcher(Dying(random_model(has_exits=False), CPU), report=said.append)
    shared = BatchingBackend(batcher)
    for number in range(MAX_RESTARTS + 1):
        expected = "is lost" if number < MAX_RESTARTS else "does not compute any more"
        with pytest.raises(ClosedError, match=expected):
            shared.logits(random_sequences([1]), ["classification"])
    assert "the last of 4 in a row" in said[-1]
    batcher.close(5.0)
    assert not batcher.is_alive
    with pytest.raises(ClosedError, match="send the request again"):
        shared.logits(random_sequences([5]), ["classification"])


def test_a_worker_that_dies_within_a_batch_of_mixed_depths_leaves_a_batcher_that_computes() -> None:
    class Breaking(TorchPool):
        is_broken = False

        def run_layer(self, depths: np.ndarray) -> np.ndarray:
            if self.is_broken:
                raise SystemExit
            return super().run_layer(depths)

    model = random_model()
    pool = Breaking(model, CPU)
    batcher = Batcher(TorchBackend(model, CPU), pool, RULE)
    pool.is_broken = True
    with pytest.raises(ClosedError, match="is lost"):
        BatchingBackend(batcher).logits(REQUESTS[0], ["classification"])
    pool.is_broken = False
    found = BatchingBackend(batcher).logits(REQUESTS[0], ["classification"]).logits["classification"]
    assert any(np.allclose(found, one, atol=2e-5) for one in predict_depths(model, REQUESTS[0], CPU))
    assert batcher.close(10.0)


def test_a_request_whose_end_fails_fails_at_once(mixed: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("windows that cannot be combined")

    monkeypatch.setattr("openalbert.serve.http_api.batcher.combine_windows", broken)
    with ticket(Ticket(seconds=10.0)), pytest.raises(ValueError, match="cannot be combined"):
        BatchingBackend(mixed).logits(REQUESTS[0], ["classification"])


def test_a_worker_that_dies_while_it_takes_requests_loses_none() -> None:
    class Dies(Batcher):
        has_died = False

        def _is_stepped(self, job: Any) -> bool:
            if not self.has_died:
                self.has_died = True
                raise SystemExit
            return super()._is_stepped(job)

    batcher = Dies(TorchBackend(random_model(has_exits=False), CPU), report=lambda _: None)
    with ticket(Ticket(seconds=10.0)):
        found = BatchingBackend(batcher).logits(random_sequences([5]), ["classification"])
    assert found.logits["classification"].shape == (1, 3)
    assert batcher.num_deaths == 1
    assert batcher.close(5.0)


class Slow(TorchBackend):
    """Computes when it is allowed to, and fails where a request asks for it."""

    entered = threading.Event()
    allowed = threading.Event()
    calls: list[int] = []  # noqa: RUF012 - reset by each test

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
        self.entered.set()
        assert self.allowed.wait(10)
        self.calls.append(len(sequences.example))
        if 49 in sequences.ids:
            raise ValueError("a number that breaks it")
        return super().logits(sequences, kinds)


@pytest.fixture
def slow() -> Iterator[BatchingBackend]:
    Slow.allowed.clear()
    Slow.entered.clear()
    Slow.calls.clear()
    batcher = Batcher(Slow(random_model(has_exits=False), CPU), max_waiting=3)
    yield BatchingBackend(batcher)
    Slow.allowed.set()
    assert batcher.close(10.0)


def quiet(length: int) -> Sequences:
    found = random_sequences([length])
    found.ids[:] = 7
    return found


def test_what_waits_is_computed_together_and_more_than_the_limit_is_refused(slow: BatchingBackend) -> None:
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(slow.logits, quiet(5), ["classification"])
        assert Slow.entered.wait(10)
        waiting = []
        for _ in range(3):
            before = slow.batcher.num_waiting
            waiting.append(threads.submit(slow.logits, quiet(6), ["classification"]))
            while slow.batcher.num_waiting == before:
                time.sleep(0.001)
        with pytest.raises(OverloadedError, match="3 requests are waiting"):
            slow.logits(quiet(4), ["classification"])
        Slow.allowed.set()
        for one in (first, *waiting):
            assert one.result(10).logits["classification"].shape == (1, 3)
    assert Slow.calls == [1, 3]


def test_a_request_that_is_late_or_that_nobody_waits_for_is_not_computed(slow: BatchingBackend) -> None:
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(slow.logits, quiet(5), ["classification"])
        assert Slow.entered.wait(10)
        with pytest.raises(LateError, match=r"within 0\.05 seconds"), ticket(Ticket(seconds=0.05)):
            slow.logits(quiet(6), ["classification"])
        Slow.allowed.set()
        first.result(10)
    assert slow.batcher.close(10.0)
    assert Slow.calls == [1]


def test_a_computation_that_fails_fails_its_requests_and_not_the_worker(slow: BatchingBackend) -> None:
    Slow.allowed.set()
    bad = quiet(5)
    bad.ids[2] = 49
    with pytest.raises(ValueError, match="breaks it"):
        slow.logits(bad, ["classification"])
    assert slow.logits(quiet(5), ["classification"]).logits["classification"].shape == (1, 3)


def test_a_step_that_fails_leaves_a_batcher_that_serves_the_next_request() -> None:
    class Breaking(TorchPool):
        is_broken = False

        def run_layer(self, depths: np.ndarray) -> np.ndarray:
            if self.is_broken:
                raise ValueError("out of memory, say")
            return super().run_layer(depths)

    model = random_model()
    pool = Breaking(model, CPU)
    batcher = Batcher(TorchBackend(model, CPU), pool, RULE)
    backend = BatchingBackend(batcher)
    pool.is_broken = True
    with pytest.raises(ValueError, match="out of memory"):
        backend.logits(REQUESTS[0], ["classification"])
    pool.is_broken = False
    expected = predict_depths(model, REQUESTS[0], CPU)
    found = backend.logits(REQUESTS[0], ["classification"]).logits["classification"]
    assert any(np.allclose(found, one, atol=2e-5) for one in expected)
    assert batcher.close(10.0)


def test_a_depth_cap_holds_for_its_own_request(mixed: Batcher) -> None:
    backend, request = BatchingBackend(mixed), REQUESTS[-1]
    with ticket(Ticket(max_depth=1)) as one:
        backend.logits(request, ["classification"])
    assert set(one.served[0].depths) == {1}
    with pytest.raises(UserError, match="from 1 to 5"), ticket(Ticket(max_depth=9)):
        backend.logits(request, ["classification"])


def test_a_closed_batcher_computes_what_waits_and_takes_nothing_new(slow: BatchingBackend) -> None:
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(slow.logits, quiet(5), ["classification"])]
        assert Slow.entered.wait(10)
        asked.append(threads.submit(slow.logits, quiet(5), ["classification"]))
        while not slow.batcher.num_waiting:
            time.sleep(0.001)
        closing = threading.Thread(target=slow.batcher.close)
        closing.start()
        Slow.allowed.set()
        closing.join(10)
        assert all(one.result(10) for one in asked)
    with pytest.raises(ClosedError, match="is stopping"):
        slow.logits(quiet(5), ["classification"])
