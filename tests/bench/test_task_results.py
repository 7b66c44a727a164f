"""bench/task_results.py: every job's command line, and that one begins with another's model only where it should."""

import argparse
import json
import sys
from pathlib import Path

import pytest

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
def test_every_job_has_a_command_and_begins_with_the_right_model(task: str, asked: argparse.Namespace) -> None:
    job = next(job for job in task_results.JOBS if job.task == task)
    plain, scratch = (task_results.command(job, suffix, asked) for suffix in ("", "-scratch"))
    assert "--from" not in plain
    assert set(scratch) - set(plain) == {"--from-scratch", str(asked.out / f"{task}-scratch")}
    if task in task_results.BY_WAY:
        words = task_results.command(job, task_results.by_way(task), asked)
        assert words[words.index("--from") + 1] == str(asked.out / task_results.BY_WAY[task])


def test_no_article_of_squad_2_is_both_learned_from_and_scored_on(asked: argparse.Namespace) -> None:
    task_results.data_words("squad2", asked.data, asked.out)
    train, dev = (
        {article["title"] for article in json.loads((asked.out / f"squad2-{split}.json").read_text())["data"]}
        for split in ("train", "dev")
    )
    assert train | dev == {str(number) for number in range(8)}
    assert not train & dev
    assert len(dev) == 2


def run_of(score: float, rate: float = 1e-4, collapsed: str | None = None) -> dict[str, object]:
    return {
        "main_metric": "matthews",
        "scores": {"dev": {"matthews": score, "accuracy": 2 * score}},
        "learning_rate": rate,
        "collapsed": collapsed,
    }


def test_collapsed_runs_are_counted_but_no_part_of_the_median() -> None:
    job = task_results.Job("cola", 5, seeds=3)
    runs = [run_of(0.0, 2.5e-5, "all alike"), run_of(4.0, 5e-5), run_of(6.0)]
    values = task_results.scores_of(runs, "dev", "matthews")
    assert values == [4.0, 6.0]
    told = task_results._told(values, runs, job)
    assert told == "**5.0** (4.0 to 6.0), 1 collapsed; at 2.5e-05 (1), 5e-05 (1), 0.0001 (1)"
    assert task_results._told([6.0], [run_of(6.0)], task_results.Job("sst2", 2)) == "**6.0**"
    assert task_results.scores_of(runs[:1], "dev", "matthews") == [0.0]


def test_all_places_that_a_jobs_seeds_were_on_are_told(tmp_path: Path) -> None:
    here = {"device": "1 x Abacus", "precision": "fp32", "torch": "2.11", "command": "openalbert --data /home/me/glue"}
    for number, moves in enumerate(([], [], [{"device": "1 x Slide rule", "precision": "fp32", "torch": "2.11"}])):
        folder = tmp_path / f"seed-{number}"
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps(run_of(4.0)))
        (folder / "facts.json").write_text(json.dumps({**here, "moves": moves}))
    outcome = task_results.read(tmp_path)
    assert outcome is not None
    assert outcome["places"] == ["1 x Abacus, fp32, torch 2.11", "1 x Abacus, then 1 x Slide rule, fp32, torch 2.11"]
    assert outcome["facts"]["command"] == "openalbert --data glue"


def test_further_scores_are_all_but_the_main_one() -> None:
    lines = task_results.further_scores({("cola", "ours"): {"runs": [run_of(4.0), run_of(6.0)]}})
    assert lines[2:] == ["| cola | accuracy, dev | 10.0 |  |  |"]
