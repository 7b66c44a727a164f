"""What a run came to, in figures: the page and the model card take them from here, so that they say the same."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from openalbert.formatting import count, duration, number, percent, present
from openalbert.interop.pretraining_json import PretrainingStage
from openalbert.interop.run_files import RUN_INFO
from openalbert.report.run_reader import Records, RunRecord
from openalbert.settings import from_dict


@dataclass(frozen=True)
class Result:
    """One figure beside what it is to be compared with."""

    name: str
    value: float | None
    written: str
    levels: dict[str, str]
    """What it is to be compared with: the unigram plateau and chance, as far as they are known."""


def last_step(run: RunRecord) -> int:
    """The last step that anything is recorded of."""
    return int(max(run.train.last("step") or 0, run.evaluation.last("step") or 0))


def tokens_seen(run: RunRecord) -> float | None:
    """Tokens read up to the last record."""
    actual = present(run.info("actual", "tokens"))
    found = [records.last("tokens") for records in (run.train, run.evaluation)]
    return (
        actual
        if actual is not None
        else max((tokens for tokens in found if tokens is not None and math.isfinite(tokens)), default=None)
    )


def training_seconds(run: RunRecord) -> float | None:
    """Time of training, all restarts together."""
    hours = present(run.info("actual", "hours"))
    return run.train.last("seconds") if hours is None else 3600 * hours


def passes(run: RunRecord) -> float | None:
    """How often the training tokens were seen: those that the objective can use, of the last data that it read."""
    tokens, all_tokens = tokens_seen(run), present(run.info("data", "train_tokens"))
    if tokens is not None:
        tokens -= present(run.info("data", "from_tokens")) or 0
    usable = None if all_tokens is None else all_tokens - (present(run.info("data", "unusable_tokens")) or 0)
    return tokens / usable if tokens is not None and usable else None


def earlier_data(run: RunRecord) -> list[dict[str, Any]]:
    """The records of the data that a run was trained on before it was continued on others."""
    found = run.info("earlier_data")
    return [record for record in found if isinstance(record, dict)] if isinstance(found, list) else []


def runs_before(run_info: dict[str, Any]) -> tuple[PretrainingStage, ...]:
    """The runs that a run continued, oldest first."""
    return tuple(from_dict(values, PretrainingStage, RUN_INFO) for values in run_info.get("before", ()))


def current_evaluations(run: RunRecord) -> Records:
    """The evaluations on the held-out text that the run has now, or had at its end."""
    changed = max((event.step for event in run.events if event.what == "new_heldout"), default=-1)
    return run.evaluation.where(run.evaluation.columns["step"] > changed)


def judged_by(run: RunRecord) -> Records:
    """The records that a run is judged by: held-out text, or without it its own training batches.

    A training record whose steps were all skipped has no loss to judge by.
    """
    evaluations = current_evaluations(run)
    if len(evaluations) or not run.train.has("mlm_loss"):
        return evaluations if len(evaluations) else run.train
    return run.train.where(np.isfinite(run.train.columns["mlm_loss"]))


def final_results(run: RunRecord) -> list[Result]:
    """The figures of the last evaluation (or training record), each beside its plateau and chance."""
    records = judged_by(run)
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


def _levels(plateau: float | None, chance: float | None, write: Callable[[object], str]) -> dict[str, str]:
    named = (("unigram plateau", plateau), ("chance", chance))
    return {name: write(value) for name, value in named if value is not None}


def verdict(run: RunRecord) -> str:
    """Whether the model has learned more than how often each word occurs."""
    loss, entropy = judged_by(run).last("mlm_loss"), present(run.info("unigram_entropy"))
    if loss is None or entropy is None:
        return ""
    if not math.isfinite(loss):
        return "The loss is not finite: this run has diverged."
    where = "held-out text" if len(current_evaluations(run)) else "its training batches"
    gap = entropy - loss
    if gap < 0.1:
        return f"On {where} the loss is not clearly under what word frequencies alone give ({number(entropy)})."
    return f"On {where} the loss is {number(gap, 3)} nats under what word frequencies alone give."


def length(run: RunRecord) -> str:
    """How long the run was, in a sentence."""
    words = [f"{last_step(run):,} steps"]
    if tokens_seen(run) is not None:
        words.append(f"{count(tokens_seen(run))} tokens")
    seconds = training_seconds(run)
    return ", ".join(words) + (f" in {duration(seconds)} of training" if seconds is not None else "")


def hardware(run: RunRecord) -> str:
    """What it ran on."""
    return over_all_starts(run.run_info, "device") or "hardware that is not recorded"


def places(run_info: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts of each machine that a run was on, in order; the first one's are those of the run itself."""
    moves = run_info.get("moves")
    return [run_info, *[move for move in (moves if isinstance(moves, list) else []) if isinstance(move, dict)]]


def over_all_starts(run_info: dict[str, Any], name: str) -> str | None:
    """A value of the places that a run was on, in order: `1 x NVIDIA H200, then 1 x NVIDIA A100`."""
    values = [str(place[name]) for place in places(run_info) if place.get(name)]
    return ", then ".join(value for value, _ in itertools.groupby(values)) or None
