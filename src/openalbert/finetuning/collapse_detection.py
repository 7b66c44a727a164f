"""Detect a collapsed run: its predictions are all the same, and its loss is still that of knowing label frequencies.

Large models sometimes collapse in fine-tuning, with a learning rate that is too high or an unlucky seed. Such a run is
not a result: it is detected, reported, and tried again at a lower rate.
"""

from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np
from jaxtyping import Float64

from openalbert.tasks.metrics import Retrieved, gold_prediction
from openalbert.tasks.task import (
    UNLABELLED,
    ChoiceExample,
    Example,
    Sequences,
    TaggingExample,
    Task,
    TextExample,
)

FROM_PROGRESS = 0.5  # earlier, a slow start looks like a collapse
LEAST_STEPS = 100  # a shorter run is not checked
REHEARSAL = 30  # steps; a shorter run is only a trial of the setup
LEAST_EXAMPLES = 10  # fewer predictions may well be the same
LAST_STEPS = 64  # whose loss counts
SIGMAS = 2.0  # standard errors by which the mean loss must be below the baseline
LEAST_GAIN = 0.005  # fraction of the baseline by which it must be below it in any case
SAME = 0.99  # fraction of equal predictions that counts as all the same
LEAST_COSINES = 1e-3  # a spread of cosines below it is that of embeddings that are all the same
RATE_FACTOR = 0.5  # of the learning rate, from one attempt to the next


def baseline_loss(sequences: Sequences, class_weights: Float64[np.ndarray, "classes"] | None = None) -> float:
    """The training loss of a constant prediction of the label frequencies; 0 where there are no labels."""
    total = 0.0
    if "similarity" in sequences.targets:
        return 0.0  # it depends on the batch; nothing is compared with it
    for kind, targets in sequences.targets.items():
        if kind in ("classification", "tagging"):
            targets = targets[targets != UNLABELLED]
            minlength = 0 if class_weights is None else len(class_weights)
            frequencies = np.bincount(targets, minlength=minlength) / len(targets)
            total += _entropy(frequencies if class_weights is None else frequencies * class_weights)
        elif kind == "regression":
            total += float(np.var(targets, dtype=np.float64))
        elif kind == "multi_label":
            frequencies = targets.mean(0, dtype=np.float64)
            positive = frequencies if class_weights is None else frequencies * class_weights
            total += float(np.mean([_entropy(np.array(both)) for both in zip(positive, 1 - frequencies, strict=True)]))
        elif kind == "multiple_choice":
            total += float(np.log(np.bincount(sequences.example)).mean())
        elif kind == "span":
            # The frequency of windows without an answer is known; in the others all tokens are equally likely.
            has_answer = (targets > 0).any(axis=1)
            total += _entropy(np.array([has_answer.mean(), 1 - has_answer.mean()]))
            total += float(np.log(sequences.lengths[has_answer]).sum() / len(targets))
        else:  # answerability counts half
            total += 0.5 * _entropy(np.array([targets.mean(), 1 - targets.mean()]))
    return total


def _entropy(frequencies: np.ndarray) -> float:
    """The lowest cross entropy of a constant prediction with these frequencies, weighted or not."""
    known = frequencies[frequencies > 0]
    return float(-(known * np.log(known / known.sum())).sum())


def describe_collapse(
    task: Task,
    baseline: float,
    recent_losses: Sequence[float],
    examples: Sequence[Example],
    predictions: Sequence[object],
) -> str | None:
    """Why a run counts as collapsed, as a clause; None for a run that learns.

    Both must hold: the last training losses are no better than the baseline, and the predictions are all the same
    (for multiple choice: no more often right than by chance). A loss that is a little better, beyond its own noise,
    is that of a run that learns too slowly, which a lower rate would not help.
    """
    if not recent_losses or baseline <= 0:
        return None
    last = np.array(recent_losses[-LAST_STEPS:])
    loss, error = float(last.mean()), float(last.std() / np.sqrt(len(last)))
    if np.isfinite(loss) and loss < baseline - max(SIGMAS * error, LEAST_GAIN * baseline):
        return None
    same = describe_constant_predictions(task, examples, predictions)
    if same is None:
        return None
    return f"{same}, and the training loss {loss:.3f} is no better than that of label frequencies ({baseline:.3f})"


def describe_constant_predictions(task: Task, examples: Sequence[Example], predictions: Sequence[object]) -> str | None:
    """How the predictions are all the same, or no better than chance, as a clause; None if they are not."""
    if task.kind == "regression":
        wanted = [float(e.label) for e in examples if isinstance(e, TextExample) and isinstance(e.label, int | float)]
        spread, of_labels = float(np.std(np.array(predictions, np.float64))), float(np.std(wanted))
        if of_labels > 0 and spread < 0.05 * of_labels:
            return f"the predictions spread by {spread:.3g} only, the labels by {of_labels:.3g}"
        return None
    if task.kind == "multiple_choice":
        choices = [example for example in examples if isinstance(example, ChoiceExample)]
        right = float(np.mean([e.label == found for e, found in zip(choices, predictions, strict=True)]))
        by_chance = float(np.mean([1 / len(example.options) for example in choices]))
        error = float(np.sqrt(by_chance * (1 - by_chance) / len(choices)))
        if right <= by_chance + 2 * error:
            return f"{100 * right:.1f} % of the choices are right, by chance it would be {100 * by_chance:.1f} %"
        return None
    if task.kind == "similarity":
        cosines = [one.cosine if isinstance(one, Retrieved) else float(cast(float, one)) for one in predictions]
        spread = float(np.ptp(cosines))
        return f"the cosines of all pairs are within {spread:.3g}" if spread < LEAST_COSINES else None
    if task.kind == "tagging":
        return _describe_one_tag(examples, cast("Sequence[tuple[str, ...]]", predictions))
    [(most, count)] = Counter(predictions).most_common(1)
    if count < SAME * len(predictions) or len({gold_prediction(example) for example in examples}) < 2:
        return None
    return f"{100 * count / len(predictions):.0f} % of the predictions are {_named(task, most)}"


def _describe_one_tag(examples: Sequence[Example], predictions: Sequence[tuple[str, ...]]) -> str | None:
    """As above for tags of words. All of them must be the same: nearly all words are outside of entities anyway."""
    given = {tag for tags in predictions for tag in tags}
    wanted = {tag for example in examples if isinstance(example, TaggingExample) for tag in example.tags or ()}
    return f"every word is predicted as '{given.pop()}'" if len(given) == 1 and len(wanted) > 1 else None


def _named(task: Task, prediction: object) -> str:
    if isinstance(prediction, int) and task.labels:
        return f"'{task.labels[prediction]}'"
    if isinstance(prediction, tuple):
        return (
            "'" + "', '".join(task.labels[number] for number in prediction) + "'" if prediction else "no label at all"
        )
    return f"'{prediction}'" if prediction else '"no answer"'
