"""`openalbert evaluate`: metrics, predictions and an error analysis of a model, or of several averaged ones."""

import json as json_text
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.data import EncodedSplit, describe_windows, encode_split
from openalbert.finetuning.encode import STRIDE
from openalbert.finetuning.evaluation.error_analysis import analyze_errors
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_split
from openalbert.finetuning.evaluation.submission import write_files
from openalbert.finetuning.exit_rules import measure_rule, predict_depths
from openalbert.finetuning.predict import DEFAULT_MAX_LENGTH, TOKENS_AT_A_TIME, Ensemble, load_models, task_heads
from openalbert.finetuning.question_answering.span_decoding import N_BEST
from openalbert.formatting import aligned, counted, percent_of, were
from openalbert.interop.exits import NEVER, ExitPoint, read_exit_info
from openalbert.interop.huggingface import find_folder
from openalbert.interop.task_json import TaskInfo
from openalbert.progress import Work, log
from openalbert.report.error_analysis import ErrorAnalysis
from openalbert.report.report import evaluation_page
from openalbert.report.run_reader import examples_of
from openalbert.report.scores import ScoreRow, explain_intervals, metrics_of
from openalbert.report.summary import describe_pretraining
from openalbert.settings import check_at_least_one
from openalbert.tasks.custom.columns import setting_of
from openalbert.tasks.label_checks import describe_constant_label, describe_never_predicted
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.paper_scores import shape_of
from openalbert.tasks.registry import GLUE, TASKS, TaskMetadata, TaskSource, open_task
from openalbert.tasks.task import MAX_ANSWER_TOKENS, LongTexts, Reading, Task, are_pairs
from openalbert.train.device import Device, Speed, open_device

Value = TypeVar("Value", bound=str)
Result = tuple[Evaluation, ErrorAnalysis | None]
_UNNAMED = re.compile(r"LABEL_\d+|\d+")  # Hugging Face's names of classes that nobody named


