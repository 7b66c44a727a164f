"""Early exit on real tasks: score and speed against a full-depth model that was fine-tuned without exits.

    python bench/early_exit.py train albert-base-wikibooks --data DATA --runs runs/early-exit --parallel 6
    python bench/early_exit.py score --data DATA --runs runs/early-exit --out results/early-exit
    python bench/early_exit.py time --data DATA --runs runs/early-exit --out results/early-exit --device cpu --threads 2
    python bench/early_exit.py report --out results/early-exit

DATA holds glue/. `train` fine-tunes each task with and without exits, some seeds each; a run that has ended is not run
again. After --minutes runs are stopped with a checkpoint, and the same command resumes them. `score` scores every run
on dev, with rules that were fitted on training examples held out: the cheapest whose score there is at most so
many points below that of full depth, and the rule with the highest score. `time` times both models on the same examples
by one of these rules, one at a time and in batches of 32, alternating; it adds to what `score` has written, once a
device and rule. Each task has a file, so that several can be measured at the same time.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch

from openalbert import atomic_io
from openalbert.finetuning.data import EncodedSplit, encode_split
from openalbert.finetuning.exit_rules import measure_rule, predict_depths
from openalbert.interop import huggingface
from openalbert.interop.exits import ExitInfo, ExitPoint, read_exit_info
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.serve.backend import Computation, TorchBackend
from openalbert.serve.early_exit import Leaving
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.registry import open_task
from openalbert.tasks.task import Sequences, Task
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device, Speed, open_device
from openalbert.train.run import is_done

TASKS = {"sst2": 2.0, "mrpc": 5.0, "stsb": 5.0, "qnli": 5.0}  # epochs, as in results/tasks-h200
RATE = "1e-4"
KINDS = ("plain", "exits")
BATCH = 32
START = 20.0  # seconds that a run needs before its first step: with less time left it is not started
GRACE = 45.0  # seconds that a run has to write its checkpoint
TURNS = 5
PER_TURN = 200
DROPS = {"0.5 lost": 0.5, "0.25 lost": 0.25, "highest score": None}
"""How rules are chosen on the examples held out: by the points that may be lost, or by the score alone."""


def train(arguments: argparse.Namespace) -> None:
    """Fine-tune everything that is not there yet, several runs at a time."""
    jobs = [(task, kind, seed) for task in arguments.tasks for seed in range(1, arguments.seeds + 1) for kind in KINDS]

    until = math.inf if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes

    def run(job: tuple[str, str, int]) -> None:
        task, kind, seed = job
        folder = arguments.runs / f"{task}-{kind}-{seed}"
        left = until - time.monotonic()
        if is_done(folder):
            return
        if left < START:
            print(f"{folder.name}: not in this command", flush=True)
            return
        words = ["finetune", arguments.model, "--task", task, "--data", str(arguments.data / "glue")]
        words += ["--epochs", str(TASKS[task]), "--optimizer.learning-rate", RATE, "--seed", str(seed)]
        words += ["--out", str(folder), *(["--exits"] if kind == "exits" else []), *arguments.more.split()]
        with (arguments.runs / f"{folder.name}.log").open("a") as log:
            process = subprocess.Popen([sys.executable, "-m", "openalbert", *words], stdout=log, stderr=log)
            code = wait(process, left)
        print(f"{folder.name}: {'done' if code == 0 else f'ended with {code}, see {log.name}'}", flush=True)

    arguments.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        list(pool.map(run, jobs))


def wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit code of a process that is stopped after so many seconds, with its checkpoint."""
    try:
        return process.wait(None if math.isinf(seconds) else seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def score(arguments: argparse.Namespace) -> None:
    """The scores of every pair of runs; one JSON file a task, without the times of runs before."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open_device(Speed(device=arguments.device)) as device:
        for task in arguments.tasks:
            pairs = [
                score_pair(task, arguments.data, arguments.runs, seed, device)
                for seed in range(1, arguments.seeds + 1)
                if all((arguments.runs / f"{task}-{kind}-{seed}" / "scores.json").exists() for kind in KINDS)
            ]
            if not pairs:
                print(f"{task}: no finished pair of runs in {arguments.runs}")
                continue
            found = {
                "task": task,
                "epochs": TASKS[task],
                "scored_on": f"{device.describe()}, torch {torch.__version__}",
                "pairs": pairs,
                "times": {},
            }
            atomic_io.write_text(arguments.out / f"{task}.json", json.dumps(found, indent=1) + "\n")
            print("\n".join(score_table([found])), flush=True)


def time_runs(arguments: argparse.Namespace) -> None:
    """The times of every pair of runs that was scored, added to the files of the tasks."""
    with open_device(Speed(device=arguments.device, threads=arguments.threads)) as device:
        name = f"{device.describe()}, torch {torch.__version__}"
        for task in arguments.tasks:
            path = arguments.out / f"{task}.json"
            found = json.loads(path.read_text())
            of_rule = found["times"].setdefault(name, {}).setdefault(arguments.rule, {})
            found["examples_in_a_turn"] = arguments.per_turn
            for pair in found["pairs"]:
                of_rule[str(pair["seed"])] = time_pair(task, arguments, pair["seed"], device)
                atomic_io.write_text(path, json.dumps(found, indent=1) + "\n")
            print("\n".join(time_table([found], name)), flush=True)


def load_pair(task: str, runs: Path, seed: int, device: Device) -> dict[str, AlbertModel]:
    """The models of one seed."""
    folders = {kind: runs / f"{task}-{kind}-{seed}" / "model" for kind in KINDS}
    return {kind: huggingface.load(folder).to(device.torch_device) for kind, folder in folders.items()}


def read_dev(task_name: str, data: Path, runs: Path, seed: int) -> tuple[Task, EncodedSplit, ExitInfo]:
    """The task, its dev split as the model reads it, and what the model knows of its exits."""
    early = runs / f"{task_name}-exits-{seed}" / "model"
    info, task_info = read_exit_info(early), read_task_info(early)
    assert info is not None
    assert task_info is not None
    task = open_task(task_name, TaskSource(data=data / "glue"))
    tokenizer = Tokenizer.load(early)
    return task, encode_split(task, "dev", task.read(task.splits[0]), tokenizer, max_length=task_info.max_length), info


def score_pair(task_name: str, data: Path, runs: Path, seed: int, device: Device) -> dict[str, Any]:
    """One seed: the plain model, and the one with exits by its fitted rule and at every depth."""
    models = load_pair(task_name, runs, seed, device)
    task, split, info = read_dev(task_name, data, runs, seed)
    by_depth = predict_depths(models["exits"], split.encoding.sequences, device)
    curve = [measure_rule(task, split, info.head, point.rule, by_depth) for point in info.points]
    scores = {kind: json.loads((runs / f"{task_name}-{kind}-{seed}/scores.json").read_text()) for kind in KINDS}
    metric = task.main_metric
    return {
        "seed": seed,
        "metric": metric,
        "plain_score": scores["plain"]["scores"]["dev"][metric],
        "full_depth_score": scores["exits"]["scores"]["dev"][metric],
        "num_layers": info.num_layers,
        "held_out": {"examples": info.num_examples, "full_depth_score": info.full_score},
        "rules": {name: info.points.index(choose_point(info, drop)) for name, drop in DROPS.items()},
        "curve": [
            {
                "rule": str(point.rule),
                "held_out_score": point.score,
                "held_out_error": point.error,
                "held_out_depth": point.mean_depth,
                "score": on_dev.score,
                "mean_depth": on_dev.mean_depth,
            }
            for point, on_dev in zip(info.points, curve, strict=True)
        ],
    }


def choose_point(info: ExitInfo, drop: float | None) -> ExitPoint:
    """The rule with the fewest layers that costs so many points at most, by the examples held out; or the best one."""
    return info.highest if drop is None else info.cheapest(drop)


def time_pair(
    task_name: str, arguments: argparse.Namespace, seed: int, device: Device
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each turn: one example at a time, and batches of 32 by tokens; the two models alternate."""
    models, per_turn = load_pair(task_name, arguments.runs, seed, device), arguments.per_turn
    _, split, info = read_dev(task_name, arguments.data, arguments.runs, seed)
    leaving, sequences = Leaving(choose_point(info, DROPS[arguments.rule]).rule), split.encoding.sequences
    early, plain = TorchBackend(models["exits"], device), TorchBackend(models["plain"], device)
    found: dict[str, dict[str, list[float]]] = {"1": {}, str(BATCH): {}}
    order = np.random.default_rng(0).permutation(len(sequences.example))
    for computation in (Computation(early, leaving=leaving), Computation(plain)):  # the first pass chooses kernels
        computation.logits(select(sequences, order[:BATCH]), [info.head])
    for turn in range(TURNS):
        part = select(sequences, np.sort(order[turn * per_turn : (turn + 1) * per_turn]))
        if not len(part.example):
            break
        batch_tokens = round(BATCH * len(part.ids) / len(part.example))
        singles = [select(part, np.array([number])) for number in range(len(part.example))]
        contestants = {
            "plain": Computation(plain, batch_tokens),
            "exits": Computation(early, batch_tokens, leaving),
        }
        for batch, pieces in (("1", singles), (str(BATCH), [part])):
            for kind, computation in contestants.items():
                started = time.perf_counter()
                for piece in pieces:
                    computation.logits(piece, [info.head])
                if device.is_cuda:
                    torch.cuda.synchronize()
                found[batch].setdefault(kind, []).append(time.perf_counter() - started)
    return found


def select(sequences: Sequences, chosen: np.ndarray) -> Sequences:
    """Some sequences, as if there were no others."""
    lengths = sequences.lengths[chosen]
    tokens = [np.arange(sequences.starts[one], sequences.starts[one + 1]) for one in chosen]
    ids = sequences.ids[np.concatenate(tokens)] if tokens else sequences.ids[:0]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Sequences(ids, starts, sequences.second[chosen], np.arange(len(chosen)), {}, len(chosen), 0)


def speedups(seconds: dict[str, list[float]]) -> list[float]:
    """Of each turn: how many times as fast as the plain model."""
    return [plain / early for plain, early in zip(seconds["plain"], seconds["exits"], strict=True)]


def score_table(found: list[dict[str, Any]]) -> list[str]:
    """A row for each task and rule: medians over seeds, and what each seed loses to its own full depth."""
    lines = [
        "| task | metric | without exits | with exits, full depth | rule | early exit "
        "| lost to the model without exits | lost to its own full depth | lowest | highest | layers |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        pairs = one["pairs"]
        plain, full = (statistics.median(pair[name] for pair in pairs) for name in ("plain_score", "full_depth_score"))
        for name in pairs[0]["rules"]:
            points = [pair["curve"][pair["rules"][name]] for pair in pairs]
            early, depth = (statistics.median(point[of] for point in points) for of in ("score", "mean_depth"))
            lost = [pair["full_depth_score"] - point["score"] for pair, point in zip(pairs, points, strict=True)]
            numbers = (plain - early, statistics.median(lost), min(lost), max(lost))
            cells = [f"{round(value, 1) + 0.0:.1f}" for value in numbers]
            lines.append(
                f"| {one['task']} | {pairs[0]['metric']} | {plain:.1f} | {full:.1f} | {name} | {early:.1f} | "
                f"{' | '.join(cells)} | {depth:.1f} of {pairs[0]['num_layers']} |"
            )
    return lines


def time_table(found: list[dict[str, Any]], device: str) -> list[str]:
    """Speed-ups on one device: medians and ranges over seeds and turns."""
    lines = [
        f"| task | rule | one at a time | lowest | highest | batches of {BATCH} | lowest | highest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        for name, of_seeds in one["times"].get(device, {}).items():
            seeds = of_seeds.values()
            ratios = [[ratio for seconds in seeds for ratio in speedups(seconds[batch])] for batch in ("1", str(BATCH))]
            cells = [f"{number(values):.2f}x" for values in ratios for number in (statistics.median, min, max)]
            lines.append(f"| {one['task']} | {name} | {' | '.join(cells)} |")
    return lines


def read_tasks(out: Path) -> list[dict[str, Any]]:
    """The files of the tasks, in the order of the plan."""
    return [json.loads((out / f"{task}.json").read_text()) for task in TASKS if (out / f"{task}.json").exists()]


RESULT = """Dev scores times 100 and layers computed on average: medians over {seeds} seeds, with the lowest and the
highest loss of a seed. *without exits*: a model of full depth that was fine-tuned without them. Rules are fitted on
training examples held out: one that is named for points takes the fewest layers whose score there is at most so many
points below that of full depth{margin}, *highest score* takes the best score there."""
PICTURE = """![Score by how many times fewer layers are computed: lines are seeds, points fitted rules, dotted lines \
scores without exits](score-against-depth.png)"""
SETUP = """`bench/early_exit.py`: both models are fine-tuned from `albert-base-wikibooks` on the same data and seeds, at
learning rate {rate} (epochs: {epochs}). `--exits` adds a head after every layer and holds out training examples, on
which rules are fitted. Dev is scored on {device}. For the times both models predict the same examples of dev in turn,
{turns} turns of {per_turn} examples a seed, packed without padding; a batch holds as many tokens as {batch} average
examples, and examples that leave make room for others at once."""
LIMITS = """Few seeds, and few examples held out: {held_out} of the smallest task. QNLI is trained on 9 % of its
training set. The weights of both models are those of the best evaluation on dev, which favours both alike; the rules
never see dev. On a CPU the tasks were timed at the same time, each on two of 16 cores, while benches of a GPU ran on
others. Both models run in torch; the exported int8 model with exits is in
[inference-cpu](../inference-cpu/report.md)."""


def page(found: list[dict[str, Any]]) -> str:
    """report.md."""
    devices = dict.fromkeys(name for one in found for name in one["times"])
    times = [
        f"How many times as fast as the model without exits, {device}:\n\n" + "\n".join(time_table(found, device))
        for device in devices
    ]
    setup = SETUP.format(
        rate=RATE,
        epochs=", ".join(f"{one['task']} {one['epochs']:g}" for one in found),
        device=found[0]["scored_on"],
        turns=TURNS,
        per_turn=found[0].get("examples_in_a_turn", PER_TURN),
        batch=BATCH,
    )
    has_errors = any(point["held_out_error"] for one in found for pair in one["pairs"] for point in pair["curve"])
    margin = ", one standard error included" if has_errors else ""
    result = RESULT.format(seeds=len(found[0]["pairs"]), margin=margin)
    limits = LIMITS.format(held_out=min(pair["held_out"]["examples"] for one in found for pair in one["pairs"]))
    wrapped = [fill(text, 120, break_on_hyphens=False) for text in (result, setup, limits)]
    notes = [fill(note, 120, break_on_hyphens=False) for one in found for note in one.get("notes", [])]
    parts = ["# Early exit", "## Result", wrapped[0], "\n".join(score_table(found)), PICTURE, *times]
    return "\n\n".join([*parts, "## Setup", wrapped[1], "## Limits", wrapped[2], *dict.fromkeys(notes)]) + "\n"


def report(arguments: argparse.Namespace) -> None:
    """The plot of score against layers saved, and the report, from the files of all tasks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = read_tasks(arguments.out)
    if not found:
        raise SystemExit(f"{arguments.out} has no scores: run `score` first")
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.4), squeeze=False)
    for axis, one in zip(axes[0], found, strict=True):
        for pair in one["pairs"]:
            speed = [pair["num_layers"] / point["mean_depth"] for point in pair["curve"]]
            axis.plot(speed, [point["score"] for point in pair["curve"]], color="#4477aa", alpha=0.6)
            for point in (pair["curve"][at] for at in pair["rules"].values()):
                axis.plot(pair["num_layers"] / point["mean_depth"], point["score"], "o", color="#aa3377")
            axis.axhline(pair["plain_score"], color="#666666", linewidth=0.8, linestyle=":")
        layers = one["pairs"][0]["num_layers"]
        axis.set(
            title=one["task"], xlabel=f"times fewer layers ({layers} / mean depth)", ylabel=one["pairs"][0]["metric"]
        )
    figure.tight_layout()
    figure.savefig(arguments.out / "score-against-depth.png", dpi=120)
    plt.close(figure)
    atomic_io.write_text(arguments.out / "report.md", page(found))
    print(page(found))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    trains, scores, times, reports = (verbs.add_parser(name) for name in ("train", "score", "time", "report"))
    trains.add_argument("model")
    trains.add_argument("--parallel", type=int, default=1)
    trains.add_argument("--minutes", type=float, help="after which everything is stopped")
    trains.add_argument("--more", default="", help="further words for `openalbert finetune`, in one string")
    times.add_argument("--threads", type=int)
    times.add_argument("--rule", choices=DROPS, default="0.25 lost")
    times.add_argument("--per-turn", type=int, default=PER_TURN, help="examples that are timed in a turn")
    for verb in (scores, times):
        verb.add_argument("--device", default="auto")
    for verb in (scores, times, reports):
        verb.add_argument("--out", type=Path, required=True)
    for verb, function in ((trains, train), (scores, score), (times, time_runs), (reports, report)):
        verb.set_defaults(function=function)
        if verb is not reports:
            verb.add_argument("--data", type=Path, required=True)
            verb.add_argument("--runs", type=Path, required=True)
            verb.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
            verb.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args(words)
    arguments.function(arguments)


if __name__ == "__main__":
    main()
