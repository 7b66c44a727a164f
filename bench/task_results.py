"""The bundled checkpoint on every task of the paper that there is data for, with the paper's scores next to it.

    python bench/task_results.py run albert-base-wikibooks --data DATA --out runs/tasks --parallel 12
    python bench/task_results.py report runs/tasks --out results/tasks-h200

DATA holds glue/, squad/ and race/ (`docs/guides/glue-squad-race.md`). Each job is one `openalbert finetune`; small
batches leave a GPU idle, so several run at a time, the longest first. A job that has ended is not run again. Of SQuAD
2.0 only the dev set is needed: every fourth of its articles is kept apart to score on, the others are learned from.
After `--minutes` everything is stopped with checkpoints, and the same command resumes it.
What holds for one campaign alone is in note.md next to the report, and is added to it.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints_h200 import wait_or_stop

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Job:
    """How a task is fine-tuned: Table 14 of the paper, except for these."""

    task: str
    epochs: float
    seeds: int = 1
    rate: float = 1e-4
    """Higher than Table 14's, which are for a model that read far more: this one moves further from where it is."""
    more: str = ""
    note: str = ""


WNLI = "dev has training sentences with the other answer; the more frequent label is 56.3 %"
SQUAD2 = "3 of 4 articles of dev to learn from, 1 to score on; 46.6 % of those questions have no answer"
# Without dropout within the encoder, as the paper has it for most tasks: a model of so little reading does not need it.
JOBS = [
    Job("race", 1, rate=5e-5, more="--evaluate-every 1300", note="the paper's best is on test"),
    Job("sst2", 2, seeds=3),
    Job("cola", 5, seeds=5),
    Job("stsb", 5, seeds=5),
    Job("squad2", 3, seeds=3, more="--evaluate-every 250", note=SQUAD2),
    Job("squad1", 3, seeds=3, more="--evaluate-every 250", note="9 % of the training set"),
    Job("mnli", 5, seeds=3, note="2 % of the training set; matched, the mismatched dev set was not at hand"),
    Job("qnli", 5, seeds=3, note="9 % of the training set"),
    Job("qqp", 5, seeds=3, note="2 % of the training set; scored on 1,000 held out of it"),
    Job("mrpc", 5, seeds=5),
    Job("rte", 7, seeds=5),
    Job("wnli", 10, seeds=5, note=WNLI),
]
TABLE = "cola sst2 mrpc stsb qqp mnli qnli rte wnli squad1 squad2 race".split()  # in the usual order
VIA = {"rte": "mnli", "stsb": "mnli", "mrpc": "mnli", "squad2": "squad1"}  # the first three as the paper did
KINDS = ("direct", "via")
CURVE_POINTS = 40  # of each run's training curve, in curves.jsonl


def data_words(task: str, data: Path, out: Path) -> list[str]:
    """Where a task's examples are."""
    if task == "squad2":
        return squad2_by_article(data / "squad" / "dev-v2.0.json", out)
    if task == "squad1":
        files = {"train": "train-partial-v1.1.json", "dev": "dev-v1.1.json"}
        return [word for split, name in files.items() for word in (f"--{split}", str(data / "squad" / name))]
    return ["--data", str(data / ("race" if task == "race" else "glue"))]