@dataclass(frozen=True)
class Evaluate:
    """Score a fine-tuned model on a task; several models are averaged. Predictions can be written to files."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL [MODEL ...]", help_behavior_hint="")]
    """Fine-tuned models: model folders, runs of `openalbert finetune`, or Hugging Face's `owner/name`."""
    task: str = ""
    """A known task or, for files of your own, its kind. Not given: the one that the model was fine-tuned for.
    Tasks: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad1, squad2, race, race_middle, race_high.
    Kinds: classification, regression, multi_label, multiple_choice, question_answering, similarity, tagging."""
    source: Annotated[TaskSource, OmitArgPrefixes] = field(default_factory=TaskSource)
    """Where the examples come from."""
    splits: tuple[str, ...] = ()
    """Splits to evaluate on: dev, dev_matched, test, and so on. Not given: all that have labels, but not train.
    Where none has, it is test."""
    predictions: Path | None = None
    """A folder for predictions: JSON lines with probabilities for every task; GLUE's files; SQuAD's JSON."""
    report: Path | None = None
    """An HTML page with an error analysis; its name ends in .html."""
    max_length: int | None = None
    """The longest input in tokens. Not given: as in fine-tuning."""
    stride: int | None = None
    """For questions on long passages: how many tokens after one window the next one begins, half a window at most.
    Not given: as in fine-tuning."""
    long_texts: LongTexts | None = None
    """Texts over --max-length: cut them, or take the mean or the max of the scores of their windows.
    Not given: as in fine-tuning."""
    null_threshold: float | None = None
    """The null score above which a question is predicted to have no answer. Not given: as fitted in fine-tuning.
    Without that, one is fitted on half of the passages for the other half."""
    max_answer_tokens: int | None = None
    """The longest answer to a question, in tokens. Not given: as in fine-tuning."""
    n_best: int = N_BEST
    """How many candidate answers are kept, and written with the predictions."""
    tokens_at_a_time: int = TOKENS_AT_A_TIME
    """How many tokens are computed together: fewer need less memory."""
    json: bool = False
    """Print JSON for programs."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("no model is named: give the folder of a fine-tuned model, or of several to average")
        check_at_least_one(self, "max_length", "stride", "max_answer_tokens", "n_best", "tokens_at_a_time")
        if self.report is not None and self.report.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"--report is {self.report}, but the page is HTML: give a name that ends in .html")
        if self.report is not None and self.report.is_dir():
            raise UserError(f"--report {self.report} is a folder, and the page is a file: give another name")


def evaluate(settings: Evaluate) -> None:
    """Evaluate the models, write what was requested, and print the metrics."""
    ensemble, task, results = score_models(settings)
    print(as_json(ensemble, task, results) if settings.json else as_table(task, results), flush=True)


def score_models(settings: Evaluate) -> tuple[Ensemble, Task, list[Result]]:
    """Evaluate the models on each split, and write what was requested."""
    # A folder that cannot be written is an error before anything is computed.
    for folder in (settings.predictions, settings.report.parent if settings.report is not None else None):
        if folder is not None:
            atomic_io.make_folder(folder)
    ensemble = load_models(settings.models)
    task = with_trained_metric(open_for(ensemble, settings.task, settings.source), ensemble)
    options = resolve_options(settings, ensemble)
    splits = tuple(dict.fromkeys(settings.splits)) or task.splits or ("test",)
    results: list[Result] = []
    with open_device(settings.speed) as device:
        for model in ensemble.models:
            model.to(device.torch_device)
        for split in splits:
            try:
                evaluation = _evaluate_split(settings, options, ensemble, task, split, device)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"{settings.tokens_at_a_time:,} tokens at a time do not fit into the memory: give fewer with "
                    "--tokens-at-a-time"
                ) from None
            analysis = analyze_errors(evaluation) if evaluation.is_labelled else None
            _log_split(evaluation, analysis)
            results.append((evaluation, analysis))
    if settings.predictions is not None:
        for evaluation, _ in results:
            for path in write_files(evaluation, settings.predictions):
                log(f"predictions of {evaluation.split}: {path}")
    if settings.report is not None:
        _write_page(settings.report, ensemble, [analysis for _, analysis in results if analysis is not None])
    return ensemble, task, results


def _evaluate_split(
    settings: Evaluate, options: "Options", ensemble: Ensemble, task: Task, split: str, device: Device
) -> Evaluation:
    data = encode_split(
        task,
        split,
        task.read(split),
        ensemble.tokenizer,
        max_length=options.max_length,
        stride=options.stride,
        max_answer_tokens=options.max_answer_tokens,
        long_texts=options.long_texts,
    )
    total = float(len(ensemble.models) * len(data.encoding.sequences.ids))
    with Work(f"{task.name} {split}", total=total, unit="k tokens", scale=1e3) as work:
        evaluation = evaluate_split(
            ensemble.models,
            task,
            data,
            device,
            null_threshold=options.null_threshold,
            n_best=settings.n_best,
            tokens_at_a_time=settings.tokens_at_a_time,
            advance=work.advance,
        )
    return replace(evaluation, early_exit=_by_rule(settings, ensemble, task, data, device))


def _by_rule(
    settings: Evaluate, ensemble: Ensemble, task: Task, data: EncodedSplit, device: Device
) -> ExitPoint | None:
    """The score of a single model by its rule of early exit, as `predict` computes it; None where it has none."""
    model, sequences = ensemble.models[0], data.encoding.sequences
    is_one_each = len(sequences.example) == sequences.num_examples
    if len(ensemble.models) > 1 or model.exits is None or not sequences.targets or not is_one_each:
        return None
    info = read_exit_info(find_folder(ensemble.names[0]))
    if info is None or info.chosen.rule == NEVER:
        return None
    with Work(
        f"{task.name} {data.name}, early exit", total=float(len(sequences.ids)), unit="k tokens", scale=1e3
    ) as work:
        by_depth = predict_depths(
            model, sequences, device, tokens_at_a_time=settings.tokens_at_a_time, advance=work.advance
        )
    return measure_rule(task, data, info.head, info.chosen.rule, by_depth)


def _log_split(evaluation: Evaluation, analysis: ErrorAnalysis | None) -> None:
    """Log how a split was read; nothing is left out or truncated silently."""
    reading, sequences, split = evaluation.data.reading, evaluation.data.encoding.sequences, evaluation.split
    for sentence in (
        *reading.remarks,
        *evaluation.data.unreachable_answers(),
        *describe_constant_label(evaluation.task, reading.examples),
        *(f"{count:,} left out: {reason}" for reason, count in reading.excluded.items()),
    ):
        log(f"{split}: {sentence}")
    if sequences.num_truncated:
        number = sequences.num_truncated
        percent = percent_of(number, sequences.num_examples)
        log(f"{split}: {counted(number, 'example')} ({percent}) {were(number)} too long, and cut")
    if windows := describe_windows(evaluation.data):
        log(f"{split}: {windows}")
    if analysis is None:
        return
    if (early := evaluation.early_exit) is not None:
        metric = f"{evaluation.task.main_metric} {early.score:.2f} after {early.mean_depth:.1f} layers on average"
        log(f"{split}: by its rule of early exit, which `predict` follows: {metric}; all else is of full depth")
    if analysis.null_threshold:
        log(f"{split}: null threshold: {analysis.null_threshold}")
    if analysis.intervals:
        log(f"{split}: {explain_intervals(analysis.num_examples)}")
    for sentence in describe_never_predicted(analysis.kind, analysis.never_predicted, analysis.num_examples):
        log(f"WARNING: {split}: {sentence}")


def _write_page(path: Path, ensemble: Ensemble, analyses: Sequence[ErrorAnalysis]) -> None:
    if not analyses:
        log("no page is written: these examples have no labels, so there is nothing to show; score another split")
        return
    amounts = {describe_pretraining(known) for known in ensemble.pretraining}
    pretraining = amounts.pop() if len(amounts) == 1 else ""  # one sentence, where it holds for all
    page = evaluation_page(ensemble.names, shape_of(ensemble.models[0].config), analyses, pretraining)
    atomic_io.write_text(path, page)
    log(f"error analysis: {path}")


def as_table(task: Task, results: Sequence[Result]) -> str:
    """The metrics of each split, aligned."""
    metrics = metrics_of((evaluation.metrics for evaluation, _ in results), task.main_metric)
    rows = [[task.name, "examples", *metrics]]
    for evaluation, analysis in results:
        row = ScoreRow(evaluation.split, evaluation.metrics, analysis.intervals if analysis is not None else {})
        rows.append([row.name, f"{len(evaluation.data.examples):,}", *row.cells(metrics)])
    return aligned(rows)


def as_json(ensemble: Ensemble, task: Task, results: Sequence[Result]) -> str:
    """The same for programs."""
    splits = {}
    for evaluation, analysis in results:
        values: dict[str, object] = {
            "examples": len(evaluation.data.examples),
            "truncated": evaluation.data.encoding.sequences.num_truncated,
            "in_windows": evaluation.data.encoding.sequences.num_in_windows,
            "excluded": dict(evaluation.data.reading.excluded),
            "scores": evaluation.metrics,
        }
        if analysis is not None:
            values |= {"intervals": analysis.intervals, "never_predicted": analysis.never_predicted}
        if (early := evaluation.early_exit) is not None:
            values["early_exit"] = {task.main_metric: early.score, "mean_depth": early.mean_depth}
        if task.may_have_no_answer:
            values["null_threshold"] = evaluation.null_threshold
        splits[evaluation.split] = values
    report = {"task": task.name, "models": list(ensemble.names), "main_metric": task.main_metric, "splits": splits}
    return json_text.dumps(report, indent=2, ensure_ascii=False)


# What the user gives, else what was used in fine-tuning, else the default.


@dataclass(frozen=True)
class Options:
    """How a split is encoded and decided."""

    max_length: int
    """The longest input, in tokens."""
    stride: int
    """The distance in tokens between the starts of two windows over a passage."""
    null_threshold: float | None
    """The null score above which a question has no answer; None where it is to be fitted."""
    max_answer_tokens: int
    """The longest answer, in tokens."""
    long_texts: LongTexts
    """What becomes of texts that are longer than the input."""


def resolve_options(settings: Evaluate, ensemble: Ensemble) -> Options:
    """The user's options, else those of fine-tuning, else the defaults."""
    known = [one for one in ensemble.task_infos if one is not None]
    positions = min(model.config.max_positions for model in ensemble.models)
    if settings.max_length is not None and settings.max_length > positions:
        raise UserError(f"max_length is {settings.max_length}, but the model has {positions} positions: give no more")
    usual = min([positions, *(one.max_length for one in known)] if known else [positions, DEFAULT_MAX_LENGTH])
    stride = settings.stride or (known[0].stride if known else STRIDE)
    threshold = settings.null_threshold
    fitted = [one.null_threshold for one in known if one.null_threshold is not None]
    if threshold is None and len(fitted) == len(ensemble.models):
        threshold = sum(fitted) / len(fitted)
    longest = settings.max_answer_tokens or max((one.max_answer_tokens for one in known), default=MAX_ANSWER_TOKENS)
    ways = {one.long_texts for one in known}
    if settings.long_texts is None and len(ways) > 1:
        raise UserError(
            f"the models differ in how they read long texts ({' and '.join(sorted(ways))}): choose with --long-texts"
        )
    long_texts = settings.long_texts or (ways.pop() if ways else "truncate")
    return Options(settings.max_length or usual, stride, threshold, longest, long_texts)


