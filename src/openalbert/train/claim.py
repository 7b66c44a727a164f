"""A run's folder belongs to one run: no two at a time, and none over what another one left."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace

from openalbert import durable
from openalbert.errors import UserError
from openalbert.settings import from_json, to_json
from openalbert.train.device import Device
from openalbert.train.journal import METRICS
from openalbert.train.settings import Pretrain, differences

RUN, FACTS, CHECKPOINTS, MODEL = "run.json", "facts.json", "checkpoints", "model"


@contextlib.contextmanager
def locked(settings: Pretrain, device: Device) -> Iterator[None]:
    """Keep the folder to this run: the workers of a torchrun that was killed live on, and would write there too."""
    with contextlib.ExitStack() as held:
        problem = None
        if device.is_main and not settings.dry_run:
            settings.out.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(durable.locked(settings.out, "pretrain"))
            except UserError as error:
                problem = error
        device.raise_together(problem)
        yield


def claim_folder(settings: Pretrain, device: Device) -> None:
    """Refuse to mix two runs in one folder, or clear it where the user asked for that."""
    problem = None
    if device.is_main:
        try:
            _claim(settings)
        except UserError as error:
            problem = error
    # Every process waits for this: none may find a checkpoint that is about to be cleared away.
    device.raise_together(problem)


def _claim(settings: Pretrain) -> None:
    path = settings.out / RUN
    if settings.fresh:
        # The settings go last: killed in between, what is left is still known as the other run's.
        for name in (CHECKPOINTS, METRICS, MODEL, FACTS, "tensorboard", RUN):
            target = settings.out / name
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    # A start that was refused, or ended before it had learned anything, is no run to be kept from mixing.
    if path.exists() and any((settings.out / name).exists() for name in (CHECKPOINTS, METRICS)):
        before = from_json(path.read_text(encoding="utf-8"), Pretrain, str(path))
        changed = differences(before, settings)
        if changed:
            raise UserError(
                f"{settings.out} holds a run with other settings ({'; '.join(changed)}): "
                "give another --out, or --fresh to start over"
            )
    durable.write_text(path, to_json(replace(settings, fresh=False)))
