"""From shards to batches: any step's batch at once, the same bits on every device and for any split into micro-batches.

A batch is a function of (shards, objective, seed, batch size, step, masking rate). Of an example, the CPU decides where
its two segments lie (a few numbers, planned for a whole epoch); the device that trains takes the tokens, puts in the
special ones and hides n-grams, in operations of fixed shape.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, Integer, Shaped
from torch import Tensor

from openalbert.errors import UserError
from openalbert.objectives import ngram_masking, sentence_order
from openalbert.objectives.keyed_random import Stream, bits, permuted, root
from openalbert.objectives.ngram_masking import NgramMasking
from openalbert.objectives.sentence_order import Pairs, SentenceOrder
from openalbert.text.shards import ShardSet
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.cuda_graphs import capture

RESIDENT_FRACTION = 0.1  # tokens are kept on the GPU by default if they take at most this much of its free memory


@dataclass(frozen=True)
class Objective:
    """What is learned: how text becomes examples, and what is predicted."""

    max_length: int = 512
    """Tokens in an example, special ones counted."""
    masked_lm: NgramMasking = field(default_factory=NgramMasking)
    """Which tokens are hidden."""
    sentence_order: SentenceOrder = field(default_factory=SentenceOrder)
    """Which segments are paired."""

    def __post_init__(self) -> None:
        if self.max_length < sentence_order.SHORTEST:
            raise UserError(
                f"max_length is {self.max_length} but two segments and their special tokens need "
                f"{sentence_order.SHORTEST}: give a larger --objective.max-length"
            )

    @property
    def num_predictions(self) -> int:
        """Predictions that every example has room for."""
        return self.masked_lm.budget(self.max_length)


@dataclass(frozen=True)
class PretrainingBatch:
    """Examples as the model reads them: `[CLS] first [SEP] second [SEP]` or `[CLS] first [SEP]`, padded, with hidden
    tokens."""

    ids: Int64[Tensor, "batch length"]
    segments: Int64[Tensor, "batch length"]
    """0 up to the first [SEP] and in the padding, 1 after it."""
    lengths: Int64[Tensor, "batch"]
    """Tokens of each example, padding not counted."""
    positions: Int64[Tensor, "batch predictions"]
    """Where to predict, in rising order; 0 where void."""
    labels: Int64[Tensor, "batch predictions"]
    """What stood there; 0 where void."""
    valid: Bool[Tensor, "batch predictions"]
    """Is it a prediction, or void since the budget is smaller?"""
    swapped: Int64[Tensor, "batch"]
    """1 where the segments are swapped (sop) or do not follow each other (nsp)."""

    @property
    def mask(self) -> Bool[Tensor, "batch length"]:
        """True at real tokens, False at padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]

    def to(self, device: torch.device | str) -> "PretrainingBatch":
        """The same batch on another device."""
        return PretrainingBatch(*(getattr(self, tensor.name).to(device) for tensor in fields(self)))


def make_batch(
    tokens: Int[Tensor, "tokens"],
    rows: Int64[Tensor, "batch 7"],
    word_starts: Bool[Tensor, "vocabulary"],
    objective: Objective,
) -> PretrainingBatch:
    """All that happens on the device. No operation depends on a value, so it can be compiled and captured."""
    ids = sentence_order.assemble(tokens, rows[:, :4], objective.max_length, Tokenizer.cls_id, Tokenizer.sep_id)
    first_length, second_length, swapped = rows[:, 1], rows[:, 3], rows[:, 4]
    vocabulary = ngram_masking.MaskingVocabulary(word_starts, Tokenizer.mask_id)
    masked = ngram_masking.mask(ids, first_length, second_length, rows[:, 5:], vocabulary, objective.masked_lm)
    place = torch.arange(objective.max_length, device=rows.device)
    lengths = sentence_order.example_length(first_length, second_length)
    segments = ((place > first_length[:, None] + 1) & (place < lengths[:, None])).long()
    return PretrainingBatch(
        masked.ids, segments, lengths, masked.positions, masked.labels, masked.valid, swapped.clone()
    )


