"""The numbers and sentences about a run that its page and its model card share."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openalbert.errors import UserError
from openalbert.formatting import count, duration, number, percent, present
from openalbert.interop.pretraining_json import NONE, Pretraining, PretrainingStage
from openalbert.model.presets import PAPER_TOKENS
from openalbert.report.run_reader import Records, RunRecord
from openalbert.run_files import CHECKPOINTS, RUN_INFO, model_name
from openalbert.settings import from_dict


@dataclass(frozen=True)
class Result:
    """A metric and the levels to compare it with."""

    name: str
    value: float | None
    text: str
    levels: dict[str, str]
    """The unigram model and chance, as far as they are known."""


def last_step(run: RunRecord) -> int:
    """The last step that was logged."""
    return int(max(run.train.last("step") or 0, run.evaluation.last("step") or 0))


def last_checkpoint(run: RunRecord) -> int | None:
    """The step of the newest checkpoint in a run's folder; None where there is none."""
    steps = (path.name.removeprefix("step-") for path in (run.folder / CHECKPOINTS).glob("step-*"))
    return max((int(step) for step in steps if step.isdigit()), default=None)


def tokens_seen(run: RunRecord) -> float | None:
    """Tokens seen up to the last record."""
    actual = present(run.info("actual", "tokens"))
    found = [records.last("tokens") for records in (run.train, run.evaluation)]
    return (
        actual
        if actual is not None
        else max((tokens for tokens in found if tokens is not None and math.isfinite(tokens)), default=None)
    )


def training_seconds(run: RunRecord) -> float | None:
    """Training time, summed over restarts."""
    hours = present(run.info("actual", "hours"))
    return run.train.last("seconds") if hours is None else 3600 * hours


def epochs(run: RunRecord) -> float | None:
    """Epochs over the usable training tokens of the run's last dataset."""
    tokens, all_tokens = tokens_seen(run), present(run.info("data", "train_tokens"))
    if tokens is not None:
        tokens -= present(run.info("data", "from_tokens")) or 0
    usable = None if all_tokens is None else all_tokens - (present(run.info("data", "unusable_tokens")) or 0)
    return tokens / usable if tokens is not None and usable else None


def earlier_data(run: RunRecord) -> list[dict[str, Any]]:
    """The datasets that a run was trained on before it was continued on another."""
    return list(run.run_info.get("earlier_data", ()))


def runs_before(run_info: dict[str, Any]) -> tuple[PretrainingStage, ...]:
    """The runs that a run continued, oldest first."""
    return tuple(from_dict(values, PretrainingStage, RUN_INFO) for values in run_info.get("before", ()))


def current_evaluations(run: RunRecord) -> Records:
    """The evaluations on the held-out text that the run has now, or had at its end."""
    changed = max((event.step for event in run.events if event.what == "new_heldout"), default=-1)
    return run.evaluation.where(run.evaluation.columns["step"] > changed)


def scored_records(run: RunRecord) -> Records:
    """The records that the final metrics come from: evaluations on held-out text, or without any the training batches.

    A training record whose steps were all skipped has no loss and does not count.
    """
    evaluations = current_evaluations(run)
    if len(evaluations) or not run.train.has("mlm_loss"):
        return evaluations if len(evaluations) else run.train
    return run.train.where(np.isfinite(run.train.columns["mlm_loss"]))


