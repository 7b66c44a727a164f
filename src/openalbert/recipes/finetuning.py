"""Fine-tuning recipes: the paper's Table 14, and one for each kind of a user's own files. Settings only."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from openalbert.errors import UserError, suggestion
from openalbert.finetuning.settings import SMALLEST_BATCH, Finetune, Length, plan
from openalbert.interop.huggingface import local_folder, read_folder_config
from openalbert.optim.schedule import Schedule
from openalbert.settings import Effective
from openalbert.tasks.registry import TASKS


def table_14(
    task: str,
    num_examples: int,
    learning_rate: float,
    batch_size: int,
    dropout: float,
    steps: int,
    warmup_steps: int,
    max_length: int = 512,
) -> Finetune:
    """A row of the paper's Table 14, and how many examples the task's full training set has."""
    return Finetune(
        task=task,
        out=Path("runs") / task,
        recipe=Length(num_examples, batch_size, steps, learning_rate=learning_rate),
        # As a fraction: it scales with the steps where the data are fewer.
        schedule=Schedule(warmup_fraction=warmup_steps / steps),
        dropout=dropout,
        classifier_dropout=0.1,
        max_length=max_length,
    )


TABLE_14 = {
    recipe.task: recipe
    for recipe in (
        table_14("cola", 8_551, 1e-5, 16, 0.0, 5_336, 320),
        table_14("stsb", 5_749, 2e-5, 16, 0.0, 3_598, 214),
        table_14("sst2", 67_349, 1e-5, 32, 0.0, 20_935, 1_256),
        table_14("mnli", 392_702, 3e-5, 128, 0.0, 10_000, 1_000),
        table_14("qnli", 104_743, 1e-5, 32, 0.0, 33_112, 1_986),
        table_14("qqp", 363_846, 5e-5, 128, 0.1, 14_000, 1_000),
        table_14("rte", 2_490, 3e-5, 32, 0.1, 800, 200),
        table_14("mrpc", 3_668, 2e-5, 32, 0.0, 800, 200),
        table_14("wnli", 635, 2e-5, 16, 0.1, 2_000, 250),
        table_14("squad1", 87_599, 5e-5, 48, 0.0, 3_649, 365, max_length=384),
        table_14("squad2", 130_319, 3e-5, 48, 0.0, 8_144, 814),
        table_14("race", 87_866, 2e-5, 32, 0.1, 12_000, 1_000),
        table_14("race_middle", 87_866, 2e-5, 32, 0.1, 12_000, 1_000),
        table_14("race_high", 87_866, 2e-5, 32, 0.1, 12_000, 1_000),
    )
}


OWN_RATE = 5e-5  # the highest of Table 14
OWN_PATIENCE = 3  # evaluations, of ten
MOST_EPOCHS = 10


def own_files(kind: str) -> Finetune:
    """For a user's own files: three epochs, of few examples up to ten; early stopping.

    The rate is the highest of Table 14. Too high a rate is noticed as a collapse and halved; too low a rate is not
    noticed.
    """
    questions, choices, similar = (kind == one for one in ("question_answering", "multiple_choice", "similarity"))
    # Tags need more epochs than classes: a type of entity is in few of the texts. A text of 256 tokens is a long
    # paragraph, and a longer one is read in windows.
    tags = kind == "tagging"
    return Finetune(
        task=kind,
        out=Path("runs") / kind,
        # For similarity the texts of a batch are each other's negatives, and the more there are, the better.
        recipe=Length(
            100_000,
            128 if similar else 32,
            2_344 if similar else 15_625 if tags else 9_375,
            least_steps=400,
            most_epochs=MOST_EPOCHS,
            learning_rate=OWN_RATE,
            patience=OWN_PATIENCE,
        ),
        schedule=Schedule(warmup_fraction=0.1),
        standardize=kind == "regression",
        dropout=0.1 if choices else 0.0,
        classifier_dropout=0.1,
        max_length=384 if questions else 256 if tags else 128 if similar else 512,
        patience=OWN_PATIENCE,
    )


def effective(settings: Finetune) -> Effective:
    """What a run of these settings uses for those that are not given; without a task, that of a classification."""
    if not settings.task:
        known = effective(replace(own_files("classification"), model=settings.model))
        heading = "Settings that matter, as for --task classification (name another task to see its own)"
        return known._replace(settings=replace(known.settings, task=""), heading=heading)
    recipe = settings.recipe
    used = replace(
        settings,
        max_length=min(settings.max_length, _max_positions(settings.model)),
        optimizer=replace(settings.optimizer, learning_rate=recipe.learning_rate),
    )
    heading = f"Settings that matter, as --task {settings.task} has them"
    if settings.task not in TABLE_14:
        more = f", of few examples up to {recipe.most_epochs:g}" if recipe.least_steps > 1 else ""
        words = {
            "epochs": f"{recipe.epochs:g}{more}",
            "batch-size": f"{SMALLEST_BATCH} to {recipe.batch_size}, by the number of examples",
        }
        return Effective(used, words, heading)
    chosen = plan(settings, recipe.num_examples, recipe.num_examples)
    used = replace(
        used,
        steps=chosen.budget.steps,
        batch_size=chosen.batch_size,
        evaluate_every=chosen.evaluate_every,
        save_every=chosen.save_every,
    )
    # The run's length is given once, in steps; the epochs follow from it.
    words = {"epochs": f"{recipe.epochs:.1f}"}
    return Effective(used, words, f"{heading} for all its {recipe.num_examples:,} examples (fewer: fewer steps)")


def _max_positions(model: str) -> int:
    """The longest input that a model takes; where it is not on this machine, as long as any."""
    with contextlib.suppress(UserError):
        folder = local_folder(model) if model else None
        if folder is not None:
            return read_folder_config(folder).max_positions
    return sys.maxsize


def defaults_for(task: str) -> Finetune:
    """The settings that a task's name stands for."""
    if task in TABLE_14:
        return TABLE_14[task]
    if task in TASKS:
        return own_files(task)
    if task:
        raise UserError(f"'{task}' is not a task: {suggestion(task, TASKS)}")
    return Finetune()
