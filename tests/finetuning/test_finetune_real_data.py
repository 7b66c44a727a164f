"""Every task of the paper is fine-tuned from end to end on a little of its real data, as it was published."""

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.finetuning.made_lessons import made_model, records

import openalbert
from openalbert import cli
from openalbert.tasks.registry import GLUE, TASKS
from openalbert.text.tokenizer import Tokenizer

SETTINGS = "--steps 24 --batch-size 8 --optimizer.learning-rate 0.001 --evaluate-every 12 --speed.threads 1 --retries 0"
FEW = {"train": 120, "dev": 40, "heldout": 40}


def few_of_glue(real_data: Path, folder: Path, task: str) -> list[str]:
    """The first lines of the task's own files."""
    source, target = real_data / "glue" / GLUE[task].folder, folder / GLUE[task].folder
    target.mkdir(parents=True)
    for path in source.glob("*.tsv"):
        count = next((count for name, count in FEW.items() if path.name.startswith(name)), None)
        if count is not None:
            with path.open(encoding="utf-8") as file:
                (target / path.name).write_text("".join(islice(file, count)), encoding="utf-8")
    return ["--data", str(folder)]


def few_of_squad(real_data: Path, folder: Path, version: str) -> list[str]:
    """Some paragraphs of some articles to learn from, others to score on. Of 2.0 only the dev set is there."""
    name = "train-partial-v1.1.json" if version == "1.1" else "dev-v2.0.json"
    first, last = (5, 8) if version == "1.1" else (2, 3)  # which has more questions on each
    words = []
    for split, paragraphs in (("train", slice(first)), ("dev", slice(first, last))):
        whole: dict[str, Any] = json.loads((real_data / "squad" / name).read_text())
        data = whole["data"][:5]
        for article in data:
            article["paragraphs"] = article["paragraphs"][paragraphs]
        path = folder / f"{split}-v{version}.json"
        path.write_text(json.dumps({"version": version, "data": data}))
        words += [f"--{split}", str(path)]
    return words


def few_of_race(real_data: Path, folder: Path, task: str) -> list[str]:
    of_school = '{"id": "' + task.removeprefix("race").removeprefix("_")
    with (real_data / "race" / "dev.jsonl").open(encoding="utf-8") as file:
        lines = list(islice((line for line in file if line.startswith(of_school)), 30))
    words = []
    for split, part in (("train", lines[:22]), ("dev", lines[22:])):
        (folder / f"{split}.jsonl").write_text("".join(part), encoding="utf-8")
        words += [f"--{split}", str(folder / f"{split}.jsonl")]
    return words


@pytest.mark.parametrize("task", [*GLUE, "squad1", "squad2", "race"])
def test_a_task_of_the_paper_is_learned_from_its_own_files(
    task: str, real_data: Path, tiny: Path, tmp_path: Path
) -> None:
    if task in GLUE:
        words = few_of_glue(real_data, tmp_path / "data", task)
    elif task.startswith("squad"):
        words = few_of_squad(real_data, tmp_path, "1.1" if task == "squad1" else "2.0")
    else:
        words = few_of_race(real_data, tmp_path, task)
    out = tmp_path / "run"
    cli.main(["finetune", str(tiny), "--task", task, *words, "--out", str(out), *SETTINGS.split()])
    scores = json.loads((out / "scores.json").read_text())
    assert scores["task"] == task
    for figures in scores["scores"].values():
        assert all(math.isfinite(figure) for figure in figures.values())
        assert scores["main_metric"] in figures
    losses = [record["loss"] for record in records(out, "train")]
    assert all(map(math.isfinite, losses))
    run_info = json.loads((out / "run_info.json").read_text())
    assert run_info["data"]["train_examples"] >= 40
    assert all(count >= 20 for count in run_info["data"]["scored"].values())
    model = openalbert.load(out / "model").module
    assert model.head_list[0].kind in (TASKS[task].kind, "span")
    if task in GLUE:
        assert model.head_list[0].labels == GLUE[task].labels
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_tiny_model_that_collapses_on_sst2_learns_it_at_half_the_rate(real_data: Path, tmp_path: Path) -> None:
    """Not a good model, but one that has left the majority class: 51 % of dev is positive."""
    few = tmp_path / "train.tsv"
    with (real_data / "glue" / "SST-2" / "train.tsv").open(encoding="utf-8") as file:
        few.write_text("".join(islice(file, 6000)), encoding="utf-8")
    model = made_model(tmp_path / "model", Tokenizer.load(real_data / "vocab"))
    words = f"--data {real_data / 'glue'} --train {few} --steps 200 --batch-size 32 --optimizer.learning-rate 0.012"
    words += " --evaluate-every 50 --speed.threads 1 --retries 3"
    cli.main(["finetune", str(model), "--task", "sst2", "--out", str(tmp_path / "run"), *words.split()])
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["attempts"]
    assert "100 % of the predictions are" in scores["attempts"][0]["reason"]
    assert scores["scores"]["dev"]["accuracy"] > 60
