"""What the model in the box is worth: every task of the paper that there is data for, beside the same shape begun from
scratch and the paper's figures.

    python bench/task_results.py run albert-base-wikibooks --data DATA --out runs/tasks --parallel 12
    python bench/task_results.py report runs/tasks --out results/tasks-h200

DATA holds glue/, squad/ and race/ (`docs/guides/glue-squad-race.md`). Each job is one `openalbert finetune`; small
batches leave a GPU idle, so several run at a time, the longest first. A job that has ended is not run again. Of SQuAD
2.0 only the dev set is needed: every fourth of its articles is kept apart to score on, the others are learned from.
What is to be said of one campaign alone stands in note.md beside the report, and is added to it.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Job:
    """How a task is fine-tuned here: Table 14, but for what is said."""

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
    Job("race", 0.5, rate=5e-5, more="--evaluate-every 650", note="half an epoch; the paper's best is on test"),
    Job("cola", 5, seeds=5),
    Job("stsb", 5, seeds=5),
    Job("sst2", 2),
    Job("squad1", 3, more="--evaluate-every 250", note="9 % of the training set"),
    Job("squad2", 3, more="--evaluate-every 250", note=SQUAD2),
    Job("mrpc", 5, seeds=5),
    Job("rte", 7, seeds=5),
    Job("wnli", 10, seeds=5, note=WNLI),
    Job("qnli", 5, note="9 % of the training set"),
    Job("mnli", 5, note="2 % of the training set; matched, the mismatched dev set was not at hand"),
    Job("qqp", 5, note="2 % of the training set; scored on 1,000 held out of it"),
]
TABLE = "cola sst2 mrpc stsb qqp mnli qnli rte wnli squad1 squad2 race".split()  # in the usual order
BY_WAY = {"rte": "mnli", "stsb": "mnli", "mrpc": "mnli", "squad2": "squad1"}  # the first three as the paper did
KINDS = ("ours", "by way of", "from scratch")


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
    words += ["--optimizer.learning-rate", f"{job.rate:g}", *job.more.split(), *arguments.more.split()]
    if "--steps" not in words:
        words += ["--epochs", f"{job.epochs:g}"]
    if suffix == "-scratch":
        words.append("--from-scratch")
    if suffix and suffix == by_way(job.task):
        words += ["--from", str(arguments.out / BY_WAY[job.task])]
    return words


def by_way(task: str) -> str:
    """How the folder of a run that begins with another task's model is told from the others."""
    return f"-from-{BY_WAY[task]}" if task in BY_WAY else ""


