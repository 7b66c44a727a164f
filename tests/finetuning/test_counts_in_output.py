"""One is told as one, wherever numbers are told."""

import re
from pathlib import Path

import pytest
from tests.finetuning.made_lessons import learn
from tests.report.parsed_page import Page

from openalbert.formatting import are, counted, percent_of, were
from openalbert.optim.schedule import Budget

PLURAL_OF_ONE = re.compile(r"(?<![\d.,])1 [a-z]{3,}s\b|(?<![\d.,])1 example\b[^.,;]* (?:are|were)\b")


def test_one_is_one_and_more_are_many() -> None:
    assert [counted(number, "example") for number in (0, 1, 2, 1000)] == [
        "0 examples",
        "1 example",
        "2 examples",
        "1,000 examples",
    ]
    assert [percent_of(part, 10_000) for part in (0, 1, 10, 1250)] == ["0.0 %", "under 0.1 %", "0.1 %", "12.5 %"]
    assert (are(1), are(2), were(1), were(0)) == ("is", "are", "was", "were")
    assert [str(Budget(steps=1)), str(Budget(steps=2)), str(Budget(minutes=1.0))] == ["1 step", "2 steps", "1 minute"]


@pytest.mark.parametrize("kind", ["classification", "question_answering"])
def test_a_run_with_one_of_everything_says_so_in_the_singular(
    kind: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "the good time " * 50
    if kind == "classification":
        lines = ["text,label", f"{long},warm", "the old war,cold", "the old time,cold"]
    else:
        lines = [
            "passage,question,answer",
            f"{long}key,what is good,key",
            "the old war,what is it,",
            "the key,what,key",
        ]
    file = tmp_path / "some.csv"
    file.write_text("\n".join(lines) + "\n")
    learn(tiny, kind, file, tmp_path / "run", "--steps 1 --batch-size 1")
    told = capsys.readouterr().err
    assert "1 of 3 examples is held out" in told
    assert "dev: 1 example" in told
    assert not PLURAL_OF_ONE.search(told), PLURAL_OF_ONE.search(told)
    text = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert re.search(r"on (1 example|2 examples): 1 step, ", text)
    assert "Error analysis: dev 1 example: " in text
