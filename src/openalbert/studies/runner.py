"""`openalbert study`: plan the units of a study, carry out those that are not done, and write the report."""

import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.formatting import counted, duration
from openalbert.pretraining.settings import Pretrain
from openalbert.progress import log
from openalbert.run_files import CHECKPOINTS, MODEL
from openalbert.settings import to_json
from openalbert.studies.carry_out import LOCKED, SECONDS_BETWEEN_SIGNALS, carry_out, record_failure
from openalbert.studies.estimate import estimate_study
from openalbert.studies.page import write_reports
from openalbert.studies.plan import make_plan, write_plan
from openalbert.studies.registry import find_study, list_studies
from openalbert.studies.results import Results, read_results
from openalbert.studies.settings import RunStudy
from openalbert.studies.study import Study
from openalbert.studies.units import LOG, UNIT, Unit, failures, is_done
from openalbert.text.workers import connected_ray
from openalbert.train.run import Stop

SECONDS_BETWEEN_LOOKS = 0.2
WEIGHTS = (MODEL, CHECKPOINTS)


def study(settings: RunStudy) -> None:
    """Run a study by its name, or list all of them."""
    if not settings.study:
        print(list_studies())
        return
    results = run_study(settings)
    if results is not None:
        print(results.sentence())
        print(settings.folder / "report.md")


def run_study(settings: RunStudy, own: Study | None = None) -> Results | None:
    """Run a study of the paper by its name, or one of one's own; returns what was measured, None in a dry run.

    The same call again resumes, and trains only what is new or has changed.
    """
    if own is not None and not settings.study:
        settings = replace(settings, study=own.name)
    plan = make_plan(settings, own or find_study(settings.study))
    if settings.dry_run:
        print(estimate_study(plan))
        return None
    for elsewhere in settings.merge:
        copied = merge(elsewhere, settings.variants_folder)
        log(f"{elsewhere}: the results of {counted(copied, 'run')} were copied")
    write_plan(plan, settings.folder)
    if not settings.report_only:
        train_units(plan.units, settings)
    results = read_results(plan.study, plan.budget.base, plan.variants, plan.units)
    results = replace(results, command=plan.command)
    write_reports(results, settings.folder)
    return results


# Carrying out.


def train_units(units: Sequence[Unit], settings: RunStudy, grace: float | None = None) -> None:
    """Carry out what is not done of the chosen subset, those in which time counts one at a time and last.

    Processes that are stopped have `grace` seconds to write their checkpoints, or as many as they need.
    """
    # Of studies that share a run, one may also measure its speed.
    by_key = {unit.key: unit for unit in sorted(units, key=lambda unit: unit.speed_run is not None)}
    subset = _subset([by_key[key] for key in dict.fromkeys(unit.key for unit in units)], settings.subset)
    waiting = [unit for unit in subset if not is_done(unit)]
    if len(subset) > len(waiting):
        log(f"{len(subset) - len(waiting)} of {counted(len(subset), 'run')} are done already")
    together = [replace(unit, speed_run=None) for unit in waiting if not unit.is_timed]
    alone = [unit for unit in waiting if unit.is_timed or unit.speed_run is not None]
    try:
        if settings.engine == "ray":
            with connected_ray(settings.ray_address) as ray:
                _train_on_ray(together, ray, settings.parallel)
                _train_on_ray(alone, ray, 1)
        elif settings.parallel > 1:
            with Stop() as stop:
                _train_in_processes(together, settings.parallel, stop, grace)
                _train_in_processes(alone, 1, stop, grace)
        else:
            _train_in_turn([*together, *alone])
    except SystemExit:
        log("stopped: the same command resumes each run from its checkpoint")
        raise


def _train_in_turn(units: Sequence[Unit]) -> None:
    for unit in units:
        _log_start(unit)
        started = time.perf_counter()
        try:
            carry_out(unit, log)
        except UserError as error:  # another process is at work on it
            log(f"{unit.variant}, seed {unit.seed}: left out: {error}")
            continue
        _log_end(unit, time.perf_counter() - started)


def _subset(units: Sequence[Unit], job: tuple[int, int]) -> list[Unit]:
    """Every n-th of the units. Those that are initialized from one another stay together."""
    number, count = job
    roots: dict[str, int] = {}
    for unit in units:
        roots[unit.key] = roots[unit.after] if unit.after in roots else len(set(roots.values()))
    return [unit for unit in units if roots[unit.key] % count == number]


def _train_in_processes(units: Sequence[Unit], at_once: int, stop: Stop, grace: float | None) -> None:
    waiting, running = list(units), dict[subprocess.Popen[str], tuple[Unit, float]]()
    try:
        while waiting or running:
            keys = {unit.key for unit in waiting} | {unit.key for unit, _ in running.values()}
            for unit in [unit for unit in waiting if unit.after not in keys][: at_once - len(running)]:
                waiting.remove(unit)
                _log_start(unit)
                running[_start(unit)] = unit, time.perf_counter()
            for process in [process for process in running if process.poll() is not None]:
                unit, started = running.pop(process)
                _log_exit(process, unit, time.perf_counter() - started)
            if stop.asked():
                sys.exit(stop.exit_code)
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        _end(list(running), grace)


def _end(processes: Sequence["subprocess.Popen[str]"], grace: float | None) -> None:
    """Stop processes, each with a checkpoint, and kill those that take longer than so many seconds."""
    until = math.inf if grace is None else time.monotonic() + grace
    left = list(processes)
    while left and time.monotonic() < until:
        # More than once: a signal at the very end of a stage stops nothing, and the next stage starts.
        for process in left:
            process.terminate()
        look_until = time.monotonic() + SECONDS_BETWEEN_SIGNALS
        while left and time.monotonic() < min(until, look_until):
            time.sleep(SECONDS_BETWEEN_LOOKS)
            left = [process for process in left if process.poll() is None]
    for process in left:
        process.kill()
    for process in processes:
        process.communicate()


