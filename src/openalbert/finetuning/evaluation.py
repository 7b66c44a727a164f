"""From a split to its metrics: logits, predictions, metrics, loss and 95 % intervals. What a run leaves in its folder.

Fine-tuning and the verb `evaluate` both use `evaluate_split`.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float64, Int64

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning import similarity
from openalbert.finetuning.batches import PackedBatch
from openalbert.finetuning.data import EncodedSplit, TaskData
from openalbert.finetuning.frozen import FrozenStates
from openalbert.finetuning.losses import Standardization, head_loss
from openalbert.finetuning.predict import TOKENS_AT_A_TIME, Outputs, decide, embed, predict
from openalbert.finetuning.span_decoding import N_BEST, Answers, best_answers, few_questions_note, fit_threshold
from openalbert.formatting import counted
from openalbert.interop import huggingface
from openalbert.interop.task_json import TaskInfo, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.objectives.keyed_random import below, bits
from openalbert.report.baselines import baseline_lines, describe_gain
from openalbert.report.error_analysis import ErrorAnalysis, explain_intervals, write_error_analyses, written_scores
from openalbert.report.model_card import finetuned_card
from openalbert.run_files import MODEL, SCORES
from openalbert.tasks.data.source import hold_out
from openalbert.tasks.data.tables import check_no_rows_excluded
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.squad import score_answers
from openalbert.tasks.tags import Tags, count_matches, gold_tags, mark_entities, tag_scores
from openalbert.tasks.task import Example, QuestionExample, Reading, Task, TextExample, are_pairs
from openalbert.train.device import Device

MAX_FOR_INTERVALS = 2_000  # examples: on more, the seed changes a score by more than the interval
RESAMPLES = 1_000
Z = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations

Interval = tuple[float, float]


@dataclass(frozen=True)
class Evaluation:
    """The predictions for a split, and their metrics."""

    task: Task
    data: EncodedSplit
    num_models: int
    outputs: Outputs
    answers: list[Answers]
    """To questions: the best few, and the null score."""
    predictions: list[object]
    """As `Task.measure` takes them."""
    metrics: dict[str, float]
    """In percent; empty where the examples have no labels."""
    loss: float
    """As in training, class weights included; NaN without labels, or where a head for one of the targets is missing."""
    null_threshold: float | None
    """Where a question may have no answer: the given threshold, or the best one on all questions of this split."""
    threshold_origin: str
    """How the threshold was found, as a clause."""
    threshold_note: str
    """The threshold or thresholds that were used, for the reader."""

    @property
    def split(self) -> str:
        """The name of the split."""
        return self.data.name

    @property
    def is_labelled(self) -> bool:
        """Whether there is anything to compare predictions with."""
        return bool(self.data.encoding.sequences.targets)


def evaluate_split(
    models: Sequence[AlbertModel],
    task: Task,
    data: EncodedSplit,
    device: Device,
    *,
    null_threshold: float | None = None,
    threshold_origin: str = "",
    standardization: Standardization | None = None,
    class_weights: Float64[np.ndarray, "classes"] | None = None,
    n_best: int = N_BEST,
    tokens_at_a_time: int = TOKENS_AT_A_TIME,
    advance: Callable[[float], None] = lambda tokens: None,
    frozen: FrozenStates | None = None,
) -> Evaluation:
    """Predict a split with the mean of some models, and measure the predictions.

    `standardization` is for a model in training, `frozen` for one whose encoder is not trained. The other options are
    those of `evaluate_outputs`.
    """
    if not data.encoding.sequences.targets:
        check_no_rows_excluded(data.reading.file or f"{task.name} {data.name}", data.reading.excluded)
    sequences = data.encoding.sequences
    if frozen is not None:
        outputs = frozen.outputs(models[0], data.name, sequences)
    elif task.kind == "similarity":
        embeddings = embed(models, sequences, device, tokens_at_a_time=tokens_at_a_time, advance=advance)
        outputs = Outputs({"similarity": embeddings})
    else:
        outputs = predict(models, sequences, device, tokens_at_a_time=tokens_at_a_time, advance=advance)
    if standardization is not None:
        outputs = standardization.restore(outputs)
    return evaluate_outputs(
        task,
        data,
        outputs,
        null_threshold=null_threshold,
        threshold_origin=threshold_origin,
        class_weights=class_weights,
        n_best=n_best,
        num_models=len(models),
    )


def evaluate_outputs(
    task: Task,
    data: EncodedSplit,
    outputs: Outputs,
    *,
    null_threshold: float | None = None,
    threshold_origin: str = "",
    class_weights: Float64[np.ndarray, "classes"] | None = None,
    n_best: int = N_BEST,
    num_models: int = 1,
) -> Evaluation:
    """Decide on predictions, and measure them.

    Without a null threshold, each half of the questions is decided with the one that is best on the other half: no
    threshold is fitted on the questions that its metrics are reported on.
    """
    is_labelled = bool(data.encoding.sequences.targets)
    questions, answers = find_answers(data, outputs, n_best)
    note = ""
    if task.may_have_no_answer and is_labelled and null_threshold is None:
        predictions, null_threshold, note = _decide_by_halves(questions, answers)
    else:
        null_threshold = (null_threshold or 0.0) if task.may_have_no_answer else None
        predictions = decide(task, data.encoding, outputs, answers, null_threshold)
        if null_threshold is not None:
            note = f"{null_threshold:.3f}" + (f", {threshold_origin}" if threshold_origin else "")
    metrics = task.measure(data.examples, predictions) if is_labelled else {}
    loss = evaluation_loss(data, outputs, class_weights)
    if is_labelled and task.main_metric == LOSS:
        metrics[LOSS] = loss
    return Evaluation(
        task=task,
        data=data,
        num_models=num_models,
        outputs=outputs,
        answers=answers,
        predictions=predictions,
        metrics=metrics,
        loss=loss,
        null_threshold=null_threshold,
        threshold_origin=threshold_origin,
        threshold_note=note.replace("-", "−"),
    )


def find_answers(
    data: EncodedSplit, outputs: Outputs, n_best: int = N_BEST
) -> tuple[list[QuestionExample], list[Answers]]:
    """The questions of a split with their answers; none where it has other examples."""
    questions = [example for example in data.examples if isinstance(example, QuestionExample)]
    if not questions:
        return [], []
    longest = data.max_answer_tokens
    return questions, best_answers(questions, data.encoding, outputs.logits, n_best=n_best, max_answer_tokens=longest)


def evaluation_loss(
    data: EncodedSplit, outputs: Outputs, class_weights: Float64[np.ndarray, "classes"] | None = None
) -> float:
    """The loss of these outputs, summed over the heads, as in training; of regression in the original units."""
    sequences = data.encoding.sequences
    if "similarity" in sequences.targets:
        return similarity.evaluation_loss(sequences, outputs.logits["similarity"])
    has_heads = sequences.targets.keys() <= outputs.logits.keys()
    if not sequences.targets or not has_heads or not sequences.num_examples:
        return math.nan
    is_choice = "multiple_choice" in sequences.targets
    options = np.bincount(sequences.example) if is_choice else np.ones(len(sequences.example), np.int64)
    no_tokens = torch.empty(0, dtype=torch.int64)  # the outputs are already computed
    targets = {kind: torch.from_numpy(wanted) for kind, wanted in sequences.targets.items()}
    if sequences.long_texts != "truncate":  # the outputs are those of whole texts
        first = sequences.first_of_examples
        targets, options = {kind: wanted[first] for kind, wanted in targets.items()}, options[first]
    batch = PackedBatch(no_tokens, no_tokens, tuple(sequences.lengths.tolist()), tuple(options.tolist()), targets)
    weights = None if class_weights is None else torch.from_numpy(class_weights).float()
    losses = [head_loss(kind, torch.from_numpy(outputs.logits[kind]), batch, weights).mean for kind in targets]
    return float(sum(losses))


# The null threshold: above which null score a question is predicted to have no answer.


def fit_null_threshold(model: AlbertModel, data: EncodedSplit | None, device: Device) -> tuple[float | None, str]:
    """The threshold with the highest F1 on held-out training questions, and its origin; None where there are none."""
    if data is None:
        return None, ""
    questions, answers = find_answers(data, predict([model], data.encoding.sequences, device))
    number = len(questions)
    origin = f"fitted on {counted(number, 'training question')} held out{few_questions_note(number)}"
    return fit_threshold(questions, answers, _f1), origin


def _decide_by_halves(
    questions: Sequence[QuestionExample], answers: Sequence[Answers]
) -> tuple[list[object], float, str]:
    """Predictions of each half with the threshold of the other, the threshold of all, and a note on them."""
    best_on_all = fit_threshold(questions, answers, _f1)
    try:
        held_out = {id(example) for example in hold_out(Reading(tuple(questions)), 0.5, 0)[1].examples}
    except UserError:  # questions on one passage only
        return [one.text(0.0) for one in answers], best_on_all, "0.000, for there are too few passages to fit it on"
    is_held = [id(question) in held_out for question in questions]
    fitted, fewest = {}, min(sum(is_held), len(questions) - sum(is_held))
    for held in (False, True):
        half = [number for number, one in enumerate(is_held) if one == held]
        some, their_answers = [questions[number] for number in half], [answers[number] for number in half]
        fitted[not held] = fit_threshold(some, their_answers, _f1)
    predictions: list[object] = [one.text(fitted[held]) for one, held in zip(answers, is_held, strict=True)]
    note = f"{fitted[False]:.3f} and {fitted[True]:.3f}, for each half of the passages fitted on the other"
    if few := few_questions_note(fewest):
        note += f": the smaller has {counted(fewest, 'question')}{few}"
    return predictions, best_on_all, note


def _f1(question: QuestionExample, answer: str) -> float:
    gold = tuple(one.text for one in question.answers)
    return score_answers([gold], [answer], may_have_no_answer=True)["f1"]


# 95 % intervals.


def intervals(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], metrics: Mapping[str, float]
) -> dict[str, Interval]:
    """The 95 % interval of each metric, in percent; none where there are many examples.

    Wilson's for accuracy, and for the others the percentiles of a bootstrap over examples, drawn with a key of the
    task, so that the same predictions have the same interval. Each class keeps its number of examples: without a rare
    class a resample would measure something else. A metric that is the same in every resample has no interval.
    """
    if not 1 < len(examples) < MAX_FOR_INTERVALS:
        return {}
    found = {name: ends for name, ends in _bootstrap(task, examples, predictions).items() if name in metrics}
    if "accuracy" in metrics and task.kind != "tagging":  # there it is of words, which depend on each other
        found["accuracy"] = wilson(round(metrics["accuracy"] * len(examples) / 100), len(examples))
    return {name: found[name] for name in metrics if name in found}


def paired_interval(
    task: Task, examples: Sequence[Example], predictions: Sequence[object], others: Sequence[object], metric: str
) -> Interval | None:
    """The 95 % interval of the difference in a metric between two models, by a bootstrap over the same examples.

    None where there are many examples, and where the difference is the same in every resample.
    """
    if not 1 < len(examples) < MAX_FOR_INTERVALS:
        return None
    differences = []
    for row in resample(task.name, _strata(task, examples)).tolist():
        drawn = [examples[one] for one in row]
        one, other = (task.measure(drawn, [given[place] for place in row])[metric] for given in (predictions, others))
        differences.append(one - other)
    low, high = np.percentile(differences, (2.5, 97.5)).tolist()
    return (low, high) if low < high else None


def wilson(right: int, total: int) -> Interval:
    """Wilson's score interval of a proportion, in percent."""
    fraction, over = right / total, Z * Z / total
    middle = (fraction + over / 2) / (1 + over)
    reach = Z / (1 + over) * math.sqrt(fraction * (1 - fraction) / total + over / (4 * total))
    # Its ends are exactly 0 and 1 there, but for rounding.
    low = 0.0 if right == 0 else max(0.0, middle - reach)
    high = 1.0 if right == total else min(1.0, middle + reach)
    return 100 * low, 100 * high


