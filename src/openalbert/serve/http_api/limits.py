"""How much may be asked of a server."""

from dataclasses import dataclass, fields

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