def run(arguments: argparse.Namespace) -> None:
    """All jobs, several at a time."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in JOBS if job.task in arguments.tasks]
    started = time.perf_counter()
    environment = {"OMP_NUM_THREADS": "1"} | os.environ

    def carry_out(job: Job, suffix: str) -> None:
        began = time.perf_counter()
        log = arguments.out / f"{job.task}{suffix}.log"
        with log.open("w", encoding="utf-8") as file:
            words = command(job, suffix, arguments)
            code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False).returncode
        now = time.perf_counter()
        last = (log.read_text(encoding="utf-8").strip().splitlines() or [""])[-1]
        told = "done" if code == 0 else f"FAILED ({code})"
        print(f"{now - started:6.0f} s  {job.task}{suffix}: {told} in {now - began:.0f} s  {last[:90]}", flush=True)

    with ThreadPoolExecutor(arguments.parallel) as workers:
        # Models that others begin with come first.
        first = {job.task: workers.submit(carry_out, job, "") for job in jobs if job.task in BY_WAY.values()}
        pending = []
        for job in jobs:
            for suffix in ("", "-scratch"):
                if suffix or job.task not in first:
                    pending.append(workers.submit(carry_out, job, suffix))
        for task, one in first.items():
            one.result()
            pending += [
                workers.submit(carry_out, job, by_way(job.task)) for job in jobs if BY_WAY.get(job.task) == task
            ]
        for one in pending:
            one.result()
    print(f"{time.perf_counter() - started:.0f} s in all", flush=True)


def read(folder: Path) -> dict[str, Any] | None:
    """What a job came to, the seeds that have ended; nothing where none has."""
    ended = sorted(folder.glob("seed-*/scores.json")) or sorted(folder.glob("scores.json"))
    if not ended:
        return None
    runs = [json.loads(scores.read_text()) for scores in ended]
    # In which folders files lay is nobody else's concern.
    facts = [
        json.loads(re.sub(r'(?<=[ "])/[^\s"]*/', "", (scores.parent / "facts.json").read_text())) for scores in ended
    ]
    return {"runs": runs, "facts": facts[0], "places": list(dict.fromkeys(map(place, facts)))}


def place(facts: dict[str, Any]) -> str:
    """What a run was on, in words."""
    from openalbert.train.results import over_all_starts

    device, precision, torch = (over_all_starts(facts, name) for name in ("device", "precision", "torch"))
    return f"{device}, {precision}, torch {torch}"


def report(arguments: argparse.Namespace) -> None:
    """The table and the picture of all jobs that have ended."""
    from openalbert.tasks.paper import reported

    found = {
        (job.task, kind): outcome
        for job in JOBS
        for kind, suffix in zip(KINDS, ("", by_way(job.task), "-scratch"), strict=True)
        if (kind == "ours" or suffix) and (outcome := read(arguments.runs / f"{job.task}{suffix}")) is not None
    }
    facts = next(iter(found.values()))["facts"]
    places = dict.fromkeys(place for outcome in found.values() for place in outcome["places"])
    last_column = "epochs, rate, batch; what to know"
    lines = [
        f"# Every task of the paper, fine-tuned from {facts['model']}",
        "",
        f"`bench/task_results.py` on {'; '.join(places)}. The model was pretrained on "
        f"{(facts['pretraining'] or {}).get('tokens', 0) / 1e9:.2f} G tokens, the paper's on 262 G. Dev "
        "scores, times 100; with several seeds the median, and the lowest and highest, of those that did not collapse. "
        "From scratch: fresh weights in the same shape, the same settings. But a run that collapses is tried again at "
        "half its rate, twice at most: where that was so, the rates stand there, each with the number of its runs. "
        "Table 14 but for what stands here; no dropout within the encoder. The weights that are scored are those of "
        "the best evaluation on dev, as is the custom; it favours all columns alike.",
        "",
        f"| task | metric | ours | by way of another task | from scratch | paper's base | its best | {last_column} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for job in sorted(JOBS, key=lambda job: TABLE.index(job.task)):
        if (job.task, "ours") not in found:
            continue
        result = found[job.task, "ours"]["runs"][0]
        split, metric = next(iter(result["scores"])), result["main_metric"]
        cells, row = [], {"task": job.task, "metric": metric, "split": split}
        for kind in KINDS:
            runs = found.get((job.task, kind), {"runs": []})["runs"]
            row[kind] = scores_of(runs, split, metric)
            told = _told(row[kind], runs, job)
            cells.append(told + (f", {BY_WAY[job.task]}" if runs and kind == "by way of" else ""))
        paper = reported(job.task, "albert-base")
        row["paper"] = {line.model: line.scores.get(metric) for line in paper}
        base = next((line.scores[metric] for line in paper if line.model.endswith("albert-base")), None)
        best = next((line.scores[metric] for line in paper if "best" in line.model), None)
        cells += ["" if value is None else f"{value:.1f}" for value in (base, best)]
        batch = found[job.task, "ours"]["facts"]["batch_size"]
        told = f"{job.epochs:g}, {job.rate:g}, {batch}" + (f"; {job.note}" if job.note else "")
        lines.append(f"| {job.task} | {metric} | {' | '.join(cells)} | {told} |")
        rows.append(row)
    text = "\n".join([*lines, "", *further_scores(found)]) + "\n"
    if (arguments.out / "note.md").exists():
        text += "\n" + (arguments.out / "note.md").read_text()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.md").write_text(text)
    runs = [{"task": task, "kind": kind, **outcome} for (task, kind), outcome in found.items()]
    (arguments.out / "run.json").write_text(json.dumps({"table": rows, "runs": runs}, indent=1) + "\n")
    picture(rows, arguments.out / "tasks.png")
    print(text)


def scores_of(runs: list[dict[str, Any]], split: str, metric: str) -> list[float]:
    """From low to high; of collapsed runs only where there are no others."""
    sound = [run for run in runs if run["collapsed"] is None] or runs
    return sorted(run["scores"][split][metric] for run in sound)


def further_scores(found: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """The tasks' other metrics, and their other splits."""
    lines = ["| task | further scores | ours | by way of another task | from scratch |", "|---|---|---|---|---|"]
    for task in TABLE:
        of_task = {kind: found.get((task, kind), {"runs": []})["runs"] for kind in KINDS}
        if not of_task["ours"]:
            continue
        result = of_task["ours"][0]
        names = [(split, metric) for split, metrics in result["scores"].items() for metric in metrics]
        for split, metric in names:
            if (split, metric) == (names[0][0], result["main_metric"]):
                continue
            medians = [statistics.median(scores_of(runs, split, metric)) if runs else None for runs in of_task.values()]
            cells = ["" if value is None else f"{value:.1f}" for value in medians]
            lines.append(f"| {task} | {metric.replace('_', ' ')}, {split} | {' | '.join(cells)} |")
    return lines


