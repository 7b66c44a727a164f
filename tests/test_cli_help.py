"""Help as a person meets it: a screen for each verb, examples that parse, and the values that a run will use."""

import importlib
import re
import shlex
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.finetuning.made_lessons import made_model
from tests.pretraining.made_shards import made_shards
from tests.tasks.made_data import write_tsv

from openalbert import cli
from openalbert.cli_help import options
from openalbert.cli_pages import PAGES
from openalbert.finetuning.data import load_data
from openalbert.finetuning.run import FinetuningRun
from openalbert.finetuning.trainable import resolve
from openalbert.interop.models import KINDS, entries
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.presets import PRESETS, RECIPE_MODELS
from openalbert.pretrained import pretrained_names
from openalbert.pretraining.run import PretrainingRun
from openalbert.recipes.finetuning import TABLE_14
from openalbert.recipes.pretraining import RECIPES
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Speed, open_device

MOST_LINES, MOST_COLUMNS = 45, 100
NAMED = [
    "pretrain albert-base",
    *(f"pretrain {name}" for name in RECIPES),
    "pretrain albert-base-wikibooks",
    *(f"finetune albert-base-wikibooks --task {task}" for task in ("sst2", "squad2", "race", "regression")),
    "show albert-micro",
]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def help_of(line: str, capsys: pytest.CaptureFixture[str], how: str = "--help") -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main([*line.split(), how])
    assert stop.value.code == 0
    return capsys.readouterr().out


def shown_value(page: str, option: str) -> str:
    """What a page shows in brackets behind an option; empty where it shows none."""
    rows = re.split(r"\n  (?=\S)", page)
    [row] = [row for row in rows if row.split()[0] == option]
    row = " ".join(row.split("\n\n")[0].split())
    return row[row.rindex("[") + 1 : -1] if row.endswith("]") else ""


def settings_of(verb: str) -> Any:
    entry = cli.VERBS[verb]
    return getattr(importlib.import_module(entry.module), entry.settings)


def test_every_verb_has_a_page_and_a_group() -> None:
    assert set(PAGES) == set(cli.VERBS)
    grouped = [verb for verbs in cli.GROUPS.values() for verb in verbs]
    assert sorted(grouped) == sorted(cli.VERBS)


