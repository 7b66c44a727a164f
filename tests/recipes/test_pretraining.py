"""Every recipe builds, has the paper's numbers where it claims them, and reads back equal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openalbert.errors import UserError
from openalbert.model.presets import PRESETS
from openalbert.optim.schedule import Spent
from openalbert.pretraining.settings import Pretrain
from openalbert.recipes.pretraining import RECIPES, defaults_for
from openalbert.settings import from_json, to_json

NAMES = [*PRESETS, *RECIPES]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_builds_and_reads_back_equal(name: str) -> None:
    recipe = defaults_for(name)
    assert recipe.preset == name
    assert from_json(to_json(recipe), Pretrain) == recipe
    assert recipe.objective.max_length <= recipe.model.max_positions
    assert recipe.depths.stages[-1].depth == recipe.model.num_layers
    # Its schedule fits its budget: it begins at or above nothing and comes down to nothing.
    schedule = recipe.schedule.within(recipe.budget)
    assert schedule.learning_rate(recipe.learning_rate, 1.0) == 0.0
    assert 0 < schedule.learning_rate(recipe.learning_rate, 0.5) <= recipe.learning_rate


def test_no_two_recipes_share_a_folder() -> None:
    folders = [defaults_for(name).out for name in NAMES]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].max_positions >= 512])
def test_every_preset_has_the_paper_s_own_run(name: str) -> None:
    recipe = defaults_for(name)
    assert recipe.model == PRESETS[name]
    assert (recipe.learning_rate, recipe.batch_size, recipe.objective.max_length) == (0.00176, 4096, 512)
    assert recipe.budget.steps == 125_000
    assert recipe.optimizer.kind == "lamb"
    schedule = recipe.schedule.within(recipe.budget)

    def rate(step: int) -> float:
        return schedule.learning_rate(recipe.learning_rate, recipe.budget.progress(Spent(steps=step)))

    # Section 4.1, as Google's code counts it.
    assert rate(0) == 0.0
    assert rate(3124) == pytest.approx(0.00175944, rel=1e-5)
    assert rate(3125) == pytest.approx(0.001716, rel=1e-9)
    assert rate(60_000) == pytest.approx(0.0009152, rel=1e-9)


def test_the_final_model_is_the_paper_s() -> None:
    recipe = defaults_for("albert-xxlarge-final")
    assert recipe.model == PRESETS["albert-xxlarge"]
    assert (recipe.model.hidden_size, recipe.model.num_layers) == (4096, 12)
    assert (recipe.model.hidden_dropout, recipe.model.attention_dropout) == (0.0, 0.0)
    assert recipe.budget.steps == 1_500_000
    assert recipe.schedule.within(recipe.budget).warmup_fraction == 3125 / 1_500_000
    assert (recipe.learning_rate, recipe.batch_size, recipe.objective.max_length) == (0.00176, 4096, 512)


def test_the_budget_recipe_states_its_own_learning_rate_for_its_own_batch() -> None:
    recipe = defaults_for("albert-base-budget")
    assert recipe.learning_rate == recipe.optimizer.learning_rate
    assert recipe.budget.minutes is not None
    assert len(recipe.depths.stages) > 1


def test_the_budget_recipe_is_the_one_whose_figures_are_published() -> None:
    run = Path(__file__).parents[2] / "results" / "muon-h200" / "seven-minutes" / "run.json"
    # Read as settings: what was not there to be set when it ran has its default.
    published = json.loads(to_json(from_json(run.read_text(), Pretrain)))
    recipe = json.loads(to_json(defaults_for("albert-base-budget")))
    of_a_run = {"data", "out", "minutes", "heldout", "evaluate_every", "evaluation_examples", "save_every", "log_every"}
    assert {name for name in published if published[name] != recipe[name]} == of_a_run


def test_the_small_budget_recipe_differs_from_the_base_one_by_its_model_alone() -> None:
    base, small = (json.loads(to_json(defaults_for(f"albert-{size}-budget"))) for size in ("base", "small"))
    differs = {name for name in base if base[name] != small[name]}
    assert differs == {"preset", "model", "out", "depth_schedule"}
    # All positions of its model are trained; everything else is the preset's.
    assert small["model"] == {**json.loads(to_json(PRESETS["albert-small"])), "max_positions": 128}


@pytest.mark.parametrize(
    ("variables", "words", "threads"),
    [
        ({"OMP_NUM_THREADS": "1"}, "", 1),
        ({"OMP_NUM_THREADS": "3"}, "", 3),
        ({"MKL_NUM_THREADS": "3"}, "", 3),
        ({"OMP_NUM_THREADS": "3"}, "--speed.threads 2", 2),
        ({}, "", 2),
    ],
)
def test_the_demos_training_uses_as_many_threads_as_the_environment_says_and_else_two(
    variables: dict[str, str], words: str, threads: int
) -> None:
    code = (
        "import sys, torch\nfrom openalbert import cli\nfrom openalbert.train.device import open_device\n"
        "from openalbert.pretraining.settings import Pretrain\n"
        "settings = cli.parse(Pretrain, 'pretrain', sys.argv[1:])\n"
        "with open_device(settings.speed) as device: print(torch.get_num_threads(), device.describe())"
    )
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    line = [sys.executable, "-c", code, "albert-demo", "--speed.device", "cpu", *words.split()]
    # MKL would use no more threads than there are cores, whatever it is told.
    environment = {**unset, "MKL_DYNAMIC": "FALSE", **variables}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{threads} ")
    assert f"{threads} thread" in done.stdout  # as the run describes its device


def test_a_model_folder_is_gone_on_with_and_a_wrong_name_is_answered(tmp_path: Path) -> None:
    import torch

    from openalbert.interop import huggingface
    from openalbert.model.albert import AlbertModel
    from openalbert.model.config import PRETRAINING_HEADS

    torch.manual_seed(0)
    huggingface.save(AlbertModel(PRESETS["albert-micro"], PRETRAINING_HEADS), tmp_path / "model")
    recipe = defaults_for(str(tmp_path / "model"))
    assert recipe.model == PRESETS["albert-micro"]
    assert recipe.objective.max_length == 128
    with pytest.raises(UserError, match="did you mean 'albert-large'"):
        defaults_for("albert-lrage")
