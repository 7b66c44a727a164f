"""The null threshold: the best cut there is, fitted on questions that are not scored."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.finetuning.made_lessons import learn, lesson
from tests.tasks.made_data import squad_json
from tests.tasks.made_tasks import EXAMPLES, is_right, made_task

from openalbert import cli
from openalbert.finetuning.data import load_data
from openalbert.finetuning.encode import encode
from openalbert.finetuning.question_answering.null_threshold import best_cut, few_questions_note, fit_threshold
from openalbert.finetuning.question_answering.span_decoding import best_answers
from openalbert.finetuning.settings import Finetune
from openalbert.interop.huggingface import TASK
from openalbert.report.error_analysis import read_error_analyses
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.task import QuestionExample
from openalbert.text.tokenizer import Tokenizer

finite = st.floats(-50, 50)


@given(st.lists(st.tuples(finite, st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_no_threshold_does_better_than_the_fitted_one(rows: list[tuple[float, float, float]]) -> None:
    check_against_every_threshold(rows)


@given(st.lists(st.tuples(st.integers(0, 2).map(float), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_questions_with_equal_null_scores_are_answered_all_or_none_by_the_fitted_threshold(
    rows: list[tuple[float, float, float]],
) -> None:
    check_against_every_threshold(rows)


def check_against_every_threshold(rows: list[tuple[float, float, float]]) -> None:
    null, answered, silent = np.array(rows).T

    def total(cut: float) -> float:
        return float(np.where(null > cut, silent, answered).sum())

    fitted = total(best_cut(null, answered, silent))
    tried = [total(cut) for cut in (*null, null.min() - 1, null.max() + 1)]
    assert fitted == pytest.approx(max(tried), abs=1e-9)


def test_a_group_of_equal_null_scores_is_not_split_even_where_splitting_would_score_more() -> None:
    # Answering only the first of the three tied questions would gain 1; all three together lose 1.
    null, silent = np.array([2.0, 2.0, 2.0, 5.0]), np.array([0.0, 1.0, 1.0, 1.0])
    assert best_cut(null, np.array([1.0, 0.0, 0.0, 0.0]), silent) == 1.0  # below all of them: nothing is answered


def test_without_any_finite_null_score_the_threshold_is_zero() -> None:
    assert best_cut(np.array([np.inf, -np.inf]), np.ones(2), np.zeros(2)) == 0.0


def test_a_threshold_is_fitted_by_the_score_of_each_question(small: Tokenizer) -> None:
    examples = list(EXAMPLES["question_answering"])
    encoding = encode(made_task("question_answering"), examples, small, 64)
    assert encoding.windows is not None
    scores = {
        "span": np.zeros((len(encoding.sequences.ids), 2), np.float32),
        "answerability": np.array([[5.0], [6.0], [9.0]], np.float32),
    }
    for number, (first, last) in enumerate(encoding.sequences.targets["span"].tolist()):
        scores["span"][encoding.sequences.starts[number] + first, 0] = 4
        scores["span"][encoding.sequences.starts[number] + last, 1] = 4
    answers = best_answers(examples, encoding, scores)
    threshold = fit_threshold(examples, answers, lambda example, text: float(is_right(example, text)))
    assert [one.text(threshold) for one in answers] == ["January 1900", "Mr. Smith", ""]
    assert [one.null_score for one in answers] == [-1.5, -1.0, 8.5]
    assert threshold == (8.5 - 1.0) / 2


@pytest.mark.parametrize(("num_examples", "is_few"), [(120, True), (1200, False)])
def test_a_threshold_that_few_questions_gave_is_told_as_unsure(
    num_examples: int, is_few: bool, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("question_answering", tmp_path, num_examples, may_have_no_answer=True)
    learn(tiny, "question_answering", file, tmp_path / "run", "--steps 2 --evaluate-every 2")
    told = next(line for line in capsys.readouterr().err.splitlines() if "fit the null threshold" in line)
    assert ("so few that others would have given another threshold" in told) == is_few
    (found,) = read_error_analyses(tmp_path / "run")
    assert ("so few that" in found.null_threshold) == is_few
    # Without a fitted one, evaluation fits its own.
    (tmp_path / "run" / "model" / TASK).unlink()
    dev = lesson("question_answering", tmp_path / "dev", num_examples // 6, 7, may_have_no_answer=True)
    cli.main(["evaluate", str(tmp_path / "run"), "--task", "question_answering", "--dev", str(dev)])
    told = next(line for line in capsys.readouterr().err.splitlines() if "fitted on the other" in line)
    assert ("so few that" in told) == is_few


def test_a_threshold_is_fitted_on_questions_from_many_articles(tiny: Path, tmp_path: Path) -> None:
    """One article may have answers to few of its questions, and the threshold that is best there leaves all silent."""
    paragraphs = squad_json(300, 4, without_answer=True)["data"]
    articles = [
        {"title": f"article {n}", "paragraphs": [one["paragraphs"][0] for one in paragraphs[10 * n : 10 * n + 10]]}
        for n in range(30)
    ]
    files = {split: tmp_path / f"{split}.json" for split in ("train", "dev")}
    for split, chosen in (("train", articles[2:]), ("dev", articles[:2])):
        files[split].write_text(json.dumps({"version": "v2.0", "data": chosen}))
    task_data = load_data(Finetune(str(tiny), "squad2", TaskSource(**files)))
    assert task_data.threshold is not None
    fitted_on = [example for example in task_data.threshold.examples if isinstance(example, QuestionExample)]
    assert len(fitted_on) == 56  # a twentieth
    assert len({example.title for example in fitted_on}) > 7


def test_a_threshold_of_fewer_than_fifty_questions_is_called_unsure() -> None:
    assert "few" in few_questions_note(49)
    assert few_questions_note(50) == ""
