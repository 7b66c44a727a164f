"""Several seeds: runs of their own on the same examples, and what they come to."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.finetuning.made_lessons import command, learned, lesson, weights
from tests.report.parsed_page import Page

from openalbert import cli
from openalbert.finetuning import finetune
from openalbert.finetuning.early_stopping import EarlyStopping
from openalbert.finetuning.seeds import seeds_sentence, seeds_table, summarize
from openalbert.report.model_card import one_line

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
    load_data = finetune.load_data
    monkeypatch.setattr(finetune, "load_data", lambda settings: gathered.append(1) or load_data(settings))  # type: ignore[func-returns-value]
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
    card = (out / "model" / "README.md").read_text(encoding="utf-8")
    assert f"This is the model of seed {best}. {one_line(seeds_sentence(three))}\n\n## Usage" in card


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
    assert "started with other training examples" in capsys.readouterr().err
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


def test_seeds_are_not_mixed_with_a_single_run(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    cli.main(command(tiny, "classification", file, out, "--steps 2"))
    before = (out / "scores.json").read_bytes()
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "classification", file, out, "--steps 2 --seeds 2"))
    assert "holds a single run: give several seeds another --out, or --fresh" in capsys.readouterr().err
    assert (out / "scores.json").read_bytes() == before
    cli.main(command(tiny, "classification", file, out, "--steps 2 --seeds 2 --fresh"))
    assert not (out / "scores.json").exists()


def test_the_plain_median_of_all_runs_is_reported_with_the_collapsed_and_the_median_without_them() -> None:
    accuracies = [71.0, 69.5, 72.5, 47.3, 70.0]
    runs = [result(seed, accuracy) for seed, accuracy in enumerate(accuracies, 1)]
    runs[3] = result(4, 47.3, collapsed="100 % of the predictions are 'entailment'", attempts=2)
    runs[1] = result(2, 69.5, attempts=1)
    summary = summarize(runs)
    figures = summary["metrics"]["dev"]["accuracy"]
    assert figures["median"] == 70.0
    assert figures["mean"] == pytest.approx(sum(accuracies) / 5)
    assert figures["spread"] == pytest.approx(statistics.stdev(accuracies))
    assert (figures["lowest"], figures["highest"]) == (47.3, 72.5)
    del accuracies[3]
    without = summary["metrics_without_collapsed"]["dev"]["accuracy"]
    assert without["median"] == 70.5
    assert without["spread"] == pytest.approx(statistics.stdev(accuracies))
    assert (summary["num_collapsed"], summary["num_retried"], summary["best_seed"]) == (1, 2, 3)
    lines = seeds_table(summary).splitlines()
    assert lines[0].split() == ["run", "rate", "step", "accuracy", "f1"]
    assert lines[2].endswith("collapsed once, tried again at a lower rate")
    assert lines[4].endswith("collapsed")
    assert lines[6].split() == ["median", "70.00", "35.00", *"of all 5 runs, 1 of which collapsed".split()]
    assert lines[7].split() == ["mean", "66.06", "33.03"]
    assert lines[9].split() == ["median", "70.50", "35.25", *"of the 4 that did not collapse".split()]
    assert summary["runs"] == runs
    told = (
        "The median of 5 seeds on dev is accuracy 70.00, f1 35.00; 1 of 5 collapsed, and the median of the others is "
    )
    assert seeds_sentence(summary) == told + "accuracy 70.50, f1 35.25."


def test_one_run_that_did_not_collapse_has_no_spread() -> None:
    summary = summarize([result(1, 72.5), result(2, 50.0, collapsed="all the same")])
    assert summary["metrics_without_collapsed"]["dev"]["accuracy"]["spread"] is None
    assert summary["metrics"]["dev"]["accuracy"]["median"] == 61.25
    lines = seeds_table(summary).splitlines()
    assert lines[4].split() == ["mean", "61.25", "30.62"]
    assert lines[6].split()[:3] == ["median", "72.50", "36.25"]


def test_of_seeds_with_equal_scores_the_one_with_the_higher_macro_f1_is_the_best() -> None:
    runs = [
        result(seed, 94.9) | {"ranking": [94.9, macro_f1, -0.2]} for seed, macro_f1 in ((1, 48.7), (2, 80.7), (3, 80.6))
    ]
    assert summarize(runs)["best_seed"] == 2


def test_a_run_that_collapsed_is_never_the_best_however_it_scores() -> None:
    runs = [result(1, 60.0), result(2, 70.0, collapsed="all the same"), result(3, 50.0)]
    assert summarize(runs)["best_seed"] == 1


def test_where_all_runs_collapsed_there_is_no_result_and_no_best() -> None:
    summary = summarize([result(seed, 50.0 + seed, collapsed="all the same") for seed in (1, 2, 3)])
    assert (summary["best_seed"], summary["metrics"], summary["num_collapsed"]) == (None, {}, 3)
    lines = seeds_table(summary).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["run", "seed", "seed", "seed"]
    assert lines[4:] == ["all runs collapsed: there is no result"]


def test_seeds_that_all_collapsed_leave_a_model_but_no_best(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EarlyStopping, "describe_collapse", lambda *_: "made to")
    summary = several(tiny, lesson("classification", tmp_path), tmp_path / "runs", "--seeds 2 --retries 0")
    assert summary["best_seed"] is None
    said = capsys.readouterr()
    assert f"all runs collapsed: there is no result; {tmp_path / 'runs' / 'model'} is of seed " in said.err
    assert "the best" not in said.err
    assert said.out.endswith("all runs collapsed: there is no result\n")
    assert (tmp_path / "runs" / "model" / "config.json").exists()
    text = (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    assert "<b>median</b>" not in text
    page = Page(text)
    assert "All runs collapsed: there is no result." in page.text
    assert "The best is" not in page.text


def test_fewer_seeds_than_before_are_all_that_is_reported_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "runs"
    words = "--steps 2 --seeds "
    for seeds in (3, 2, 1):
        cli.main(command(tiny, "classification", file, out, f"{words}{seeds}"))
        said = capsys.readouterr().err
        expected = list(range(1, seeds + 1))
        assert [run["seed"] for run in json.loads((out / "seeds.json").read_text())["runs"]] == expected
        page = Page((out / "report.html").read_text(encoding="utf-8"))
        assert page.data["runs"] == [f"seed-{number}" for number in expected]
        beyond = f"{out / 'seed-3'} is of an earlier call: it is kept, but not counted with --seeds {seeds}"
        assert (beyond in said) == (seeds < 3)
    assert (out / "seed-3" / "model").exists()
    assert not (out / "scores.json").exists()
