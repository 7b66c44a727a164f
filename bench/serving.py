"""A server on two cores: throughput next to transformers behind the same server, then ten minutes at its capacity.

    python bench/serving.py --plain MODEL --exits EXPORTED --texts sst2/dev.tsv --out results/serving

PLAIN is the folder of a classifier without exits, EXPORTED an exported one with them. Every contestant is a server in a
process of its own. locust sends the requests (bench/serving_load.py): first some clients that wait for their answers
find the throughput, the contestants in turn and several rounds; then the exported model gets as many requests a
second as it answered, and twice as many, whether earlier ones are answered or not. Memory is the server's resident set.
Needs `pip install "openalbert[bench]"`.
"""

import argparse
import csv
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

SENTENCES = (1, 1, 2, 4)  # of a text, as often as it stands here
NUM_TEXTS = 2_000
MANY_USERS = 400
SAMPLE_SECONDS = 5.0


@dataclass(frozen=True)
class Contestant:
    """A way to serve a model."""

    title: str
    words: tuple[str, ...]
    """The command that serves, after the interpreter."""


def contestants(plain: Path, fp32: Path, exits: Path) -> dict[str, Contestant]:
    ours, peer = ("-m", "openalbert", "serve"), (str(Path(__file__)), "peer")
    return {
        "transformers": Contestant("transformers, fp32, padded batches", (*peer, str(plain))),
        "transformers-single": Contestant("transformers, fp32, one text at a time", (*peer, str(plain), "--single")),
        "ours-torch": Contestant("openalbert, fp32, torch", (*ours, str(plain))),
        "ours-fp32": Contestant("openalbert, fp32, exported", (*ours, str(fp32))),
        "ours-int8-exits": Contestant("openalbert, int8 with exits, exported", (*ours, str(exits))),
    }


# transformers behind the same server.


def serve_peer(arguments: argparse.Namespace) -> None:
    """Our routes, limits and batcher; transformers computes."""
    import torch
    import transformers

    from openalbert.finetuning.predict import Outputs
    from openalbert.serve.http_api import server
    from openalbert.serve.http_api.batcher import Batcher, BatchingBackend
    from openalbert.serve.http_api.limits import Limits
    from openalbert.serve.http_api.service import ServedModel
    from openalbert.serve.predictor import Predictor
    from openalbert.tasks.task import Sequences

    class TransformersBackend:
        """The logits of a classifier, in batches padded to their longest text, or one text at a time."""

        def __init__(self, folder: str, predictor: Predictor) -> None:
            self.model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
            self.config, self.heads = predictor.config, predictor.backend.heads

        def logits(self, sequences: Sequences, kinds: Sequence[Any], *_: Any) -> Outputs:
            ids = np.split(sequences.ids, np.cumsum(sequences.lengths)[:-1])
            batches = [[one] for one in ids] if arguments.single else [ids]
            return Outputs({kinds[0]: np.concatenate([self.batch(batch) for batch in batches])})

        def batch(self, texts: list[np.ndarray]) -> np.ndarray:
            longest = max(map(len, texts))
            ids = torch.zeros(len(texts), longest, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, one in enumerate(texts):
                ids[row, : len(one)] = torch.from_numpy(one.astype(np.int64))
                mask[row, : len(one)] = 1
            with torch.inference_mode():
                found: np.ndarray = self.model(input_ids=ids, attention_mask=mask).logits.numpy()
            return found

    def load_model(name: str, settings: Any, device: Any) -> ServedModel:
        predictor = Predictor.load(name)
        batcher = Batcher(TransformersBackend(name, predictor))  # type: ignore[arg-type]
        served = Predictor(BatchingBackend(batcher), predictor.tokenizer, predictor.task, name=name)
        return ServedModel("peer", served, batcher)

    server.load_model = load_model
    server.serve(
        server.Serve((arguments.model,), port=arguments.port, limits=Limits(max_requests=arguments.max_requests))
    )


# A run.


@contextmanager
def running(one: Contestant, max_requests: int, log: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server, and its process; it must end by itself when it is asked to."""
    words = [sys.executable, *one.words, "--port", "0", "--max-requests", str(max_requests)]
    with log.open("w") as file:
        process = subprocess.Popen(words, stderr=file)
    try:
        while not (found := re.search(r"serving .* at (http://\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield found[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0, f"the server ended with {code}: {log.read_text()[-2000:]}"


def ask(
    url: str, server: psutil.Process, work: Path, *, users: int, seconds: float, rate: float = 0.0
) -> dict[str, Any]:
    """Requests for some time: what became of them, and the server's memory meanwhile."""
    stats = work / "stats"
    words = ["--headless", "--skip-log", "--only-summary", "--users", str(users), "--spawn-rate", str(users)]
    words += ["--run-time", f"{seconds:.0f}s", "--stop-timeout", "60", "--host", url, "--json-file", str(stats)]
    load = Path(__file__).with_name("serving_load.py")
    environment = {**os.environ, "TEXTS": str(work / "texts.json"), "USERS": str(users), "RATE": str(rate)}
    started = time.perf_counter()
    locust = subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(load), *words],
        env=environment, stdout=subprocess.DEVNULL, stderr=(work / "locust.log").open("w"),
    )  # fmt: skip
    memory = []
    while locust.poll() is None:
        memory.append((time.perf_counter() - started, server.memory_info().rss / 1e6))
        time.sleep(SAMPLE_SECONDS)
    assert stats.with_suffix(".json").exists(), (work / "locust.log").read_text()
    answers = {one["name"]: one for one in json.loads(stats.with_suffix(".json").read_text())}
    good = answers["200"]
    steady = [megabytes for second, megabytes in memory if second >= min(60.0, seconds / 3)]
    return {
        "users": users, "asked_a_second": round(rate, 1) or None,
        "seconds": round(good["last_request_timestamp"] - good["start_time"], 1),
        "answered_a_second": round(
            good["num_requests"] / (good["last_request_timestamp"] - good["start_time"]), 2
        ),
        "p50_ms": percentile(good, 50), "p99_ms": percentile(good, 99),
        "statuses": {name: one["num_requests"] for name, one in answers.items()},
        "memory_mb_at_first": round(memory[0][1]), "memory_mb_steady": [round(min(steady)), round(max(steady))],
    }  # fmt: skip


