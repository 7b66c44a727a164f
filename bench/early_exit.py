"""Early exit on real tasks: score and speed against a full-depth model that was fine-tuned without exits.

    python bench/early_exit.py train albert-base-wikibooks --data DATA --runs runs/early-exit --parallel 6
    python bench/early_exit.py measure --data DATA --runs runs/early-exit --out results/early-exit

DATA holds glue/. `train` fine-tunes each task with and without exits, some seeds each; a run that has ended is not run
again. `measure` scores every run on dev, with the rule that was fitted on training examples held out, and times both
models on the same examples, one at a time and in batches of 32, alternating. It needs no GPU, and each task can be
measured by itself (--tasks).
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openalbert import atomic_io
from openalbert.finetuning.data import EncodedSplit, encode_split
from openalbert.finetuning.early_exit import measure_rule, predict_depths
from openalbert.finetuning.predict import predict
from openalbert.interop import huggingface
from openalbert.interop.exits import read_exit_info
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.serve.early_exit import Leaving, TorchPool, run_with_exits
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.registry import open_task
from openalbert.tasks.task import Sequences
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device, Speed, open_device

TASKS = {"sst2": 2.0, "mrpc": 5.0, "stsb": 5.0, "qnli": 5.0}  # epochs, as in results/tasks-h200
RATE = "1e-4"
KINDS = ("plain", "exits")
BATCH = 32
TURNS = 5
PER_TURN = 200  # examples that are timed in a turn


def train(arguments: argparse.Namespace) -> None:
    """Fine-tune everything that is not there yet, several runs at a time."""
    jobs = [(task, kind, seed) for task in arguments.tasks for seed in range(1, arguments.seeds + 1) for kind in KINDS]

    def run(job: tuple[str, str, int]) -> None:
        task, kind, seed = job
        folder = arguments.runs / f"{task}-{kind}-{seed}"
        words = ["finetune", arguments.model, "--task", task, "--data", str(arguments.data / "glue")]
        words += ["--epochs", str(TASKS[task]), "--optimizer.learning-rate", RATE, "--seed", str(seed)]
        words += ["--out", str(folder), *(["--exits"] if kind == "exits" else []), *arguments.more.split()]
        with (arguments.runs / f"{folder.name}.log").open("w") as log:
            code = subprocess.run([sys.executable, "-m", "openalbert", *words], stdout=log, stderr=log).returncode
        print(f"{folder.name}: {'done' if code == 0 else f'failed, see {log.name}'}", flush=True)

    arguments.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        list(pool.map(run, jobs))


def measure(arguments: argparse.Namespace) -> None:
    """Score and time every pair of runs; one JSON file a task, then the report."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open_device(Speed(device=arguments.device, threads=arguments.threads)) as device:
        for task in arguments.tasks:
            pairs = [
                measure_pair(task, arguments.data, arguments.runs, seed, device)
                for seed in range(1, arguments.seeds + 1)
                if all((arguments.runs / f"{task}-{kind}-{seed}" / "scores.json").exists() for kind in KINDS)
            ]
            if not pairs:
                print(f"{task}: no finished pair of runs in {arguments.runs}")
                continue
            found = {
                "task": task,
                "device": device.describe(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "python": platform.python_version(),
                "pairs": pairs,
            }
            atomic_io.write_text(arguments.out / f"{task}.json", json.dumps(found, indent=1) + "\n")
            print(table([found]), flush=True)
    report(arguments.out)


def measure_pair(task_name: str, data: Path, runs: Path, seed: int, device: Device) -> dict[str, Any]:
    """One seed: the plain model, and the one with exits by its fitted rule and at every depth."""
    plain, early = (runs / f"{task_name}-{kind}-{seed}" / "model" for kind in KINDS)
    models = {
        kind: huggingface.load(folder).to(device.torch_device)
        for kind, folder in zip(KINDS, (plain, early), strict=True)
    }
    info, task_info = read_exit_info(early), read_task_info(early)
    assert info is not None
    assert task_info is not None
    task = open_task(task_name, TaskSource(data=data / "glue"))
    split = encode_split(task, "dev", task.read(task.splits[0]), Tokenizer.load(early), max_length=task_info.max_length)
    by_depth = predict_depths(models["exits"], split.encoding.sequences, device)
    chosen = measure_rule(task, split, info.head, info.chosen.rule, by_depth)
    curve = [measure_rule(task, split, info.head, point.rule, by_depth) for point in info.points]
    scores = {kind: json.loads((runs / f"{task_name}-{kind}-{seed}/scores.json").read_text()) for kind in KINDS}
    metric = task.main_metric
    return {
        "seed": seed,
        "metric": metric,
        "rule": str(info.chosen.rule),
        "plain_score": scores["plain"]["scores"]["dev"][metric],
        "full_depth_score": scores["exits"]["scores"]["dev"][metric],
        "exit_score": chosen.score,
        "mean_depth": chosen.mean_depth,
        "num_layers": info.num_layers,
        "curve": [{"mean_depth": point.mean_depth, "score": point.score} for point in curve],
        "seconds": time_both(models, split, Leaving(info.chosen.rule), device),
    }


def time_both(
    models: dict[str, AlbertModel], split: EncodedSplit, leaving: Leaving, device: Device
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each turn: one example at a time, and batches of 32 by tokens; the two models alternate."""
    sequences = split.encoding.sequences
    pool = TorchPool(models["exits"], device)
    found: dict[str, dict[str, list[float]]] = {"1": {}, str(BATCH): {}}
    order = np.random.default_rng(0).permutation(len(sequences.example))
    for turn in range(TURNS):
        part = select(sequences, np.sort(order[turn * PER_TURN : (turn + 1) * PER_TURN]))
        if not len(part.example):
            break
        batch_tokens = round(BATCH * len(part.ids) / len(part.example))
        singles = [select(part, np.array([number])) for number in range(len(part.example))]
        for batch, pieces, tokens in (("1", singles, batch_tokens), (str(BATCH), [part], batch_tokens)):
            for kind in KINDS:
                started = time.perf_counter()
                for piece in pieces:
                    if kind == "plain":
                        predict([models["plain"]], piece, device, tokens_at_a_time=tokens)
                    else:
                        run_with_exits(pool, piece, leaving, tokens_at_a_time=tokens)
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


def speedups(pair: dict[str, Any], batch: str) -> list[float]:
    """Of each turn: how many times as fast as the plain model."""
    seconds = pair["seconds"][batch]
    return [plain / early for plain, early in zip(seconds["plain"], seconds["exits"], strict=True)]


def table(found: list[dict[str, Any]]) -> str:
    """Medians over seeds, and ranges over seeds and turns."""
    lines = [
        "| task | metric | without exits | with exits, full depth | early exit | mean depth | speed-up, one at a time "
        "| range | speed-up, batches of 32 | range |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        pairs = one["pairs"]
        cells = [one["task"], pairs[0]["metric"]]
        cells += [
            f"{statistics.median(pair[name] for pair in pairs):.1f}"
            for name in ("plain_score", "full_depth_score", "exit_score", "mean_depth")
        ]
        for batch in ("1", str(BATCH)):
            ratios = [ratio for pair in pairs for ratio in speedups(pair, batch)]
            cells += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(out: Path) -> None:
    """The plot of score against mean depth, and the table on screen, from the files of all tasks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    if not found:
        return
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.4), squeeze=False)
    for axis, one in zip(axes[0], found, strict=True):
        for pair in one["pairs"]:
            speed = [pair["num_layers"] / point["mean_depth"] for point in pair["curve"]]
            axis.plot(speed, [point["score"] for point in pair["curve"]], color="#4477aa", alpha=0.6)
            axis.plot(pair["num_layers"] / pair["mean_depth"], pair["exit_score"], "o", color="#aa3377")
            axis.axhline(pair["plain_score"], color="#666666", linewidth=0.8, linestyle=":")
        axis.set(title=one["task"], xlabel="layers saved (12 / mean depth)", ylabel=pair["metric"])
    figure.tight_layout()
    figure.savefig(out / "score-against-depth.png", dpi=120)
    plt.close(figure)
    atomic_io.write_text(out / "table.md", table(found) + "\n")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    trains, measures = verbs.add_parser("train"), verbs.add_parser("measure")
    trains.add_argument("model")
    trains.add_argument("--parallel", type=int, default=1)
    trains.add_argument("--more", default="", help="further words for `openalbert finetune`, in one string")
    measures.add_argument("--out", type=Path, required=True)
    measures.add_argument("--device", default="auto")
    measures.add_argument("--threads", type=int)
    for verb, function in ((trains, train), (measures, measure)):
        verb.add_argument("--data", type=Path, required=True)
        verb.add_argument("--runs", type=Path, required=True)
        verb.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
        verb.add_argument("--seeds", type=int, default=3)
        verb.set_defaults(function=function)
    arguments = parser.parse_args(words)
    arguments.function(arguments)


if __name__ == "__main__":
    main()
