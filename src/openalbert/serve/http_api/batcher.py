"""Continuous batching: requests of many threads are computed together, by tokens, as they come.

A `BatchingBackend` is a backend like any other, so that whatever predicts with one can be served. A worker thread
gathers what waits. Where a model's layers share their weights, a request joins the running batch at the next layer and
need not wait for the requests before it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from openalbert.finetuning.predict import MEAN, TOKENS_AT_A_TIME, Embedding, Outputs, combine_windows
from openalbert.interop.exits import NEVER, ExitRule
from openalbert.model.config import TOKEN_HEADS, AlbertConfig, Head, HeadKind
from openalbert.progress import log
from openalbert.serve.backend import USUAL_PACE, Backend, MaskedPieces, Pace
from openalbert.serve.early_exit import DepthMixedBatch, Pool
from openalbert.serve.http_api.limits import (
    TICKET,
    ClosedError,
    LateError,
    OverloadedError,
    Served,
    Ticket,
    TooLargeError,
)
from openalbert.tasks.task import Sequences

MAX_RESTARTS = 3  # of a worker that dies before it has computed anything


@runtime_checkable
class Work(Protocol):
    """A kind of computation that several requests can share."""

    def run(self, backend: Backend, jobs: Sequence["Job"]) -> list[Any]:
        """Compute the jobs together: the result of each."""


@dataclass(frozen=True)
class LogitsWork:
    """The logits of some heads."""

    kinds: tuple[HeadKind, ...]

    def run(self, backend: Backend, jobs: Sequence["Job"]) -> list[Any]:
        """Concatenate the sequences, and cut the outputs apart again."""
        merged, sequence_cuts, token_cuts = merge([job.sequences for job in jobs])
        logits = backend.logits(merged, self.kinds).logits
        cut = {
            kind: np.split(rows, token_cuts if kind in TOKEN_HEADS else sequence_cuts) for kind, rows in logits.items()
        }
        return [
            Outputs({kind: combine_windows(job.sequences, pieces[number]) for kind, pieces in cut.items()})
            for number, job in enumerate(jobs)
        ]


@dataclass(frozen=True)
class MaskedWork:
    """The most probable pieces of masked tokens."""

    top: int
    num_pieces: int

    def run(self, backend: Backend, jobs: Sequence["Job"]) -> list[Any]:
        """Concatenate sequences and masks, and cut the pieces apart again."""
        merged, _, token_cuts = merge([job.sequences for job in jobs])
        firsts = [0, *token_cuts.tolist()]
        masks = np.concatenate([job.masks + first for job, first in zip(jobs, firsts, strict=True)])
        found = backend.masked_pieces(merged, masks, self.top, self.num_pieces)
        cuts = np.cumsum([len(job.masks) for job in jobs])[:-1]
        pieces = zip(np.split(found.ids, cuts), np.split(found.probabilities, cuts), strict=True)
        return [MaskedPieces(ids, probabilities) for ids, probabilities in pieces]


@dataclass(frozen=True)
class EmbedWork:
    """Embeddings."""

    how: Embedding

    def run(self, backend: Backend, jobs: Sequence["Job"]) -> list[Any]:
        """Concatenate the sequences, and cut the rows apart again."""
        merged, cuts, _ = merge([job.sequences for job in jobs])
        return np.split(backend.embed(merged, self.how), cuts)


@dataclass(eq=False)
class Job:
    """What one thread waits for."""

    work: Work
    sequences: Sequences
    ticket: Ticket
    masks: Int64[np.ndarray, "masks"]
    arrived: float
    result: "Future[Any]" = field(default_factory=Future)
    joined: float = 0.0
    batch_tokens: int = 0
    first: int = 0
    """The number of its first sequence in the batch of mixed depths."""
    waits_for: int = 0
    """How many of its sequences have not left."""
    logits: Any = None
    depths: Any = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all its sequences."""
        return len(self.sequences.ids)


def merge(
    parts: Sequence[Sequences],
) -> tuple[Sequences, Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]:
    """Several requests' sequences as one, and where to cut rows of sequences and rows of tokens apart again."""
    token_ends = np.cumsum([len(part.ids) for part in parts])
    lengths = np.concatenate([part.lengths for part in parts])
    counts = np.cumsum([len(part.example) for part in parts])
    merged = Sequences(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        np.concatenate([part.second for part in parts]),
        np.arange(len(lengths)),
        {},
        len(lengths),
        0,
    )
    return merged, counts[:-1], token_ends[:-1]


