"""Baselines of a text task, from the same training examples: the majority, and a linear model of TF-IDF features.

They show what a fine-tuned model buys. Their cost is bounded: a few seconds, however many examples there are.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from openalbert.tasks.task import Example, Task, TextExample, are_pairs

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

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
    features = _Features(task, sample)
    if not features.have_words:  # emoji, or a script without letters
        return baselines, ""
    linear = "ridge regression" if task.kind == "regression" else "logistic regression"
    predict = _Linear(task, features, sample, balanced)
    baselines.append(Baseline(f"TF-IDF + {linear}", {split: predict(_texts(some)) for split, some in scored.items()}))
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


class _Features:
    """TF-IDF of words and pairs of neighbouring words; of two texts each has features of its own."""

    def __init__(self, task: Task, examples: Sequence[TextExample]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.num_texts = 2 if are_pairs(examples) else 1
        most = min(MAX_FEATURES, MAX_WEIGHTS // max(1, len(task.labels))) // self.num_texts
        self._vectorizers = []
        for texts in self._columns(examples):
            vectorizer = TfidfVectorizer(
                ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORDS, max_features=most, dtype=np.float64
            )
            analyze = vectorizer.build_analyzer()
            if any(analyze(text) for text in texts):
                self._vectorizers.append(vectorizer.fit(texts))
        self.have_words = len(self._vectorizers) == self.num_texts

    def _columns(self, examples: Sequence[TextExample]) -> list[list[str]]:
        first = [example.first for example in examples]
        return [first] if self.num_texts == 1 else [first, [example.second or "" for example in examples]]

    def __call__(self, examples: Sequence[TextExample]) -> "csr_matrix":
        from scipy.sparse import hstack

        columns = self._columns(examples)
        parts = [one.transform(texts) for one, texts in zip(self._vectorizers, columns, strict=True)]
        return parts[0] if len(parts) == 1 else hstack(parts, format="csr")


class _Linear:
    """A linear model on these features: logistic regression, one for each label of multi_label, or ridge."""

    def __init__(self, task: Task, features: _Features, examples: Sequence[TextExample], balanced: bool) -> None:
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier

        self._task, self._features = task, features
        weights = "balanced" if balanced else None
        # liblinear is the faster one for two classes; it does not have more.
        binary = LogisticRegression(C=INVERSE_REGULARIZATION, solver="liblinear", class_weight=weights)
        labels = [example.label for example in examples]
        wanted: Any = labels
        model: Any = binary
        if task.kind == "regression":
            model, wanted = Ridge(), np.array(labels, np.float64)
        elif task.kind == "multi_label":
            model, wanted = OneVsRestClassifier(binary), np.zeros((len(labels), len(task.labels)), np.int64)
            for row, numbers in zip(wanted, labels, strict=True):
                row[list(cast("tuple[int, ...]", numbers))] = 1
        elif len(set(labels)) > 2:
            model = LogisticRegression(C=INVERSE_REGULARIZATION, max_iter=100, tol=1e-3, class_weight=weights)
        self._constant = labels[0] if task.kind == "classification" and len(set(labels)) == 1 else None
        if self._constant is None:
            with warnings.catch_warnings():
                # Not quite converged after so many iterations; labels that no example of the sample has.
                warnings.simplefilter("ignore")
                self._model = model.fit(features(examples), wanted)

    def __call__(self, examples: Sequence[TextExample]) -> list[object]:
        if self._constant is not None:
            return [self._constant] * len(examples)
        found = self._model.predict(self._features(examples))
        if self._task.kind == "multi_label":
            return [tuple(map(int, np.flatnonzero(row))) for row in np.asarray(found)]
        return [float(one) if self._task.kind == "regression" else int(one) for one in found]