def _bootstrap(task: Task, examples: Sequence[Example], predictions: Sequence[object]) -> dict[str, Interval]:
    rows = resample(task.name, _strata(task, examples))
    values: dict[str, list[float]] = {}
    if task.kind == "question_answering":
        # Means over questions, each of which takes a while to compare: each is measured once.
        each = [task.measure([one], [given]) for one, given in zip(examples, predictions, strict=True)]
        for name in dict.fromkeys(name for one in each for name in one):
            of_one = np.array([one.get(name, np.nan) for one in each])[rows]
            there = np.isfinite(of_one).sum(1)
            values[name] = list(np.nansum(of_one, axis=1)[there > 0] / there[there > 0])
    elif task.kind == "tagging":
        counts = count_matches(gold_tags(examples), cast("Sequence[Tags]", predictions))
        sums = np.stack([column[rows].sum(1) for column in counts.T], axis=1)
        values = {name: found.tolist() for name, found in tag_scores(sums, mark_entities(task.labels)).items()}
    else:
        for row in rows.tolist():
            drawn = task.measure([examples[one] for one in row], [predictions[one] for one in row])
            for name, value in drawn.items():
                values.setdefault(name, []).append(value)
    ends = {name: np.percentile(found, (2.5, 97.5)).tolist() for name, found in values.items() if np.ptp(found) > 0}
    return {name: (low, high) for name, (low, high) in ends.items()}