def final_results(run: RunRecord) -> list[Result]:
    """The metrics of the last evaluation (or training record), with unigram model and chance."""
    records = scored_records(run)
    entropy, vocab_size = present(run.info("unigram_entropy")), present(run.info("vocab_size"))
    loss = records.last("mlm_loss")
    perplexity = math.exp(min(loss, 700)) if loss is not None and math.isfinite(loss) else loss
    uniform = math.log(vocab_size) if vocab_size and vocab_size > 0 else None
    results = [
        Result("MLM loss", loss, number(loss), _levels(entropy, uniform, number)),
        Result(
            "perplexity",
            perplexity,
            number(perplexity, 3),
            _levels(None if entropy is None else math.exp(min(entropy, 700)), vocab_size, lambda v: number(v, 3)),
        ),
        Result(
            "MLM accuracy",
            records.last("mlm_acc"),
            percent(records.last("mlm_acc")),
            _levels(None, 1 / vocab_size if vocab_size else None, percent),
        ),
    ]
    for name, label in (("sop_acc", "SOP accuracy"), ("nsp_acc", "NSP accuracy")):
        if records.has(name):
            accuracy = records.last(name)
            results.append(Result(label, accuracy, percent(accuracy), {"chance": "50.0 %"}))
    return results


def _levels(unigram: float | None, chance: float | None, write: Callable[[object], str]) -> dict[str, str]:
    named = (("unigram model", unigram), ("chance", chance))
    return {name: write(value) for name, value in named if value is not None}


def compare_with_unigram(run: RunRecord) -> str:
    """Whether the model has learned more than token frequencies, in a sentence; "" where that is not known."""
    loss, entropy = scored_records(run).last("mlm_loss"), present(run.info("unigram_entropy"))
    if loss is None or entropy is None:
        return ""
    if not math.isfinite(loss):
        return "The loss is not finite: this run has diverged."
    where = "held-out text" if len(current_evaluations(run)) else "its training batches"
    gap = entropy - loss
    if gap < 0.1:
        return f"On {where} the MLM loss is not clearly below the unigram entropy of {number(entropy)} nats."
    return f"On {where} the MLM loss is {number(gap, 3)} nats below the unigram entropy."


def length(run: RunRecord) -> str:
    """Steps, tokens and training time: `8,000 steps, 524 M tokens in 18 min of training`."""
    words = [f"{last_step(run):,} steps"]
    if tokens_seen(run) is not None:
        words.append(f"{count(tokens_seen(run))} tokens")
    seconds = training_seconds(run)
    return ", ".join(words) + (f" in {duration(seconds)} of training" if seconds is not None else "")


def hardware(run: RunRecord) -> str:
    """The hardware that a run used."""
    return over_all_starts(run.run_info, "device") or "unknown hardware"


def machines(run_info: dict[str, Any]) -> list[dict[str, Any]]:
    """The run info of each machine that a run was on, in order; the first is that of the run itself."""
    return [run_info, *run_info.get("moves", ())]


def over_all_starts(run_info: dict[str, Any], name: str) -> str | None:
    """A value of run info over all machines, in order: `1 x NVIDIA H200, then 1 x NVIDIA A100`."""
    values = [str(machine[name]) for machine in machines(run_info) if machine.get(name)]
    return ", then ".join(value for value, _ in itertools.groupby(values)) or None


def initialized_from(run: RunRecord) -> str:
    """The name of the model that a fine-tuning run was initialized from; "" where its weights were drawn at random."""
    folder = Path(str(run.info("model") or "an unknown model"))
    if run.settings.get("from_scratch"):
        return ""
    return model_name(folder)


def pretraining_of(run: RunRecord) -> str:
    """How much pretraining the model had that a fine-tuning run was initialized from: a predicate to "was"."""
    try:
        known = NONE if run.settings.get("from_scratch") else from_dict(run.info("pretraining"), Pretraining, RUN_INFO)
    except UserError:
        known = None
    return describe_pretraining(known)


def describe_pretraining(known: Pretraining | None) -> str:
    """How much pretraining some weights have had: a predicate to "was"."""
    if known is None:
        return "pretrained on an unknown amount of text"
    if known == NONE:
        return "not pretrained"
    fraction = f"{percent(known.tokens / PAPER_TOKENS)} of the paper's {count(PAPER_TOKENS)}"
    more = f", not counting the pretraining of {known.unknown_start}, which is unknown" if known.unknown_start else ""
    return f"pretrained on {count(known.tokens)} tokens ({fraction}{more})"
