"""Several runs that differ by their seed alone, and what they come to: the paper reports the median of five."""

import json
import shutil
import statistics
from dataclasses import replace
from typing import Any

from openalbert import atomic_io
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.outcome import REPORT, SCORES
from openalbert.finetuning.run import FinetuningRun, log_from_main
from openalbert.finetuning.settings import FREE_TO_CHANGE, Finetune, of_seed
from openalbert.formatting import NOTHING
from openalbert.report.error_analysis import explain_intervals, written_scores
from openalbert.report.model_card import with_seeds
from openalbert.report.report import write_report
from openalbert.report.run_reader import seed_folders
from openalbert.tasks.metrics import rank_of
from openalbert.train.device import Device, measure_matmul_peak
from openalbert.train.run_dir import MODEL, claim_folder
from openalbert.train.signals import Stop

SEEDS = "seeds.json"


def several_seeds(settings: Finetune, task_data: TaskData, device: Device, stop: Stop) -> None:
    """Carry out one run after another, each in a folder of its own, on the same tokenized examples."""
    peak = measure_matmul_peak(device) if device.is_cuda else None
    results = []
    for number in range(settings.seeds):
        one = replace(of_seed(settings, number), fresh=False)
        if device.is_main:
            one.out.mkdir(exist_ok=True)
        claim_folder(one, device, FREE_TO_CHANGE, (SCORES,))
        results.append(FinetuningRun(one, task_data, device, peak).carry_out(stop))
    if device.is_main:
        summary = summarize(results)
        # Where all have collapsed, a model is there to be looked at, but it is nobody's best.
        kept = max(results, key=rank_of)["seed"] if summary["best_seed"] is None else summary["best_seed"]
        with atomic_io.new_folder(settings.out / MODEL) as aside:
            shutil.copytree(settings.out / f"seed-{kept}" / MODEL, aside, dirs_exist_ok=True)
            card = aside / "README.md"
            atomic_io.write_text(card, with_seeds(card.read_text(encoding="utf-8"), seeds_told(summary), kept))
        atomic_io.write_text(settings.out / SEEDS, json.dumps(summary, indent=2) + "\n")
        write_report([settings.out], settings.out / REPORT)
        if summary["best_seed"] is None:
            log_from_main(device, f"all runs collapsed: there is no result; {settings.out / MODEL} is of seed {kept}")
        else:
            log_from_main(device, f"the model of seed {kept}, the best, is in {settings.out / MODEL}")
        counted_in = {of_seed(settings, number).out for number in range(settings.seeds)}
        for other in seed_folders(settings.out):
            if other not in counted_in:
                log_from_main(
                    device, f"{other} is of an earlier call: it stays, but does not count with --seeds {settings.seeds}"
                )
        print(table(summary))
    device.wait_for_all()


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, mean and spread of every metric over all runs, as the paper reports them; the same without the runs that
    collapsed; and which run is the best, which is none that collapsed.

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
        "figures": _summaries(results) if counting else {},
        "figures_without_collapsed": _summaries(counting),
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


def table(summary: dict[str, Any]) -> str:
    """A line for each run and for what they come to, with a word on those that collapsed."""
    split = summary["split"]
    metrics = list(summary["runs"][0]["scores"][split])
    num_runs, num_collapsed = len(summary["runs"]), summary["num_collapsed"]
    rows = [["run", "rate", "step", *metrics, ""]]
    for result in summary["runs"]:
        figures = [f"{result['scores'][split][metric]:.2f}" for metric in metrics]
        rows.append(
            [
                f"seed {result['seed']}",
                f"{result['learning_rate']:.3g}",
                str(result["step"]),
                *figures,
                "collapsed" if result["collapsed"] else _retries(len(result["attempts"])),
            ]
        )
    for line in ("median", "mean", "spread") if num_collapsed < num_runs else ():
        figures = [_told(summary["figures"][split][metric][line]) for metric in metrics]
        of = f"of all {num_runs} runs, {num_collapsed} of which collapsed" if num_collapsed else ""
        rows.append([line, "", "", *figures, of if line == "median" else ""])
    if 0 < num_collapsed < num_runs:
        figures = [_told(summary["figures_without_collapsed"][split][metric]["median"]) for metric in metrics]
        rows.append(["median", "", "", *figures, f"of the {num_runs - num_collapsed} that did not collapse"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            word.ljust(width) if column in (0, len(widths) - 1) else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            *_interval_told(summary),
            *(["all runs collapsed: there is no result"] if num_collapsed == num_runs else []),
        ]
    )


def _interval_told(summary: dict[str, Any]) -> list[str]:
    """How far the best run's scores may be off, for the split has so many examples only."""
    best, split = summary["best_seed"], summary["split"]
    for result in summary["runs"]:
        if result["seed"] == best and (ends := result.get("intervals", {}).get(split)):
            shown = written_scores(result["scores"][split], summary["main_metric"], ends)
            return [f"seed {best}, the best: {shown} ({explain_intervals(result['num_examples'][split])})"]
    return []


def seeds_told(summary: dict[str, Any]) -> str:
    """What all seeds come to, as a sentence: the plain median, and how many collapsed."""
    split, num_runs, num_collapsed = summary["split"], len(summary["runs"]), summary["num_collapsed"]
    if num_collapsed == num_runs:
        return f"All {num_runs} seeds collapsed: there is no result."

    def medians(figures: dict[str, Any]) -> str:
        return written_scores({name: one["median"] for name, one in figures[split].items()}, summary["main_metric"])

    told = f"The median of {num_runs} seeds on {split} is {medians(summary['figures'])}"
    if not num_collapsed:
        return f"{told}; none collapsed."
    without = medians(summary["figures_without_collapsed"])
    return f"{told}; {num_collapsed} of {num_runs} collapsed, and the median of the others is {without}."


def _told(figure: float | None) -> str:
    """What several runs come to, or a sign that there is no such figure: no spread, where only one counts."""
    return NOTHING if figure is None else f"{figure:.2f}"


def _retries(count: int) -> str:
    return "" if not count else f"collapsed {'once' if count == 1 else f'{count} times'}, tried again at a lower rate"