def _strata(task: Task, examples: Sequence[Example]) -> Int64[np.ndarray, "examples"]:
    """The class of each example, where each has one; 0 for all where they have not."""
    if task.kind != "classification":
        return np.zeros(len(examples), np.int64)
    return np.array([example.label for example in examples if isinstance(example, TextExample)], np.int64)


def resample(key: str, strata: Int64[np.ndarray, "examples"]) -> Int64[np.ndarray, "resamples examples"]:
    """The numbers of the examples of each resample, drawn with replacement within each stratum."""
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)
    order = np.argsort(strata, kind="stable")
    _, first, count = np.unique(strata[order], return_index=True, return_counts=True)
    drawn = bits(number, np.arange(RESAMPLES * len(strata), dtype=np.int64)).reshape(RESAMPLES, -1)
    columns = [start + below(drawn[:, start : start + size], size) for start, size in zip(first, count, strict=True)]
    found: Int64[np.ndarray, "resamples examples"] = order[np.concatenate(columns, axis=1)]
    return found


# The results of a fine-tuning run.


def write_outcome(
    folder: Path,
    model: AlbertModel,
    task_data: TaskData,
    stride: int,
    scores: dict[str, Any],
    analyses: Sequence[ErrorAnalysis],
) -> None:
    """Write the scores, the error analyses, and the model with its card and task.json into the run's folder."""
    task = task_data.task
    atomic_io.write_text(folder / SCORES, json.dumps(scores, indent=2) + "\n")
    write_error_analyses(folder, analyses)
    pairs = are_pairs(task_data.train.examples)
    collapsed = scores["collapsed"] or ""
    card = finetuned_card(
        model,
        task,
        folder,
        scores["scores"],
        outcome=scores,
        collapsed=collapsed,
        of_pairs=pairs,
        analyses=analyses,
    )
    huggingface.save(model, folder / MODEL, task_data.tokenizer, card=card, pretraining=task_data.pretraining)
    split, metrics = next(iter(scores["scores"].items()))
    task_info = TaskInfo(
        task=task.name,
        kind=task.kind,
        max_length=task_data.max_length,
        stride=stride,
        null_threshold=scores["null_threshold"],
        split=split,
        scores=metrics,
        metric=task.main_metric,
        of_pairs=pairs,
        answer_format=task.answer_format,
        layout=dict(task_data.layout),
        separator=task_data.separator,
        max_answer_tokens=task_data.train.max_answer_tokens,
        pooling="mean" if task.kind == "similarity" else None,
        long_texts=task_data.train.encoding.sequences.long_texts,
    )
    write_task_info(folder / MODEL, task_info)


def final_scores(scores: Mapping[str, Any]) -> str:
    """The scores of a run that has ended, a line for each split and its baselines, and what the model buys."""
    lines = []
    for split, metrics in scores["scores"].items():
        ends = scores["intervals"].get(split, {})
        line = f"{split}: {written_scores(metrics, scores['main_metric'], ends)}"
        lines.append(f"{line} ({explain_intervals(scores['num_examples'][split])})" if ends else line)
        lines += baseline_lines(scores, split, scores["main_metric"])
    if scores.get("gain"):
        lines.append(describe_gain(scores["gain"]))
    return "\n".join(lines)
