"""A run's folder belongs to one run: no two at a time, none over what another one left, and its facts are in it."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.settings import from_json, to_dict, to_json
from openalbert.train.device import Device
from openalbert.train.metrics_log import METRICS

RUN, RUN_INFO, CHECKPOINTS, MODEL = huggingface.RUN, huggingface.RUN_INFO, "checkpoints", huggingface.MODEL


@runtime_checkable
class RunSettings(Protocol):
    """What the settings of all runs have, pretraining's and fine-tuning's."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> Path:
        """Folder of the run."""

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be left behind."""

    @property
    def fresh(self) -> bool:
        """Whether to start over."""


@contextlib.contextmanager
def locked(settings: RunSettings, device: Device, verb: str = "pretrain") -> Iterator[None]:
    """Keep the folder to this run: the workers of a torchrun that was killed live on, and would write there too.

    A dry run keeps no folder, but is refused one that could not be written to.
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

    `free` are settings that may change when a run goes on; `others` are patterns of what else a run leaves there;
    `check` raises what else is wrong with resuming the run, before anything is written.
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
        for pattern in (*others, CHECKPOINTS, METRICS, MODEL, RUN_INFO, "tensorboard", RUN):
            for target in settings.out.glob(pattern):
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    # A start that was refused, or ended before it had learned anything, is no run to be kept from mixing.
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
    """Which settings would change what a run learns, as sentences; those that are `free` do not."""
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
    """What a run has noted of itself; nothing before it has begun."""
    path = folder / RUN_INFO
    run_info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return run_info


def write_run_info(folder: Path, run_info: dict[str, Any], device: Device) -> None:
    """Have the main process note them."""
    if device.is_main:
        atomic_io.write_text(folder / RUN_INFO, json.dumps(run_info, indent=2) + "\n")


def is_done(folder: Path) -> bool:
    """Whether the run has ended and its model is there: what it took is the last that it notes."""
    return (folder / MODEL / huggingface.CONFIG).exists() and "actual" in read_run_info(folder)
