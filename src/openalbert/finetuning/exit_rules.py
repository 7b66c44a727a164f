"""Early exit: when an example is settled, and the rule fitted on held-out examples.

The exits are trained together with the head (PABEE, arXiv 2006.04152). Examples leave by confidence, by patience or all
at the same depth, whichever is fastest for the same score on training examples held out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64

from openalbert.finetuning.data import EncodedSplit
from openalbert.finetuning.evaluation.intervals import paired_error
from openalbert.finetuning.evaluation.split import evaluate_outputs
from openalbert.finetuning.predict import (
    TOKENS_AT_A_TIME,
    Outputs,
    batches_by_length,
    inference,
    pack,
    sigmoid,
    softmax,
)
from openalbert.formatting import counted
from openalbert.interop.exits import NEVER, ExitInfo, ExitPoint, ExitRule
from openalbert.model.albert import AlbertModel
from openalbert.model.config import HeadKind
from openalbert.tasks.task import Sequences, Task
from openalbert.train.device import Device

Logits: TypeAlias = Float32[np.ndarray, "examples outputs"]
QUANTILES = 40  # thresholds that are tried
LEAST_EXAMPLES = 100  # held out: on fewer, luck chooses the rule
MAX_PATIENCE_FOR_VALUES = 3


def is_settled(head: HeadKind, rule: ExitRule, logits: Logits, before: Logits | None) -> Bool[np.ndarray, "examples"]:
    """Whether each example is settled at a layer; `before` are its logits at the layer before, if there was one."""
    settled: np.ndarray
    if rule.kind == "confidence":
        settled = confidence(head, logits) >= rule.threshold
    elif rule.kind == "depth" or before is None:
        settled = np.zeros(len(logits), bool)
    elif head == "regression":
        settled = np.abs(logits[:, 0] - before[:, 0]) <= rule.threshold
    elif head == "classification":
        settled = logits.argmax(1) == before.argmax(1)
    else:
        settled = ((logits > 0) == (before > 0)).all(1)
    return settled


def confidence(head: HeadKind, logits: Logits) -> Float64[np.ndarray, "examples"]:
    """The probability of each decision: of the class, or of the least certain label."""
    probability = softmax(logits) if head == "classification" else sigmoid(np.abs(logits))
    found: np.ndarray = probability.max(1) if head == "classification" else probability.min(1)
    return found


def exit_depths(
    head: HeadKind, rule: ExitRule, by_depth: Float32[np.ndarray, "layers examples outputs"]
) -> Int64[np.ndarray, "examples"]:
    """The depth at which each example leaves, from the logits of every depth."""
    num_layers, num_examples = by_depth.shape[:2]
    if not rule.asks:
        return np.full(num_examples, rule.depth or num_layers)
    depths = np.full(num_examples, num_layers)
    in_a_row = np.zeros(num_examples, np.int64)
    for layer, logits in enumerate(by_depth):
        settled = is_settled(head, rule, logits, by_depth[layer - 1] if layer else None)
        in_a_row = np.where(settled, in_a_row + 1, 0)
        depths = np.where((in_a_row >= rule.patience) & (depths == num_layers), layer + 1, depths)
    return depths


def predict_depths(
    model: AlbertModel,
    sequences: Sequences,
    device: Device,
    *,
    tokens_at_a_time: int = TOKENS_AT_A_TIME,
    advance: Callable[[float], None] = lambda tokens: None,
) -> Float32[np.ndarray, "layers examples outputs"]:
    """The logits of every depth, for examples of one sequence each; `advance` is called with the tokens computed."""
    assert model.exits is not None
    head, num_layers = model.head_list[0], model.config.num_layers
    logits = np.zeros((num_layers, len(sequences.example), head.num_outputs), np.float32)
    with inference(model):
        for chosen in batches_by_length(sequences.lengths, tokens_at_a_time, device):
            packed = pack(sequences, chosen, device)
            with device.autocast():
                encoded = model.encode_packed(packed.ids, packed.lengths, packed.segments, all_states=True)
                found = model.depth_scores(encoded)
            logits[:, chosen] = torch.stack(found).float().cpu().numpy()
            advance(float(sequences.lengths[chosen].sum()))
    return logits


@dataclass(frozen=True)
class FittedExits:
    """The fitted rule, and what it gives on the splits that a run is scored on."""

    info: ExitInfo
    max_drop: float
    """The points that it was to lose at most."""
    scores: dict[str, dict[str, float]]
    """By split: the mean depth, the score, and the score at full depth."""

    def sentences(self) -> Iterator[str]:
        """The result, for the user to read."""
        info, point = self.info, self.info.chosen
        held_out = counted(info.num_examples, "held-out training example")
        if point.rule == NEVER:
            is_few = info.num_examples < LEAST_EXAMPLES
            why = f"{LEAST_EXAMPLES} are needed to fit a rule" if is_few else "no rule is as good"
            yield (
                f"early exit: all layers are computed ({held_out}: {why}); `predict --speedup` or `--depth` computes "
                "fewer"
            )
            return
        parts = [
            f"{split} {info.metric} {one['score']:.1f} at {one['mean_depth']:.1f} of {info.num_layers} layers "
            f"(full depth: {one['full_score']:.1f})"
            for split, one in self.scores.items()
        ]
        parts.append(
            f"{held_out} {point.score:.1f} +- {point.error:.1f} at {point.mean_depth:.1f} (full depth: "
            f"{info.full_score:.1f})"
        )
        yield f"early exit at {point.rule}: {'; '.join(parts)}"
        if info.loss(point) > self.max_drop:
            yield (
                f"no rule is sure to lose at most {self.max_drop:g} points, one standard error included: this is the "
                "one with the highest score there"
            )


def fit_and_score(
    model: AlbertModel,
    task: Task,
    held_out: EncodedSplit,
    scored: Mapping[str, EncodedSplit],
    device: Device,
    max_drop: float,
) -> FittedExits:
    """Fit the rule on held-out training examples, and measure it on other splits."""
    info = fit_exits(model, task, held_out, device, max_drop)
    scores = {}
    for name, split in scored.items():
        by_depth = predict_depths(model, split.encoding.sequences, device)
        early, full = (measure_rule(task, split, info.head, rule, by_depth) for rule in (info.chosen.rule, NEVER))
        scores[name] = {"mean_depth": early.mean_depth, "score": early.score, "full_score": full.score}
    return FittedExits(info, max_drop, scores)


def fit_exits(model: AlbertModel, task: Task, held_out: EncodedSplit, device: Device, max_drop: float) -> ExitInfo:
    """Measure all rules, keep the best for each cost, and choose one of them (`ExitInfo.cheapest`).

    A rule that takes as long as full depth is not kept. Of too few examples none is chosen: all layers are computed.
    """
    head = model.head_list[0].kind
    by_depth = predict_depths(model, held_out.encoding.sequences, device)
    full, at_full_depth = _measure(task, held_out, head, NEVER, by_depth)
    points = [full]
    for rule in candidate_rules(head, by_depth):
        point, predictions = _measure(task, held_out, head, rule, by_depth)
        if point.cost >= full.cost:
            continue
        error = paired_error(task, held_out.examples, predictions, at_full_depth, task.main_metric)
        points.append(replace(point, error=error))
    info = ExitInfo(
        head=head,
        num_layers=len(by_depth),
        metric=task.main_metric,
        num_examples=len(held_out.examples),
        full_score=full.score,
        chosen=full,
        points=tuple(best_by_cost(points)),
    )
    return info if info.num_examples < LEAST_EXAMPLES else replace(info, chosen=info.cheapest(max_drop))


def measure_rule(task: Task, data: EncodedSplit, head: HeadKind, rule: ExitRule, by_depth: np.ndarray) -> ExitPoint:
    """The mean depth of a rule, and its score."""
    return _measure(task, data, head, rule, by_depth)[0]


def _measure(
    task: Task, data: EncodedSplit, head: HeadKind, rule: ExitRule, by_depth: np.ndarray
) -> tuple[ExitPoint, list[object]]:
    """The mean depth and the score of a rule, and the predictions with it."""
    depths = exit_depths(head, rule, by_depth)
    chosen = by_depth[depths - 1, np.arange(len(depths))]
    evaluation = evaluate_outputs(task, data, Outputs({head: chosen}))
    point = ExitPoint(rule, float(depths.mean()), float(evaluation.metrics[task.main_metric]))
    return point, evaluation.predictions


def candidate_rules(head: HeadKind, by_depth: np.ndarray) -> Iterator[ExitRule]:
    """The rules that are tried: by depth, by confidence and by patience; for values, not by confidence."""
    num_layers = len(by_depth)
    for depth in range(1, num_layers):
        if np.isfinite(by_depth[depth - 1]).all():
            yield ExitRule("depth", depth=depth)
    if head == "regression":
        changes = np.abs(np.diff(by_depth[:, :, 0], axis=0))
        for patience in range(1, min(MAX_PATIENCE_FOR_VALUES, num_layers - 1) + 1):
            for threshold in _quantiles(changes):
                yield ExitRule("patience", threshold, patience)
        return
    all_confidence = np.concatenate([confidence(head, logits) for logits in by_depth])
    for threshold in _quantiles(all_confidence):
        yield ExitRule("confidence", threshold)
    for patience in range(1, num_layers):
        yield ExitRule("patience", patience=patience)


def _quantiles(values: np.ndarray) -> Iterator[float]:
    """Those that are different and finite: a run that diverged has none."""
    for value in np.unique(np.quantile(values, np.linspace(0, 1, QUANTILES + 1))):
        if np.isfinite(value):
            yield float(value)


def best_by_cost(points: Sequence[ExitPoint]) -> list[ExitPoint]:
    """The points that can be chosen, the cheapest first.

    Those whose score no cheaper one equals; those whose score less its standard error no cheaper one equals; and those
    whose score no dearer one equals.
    """
    dearer = sorted(points, key=lambda one: (one.cost, -one.score, one.error))
    cheaper = sorted(points, key=lambda one: (-one.cost, -one.score, one.error))
    kept = {
        *_rising(dearer, lambda one: one.score),
        *_rising(dearer, lambda one: one.score - one.error),
        *_rising(cheaper, lambda one: one.score),
    }
    return sorted(kept, key=lambda one: (one.cost, one.score))


def _rising(points: Iterable[ExitPoint], value: Callable[[ExitPoint], float]) -> Iterator[ExitPoint]:
    """Those with a higher value than all before them."""
    best = -np.inf
    for point in points:
        if value(point) > best:
            best = value(point)
            yield point
