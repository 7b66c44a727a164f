"""Signals that ask a run to end."""

import os
import signal

import pytest

from openalbert.train.interruption import Stop


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
