"""Weights for the loss of rare classes: what `--class-weights balanced` stands for."""

import numpy as np
from jaxtyping import Float64

from openalbert.errors import UserError
from openalbert.tasks.task import Sequences, Task


def balanced_weights(task: Task, sequences: Sequences) -> Float64[np.ndarray, "classes"]:
    """A weight for each class, from how often it occurs in the training set.

    Of one class per example it is n / (k · n_c), so that every class has the same total weight, and the mean weight of
    an example is 1. Of labels that apply or not it is the weight of the positive examples, negative / positive, so that
    both sides have the same total. A class without examples, or a label without a negative one, has weight 1.
    """
    if task.kind == "classification":
        counts = np.bincount(sequences.targets["classification"], minlength=len(task.labels)).astype(np.float64)
        occurs = counts > 0
        return np.where(occurs, counts.sum() / (occurs.sum() * np.maximum(counts, 1)), 1.0)
    if task.kind == "multi_label":
        wanted = sequences.targets["multi_label"]
        positive = wanted.sum(0, dtype=np.float64)
        negative = len(wanted) - positive
        return np.where((positive > 0) & (negative > 0), negative / np.maximum(positive, 1), 1.0)
    raise UserError(
        f"--class-weights balanced is for classification and multi_label, but {task.name} is of the kind {task.kind}, "
        "which has no classes to balance: leave it out"
    )
