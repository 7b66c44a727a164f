"""Scores as tables and messages have them: with intervals, next to the baselines, and the gain over these."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from openalbert.formatting import NOTHING, counted
from openalbert.run_files import CROSS_VALIDATION


class ScoreRow(NamedTuple):
    """The scores of a model or a baseline on a split."""

    name: str
    scores: Mapping[str, float]
    intervals: Mapping[str, Sequence[float]]
    """The 95 % interval of each metric that has one."""

    def cells(self, metrics: Sequence[str]) -> list[str]:
        """The cells of a row of a table with these columns."""
        return [
            with_interval(self.scores[metric], self.intervals.get(metric)) if metric in self.scores else NOTHING
            for metric in metrics
        ]


def metrics_of(scores: Iterable[Mapping[str, float]], main_metric: str) -> list[str]:
    """All metrics of some scores, the main one first."""
    names = dict.fromkeys(name for one in scores for name in one)
    return sorted(names, key=lambda name: name != main_metric)


def written_scores(
    scores: Mapping[str, float], main_metric: str, intervals: Mapping[str, Sequence[float]] | None = None
) -> str:
    """The metrics in one line, the main one first, with their intervals where they have one."""
    names = metrics_of([scores], main_metric)
    return ", ".join(f"{name} {with_interval(scores[name], (intervals or {}).get(name))}" for name in names)


def with_interval(score: float, interval: Sequence[float] | None) -> str:
    """A metric with its interval, if it has one: `97.44 [86.82, 99.55]`."""
    return f"{score:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval is not None else "")


def explain_intervals(num_examples: int) -> str:
    """What the brackets mean."""
    return f"in brackets: 95 % intervals, from {counted(num_examples, 'example')}"


def final_scores(outcome: Mapping[str, Any]) -> str:
    """The scores of a run that has ended, a line for each split and its baselines, and what the model buys."""
    lines = []
    for split, metrics in outcome["scores"].items():
        ends = outcome["intervals"].get(split, {})
        line = f"{split}: {written_scores(metrics, outcome['main_metric'], ends)}"
        lines.append(f"{line} ({explain_intervals(outcome['num_examples'][split])})" if ends else line)
        lines += baseline_lines(outcome, split, outcome["main_metric"])
    if outcome.get("gain"):
        lines.append(describe_gain(outcome["gain"]))
    return "\n".join(lines)


def baseline_rows(outcome: Mapping[str, Any], split: str) -> list[ScoreRow]:
    """The baselines in a run's scores.json on one of its splits; none for other kinds of tasks and older runs."""
    return [
        ScoreRow(one["name"], one["scores"][split], one["intervals"].get(split, {}))
        for one in (outcome.get("baselines") or {}).get("rows", ())
        if split in one["scores"]
    ]


def baseline_lines(outcome: Mapping[str, Any], split: str, main_metric: str) -> list[str]:
    """A line for each baseline."""
    return [
        f"{split}, {row.name}: {written_scores(row.scores, main_metric, row.intervals)}"
        for row in baseline_rows(outcome, split)
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
    these = "this" if gain["num_examples"] == 1 else "these"
    return f"{where} the model {verdict}: {difference}; on {these} {examples} it buys nothing"
