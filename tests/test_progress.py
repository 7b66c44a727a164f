"""The bar of long work shows every text as it is."""

import io
import sys

import pytest

from openalbert import progress
from openalbert.progress import Work, plain_console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_brackets_and_colons_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with Work("my[bold] :car: task", total=2) as work:
        work.advance(2, note="file[1].csv")
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "my[bold] :car: task" in shown
    assert "file[1].csv" in shown


def test_each_amount_is_logged_once_and_no_time_left_is_negative(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with Work("read", total=2, unit="lines") as work:
        work.advance(1)
        work.advance(2)  # more than was counted
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" lines")[0] for line in lines] == ["read: 1/2", "read: 3/2"]
    assert lines[1].endswith(" 0 s left")


def test_a_console_prints_brackets_and_colons_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("pip install 'openalbert[huggingface]' :car:")
    assert capsys.readouterr().out == "pip install 'openalbert[huggingface]' :car:\n"
