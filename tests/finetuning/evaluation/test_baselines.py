"""What a model buys over the baselines: measured once before training, shown everywhere, said plainly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.finetuning.made_lessons import command, lesson
from tests.report.parsed_page import Page
from tests.tasks.made_tasks import made_task

from openalbert import cli
from openalbert.finetuning.evaluation import baselines, intervals
from openalbert.finetuning.evaluation.intervals import paired_error, paired_interval
from openalbert.report.scores import describe_gain, is_worth_it
from openalbert.tasks.task import TextExample


def train(tiny: Path, kind: str, file: Path, out: Path, words: str) -> None:
    line = command(tiny, kind, file, out, words)
    cli.main([word for word in line if word != "--no-baselines"])


def test_baselines_are_logged_first_measured_once_and_shown_on_screen_page_and_card(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 20)
    file, out = lesson("classification", tmp_path, 200), tmp_path / "runs"
    fitted = []
    fit = baselines.fit_baselines
    monkeypatch.setattr(baselines, "fit_baselines", lambda *a, **k: fitted.append(1) or fit(*a, **k))  # type: ignore[func-returns-value]
    train(tiny, "classification", file, out, "--steps 3 --seeds 2")
    said = capsys.readouterr()
    assert said.err.index("baseline on dev, majority: accuracy") < said.err.index("step 3, dev")
    assert said.err.count("baseline on dev, TF-IDF + logistic regression: accuracy") == 1
    assert "the model buys nothing here" in said.out
    train(tiny, "classification", file, out, "--steps 3 --seeds 3")  # a seed more
    assert len(fitted) == 1
    scores = json.loads((out / "seed-1" / "scores.json").read_text())
    assert [row["name"] for row in scores["baselines"]["rows"]] == ["majority", "TF-IDF + logistic regression"]
    majority, linear = (row["scores"]["dev"]["accuracy"] for row in scores["baselines"]["rows"])
    assert scores["gain"]["points"] == pytest.approx(scores["scores"]["dev"]["accuracy"] - max(majority, linear))
    capsys.readouterr()
    lesson("classification", tmp_path, 150, seed=3)
    train(tiny, "classification", file, tmp_path / "single", "--steps 3")
    said = capsys.readouterr()
    assert len(fitted) == 2
    assert "dev, TF-IDF + logistic regression: accuracy" in said.out
    sentence = said.out.splitlines()[-1]
    assert sentence.startswith("On dev the model is ")
    page = Page((tmp_path / "single" / "report.html").read_text(encoding="utf-8"))
    assert "Compared with baselines" in page.text
    assert sentence in page.text
    card = (tmp_path / "single" / "model" / "README.md").read_text(encoding="utf-8")
    assert "| baseline, dev: TF-IDF + logistic regression | " in card
    assert "it buys nothing" in card or "cannot show a gain" in card
    # Another file in the same folder: nothing of the old one is used.
    lesson("classification", tmp_path, 100, seed=4)
    train(tiny, "classification", file, tmp_path / "single", "--steps 3 --fresh")
    assert len(fitted) == 3


def test_a_dry_run_shows_the_baselines_and_leaves_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("regression", tmp_path, 60)
    train(tiny, "regression", file, tmp_path / "run", "--dry-run")
    assert "baseline on dev, TF-IDF + ridge regression: r2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def gain(points: float, interval: tuple[float, float] | None, split: str = "dev") -> dict[str, Any]:
    return {
        "split": split,
        "metric": "accuracy",
        "over": "majority",
        "points": points,
        "interval": interval,
        "num_examples": 40,
    }


@pytest.mark.parametrize(
    ("found", "is_worth", "said"),
    [
        (gain(7.5, (2.5, 12.5)), True, "On dev the model is better than {}: accuracy +7.50 points [+2.50, +12.50]"),
        (
            gain(2.5, (-5.0, 10.0)),
            False,
            "not measurably better than {}: accuracy +2.50 points [−5.00, +10.00]; 40 examples cannot",
        ),
        (gain(-3.0, (-6.0, -1.0)), False, "is worse than {}: accuracy −3.00 points [−6.00, −1.00]; {}"),
        (gain(0.0, None), False, "is no better than {}: accuracy +0.00 points; {}"),
        (gain(0.2, None), True, "On dev the model is better than {}"),
        (gain(5.0, (1.0, 9.0), "cross-validation"), True, "In cross-validation the model is better than {}"),
    ],
)
def test_what_a_model_buys_is_said_plainly(found: dict[str, Any], is_worth: bool, said: str) -> None:
    assert is_worth_it(found) == is_worth
    assert said.format("the baseline majority", "on these 40 examples it buys nothing") in describe_gain(found)
    assert "on this 1 example it buys nothing" in describe_gain(
        {**found, "num_examples": 1, "interval": None, "points": 0.0}
    )


def test_the_interval_of_a_gain_is_of_pairs_and_narrower_than_that_of_independent_scores() -> None:
    task = made_task("classification")
    examples = [TextExample(str(n), "a text", None, n % 3) for n in range(200)]
    dice = np.random.default_rng(0)
    right = np.array([n % 3 for n in range(200)])
    other = np.where(dice.random(200) < 0.3, (right + 1) % 3, right)
    model = np.where(dice.random(200) < 0.2, right, other)  # mends some of the mistakes, makes no new ones
    found = paired_interval(task, examples, model.tolist(), other.tolist(), "right")
    assert found is not None
    difference = 100 * float((model == right).mean() - (other == right).mean())
    assert 0 < found[0] < difference < found[1]
    # A normal interval of the paired differences is about the same.
    each = 100 * ((model == right).astype(float) - (other == right).astype(float))
    reach = 1.96 * float(each.std(ddof=1)) / np.sqrt(200)
    assert found == pytest.approx((difference - reach, difference + reach), abs=1.0)
    assert paired_interval(task, examples, model.tolist(), model.tolist(), "right") is None
    error = paired_error(task, examples, model.tolist(), other.tolist(), "right")
    assert error == pytest.approx(reach / 1.96, rel=0.25)  # of 100 resamples
    assert paired_error(task, examples, model.tolist(), model.tolist(), "right") == 0
