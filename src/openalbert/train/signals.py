"""SIGTERM and SIGINT as a request: the run stops after its step, with a checkpoint."""

import signal
import sys
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Remembers the signal that asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._listen()
        return self

    def _listen(self) -> None:
        # Python allows it in the main thread only: a run in another one is not stopped by signals.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._take)

    def asked(self) -> bool:
        """Whether the run is to stop. Called once a step."""
        # Triton's compiler sets a handler of its own, below Python. It passes a signal on, but a second one at that
        # moment ends the process at once, and `timeout` and schedulers send two. So ours is set again.
        self._listen()
        return self.signal is not None

    def _take(self, number: int, _: FrameType | None) -> None:
        # Ctrl-C twice: exit at once, with the last checkpoint. SIGTERM may come twice, from a scheduler and torchrun.
        if self.signal is not None and number == signal.SIGINT:
            sys.exit(128 + number)
        self.signal = self.signal or number

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM, also where another process received the signal."""
        return 128 + (self.signal or signal.SIGTERM)
