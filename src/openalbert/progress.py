"""Progress on long work: a bar on a terminal, a line that changes in a notebook, a plain line now and then elsewhere.

Bars and plain lines go to standard error.
"""

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_UPDATES = 0.5  # of the line in a notebook


def plain_console(*, stderr: bool = False, soft_wrap: bool = False, width: int | None = None) -> Console:
    """A console without markup, so that `[extra]` in a file's name or a message is printed as it is."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap, width=width)


def plain_column(text: str) -> TextColumn:
    """A column of a bar without markup."""
    return TextColumn(text, markup=False)


def notebook_line() -> "NotebookLine | None":
    """A line of progress in the notebook that this runs in; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # IPython in a terminal has no kernel.
    return None if getattr(shell, "kernel", None) is None else NotebookLine()


class NotebookLine:
    """A line in a cell's output that is replaced in place. It needs IPython alone, no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = 0.0

    def show(self, text: str, *, is_last: bool = False) -> None:
        """Show this text in place of the one before, unless that has just been shown."""
        if not is_last and time.monotonic() - self._shown < SECONDS_BETWEEN_UPDATES:
            return
        self._shown = time.monotonic()
        if self._handle is None:
            from IPython.display import display

            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


class Work:
    """The progress of one task: `with Work("reading", total=size, unit="MB", scale=1e6) as work: work.advance(n)`."""

    def __init__(self, label: str, total: float | None = None, unit: str = "", scale: float = 1.0) -> None:
        self.label, self.total, self.unit, self.scale = label, total, unit, scale
        self.done = 0.0
        self.note = ""
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        self._notebook = notebook_line()

    def __enter__(self) -> "Work":
        if sys.stderr.isatty():
            self._bar = Progress(
                plain_column("{task.description}"),
                BarColumn(),
                plain_column("{task.fields[amount]}"),
                TimeElapsedColumn(),
                plain_column("left"),
                TimeRemainingColumn(),
                plain_column("{task.fields[note]}"),
                console=plain_console(stderr=True),
            )
            self._task = self._bar.add_task(self.label, total=self.total, amount="", note="")
            self._bar.start()
        return self

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Add to the amount done; `note` is shown after it."""
        self.done += amount
        self.note = note or self.note
        if self._bar is not None:
            self._bar.update(self._task, advance=amount, amount=self._amount(), note=self.note)
        elif self._notebook is not None:
            self._notebook.show(self._line())
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def _amount(self) -> str:
        rate = self.done / max(time.monotonic() - self._started, 1e-9)
        digits = 0 if self.scale == 1 else 1  # counts are whole numbers, amounts are not
        total = f"/{self.total / self.scale:,.{digits}f}" if self.total else ""
        done = f"{self.done / self.scale:,.{digits}f}"
        return f"{done}{total} {self.unit} ({rate / self.scale:,.1f} {self.unit}/s)"

    def _line(self) -> str:
        elapsed = time.monotonic() - self._started
        left = ""
        if self.total and self.done:
            left = f", {elapsed * (self.total - self.done) / self.done:,.0f} s left"
        note = f", {self.note}" if self.note else ""
        return f"{self.label}: {self._amount()}, {elapsed:,.0f} s{left}{note}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self._notebook is not None:
            self._notebook.show(self._line(), is_last=True)
        elif kind is None:
            print(self._line(), file=sys.stderr, flush=True)