def with_trained_metric(task: Task, ensemble: Ensemble) -> Task:
    """The task with the metric that its models were selected by, if it is the same for all and is measured here.

    What is measured of similarity depends on the file.
    """
    metrics = {one.metric if one is not None and one.task == task.name else "" for one in ensemble.task_infos}
    chosen = metrics.pop() if len(metrics) == 1 else ""
    return replace(task, main_metric=chosen) if chosen not in ("", LOSS) and task.kind != "similarity" else task


def open_for(ensemble: Ensemble, name: str, source: TaskSource) -> Task:
    """Open the task with the classes in the model's order; a model without its head is refused."""
    name = name or next((info.task for info in ensemble.task_infos if info is not None), "")
    if not name:
        raise UserError(f"{ensemble.names[0]} has no task.json, which names its task: give one with --task")
    if name in TASKS and not source.is_given:
        raise _missing_examples(ensemble, name)
    given = [head.kind for head in task_heads(ensemble.models[0])]
    # A model without that head may still predict no answer, by its spans alone: then the files decide.
    may_have_no_answer = "answerability" in given or None
    known = TaskMetadata(_labels_for(ensemble, name), may_have_no_answer)
    if name in TASKS and TASKS[name].kind == name:  # only files of one's own can be read in several ways
        known = replace(
            known,
            answer_format=_agreed(ensemble, "how they name the right option", lambda info: info.answer_format),
            layout=_layout(ensemble, source),
            separator=_agreed(ensemble, "the separator between labels", lambda info: info.separator),
        )
    task = open_task(name, source, known)
    needed = next((head.kind for head in task.heads), None)
    if needed is not None and needed not in given:
        raise UserError(
            f"{name} needs a {needed} head, but {ensemble.names[0]} has {', '.join(given)}: "
            "is it fine-tuned for another task?"
        )

    def read(split: str) -> Reading:
        reading = task.read(split)
        _check_pairs(ensemble, split, are_pairs(reading.examples))
        return reading

    return replace(task, read=read)


