"""`openalbert study`: plan the units of a study, carry out those that are not done, and write the report."""

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from openalbert import atomic_io
from openalbert.errors import UserError, suggestion
from openalbert.formatting import aligned, count, counted, duration
from openalbert.model.config import AlbertConfig
from openalbert.model.cost import training_flops_per_token
from openalbert.pretraining.run import PretrainingRun
from openalbert.pretraining.settings import Pretrain
from openalbert.progress import log
from openalbert.run_files import CHECKPOINTS, MODEL
from openalbert.settings import from_dict, to_dict, to_json
from openalbert.studies.budgets import Budget
from openalbert.studies.carry_out import LOCKED, carry_out, record_failure
from openalbert.studies.page import write_reports
from openalbert.studies.registry import find_study, list_studies
from openalbert.studies.results import Results, read_results
from openalbert.studies.settings import RunStudy, resolved_budget
from openalbert.studies.study import Study, Variant
from openalbert.studies.units import LOG, UNIT, Unit, check_heldout, failures, is_done, make_units
from openalbert.tasks.registry import open_task
from openalbert.text.shards import read_manifest
from openalbert.text.workers import connected_ray
from openalbert.train.device import open_device
from openalbert.train.run import Stop
from openalbert.train.run import is_done as is_run_done

PLAN = "study.json"
SECONDS_BETWEEN_LOOKS = 0.2
WEIGHTS = (MODEL, CHECKPOINTS)


@dataclass(frozen=True)
class Plan:
    """A study at a budget, and all its units."""

    study: Study
    budget: Budget
    variants: list[Variant]
    units: list[Unit]
    command: str
    """How its results were asked for."""


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


def make_plan(settings: RunStudy, chosen: Study) -> Plan:
    """All units of a study, with everything checked that can be checked before training."""
    budget = resolved_budget(settings)
    every = chosen.variants_of(budget.base)
    variants = _chosen(every, settings.only)
    seeds = settings.seeds or budget.seeds
    tasks = _tasks(settings, budget)
    known, command = settings.folder / PLAN, settings.command_line
    if settings.report_only and not settings.data.is_dir() and known.is_file():
        # Results from elsewhere need no text to be reported.
        record = json.loads(known.read_text("utf-8"))
        units = [from_dict(values, Unit, str(known)) for values in record["units"]]
        units = [replace(unit, store=settings.variants_folder) for unit in units]
        command = record["command"]
    else:
        closure = [one for one in every if one in variants or _leads_to(one, variants, every)]
        units = make_units(closure, budget, tasks, settings.task_data, seeds, settings.variants_folder)
        check_heldout(units[0])
        for one in () if settings.report_only else units[0].finetune:
            open_task(one.task, one.source)
    return Plan(chosen, budget, variants, units, command)


def write_plan(plan: Plan, folder: Path) -> None:
    """Keep all units, from which a report can be written where the text is not."""
    atomic_io.make_folder(folder)
    record = {"study": plan.study.name, "command": plan.command, "units": [to_dict(unit) for unit in plan.units]}
    atomic_io.write_text(folder / PLAN, json.dumps(record, indent=1) + "\n")


def _chosen(every: Sequence[Variant], only: Sequence[str]) -> list[Variant]:
    names = [variant.name for variant in every]
    for name in only:
        if name not in names:
            raise UserError(f"--only: '{name}' is not a variant of this study: {suggestion(name, names)}")
    return [variant for variant in every if not only or variant.name in only]


def _leads_to(one: Variant, chosen: Sequence[Variant], every: Sequence[Variant]) -> bool:
    """Whether a chosen variant is initialized from this one, perhaps through others."""
    by_name = {variant.name: variant for variant in every}
    for variant in chosen:
        before = variant.after
        while before:
            if before == one.name:
                return True
            before = by_name[before].after
    return False


def _tasks(settings: RunStudy, budget: Budget) -> tuple[str, ...]:
    if settings.tasks is None:
        return budget.tasks if settings.task_data is not None else ()
    named = next((task for task in settings.tasks if ":" not in task), None)
    if named is not None and settings.task_data is None:
        raise UserError(f"--tasks {named}: give the folder of its data with --task-data")
    return settings.tasks


# Carrying out.


def train_units(units: Sequence[Unit], settings: RunStudy) -> None:
    """Carry out what is not done of the chosen subset, those in which time counts one at a time and last."""
    # Of studies that share a run, one may also measure its speed.
    by_key = {unit.key: unit for unit in sorted(units, key=lambda unit: unit.speed is not None)}
    subset = _subset([by_key[key] for key in dict.fromkeys(unit.key for unit in units)], settings.subset)
    waiting = [unit for unit in subset if not is_done(unit)]
    if len(subset) > len(waiting):
        log(f"{len(subset) - len(waiting)} of {counted(len(subset), 'run')} are done already")
    together = [replace(unit, speed=None) for unit in waiting if not unit.is_timed]
    alone = [unit for unit in waiting if unit.is_timed or unit.speed is not None]
    try:
        if settings.engine == "ray":
            with connected_ray(settings.ray_address) as ray:
                _train_on_ray(together, ray, settings.parallel)
                _train_on_ray(alone, ray, 1)
        elif settings.parallel > 1:
            with Stop() as stop:
                _train_in_processes(together, settings.parallel, stop)
                _train_in_processes(alone, 1, stop)
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