class Batcher:
    """The worker thread of one model, and what waits for it."""

    def __init__(
        self,
        backend: Backend,
        pool: Pool | None = None,
        rule: ExitRule | None = None,
        *,
        tokens_at_a_time: int = TOKENS_AT_A_TIME,
        max_waiting: int = 512,
        max_tokens: int = 32 * 512,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = log,
    ) -> None:
        """`pool`: what sequences of mixed depths are computed in, for a model with one head for whole sequences.

        `max_tokens` are those of one request: while they are computed, others wait. `report` is called with a sentence
        when a worker thread dies.
        """
        self.backend, self.tokens_at_a_time, self.clock, self.report = backend, tokens_at_a_time, clock, report
        self.max_waiting, self.max_tokens = max_waiting, max_tokens
        self.mixed = None
        if pool is not None:
            self.mixed = DepthMixedBatch(pool, clock=clock) if rule is None else DepthMixedBatch(pool, rule, clock)
        self._waiting: deque[Job] = deque()
        self._joined: list[Job] = []
        self._running: list[Job] = []
        self._next_number = 0
        self.num_deaths = 0
        """How often a worker thread has died; another one took over."""
        self._deaths_in_a_row = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    @property
    def leaves_early(self) -> bool:
        """Whether sequences may leave before the last layer."""
        return self.mixed is not None and self.mixed.rule != NEVER

    @property
    def num_waiting(self) -> int:
        """Requests that have not been started."""
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether there is a worker."""
        return self._thread.is_alive()

    def compute(self, work: Work, sequences: Sequences, masks: Int64[np.ndarray, "masks"] | None = None) -> Any:
        """Wait for a computation, in the thread of a request."""
        one = TICKET.get() or Ticket()
        job = Job(work, sequences, one, np.empty(0, np.int64) if masks is None else masks, self.clock())
        if job.num_tokens > self.max_tokens:
            raise TooLargeError(
                f"the request has {job.num_tokens:,} tokens, but at most {self.max_tokens:,} are computed for one: "
                "send shorter texts, or several requests"
            )
        with self._changed:
            if self._is_closing:
                raise ClosedError("the server is stopping: send the request again")
            if len(self._waiting) >= self.max_waiting:
                raise OverloadedError(f"{len(self._waiting)} requests are waiting already: try again in a moment")
            self._waiting.append(job)
            self._changed.notify()
        try:
            return job.result.result(timeout=one.seconds)
        except TimeoutError:
            one.is_cancelled = True
            raise LateError(one.seconds) from None

    def close(self, seconds: float = 30.0) -> bool:
        """Compute what waits, take nothing new, and end; returns whether all was done in this time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # The worker thread.

    def _run(self) -> None:
        while True:
            try:
                self._run_until_closed()
                return
            except BaseException as error:
                if not self._recover(error):
                    return

    def _recover(self, error: BaseException) -> bool:
        """After the worker died: what it was computing has failed, what waits is computed by the next one.

        Returns whether there is a next one. Where one after another dies, nothing is computed any more.
        """
        lost = [*self._joined, *self._running]
        self._joined, self._running = [], []
        self.num_deaths += 1
        self._deaths_in_a_row += 1
        is_replaced = self._deaths_in_a_row <= MAX_RESTARTS
        with self._changed:
            if not is_replaced:
                self._is_closing = True
                lost += self._waiting
                self._waiting.clear()
        reason = "what was being computed is lost: send the request again"
        for job in lost:
            if not job.result.done():
                job.result.set_exception(ClosedError(reason if is_replaced else "the model does not compute any more"))
        what = (
            "another one takes over"
            if is_replaced
            else f"the last of {self._deaths_in_a_row} in a row, nothing is computed any more"
        )
        with suppress(OSError, ValueError):  # a log that cannot be written is no reason to end
            self.report(f"a worker thread ended with {type(error).__name__}: {what}")
        return is_replaced

    def _run_until_closed(self) -> None:
        if self.mixed is not None:
            self.mixed.clear()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._joined or self._is_closing)
                if self._is_closing and not self._waiting and not self._joined:
                    return
                stepped, grouped = self._take()
            for job in stepped:
                with _failing([job]):
                    self._join(job)
            with _failing(grouped):
                self._compute(grouped)
            if self.mixed is not None and self._joined:
                with _failing(self._joined) as failed:
                    self._step()
                if failed:
                    self.mixed.clear()
                    self._joined = []
            self._running = []

    def _take(self) -> tuple[list[Job], list[Job]]:
        """What is started now: jobs that join the batch of mixed depths, and jobs of one kind that run at once.

        Every job is in `_waiting` until it is in `_running`: should the worker die here, none is lost.
        """
        stepped: list[Job] = []
        grouped: list[Job] = []
        later: deque[Job] = deque()
        mixed_tokens = self.mixed.num_tokens if self.mixed is not None else 0
        most_tokens = min(self.tokens_at_a_time, self.mixed.pool.most_tokens) if self.mixed is not None else 0
        group_tokens = 0
        for job in self._waiting:
            if job.ticket.is_cancelled:
                if not job.result.done():
                    job.result.set_exception(CancelledError())
            elif self._is_stepped(job):
                assert self.mixed is not None
                fits = not mixed_tokens or mixed_tokens + job.num_tokens <= most_tokens
                if self.mixed.can_join and fits:
                    stepped.append(job)
                    mixed_tokens += job.num_tokens
                else:
                    later.append(job)
                    mixed_tokens = most_tokens  # no later one overtakes it
            elif not grouped or (
                job.work == grouped[0].work and group_tokens + job.num_tokens <= self.tokens_at_a_time
            ):
                grouped.append(job)
                group_tokens += job.num_tokens
            else:
                later.append(job)
        self._waiting, self._running = later, [*stepped, *grouped]
        return stepped, grouped

    def _is_stepped(self, job: Job) -> bool:
        return self.mixed is not None and isinstance(job.work, LogitsWork) and job.work.kinds == (self.mixed.pool.head,)

    def _join(self, job: Job) -> None:
        assert self.mixed is not None
        count = len(job.sequences.example)
        job.first, job.waits_for, job.joined = self._next_number, count, self.clock()
        job.logits = np.zeros((count, self.mixed.pool.num_outputs), np.float32)
        job.depths = np.zeros(count, np.int64)
        numbers = np.arange(job.first, job.first + count)
        self.mixed.join(job.sequences, np.arange(count), numbers, job.ticket.max_depth, job.ticket.deadline)
        self._next_number += count
        job.batch_tokens = self.mixed.num_tokens
        self._joined.append(job)

    def _step(self) -> None:
        """One layer for all that have joined; a job whose sequences have all left is done."""
        assert self.mixed is not None
        left = self.mixed.step()
        for job in list(self._joined):
            rows = left.numbers - job.first
            own = (rows >= 0) & (rows < len(job.logits))
            job.logits[rows[own]], job.depths[rows[own]] = left.logits[own], left.depths[own]
            job.waits_for -= int(own.sum())
            if not job.waits_for:
                logits = combine_windows(job.sequences, job.logits)
                depths = job.depths if self.leaves_early or job.ticket.is_limited else None
                self._done(job, Outputs({self.mixed.pool.head: logits}, depths), tuple(job.depths.tolist()))
                self._joined.remove(job)

    def _compute(self, jobs: list[Job]) -> None:
        """Jobs of one kind, computed at once."""
        now, tokens = self.clock(), sum(job.num_tokens for job in jobs)
        for job in jobs:
            job.joined, job.batch_tokens = now, tokens
        for job, result in zip(jobs, jobs[0].work.run(self.backend, jobs) if jobs else (), strict=True):
            self._done(job, result)

    def _done(self, job: Job, result: Any, depths: tuple[int, ...] = ()) -> None:
        now = self.clock()
        job.ticket.served.append(Served(job.joined - job.arrived, now - job.joined, job.batch_tokens, depths))
        job.result.set_result(result)
        self._deaths_in_a_row = 0