def squad2_by_article(path: Path, out: Path) -> list[str]:
    """The dev set cut in two, no article in both."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    words = []
    for split, is_dev in (("train", False), ("dev", True)):
        articles = [article for number, article in enumerate(whole["data"]) if (number % 4 == 3) == is_dev]
        file = out / f"squad2-{split}.json"
        file.write_text(json.dumps({"version": whole["version"], "data": articles}), encoding="utf-8")
        words += [f"--{split}", str(file)]
    return words


def command(job: Job, suffix: str, arguments: argparse.Namespace) -> list[str]:
    """The command line of one run, or of several seeds."""
    out = arguments.out / f"{job.task}{suffix}"
    words = [sys.executable, "-m", "openalbert", "finetune", arguments.model, "--task", job.task, "--out", str(out)]
    words += [*data_words(job.task, arguments.data, arguments.out), "--seeds", str(job.seeds), "--dropout", "0"]
    words += ["--no-baselines"]  # the report has none, and they need scikit-learn
    words += ["--optimizer.learning-rate", f"{job.rate:g}", *job.more.split(), *arguments.more.split()]
    if "--steps" not in words:
        words += ["--epochs", f"{job.epochs:g}"]
    if suffix:
        words += ["--from", str(arguments.out / VIA[job.task])]
    return words


def via(task: str) -> str:
    """What the folder's name of a run that is initialized from another task's model ends in."""
    return f"-from-{VIA[task]}"


def run(arguments: argparse.Namespace) -> bool:
    """All jobs, several at a time; returns whether all have ended well."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in JOBS if job.task in arguments.tasks]
    started = time.perf_counter()
    environment = {"OMP_NUM_THREADS": "1"} | os.environ

    def carry_out(job: Job, suffix: str) -> bool:
        left = 60 * arguments.minutes - (time.perf_counter() - started)
        if left <= 0:
            return False
        began = time.perf_counter()
        log = arguments.out / f"{job.task}{suffix}.log"
        with log.open("w", encoding="utf-8") as file:
            words = command(job, suffix, arguments)
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=environment)
            code = wait_or_stop(process, left)
        now = time.perf_counter()
        last = (log.read_text(encoding="utf-8").strip().splitlines() or [""])[-1]
        ended = "done" if code == 0 else f"FAILED ({code})"
        print(f"{now - started:6.0f} s  {job.task}{suffix}: {ended} in {now - began:.0f} s  {last[:90]}", flush=True)
        return code == 0

    with ThreadPoolExecutor(arguments.parallel) as workers:
        # Models that others are initialized from come first.
        first = {job.task: workers.submit(carry_out, job, "") for job in jobs if job.task in VIA.values()}
        pending = [workers.submit(carry_out, job, "") for job in jobs if job.task not in first]
        for task, one in first.items():
            if one.result():
                pending += [workers.submit(carry_out, job, via(job.task)) for job in jobs if VIA.get(job.task) == task]
        is_done = all(one.result() for one in (*first.values(), *pending))
    print(f"{time.perf_counter() - started:.0f} s in all", flush=True)
    return is_done


def read(folder: Path) -> dict[str, Any] | None:
    """The seeds of a job that have ended; nothing where none has."""
    ended = sorted(folder.glob("seed-*/scores.json")) or sorted(folder.glob("scores.json"))
    if not ended:
        return None
    runs = [json.loads(scores.read_text()) for scores in ended]
    # Which folders the files were in is nobody else's concern.
    run_info = [
        json.loads(re.sub(r'(?<=[ "])/[^\s"]*/', "", (scores.parent / "run_info.json").read_text())) for scores in ended
    ]
    curves = [compact(scores.parent / "metrics.jsonl") for scores in ended]
    for one, curve in zip(runs, curves, strict=True):
        one["skipped_steps"] = curve["skipped"]
    return {"runs": runs, "facts": run_info[0], "places": list(dict.fromkeys(map(place, run_info))), "curves": curves}