class _CapturedMaker:
    """`make_batch` for batches of one size, captured as a CUDA graph: hundreds of small operations start as one."""

    def __init__(
        self,
        make: Callable[[Tensor, Tensor, Tensor, Objective], PretrainingBatch],
        tokens: Int[Tensor, "tokens"],
        rows: Int64[Tensor, "batch 7"],
        word_starts: Bool[Tensor, "vocabulary"],
        objective: Objective,
    ) -> None:
        self.tokens, self.rows = tokens, rows
        with torch.cuda.device(rows.device):
            function = partial(make, tokens, rows, word_starts, objective)
            # Once beforehand, so that set-up and compilation are not captured. The cache is kept: a thread runs this
            # while the model trains.
            function()
            torch.cuda.synchronize()
            self.made, self.replay = capture(function)

    def __call__(self, tokens: Int[Tensor, "tokens"], rows: Int64[Tensor, "batch 7"]) -> PretrainingBatch:
        """The batch of other rows, and of other tokens unless they are those of all shards."""
        if tokens is not self.tokens:
            self.tokens.copy_(tokens, non_blocking=True)
        self.rows.copy_(rows, non_blocking=True)
        self.replay()
        # The next replay overwrites the batch.
        return PretrainingBatch(*(getattr(self.made, tensor.name).clone() for tensor in fields(PretrainingBatch)))


