"""`openalbert serve`: models behind HTTP, until SIGTERM or Ctrl-C; what is under way is answered first."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from openalbert.errors import UserError
from openalbert.finetuning.predict import TOKENS_AT_A_TIME
from openalbert.interop.huggingface import find_folder
from openalbert.model.heads import EXIT_KINDS
from openalbert.serve.backend import LayeredBackend, TorchBackend
from openalbert.serve.batcher import Batcher, BatchingBackend
from openalbert.serve.predictor import Predictor
from openalbert.train.device import Device, Speed, open_device

if TYPE_CHECKING:
    from openalbert.serve.http import ServedModel

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEEP_ALIVE = 5  # seconds until an idle connection is closed


@dataclass(frozen=True)
class Allowed:
    """How much may be asked for."""

    max_body: int = 2_000_000
    """Bytes of a request's body; more is answered with 413."""
    max_inputs: int = 32
    """Inputs of a request; more are answered with 413."""
    max_requests: int = 512
    """Requests in flight; more are answered with 429."""
    seconds: float = 30.0
    """How long a request may take to arrive, and then to be answered; longer ones are answered with 503."""

    def __post_init__(self) -> None:
        for name in ("max_body", "max_inputs", "max_requests", "seconds"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} is {getattr(self, name)}: it must be above 0")


@dataclass(frozen=True)
class Serve:
    """Serve one or several models over HTTP, and a page to try them."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL [MODEL ...]")]
    """Model folders, runs, exported folders, or names of bundled checkpoints."""
    host: str = "127.0.0.1"
    """The address to listen at. Not given: this machine alone can ask; 0.0.0.0 is for everybody."""
    port: int = 8000
    """The port; 0 takes a free one."""
    allowed: Annotated[Allowed, OmitArgPrefixes] = field(default_factory=Allowed)
    """How much may be asked for."""
    speedup: float | None = None
    """For models with exits: compute at most 1 / SPEEDUP of the layers on average. Not given: as fitted."""
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


def serve(settings: Serve) -> None:
    """Load the models, answer until told to stop, and end when all is answered."""
    uvicorn = _uvicorn()
    from openalbert.serve.http import make_app
    from openalbert.serve.http_guard import Limits

    key = _read_key(settings.api_key_file)
    with open_device(settings.speed) as device:
        models = [load_model(name, settings, device) for name in settings.models]
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            raise UserError(f"two of the models are called {max(names, key=names.count)}: rename the folder of one")
        limits = Limits(**vars(settings.allowed))
        app = make_app(models, limits, key=key, cors=settings.cors, log_texts=settings.log_texts)
        if settings.host not in LOOPBACK and not key:
            _log(f"everybody who reaches {settings.host} can ask: --api-key-file asks for a key")
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                settings.host,
                settings.port,
                log_level="error",
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=round(limits.seconds) + 1,
                server_header=False,
                lifespan="off",
            )
        )
        with _stopped_by_signals(server):
            server.capture_signals = contextlib.nullcontext
            server.config.callback_notify = None
            _announce(server, settings, models)
            server.run()
        drained = all([model.batcher.close(limits.seconds) for model in models])
    _log("stopped: every request was answered" if drained else "stopped: some requests were not answered in time")
    if not drained:
        sys.exit(1)


def load_model(name: str, settings: Serve, device: Device) -> "ServedModel":
    """A model whose predictor computes through a batcher."""
    from openalbert.serve.http import ServedModel

    folder = find_folder(name)
    predictor = Predictor.load(name)
    backend = predictor.backend
    if isinstance(backend, TorchBackend):
        backend = TorchBackend(backend.module.to(device.torch_device), device)
    assert isinstance(backend, LayeredBackend)
    leaving = predictor.leaving(speedup=settings.speedup) if predictor.kind in EXIT_KINDS else None
    batcher = Batcher(
        backend,
        backend.pool() if predictor.kind in EXIT_KINDS else None,
        leaving.rule if leaving is not None else None,
        tokens_at_a_time=settings.tokens_at_a_time,
        max_waiting=settings.allowed.max_requests,
    )
    served = Predictor(BatchingBackend(batcher), predictor.tokenizer, predictor.task, name=name)
    short = folder.parent.name if folder.name == "model" else folder.name
    return ServedModel(short, served, batcher)


def _uvicorn() -> Any:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError:
        raise UserError("serving needs: pip install 'openalbert[serve]'") from None
    return uvicorn


def _read_key(path: Path | None) -> str:
    if path is None:
        return ""
    key = path.read_text(encoding="utf-8").strip()
    if not key or not key.isascii() or any(one.isspace() for one in key):
        raise UserError(f"{path}: the key must be one word of ASCII characters")
    return key


@contextlib.contextmanager
def _stopped_by_signals(server: Any) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the server after what is under way; a second one at once."""

    def stop(number: int, frame: object) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(server: Any, settings: Serve, models: Sequence["ServedModel"]) -> None:
    """Log the address once the port is open."""
    startup = server.startup

    async def announced(sockets: Any = None) -> None:
        await startup(sockets)
        if not server.started:  # the port is taken: uvicorn has logged it
            return
        port = server.servers[0].sockets[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        _log(f"serving {', '.join(model.name for model in models)} at http://{host}:{port} (Ctrl-C stops)")

    server.startup = announced


def _log(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