def _train_in_processes(units: Sequence[Unit], at_once: int, stop: Stop) -> None:
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
        for process in running:
            process.terminate()
        for process in running:
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
    pretrain = replace(
        unit.pretrain,
        data=unit.pretrain.data.absolute(),
        out=unit.pretrain.out.absolute(),
        heldout=unit.pretrain.heldout.absolute() if unit.pretrain.heldout is not None else None,
        warm_start=str(Path(unit.pretrain.warm_start).absolute()) if unit.after else unit.pretrain.warm_start,
    )
    places = ("data", "train", "dev", "test")
    finetune = []
    for settings in unit.finetune:
        given = {name: path.absolute() for name in places if (path := getattr(settings.source, name)) is not None}
        finetune.append(replace(settings, source=replace(settings.source, **given)))
    return replace(
        unit,
        pretrain=pretrain,
        heldout=unit.heldout.absolute(),
        store=unit.store.absolute(),
        finetune=tuple(finetune),
        speed=replace(unit.speed, data=unit.speed.data.absolute()) if unit.speed is not None else None,
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


# A dry run.


def estimate_study(plan: Plan, measure: Callable[[Unit], tuple[float, float]] | None = None) -> str:
    """Minutes of each variant, one run at a time, by a few steps of the first one and the FLOPs of the others."""
    waiting = [unit for unit in {unit.key: unit for unit in plan.units}.values() if not is_done(unit)]
    if not waiting:
        return "all runs are done: there is nothing left to train"
    untrained = [unit for unit in waiting if not is_run_done(unit.run_folder)]
    return "\n".join([*_pretraining_table(untrained, measure or measure_first), _later_stages(plan, waiting)])


def _pretraining_table(units: Sequence[Unit], measure: Callable[[Unit], tuple[float, float]]) -> list[str]:
    if not units:
        return ["all variants are pretrained"]
    flops_per_second, fill = measure(units[0])
    rows, total = [["variant", "runs left", "tokens", "FLOPs", "minutes a run", "minutes"]], 0.0
    for name in dict.fromkeys(unit.variant for unit in units):
        own = [unit for unit in units if unit.variant == name]
        run = replace(own[0].pretrain, model=_with_vocabulary(own[0].pretrain))
        minutes, tokens = run.budget.minutes, run.budget.tokens
        per_token = training_flops_per_token(run.model, run.objective.max_length)
        if run.budget.steps is not None:
            tokens = round(run.budget.steps * run.batch_size * run.objective.max_length * fill)
        if minutes is None:
            minutes = (tokens or 0) * per_token / flops_per_second / 60
        tokens = tokens or round(60 * minutes * flops_per_second / per_token)
        total += minutes * len(own)
        cells = [name, str(len(own)), count(tokens), f"{tokens * per_token:.2e}"]
        rows.append([*cells, f"{minutes:.3g}", f"{minutes * len(own):.3g}"])
    rows.append(["in total", str(len(units)), "", "", "", f"{total:.3g}"])
    measured_on = f"{flops_per_second:.2e} model FLOP/s, measured on '{units[0].variant}'"
    return [aligned(rows), f"pretraining alone, one run at a time, at {measured_on}"]


def measure_first(unit: Unit) -> tuple[float, float]:
    """Model FLOPs a second of a few steps, and the fraction of an example's places that hold tokens."""
    run = replace(unit.pretrain, dry_run=True, warm_start="")
    with contextlib.redirect_stdout(io.StringIO()), open_device(run.speed) as device:
        needs = PretrainingRun(run, device).dry_run()
    per_token = training_flops_per_token(_with_vocabulary(run), run.objective.max_length)
    fill = needs.tokens / max(1, needs.steps) / run.batch_size / run.objective.max_length
    return needs.tokens * per_token / (3600 * needs.hours), fill


def _with_vocabulary(run: Pretrain) -> AlbertConfig:
    return replace(run.model, vocab_size=read_manifest(run.data).vocab_size)


def _later_stages(plan: Plan, waiting: Sequence[Unit]) -> str:
    """How long evaluation and fine-tuning will take, by what they took where they are done already."""
    took = read_results(plan.study, plan.budget.base, plan.variants, plan.units).stage_seconds()
    left = [
        title
        for unit in waiting
        for stage, title in unit.stages.items()
        if not (unit.folder / f"{stage}.json").exists()
    ]
    unknown = sorted(set(left) - took.keys())
    if unknown:
        return f"evaluation and fine-tuning are not counted: {', '.join(unknown)} was not measured here yet"
    shown = ", ".join(f"{title} {duration(took[title])}" for title in dict.fromkeys(left))
    minutes = sum(took[title] for title in left) / 60
    return f"evaluation and fine-tuning: {minutes:.3g} minutes, as measured in earlier runs ({shown})"
