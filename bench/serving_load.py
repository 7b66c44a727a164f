"""The requests of bench/serving.py, as a locust file: texts of mixed lengths for /predict, counted by status.

TEXTS names a JSON file with the texts, USERS is how many ask. RATE is how many requests a second they send together,
whether earlier ones are answered or not: there have to be many users. Without it, a user waits for the answer and asks
again at once.
"""

import json
import os
import random
from pathlib import Path

import gevent
from locust import FastHttpUser, constant, constant_throughput, task

TEXTS = json.loads(Path(os.environ["TEXTS"]).read_text())
USERS, RATE = int(os.environ["USERS"]), float(os.environ["RATE"])


class Client(FastHttpUser):
    """Somebody who asks."""

    wait_time = constant_throughput(RATE / USERS) if RATE else constant(0)
    network_timeout = connection_timeout = 60.0

    def on_start(self) -> None:
        """Begin at a random moment, so that the requests of all users come at random moments."""
        if RATE:
            gevent.sleep(random.uniform(0, USERS / RATE))

    @task
    def predict(self) -> None:
        """One request; it is counted under the status of its answer, so that each status has its own times."""
        with self.rest("POST", "/predict", json={"inputs": random.choice(TEXTS)}) as answer:
            answer.request_meta["name"] = str(answer.status_code)
            answer.success()
