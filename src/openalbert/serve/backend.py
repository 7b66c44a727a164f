"""What computes a model's outputs for token sequences, behind one small protocol: torch here, others elsewhere.

Everything before it (tokens) and after it (what the logits mean) is the same for all of them. A `Computation` is one
pass: a backend, which layers it computes, how much at a time, and what progress is shown.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from openalbert.errors import UserError
from openalbert.finetuning.predict import (
    MEAN,
    TOKENS_AT_A_TIME,
    Embedding,
    Outputs,
    batches_by_length,
    combine_windows,
    embed,
    inference,
    pack,
    predict,
)
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head, HeadKind
from openalbert.model.heads import EXIT_KINDS
from openalbert.progress import Work
from openalbert.serve.early_exit import Leaving, Pool, TorchPool, run_with_exits
from openalbert.settings import check_at_least_one
from openalbert.tasks.task import Sequences
from openalbert.train.device import Device

LONG_INPUT = 40_000  # tokens from which on progress is shown: 20 seconds of ALBERT-base on two cores
Advance = Callable[[float], None]
"""Called with the number of tokens that were just computed."""


def not_shown(tokens: float) -> None:
    """The progress of work that nobody waits for."""


@dataclass(frozen=True)
class Pace:
    """How much is computed at a time, and whom to report it to."""

    tokens_at_a_time: int = TOKENS_AT_A_TIME
    advance: Advance = not_shown


USUAL_PACE = Pace()


@dataclass(frozen=True)
class MaskedPieces:
    """The most probable pieces of some masked tokens, the best first."""

    ids: Int64[np.ndarray, "masks top"]
    probabilities: Float32[np.ndarray, "masks top"]


@runtime_checkable
class Backend(Protocol):
    """Computes what a model's heads give. Rows are in the order of the sequences, whatever is computed together."""

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """Its heads, with their labels."""

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
        """The logits of these heads: a row for each sequence; of heads that score tokens, a row for each token."""

    def masked_pieces(
        self,
        sequences: Sequences,
        masks: Int64[np.ndarray, "masks"],
        top: int,
        num_pieces: int,
        pace: Pace = USUAL_PACE,
    ) -> MaskedPieces:
        """The `top` most probable of the first `num_pieces` pieces for each masked token.

        `masks` are the places of these tokens in `sequences.ids`, ascending.
        """

    def embed(
        self, sequences: Sequences, how: Embedding = MEAN, pace: Pace = USUAL_PACE
    ) -> Float32[np.ndarray, "sequences hidden"]:
        """One vector for each sequence."""


@runtime_checkable
class LayeredBackend(Backend, Protocol):
    """A backend that can stop after any layer."""

    def at_depth(self, depth: int) -> "LayeredBackend":
        """The same model, computed through its first layers only."""

    def pool(self) -> Pool:
        """An empty pool for sequences that leave at different depths."""


@dataclass(frozen=True)
class TorchBackend:
    """An AlbertModel on a device, computing packed batches of similar lengths: nothing is computed for padding."""

    module: AlbertModel
    device: Device
    depth: int | None = None
    """The layers that are computed; None: all."""

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""
        return self.module.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """Its heads, with their labels."""
        return self.module.head_list

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
        """The logits of these heads."""
        return predict(
            [self.module],
            sequences,
            self.device,
            kinds=kinds,
            depth=self.depth,
            tokens_at_a_time=pace.tokens_at_a_time,
            advance=pace.advance,
        )

    def at_depth(self, depth: int) -> "TorchBackend":
        """The same model, computed through its first layers only."""
        return replace(self, depth=depth)

    def pool(self) -> TorchPool:
        """An empty pool for sequences that leave at different depths."""
        return TorchPool(self.module, self.device)

    def embed(
        self, sequences: Sequences, how: Embedding = MEAN, pace: Pace = USUAL_PACE
    ) -> Float32[np.ndarray, "sequences hidden"]:
        """One vector for each sequence; layers after the one that is asked for are not computed."""
        return embed(
            [self.module],
            sequences,
            self.device,
            replace(how, layer=how.layer or self.depth),
            tokens_at_a_time=pace.tokens_at_a_time,
            advance=pace.advance,
        )

    def masked_pieces(
        self,
        sequences: Sequences,
        masks: Int64[np.ndarray, "masks"],
        top: int,
        num_pieces: int,
        pace: Pace = USUAL_PACE,
    ) -> MaskedPieces:
        """The most probable pieces of masked tokens; the last layer and the head compute these tokens alone."""
        ids = np.zeros((len(masks), top), np.int64)
        probabilities = np.zeros((len(masks), top), np.float32)
        with inference(self.module):
            for chosen in batches_by_length(sequences.lengths, pace.tokens_at_a_time, self.device):
                packed = pack(sequences, chosen, self.device)
                (asked,) = np.nonzero(np.isin(packed.tokens, masks))
                at = torch.from_numpy(asked).to(self.device.torch_device)
                with self.device.autocast():
                    encoded = self.module.encode_packed(
                        packed.ids, packed.lengths, packed.segments, at=at, depth=self.depth
                    )
                    scores = self.module.scores("masked_lm", encoded)[:, :num_pieces]
                best = scores.float().softmax(-1).topk(top)
                rows = np.searchsorted(masks, packed.tokens[asked])
                ids[rows], probabilities[rows] = best.indices.cpu().numpy(), best.values.cpu().numpy()
                pace.advance(float(len(packed.tokens)))
        return MaskedPieces(ids, probabilities)


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
        check_at_least_one(self, "tokens_at_a_time")

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind]) -> Outputs:
        """The logits of these heads, and the depth at which each sequence left, where they may leave early."""
        leaving, backend = self.leaving, self.backend
        with self._work(sequences) as advance:
            pace = Pace(self.tokens_at_a_time, advance)
            if leaving is None or kinds[0] not in EXIT_KINDS or not isinstance(backend, LayeredBackend):
                return self._to_depth().logits(sequences, kinds, pace)
            depth = leaving.same_depth(backend.config.num_layers)
            if depth is not None:
                found = backend.at_depth(depth).logits(sequences, kinds, pace)
                return replace(found, depths=np.full(len(sequences.example), depth))
            left = run_with_exits(
                backend.pool(), sequences, leaving, tokens_at_a_time=self.tokens_at_a_time, advance=advance
            )
            return Outputs({kinds[0]: combine_windows(sequences, left.logits)}, left.depths)

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
