"""`openalbert evaluate`: how well a model does a task, or several models together (the paper's ensembles)."""

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.ensemble import Loaded, load_models, log, open_for
from openalbert.finetuning.examine import Examined, examine
from openalbert.finetuning.span_decoding import N_BEST
from openalbert.finetuning.submission import write_files
from openalbert.formatting import counted, percent_of, were
from openalbert.report.error_analysis import explain_intervals, with_interval
from openalbert.report.report import evaluation_page
from openalbert.report.summary import describe_pretraining
from openalbert.tasks.label_checks import describe_constant_label, describe_never_predicted
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.paper_scores import shape_of
from openalbert.tasks.registry import TaskSource
from openalbert.tasks.task import MAX_ANSWER_TOKENS, Task
from openalbert.train.device import Speed, open_device

LONGEST = 512  # tokens of an input, where nothing says otherwise


@dataclass(frozen=True)
class Evaluate:
    """Score a fine-tuned model on a task; several models are averaged. Predictions can be written to files."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL [MODEL ...]", help_behavior_hint="")]
    """Fine-tuned models: model folders, runs of `openalbert finetune`, or Hugging Face's `owner/name`."""
    task: str = ""
    """A known task or, for files of your own, its kind. Not given: what the model was tuned for.
    Known: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad1, squad2, race, race_middle, race_high.
    Kinds: classification, regression, multi_label, multiple_choice, question_answering."""
    source: Annotated[TaskSource, OmitArgPrefixes] = field(default_factory=TaskSource)
    """Where the examples come from."""
    splits: tuple[str, ...] = ()
    """What to score: dev, dev_matched, test, and so on. Not given: all that have labels, but not train."""
    predictions: Path | None = None
    """A folder for predictions: for every task an object a line, with probabilities; GLUE's files; SQuAD's JSON."""
    report: Path | None = None
    """A page that looks at the mistakes more closely; its name ends in .html."""
    max_length: int | None = None
    """The longest input in tokens. Not given: as in fine-tuning."""
    stride: int | None = None
    """For questions on long passages: how many tokens after one window the next one begins, half a window at most.
    Not given: as in fine-tuning."""
    null_threshold: float | None = None
    """Where a question may have no answer: above which null score it has none. Not given: as fine-tuning found it.
    Without that, one is fitted on half of the passages for the other half."""
    max_answer_tokens: int | None = None
    """The longest answer to a question, in tokens. Not given: as in fine-tuning."""
    n_best: int = N_BEST
    """How many candidates for an answer are kept, and written with the predictions."""
    tokens_at_a_time: int = 16384
    """How many tokens are computed together: fewer need less memory."""
    json: bool = False
    """Print JSON for programs."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("no model is named: give the folder of a fine-tuned model, or of several to average")
        for name in ("max_length", "stride", "max_answer_tokens", "n_best", "tokens_at_a_time"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}: it must be at least 1")
        if self.report is not None and self.report.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"--report is {self.report}, but the page is HTML: give a name that ends in .html")
        if self.report is not None and self.report.is_dir():
            raise UserError(f"--report {self.report} is a folder, and the page is a file: give another name")


def evaluate(settings: Evaluate) -> None:
    """Score the models, write what was asked for, and print the metrics."""
    loaded, task, examined = score_models(settings)
    print(as_json(loaded, task, examined) if settings.json else as_table(task, examined), flush=True)


def score_models(settings: Evaluate) -> tuple[Loaded, Task, list[Examined]]:
    """Score the models on each split, and write what was asked for."""
    # What cannot be written is found out before anything is computed.
    for folder in (settings.predictions, settings.report.parent if settings.report is not None else None):
        if folder is not None:
            atomic_io.make_folder(folder)
    loaded = load_models(settings.models)
    task = optimized_as(open_for(loaded, settings.task, settings.source), loaded)
    asked = asked_how(settings, loaded)
    splits = tuple(dict.fromkeys(settings.splits)) or task.splits
    if not splits:
        raise UserError(f"{task.name} has nothing with labels here to score on: predict for it with --splits test")
    examined: list[Examined] = []
    with open_device(settings.speed) as device:
        models = [model.to(device.torch_device) for model in loaded.models]
        for split in splits:
            try:
                one = examine(
                    models,
                    task,
                    split,
                    loaded.tokenizer,
                    device,
                    max_length=asked.max_length,
                    stride=asked.stride,
                    null_threshold=asked.null_threshold,
                    n_best=settings.n_best,
                    max_answer_tokens=asked.max_answer_tokens,
                    tokens_at_a_time=settings.tokens_at_a_time,
                )
            except torch.OutOfMemoryError:
                raise UserError(
                    f"{settings.tokens_at_a_time:,} tokens at a time do not fit into the memory: give fewer with "
                    "--tokens-at-a-time"
                ) from None
            tell(task, one)
            examined.append(one)
    if settings.predictions is not None:
        for one in examined:
            for path in write_files(task, one, settings.predictions):
                log(f"predictions of {one.split}: {path}")
    if settings.report is not None:
        _write_page(settings.report, loaded, examined)
    return loaded, task, examined


def _write_page(path: Path, loaded: Loaded, examined: Sequence[Examined]) -> None:
    analyses = [one.analyses for one in examined if one.analyses is not None]
    if not analyses:
        log("no page is written: these examples have no labels, so there is nothing to show; score another split")
        return
    amounts = {describe_pretraining(known) for known in loaded.pretraining}
    pretraining = amounts.pop() if len(amounts) == 1 else ""  # one sentence, where it holds for all
    page = evaluation_page(loaded.names, shape_of(loaded.models[0].config), analyses, pretraining)
    atomic_io.write_text(path, page)
    log(f"error analysis: {path}")


@dataclass(frozen=True)
class Asked:
    """How models are asked."""

    max_length: int
    """The longest input, in tokens."""
    stride: int
    """How many tokens after one window over a passage the next one begins."""
    null_threshold: float | None
    """Above which null score a question has no answer; None where it is to be fitted."""
    max_answer_tokens: int
    """The longest answer, in tokens."""


def optimized_as(task: Task, loaded: Loaded) -> Task:
    """The task with the metric that its models were optimized by, if all were by one that is scored here too."""
    metrics = {one.metric if one is not None and one.task == task.name else "" for one in loaded.tuned}
    chosen = metrics.pop() if len(metrics) == 1 else ""
    return replace(task, main_metric=chosen) if chosen not in ("", LOSS) else task


def asked_how(settings: Evaluate, loaded: Loaded) -> Asked:
    """As the user says, else as in fine-tuning, else as usual."""
    tuned = [one for one in loaded.tuned if one is not None]
    positions = min(model.config.max_positions for model in loaded.models)
    if settings.max_length is not None and settings.max_length > positions:
        raise UserError(f"max_length is {settings.max_length}, but the model has {positions} positions: give no more")
    usual = min([positions, *(one.max_length for one in tuned)] if tuned else [positions, LONGEST])
    stride = settings.stride or (tuned[0].stride if tuned else 128)
    threshold = settings.null_threshold
    found = [one.null_threshold for one in tuned if one.null_threshold is not None]
    if threshold is None and len(found) == len(loaded.models):
        threshold = sum(found) / len(found)
    longest = settings.max_answer_tokens or max((one.max_answer_tokens for one in tuned), default=MAX_ANSWER_TOKENS)
    return Asked(settings.max_length or usual, stride, threshold, longest)


def tell(task: Task, examined: Examined) -> None:
    """What the user should know of how a split was read; nothing is left out or cut in silence."""
    for remark in examined.reading.remarks:
        log(f"{examined.split}: {remark}")
    for told in describe_constant_label(task, examined.reading.examples):
        log(f"{examined.split}: {told}")
    for reason, count in examined.reading.excluded.items():
        log(f"{examined.split}: {count:,} left out: {reason}")
    sequences = examined.encoding.sequences
    if sequences.num_truncated:
        number = sequences.num_truncated
        of_all = percent_of(number, sequences.num_examples)
        log(f"{examined.split}: {counted(number, 'example')} ({of_all}) {were(number)} too long, and cut")
    found = examined.analyses
    if found is not None and found.null_threshold:
        log(f"{examined.split}: threshold of the null score: {found.null_threshold}")
    if found is not None and found.intervals:
        log(f"{examined.split}: {explain_intervals(found.num_examples)}")
    if found is not None:
        for told in describe_never_predicted(found.kind, found.never_predicted, found.num_examples):
            log(f"WARNING: {examined.split}: {told}")


def as_table(task: Task, examined: Sequence[Examined]) -> str:
    """The figures of each split, aligned."""
    names = list(dict.fromkeys(name for one in examined for name in one.scores))
    names.sort(key=lambda name: name != task.main_metric)
    head = [task.name, "examples", *names]
    rows = [
        [
            one.split,
            f"{len(one.reading.examples):,}",
            *(
                with_interval(one.scores[name], _intervals(one).get(name)) if name in one.scores else "–"
                for name in names
            ),
        ]
        for one in examined
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [head, *rows]
    )


def _intervals(examined: Examined) -> Mapping[str, tuple[float, float]]:
    return examined.analyses.intervals if examined.analyses is not None else {}


def as_json(loaded: Loaded, task: Task, examined: Sequence[Examined]) -> str:
    """The same for programs."""
    splits = {
        one.split: {
            "examples": len(one.reading.examples),
            "truncated": one.encoding.sequences.num_truncated,
            "excluded": dict(one.reading.excluded),
            "scores": one.scores,
            **(
                {"intervals": one.analyses.intervals, "never_predicted": one.analyses.never_predicted}
                if one.analyses
                else {}
            ),
            **({"null_threshold": one.null_threshold} if task.may_have_no_answer else {}),
        }
        for one in examined
    }
    values = {"task": task.name, "models": list(loaded.names), "main_metric": task.main_metric, "splits": splits}
    return json_text.dumps(values, indent=2, ensure_ascii=False)
