"""openalbert: ALBERT (A Lite BERT, arXiv 1909.11942), all of the paper, in PyTorch."""

from typing import TYPE_CHECKING, Any

from openalbert.version import __version__ as __version__

if TYPE_CHECKING:
    from openalbert.interop.huggingface import load as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import and the command line's help must not wait for it: loaded on first use.
    if name == "load":
        from openalbert.interop.huggingface import load

        return load
    raise AttributeError(f"module 'openalbert' has no attribute '{name}'")