def _agreed(ensemble: Ensemble, what: str, get: Callable[[TaskInfo], Value | None]) -> Value | None:
    """The value of all models that have one; None where they differ, so that their order does not matter."""
    by_name = {
        name: found
        for name, info in zip(ensemble.names, ensemble.task_infos, strict=True)
        if info is not None and (found := get(info)) is not None
    }
    if len(set(by_name.values())) < 2:
        return next(iter(by_name.values()), None)
    each = ", ".join(f"'{found}' for {name}" for name, found in by_name.items())
    log(f"the models were trained on files that differ in {what}: {each}; it is guessed from the file that is read")
    return None


def _layout(ensemble: Ensemble, source: TaskSource) -> dict[str, str]:
    """The columns that the models were trained on. Where they differ, the user has to name the one to read."""
    if {True, False} <= {info.of_pairs for info in ensemble.task_infos if info is not None}:
        return {}  # one of them is refused once the file is read
    found: dict[str, dict[str, str]] = {}  # by role and column, the first model that was trained with it
    for name, info in zip(ensemble.names, ensemble.task_infos, strict=True):
        for role, column in info.layout.items() if info is not None else ():
            found.setdefault(role, {}).setdefault(column, name)
    sentences, settings = [], []
    for role, models in found.items():
        setting = setting_of(role)
        # Ids are not learned, and the start of an answer has no setting.
        if len(models) > 1 and setting is not None and role != "id" and not getattr(source, setting):
            (column, first), (other, second), *_ = models.items()
            sentences.append(f"{first} was trained with '{column}' as {role}, but {second} with '{other}'")
            settings.append(f"--{setting.replace('_', '-')}")
    if sentences:
        raise UserError(f"{'; '.join(sentences)}: name the one to read with {' and '.join(dict.fromkeys(settings))}")
    return {role: next(iter(models)) for role, models in found.items() if len(models) == 1}


