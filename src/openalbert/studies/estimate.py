"""`openalbert study --dry-run`: how long the variants will take."""

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace

from openalbert.formatting import aligned, count, duration
from openalbert.model.cost import training_flops_per_token
from openalbert.pretraining.run import PretrainingRun
from openalbert.pretraining.settings import Pretrain
from openalbert.studies.plan import Plan
from openalbert.studies.results import read_results
from openalbert.studies.units import Unit, is_done
from openalbert.text.shards import read_manifest
from openalbert.train.device import open_device
from openalbert.train.run import is_done as is_run_done


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
        run = own[0].pretrain
        minutes, tokens = run.budget.minutes, run.budget.tokens
        per_token = _flops_per_token(run)
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
    per_token = _flops_per_token(run)
    fill = needs.tokens / max(1, needs.steps) / run.batch_size / run.objective.max_length
    return needs.tokens * per_token / (3600 * needs.hours), fill


def _flops_per_token(run: Pretrain) -> float:
    model = replace(run.model, vocab_size=read_manifest(run.data).vocab_size)
    return training_flops_per_token(model, run.objective.max_length, run.objective.masked_lm.rate)


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
        return f"evaluation and fine-tuning are not counted: no run here has finished {', '.join(unknown)} yet"
    shown = ", ".join(f"{title} {duration(took[title])}" for title in dict.fromkeys(left))
    minutes = sum(took[title] for title in left) / 60
    return f"evaluation and fine-tuning: {minutes:.3g} minutes, as measured in earlier runs ({shown})"
