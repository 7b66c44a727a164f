"""From token logits to answers in the passage's own characters, and whether there is an answer at all.

The best span over all windows is the one with the highest sum of its two logits (BERT's SQuAD code). Evidence for no
answer is [CLS] as span and, where the model has one, the answerability head; both are log-odds, and the null score is
their mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

from openalbert.finetuning.encode import Encoding
from openalbert.tasks.task import MAX_ANSWER_TOKENS, QuestionExample

N_BEST = 20
EMPTY_PASSAGE_SCORE = 1e9  # the null score where the passage has no visible text


@dataclass(frozen=True)
class Candidate:
    """A span of the passage that may be the answer."""

    text: str
    start: int
    """Its first character."""
    score: float
    probability: float
    """Among the candidates of this question."""


@dataclass(frozen=True)
class Answers:
    """The answers to one question."""

    candidates: tuple[Candidate, ...]
    """The best first; none where the passage has no visible text."""
    null_score: float
    """The higher, the likelier is no answer."""

    def text(self, null_threshold: float | None) -> str:
        """The best candidate, or "" where the null score is above the threshold; without a threshold, the best one."""
        if not self.candidates or (null_threshold is not None and self.null_score > null_threshold):
            return ""
        return self.candidates[0].text


def best_answers(
    examples: Sequence[QuestionExample],
    encoding: Encoding,
    logits: Mapping[str, np.ndarray],
    *,
    n_best: int = N_BEST,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[Answers]:
    """The answers to each question, from the logits of all its windows."""
    sequences, windows = encoding.sequences, encoding.windows
    assert windows is not None
    borders = np.searchsorted(sequences.example, np.arange(len(examples) + 1))
    found = []
    for number, example in enumerate(examples):
        spans: dict[tuple[int, int], float] = {}
        empty, absent = np.inf, np.inf
        for window in range(borders[number], borders[number + 1]):
            tokens = slice(sequences.starts[window], sequences.starts[window + 1])
            span = logits["span"][tokens]
            empty = min(empty, float(span[0].sum()))
            if "answerability" in logits:
                absent = min(absent, float(logits["answerability"][window, 0]))
            for place, score in _best_spans(
                span,
                windows.begin[tokens],
                windows.end[tokens],
                windows.owned_from[tokens],
                n_best,
                max_answer_tokens,
            ):
                spans[place] = max(score, spans.get(place, -np.inf))
        ranked = sorted(spans.items(), key=lambda item: -item[1])[:n_best]
        found.append(_answers(example, ranked, empty, absent if "answerability" in logits else None))
    return found


def _best_spans(
    span: Float32[np.ndarray, "tokens 2"],
    begin: Int32[np.ndarray, "tokens"],
    end: Int32[np.ndarray, "tokens"],
    owned_from: Int32[np.ndarray, "tokens"],
    n_best: int,
    max_answer_tokens: int,
) -> list[tuple[tuple[int, int], float]]:
    """The best spans of one window, as characters of the passage; first and last token have visible text.

    Every span is scored in one window only, so that those in many windows have no advantage.
    """
    is_visible = begin >= 0
    first = np.where(is_visible, span[:, 0], -np.inf)
    last = np.concatenate([np.where(is_visible, span[:, 1], -np.inf), np.full(max_answer_tokens - 1, -np.inf)])
    sums = first[:, None] + np.lib.stride_tricks.sliding_window_view(last, max_answer_tokens)
    is_owned = np.arange(1, max_answer_tokens + 1) >= owned_from[:, None]
    flat = np.where(is_owned, sums, -np.inf).ravel()
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
        return Answers((), EMPTY_PASSAGE_SCORE)
    scores = np.array([score for _, score in ranked])
    probabilities = np.exp(scores - scores[0])
    probabilities /= probabilities.sum()
    candidates = tuple(
        Candidate(example.passage[start:end], start, score, float(probability))
        for ((start, end), score), probability in zip(ranked, probabilities, strict=True)
    )
    by_span = empty - ranked[0][1]
    return Answers(candidates, by_span if absent is None else (by_span + absent) / 2)
