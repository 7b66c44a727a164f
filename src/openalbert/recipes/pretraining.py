"""Pretraining recipes: the paper's own for every model, and ones for smaller budgets. Settings only."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openalbert.errors import UserError, suggestion
from openalbert.interop.huggingface import local_folder, read_folder_config
from openalbert.model.config import AlbertConfig
from openalbert.model.presets import PRESETS, RECIPE_MODELS
from openalbert.objectives.ngram_masking import NgramMasking
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import MUON, OptimizerSettings
from openalbert.pretrained import pretrained_names
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.settings import Pretrain
from openalbert.settings import Effective
from openalbert.train.device import Speed


def threads_unless_set(number: int) -> int | None:
    """So many CPU threads; None where an environment variable sets them, which torch follows by itself."""
    return None if any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")) else number


def paper(name: str, config: AlbertConfig) -> Pretrain:
    """Section 4.1 of the paper: LAMB 0.00176, batch 4096, 125,000 steps with 3,125 of warm-up, length 512."""
    length = min(512, config.max_positions)
    return Pretrain(preset=name, model=config, objective=Objective(max_length=length), out=Path("runs") / name)


def albert_xxlarge_final() -> Pretrain:
    """The paper's final model (section 4.9): xxlarge, no dropout, additional data, 1.5 million steps."""
    recipe = paper("albert-xxlarge-final", RECIPE_MODELS["albert-xxlarge-final"])
    return replace(recipe, recipe_budget=Budget(steps=1_500_000), schedule=Schedule(warmup_steps=3125))


def albert_base_budget() -> Pretrain:
    """Minutes in, best model out: ALBERT-base without dropout, short examples, small batches, depth that grows.

    Growing the depth leaves the plateau of word frequencies in seconds, where full depth needs a minute or more.
    The learning rate belongs to this batch of its own. Sentence order is asked as Google does: in minutes it is learned
    sooner so than on chunks of whole sentences, which give nothing away; that the chunks are the same in every epoch
    did no harm in one pair of runs (`results/budget-h200`). Muon, and 30 % of the tokens masked in training, give a
    higher MLM and SOP accuracy in the same minutes (`results/muon-h200`); evaluations mask 15 %.
    """
    return Pretrain(
        preset="albert-base-budget",
        model=RECIPE_MODELS["albert-base-budget"],
        out=Path("runs/albert-base-budget"),
        recipe_budget=Budget(minutes=20.0),
        objective=Objective(
            max_length=128,
            masked_lm=NgramMasking(rate=0.3),
            sentence_order=SentenceOrder(short_fraction=0.0),
        ),
        optimizer=MUON,
        schedule=Schedule(kind="linear", warmup_fraction=0.06),
        batch_size=256,
        reference_batch=256,
        depth_schedule="3,4@0.15,6@0.3,8@0.5,10@0.65,12@0.75",
    )


def albert_small_budget() -> Pretrain:
    """The design of `albert-base-budget` for a model that is fast on a CPU. With `--distill albert-base-wikibooks` it
    learns from the bundled checkpoint too."""
    return replace(
        albert_base_budget(),
        preset="albert-small-budget",
        model=RECIPE_MODELS["albert-small-budget"],
        out=Path("runs/albert-small-budget"),
        depth_schedule="3,4@0.3,5@0.5,6@0.65",
    )


def albert_demo() -> Pretrain:
    """A tiny ALBERT, short examples and small batches: minutes on two cores, for the demo's few MB of text."""
    return Pretrain(
        preset="albert-demo",
        model=RECIPE_MODELS["albert-demo"],
        out=Path("runs/albert-demo"),
        recipe_budget=Budget(steps=7000),
        objective=Objective(max_length=48),
        optimizer=OptimizerSettings(learning_rate=0.006),
        schedule=Schedule(kind="linear", warmup_fraction=0.03),
        batch_size=40,
        reference_batch=40,
        depth_schedule="2,3@0.7",
        evaluate_every=1000,
        save_every=500,
        log_every=20,
        speed=Speed(threads=threads_unless_set(2)),
    )


# By name; every preset is a recipe too, the paper's.
RECIPES: dict[str, Callable[[], Pretrain]] = {
    "albert-xxlarge-final": albert_xxlarge_final,
    "albert-base-budget": albert_base_budget,
    "albert-small-budget": albert_small_budget,
    "albert-demo": albert_demo,
}


def effective(settings: Pretrain) -> Effective:
    """What a run of these settings uses for those that are not given."""
    budget = settings.budget
    used = replace(
        settings,
        **{budget.unit: getattr(budget, budget.unit)},
        schedule=settings.schedule.within(budget),
        evaluate_every=settings.evaluate_every or settings.save_every,
    )
    heading = f"Settings that matter, as {settings.preset} has them"
    if not settings.preset:
        heading = "Settings that matter, as for albert-base in the paper (name a recipe or a model to see its own)"
    return Effective(used, {}, heading)


def defaults_for(name: str) -> Pretrain:
    """The settings that a recipe's or preset's name, or a model folder, stands for."""
    if name in RECIPES:
        return RECIPES[name]()
    if name in PRESETS:
        return paper(name, PRESETS[name])
    folder = local_folder(name) if name else None
    if folder is not None:
        return replace(paper(name, read_folder_config(folder)), out=Path("runs/continued"))
    if name:
        known = [*PRESETS, *RECIPES, *pretrained_names()]
        raise UserError(f"'{name}' is neither a recipe, a preset nor a model folder: {suggestion(name, known)}")
    return Pretrain()