def compact(metrics: Path) -> dict[str, Any]:
    """A run's metrics in short: every evaluation, some points of the training curve, the steps that were skipped."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    train = [record for record in records if record["kind"] == "train"]
    points = train[:: max(1, len(train) // CURVE_POINTS)]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    return {
        "steps": [record["step"] for record in points],
        "loss": [record.get("loss") for record in points],
        "evaluations": [{k: v for k, v in record.items() if k not in ("kind", "seconds")} for record in evaluations],
        "skipped": train[-1]["skipped"] if train else 0,
    }


def place(run_info: dict[str, Any]) -> str:
    """What a run was on, in words."""
    from openalbert.report.summary import over_all_starts

    device, precision, torch = (over_all_starts(run_info, name) for name in ("device", "precision", "torch"))
    return f"{device}, {precision}, torch {torch}"


def report(arguments: argparse.Namespace) -> None:
    """The table and the picture of all jobs that have ended."""
    from openalbert.finetuning.seeds import summarize
    from openalbert.tasks.paper_scores import reported

    found = {
        (job.task, kind): outcome
        for job in JOBS
        for kind in KINDS
        if kind == "direct" or job.task in VIA
        if (outcome := read(arguments.runs / f"{job.task}{via(job.task) if kind == 'via' else ''}")) is not None
    }
    summaries = {key: summarize(outcome["runs"]) for key, outcome in found.items()}
    run_info = next(iter(found.values()))["facts"]
    places = dict.fromkeys(place for outcome in found.values() for place in outcome["places"])
    skipped = sum(run["skipped_steps"] for outcome in found.values() for run in outcome["runs"])
    num_runs = sum(len(outcome["runs"]) for outcome in found.values())
    lines = [
        f"# {run_info['model']}, fine-tuned on the paper's tasks",
        "",
        "## Result",
        "",
        "Dev scores times 100. *median*: the plain median over all seeds, as the paper reports it. *via*: initialized "
        "from a model that was fine-tuned on another task first.",
        "",
        "| task | metric | seeds | median | lowest | highest | collapsed | median without them | via | median via it | "
        "paper's base | paper's best |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for job in sorted(JOBS, key=lambda job: TABLE.index(job.task)):
        if (job.task, "direct") not in found:
            continue
        row = row_of(job, summaries)
        paper = reported(job.task, "albert-base")
        row["paper"] = {line.model: line.scores.get(row["metric"]) for line in paper}
        base = next((value for model, value in row["paper"].items() if model.endswith("albert-base")), None)
        best = next((value for model, value in row["paper"].items() if "best" in model), None)
        cells = [row["median"], row["lowest"], row["highest"], row["num_collapsed"], row["median_without_collapsed"]]
        cells += [VIA[job.task] if row["median_via"] is not None else None, row["median_via"], base, best]
        lines.append(f"| {job.task} | {row['metric']} | {row['seeds']} | {' | '.join(map(written, cells))} |")
        rows.append(row)
    lines += ["", *further_scores(summaries), "", *setup(found, run_info, list(places))]
    lines += [
        f"{skipped} of all steps of the {num_runs} runs were skipped (run.json has the number of each run; "
        "curves.jsonl has their curves).",
    ]
    text = "\n".join(lines) + "\n"
    if (arguments.out / "note.md").exists():
        text += "\n" + (arguments.out / "note.md").read_text()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.md").write_text(text)
    runs = [
        {"task": task, "kind": kind, **{name: value for name, value in outcome.items() if name != "curves"}}
        for (task, kind), outcome in found.items()
    ]
    (arguments.out / "run.json").write_text(json.dumps({"table": rows, "runs": runs}, indent=1) + "\n")
    curves = [
        {"task": task, "kind": kind, "seed": run["seed"], **curve}
        for (task, kind), outcome in found.items()
        for run, curve in zip(outcome["runs"], outcome["curves"], strict=True)
    ]
    (arguments.out / "curves.jsonl").write_text("".join(json.dumps(curve) + "\n" for curve in curves))
    picture(rows, arguments.out / "tasks.png")
    print(text)


def row_of(job: Job, summaries: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """One task's line of the table; None where there is nothing to write."""
    summary = summaries[job.task, "direct"]
    split, metric = summary["split"], summary["main_metric"]
    scores = sorted(run["scores"][split][metric] for run in summary["runs"])
    without = summary["metrics_without_collapsed"].get(split, {}).get(metric, {})
    other = summaries.get((job.task, "via"))
    return {
        "task": job.task,
        "metric": metric,
        "split": split,
        "seeds": len(scores),
        "scores": scores,
        "median": statistics.median(scores),
        "lowest": scores[0] if len(scores) > 1 else None,
        "highest": scores[-1] if len(scores) > 1 else None,
        "num_collapsed": summary["num_collapsed"],
        "median_without_collapsed": without.get("median") if summary["num_collapsed"] else None,
        "median_via": statistics.median(run["scores"][split][metric] for run in other["runs"]) if other else None,
    }


