"""From the scores of tokens to answers in the passage's own characters: the best few, and whether there is one at all.

The best span over all windows is the one with the highest sum of its two scores (BERT's SQuAD code). That there is no
answer is told by [CLS] as span and, where the model has one, by the answerability head; both are log-odds, and the
null score is their mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int32

from openalbert.finetuning.encode import Encoding
from openalbert.tasks.task import MAX_ANSWER_TOKENS, QuestionExample

N_BEST = 20
FEW_TO_FIT_ON = 50  # questions: with fewer, each moves the threshold of the null score
NOTHING_TO_SAY = 1e9  # the null score where the passage has no visible text


@dataclass(frozen=True)
class Candidate:
    """A stretch of the passage that may be the answer."""

    text: str
    start: int
    """Its first character."""
    score: float
    probability: float
    """Its share among the candidates of this question."""


@dataclass(frozen=True)
class Answers:
    """What a model says to one question."""

    candidates: tuple[Candidate, ...]
    """The best first; none where the passage has no visible text."""
    null_score: float
    """The higher, the more it speaks for no answer."""

    def text(self, null_threshold: float | None) -> str:
        """The best candidate, or "" where the null score is above the threshold; without one there is an answer."""
        if not self.candidates or (null_threshold is not None and self.null_score > null_threshold):
            return ""
        return self.candidates[0].text


def best_answers(
    examples: Sequence[QuestionExample],
    encoding: Encoding,
    scores: Mapping[str, np.ndarray],
    *,
    n_best: int = N_BEST,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[Answers]:
    """The answers to each question, from the scores of all of its windows."""
    sequences, windows = encoding.sequences, encoding.windows
    assert windows is not None
    borders = np.searchsorted(sequences.example, np.arange(len(examples) + 1))
    found = []
    for number, example in enumerate(examples):
        spans: dict[tuple[int, int], float] = {}
        empty, absent = np.inf, np.inf
        for window in range(borders[number], borders[number + 1]):
            tokens = slice(sequences.starts[window], sequences.starts[window + 1])
            span = scores["span"][tokens]
            empty = min(empty, float(span[0].sum()))
            if "answerability" in scores:
                absent = min(absent, float(scores["answerability"][window, 0]))
            for place, score in _best_spans(
                span,
                windows.begin[tokens],
                windows.end[tokens],
                windows.own_from[tokens],
                n_best,
                max_answer_tokens,
            ):
                spans[place] = max(score, spans.get(place, -np.inf))
        ranked = sorted(spans.items(), key=lambda item: -item[1])[:n_best]
        found.append(_answers(example, ranked, empty, absent if "answerability" in scores else None))
    return found


def _best_spans(
    span: Float32[np.ndarray, "tokens 2"],
    begin: Int32[np.ndarray, "tokens"],
    end: Int32[np.ndarray, "tokens"],
    own_from: Int32[np.ndarray, "tokens"],
    n_best: int,
    max_answer_tokens: int,
) -> list[tuple[tuple[int, int], float]]:
    """The best spans of one window, as characters of the passage: first and last token have visible text.

    Every span is scored in one window alone, so that those which stand in many have no better chance.
    """
    is_visible = begin >= 0
    first = np.where(is_visible, span[:, 0], -np.inf)
    last = np.concatenate([np.where(is_visible, span[:, 1], -np.inf), np.full(max_answer_tokens - 1, -np.inf)])
    sums = first[:, None] + np.lib.stride_tricks.sliding_window_view(last, max_answer_tokens)
    is_own = np.arange(1, max_answer_tokens + 1) >= own_from[:, None]
    flat = np.where(is_own, sums, -np.inf).ravel()
    few = min(n_best, len(flat))
    best = np.argpartition(-flat, few - 1)[:few]
    best = best[np.isfinite(flat[best])]
    starts, lengths = np.divmod(best, max_answer_tokens)
    return [
        ((int(begin[start]), int(end[start + more])), float(flat[place]))
        for place, start, more in zip(best, starts, lengths, strict=True)
    ]


def _answers(
    example: QuestionExample, ranked: Sequence[tuple[tuple[int, int], float]], empty: float, absent: float | None
) -> Answers:
    if not ranked:
        return Answers((), NOTHING_TO_SAY)
    scores = np.array([score for _, score in ranked])
    shares = np.exp(scores - scores[0])
    shares /= shares.sum()
    candidates = tuple(
        Candidate(example.passage[start:end], start, score, float(share))
        for ((start, end), score), share in zip(ranked, shares, strict=True)
    )
    by_span = empty - ranked[0][1]
    return Answers(candidates, by_span if absent is None else (by_span + absent) / 2)


def fit_threshold(
    examples: Sequence[QuestionExample],
    answers: Sequence[Answers],
    score: Callable[[QuestionExample, str], float],
) -> float:
    """The threshold of the null score at which the mean of `score` is highest on these questions.

    Fit it on questions that nothing is reported on.
    """
    null = np.array([one.null_score for one in answers])
    answered = np.array([score(e, one.text(None)) for e, one in zip(examples, answers, strict=True)])
    silent = np.array([score(example, "") for example in examples])
    return best_cut(null, answered, silent)


def how_sure(num_questions: int) -> str:
    """What to say behind a threshold that was fitted on so many questions: nothing where they are enough."""
    return "" if num_questions >= FEW_TO_FIT_ON else ", so few that others would have given another threshold"


def best_cut(
    null: Float64[np.ndarray, "n"], answered: Float64[np.ndarray, "n"], silent: Float64[np.ndarray, "n"]
) -> float:
    """Where to cut, so that what is answered at or below the cut and silent above it comes to most; 0 for nothing."""
    finite = np.isfinite(null)
    null, gain = null[finite], (answered - silent)[finite]
    if not len(null):
        return 0.0
    order = np.argsort(null, kind="stable")
    null, total = null[order], np.concatenate([[0.0], np.cumsum(gain[order])])
    # Equal null scores cannot be parted.
    may_cut = np.concatenate([[True], null[1:] > null[:-1], [True]])
    best = int(np.flatnonzero(may_cut)[np.argmax(total[may_cut])])
    if best == 0:
        return float(null[0]) - 1.0
    if best == len(null):
        return float(null[-1]) + 1.0
    middle = float(null[best - 1] + null[best]) / 2
    return middle if middle < null[best] else float(null[best - 1])
