"""One unit, from pretraining to its last task: resumed where it was stopped, and redone where its files are damaged.

`python -m openalbert.studies.carry_out UNIT.json` does it in a process of its own.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openalbert import atomic_io
from openalbert.atomic_io import LockedError
from openalbert.errors import UserError
from openalbert.finetuning.data import load_data
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_split
from openalbert.finetuning.finetune import finetune
from openalbert.finetuning.settings import Finetune
from openalbert.interop import huggingface
from openalbert.pretraining.run import PretrainingRun, pretrain
from openalbert.report.run_reader import read_run
from openalbert.run_files import CHECKPOINTS, MODEL, SCORES
from openalbert.settings import from_json, to_json
from openalbert.studies.intrinsic import SentenceTask, layer_distances, masked_lm, sentence_task
from openalbert.studies.units import (
    FAILED,
    LOG,
    PRETRAINING,
    UNIT,
    Measured,
    Unit,
    failures,
    is_done,
    read_measured,
    write_measured,
)
from openalbert.text.shards import heldout_split, open_shards
from openalbert.train.device import open_device
from openalbert.train.run import is_done as is_run_done

TASKS = "tasks"
SECONDS_BETWEEN_SIGNALS = 5.0
LOCKED = 75  # exit code: another process is at work on this unit
SENTENCE_TASKS: tuple[SentenceTask, ...] = ("sop", "nsp")


Notice = Callable[[str], None]


def carry_out(unit: Unit, notice: Notice = lambda sentence: None) -> None:
    """Do all that is left of a unit. A failure is recorded in its folder, and is no reason to end the study."""
    atomic_io.make_folder(unit.folder)
    with atomic_io.locked(unit.folder, "study"):
        if is_done(unit):
            return
        atomic_io.write_text(unit.folder / UNIT, to_json(unit))
        (unit.folder / FAILED).unlink(missing_ok=True)

        notices: list[str] = []
        with _logged(unit):
            for stage, reason in _stages(unit, notices.append).items():
                record_failure(unit, reason, stage)
        for sentence in notices:
            notice(f"{unit.variant}, seed {unit.seed}: {sentence}")


def record_failure(unit: Unit, reason: str, stage: str = PRETRAINING) -> None:
    """Keep why a stage failed, for the report. The next run of the study tries it again."""
    known = {**failures(unit), stage: reason}
    atomic_io.write_text(unit.folder / FAILED, json.dumps(known, indent=1) + "\n")


def _stages(unit: Unit, notify: Notice) -> dict[str, str]:
    """Pretraining, then what is measured; returns why stages failed."""
    try:
        if _attempt(PRETRAINING, unit.run_folder, lambda: _pretrain(unit), notify):
            for stage in unit.stages:  # of other weights
                (unit.folder / f"{stage}.json").unlink(missing_ok=True)
    except _StageError as error:
        return {PRETRAINING: str(error)}
    works: dict[str, Callable[[], Measured]] = {unit.intrinsic_stage: lambda: measure_intrinsic(unit)}
    for settings in unit.finetune:
        works[unit.task_stage(settings)] = partial(measure_task, unit, settings)
    if unit.speed_run is not None:
        works[unit.speed_stage] = lambda: measure_speed(unit)
    failed = {}
    for stage, work in works.items():
        try:
            _attempt(
                unit.stages[stage], unit.folder / TASKS / stage, partial(_measure, unit, stage, work, notify), notify
            )
        except _StageError as error:
            failed[stage] = str(error)
    return failed


class _StageError(Exception):
    """Why a stage cannot be done."""


def _attempt(name: str, folder: Path, work: Callable[[], None], notify: Notice) -> bool:
    """Do a stage. If it fails where it was stopped before, what is in its folder may be damaged: it is done anew.

    Returns whether that was the case.
    """
    is_old = folder.exists()
    try:
        work()
        return False
    except Exception as error:
        # Whatever it is, memory, a loss that diverged, a defect of ours: the other variants go on.
        traceback.print_exc()
        reason = _first_line(error)
        if not is_old:
            raise _StageError(reason) from None
    notify(f"{name}: what was there cannot be used ({reason}): it is done again")
    shutil.rmtree(folder)
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        raise _StageError(_first_line(error)) from None
    return True


def _measure(unit: Unit, stage: str, work: Callable[[], Measured], notify: Notice) -> None:
    try:
        if read_measured(unit.folder, stage) is not None:
            return
    except UserError as error:
        notify(f"{error}: measured again")
    started = time.perf_counter()
    measured = work()
    took = {"seconds": time.perf_counter() - started}
    write_measured(unit.folder, stage, replace(measured, values={**measured.values, **took}))
    for weights in (unit.folder / TASKS / stage).rglob(MODEL):
        shutil.rmtree(weights)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


@contextlib.contextmanager
def _logged(unit: Unit) -> Iterator[None]:
    """Everything that is printed goes to the unit's log."""
    with (
        (unit.folder / LOG).open("a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield


def _pretrain(unit: Unit) -> None:
    if not is_run_done(unit.run_folder):
        pretrain(unit.pretrain)
        _forget_compiled()
    huggingface.load(unit.run_folder)  # weights that are damaged are found here
    # Several times as large as the model, and of no use any more.
    shutil.rmtree(unit.run_folder / CHECKPOINTS, ignore_errors=True)
    last = read_run(unit.run_folder).evaluation.columns["mlm_loss"]
    if len(last) and not math.isfinite(last[-1]):
        raise UserError("the run diverged: its held-out loss is not finite")


def measure_intrinsic(unit: Unit) -> Measured:
    """Accuracies on held-out text, example by example, and the distances between layers."""
    train = open_shards(unit.pretrain.data)
    heldout = open_shards(unit.heldout, heldout_split(unit.heldout))
    trained_on = unit.pretrain.objective.sentence_order.objective
    with open_device(unit.pretrain.speed) as device:
        model = huggingface.load(unit.run_folder).to(device.torch_device)
        tokens = masked_lm(model, heldout, unit.intrinsic, device)
        pairs = {
            task: sentence_task(model, train, heldout, task, unit.intrinsic, device, is_trained=task == trained_on)
            for task in SENTENCE_TASKS
        }
        layers = layer_distances(model, heldout, unit.intrinsic, device)
    values: dict[str, Any] = {"mlm": tokens.accuracy}
    values |= {task: 100 * float(right.mean()) for task, right in pairs.items()}
    values |= {"examples": len(tokens.total), "trained_on": trained_on}
    values["layers"] = layers.of_layers()
    arrays: dict[str, np.ndarray] = {"mlm_right": tokens.right, "mlm_total": tokens.total, **layers.of_examples()}
    for task, right in pairs.items():
        arrays[task] = right.astype(np.uint8)
    return Measured(values, arrays)


def measure_task(unit: Unit, settings: Finetune) -> Measured:
    """Fine-tune the model, and keep what it predicts for each example of the first split that is scored."""
    out = unit.folder / TASKS / unit.task_stage(settings)
    atomic_io.make_folder(out.parent)
    settings = replace(settings, model=str(unit.run_folder), out=out, speed=unit.pretrain.speed)
    finetune(settings)
    scores = json.loads((out / SCORES).read_text(encoding="utf-8"))
    task_data = load_data(settings)
    split, data = next(iter(task_data.scored.items()))
    with open_device(settings.speed) as device:
        model = huggingface.load(out).to(device.torch_device)
        threshold = scores["null_threshold"]
        evaluation = evaluate_split([model], task_data.task, data, device, null_threshold=threshold)
    values = {
        "task": settings.task,
        "metric": evaluation.task.main_metric,
        "score": evaluation.metrics[evaluation.task.main_metric],
        "split": split,
        "collapsed": scores["collapsed"],
        "steps": scores["steps"],
    }
    return Measured(values, _by_example(evaluation))


def _by_example(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Labels and predictions, or where these are no numbers the metric of each example alone."""
    labels = [getattr(example, "label", None) for example in evaluation.data.examples]
    if all(isinstance(value, int | float) for value in [*labels, *evaluation.predictions]):
        return {"label": np.array(labels, np.float64), "prediction": np.array(evaluation.predictions, np.float64)}
    metric, measure = evaluation.task.main_metric, evaluation.task.measure
    pairs = zip(evaluation.data.examples, evaluation.predictions, strict=True)
    return {"value": np.array([measure([example], [given])[metric] for example, given in pairs], np.float64)}


def measure_speed(unit: Unit) -> Measured:
    """Tokens a second and memory of a training step: a few steps, of which nothing is kept."""
    assert unit.speed_run is not None
    settings = replace(unit.speed_run, dry_run=True, out=unit.folder / "speed")
    with open_device(settings.speed) as device:
        run = PretrainingRun(settings, device)
        needs = run.dry_run()
        values = {
            "tokens_per_second": needs.tokens / (3600 * needs.hours),
            "memory_bytes": device.peak_memory(),
            "parameters": run.model.num_parameters(),
            "batch_size": settings.batch_size,
            "length": settings.objective.max_length,
            "device": device.describe(),
        }
    _forget_compiled()
    return Measured(values)


def _forget_compiled() -> None:
    """What was compiled for one model is of no use to the next. Where nothing was, torch's compiler is not loaded."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def _end_with_parent() -> None:
    """Stop, with a checkpoint, when the process that started this one is gone: standard input is its pipe."""
    # Not through sys.stdin: Python aborts where a thread still holds its buffer at the end.
    while os.read(0, 1):
        pass
    while True:  # more than once: a signal at the very end of a stage stops nothing, and the next stage starts
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SECONDS_BETWEEN_SIGNALS)


def main() -> None:
    """Carry out the unit of a file."""
    path = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    unit = from_json(path.read_text(encoding="utf-8"), Unit, str(path))
    try:
        carry_out(unit, lambda sentence: print(sentence, flush=True))
    except LockedError:
        sys.exit(LOCKED)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
