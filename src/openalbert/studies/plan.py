"""What a study is going to do: its variants at a budget, and a unit for each of them and each seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openalbert import atomic_io
from openalbert.errors import UserError, suggestion
from openalbert.settings import from_dict, to_dict
from openalbert.studies.budgets import Budget
from openalbert.studies.settings import RunStudy, resolved_budget
from openalbert.studies.study import Study, Variant
from openalbert.studies.units import Unit, check_heldout, make_units
from openalbert.tasks.registry import open_task

PLAN = "study.json"


@dataclass(frozen=True)
class Plan:
    """A study at a budget, and all its units."""

    study: Study
    budget: Budget
    variants: list[Variant]
    units: list[Unit]
    command: str
    """How its results were asked for."""


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
