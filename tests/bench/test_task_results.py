"""bench/task_results.py: every job's command line, and that one begins with another's model only where it should."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from openalbert.finetuning.seeds import summarize

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import task_results


@pytest.fixture
def asked(tmp_path: Path) -> argparse.Namespace:
    """What a user would give, with a file of questions to cut in two."""
    (tmp_path / "squad").mkdir()
    articles = [{"title": str(number), "paragraphs": []} for number in range(8)]
    (tmp_path / "squad" / "dev-v2.0.json").write_text(json.dumps({"version": "2.0", "data": articles}))
    return argparse.Namespace(model="small", data=tmp_path, out=tmp_path, more="")


@pytest.mark.parametrize("task", [job.task for job in task_results.JOBS])
def test_every_job_has_a_command_and_is_initialized_from_the_right_model(task: str, asked: argparse.Namespace) -> None:
    job = next(job for job in task_results.JOBS if job.task == task)
    assert "--from" not in task_results.command(job, "", asked)
    assert "--no-baselines" in task_results.command(job, "", asked)
    if task in task_results.VIA:
        words = task_results.command(job, task_results.via(task), asked)
        assert words[words.index("--from") + 1] == str(asked.out / task_results.VIA[task])
        assert words[words.index("--out") + 1] == str(asked.out / f"{task}-from-{task_results.VIA[task]}")


def test_no_article_of_squad_2_is_both_learned_from_and_scored_on(asked: argparse.Namespace) -> None:
    task_results.data_words("squad2", asked.data, asked.out)
    train, dev = (
        {article["title"] for article in json.loads((asked.out / f"squad2-{split}.json").read_text())["data"]}
        for split in ("train", "dev")
    )
    assert train | dev == {str(number) for number in range(8)}
    assert not train & dev
    assert len(dev) == 2


def run_of(score: float, rate: float = 1e-4, collapsed: str | None = None) -> dict[str, Any]:
    return {
        "task": "cola",
        "seed": 1,
        "main_metric": "matthews",
        "scores": {"dev": {"matthews": score, "accuracy": 2 * score}},
        "learning_rate": rate,
        "collapsed": collapsed,
        "attempts": [],
        "intervals": {},
    }


def test_the_median_is_of_all_seeds_with_that_of_the_sound_ones_next_to_it() -> None:
    job = task_results.Job("cola", 5, seeds=3)
    runs = [run_of(0.0, 2.5e-5, "all alike"), run_of(6.0), run_of(4.0, 5e-5)]
    summaries = {("cola", "direct"): summarize(runs), ("cola", "via"): summarize([run_of(8.0), run_of(9.0)])}
    row = task_results.row_of(job, summaries)
    assert (row["median"], row["lowest"], row["highest"]) == (4.0, 0.0, 6.0)
    assert (row["num_collapsed"], row["median_without_collapsed"]) == (1, 5.0)
    assert row["median_via"] == 8.5
    sound = task_results.row_of(job, {("cola", "direct"): summarize(runs[1:])})
    assert (sound["num_collapsed"], sound["median_without_collapsed"], sound["median_via"]) == (0, None, None)
    assert [task_results.written(sound[name]) for name in ("median", "num_collapsed", "median_via")] == ["5.0", "0", ""]


def test_the_compact_metrics_keep_every_evaluation_and_the_skipped_steps(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"kind": "train", "step": step, "loss": 1 / step, "skipped": step // 90} for step in range(1, 101)
    ]
    records.insert(50, {"kind": "evaluation", "step": 50, "accuracy": 80.0, "seconds": 3.0})
    del records[3]["loss"]  # all of its steps were skipped
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = task_results.compact(tmp_path / "metrics.jsonl")
    assert found["evaluations"] == [{"step": 50, "accuracy": 80.0}]
    assert found["skipped"] == 1
    assert len(found["steps"]) == len(found["loss"]) <= 2 * task_results.CURVE_POINTS
    assert found["loss"][0] == 1.0


def test_all_places_that_a_jobs_seeds_were_on_are_told(tmp_path: Path) -> None:
    here = {"device": "1 x Abacus", "precision": "fp32", "torch": "2.11", "command": "openalbert --data /home/me/glue"}
    for number, moves in enumerate(([], [], [{"device": "1 x Slide rule", "precision": "fp32", "torch": "2.11"}])):
        folder = tmp_path / f"seed-{number}"
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps(run_of(4.0)))
        (folder / "run_info.json").write_text(json.dumps({**here, "moves": moves}))
        (folder / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1, "loss": 2.0, "skipped": 2}))
    outcome = task_results.read(tmp_path)
    assert outcome is not None
    assert outcome["places"] == ["1 x Abacus, fp32, torch 2.11", "1 x Abacus, then 1 x Slide rule, fp32, torch 2.11"]
    assert outcome["facts"]["command"] == "openalbert --data glue"
    assert [run["skipped_steps"] for run in outcome["runs"]] == [2, 2, 2]


def test_further_scores_are_all_but_the_main_one() -> None:
    lines = task_results.further_scores({("cola", "direct"): summarize([run_of(4.0), run_of(6.0)])})
    assert lines[2:] == ["| cola | dev | accuracy | 10.0 |  |"]
