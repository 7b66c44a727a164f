"""What several runs that differ by their seed alone come to: the paper reports the median of five."""

import statistics
from collections.abc import Sequence
from typing import Any

from openalbert.formatting import aligned, two_decimals
from openalbert.report.scores import ScoreRow, baseline_rows, explain_intervals, written_scores
from openalbert.tasks.metrics import rank_of


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, mean and spread of every metric over all runs, as the paper reports them, and the same without the runs
    that collapsed; and the best of those that did not.

    Where all have collapsed there is no result: no median, and no best.
    """
    counting = [result for result in results if result["collapsed"] is None]
    return {
        "task": results[0]["task"],
        "main_metric": results[0]["main_metric"],
        "split": next(iter(results[0]["scores"])),
        "num_collapsed": len(results) - len(counting),
        "num_retried": sum(bool(result["attempts"]) for result in results),
        "best_seed": max(counting, key=rank_of)["seed"] if counting else None,
        "metrics": _summaries(results) if counting else {},
        "metrics_without_collapsed": _summaries(counting),
        "runs": results,
    }


def _summaries(results: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """By split and metric; nothing where there is no run."""
    return {
        split: {metric: _summary([result["scores"][split][metric] for result in results]) for metric in metrics}
        for split, metrics in (results[0]["scores"].items() if results else ())
    }


def _summary(values: list[float]) -> dict[str, float | None]:
    """`spread` is the standard deviation between runs; one run alone has none."""
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else None,
        "lowest": min(values),
        "highest": max(values),
    }


def seeds_table(summary: dict[str, Any]) -> str:
    """A line for each run, then median, mean and spread; runs that collapsed are marked."""
    split = summary["split"]
    metrics = list(summary["runs"][0]["scores"][split])
    num_runs, num_collapsed = len(summary["runs"]), summary["num_collapsed"]
    rows = [["run", "rate", "step", *metrics, ""]]
    for result in summary["runs"]:
        values = [f"{result['scores'][split][metric]:.2f}" for metric in metrics]
        rows.append(
            [
                f"seed {result['seed']}",
                f"{result['learning_rate']:.3g}",
                str(result["step"]),
                *values,
                "collapsed" if result["collapsed"] else _retries(len(result["attempts"])),
            ]
        )
    for line in ("median", "mean", "spread") if num_collapsed < num_runs else ():
        values = [two_decimals(summary["metrics"][split][metric][line]) for metric in metrics]
        of = f"of all {num_runs} runs, {num_collapsed} of which collapsed" if num_collapsed else ""
        rows.append([line, "", "", *values, of if line == "median" else ""])
    if 0 < num_collapsed < num_runs:
        values = [two_decimals(summary["metrics_without_collapsed"][split][metric]["median"]) for metric in metrics]
        rows.append(["median", "", "", *values, f"of the {num_runs - num_collapsed} that did not collapse"])
    baselines = baseline_rows(summary["runs"][0], split)
    for row in baselines:
        rows.append([row.name, "", "", *(two_decimals(row.scores.get(metric)) for metric in metrics), "baseline"])
    return "\n".join(
        [
            aligned(rows, (0, -1)),
            *_interval(summary),
            *_gain(summary, baselines),
            *(["all runs collapsed: there is no result"] if num_collapsed == num_runs else []),
        ]
    )


def _interval(summary: dict[str, Any]) -> list[str]:
    """The confidence intervals of the best run's scores."""
    best, split = summary["best_seed"], summary["split"]
    for result in summary["runs"]:
        if result["seed"] == best and (ends := result.get("intervals", {}).get(split)):
            shown = written_scores(result["scores"][split], summary["main_metric"], ends)
            return [f"seed {best}, the best: {shown} ({explain_intervals(result['num_examples'][split])})"]
    return []


def _gain(summary: dict[str, Any], baselines: Sequence[ScoreRow]) -> list[str]:
    """What the median run buys over the best baseline."""
    metric, medians = summary["main_metric"], summary["metrics"].get(summary["split"], {})
    if not baselines or metric not in medians or metric not in baselines[0].scores:
        return []
    best = max(baselines, key=lambda row: row.scores[metric])
    points = medians[metric]["median"] - best.scores[metric]
    buys = "" if points > 0 else ": the model buys nothing here"
    return [f"the median is {_signed(points)} points of {metric} from the best baseline, {best.name}{buys}"]


def seeds_sentence(summary: dict[str, Any]) -> str:
    """The median over all seeds and how many collapsed, as a sentence."""
    split, num_runs, num_collapsed = summary["split"], len(summary["runs"]), summary["num_collapsed"]
    if num_collapsed == num_runs:
        return f"All {num_runs} seeds collapsed: there is no result."

    def medians(metrics: dict[str, Any]) -> str:
        return written_scores({name: one["median"] for name, one in metrics[split].items()}, summary["main_metric"])

    median = f"The median of {num_runs} seeds on {split} is {medians(summary['metrics'])}"
    if not num_collapsed:
        return f"{median}; none collapsed."
    without = medians(summary["metrics_without_collapsed"])
    return f"{median}; {num_collapsed} of {num_runs} collapsed, and the median of the others is {without}."


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _retries(count: int) -> str:
    return "" if not count else f"collapsed {'once' if count == 1 else f'{count} times'}, tried again at a lower rate"
