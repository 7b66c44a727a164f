"""How a run is judged while it learns: nothing is predicted twice with the same weights."""

from pathlib import Path
from typing import Any

import pytest
from tests.tasks.made_lessons import learn, lesson, records

from openalbert.tasks import scoring
from openalbert.tasks.predict import predict

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
