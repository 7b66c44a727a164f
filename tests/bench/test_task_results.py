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
