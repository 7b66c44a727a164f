"""How much may be asked of a server: the limits on all requests, the ticket of one, the errors of what exceeds them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields

import numpy as np

from openalbert.errors import UserError


@dataclass(frozen=True)
class Limits:
    """How much one request, and all of them together, may ask for."""

    max_body: int = 2_000_000
    """Bytes of a request's body; more is answered with 413."""
    max_inputs: int = 32
    """Inputs of a request; more are answered with 413."""
    max_requests: int = 512
    """Requests in flight; more are answered with 429."""
    seconds: float = 30.0
    """Time for a request to arrive, and then to be answered; longer ones are answered with 408 and 503."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0:
                raise UserError(f"{one.name} is {getattr(self, one.name)}: it must be above 0")


class OverloadedError(UserError):
    """More is waiting than the batcher takes."""


class TooLargeError(UserError):
    """More is asked for in one request than is computed for one."""


class ClosedError(UserError):
    """Nothing is computed any more, or what was being computed is lost."""


class LateError(UserError):
    """A request was not answered in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request was not computed within {seconds:g} seconds: try again later")


@dataclass(frozen=True)
class Served:
    """What a request waited for and got, for metrics."""

    queue_seconds: float
    compute_seconds: float
    batch_tokens: int
    """Tokens that were computed together with it, its own included, when it joined."""
    depths: tuple[int, ...] = ()
    """The layers that were computed for each of its sequences, where they may leave early."""


@dataclass
class Ticket:
    """One request's limits, and what became of it."""

    seconds: float = 30.0
    """How long it may take, waiting included."""
    max_depth: int | None = None
    deadline: float | None = None
    """Seconds of computing after which it leaves with what it has."""
    is_cancelled: bool = False
    """Set where nobody waits for the result any more."""
    served: list[Served] = field(default_factory=list)
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    """Those that the last predictions were made of, by the kind of head."""

    @property
    def is_limited(self) -> bool:
        """Whether fewer layers than all may be computed for it, whatever the model's exits say."""
        return self.max_depth is not None or self.deadline is not None


TICKET: ContextVar[Ticket | None] = ContextVar("ticket", default=None)


@contextmanager
def ticket(one: Ticket) -> Iterator[Ticket]:
    """Everything that is computed within, in this thread, counts for this request."""
    token = TICKET.set(one)
    try:
        yield one
    finally:
        TICKET.reset(token)
