"""Progress of long work on standard error: a bar in a terminal, a line that changes in place in a notebook, a plain
line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_UPDATES = 0.5  # of the line in a notebook


def plain_console(*, stderr: bool = False, soft_wrap: bool = False, width: int | None = None) -> Console:
    """A console without markup, so that `[extra]` in a file's name or a message is printed as it is."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap, width=width)


def log(sentence: str) -> None:
    """Print a line for the user to standard error; results go to standard output."""
    print(sentence, file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Whether this runs in a notebook; IPython in a terminal has no kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class ProgressLine:
    """What is shown of one task."""

    def __init__(self, label: str, shown_at: float = 0.0) -> None:
        """`shown_at` is when a line was last shown, on the clock of `time.monotonic`."""
        self.label, self._shown_at = label, shown_at
        self._bar: Progress | None = None
        self._cell: Any = None  # of a notebook: the handle of the line

    def is_due(self) -> bool:
        """Whether to show something now: not where something has just been shown."""
        pause = SECONDS_BETWEEN_UPDATES if _is_notebook() else SECONDS_BETWEEN_LINES
        return sys.stderr.isatty() or time.monotonic() - self._shown_at >= pause

    def show(self, text: str, line: str, fraction: float | None) -> None:
        """Show this text after the bar, or the whole line where there is no bar."""
        if sys.stderr.isatty():
            if self._bar is None:
                columns = ("{task.description}", BarColumn(20), TimeElapsedColumn(), "{task.fields[text]}")
                plain = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
                self._bar = Progress(*plain, console=plain_console(stderr=True))
                self._bar.add_task(self.label, total=None if fraction is None else 1.0, text="")
                self._bar.start()
            self._bar.update(self._bar.task_ids[0], completed=fraction or 0.0, text=text)
            return
        self._shown_at = time.monotonic()
        if not _is_notebook():
            log(line)
        elif self._cell is None:
            from IPython.display import display

            self._cell = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._cell.update({"text/plain": line}, raw=True)

    def print(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        if self._bar is not None:
            self._bar.console.print(sentence)
        else:
            log(sentence)

    def close(self) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Work:
    """The progress of one task: `with Work("reading", total=size, unit="MB", scale=1e6) as work: work.advance(n)`."""

    def __init__(self, label: str, total: float | None = None, unit: str = "", scale: float = 1.0) -> None:
        self.label, self.total, self.unit, self.scale = label, total, unit, scale
        self.done = 0.0
        self.note = ""
        self._shown: float | None = None
        """The amount that the last line had."""
        self._started = time.monotonic()
        self._line = ProgressLine(label, self._started)

    def __enter__(self) -> "Work":
        if sys.stderr.isatty():
            self._show()
        return self

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Add to the amount done; `note` is shown after it."""
        self.done += amount
        self.note = note or self.note
        if self._line.is_due():
            self._show()

    def _show(self) -> None:
        self._shown = self.done
        elapsed = time.monotonic() - self._started
        rate = self.done / max(elapsed, 1e-9)
        digits = 0 if self.scale == 1 else 1  # counts are whole numbers, amounts are not
        total = f"/{self.total / self.scale:,.{digits}f}" if self.total else ""
        amount = f"{self.done / self.scale:,.{digits}f}{total} {self.unit} ({rate / self.scale:,.1f} {self.unit}/s)"
        rest = max(0.0, (self.total or 0.0) - self.done)
        left = f", {elapsed * rest / self.done:,.0f} s left" if self.total and self.done else ""
        note = f", {self.note}" if self.note else ""
        line = f"{self.label}: {amount}, {elapsed:,.0f} s{left}{note}"
        fraction = self.done / self.total if self.total else None
        self._line.show(f"{amount}{left}{note}", line, fraction)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._shown != self.done:
            self._show()
        self._line.close()
