"""SQuAD 2.0's null threshold: above which null score a question is predicted to have no answer."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float64

from openalbert.errors import UserError
from openalbert.finetuning.question_answering.span_decoding import Answers
from openalbert.formatting import counted
from openalbert.tasks.data.holdout import hold_out
from openalbert.tasks.squad import score_answers
from openalbert.tasks.task import QuestionExample, Reading

FEW_TO_FIT_ON = 50  # questions: with fewer, each one moves the threshold


def fit_threshold(
    examples: Sequence[QuestionExample],
    answers: Sequence[Answers],
    score: Callable[[QuestionExample, str], float],
) -> float:
    """The null threshold at which the mean of `score` is highest on these questions.

    Fit it on questions that no metric is reported on.
    """
    null = np.array([one.null_score for one in answers])
    answered = np.array([score(e, one.text(None)) for e, one in zip(examples, answers, strict=True)])
    silent = np.array([score(example, "") for example in examples])
    return best_cut(null, answered, silent)


def few_questions_note(num_questions: int) -> str:
    """A clause to append to a threshold that was fitted on few questions; empty where they are enough."""
    return "" if num_questions >= FEW_TO_FIT_ON else ", so few that others would have given another threshold"


def best_cut(
    null: Float64[np.ndarray, "n"], answered: Float64[np.ndarray, "n"], silent: Float64[np.ndarray, "n"]
) -> float:
    """The threshold with the highest total: `answered` at or below it and `silent` above it. 0 for no questions."""
    finite = np.isfinite(null)
    null, gain = null[finite], (answered - silent)[finite]
    if not len(null):
        return 0.0
    order = np.argsort(null, kind="stable")
    null, total = null[order], np.concatenate([[0.0], np.cumsum(gain[order])])
    # Equal null scores cannot be separated.
    may_cut = np.concatenate([[True], null[1:] > null[:-1], [True]])
    best = int(np.flatnonzero(may_cut)[np.argmax(total[may_cut])])
    if best == 0:
        return float(null[0]) - 1.0
    if best == len(null):
        return float(null[-1]) + 1.0
    middle = float(null[best - 1] + null[best]) / 2
    return middle if middle < null[best] else float(null[best - 1])


def decide_by_halves(
    questions: Sequence[QuestionExample], answers: Sequence[Answers]
) -> tuple[list[object], float, str]:
    """Predictions of each half with the threshold of the other, the threshold of all, and a note on them."""
    best_on_all = fit_threshold(questions, answers, answer_f1)
    try:
        held_out = {id(example) for example in hold_out(Reading(tuple(questions)), 0.5, 0)[1].examples}
    except UserError:  # questions on one passage only
        return [one.text(0.0) for one in answers], best_on_all, "0.000, for there are too few passages to fit it on"
    is_held = [id(question) in held_out for question in questions]
    fitted, fewest = {}, min(sum(is_held), len(questions) - sum(is_held))
    for held in (False, True):
        half = [number for number, one in enumerate(is_held) if one == held]
        some, their_answers = [questions[number] for number in half], [answers[number] for number in half]
        fitted[not held] = fit_threshold(some, their_answers, answer_f1)
    predictions: list[object] = [one.text(fitted[held]) for one, held in zip(answers, is_held, strict=True)]
    note = f"{fitted[False]:.3f} and {fitted[True]:.3f}, for each half of the passages fitted on the other"
    if few := few_questions_note(fewest):
        note += f": the smaller has {counted(fewest, 'question')}{few}"
    return predictions, best_on_all, note


def answer_f1(question: QuestionExample, answer: str) -> float:
    """F1 of an answer in percent; the empty one is right where there is none."""
    gold = tuple(one.text for one in question.answers)
    return score_answers([gold], [answer], may_have_no_answer=True)["f1"]
