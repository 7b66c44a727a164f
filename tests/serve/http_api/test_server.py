"""`openalbert serve` as a process: what it says, what stops it, and what it needs no more once it runs."""

import builtins
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.http_api.serving import address, running, until
from tests.serve.http_api.test_http_errors import Gate

from openalbert import cli
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.onnx import write_export
from openalbert.serve.http_api.batcher import MAX_RESTARTS
from openalbert.serve.http_api.server import Serve, serve
from openalbert.serve.http_api.uvicorn_server import allow_many_connections


class Process:
    """A server in a process of its own."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "openalbert", "serve", *map(str, words), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert until(lambda: any("serving" in line for line in self.lines) or self.process.poll() is not None, 60)
        [line] = [line for line in self.lines if "serving" in line]
        self.url = re.findall(r"http://[\d.:]+", line)[0]

    def _read(self) -> None:
        assert self.process.stderr
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def end(self) -> int:
        code = self.process.wait(30)
        self._reader.join()
        assert self.process.stderr
        self.process.stderr.close()
        return code


@pytest.fixture(scope="module")
def exported(quick_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path]]:
    """A served int8 model, with a key, whose folder is removed while it runs."""
    folder, model = tmp_path_factory.mktemp("process"), quick_runs["classification"] / "model"
    write_export(huggingface.load(model), folder / "mails", source=model, int8=True)
    (folder / "key.txt").write_text("word-7\n")
    process = Process(folder / "mails", "--api-key-file", folder / "key.txt")
    yield process, folder
    process.process.kill()
    process.end()


def test_a_served_process_lives_without_its_folder_and_ends_by_sigterm_with_everything_answered(
    exported: tuple[Process, Path],
) -> None:
    process, folder = exported
    assert process.lines[0].startswith("serving mails at http://127.0.0.1:")
    key = {"authorization": "Bearer word-7"}
    with httpx.Client(base_url=process.url, headers=key, timeout=30) as client:
        shutil.rmtree(folder)
        assert client.get("/info").json()["models"][0]["kind"] == "classification"
        statuses: list[int] = []

        def ask(number: int) -> None:
            try:
                body = {"inputs": ["the good water " * (1 + number % 9)] * 8}
                statuses.append(client.post("/predict", json=body).status_code)
            except httpx.TransportError:  # the port is closed by now, or the connection before its request was read
                statuses.append(0)
            if len(statuses) == 40:
                process.process.send_signal(signal.SIGTERM)

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(ask, range(400)))
    assert process.end() == 0
    assert set(statuses) == {0, 200}
    logged = [json.loads(line) for line in process.lines if '"/predict"' in line]
    assert {line["status"] for line in logged} == {200}
    assert len(logged) == statuses.count(200)
    assert process.lines[-1] == "stopped: every request was answered\n"
    assert "word-7" not in "".join(process.lines)
    assert "good water" not in "".join(process.lines)


def test_requests_under_way_are_answered_when_the_server_is_told_to_stop(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with running(tiny) as server:
            [model] = server.models.values()
            gate = Gate(model.batcher, monkeypatch)
            asked = threads.submit(httpx.post, f"{server.url}/embed", json={"inputs": "a"}, timeout=20)
            assert gate.entered.wait(5)
            threading.Timer(0.5, gate.opened.set).start()
        assert asked.result().status_code == 200


def test_a_second_signal_ends_the_server_at_once(tiny: Path) -> None:
    process = Process(tiny, "--tokens-at-a-time", "64")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(slow_request, process.url)
        with httpx.Client(base_url=process.url) as client:
            assert until(lambda: "openalbert_requests_in_flight 2" in client.get("/metrics").text)
        process.process.send_signal(signal.SIGTERM)
        assert not until(lambda: process.process.poll() is not None, 1.0)
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 1
        assert asked.result() in (0, 503)
    assert process.lines[-1] == "error: stopped, but some requests were not answered\n"
    assert not any("Traceback" in line for line in process.lines)


def slow_request(url: str) -> int:
    """The status of a request whose body never comes to its end."""
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 0)) as connection:
        connection.settimeout(30)
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        answer = connection.recv(100)
    return int(answer.split()[1]) if answer else 0


def test_a_server_whose_workers_die_one_after_another_ends_with_a_sentence(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def die(*_: object, **__: object) -> None:
        raise SystemExit

    monkeypatch.setattr("openalbert.serve.backend.TorchBackend.embed", die)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while len(statuses) < MAX_RESTARTS + 1:
                with contextlib.suppress(httpx.TransportError):
                    statuses.append(client.post("/embed", json={"inputs": "a"}).status_code)

    stopped_by_hand = threading.Event()
    watchdog = threading.Timer(30, lambda: (stopped_by_hand.set(), os.kill(os.getpid(), signal.SIGTERM)))
    watchdog.start()
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        with pytest.raises(UserError, match="does not compute any more, its workers died one after another"):
            serve(Serve((str(tiny),), port=port))
        watchdog.cancel()
        asking.result(10)
    assert not stopped_by_hand.is_set(), "it did not end by itself"
    assert statuses == [503] * (MAX_RESTARTS + 1)
    assert capfd.readouterr().err.count("a worker thread ended with SystemExit") == MAX_RESTARTS + 1


def test_a_killed_worker_costs_one_request_and_is_counted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tiny) as server:
        [(name, model)] = server.models.items()
        usual = model.batcher.backend.embed

        def die(*_: object, **__: object) -> None:
            raise SystemExit

        monkeypatch.setattr(type(model.batcher.backend), "embed", die)
        lost = server.post("/embed", inputs="a")
        assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
        assert lost.json()["error"] == "what was being computed is lost: send the request again"
        monkeypatch.setattr(type(model.batcher.backend), "embed", staticmethod(usual))
        assert server.ask("/embed", inputs="a")
        assert server.client.get("/health").status_code == 200
        assert f'openalbert_worker_deaths{{model="{name}"}} 1.0' in server.client.get("/metrics").text


def test_a_torch_model_is_served_without_its_folder(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    with running(tmp_path / "model") as server:
        shutil.rmtree(tmp_path / "model")
        assert server.ask("/fill-mask", inputs="a [MASK]")
        assert server.ask("/embed", inputs="a")
        assert server.ask("/tokenize", inputs="a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is needed to fill a disk")
def test_a_server_whose_log_is_full_answers_and_ends_in_order(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "openalbert", "serve", str(tiny), "--port", str(port)]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(words, stderr=full)

    def is_healthy() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        return False

    try:
        assert until(lambda: is_healthy() or process.poll() is not None, 60)
        assert httpx.post(f"http://127.0.0.1:{port}/embed", json={"inputs": "a"}).status_code == 200
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_thousand_idle_connections_leave_room_for_requests(tiny: Path) -> None:
    allow_many_connections()
    with running(tiny) as server:
        idle = [socket.create_connection(address(server)) for _ in range(1000)]
        assert len(server.ask("/embed", inputs="a")) == 1
        for one in idle:
            one.close()
        assert len(server.ask("/embed", inputs="a")) == 1


def test_a_taken_port_a_bad_key_and_equal_names_are_refused_in_a_sentence(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit):
            cli.main(["serve", str(tiny), "--port", str(port)])
        assert (
            f"error: 127.0.0.1, port {port}: Address already in use: choose another --port" in capsys.readouterr().err
        )
    (tmp_path / "key").write_text("two words")
    with pytest.raises(UserError, match="the key must be one word"):
        serve(Serve((str(tiny),), port=0, api_key_file=tmp_path / "key"))
    with pytest.raises(UserError, match="two of the models are called"):
        serve(Serve((str(tiny), str(tiny)), port=0))
    threads = set(threading.enumerate())
    shutil.copytree(tiny, tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        serve(Serve((str(tiny), str(tmp_path / "damaged")), port=0))
    assert set(threading.enumerate()) <= threads  # those of the first model have ended
    with pytest.raises(UserError, match="no model is named"):
        Serve(())
    with pytest.raises(UserError, match="port is 70000"):
        Serve(("a",), port=70_000)
    with pytest.raises(UserError, match="choose another --port"):
        serve(Serve((str(tiny),), host="nobody.invalid", port=0))


def test_without_the_packages_for_it_the_extra_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "openalbert.serve.http_api.app":
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install 'openalbert\[serve\]'"):
        serve(Serve((str(tiny),), port=0))