def written(cell: float | int | str | None) -> str:
    """A cell of a table."""
    if cell is None:
        return ""
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def further_scores(summaries: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """The tasks' other metrics, and their other splits: plain medians."""
    lines = ["| task | split | metric | median | median via another task |", "|---|---|---|---|---|"]
    for task in TABLE:
        if (task, "direct") not in summaries:
            continue
        summary = summaries[task, "direct"]
        for split, metrics in summary["runs"][0]["scores"].items():
            for metric in metrics:
                if (split, metric) == (summary["split"], summary["main_metric"]):
                    continue
                medians = [
                    statistics.median(run["scores"][split][metric] for run in of_kind["runs"])
                    if (of_kind := summaries.get((task, kind)))
                    else None
                    for kind in KINDS
                ]
                cells = " | ".join(map(written, medians))
                lines.append(f"| {task} | {split} | {metric.replace('_', ' ')} | {cells} |")
    return lines


def setup(found: dict[tuple[str, str], dict[str, Any]], run_info: dict[str, Any], places: list[str]) -> list[str]:
    """How the scores were made."""
    tokens = (run_info["pretraining"] or {}).get("tokens", 0) / 1e9
    lines = [
        "## Setup",
        "",
        f"`bench/task_results.py` on {'; '.join(places)}. The checkpoint saw {tokens:.2f} G tokens in pretraining, the "
        "paper's models 262 G. Settings of the paper's Table 14 except for those in the table below; no dropout in the "
        "encoder. A run that collapses starts again at half its learning rate, at most twice. The scored weights are "
        "those of the best evaluation on dev, as is customary; this favours every number alike.",
        "",
        "| task | epochs | learning rate | batch | seeds that ended at a lower rate | note |",
        "|---|---|---|---|---|---|",
    ]
    for job in sorted(JOBS, key=lambda job: TABLE.index(job.task)):
        if outcome := found.get((job.task, "direct")):
            lowered = sum(run["learning_rate"] < job.rate for run in outcome["runs"])
            batch = outcome["facts"]["batch_size"]
            lines.append(f"| {job.task} | {job.epochs:g} | {job.rate:g} | {batch} | {lowered} | {job.note} |")
    return [*lines, ""]


def picture(rows: list[dict[str, Any]], file: Path) -> None:
    """Every seed's score, the median, and the paper's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(8, 3.6))
    places = np.arange(len(rows))
    axes.bar(places, [row["median"] for row in rows], 0.6, color="C0", alpha=0.6, label="median")
    for place, row in zip(places, rows, strict=True):
        axes.plot([place] * len(row["scores"]), row["scores"], ".", color="C0", markersize=5)
    best = [next((value for value in row["paper"].values() if value is not None), np.nan) for row in rows]
    axes.plot(places, best, "_", color="C3", markersize=18, label="the paper (albert-base where it has it)")
    axes.set_xticks(places, [f"{row['task']}\n{row['metric']}" for row in rows], fontsize=7)
    axes.set_ylabel("dev score")
    axes.grid(axis="y", alpha=0.25)
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main(words: list[str] | None = None) -> bool:
    """Returns whether all is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    running = verbs.add_parser("run")
    running.add_argument("model")
    running.add_argument("--data", type=Path, required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--parallel", type=int, default=4)
    running.add_argument("--tasks", nargs="+", default=[job.task for job in JOBS])
    running.add_argument("--minutes", type=float, default=1e9, help="after which everything is stopped")
    running.add_argument("--more", default="", help="further words for every command, in one string")
    running.set_defaults(does=run)
    reporting = verbs.add_parser("report")
    reporting.add_argument("runs", type=Path)
    reporting.add_argument("--out", type=Path, required=True)
    reporting.set_defaults(does=report)
    arguments = parser.parse_args(words)
    return arguments.does(arguments) is not False


if __name__ == "__main__":
    main()
