"""Which weights are the best, and when a run has been given long enough."""

import json

from hypothesis import given
from hypothesis import strategies as st

from openalbert.finetuning.standing import Standing


def after(scores: list[float]) -> Standing:
    standing = Standing()
    for step, score in enumerate(scores, 1):
        standing.take(float(score), step)
    return standing


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_the_best_is_the_earliest_of_the_highest(scores: list[float]) -> None:
    standing = after(scores)
    place = scores.index(max(scores))
    assert standing.best == scores[place]
    assert standing.since_best == len(scores) - 1 - place
    assert standing.is_best_at(len(scores)) == (place == len(scores) - 1)
    assert not standing.is_best_at(len(scores) + 1)
    assert Standing(**json.loads(json.dumps(standing.state()))) == standing


def test_a_run_is_out_of_patience_only_once_its_score_has_risen() -> None:
    assert after([50, 60, 60, 59, 58]).is_out_of(3)
    assert not after([50, 60, 60, 59, 58]).is_out_of(4)
    assert not after([50, 60, 60, 59, 58]).is_out_of(None)
    assert not after([50, 50, 50, 49, 50, 50]).is_out_of(3)
    assert after([50, 50, 50, 51, 50, 50, 50]).is_out_of(3)


def test_of_equal_scores_the_one_with_the_higher_tie_breaks_is_the_best() -> None:
    standing = Standing()
    for step, (score, macro_f1, loss) in enumerate([(94.9, 48.7, 0.3), (94.9, 80.7, 0.4), (94.9, 80.7, 0.2)], 1):
        standing.take(score, step, (macro_f1, -loss))
        assert standing.is_best_at(step)
    standing.take(94.9, 4, (80.7, -0.2))
    assert (standing.best_at, standing.best) == (3, 94.9)
    # A tie that was broken is no rise: patience is of the score alone.
    assert standing.since_best == 3
    standing.take(95.0, 5, (0.0, -9.0))
    assert standing.is_best_at(5)
    assert Standing(**json.loads(json.dumps(standing.state()))) == standing
