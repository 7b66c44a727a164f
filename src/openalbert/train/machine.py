"""What a run is on, for run_info.json: the machine it began on, and each other one that it was taken up again on."""

import platform
import shlex
import sys
import time
from contextvars import ContextVar
from typing import Any

import torch

from openalbert.train.device import Device
from openalbert.version import __version__

CALL: ContextVar[str] = ContextVar("CALL", default="")
"""The call of a Python function that started this run; empty where the command line did."""


def command() -> str:
    """How this run was started, and can be resumed."""
    return CALL.get() or shlex.join(["openalbert", *sys.argv[1:]])


def machine(device: Device) -> dict[str, Any]:
    """Versions, hardware and precision of this start of a run."""
    return {
        "openalbert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.describe(),
        "precision": device.precision,
        "world_size": device.world,
    }


def now() -> str:
    """The moment of a start."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def note_move(run_info: dict[str, Any], here: dict[str, Any], peak: float | None, step: int) -> None:
    """Note where a run goes on, if that is another place than before. What its facts do not tell may be the same.

    Places whose steps were lost are forgotten: nothing of them is in the weights.
    """
    run_info["moves"] = [move for move in run_info.get("moves", []) if move["step"] < step]
    before = {**run_info, **(run_info["moves"][-1] if run_info["moves"] else {})}
    if any(before.get(name, value) != value for name, value in here.items()):
        run_info["moves"].append({"step": step, "started": now(), **here, "matmul_peak_flops": peak})