@pytest.mark.parametrize("line", [*cli.VERBS, *NAMED])
def test_help_is_one_screen_with_three_examples(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, _ = cli.find_verb(line.split())
    page = help_of(line, capsys)
    lines = page.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_COLUMNS
    assert lines[0].startswith(f"usage: openalbert {verb} ")
    assert len(set(PAGES[verb].examples)) == 3
    for example in PAGES[verb].examples:
        assert f"  {example}" in lines
    has_more = len(options(settings_of(verb))) > len(PAGES[verb].settings)
    assert page.rstrip().endswith("--help-all") == has_more


@pytest.mark.parametrize("line", ["finetune", "pretrain albert-base-budget", "prepare"])
def test_help_fits_a_narrow_terminal(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = help_of(line, capsys)
    assert max(len(text) for text in page.split("\nSettings")[1].splitlines()[1:]) <= 80


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_example_is_a_command_line_of_its_verb(verb: str) -> None:
    for example in PAGES[verb].examples:
        words = shlex.split(re.split(r"[|<]", example[example.index("openalbert ") :])[0])
        found, rest = cli.find_verb(words[1:])
        assert found == verb
        assert isinstance(cli.parse(settings_of(verb), verb, rest), settings_of(verb))


def test_a_wrong_example_would_not_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.parse(settings_of("fill"), "fill", ["albert-base-wikibooks", "--tops", "3"])
    assert stop.value.code == 2
    assert "--top" in capsys.readouterr().err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_all_lists_every_setting(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = settings_of(verb)
    everything = help_of(verb, capsys, "--help-all")
    listed = set(re.findall(r"^\W*(--[a-z][\w.-]*)", everything, re.MULTILINE))
    expected = {f"--{name}" for name, option in options(kind).items() if option.label.startswith("--")}
    assert listed == expected
    for name, option in options(kind).items():
        assert option.help, f"{verb}: {name} has no docstring"
    assert len(options(kind)) >= len([field for field in fields(kind) if "Suppress" not in str(field.type)])
    assert "{None}" not in everything
    assert "STR" not in everything
    assert " ".join(PAGES[verb].about.split()[:8]) in everything


@pytest.mark.parametrize("how", ["--help", "--help-all", "-h"])
def test_a_misspelt_name_before_help_is_answered_with_the_nearest(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["pretrain", "albert-bsae", how])
    assert stop.value.code == 1
    assert "did you mean 'albert-base'?" in capsys.readouterr().err


def test_help_of_finetune_shows_what_a_run_of_the_task_uses(
    tmp_path: Path, small: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    """RTE at its full size, so that the recipe's own batch and steps hold, and a model of 64 positions."""
    recipe = TABLE_14["rte"]
    header, sizes = ("index", "sentence1", "sentence2", "label"), {"train": recipe.recipe.num_examples, "dev": 20}
    for split, size in sizes.items():
        rows = [(number, f"a {number}", "b", ("entailment", "not_entailment")[number % 2]) for number in range(size)]
        write_tsv(tmp_path / "RTE" / f"{split}.tsv", header, rows)
    model = made_model(tmp_path / "model", small)
    line = f"{model} --task rte --data {tmp_path} --out {tmp_path / 'run'}"
    settings = cli.parse(settings_of("finetune"), "finetune", line.split())
    page = help_of(f"finetune {model} --task rte", capsys)
    with open_device(Speed(device="cpu")) as device:
        task_data = load_data(settings)
        settings, _ = resolve(settings, task_data, device)
        run = FinetuningRun(settings, task_data, device)
        run._build()
    used = {
        "--steps": run.plan.budget.steps,
        "--batch-size": run.plan.batch_size,
        "--evaluate-every": run.plan.evaluate_every,
        "--max-length": task_data.max_length,
        "--optimizer.learning-rate": run.rate,
        "--patience": settings.patience or "never",
        "--seeds": settings.seeds,
    }
    assert {option: shown_value(page, option) for option in used} == {
        option: str(value) for option, value in used.items()
    }
    assert task_data.max_length < recipe.max_length
    assert shown_value(page, "--epochs") == f"{run.plan.budget.steps * run.plan.batch_size / sizes['train']:.1f}"


def test_help_of_finetune_shows_the_patience_and_length_of_your_own_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [help_of(line, capsys) for line in ("finetune", "finetune albert-base-wikibooks --task regression")]
    for page in pages:
        assert shown_value(page, "--patience") == "3"
        assert shown_value(page, "--epochs") == "3, of few examples up to 10"
        assert shown_value(page, "--batch-size") == "16 to 32, by the number of examples"
        assert shown_value(page, "--optimizer.learning-rate") == "5e-05"
    assert "as for --task classification" in pages[0]
    assert [shown_value(page, "--task") for page in pages] == ["", "regression"]


@pytest.mark.parametrize("task", TABLE_14)
def test_help_of_finetune_shows_the_row_of_table_14(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = TABLE_14[task]
    page = help_of(f"finetune albert-base-wikibooks --task {task}", capsys)
    expected = (f"{recipe.recipe.steps}", f"{recipe.recipe.batch_size}", f"{recipe.recipe.learning_rate:.4g}")
    assert (
        tuple(shown_value(page, f"--{name}") for name in ("steps", "batch-size", "optimizer.learning-rate")) == expected
    )


@pytest.mark.parametrize("name", ["albert-demo", "albert-base-budget", "albert-xxlarge-final", "albert-micro"])
def test_help_of_pretrain_shows_what_a_run_of_the_recipe_uses(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = made_shards(tmp_path)
    # No sizes are needed of the model, and the large ones would not fit here.
    tiny = "--model.hidden-size 16 --model.embedding-size 8 --model.num-heads 1 --model.ffn-size 16".split()
    words = [name, "--data", str(shards), "--out", str(tmp_path / "run"), *tiny]
    settings = cli.parse(settings_of("pretrain"), "pretrain", words)
    page = help_of(f"pretrain {name}", capsys)
    with open_device(Speed(device="cpu")) as device:
        run = PretrainingRun(settings, device)
    loop_config, unit = run.loop_config, run.loop_config.budget.unit
    assert float(shown_value(page, f"--{unit}")) == getattr(loop_config.budget, unit)
    for other in {"steps", "minutes"} - {unit}:
        assert shown_value(page, f"--{other}") == ""
    assert float(shown_value(page, "--optimizer.learning-rate")) == pytest.approx(loop_config.highest_rate, rel=1e-3)
    assert int(shown_value(page, "--batch-size")) == run.settings.batch_size
    assert int(shown_value(page, "--evaluate-every")) == (run.settings.evaluate_every or run.settings.save_every)
    assert shown_value(page, "--depth-schedule") == run.settings.depth_schedule
    [option] = re.findall(r"--schedule\.warmup\S+", page)
    warm_up, schedule = float(shown_value(page, option)), run.settings.schedule.within(loop_config.budget)
    # The learning rate rises up to that fraction of the run, and not beyond.
    assert schedule.factor(0.99 * warm_up) == pytest.approx(0.99, rel=1e-3)
    assert schedule.factor(1.01 * warm_up) != pytest.approx(1.01, rel=1e-3)


def test_models_lists_every_name_with_its_size_and_purpose_without_torch() -> None:
    code = "import sys, openalbert.cli as c\nc.main(['models'])\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    for name in (*PRESETS, *RECIPES, *pretrained_names()):
        assert name in rows, name
        assert len(rows[name].split()) > 6, f"{name} has no purpose"
    assert re.search(r"albert-base +11\.8M +22\.4 +12x768 +512", rows["albert-base"])
    assert [kind for kind in KINDS if f"{kind}:" in done.stdout] == list(KINDS)


def test_the_models_counts_are_those_of_the_models() -> None:
    import torch

    for one in entries():
        config = (PRESETS | RECIPE_MODELS).get(one.name)
        if config is None:
            continue
        with torch.device("meta"):
            model = AlbertModel(config, PRETRAINING_HEADS)
        assert one.parameters == sum(parameter.numel() for parameter in model.parameters()), one.name
    assert {name: RECIPES[name]().model for name in RECIPES} == RECIPE_MODELS


def test_the_list_of_verbs_takes_less_than_half_a_second() -> None:
    taken = []
    for _ in range(3):
        started = time.monotonic()
        subprocess.run([sys.executable, "-m", "openalbert", "--help"], capture_output=True, check=True)
        taken.append(time.monotonic() - started)
    assert min(taken) < 0.5


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--task", "what the model was fine-tuned for"),
        ("--splits", "all that have labels, but not train"),
        ("--max-length", "as in fine-tuning"),
        ("MODEL", "required"),
    ],
)
def test_help_of_evaluate_shows_what_stands_for_a_setting_that_is_not_given(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown_value(help_of("evaluate", capsys), option) == value
