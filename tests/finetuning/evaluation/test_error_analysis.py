"""The error analysis counts as scikit-learn does, lists the surest mistakes first, and marks gold and predicted."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from tests.tasks.made_tasks import CLASSES, PASSAGE, made_task

from openalbert.errors import UserError
from openalbert.finetuning.data import encode_split
from openalbert.finetuning.encode import encode
from openalbert.finetuning.evaluation.error_analysis import MAX_MISTAKES, MAX_SHOWN, _cropped, analyze_errors
from openalbert.finetuning.evaluation.split import evaluate_outputs
from openalbert.finetuning.predict import Outputs, softmax
from openalbert.finetuning.question_answering.span_decoding import best_answers
from openalbert.report.error_analysis import (
    ERROR_ANALYSIS,
    ErrorAnalysis,
    Mark,
    read_error_analyses,
    write_error_analyses,
)
from openalbert.tasks.task import Answer, ChoiceExample, Example, Kind, QuestionExample, Reading, TextExample
from openalbert.text.tokenizer import Tokenizer


def analyzed(kind: Kind, examples: list[Example], logits: dict[str, np.ndarray], tokenizer: Tokenizer) -> ErrorAnalysis:
    task = made_task(kind, examples)
    data = encode_split(task, "dev", Reading(tuple(examples)), tokenizer, max_length=64)
    return analyze_errors(evaluate_outputs(task, data, Outputs(logits), null_threshold=0.0))


def test_classes_are_counted_as_scikit_learn_counts_them(small: Tokenizer) -> None:
    dice = np.random.default_rng(0)
    gold = dice.integers(0, 3, 200)
    scores = dice.normal(size=(200, 3)).astype(np.float32) + 1.5 * np.eye(3, dtype=np.float32)[gold]
    examples: list[Example] = [TextExample(str(n), f"text {n}", None, int(label)) for n, label in enumerate(gold)]
    analyses = analyzed("classification", examples, {"classification": scores}, small)
    predicted = scores.argmax(1)
    assert (np.array(analyses.confusion) == confusion_matrix(gold, predicted)).all()
    for figure, expected in zip(
        ("precision", "recall", "f1"), precision_recall_fscore_support(gold, predicted)[:3], strict=True
    ):
        assert [part.metrics[figure] for part in analyses.groups] == pytest.approx(100 * expected)
    assert [part.name for part in analyses.groups] == list(CLASSES)
    assert analyses.num_mistakes == (gold != predicted).sum()
    assert analyses.scores == {"right": pytest.approx(100 * (gold == predicted).mean())}


def test_the_mistakes_that_the_model_was_surest_of_come_first(small: Tokenizer) -> None:
    dice = np.random.default_rng(1)
    gold = dice.integers(0, 3, 300)
    scores = 3 * dice.normal(size=(300, 3)).astype(np.float32)
    examples: list[Example] = [TextExample(str(n), f"text {n}", None, int(label)) for n, label in enumerate(gold)]
    analyses = analyzed("classification", examples, {"classification": scores}, small)
    shares = softmax(scores)
    gaps = shares.max(1) - shares[np.arange(300), gold]
    worst = sorted(range(300), key=lambda number: -gaps[number])[:MAX_MISTAKES]
    assert [int(mistake.id) for mistake in analyses.mistakes] == worst
    first = analyses.mistakes[0]
    assert first.gold == CLASSES[gold[worst[0]]]
    assert first.predicted == CLASSES[scores[worst[0]].argmax()]
    assert f"{first.predicted} {100 * shares[worst[0]].max():.1f} %" in first.confidence
    assert first.texts[0].text == f"text {worst[0]}"


def test_values_are_shown_by_how_far_they_are_off(small: Tokenizer) -> None:
    examples: list[Example] = [TextExample(str(n), "a", "b", float(n)) for n in range(4)]
    scores = np.array([[0.5], [1.0], [-2.0], [3.1]], np.float32)
    analyses = analyzed("regression", examples, {"regression": scores}, small)
    assert [mistake.id for mistake in analyses.mistakes] == ["2", "0", "3", "1"]
    assert analyses.mistakes[0].confidence == "off by −4"
    assert analyses.values[2] == (2.0, -2.0)
    assert analyses.confusion == ()


def test_labels_are_counted_each_by_itself_as_scikit_learn_counts_them(small: Tokenizer) -> None:
    dice = np.random.default_rng(2)
    gold, scores = dice.random((100, 3)) < 0.4, dice.normal(size=(100, 3)).astype(np.float32)
    examples: list[Example] = [
        TextExample(str(n), "a", None, tuple(map(int, np.flatnonzero(row)))) for n, row in enumerate(gold)
    ]
    analyses = analyzed("multi_label", examples, {"multi_label": scores}, small)
    expected = precision_recall_fscore_support(gold, scores > 0)
    for place, figure in enumerate(("precision", "recall", "f1")):
        assert [part.metrics[figure] for part in analyses.groups] == pytest.approx(100 * expected[place])
    assert [part.num_examples for part in analyses.groups] == gold.sum(0).tolist()
    assert analyses.num_mistakes == (gold != (scores > 0)).any(1).sum()


def test_a_wrong_choice_is_shown_with_all_of_its_options(small: Tokenizer) -> None:
    examples: list[Example] = [
        ChoiceExample("a", "He went home.", "Where?", ("home", "out"), 0),
        ChoiceExample("b", "", "What is small?", ("the world", "a hand", "war"), 1),
    ]
    scores = {"multiple_choice": np.array([[0], [1], [0], [3], [0]], np.float32)}
    analyses = analyzed("multiple_choice", examples, scores, small)
    assert analyses.labels == ("A", "B", "C")
    assert analyses.confusion == ((0, 1, 0), (0, 1, 0), (0, 0, 0))
    [mistake] = analyses.mistakes
    assert (mistake.gold, mistake.predicted) == ("A: home", "B: out")
    assert [(shown.name, shown.text) for shown in mistake.texts] == [
        ("passage", "He went home."),
        ("question", "Where?"),
        ("A", "home"),
        ("B", "out"),
    ]
    assert mistake.confidence == "A 26.9 %, B 73.1 %"


def test_a_wrong_answer_is_marked_in_the_passage_beside_the_right_one(small: Tokenizer) -> None:
    examples: list[Example] = [QuestionExample("a", PASSAGE, "When was it?", (Answer("January 1900", 23),))]
    encoding = encode(made_task("question_answering"), examples, small, 64)
    assert encoding.windows is not None
    span = np.zeros((len(encoding.sequences.ids), 2), np.float32)
    place = PASSAGE.index("house")
    span[np.flatnonzero(encoding.windows.begin == place)[0], 0] = 20
    span[np.flatnonzero(encoding.windows.end == place + 5)[-1], 1] = 20
    analyses = analyzed("question_answering", examples, {"span": span}, small)
    [mistake] = analyses.mistakes
    question, passage = mistake.texts
    assert question.text == "When was it?"
    marked = {mark.kind: passage.text[mark.start : mark.end] for mark in passage.marks}
    assert marked == {"gold": "January 1900", "predicted": "house"}
    assert (mistake.gold, mistake.predicted) == ("January 1900", "house")
    assert "“house” 100.0 %" in mistake.confidence
    assert [(part.name, part.num_examples) for part in analyses.groups] == [("when", 1)]


def test_a_question_left_without_an_answer_says_so(small: Tokenizer) -> None:
    examples: list[Example] = [
        QuestionExample("a", PASSAGE, "Who, then?", (Answer("Mr. Smith", 40),)),
        QuestionExample("b", PASSAGE, "How many?", ()),
    ]
    encoding = encode(made_task("question_answering"), examples, small, 64)
    scores = {
        "span": np.zeros((len(encoding.sequences.ids), 2), np.float32),
        "answerability": np.array([[9.0], [-9.0]], np.float32),
    }
    analyses = analyzed("question_answering", examples, scores, small)
    by_id = {mistake.id: mistake for mistake in analyses.mistakes}
    assert by_id["a"].predicted == "(no answer)"
    assert [mark.kind for mark in by_id["a"].texts[1].marks] == ["gold"]
    assert by_id["b"].gold == "(no answer)"
    assert "null score +4.50" in by_id["a"].confidence
    assert analyses.labels == ("an answer", "no answer")
    assert analyses.confusion == ((0, 1), (1, 0))
    answers = best_answers(cast("list[QuestionExample]", examples), encoding, scores)
    assert by_id["b"].predicted == answers[1].candidates[0].text


@given(st.integers(0, 5000), st.integers(1, 60), st.integers(0, 5000), st.integers(1, 60))
def test_a_long_passage_is_shown_around_its_marks_which_still_mark_the_same(a: int, b: int, c: int, d: int) -> None:
    text = " ".join(f"word{number}" for number in range(700))
    marks = (Mark("gold", a % 4000, a % 4000 + b), Mark("predicted", c % 4000, c % 4000 + d))
    [shown] = _cropped("passage", text, marks)
    for before, after in zip(marks, shown.marks, strict=True):
        assert text[before.start : before.end] == shown.text[after.start : after.end]
    assert len(shown.text) <= MAX_SHOWN + 4 or max(a % 4000, c % 4000) - min(a % 4000, c % 4000) > 500


def test_findings_read_back_as_they_were_written(small: Tokenizer, tmp_path: Path) -> None:
    examples: list[Example] = [TextExample("</script>é", 'a "quoted" text\u2028', None, 1)]
    analyses = analyzed("classification", examples, {"classification": np.array([[1, 0, 0]], np.float32)}, small)
    write_error_analyses(tmp_path, [analyses, analyses])
    assert read_error_analyses(tmp_path) == (analyses, analyses)
    assert read_error_analyses(tmp_path / "nowhere") == ()
    (tmp_path / ERROR_ANALYSIS).write_text('{"splits": [{"task": 1}]}')
    with pytest.raises(UserError, match=f"{ERROR_ANALYSIS}: "):
        read_error_analyses(tmp_path)