@contextmanager
def _failing(jobs: Sequence[Job]) -> Iterator[list[Exception]]:
    """A computation that fails fails the requests in it, and not the worker; yields where the error goes."""
    failed: list[Exception] = []
    try:
        yield failed
    except Exception as error:
        failed.append(error)
        for job in jobs:
            if not job.result.done():
                job.result.set_exception(error)


@dataclass(frozen=True)
class BatchingBackend:
    """A backend whose computations are shared with those of other threads."""

    batcher: Batcher

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""
        return self.batcher.backend.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """Its heads, with their labels."""
        return self.batcher.backend.heads

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
        """The logits of these heads; the batcher chooses how much is computed at a time."""
        found: Outputs = self.batcher.compute(LogitsWork(tuple(kinds)), sequences)
        one = TICKET.get()
        if one is not None:
            one.logits = found.logits
        return found

    def masked_pieces(
        self,
        sequences: Sequences,
        masks: Int64[np.ndarray, "masks"],
        top: int,
        num_pieces: int,
        pace: Pace = USUAL_PACE,
    ) -> MaskedPieces:
        """The most probable pieces of masked tokens."""
        found: MaskedPieces = self.batcher.compute(MaskedWork(top, num_pieces), sequences, masks)
        return found

    def embed(
        self, sequences: Sequences, how: Embedding = MEAN, pace: Pace = USUAL_PACE
    ) -> Float32[np.ndarray, "sequences hidden"]:
        """One vector for each sequence."""
        found: np.ndarray = self.batcher.compute(EmbedWork(how), sequences)
        return found