def _start(unit: Unit) -> "subprocess.Popen[str]":
    atomic_io.make_folder(unit.folder)
    request = unit.folder / f"request-{UNIT}"
    atomic_io.write_text(request, to_json(unit))
    command = [sys.executable, "-m", "openalbert.studies.carry_out", str(request)]
    # Compilers and libraries may write much: a pipe that nobody reads would stop the run.
    with (unit.folder / LOG).open("ab") as log_file:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, text=True, encoding="utf-8"
        )


def _log_exit(process: "subprocess.Popen[str]", unit: Unit, seconds: float) -> None:
    out, _ = process.communicate()
    for line in out.splitlines():
        log(line)
    if process.returncode == 0:
        _log_end(unit, seconds)
        return
    if process.returncode < 0:
        reason = f"its process was ended by {signal.Signals(-process.returncode).name}"
    elif process.returncode == LOCKED:
        reason = "another process is at work on it"
    else:
        written = (unit.folder / LOG).read_text(encoding="utf-8", errors="replace")
        reason = ([line for line in written.splitlines() if line.strip()] or ["its process failed"])[-1]
    log(f"{unit.variant}, seed {unit.seed}: not done: {reason}")
    was_stopped = process.returncode in (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    if process.returncode != LOCKED and not was_stopped:
        record_failure(unit, reason)


def _train_on_ray(units: Sequence[Unit], ray: ModuleType, at_once: int) -> None:
    """One task of the cluster for each chain of units; all machines must see the data and the store."""
    if not units:
        return
    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    needs: dict[str, Any] = {"num_gpus": 1 / at_once} if has_gpus else {"num_cpus": 1}
    remote = ray.remote(scheduling_strategy="SPREAD", **needs)(_carry_out_chain)
    chains: dict[str, list[Unit]] = {}
    place: dict[str, str] = {}
    for unit in units:
        place[unit.key] = place.get(unit.after, unit.key)
        chains.setdefault(place[unit.key], []).append(_absolute(unit))
    chain_of = {remote.remote(chain): chain for chain in chains.values()}
    left = list(chain_of)
    while left:
        [done], left = ray.wait(left)
        try:
            for unit, seconds, sentences in ray.get(done):
                for sentence in sentences:
                    log(sentence)
                _log_end(unit, seconds)
        except ray.exceptions.RayError as error:
            names = ", ".join(f"{unit.variant}, seed {unit.seed}" for unit in chain_of[done])
            log(f"{names}: not done: {str(error).splitlines()[0]}")


def _absolute(unit: Unit) -> Unit:
    """With paths that do not depend on where a process is started."""
    warm_start = str(Path(unit.pretrain.warm_start).absolute()) if unit.after else unit.pretrain.warm_start
    places = ("data", "train", "dev", "test")
    finetune = []
    for settings in unit.finetune:
        given = {name: path.absolute() for name in places if (path := getattr(settings.source, name)) is not None}
        finetune.append(replace(settings, source=replace(settings.source, **given)))
    return replace(
        unit,
        pretrain=replace(_absolute_run(unit.pretrain), warm_start=warm_start),
        heldout=unit.heldout.absolute(),
        store=unit.store.absolute(),
        finetune=tuple(finetune),
        speed_run=_absolute_run(unit.speed_run) if unit.speed_run is not None else None,
    )


def _absolute_run(run: Pretrain) -> Pretrain:
    return replace(
        run,
        data=run.data.absolute(),
        out=run.out.absolute(),
        heldout=run.heldout.absolute() if run.heldout is not None else None,
        distill=str(Path(run.distill).absolute()) if run.distill and Path(run.distill).is_dir() else run.distill,
    )


def _carry_out_chain(units: Sequence[Unit]) -> list[tuple[Unit, float, list[str]]]:
    """On a node of the cluster."""
    ended = []
    for unit in units:
        sentences: list[str] = []
        started = time.perf_counter()
        carry_out(unit, sentences.append)
        ended.append((unit, time.perf_counter() - started, sentences))
    return ended


def _log_start(unit: Unit) -> None:
    log(f"{unit.variant}, seed {unit.seed}: started; {unit.folder / LOG}")


def _log_end(unit: Unit, seconds: float) -> None:
    reasons = failures(unit)
    outcome = "; ".join(f"{stage} FAILED: {reason}" for stage, reason in reasons.items()) or "done"
    log(f"{unit.variant}, seed {unit.seed}: {outcome} ({duration(seconds)}); {unit.folder}")


# Results from elsewhere.


def merge(elsewhere: Path, store: Path) -> int:
    """Copy the results that are in another folder of variants and not in this one; returns of how many units."""
    found = sorted(path.parent for path in elsewhere.glob(f"*/{UNIT}"))
    if not found:
        raise UserError(
            f"{elsewhere} holds no variants: give the folder that another `openalbert study` trained them in"
        )
    copied = 0
    for folder in found:
        own = store / folder.name
        if not own.exists():
            with atomic_io.new_folder(own) as aside:
                shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*WEIGHTS))
            copied += 1
            continue
        new = [path for path in _results(folder) if not (own / path.relative_to(folder)).exists()]
        for path in new:
            atomic_io.write_bytes(own / path.name, path.read_bytes())
        copied += bool(new)
    return copied


def _results(folder: Path) -> Iterator[Path]:
    """The files of finished stages; arrays before the JSON that names them."""
    yield from sorted(folder.glob("*.npz"))
    yield from sorted(path for path in folder.glob("*-*.json") if UNIT not in path.name)
