"""A server under load: at capacity and at twice that, with texts of mixed lengths, over real sockets.

    python bench/serving.py MODEL --out results/serving --seconds 60

The server is `openalbert serve` in a process of its own. First a closed loop of clients, each of which waits for its
answer before it asks again, finds the capacity in requests a second. Then requests are sent at that rate, and at twice
that rate, at random moments (Poisson), whether earlier ones are answered or not. Memory is the server's resident set.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

WORDS = "the water of a good school was there when they left for the war and found the key".split()
LENGTHS = (4, 8, 12, 16, 24, 32, 64, 128)  # words


def text(dice: random.Random) -> str:
    return " ".join(dice.choices(WORDS, k=dice.choice(LENGTHS)))


def start(model: str, max_requests: int) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "openalbert", "serve", model, "--port", "0", "--max-requests", str(max_requests)]
    log = Path(f"/tmp/serving-{os.getpid()}.log")
    with log.open("w") as file:
        process = subprocess.Popen(words, stderr=file, text=True)
    while not (found := re.search(r"serving .* at (http://\S+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return process, found[1]


class Load:
    """Sends requests, and keeps what became of them."""

    def __init__(self, url: str, seed: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=1000)
        self.client = httpx.AsyncClient(base_url=url, limits=limits, timeout=60)
        self.dice = random.Random(seed)
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []

    async def ask(self) -> None:
        """One request."""
        started = time.perf_counter()
        try:
            answer = await self.client.post("/predict", json={"inputs": text(self.dice)})
            status = str(answer.status_code)
        except httpx.HTTPError as error:
            status = type(error).__name__
        self.statuses[status] += 1
        if status == "200":
            self.seconds.append(time.perf_counter() - started)

    async def closed(self, clients: int, seconds: float) -> None:
        """Clients that wait for their answers."""
        end = time.perf_counter() + seconds

        async def one() -> None:
            while time.perf_counter() < end:
                await self.ask()

        await asyncio.gather(*(one() for _ in range(clients)))

    async def open(self, rate: float, seconds: float) -> None:
        """So many requests a second on average, at random moments."""
        tasks, end, due = set(), time.perf_counter() + seconds, time.perf_counter()
        while due < end:
            due += self.dice.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)


def summary(load: Load, started: float) -> dict[str, Any]:
    took = time.perf_counter() - started
    p50, p99 = (round(1000 * float(one), 1) for one in np.percentile(load.seconds, (50, 99)))
    answered = load.statuses["200"]
    return {
        "seconds": round(took, 1), "answered_a_second": round(answered / took, 1), "p50_ms": p50, "p99_ms": p99,
        "statuses": dict(load.statuses),
    }  # fmt: skip


async def measure(url: str, process: psutil.Process, seconds: float, clients: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    warm = Load(url, 0)
    await warm.closed(clients, min(10.0, seconds))
    for name, rate in (("closed loop", 0.0), ("at capacity", 1.0), ("twice that", 2.0)):
        before = process.memory_info().rss
        load, started = Load(url, 1), time.perf_counter()
        if rate:
            await load.open(rate * found["closed loop"]["answered_a_second"], seconds)
        else:
            await load.closed(clients, seconds)
        found[name] = {
            **summary(load, started),
            "memory_before_mb": round(before / 1e6, 1),
            "memory_after_mb": round(process.memory_info().rss / 1e6, 1),
        }
        await load.client.aclose()
    await warm.client.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-requests", type=int, default=32)
    options = parser.parse_args()
    process, url = start(options.model, options.max_requests)
    try:
        found = asyncio.run(measure(url, psutil.Process(process.pid), options.seconds, options.clients))
        info = httpx.get(f"{url}/info").json()["models"][0]
    finally:
        process.terminate()
        code = process.wait(60)
    options.out.mkdir(parents=True, exist_ok=True)
    run = {
        "model": {"kind": info["kind"], "num_layers": info["num_layers"], "has_exits": info["has_exits"]},
        "cpus": os.cpu_count(), "load_average": os.getloadavg(), "python": platform.python_version(),
        "clients": options.clients, "max_requests": options.max_requests, "exit_code": code, "runs": found,
    }  # fmt: skip
    (options.out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    for name, one in found.items():
        print(name, one)


if __name__ == "__main__":
    main()
