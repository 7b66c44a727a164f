"""One pass of a model over token sequences: which layers are computed, how much at a time, what progress is shown."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64

from openalbert.errors import UserError
from openalbert.finetuning.predict import MEAN, TOKENS_AT_A_TIME, Embedding, Outputs, combine_windows
from openalbert.model.config import HeadKind
from openalbert.model.heads import EXIT_KINDS
from openalbert.progress import Work
from openalbert.serve.backend import Advance, Backend, LayeredBackend, MaskedPieces, Pace, not_shown
from openalbert.serve.early_exit import Leaving, run_with_exits
from openalbert.tasks.task import Sequences

LONG_INPUT = 200_000  # tokens from which on progress is shown


@dataclass(frozen=True)
class Computation:
    """A backend, and how it is used for some inputs."""

    backend: Backend
    tokens_at_a_time: int = TOKENS_AT_A_TIME
    leaving: Leaving | None = None
    """At which depth inputs leave; None: all layers are computed."""
    shows: bool = False
    """Whether long work shows its progress."""

    def __post_init__(self) -> None:
        if self.tokens_at_a_time < 1:
            raise UserError(f"tokens_at_a_time is {self.tokens_at_a_time}: it must be at least 1")

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind]) -> Outputs:
        """The logits of these heads, and the depth at which each sequence left, where they may leave early."""
        backend = self._to_depth()
        with self._work(sequences) as advance:
            if self.leaving is not None and kinds[0] in EXIT_KINDS and isinstance(backend, LayeredBackend):
                left = run_with_exits(
                    backend.pool(), sequences, self.leaving, tokens_at_a_time=self.tokens_at_a_time, advance=advance
                )
                return Outputs({kinds[0]: combine_windows(sequences, left.logits)}, left.depths)
            return backend.logits(sequences, kinds, Pace(self.tokens_at_a_time, advance))

    def masked_pieces(
        self, sequences: Sequences, masks: Int64[np.ndarray, "masks"], top: int, num_pieces: int
    ) -> MaskedPieces:
        """The most probable pieces of the tokens at these places."""
        with self._work(sequences) as advance:
            pace = Pace(self.tokens_at_a_time, advance)
            return self._to_depth().masked_pieces(sequences, masks, top, num_pieces, pace)

    def embed(self, sequences: Sequences, embedding: Embedding = MEAN) -> Float32[np.ndarray, "sequences hidden"]:
        """The embedding of each sequence."""
        with self._work(sequences) as advance:
            return self._to_depth().embed(sequences, embedding, Pace(self.tokens_at_a_time, advance))

    def _to_depth(self) -> Backend:
        depth = self.leaving.max_depth if self.leaving is not None else None
        if depth is None or not isinstance(self.backend, LayeredBackend):
            return self.backend
        return self.backend.at_depth(depth)

    @contextlib.contextmanager
    def _work(self, sequences: Sequences) -> Iterator[Advance]:
        """Show the progress of long work, and explain what it lacks memory for."""
        try:
            if self.shows and len(sequences.ids) >= LONG_INPUT:
                with Work("predict", total=float(len(sequences.ids)), unit="k tokens", scale=1e3) as work:
                    yield work.advance
            else:
                yield not_shown
        except torch.OutOfMemoryError:
            raise UserError(
                "so many tokens at a time do not fit into the memory: give fewer with tokens_at_a_time"
            ) from None
