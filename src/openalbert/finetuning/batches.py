"""Training batches without padding: shuffled anew in every epoch, split by tokens, resumed exactly."""

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from openalbert.errors import UserError
from openalbert.finetuning.encode import concatenate_ranges
from openalbert.model.config import AlbertConfig
from openalbert.model.cost import activation_bytes
from openalbert.objectives.keyed_random import Stream, permuted, root
from openalbert.tasks.task import Sequences
from openalbert.train.device import CPU_MEMORY, MEMORY_FRACTION, Device

STEPS_AHEAD = 2
FILLING = 64  # tokens: sizes are multiples of it, and a sequence of padding is about as long


@dataclass(frozen=True)
class PackedBatch:
    """Concatenated sequences with their targets."""

    tokens: Int64[Tensor, "tokens"]
    segments: Int64[Tensor, "tokens"]
    lengths: tuple[int, ...]
    """Tokens of each sequence, on the host; sequences of padding come last."""
    options: tuple[int, ...]
    """Sequences of each unit: one, or one for each option of a choice."""
    targets: Mapping[str, Tensor]
    """As in `Sequences`, by the kind of head; of tokens only those that are not padding."""
    chunks: tuple[int, ...] = ()
    """Where the loss needs the whole step at once: how many sequences are encoded at a time."""

    def __len__(self) -> int:
        """The number of units."""
        return len(self.options)

    @property
    def real_lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence that is not padding."""
        return self.lengths[: sum(self.options)]

    @property
    def is_filled(self) -> bool:
        """Whether it has sequences of padding."""
        return len(self.lengths) > sum(self.options)

    def to(self, device: torch.device) -> "PackedBatch":
        """Move the batch from the host to a device."""

        def moved(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

        targets = {kind: moved(tensor) for kind, tensor in self.targets.items()}
        return replace(self, tokens=moved(self.tokens), segments=moved(self.segments), targets=targets)


def filled(batch: PackedBatch) -> PackedBatch:
    """The batch with short sequences of padding appended, so that only few sizes occur; at most an eighth more tokens.

    Their number depends on the size alone, and each has at least one token.
    """
    total = len(batch.tokens)
    step = max(FILLING, 1 << max(0, total.bit_length() - 4))
    count = step // FILLING
    missing = count + -(total + count) % step
    lengths = [missing // count + (number < missing % count) for number in range(count)]
    nothing = batch.tokens.new_zeros(missing)
    tokens, segments = (torch.cat((tensor, nothing)) for tensor in (batch.tokens, batch.segments))
    return PackedBatch(tokens, segments, (*batch.lengths, *lengths), batch.options, batch.targets)


def without_tokens(sequences: Sequences) -> PackedBatch:
    """All sequences as one batch without their tokens: lengths and targets, for outputs that are computed already."""
    no_tokens = torch.empty(0, dtype=torch.int64)
    is_choice = "multiple_choice" in sequences.targets
    options = np.bincount(sequences.example) if is_choice else np.ones(len(sequences.example), np.int64)
    targets = {kind: torch.from_numpy(wanted) for kind, wanted in sequences.targets.items()}
    return PackedBatch(no_tokens, no_tokens, tuple(sequences.lengths.tolist()), tuple(options.tolist()), targets)


def num_units(sequences: Sequences) -> int:
    """Units that batches are counted in: sequences, or examples whose sequences stay together.

    These are the options of multiple choice and the texts of similarity.
    """
    return len(_first_of_units(sequences))


def _first_of_units(sequences: Sequences) -> Int64[np.ndarray, "units"]:
    """The first sequence of each unit."""
    if not {"multiple_choice", "similarity"} & sequences.targets.keys():
        return np.arange(len(sequences.example))
    return sequences.first_of_examples


def fingerprint(sequences: Sequences) -> str:
    """A hash of the tokens and targets in their order."""
    sums = hashlib.sha256()
    for array in (sequences.ids, sequences.starts, sequences.second, *sequences.targets.values()):
        sums.update(np.ascontiguousarray(array).data)
    return sums.hexdigest()


def tokens_in_memory(config: AlbertConfig, device: Device, recompute: bool) -> int:
    """Estimate how many tokens at a time fit into the free memory of the device."""
    width = 2 if device.precision == "bf16" else 4
    of_1024 = activation_bytes(config, 1024, width, recompute, masked_fraction=0.0)
    return max(1, int(MEMORY_FRACTION * (device.free_memory() or CPU_MEMORY) / of_1024 * 1024))


class Packing:
    """The batches of a run. A batch has `batch_size` units: sequences, or all options of a multiple-choice example.

    The units of a step depend on (seed, step) alone, so that a run resumes anywhere. They are split into micro-batches
    by tokens, since padding costs nothing here and long sequences do; the split changes no gradient. Where texts of a
    step are compared with each other (similarity) it is one batch, which is split into chunks instead.
    """

    def __init__(
        self,
        sequences: Sequences,
        batch_size: int,
        seed: int,
        *,
        tokens_at_a_time: int,
        units_at_a_time: int | None = None,
        device: torch.device | str = "cpu",
        fills: bool = False,
    ) -> None:
        """With `fills`, steps of a single micro-batch are padded to few sizes; it changes no gradient."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}: a batch has at least 1 example")
        if not sequences.targets:
            raise UserError("the training examples have no labels: nothing can be learned from them")
        self.sequences, self.batch_size, self.seed = sequences, batch_size, seed
        self.device = torch.device(device)
        self.units_at_a_time, self.fills = units_at_a_time, fills
        self._first = _first_of_units(sequences)
        self._options = np.diff(self._first, append=len(sequences.example))
        self._is_compared = "similarity" in sequences.targets
        self.num_units = len(self._first)
        if not self.num_units:
            raise UserError("there is not one training example: nothing can be learned")
        self._tokens = np.add.reduceat(sequences.lengths, self._first)
        # No step has more tokens than this: halving the bound, after memory ran out, then halves what is computed.
        self.tokens_at_a_time = min(tokens_at_a_time, batch_size * int(self._tokens.max()))

    def epoch_of(self, step: int) -> float:
        """How many epochs were completed before this step."""
        return step * self.batch_size / self.num_units

    def units(self, step: int) -> Int64[np.ndarray, "batch"]:
        """The units of a step, short ones first. An epoch's last batch is completed from the next epoch."""
        numbers = np.arange(step * self.batch_size, (step + 1) * self.batch_size, dtype=np.int64)
        epochs = numbers // self.num_units
        units = np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            key = root(self.seed, epoch, Stream.ORDER)
            units[here] = permuted(numbers[here] % self.num_units, self.num_units, key)
        return units[np.argsort(self._tokens[units], kind="stable")]

    def at(self, step: int, rank: int = 0, world: int = 1, micro_batches: int = 1) -> list[PackedBatch]:
        """One rank's micro-batches of a step; `micro_batches` divides the tokens that one of them may have."""
        if self.batch_size < world:
            raise UserError(
                f"batch_size is {self.batch_size}, too small for {world} processes: raise it, or take fewer"
            )
        units = self.units(step)[rank::world]
        bound = max(1, self.tokens_at_a_time // micro_batches)
        most = self.units_at_a_time or self.batch_size
        if self._is_compared and micro_batches > 4 * self.batch_size:  # a chunk has been a single unit for long
            raise UserError(
                "the device has not enough memory for a single example: shorten it with --max-length, or take a "
                "smaller model"
            )
        cuts, held, count = [], 0, 0
        for place, tokens in enumerate(self._tokens[units].tolist()):
            if count and (held + tokens > bound or count == most):
                cuts.append(place)
                held = count = 0
            held, count = held + tokens, count + 1
        if self._is_compared:
            chunks = tuple(int(self._options[some].sum()) for some in np.split(units, cuts))
            return [replace(self.pack(units), chunks=chunks)]
        batches = [self.pack(some) for some in np.split(units, cuts)]
        return [filled(batches[0])] if self.fills and len(batches) == 1 else batches

    def pack(self, units: Int64[np.ndarray, "units"]) -> PackedBatch:
        """These units as one batch, on the host."""
        rows, sequences = concatenate_ranges(self._first[units], self._options[units]), self.sequences
        lengths = sequences.lengths[rows]
        place = concatenate_ranges(np.zeros_like(lengths), lengths)
        tokens = np.repeat(sequences.starts[rows], lengths) + place
        return PackedBatch(
            torch.from_numpy(sequences.ids[tokens].astype(np.int64)),
            torch.from_numpy((place >= np.repeat(sequences.second[rows], lengths)).astype(np.int64)),
            tuple(lengths.tolist()),
            tuple(self._options[units].tolist()),
            {
                kind: torch.from_numpy(targets[tokens if kind == "tagging" else rows])
                for kind, targets in sequences.targets.items()
            },
        )

    def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[PackedBatch]]:
        """For each step from `start` on its micro-batches, on the device; a thread prepares them ahead."""
        with ThreadPoolExecutor(1, "packing") as worker:
            pending: deque[Future[list[PackedBatch]]] = deque()
            for step in itertools.count(start):
                pending.append(worker.submit(self.at, step, rank, world, micro_batches))
                if len(pending) > STEPS_AHEAD:
                    yield [batch.to(self.device) for batch in pending.popleft().result()]
