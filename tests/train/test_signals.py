"""Signals that ask a run to end."""

import os
import signal
import subprocess
import sys

import pytest

from openalbert.train.run import Stop


def test_sigterm_is_one_wish_however_often_it_comes() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        assert stop.signal is None
        for _ in range(2):  # a scheduler sends it to every process, and torchrun passes it on
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        assert stop.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_is_a_wish_the_first_time_and_an_end_the_second() -> None:
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == 130
        with pytest.raises(SystemExit) as end:
            os.kill(os.getpid(), signal.SIGINT)
        assert end.value.code == 130


TAKEN_OVER = """
import ctypes, os, signal
from openalbert.train.run import Stop
with Stop() as stop:
    ctypes.CDLL(None).signal(signal.SIGTERM, 0)  # as a compiler in C++ does it, of which Python learns nothing
    assert not stop.asked()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked()
    print("asked")
"""


def test_a_handler_that_was_replaced_below_python_is_set_again() -> None:
    # In a process of its own, which would end.
    done = subprocess.run([sys.executable, "-c", TAKEN_OVER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "asked\n"), done.stderr
