"""A run that has collapsed is told from one that learns, one that is short, and one that does badly."""

import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.finetuning.made_lessons import command, learn, learned, lesson, records, weights
from tests.finetuning.made_sequences import made_sequences

from openalbert import cli
from openalbert.finetuning.collapse_detection import baseline_loss, describe_collapse
from openalbert.finetuning.run import FinetuningRun
from openalbert.tasks.task import Answer, ChoiceExample, Example, Kind, QuestionExample, Sequences, Task, TextExample
from openalbert.train.metrics_log import MetricsLog


def task(kind: Kind) -> Task:
    def nothing(*_: object) -> Any:
        raise AssertionError

    return Task("made", kind, ("no", "yes") if "l" in kind else (), ("dev",), nothing, nothing, "accuracy")


def texts(labels: list[Any]) -> list[Example]:
    return [TextExample(str(number), "text", None, label) for number, label in enumerate(labels)]


def test_the_baseline_is_the_loss_of_the_best_guess_without_the_text() -> None:
    sequences = made_sequences({"classification": 3}, 50)
    shares = np.bincount(sequences.targets["classification"]) / 50
    assert math.isclose(baseline_loss(sequences), -sum(share * math.log(share) for share in shares))
    sequences = made_sequences({"regression": 1}, 50)
    values = sequences.targets["regression"]
    assert math.isclose(baseline_loss(sequences), float(((values - values.mean()) ** 2).mean()), rel_tol=1e-6)
    assert math.isclose(baseline_loss(made_sequences({"multiple_choice": 1}, 30, (4,))), math.log(4))
    sequences = made_sequences({"multi_label": 2}, 50)
    by_class = [
        -sum(s * math.log(s) for s in (share, 1 - share)) for share in sequences.targets["multi_label"].mean(0).tolist()
    ]
    assert math.isclose(baseline_loss(sequences), sum(by_class) / 2, rel_tol=1e-6)
    sequences = made_sequences({"span": 2, "answerability": 1}, 50, lengths=(20, 20))
    share = float(sequences.targets["answerability"].mean())
    half = -0.5 * (share * math.log(share) + (1 - share) * math.log(1 - share))
    sequences.targets["span"][:10] = 0
    empty = int((sequences.targets["span"] == 0).all(1).sum()) / 50
    spans = -empty * math.log(empty) - (1 - empty) * math.log((1 - empty) / 20)
    assert math.isclose(baseline_loss(sequences), spans + half, rel_tol=1e-6)
    one_class = Sequences(
        sequences.ids,
        sequences.starts,
        sequences.second,
        sequences.example,
        {"classification": np.zeros(50, int)},
        50,
        0,
    )
    assert baseline_loss(one_class) == 0


@pytest.mark.parametrize(
    ("kind", "examples", "same", "different", "words"),
    [
        ("classification", texts([0, 1] * 50), [1] * 100, [0, 1] * 50, "100 % of the predictions are 'yes'"),
        ("multi_label", texts([(0,), (1,)] * 50), [(0, 1)] * 100, [(0,), ()] * 50, "are 'no', 'yes'"),
        ("multi_label", texts([(0,), (1,)] * 50), [()] * 100, [(0,), ()] * 50, "are no label at all"),
        ("regression", texts([0.0, 5.0] * 50), [2.4, 2.5] * 50, [1.0, 4.0] * 50, "the predictions spread by 0.05 only"),
        (
            "multiple_choice",
            [ChoiceExample(str(n), "", "?", ("a", "b", "c", "d"), n % 4) for n in range(100)],
            [0] * 100,
            [n % 4 if n % 2 else 0 for n in range(100)],
            "25.0 % of the choices are right, by chance it would be 25.0 %",
        ),
        (
            "question_answering",
            [QuestionExample(str(n), "a b", "?", (Answer("a", 0),) if n % 2 else ()) for n in range(100)],
            [""] * 100,
            ["", "a"] * 50,
            'are "no answer"',
        ),
    ],
)
def test_a_collapse_is_a_loss_that_is_stuck_and_predictions_that_are_all_the_same(
    kind: Kind, examples: list[Example], same: list[object], different: list[object], words: str
) -> None:
    stuck, fallen = [0.69] * 200, [0.69] * 100 + [0.4] * 100
    reason = describe_collapse(task(kind), 0.693, stuck, examples, same)
    assert reason is not None
    assert words in reason
    assert "0.690 is no better than that of label frequencies (0.693)" in reason
    assert describe_collapse(task(kind), 0.693, fallen, examples, same) is None
    assert describe_collapse(task(kind), 0.693, stuck, examples, different) is None
    assert describe_collapse(task(kind), 0.693, [math.nan] * 200, examples, same) is not None
    # Slow, but under the baseline beyond all noise; and a few steps by chance far under it, which is no better.
    assert describe_collapse(task(kind), 0.693, [0.67, 0.68] * 100, examples, same) is None
    assert describe_collapse(task(kind), 0.693, [0.2, 1.15] * 100, examples, same) is not None


def test_nothing_collapses_where_all_examples_to_score_on_are_of_one_class() -> None:
    assert describe_collapse(task("classification"), 0.693, [0.69] * 200, texts([1] * 100), [1] * 100) is None


def test_a_run_at_a_ruinous_rate_is_tried_again_at_half_of_it_and_says_so(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 110 --evaluate-every 55 --optimizer.learning-rate 0.1 --retries 4 --optimizer.clip-norm 100"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    tried = [attempt["learning_rate"] for attempt in scores["attempts"]]
    assert len(tried) >= 1
    assert tried == [0.1 * 0.5**number for number in range(len(tried))]
    assert scores["learning_rate"] == 0.1 * 0.5 ** len(tried)
    assert all(attempt["step"] == 110 for attempt in scores["attempts"])
    assert [event["what"] for event in records(tmp_path / "run", "event")].count("collapsed") == len(tried)
    assert "Tried again with learning rate 0.05" in capsys.readouterr().err


def test_a_run_that_collapses_to_the_last_attempt_is_no_result(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 120 --evaluate-every 60 --patience None --retries 1 "
    words += "--optimizer.learning-rate 3 --optimizer.clip-norm 100"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert len(scores["attempts"]) == 1
    assert "of the predictions are" in scores["collapsed"] or "no finite number" in scores["collapsed"]
    assert scores["steps"] == 120
    assert "its scores are no result" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while it is tried again", "before the old checkpoints are gone"])
def test_a_run_that_is_stopped_between_its_attempts_ends_as_if_it_had_not_been(
    moment: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 120 --evaluate-every 60 --patience None --retries 1 --log-every 10 --save-every 20 "
    words += "--optimizer.learning-rate 3 --optimizer.clip-norm 100"
    whole = learn(tiny, "classification", file, tmp_path / "whole", words)
    assert len(whole["attempts"]) == 1
    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        if moment == "while it is tried again":
            record = MetricsLog.record
            seen: list[str] = []

            def stopping(self: MetricsLog, values: dict[str, Any]) -> None:
                record(self, values)
                seen.append(values.get("what", ""))
                if "collapsed" in seen and values["kind"] == "train" and values["step"] == 50:
                    signal.raise_signal(signal.SIGTERM)

            patch.setattr(MetricsLog, "record", stopping)
        else:

            def killed(_: FinetuningRun) -> None:
                raise KeyboardInterrupt

            patch.setattr(FinetuningRun, "_remove_checkpoints", killed)
        with pytest.raises(SystemExit):
            cli.main(command(tiny, "classification", file, out, words))
    assert learn(tiny, "classification", file, out, words) == whole
    assert learned(out) == learned(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(out)[name]), name
