"""A server in a thread of the test, at a free port, with real sockets."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from openalbert.serve.http_api.app import make_app
from openalbert.serve.http_api.limits import Limits
from openalbert.serve.http_api.server import Serve, load_model
from openalbert.serve.http_api.service import ServedModel
from openalbert.serve.http_api.uvicorn_server import Server, bind
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")


class ThreadServer(Server):
    capture_signals = contextlib.nullcontext  # type: ignore[assignment] - signals go to the main thread only


@dataclass(frozen=True)
class Running:
    url: str
    client: httpx.Client
    models: dict[str, ServedModel]
    folders: dict[str, Path]

    def post(self, route: str, **body: Any) -> httpx.Response:
        return self.client.post(route, json=body)

    def ask(self, route: str, **body: Any) -> Any:
        answer = self.post(route, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def running(
    *folders: Path, limits: Limits | None = None, idle_seconds: float = 75.0, **options: Any
) -> Iterator[Running]:
    """A server of these models until the block ends; `idle_seconds` until connections without a request are closed."""
    settings = Serve(tuple(map(str, folders)), limits=limits or Limits())
    models = [load_model(name, settings, CPU) for name in settings.models]
    with bind("127.0.0.1", 0) as opened:
        is_open = threading.Event()
        server = ThreadServer(make_app(models, settings.limits, **options), settings.limits, is_open.set)
        server.idle_seconds = idle_seconds
        thread = threading.Thread(target=server.run, args=([opened],), daemon=True)
        thread.start()
        assert is_open.wait(10)
        url = f"http://127.0.0.1:{opened.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=30) as client:
                names = [model.name for model in models]
                yield Running(
                    url, client, dict(zip(names, models, strict=True)), dict(zip(names, folders, strict=True))
                )
        finally:
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()
    assert all([model.batcher.close(10.0) for model in models])  # noqa: C419 - each is closed


def address(server: Running) -> tuple[str, int]:
    url = httpx.URL(server.url)
    assert url.port
    return url.host, url.port


def until(condition: Any, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())
