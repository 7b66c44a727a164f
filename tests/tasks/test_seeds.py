"""Several seeds: runs of their own on the same examples, and what they come to."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.made_lessons import command, learned, lesson, weights

from openalbert import cli
from openalbert.tasks import finetune
from openalbert.tasks.seeds import summarize, table

WORDS = "--steps 25 --evaluate-every 25"


def several(tiny: Path, file: Path, out: Path, words: str) -> dict[str, Any]:
    cli.main(command(tiny, "classification", file, out, f"{WORDS} {words}"))
    summary: dict[str, Any] = json.loads((out / "seeds.json").read_text())
    return summary


def test_seeds_are_runs_of_their_own_that_share_tokenized_data_and_more_can_be_added(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "runs"
    gathered = []
    gather = finetune.gather
    monkeypatch.setattr(finetune, "gather", lambda settings: gathered.append(1) or gather(settings))  # type: ignore[func-returns-value]
    two = several(tiny, file, out, "--seeds 2 --seed 5")
    assert len(gathered) == 1
    first_seed = (out / "seed-5" / "metrics.jsonl").read_bytes()
    three = several(tiny, file, out, "--seeds 3 --seed 5")
    said = capsys.readouterr()
    assert "seed-5: this run is done" in said.err
    assert (out / "seed-5" / "metrics.jsonl").read_bytes() == first_seed
    assert [run["seed"] for run in three["runs"]] == [5, 6, 7]
    assert three["runs"][:2] == two["runs"]
    assert learned(out / "seed-5") != learned(out / "seed-6")
    for line in ("seed 7", "median", "mean", "spread"):
        assert line in said.out
    # One run alone is the same as with others beside it.
    cli.main(command(tiny, "classification", file, tmp_path / "alone", f"{WORDS} --seed 6"))
    assert learned(tmp_path / "alone") == learned(out / "seed-6")
    best = three["best_seed"]
    for name, tensor in weights(out).items():
        assert torch.equal(tensor, weights(out / f"seed-{best}")[name])


def test_seeds_are_not_added_to_those_of_another_file(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "runs"
    words = "--steps 2 --seeds "
    cli.main(command(tiny, "classification", file, out, words + "2"))
    before = (out / "seeds.json").read_bytes()
    lesson("classification", tmp_path, seed=1)
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "classification", file, out, words + "3"))
    assert "began with other training examples" in capsys.readouterr().err
    assert (out / "seeds.json").read_bytes() == before
    assert not (out / "seed-3").exists()


def result(seed: int, accuracy: float, collapsed: str | None = None, attempts: int = 0) -> dict[str, Any]:
    return {
        "task": "rte",
        "main_metric": "accuracy",
        "seed": seed,
        "learning_rate": 3e-5 * 0.5**attempts,
        "step": 100 * seed,
        "steps": 800,
        "scores": {"dev": {"accuracy": accuracy, "f1": accuracy / 2}, "other": {"accuracy": 1.0}},
        "collapsed": collapsed,
        "attempts": [{"learning_rate": 3e-5, "step": 400, "reason": "stuck"}] * attempts,
    }


def test_median_mean_and_spread_are_those_of_the_runs_and_the_table_names_the_collapsed() -> None:
    accuracies = [71.0, 69.5, 72.5, 47.3, 70.0]
    runs = [result(seed, accuracy) for seed, accuracy in enumerate(accuracies, 1)]
    runs[3] = result(4, 47.3, collapsed="100 % of the predictions are 'entailment'", attempts=2)
    runs[1] = result(2, 69.5, attempts=1)
    summary = summarize(runs)
    figures = summary["figures"]["dev"]["accuracy"]
    assert figures["median"] == 70.0
    assert figures["mean"] == pytest.approx(sum(accuracies) / 5)
    assert figures["spread"] == pytest.approx(statistics.stdev(accuracies))
    assert (figures["lowest"], figures["highest"]) == (47.3, 72.5)
    assert (summary["num_collapsed"], summary["num_retried"], summary["best_seed"]) == (1, 2, 3)
    lines = table(summary).splitlines()
    assert lines[0].split() == ["run", "rate", "step", "accuracy", "f1"]
    assert lines[2].endswith("collapsed once, tried again at a lower rate")
    assert lines[4].endswith("collapsed")
    assert lines[6].split() == ["median", "70.00", "35.00"]
