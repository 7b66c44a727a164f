"""uvicorn as `openalbert serve` runs it: reports when the port is open, and finishes what it began after a signal."""

import contextlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from openalbert.errors import UserError
from openalbert.serve.http_api.guard import App
from openalbert.serve.http_api.limits import Limits

KEEP_ALIVE = 75  # seconds until an idle connection is closed: later than clients and proxies close theirs, mostly at 60


class Server(uvicorn.Server):
    """Calls `opened` when requests can come, and stops by itself when `must_stop` says so."""

    def __init__(
        self, app: App, limits: Limits, opened: Callable[[], None], must_stop: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # whatever else is installed: it is the one that the tests try
                ws="none",
                log_level="error",
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=round(limits.seconds) + 1,
                server_header=False,
                lifespan="off",
            )
        )
        self.opened, self.must_stop, self.idle_seconds = opened, must_stop, float(KEEP_ALIVE)
        self._idle: dict[tuple[Any, Any], float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        self.opened()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to stop."""
        if counter % 10 == 0:
            self._close_idle_connections()
        return await super().on_tick(counter) or self.must_stop()

    def _close_idle_connections(self) -> None:
        """Close connections that send nothing, or part of a head, or do not take their last answer.

        uvicorn itself closes those alone that have taken an answer and then send nothing.
        """
        now, before, self._idle = time.monotonic(), self._idle, {}
        for connection in list(self.server_state.connections):
            cycle: Any = getattr(connection, "cycle", None)  # of the last request
            if cycle is not None and not cycle.response_complete:
                continue
            since = before.get((connection, cycle), now)
            if now - since > self.idle_seconds:
                connection.transport.abort()
            else:
                self._idle[connection, cycle] = since

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C stop the server after what is under way, a second one at once.

        uvicorn's own handlers would then raise the signal again, and the exit code would not be 0.
        """

        def stop(number: int, frame: object) -> None:
            self.force_exit = self.should_exit
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address; it is not open before a server listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Only for a socket that names its protocol does asyncio send small packets at once; else they wait for 40 ms.
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except OSError:
            found.close()
            raise
    except OSError as error:
        raise UserError(
            f"{host}, port {port}: {error.strerror or error}: choose another --port (0 takes a free one) or --host"
        ) from None
    return found


def allow_many_connections() -> None:
    """Raise the number of open files to what the system allows: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
