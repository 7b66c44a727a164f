"""`openalbert serve`: models behind HTTP, until SIGTERM or Ctrl-C; what is under way is answered first.

It imports no web packages itself: its settings are read where they are not installed, too.
"""

import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert.errors import UserError
from openalbert.finetuning.predict import TOKENS_AT_A_TIME
from openalbert.interop.huggingface import find_folder
from openalbert.model.heads import EXIT_KINDS
from openalbert.progress import log
from openalbert.run_files import model_name
from openalbert.serve.backend import TorchBackend
from openalbert.serve.http_api.batcher import Batcher, BatchingBackend
from openalbert.serve.http_api.limits import Limits
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.serve.predictor import Predictor
from openalbert.settings import check_at_least_one
from openalbert.train.device import Device, Speed, open_device

if TYPE_CHECKING:
    from openalbert.serve.http_api.service import ServedModel

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Serve:
    """Serve one or several models over HTTP, and a page to try them."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL [MODEL ...]")]
    """Model folders, runs, exported folders, or names of bundled checkpoints."""
    host: str = "127.0.0.1"
    """The address to listen at. Not given: this machine alone can ask; 0.0.0.0 is for everybody."""
    port: int = 8000
    """The port; 0 takes a free one."""
    limits: Annotated[Limits, OmitArgPrefixes] = field(default_factory=Limits)
    """How much may be asked for."""
    speedup: float | None = None
    """For models with exits: the deepest rule that is as good as any with so many times fewer layers where it was
    fitted. Not given: the one chosen in fine-tuning."""
    tokens_at_a_time: int = TOKENS_AT_A_TIME
    """How many tokens are computed together."""
    api_key_file: Path | None = None
    """A file with a key that requests must give, as `Authorization: Bearer KEY`."""
    cors: tuple[str, ...] = ()
    """Origins of other people's pages that may ask, such as https://example.org; * means all."""
    log_texts: bool = False
    """Log the texts of requests too."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("no model is named: give the folder of one, or several")
        if not 0 <= self.port < 2**16:
            raise UserError(f"port is {self.port}: it is from 0 to 65535")
        check_at_least_one(self, "tokens_at_a_time")


def serve(settings: Serve) -> None:
    """Load the models, answer until stopped, and end when all is answered."""
    try:
        from openalbert.serve.http_api.app import make_app
        from openalbert.serve.http_api.uvicorn_server import Server, allow_many_connections, bind
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("openalbert"):
            raise
        raise UserError("serving needs more packages: pip install 'openalbert[serve]'") from None
    key = _read_key(settings.api_key_file)
    names = [model_name(find_folder(name)) for name in settings.models]
    if len(set(names)) < len(names):
        raise UserError(f"two of the models are called {max(names, key=names.count)}: rename the folder of one")
    opened = bind(settings.host, settings.port)
    allow_many_connections()
    with opened, open_device(settings.speed) as device:
        models = load_models(settings, device)
        app = make_app(models, settings.limits, key=key, cors=settings.cors, log_texts=settings.log_texts)
        if settings.host not in LOOPBACK and not key:
            _log_safely(f"everybody who reaches {settings.host} can ask: --api-key-file asks for a key")
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        where = f"http://{host}:{opened.getsockname()[1]}"
        server = Server(
            app,
            settings.limits,
            opened=lambda: _log_safely(f"serving {', '.join(names)} at {where} (Ctrl-C stops)"),
            must_stop=lambda: not all(model.batcher.is_alive for model in models),
        )
        server.run([opened])
        dead = [model.name for model in models if not model.batcher.is_alive]
        seconds = 0.0 if server.force_exit else settings.limits.seconds
        is_drained = [model.batcher.close(seconds) for model in models]
    if server.force_exit or not all(is_drained):
        _end_at_once("stopped, but some requests were not answered")
    if dead:
        raise UserError(f"{dead[0]} does not compute any more, its workers died one after another: start it again")
    _log_safely("stopped: every request was answered")


def _log_safely(sentence: str) -> None:
    """Log it; a full disk is no reason to end."""
    with contextlib.suppress(OSError):
        log(sentence)


def _end_at_once(reason: str) -> NoReturn:
    """End while a thread still computes: it cannot be stopped, and Python would abort when it clears up around it."""
    _log_safely(f"error: {reason}")
    sys.stdout.flush()
    os._exit(1)


def load_models(settings: Serve, device: Device) -> "list[ServedModel]":
    """All models; where one cannot be loaded, the threads of those before it are ended."""
    models: list[ServedModel] = []
    try:
        for name in settings.models:
            models.append(load_model(name, settings, device))
    except BaseException:
        for model in models:
            model.batcher.close()
        raise
    return models


def load_model(name: str, settings: Serve, device: Device) -> "ServedModel":
    """A model whose predictor computes through a batcher."""
    from openalbert.serve.http_api.service import ServedModel

    folder = find_folder(name)
    predictor = Predictor.load(name)
    predictor.compute_on(device)
    backend = predictor.backend
    assert isinstance(backend, TorchBackend | OnnxBackend)
    if isinstance(backend, OnnxBackend):
        backend.model.load_all()
    leaving = predictor.leaving(speedup=settings.speedup)
    batcher = Batcher(
        backend,
        backend.pool() if predictor.kind in EXIT_KINDS else None,
        leaving.rule if leaving is not None else None,
        tokens_at_a_time=settings.tokens_at_a_time,
        max_waiting=settings.limits.max_requests,
        max_tokens=(1 + settings.limits.max_inputs) * predictor.config.max_positions,
    )
    short = model_name(folder)  # errors name it: a path is nobody's business
    served = Predictor(BatchingBackend(batcher), predictor.tokenizer, predictor.task, name=short)
    precision = backend.device.precision if isinstance(backend, TorchBackend) else backend.model.manifest.precision
    return ServedModel(short, served, batcher, precision)


def _read_key(path: Path | None) -> str:
    if path is None:
        return ""
    key = path.read_text(encoding="utf-8").strip()
    if not key or not key.isascii() or any(one.isspace() for one in key):
        raise UserError(f"{path}: the key must be one word of ASCII characters")
    return key
