"""Baselines of text tasks are scikit-learn's, predict what they should, and cost seconds on any data."""

import random
import time

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from tests.tasks.made_tasks import made_task

from openalbert.tasks import baselines
from openalbert.tasks.baselines import fit_baselines, has_baselines
from openalbert.tasks.task import Kind, TextExample

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu".split()
TELLING = {0: "bad", 1: "good", 2: "odd"}


def texts(count: int, kind: Kind = "classification", seed: int = 0, pairs: bool = False) -> list[TextExample]:
    """The class depends on a word, of pairs by a word that both texts may have and counts in the second only."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        label = dice.choice((0, 1, 1, 2))
        words = [*dice.choices(WORDS, k=6), TELLING[label]]
        dice.shuffle(words)
        first, second = " ".join(words), None
        if pairs:
            first, second = f"{TELLING[dice.randrange(3)]} {dice.choice(WORDS)}", first
        labels = {"classification": label, "regression": label * 2.5, "multi_label": ((), (0,), (0, 2))[label]}
        made.append(TextExample(str(number), first, second, labels[kind]))
    return made


def both(kind: Kind, train: list[TextExample], dev: list[TextExample]) -> tuple[list[object], list[object], str]:
    (majority, linear), note = fit_baselines(made_task(kind), train, {"dev": dev})
    return majority.predictions["dev"], linear.predictions["dev"], note


def test_the_baselines_of_classes_are_scikit_learns() -> None:
    train, dev = texts(120), texts(60, seed=1)
    majority, linear, note = both("classification", train, dev)
    x, gold = [one.first for one in train], [one.label for one in train]
    others = [one.first for one in dev]
    assert majority == DummyClassifier(strategy="most_frequent").fit(x, gold).predict(others).tolist()
    tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+")
    expected = LogisticRegression(C=10).fit(tfidf.fit_transform(x), gold).predict(tfidf.transform(others))
    assert linear == expected.tolist() == [one.label for one in dev]
    assert note == ""


def test_the_baselines_of_values_are_the_mean_and_ridge_regression() -> None:
    train, dev = texts(120, "regression"), texts(40, "regression", seed=1)
    mean, linear, _ = both("regression", train, dev)
    x, gold, others = [one.first for one in train], [one.label for one in train], [one.first for one in dev]
    assert mean == pytest.approx(DummyRegressor().fit(x, gold).predict(others).tolist())
    tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+")
    expected = Ridge().fit(tfidf.fit_transform(x), gold).predict(tfidf.transform(others))
    assert linear == pytest.approx(expected.tolist(), abs=1e-3)


def test_the_baselines_of_label_sets_are_the_most_frequent_set_and_a_regression_for_each_label() -> None:
    train, dev = texts(200, "multi_label"), texts(40, "multi_label", seed=1)
    majority, linear, _ = both("multi_label", train, dev)
    assert set(majority) == {(0,)}
    assert linear == [one.label for one in dev]  # the second label never occurs, and is never predicted


def test_words_of_the_first_and_of_the_second_text_of_a_pair_are_different_features() -> None:
    train, dev = texts(300, pairs=True), texts(60, seed=1, pairs=True)
    _, linear, _ = both("classification", train, dev)
    assert np.mean([given == one.label for given, one in zip(linear, dev, strict=True)]) > 0.95


def test_balanced_weights_make_a_rare_class_predicted_more_often() -> None:
    dice = random.Random(0)
    train = []
    for number in range(400):
        is_rare = number % 20 == 0
        words = dice.choices(WORDS, k=4) + ["rare"] * (is_rare and dice.random() < 0.5)
        train.append(TextExample(str(number), " ".join(words), None, int(is_rare)))
    task = made_task("classification")
    counts = []
    for balanced in (False, True):
        (_, linear), _ = fit_baselines(task, train, {"train": train}, balanced=balanced)
        counts.append(sum(map(int, linear.predictions["train"])))  # type: ignore[call-overload]
    assert counts[0] < counts[1]


def test_much_data_is_sampled_and_the_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_EXAMPLES", 100)
    _, linear, note = both("classification", texts(400), dev := texts(50, seed=1))
    assert note == "the logistic regression learned from 100 of 400 training examples"
    assert linear == [one.label for one in dev]


def test_long_texts_and_many_classes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    train = texts(400)
    characters = sum(len(one.first) for one in train)
    monkeypatch.setattr(baselines, "MAX_CHARACTERS", characters // 4)
    assert both("classification", train, train[:5])[2].startswith("the logistic regression learned from 100 of")
    monkeypatch.setattr(baselines, "MAX_CHARACTERS", 10**9)
    monkeypatch.setattr(baselines, "MAX_DECISIONS", 3 * 50)
    assert both("classification", train, train[:5])[2].startswith("the logistic regression learned from 50 of")


def test_texts_without_a_word_have_the_majority_alone() -> None:
    train = [TextExample(str(n), "!? …"[: n % 4], None, n % 2) for n in range(20)]
    found, note = fit_baselines(made_task("classification"), train, {"dev": train})
    assert [one.name for one in found] == ["majority"]
    assert note == ""


def test_a_sample_of_one_class_predicts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_EXAMPLES", 1)
    _, linear, _ = both("classification", texts(40), texts(5))
    assert len(set(linear)) == 1


def test_choices_and_questions_have_no_baselines() -> None:
    kinds: tuple[Kind, ...] = ("classification", "regression", "multi_label", "multiple_choice", "question_answering")
    assert [has_baselines(made_task(kind)) for kind in kinds] == [True, True, True, False, False]


@pytest.mark.slow
def test_a_large_file_of_many_classes_takes_seconds() -> None:
    dice = random.Random(0)
    vocabulary = [f"word{number}" for number in range(30_000)]
    labels = tuple(map(str, range(100)))
    train = []
    for number in range(60_000):
        label = dice.randrange(100)
        train.append(
            TextExample(str(number), " ".join([*dice.choices(vocabulary, k=40), f"class{label}"]), None, label)
        )
    task = made_task("classification")
    started = time.process_time()
    (_, linear), _ = fit_baselines(type(task)(**{**vars(task), "labels": labels}), train, {"dev": train[:500]})
    assert time.process_time() - started < 60
    right = [given == one.label for given, one in zip(linear.predictions["dev"], train, strict=False)]
    assert np.mean(right) > 0.5
