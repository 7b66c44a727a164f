"""openalbert: ALBERT (A Lite BERT, arXiv 1909.11942), all of the paper, in PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from openalbert.version import __version__ as __version__

if TYPE_CHECKING:
    from openalbert.api import evaluate as evaluate
    from openalbert.api import finetune as finetune
    from openalbert.api import load as load
    from openalbert.api import open_run as open_run
    from openalbert.api import prepare as prepare
    from openalbert.api import pretrain as pretrain
    from openalbert.api import train_tokenizer as train_tokenizer
    from openalbert.errors import UserError as UserError
    from openalbert.finetuning.settings import Finetune as Finetune
    from openalbert.pretraining.settings import Pretrain as Pretrain
    from openalbert.run import Run as Run
    from openalbert.serve.predictor import Predictor as Predictor
    from openalbert.serve.search import SearchIndex as SearchIndex
    from openalbert.text.tokenizer import Tokenizer as Tokenizer

__all__ = [
    "Finetune",
    "Predictor",
    "Pretrain",
    "Run",
    "SearchIndex",
    "Tokenizer",
    "UserError",
    "evaluate",
    "finetune",
    "load",
    "open_run",
    "prepare",
    "pretrain",
    "train_tokenizer",
]

# torch takes seconds to import, and the command line's help must not wait for it: each name is imported on first use.
_MODULES = {
    "Finetune": "openalbert.finetuning.settings",
    "Predictor": "openalbert.serve.predictor",
    "Pretrain": "openalbert.pretraining.settings",
    "Run": "openalbert.run",
    "SearchIndex": "openalbert.serve.search",
    "Tokenizer": "openalbert.text.tokenizer",
    "UserError": "openalbert.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'openalbert' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES.get(name, "openalbert.api")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
