"""Table 14 stands as the paper prints it, every task has a recipe, and smaller data get a smaller run."""

import math
from dataclasses import replace

import pytest

from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.settings import Finetune, plan
from openalbert.recipes.finetuning import TABLE_14, defaults_for
from openalbert.settings import from_json, to_json
from openalbert.tasks.registry import TASKS

# Task, learning rate, batch, dropout, classifier dropout, steps, warm-up, length: the paper's Table 14.
PAPER = """
cola 1e-5 16 0 0.1 5336 320 512
stsb 2e-5 16 0 0.1 3598 214 512
sst2 1e-5 32 0 0.1 20935 1256 512
mnli 3e-5 128 0 0.1 10000 1000 512
qnli 1e-5 32 0 0.1 33112 1986 512
qqp 5e-5 128 0.1 0.1 14000 1000 512
rte 3e-5 32 0.1 0.1 800 200 512
mrpc 2e-5 32 0 0.1 800 200 512
wnli 2e-5 16 0.1 0.1 2000 250 512
squad1 5e-5 48 0 0.1 3649 365 384
squad2 3e-5 48 0 0.1 8144 814 512
race 2e-5 32 0.1 0.1 12000 1000 512
"""


@pytest.mark.parametrize("row", PAPER.strip().splitlines())
def test_a_full_training_set_is_trained_on_as_table_14_says(row: str) -> None:
    task, *numbers = row.split()
    rate, batch, dropout, classifier_dropout, steps, warmup, length = map(float, numbers)
    recipe = defaults_for(task)
    chosen = plan(recipe, recipe.recipe.num_examples, recipe.recipe.num_examples)
    assert (chosen.batch_size, chosen.budget.steps) == (batch, steps)
    assert round(recipe.schedule.warmup_fraction * steps) == warmup
    assert (recipe.dropout, recipe.classifier_dropout, recipe.max_length) == (dropout, classifier_dropout, length)
    optimizer = recipe.optimizer
    assert (optimizer.kind, recipe.recipe.learning_rate, optimizer.weight_decay) == ("adamw", rate, 0.01)
    assert (optimizer.epsilon, optimizer.clip_norm) == (1e-6, 1.0)


@pytest.mark.parametrize("task", [*TASKS, ""])
def test_every_task_has_a_recipe_that_reads_back_equal(task: str) -> None:
    recipe = defaults_for(task)
    assert recipe.task == task
    assert from_json(to_json(recipe), Finetune) == recipe
    assert set(TABLE_14) <= set(TASKS)


def test_a_task_that_there_is_not_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match="'mnlli' is not a task: did you mean 'mnli'"):
        defaults_for("mnlli")


def test_the_command_line_reads_a_tasks_values_and_changes_single_ones() -> None:
    words = "some/model --task=mnli --optimizer.weight-decay 0.1 --data glue --from other".split()
    settings = cli.parse(Finetune, "finetune", words)
    assert settings.optimizer == replace(defaults_for("mnli").optimizer, weight_decay=0.1)
    assert settings.recipe.batch_size == 128
    assert (settings.model, settings.start, str(settings.source.data)) == ("some/model", "other", "glue")


def test_a_part_of_the_data_gets_the_same_epochs_in_smaller_batches() -> None:
    mnli = defaults_for("mnli")
    chosen = plan(mnli, 8_999, 8_999)
    assert chosen.batch_size == 16
    assert chosen.budget.steps is not None
    assert math.isclose(chosen.budget.steps * 16 / 8_999, 10_000 * 128 / 392_702, rel_tol=0.01)
    # Half of the data is still enough for nearly the whole batch.
    assert plan(mnli, 196_000, 196_000).batch_size == 64
    # What the user says stands.
    assert plan(replace(mnli, batch_size=128), 8_999, 8_999).batch_size == 128
    assert plan(replace(mnli, steps=77), 8_999, 8_999).budget.steps == 77
    assert plan(replace(mnli, epochs=2.0), 8_999, 8_999).budget.steps == round(2 * 8_999 / 16)
    assert plan(replace(mnli, minutes=3.0), 8_999, 8_999).budget.minutes == 3.0
    assert "for 392,702 examples, these are 8,999" in chosen.sentence(mnli, 8_999, 8_999)


def test_few_examples_of_ones_own_get_more_epochs_than_many() -> None:
    own = defaults_for("classification")
    # Never more than ten epochs, which is what a few examples carry.
    assert plan(own, 400, 400).budget.steps == 250
    assert plan(own, 50, 50).budget.steps == 31
    assert plan(own, 1_000, 1_000).budget.steps == 400
    chosen = plan(own, 40_000, 40_000)
    assert chosen.budget.steps is not None
    assert math.isclose(chosen.budget.steps * chosen.batch_size / 40_000, 3, rel_tol=0.01)
    assert plan(own, 10**6, 10**6).batch_size == 32


def test_a_run_is_evaluated_ten_times_and_saved_as_often() -> None:
    chosen = plan(defaults_for("cola"), 8_551, 8_551)
    assert chosen.evaluate_every == chosen.save_every == 533
    assert plan(replace(defaults_for("cola"), steps=3), 8_551, 8_551).evaluate_every == 1