def _told(values: list[float], runs: list[dict[str, Any]], job: Job) -> str:
    if not runs:
        return ""
    told = f"**{statistics.median(values):.1f}**"
    if len(values) > 1:
        told += f" ({values[0]:.1f} to {values[-1]:.1f})"
    if len(runs) < job.seeds:
        told += f", {len(runs)} of {job.seeds} seeds"
    if num_collapsed := sum(run["collapsed"] is not None for run in runs):
        told += f", {num_collapsed} collapsed"
    rates = Counter(run["learning_rate"] for run in runs)
    if set(rates) != {job.rate}:
        of_rates = [f"{rate:g}" + (f" ({count})" if len(runs) > 1 else "") for rate, count in sorted(rates.items())]
        told += f"; at {', '.join(of_rates)}"
    return told


def picture(rows: list[dict[str, Any]], file: Path) -> None:
    """What pretraining bought, task by task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(8, 3.6))
    places = np.arange(len(rows))
    for shift, (name, colour) in enumerate((("from scratch", "0.7"), ("ours", "C0"))):
        medians = [float(np.median(row[name])) if row[name] else np.nan for row in rows]
        axes.bar(places + 0.38 * shift - 0.19, medians, 0.36, color=colour, label=name)
    best = [next((value for value in row["paper"].values() if value is not None), np.nan) for row in rows]
    axes.plot(places, best, "_", color="C3", markersize=18, label="the paper (albert-base where it has it)")
    axes.set_xticks(places, [f"{row['task']}\n{row['metric']}" for row in rows], fontsize=7)
    axes.set_ylabel("dev score")
    axes.grid(axis="y", alpha=0.25)
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    running = verbs.add_parser("run")
    running.add_argument("model")
    running.add_argument("--data", type=Path, required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--parallel", type=int, default=4)
    running.add_argument("--tasks", nargs="+", default=[job.task for job in JOBS])
    running.add_argument("--more", default="", help="further words for every command, in one string")
    running.set_defaults(does=run)
    reporting = verbs.add_parser("report")
    reporting.add_argument("runs", type=Path)
    reporting.add_argument("--out", type=Path, required=True)
    reporting.set_defaults(does=report)
    arguments = parser.parse_args()
    arguments.does(arguments)


if __name__ == "__main__":
    main()
