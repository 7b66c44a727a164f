"""The folder of a run: locked for one run at a time, never mixed with another run; and its run_info.json."""

import contextlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.interop.huggingface import CONFIG
from openalbert.run_files import CHECKPOINTS, METRICS, MODEL, RUN, RUN_INFO, TENSORBOARD
from openalbert.settings import from_json, to_dict, to_json
from openalbert.train.device import Device, Speed
from openalbert.version import __version__


@runtime_checkable
class RunSettings(Protocol):
    """What the settings of pretraining and of fine-tuning have in common."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> Path:
        """Folder of the run."""

    @property
    def dry_run(self) -> bool:
        """Whether to write nothing."""

    @property
    def fresh(self) -> bool:
        """Whether to start over."""

    @property
    def tensorboard(self) -> bool:
        """Whether to write TensorBoard files."""

    @property
    def speed(self) -> Speed:
        """How fast it goes."""


@contextlib.contextmanager
def locked(settings: RunSettings, device: Device, verb: str = "pretrain") -> Iterator[None]:
    """Lock the folder for this run: workers of a killed torchrun live on, and would write there too.

    A dry run locks nothing, but fails if the folder could not be written to.
    """
    with contextlib.ExitStack() as held:
        problem = None
        if device.is_main:
            try:
                atomic_io.check_writable(settings.out)
                if not settings.dry_run:
                    atomic_io.make_folder(settings.out)
                    held.enter_context(atomic_io.locked(settings.out, verb))
            except UserError as error:
                problem = error
        device.raise_together(problem)
        yield


def claim_folder(
    settings: RunSettings,
    device: Device,
    free: tuple[str, ...],
    others: tuple[str, ...] = (),
    check: Callable[[], None] = lambda: None,
) -> None:
    """Refuse to mix two runs in one folder, or clear it where the user asked for that.

    `free` are settings that may change when a run is resumed; `others` are patterns of further files of the run;
    `check` raises any other reason not to resume, before anything is written.
    """
    problem = None
    if device.is_main:
        try:
            _claim(settings, free, others, check)
        except UserError as error:
            problem = error
    # Every process waits for this: none may find a checkpoint that is about to be cleared away.
    device.raise_together(problem)


def _claim(settings: RunSettings, free: tuple[str, ...], others: tuple[str, ...], check: Callable[[], None]) -> None:
    path = settings.out / RUN
    if settings.fresh:
        # The settings go last: killed in between, what is left is still known as the other run's.
        for pattern in (*others, CHECKPOINTS, METRICS, MODEL, RUN_INFO, TENSORBOARD, RUN):
            for target in settings.out.glob(pattern):
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    # A start that was refused, or ended before the first step, left nothing that could be mixed up.
    if path.exists() and any(found for name in (*others, CHECKPOINTS, METRICS) for found in settings.out.glob(name)):
        try:
            before = from_json(path.read_text(encoding="utf-8"), type(settings), str(path))
            changed = differences(before, settings, free)
        except UserError as error:
            changed = [str(error)]
        if changed:
            raise UserError(
                f"{settings.out} holds a run with other settings ({'; '.join(changed)}): "
                "give another --out, or --fresh to start over"
            )
    check()
    atomic_io.write_text(path, to_json(replace(settings, fresh=False)))


def differences(before: RunSettings, now: RunSettings, free: tuple[str, ...]) -> list[str]:
    """Which settings differ, as sentences, apart from those that are `free` to change."""
    same = {name: getattr(before, name) for name in free}
    old, new = _flat(to_dict(before)), _flat(to_dict(replace(now, **same)))
    return [
        f"{name} was {old.get(name)}, now {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def read_run_info(folder: Path) -> dict[str, Any]:
    """run_info.json of a run; empty before its start."""
    path = folder / RUN_INFO
    run_info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return run_info


def write_run_info(folder: Path, run_info: dict[str, Any], device: Device) -> None:
    """Write run_info.json, on the main process."""
    if device.is_main:
        atomic_io.write_text(folder / RUN_INFO, json.dumps(run_info, indent=2) + "\n")


def is_done(folder: Path) -> bool:
    """Whether the run has ended and its model is there: `actual` is the last that it writes."""
    return (folder / MODEL / CONFIG).exists() and "actual" in read_run_info(folder)


def machine(device: Device) -> dict[str, Any]:
    """Versions, hardware and precision of this start of a run, for run_info.json."""
    return {
        "openalbert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.describe(),
        "precision": device.precision,
        "world_size": device.world,
    }


def timestamp() -> str:
    """The time now, for run_info.json."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def record_move(run_info: dict[str, Any], here: dict[str, Any], peak: float | None, step: int) -> None:
    """Add the machine that a run is resumed on to run_info, if it differs from the one before.

    A value that run_info does not have counts as the same. Moves whose steps were lost are removed: nothing of them is
    in the weights.
    """
    run_info["moves"] = [move for move in run_info.get("moves", []) if move["step"] < step]
    before = {**run_info, **(run_info["moves"][-1] if run_info["moves"] else {})}
    if any(before.get(name, value) != value for name, value in here.items()):
        run_info["moves"].append({"step": step, "started": timestamp(), **here, "matmul_peak_flops": peak})
