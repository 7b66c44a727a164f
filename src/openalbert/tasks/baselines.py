"""Baselines of a text task, from the same training examples: the majority, and a linear model of TF-IDF features.

They show what a fine-tuned model buys. Their cost is bounded: a few seconds, however many examples there are.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from openalbert.tasks.task import Example, Task, TextExample, are_pairs

MAX_EXAMPLES = 20_000  # that a linear model is fitted on
MAX_CHARACTERS = 10_000_000
MAX_DECISIONS = 500_000  # examples times classes
MAX_WEIGHTS = 2_000_000  # features times classes
MAX_FEATURES = 100_000
# Chosen on 400, 2,000 and 20,000 examples of SST-2: 10 is within 0.3 points of the best of 1, 10 and 100 on two of the
# three, and 2 points below it on the first.
INVERSE_REGULARIZATION = 10.0
WORDS = r"(?u)\w+"


@dataclass(frozen=True)
class Baseline:
    """A baseline and what it predicts."""

    name: str
    predictions: dict[str, list[object]]
    """By split, as `Task.measure` takes them."""


def has_baselines(task: Task) -> bool:
    """Whether there are baselines for a task: for labels and values of texts."""
    return task.kind in ("classification", "regression", "multi_label")


def fit_baselines(
    task: Task, train: Sequence[Example], scored: Mapping[str, Sequence[Example]], *, balanced: bool = False
) -> tuple[list[Baseline], str]:
    """The baselines' predictions for some splits, and a note on a linear model that saw some of the examples only.

    `balanced` gives every class the same weight.
    """
    examples = _texts(train)
    most = _majority(task, examples)
    name = "mean of the training values" if task.kind == "regression" else "majority"
    baselines = [Baseline(name, {split: [most] * len(some) for split, some in scored.items()})]
    sample = _sample(task, examples)
    num_texts = 2 if are_pairs(sample) else 1
    linear = "ridge regression" if task.kind == "regression" else "logistic regression"
    model = _linear_model(task, sample, num_texts, balanced)
    try:
        with warnings.catch_warnings():
            # Not quite converged after so many iterations; labels that no example of the sample has.
            warnings.simplefilter("ignore")
            model.fit(_columns(sample, num_texts), _targets(task, sample))
    except ValueError as error:
        if "empty vocabulary" in str(error):  # emoji, or a script without letters
            return baselines, ""
        raise
    found = {split: model.predict(_columns(_texts(some), num_texts)) for split, some in scored.items()}
    predictions = {split: [_prediction(task, one) for one in rows] for split, rows in found.items()}
    baselines.append(Baseline(f"TF-IDF + {linear}", predictions))
    note = f"the {linear} learned from {len(sample):,} of {len(examples):,} training examples"
    return baselines, note if len(sample) < len(examples) else ""


def _texts(examples: Sequence[Example]) -> list[TextExample]:
    return [example for example in examples if isinstance(example, TextExample)]


def _majority(task: Task, examples: Sequence[TextExample]) -> object:
    """The most frequent class or set of labels, the first on a tie; of values the mean."""
    if task.kind == "regression":
        return float(np.mean([cast("float", example.label) for example in examples]))
    frequency = Counter(example.label for example in examples)
    return min(frequency, key=lambda label: (-frequency[label], label))


def _sample(task: Task, examples: Sequence[TextExample]) -> Sequence[TextExample]:
    """The examples, or as many of them, drawn at random, as a linear model is fitted on in seconds."""
    characters = sum(len(example.first) + len(example.second or "") for example in examples)
    bounds = (
        MAX_EXAMPLES,
        MAX_DECISIONS // max(1, len(task.labels)),
        MAX_CHARACTERS * len(examples) // max(1, characters),
    )
    number = max(1, min(bounds))
    if number >= len(examples):
        return examples
    chosen = np.sort(np.random.default_rng(0).permutation(len(examples))[:number])
    return [examples[one] for one in chosen]


def _linear_model(task: Task, examples: Sequence[TextExample], num_texts: int, balanced: bool) -> Any:
    """Logistic regression, one for each label of multi_label, or ridge regression.

    Its features are the TF-IDF of words and pairs of neighbouring words; of two texts each has features of its own.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.dummy import DummyClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    most = min(MAX_FEATURES, MAX_WEIGHTS // max(1, len(task.labels))) // num_texts
    tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORDS, max_features=most)
    features = ColumnTransformer([(f"text {n + 1}", tfidf, n) for n in range(num_texts)], sparse_threshold=1.0)
    weights, num_classes = "balanced" if balanced else None, len({example.label for example in examples})
    # liblinear is the faster one for two classes; it does not have more.
    binary = LogisticRegression(C=INVERSE_REGULARIZATION, solver="liblinear", class_weight=weights)
    if task.kind == "regression":
        model: Any = Ridge()
    elif task.kind == "multi_label":
        model = OneVsRestClassifier(binary)
    elif num_classes > 2:
        model = LogisticRegression(C=INVERSE_REGULARIZATION, max_iter=100, tol=1e-3, class_weight=weights)
    else:
        model = binary if num_classes == 2 else DummyClassifier()
    return make_pipeline(features, model)


def _columns(examples: Sequence[TextExample], num_texts: int) -> np.ndarray:
    """The texts, a row for each example."""
    both = [(example.first, example.second or "") for example in examples]
    return np.array(both, object).reshape(-1, 2)[:, :num_texts]


def _targets(task: Task, examples: Sequence[TextExample]) -> np.ndarray:
    labels = [example.label for example in examples]
    if task.kind != "multi_label":
        return np.array(labels, np.float64 if task.kind == "regression" else np.int64)
    flags = np.zeros((len(labels), len(task.labels)), np.int64)
    for row, numbers in zip(flags, labels, strict=True):
        row[list(cast("tuple[int, ...]", numbers))] = 1
    return flags


def _prediction(task: Task, found: Any) -> object:
    """As `Task.measure` takes it."""
    if task.kind == "multi_label":
        return tuple(map(int, np.flatnonzero(found)))
    return float(found) if task.kind == "regression" else int(found)
