"""How a run is judged while it learns: nothing is predicted twice, and nothing said of what cannot be known yet."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.finetuning.made_lessons import learn, lesson, records
from tests.tasks.made_tasks import made_task

from openalbert.finetuning import scoring
from openalbert.finetuning.judge import Judge
from openalbert.finetuning.predict import Outputs, predict
from openalbert.finetuning.scoring import Scored
from openalbert.tasks.task import TextExample

# The rate stays high to the end, so that the best evaluation is not the last.
RISING_AND_FALLING = (
    "--steps 40 --evaluate-every 5 --schedule.kind constant --optimizer.learning-rate 0.01 --patience None"
)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_run_predicts_once_for_each_evaluation_and_no_more(
    keep: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = []

    def counted(*given: Any, **more: Any) -> Any:
        times.append(1)
        return predict(*given, **more)

    monkeypatch.setattr(scoring, "predict", counted)
    file = lesson("classification", tmp_path)
    scores = learn(tiny, "classification", file, tmp_path / "run", f"{RISING_AND_FALLING} --keep {keep}")
    evaluations = records(tmp_path / "run", "evaluation")
    assert len(times) == len(evaluations) == 8
    assert (scores["step"] < scores["steps"]) == (keep == "best")
    [chosen] = [one for one in evaluations if one["step"] == scores["step"]]
    assert scores["scores"]["dev"] == {name: chosen[name] for name in scores["scores"]["dev"]}


def test_a_dozen_steps_are_too_few_to_say_that_nothing_was_learned(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "alike.csv"
    file.write_text("text,label\n" + "the time of people,warm\nthe time of people,cold\n" * 50)
    for steps in (12, 30):
        words = f"--dev {file} --optimizer.learning-rate 0 --retries 0 --evaluate-every 200 --steps {steps}"
        learn(tiny, "classification", file, tmp_path / f"run-{steps}", words)
        told = capsys.readouterr().err
        assert ("100 % of the predictions are" in told) == (steps == 30)


def test_a_score_that_never_left_0_is_told_however_few_the_steps(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A regression's r2 at a rate of 0 is below 0, a classification's accuracy is not."""
    remark = "r2 on dev never rose above 0: it has hardly learned anything; train for longer, or raise"
    for kind in ("regression", "classification"):
        file = lesson(kind, tmp_path)
        learn(tiny, kind, file, tmp_path / kind, "--steps 12 --evaluate-every 6 --optimizer.learning-rate 0")
        assert (remark in capsys.readouterr().err) == (kind == "regression")


@pytest.mark.parametrize(("num_examples", "is_told"), [(4, False), (12, True)])
def test_a_few_predictions_alike_say_nothing(num_examples: int, is_told: bool) -> None:
    examples = tuple(TextExample(str(number), "a text", None, number % 2) for number in range(num_examples))
    task = replace(made_task("classification", examples), labels=("cold", "warm"))
    task_data = SimpleNamespace(task=task, scored={"dev": SimpleNamespace(examples=examples)})
    judge = Judge(cast(Any, task_data), 0.69, cast(Any, None), cast(Any, None))
    alike = Scored({}, [1] * num_examples, Outputs({}), 0.0, 0.69)
    assert judge.sameness(alike, 29) is None
    assert judge.sameness(alike, 30) == ("100 % of the predictions are 'warm'" if is_told else None)