class Batches:
    """The batches of a run. `at` gives any of them at once; `stream` gives them in order, prepared ahead."""

    def __init__(
        self,
        shards: ShardSet,
        objective: Objective,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        resident: bool | None = None,
        compiled: bool = False,
    ) -> None:
        """Batches of `batch_size` examples over all ranks.

        The last three concern speed and change no bit: where batches are made, whether all tokens are kept there
        (None: if a GPU has room to spare), and whether the making is compiled.
        """
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size} but a batch has at least 1 example")
        self.shard_set, self.objective, self.batch_size, self.seed = shards, objective, batch_size, seed
        self.first_step = 0
        """The step that has the first examples: a later one where a run was continued on other data."""
        self.device = torch.device(device)
        tokenizer = Tokenizer.load(shards.tokenizer_folder)
        shards.check_vocabulary(tokenizer.fingerprint, tokenizer.vocab_size)
        self.word_starts = torch.from_numpy(tokenizer.word_starts).to(self.device)
        self._token_starts = np.cumsum([0, *(entry.tokens for entry in shards.entries)])
        self._sentence_starts = np.cumsum([0, *(entry.sentences for entry in shards.entries)])
        self._plans: dict[int, Pairs] = {}
        self._planning = threading.Lock()
        self._make = torch.compile(make_batch, dynamic=False) if compiled else make_batch
        self._captured: dict[int, _CapturedMaker] = {}
        self.examples_per_epoch = len(self.plan(0))
        if not self.examples_per_epoch:
            raise UserError(
                f"{shards.folder}: no document of the {shards.split} split has the two sentences that a pair needs: "
                "put an empty line only between documents, not between sentences, or give "
                "--objective.sentence-order.objective none, which learns from single sentences too"
            )
        # Documents of one sentence have no pair in any epoch.
        self.unusable_documents, self.unusable_tokens = self.plan(0).short_documents, self.plan(0).short_tokens
        self._resident = self._all_tokens() if self._is_resident(resident) else None

    def set_masking_rate(self, rate: float) -> None:
        """Mask this fraction of the tokens in batches that are taken from here on."""
        if rate != self.objective.masked_lm.rate:
            self.objective = replace(self.objective, masked_lm=replace(self.objective.masked_lm, rate=rate))
            self._captured.clear()  # and their memory with them

    def plan(self, epoch: int) -> Pairs:
        """Where the examples of an epoch lie; positions and sentences are counted over all shards."""
        with self._planning:
            if epoch not in self._plans:
                # A batch can lie across two epochs; older plans are of no use.
                self._plans = {kept: plan for kept, plan in self._plans.items() if abs(kept - epoch) == 1}
                self._plans[epoch] = Pairs.joined(
                    [self._plan_shard(epoch, n) for n in range(len(self.shard_set.entries))]
                )
            return self._plans[epoch]

    def _plan_shard(self, epoch: int, number: int) -> Pairs:
        shard = self.shard_set.shards[number]
        return sentence_order.pair(
            shard.sentence_starts,
            shard.document_starts,
            self.objective.sentence_order,
            self.objective.max_length,
            self.seed,
            epoch,
            first_sentence=int(self._sentence_starts[number]),
            first_token=int(self._token_starts[number]),
        )

    def epoch_of(self, step: int) -> float:
        """Epochs that were completed before this step, as a fraction."""
        return (step - self.first_step) * self.batch_size / self.examples_per_epoch

    def at(
        self, step: int, rank: int = 0, world: int = 1, micro_batch: int = 0, micro_batches: int = 1
    ) -> PretrainingBatch:
        """The batch of a step, or one rank's examples of it, or one of that rank's micro-batches."""
        return self.examples(self.numbers(step, rank, world, micro_batch, micro_batches))

    def numbers(
        self, step: int, rank: int = 0, world: int = 1, micro_batch: int = 0, micro_batches: int = 1
    ) -> Int64[np.ndarray, "batch"]:
        """The examples of a batch or a micro-batch, numbered from the first that the run takes from these data."""
        if self.batch_size % (world * micro_batches):
            raise UserError(
                f"batch_size is {self.batch_size}, which does not divide into {world} ranks of {micro_batches} "
                "micro-batches"
            )
        size = self.batch_size // (world * micro_batches)
        begin = (step - self.first_step) * self.batch_size + (rank * micro_batches + micro_batch) * size
        return np.arange(begin, begin + size, dtype=np.int64)

    def examples(self, numbers: Int64[np.ndarray, "batch"]) -> PretrainingBatch:
        """Any examples, by their number from the first that the run takes from these data."""
        return self._finish(*self._prepare(numbers))

    def stream(
        self,
        start: int = 0,
        stop: int | None = None,
        rank: int = 0,
        world: int = 1,
        micro_batches: int = 1,
        ahead: int = 2,
    ) -> Iterator[list[PretrainingBatch]]:
        """For each step its micro-batches, prepared some steps ahead by a thread of its own."""

        def prepare(step: int) -> list[tuple[Tensor, Tensor]]:
            return [self._prepare(self.numbers(step, rank, world, n, micro_batches)) for n in range(micro_batches)]

        pool = ThreadPoolExecutor(1, "batches")
        waiting: deque[Future[list[tuple[Tensor, Tensor]]]] = deque()
        try:
            for step in itertools.count(start) if stop is None else range(start, stop):
                waiting.append(pool.submit(prepare, step))
                if len(waiting) > ahead:
                    yield [self._finish(*of_micro_batch) for of_micro_batch in waiting.popleft().result()]
            for prepared in waiting:
                yield [self._finish(*of_micro_batch) for of_micro_batch in prepared.result()]
        finally:
            pool.shutdown(cancel_futures=True)

    def _prepare(self, numbers: Int64[np.ndarray, "batch"]) -> tuple[Tensor, Tensor]:
        """What the device needs: tokens and rows."""
        epochs = numbers // self.examples_per_epoch
        pairs = np.empty(len(numbers), sentence_order.PAIR)
        keys = np.empty((len(numbers), 2), np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            plan = self.plan(epoch)
            # Epochs differ a little in size, for their borders do. All are taken to be as long as the first, so that
            # a step's epoch is known at once: a few examples of a later one come twice or are left out.
            index = (numbers[here] - epoch * self.examples_per_epoch) % len(plan)
            pairs[here] = plan.rows[permuted(index, len(plan), root(self.seed, epoch, Stream.ORDER))]
            keys[here, 0] = bits(root(self.seed, epoch, Stream.MASK), pairs[here]["example"])
            keys[here, 1] = bits(root(self.seed, epoch, Stream.REPLACE), pairs[here]["example"])
        tokens = self._resident
        if tokens is None:
            tokens, pairs["first_begin"], pairs["second_begin"] = self._fetch(pairs)
            tokens = self._pinned(tokens)
        names = ("first_begin", "first_length", "second_begin", "second_length", "swapped")
        rows = np.concatenate([np.stack([pairs[name].astype(np.int64) for name in names], axis=1), keys], axis=1)
        return tokens, self._pinned(torch.from_numpy(rows))

    def _fetch(
        self, pairs: Shaped[np.ndarray, "batch"]
    ) -> tuple[Int[Tensor, "tokens"], Int64[np.ndarray, "batch"], Int64[np.ndarray, "batch"]]:
        """The tokens of some examples, read from the shards, and where in them the segments begin."""
        width = self.objective.max_length - sentence_order.SPECIAL_TOKENS + 1  # one segment has a [SEP] less
        place = np.arange(width)
        first, second = pairs["first_begin"][:, None], pairs["second_begin"][:, None]
        length = pairs["first_length"][:, None]
        source = np.where(place < length, first + place, second + place - length)
        fetched = np.empty((len(pairs), width), self.shard_set.manifest.dtype)
        of_shard = np.searchsorted(self._token_starts, pairs["first_begin"], side="right") - 1
        for number in np.unique(of_shard).tolist():
            here = of_shard == number
            fetched[here] = self.shard_set.shards[number].tokens.take(
                source[here] - self._token_starts[number], mode="clip"
            )
        begin = np.arange(len(pairs)) * width
        return _as_tensor(fetched.reshape(-1)), begin, begin + pairs["first_length"]

    # Buffers that were made in inference mode could not be written to outside of it.
    @torch.inference_mode(False)
    def _finish(self, tokens: Int[Tensor, "tokens"], rows: Int64[Tensor, "batch 7"]) -> PretrainingBatch:
        if self.device.type != "cuda":
            return self._make(tokens, rows, self.word_starts, self.objective)
        if len(rows) not in self._captured:
            on_gpu = tokens.to(self.device), rows.to(self.device)
            self._captured[len(rows)] = _CapturedMaker(self._make, *on_gpu, self.word_starts, self.objective)
        return self._captured[len(rows)](tokens, rows)

    def _pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def _is_resident(self, wanted: bool | None) -> bool:
        if wanted is not None or self.device.type != "cuda":
            return bool(wanted)
        free, _ = torch.cuda.mem_get_info(self.device)
        return self.shard_set.num_tokens * np.dtype(self.shard_set.manifest.dtype).itemsize <= RESIDENT_FRACTION * free

    def _all_tokens(self) -> Int[Tensor, "tokens"]:
        dtype = torch.int16 if self.shard_set.manifest.dtype == "uint16" else torch.int32
        tokens = torch.empty(self.shard_set.num_tokens, dtype=dtype, device=self.device)
        for shard, begin in zip(self.shard_set.shards, self._token_starts.tolist(), strict=False):
            tokens[begin : begin + len(shard.tokens)] = _as_tensor(np.array(shard.tokens)).to(self.device)
        return tokens


def _as_tensor(tokens: Integer[np.ndarray, "tokens"]) -> Int[Tensor, "tokens"]:
    """Token ids as torch can gather them: signed, of the same width."""
    return torch.from_numpy(tokens.view(np.int16 if tokens.itemsize == 2 else np.int32))
