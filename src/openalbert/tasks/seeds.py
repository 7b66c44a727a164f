"""Several runs that differ by their seed alone, and what they come to: the paper reports the median of five."""

import json
import shutil
import statistics
from dataclasses import replace
from typing import Any

from openalbert import durable
from openalbert.tasks.material import Material
from openalbert.tasks.outcome import REPORT, SCORES
from openalbert.tasks.report import write_report
from openalbert.tasks.run import Run, say_plainly
from openalbert.tasks.settings import FREE_TO_CHANGE, Finetune, of_seed
from openalbert.train.claim import MODEL, claim_folder
from openalbert.train.device import Device, measure_matmul_peak
from openalbert.train.interruption import Stop

SEEDS = "seeds.json"


def several_seeds(settings: Finetune, material: Material, device: Device, stop: Stop) -> None:
    """Carry out one run after another, each in a folder of its own, on the same tokenized examples."""
    peak = measure_matmul_peak(device)
    results = []
    for number in range(settings.seeds):
        one = replace(of_seed(settings, number), fresh=False)
        if device.is_main:
            one.out.mkdir(exist_ok=True)
        claim_folder(one, device, FREE_TO_CHANGE, (SCORES,))
        results.append(Run(one, material, device, peak).carry_out(stop))
    if device.is_main:
        summary = summarize(results)
        best = settings.out / f"seed-{summary['best_seed']}" / MODEL
        with durable.new_folder(settings.out / MODEL) as aside:
            shutil.copytree(best, aside, dirs_exist_ok=True)
        durable.write_text(settings.out / SEEDS, json.dumps(summary, indent=2) + "\n")
        write_report([settings.out], settings.out / REPORT)
        say_plainly(device, f"the model of seed {summary['best_seed']}, the best, is in {settings.out / MODEL}")
        print(table(summary))
    device.wait_for_all()


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, mean and spread of every figure, the runs they are of, and which of them is best."""
    main_metric = results[0]["main_metric"]
    split = next(iter(results[0]["scores"]))
    figures = {
        name: {metric: _summary([result["scores"][name][metric] for result in results]) for metric in metrics}
        for name, metrics in results[0]["scores"].items()
    }
    best = max(results, key=lambda result: result["scores"][split][main_metric])
    return {
        "task": results[0]["task"],
        "main_metric": main_metric,
        "split": split,
        "num_collapsed": sum(result["collapsed"] is not None for result in results),
        "num_retried": sum(bool(result["attempts"]) for result in results),
        "best_seed": best["seed"],
        "figures": figures,
        "runs": results,
    }


def _summary(values: list[float]) -> dict[str, float]:
    """`spread` is the standard deviation between runs."""
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        "lowest": min(values),
        "highest": max(values),
    }


def table(summary: dict[str, Any]) -> str:
    """A line for each run and for what they come to, with a word on those that collapsed."""
    split = summary["split"]
    metrics = list(summary["figures"][split])
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
    for line in ("median", "mean", "spread"):
        rows.append([line, "", "", *(f"{summary['figures'][split][metric][line]:.2f}" for metric in metrics), ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            word.ljust(width) if column in (0, len(widths) - 1) else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _retries(count: int) -> str:
    return "" if not count else f"collapsed {'once' if count == 1 else f'{count} times'}, tried again at a lower rate"
