"""Folds are stratified as scikit-learn's are, keep groups together, and depend on the seed and the texts alone."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from openalbert.errors import UserError
from openalbert.tasks.data.holdout import assign_folds, fold_numbers, hold_out_fold, rarest
from openalbert.tasks.task import ChoiceExample, QuestionExample, Reading, TextExample


@given(st.lists(st.integers(0, 4), min_size=10, max_size=120), st.integers(2, 10), st.integers(0, 5))
def test_without_groups_each_fold_has_as_many_of_a_class_as_scikit_learns_give_or_take_one(
    classes: list[int], num_folds: int, seed: int
) -> None:
    folds = assign_folds([str(number) for number in range(len(classes))], classes, num_folds, seed, "file")
    assert set(folds.tolist()) <= set(range(1, num_folds + 1))
    in_all = Counter(folds.tolist())
    assert len(in_all) == num_folds
    assert max(in_all.values()) - min(in_all.values()) <= 1
    for one in set(classes):
        counts = np.bincount(folds[np.array(classes) == one], minlength=num_folds + 1)[1:]
        assert np.ptp(counts) <= 1
    frequent = [one for one, count in Counter(classes).items() if count >= num_folds]
    if len(frequent) == len(set(classes)):  # scikit-learn warns otherwise
        theirs = StratifiedKFold(num_folds).split(np.zeros(len(classes)), classes)
        for one in frequent:
            sizes = sorted(np.count_nonzero(np.array(classes)[test] == one) for _, test in theirs)
            ours = sorted(np.bincount(folds[np.array(classes) == one], minlength=num_folds + 1)[1:].tolist())
            assert sizes == ours
            theirs = StratifiedKFold(num_folds).split(np.zeros(len(classes)), classes)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=20, max_size=80), st.integers(2, 4))
def test_a_group_is_in_one_fold_and_the_order_of_rows_does_not_matter(
    rows: list[tuple[int, int]], num_folds: int
) -> None:
    groups = [f"text {group}" for group, _ in rows]
    strata = [group % 3 for group, _ in rows]
    if len(set(groups)) < num_folds:
        return
    folds = assign_folds(groups, strata, num_folds, 0, "file")
    by_group = dict(zip(groups, folds.tolist(), strict=True))
    assert folds.tolist() == [by_group[group] for group in groups]
    backwards = assign_folds(groups[::-1], strata[::-1], num_folds, 0, "file")
    assert backwards.tolist()[::-1] == folds.tolist()
    assert set(by_group.values()) == set(range(1, num_folds + 1))


def test_the_seed_selects_the_folds() -> None:
    groups = [str(number) for number in range(50)]
    one, same, other = (assign_folds(groups, [0] * 50, 5, seed, "file").tolist() for seed in (0, 0, 1))
    assert one == same != other


def test_more_folds_than_texts_are_refused_with_the_number_that_is_possible() -> None:
    with pytest.raises(UserError, match=r"mails.csv: 3 different texts cannot make 5 folds: give --folds 3 or fewer"):
        assign_folds(["a", "b", "c", "a"], [0] * 4, 5, 0, "mails.csv")


def test_a_set_of_labels_belongs_to_its_rarest_label() -> None:
    assert rarest([(0, 1), (0,), (0, 2), (), (1,)]) == [1, 0, 2, -1, 1]


def test_questions_stay_with_their_article_and_choices_with_their_passage() -> None:
    questions = tuple(QuestionExample(str(n), f"passage {n % 50}", "?", (), f"article {n % 25}") for n in range(200))
    folds = fold_numbers(Reading(questions), 5, 0)
    for article in {one.title for one in questions}:
        assert len({fold for one, fold in zip(questions, folds.tolist(), strict=True) if one.title == article}) == 1
    choices = tuple(ChoiceExample(str(n), f"passage {n // 4}", f"{n}?", ("a", "b"), 0) for n in range(60))
    folds = fold_numbers(Reading(choices), 3, 0)
    assert all(len(set(folds[start : start + 4].tolist())) == 1 for start in range(0, 60, 4))


def test_every_example_is_scored_in_one_fold_and_learned_from_in_the_others() -> None:
    reading = Reading(tuple(TextExample(str(n), f"text {n}", None, n % 2) for n in range(23)))
    scored = []
    for number in range(1, 5):
        train, held = hold_out_fold(reading, (number, 4), 0)
        assert {one.id for one in train.examples} | {one.id for one in held.examples} == {str(n) for n in range(23)}
        assert len(train.examples) + len(held.examples) == 23
        scored += [one.id for one in held.examples]
    assert sorted(scored, key=int) == [str(n) for n in range(23)]
    everything, sample = hold_out_fold(reading, (0, 4), 0)
    assert everything.examples == reading.examples
    assert set(sample.examples) <= set(everything.examples)