def _missing_examples(ensemble: Ensemble, task: str) -> UserError:
    """The error where no examples are given; it names those of a run."""
    folder = "" if task == TASKS[task].kind else "its folder with --data, or "
    sentence = f"{task} needs examples: give {folder}a file with --dev, or --test to predict for, or --dataset"
    first, info = ensemble.names[0], ensemble.task_infos[0]
    known = examples_of(Path(first)) if info is not None and info.task == task else None
    if known is not None and known.is_given:
        sentence += f"; with those of {first}: `openalbert evaluate {shlex.join(ensemble.names)} {known.command_line}`"
    return UserError(sentence)


def _check_pairs(ensemble: Ensemble, split: str, are_pairs: bool | None) -> None:
    """Refuse pairs of texts for a model that was trained on single ones, and the other way round, where it is known."""
    for name, info in zip(ensemble.names, ensemble.task_infos, strict=True):
        wants = info.reads_pairs if info is not None else None
        if wants is None or are_pairs is None or wants == are_pairs:
            continue
        if are_pairs:
            raise UserError(
                f"{name} was trained on single texts, but {split} has pairs: take the column of the second text out of "
                "the file, or name a model that was trained on pairs"
            )
        raise UserError(
            f"{name} was trained on pairs of texts, but {split} has single ones: name the column of the second text "
            "with --second-column, or a model that was trained on single texts"
        )


def _labels_for(ensemble: Ensemble, name: str) -> tuple[str, ...] | None:
    """The task's names of the classes, in the model's order."""
    labels = ensemble.labels
    known = GLUE[name].labels if name in GLUE else ()
    if not known or not labels:
        return labels or None
    by_name = {label.lower(): label for label in known}
    if sorted(label.lower() for label in labels) == sorted(by_name):
        return tuple(by_name[label.lower()] for label in labels)
    if len(labels) == len(known) and all(_UNNAMED.fullmatch(label) for label in labels):
        log(f"the model's classes have no names ({', '.join(labels)}): taken for {', '.join(known)}")
        return known
    raise UserError(
        f"{ensemble.names[0]} has the classes {', '.join(labels)}, but {name} has {', '.join(known)}: "
        "is it fine-tuned for another task?"
    )