def percentile(stats: dict[str, Any], percent: float) -> float:
    """Of locust's histogram of milliseconds."""
    times = sorted((float(time_), count) for time_, count in stats["response_times"].items())
    place, seen = stats["num_requests"] * percent / 100, 0
    for time_, count in times:
        seen += count
        if seen >= place:
            return time_
    raise AssertionError("a histogram without requests")


def make_texts(path: Path) -> list[str]:
    """Texts of one, two and four sentences of the same class, from a file of SST-2."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    dice = random.Random(1)
    by_label = {label: [row["sentence"] for row in rows if row["label"] == label] for label in ("0", "1")}
    return [
        " ".join(dice.choices(by_label[dice.choice("01")], k=SENTENCES[number % len(SENTENCES)]))
        for number in range(NUM_TEXTS)
    ]


def bench(arguments: argparse.Namespace) -> None:
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    (work / "texts.json").write_text(json.dumps(make_texts(arguments.texts)))
    fp32 = work / "fp32"
    if not fp32.exists():
        export = ["export", str(arguments.plain), "--to", "onnx", "--out", str(fp32)]
        subprocess.run([sys.executable, "-m", "openalbert", *export], check=True)
    everybody = contestants(arguments.plain, fp32, arguments.exits)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in everybody}
    for number in range(arguments.rounds):
        for name, one in everybody.items():
            with running(one, arguments.max_requests, work / f"{name}.log") as (url, server):
                ask(url, server, work, users=arguments.clients, seconds=8)
                found = ask(url, server, work, users=arguments.clients, seconds=arguments.seconds)
            rounds[name].append(found)
            print(f"round {number + 1}, {name}:", found, flush=True)
    capacity = statistics.median(one["answered_a_second"] for one in rounds["ours-int8-exits"])
    long: dict[str, dict[str, Any]] = {}
    if arguments.long_seconds:
        with running(everybody["ours-int8-exits"], arguments.max_requests, work / "long.log") as (url, server):
            ask(url, server, work, users=2 * arguments.clients, seconds=20)
            for name, times in (("at capacity", 1), ("twice that", 2)):
                rate = times * capacity
                long[name] = ask(url, server, work, users=MANY_USERS, seconds=arguments.long_seconds, rate=rate)
                print(name, long[name], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = {
        "cpus": os.cpu_count(), "load_average_before": LOAD_BEFORE, "python": platform.python_version(),
        "clients": arguments.clients, "max_requests": arguments.max_requests,
        "titles": {name: one.title for name, one in everybody.items()}, "rounds": rounds, "long": long,
    }  # fmt: skip
    (arguments.out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    print_table(run)


def print_table(run: dict[str, Any]) -> None:
    best = max(median(run, name) for name in run["rounds"] if name.startswith("transformers"))
    print("| served by | answered a second | of the better transformers | p50 | p99 |\n|---|---|---|---|---|")
    for name, found in run["rounds"].items():
        rates = sorted(one["answered_a_second"] for one in found)
        p50, p99 = (statistics.median(one[key] for one in found) for key in ("p50_ms", "p99_ms"))
        spread = f"{median(run, name):.1f} ({rates[0]:.1f} to {rates[-1]:.1f})"
        print(f"| {run['titles'][name]} | {spread} | {median(run, name) / best:.2f} | {p50:,.0f} ms | {p99:,.0f} ms |")


def median(run: dict[str, Any], name: str) -> float:
    return statistics.median(one["answered_a_second"] for one in run["rounds"][name])


LOAD_BEFORE = os.getloadavg()


def main() -> None:
    if sys.argv[1:2] == ["peer"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("model")
        parser.add_argument("--single", action="store_true")
        parser.add_argument("--port", type=int, default=0)
        parser.add_argument("--max-requests", type=int, default=32)
        return serve_peer(parser.parse_args(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--plain", "--exits", "--texts", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/serving"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--long-seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-requests", type=int, default=32)
    return bench(parser.parse_args())


if __name__ == "__main__":
    main()
