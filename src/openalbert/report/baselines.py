"""What a fine-tuned model buys over the baselines of its task: rows of tables, and a sentence."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from openalbert.formatting import counted
from openalbert.report.error_analysis import written_scores
from openalbert.run_files import CROSS_VALIDATION


class BaselineRow(NamedTuple):
    """The scores of a baseline on a split."""

    name: str
    scores: Mapping[str, float]
    intervals: Mapping[str, Any]


def baseline_rows(scores: Mapping[str, Any], split: str) -> list[BaselineRow]:
    """The baselines in a run's scores.json on one of its splits; none for other kinds of tasks and older runs."""
    return [
        BaselineRow(one["name"], one["scores"][split], one["intervals"].get(split, {}))
        for one in (scores.get("baselines") or {}).get("rows", ())
        if split in one["scores"]
    ]


def baseline_lines(scores: Mapping[str, Any], split: str, main_metric: str) -> list[str]:
    """A line for each baseline."""
    return [
        f"{split}, {row.name}: {written_scores(row.scores, main_metric, row.intervals)}"
        for row in baseline_rows(scores, split)
    ]


def is_worth_it(gain: Mapping[str, Any]) -> bool:
    """Whether a gain over the best baseline is more than chance on these examples explains."""
    interval = gain["interval"]
    return bool((interval[0] if interval is not None else gain["points"]) > 0)


def describe_gain(gain: Mapping[str, Any]) -> str:
    """What the model buys over the best baseline, in a sentence; plainly where it buys nothing."""
    interval, points = gain["interval"], gain["points"]
    ends = f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval is not None else ""
    difference = f"{gain['metric']} {points:+.2f} points{ends}".replace("-", "−")
    where = f"On {gain['split']}" if gain["split"] != CROSS_VALIDATION else "In cross-validation"
    over, examples = f"the baseline {gain['over']}", counted(gain["num_examples"], "example")
    if is_worth_it(gain):
        return f"{where} the model is better than {over}: {difference}"
    if interval is not None and interval[1] > 0:
        return f"{where} the model is not measurably better than {over}: {difference}; {examples} cannot show a gain"
    verdict = f"is worse than {over}" if points < 0 else f"is no better than {over}"
    return f"{where} the model {verdict}: {difference}; on these {examples} it buys nothing"
