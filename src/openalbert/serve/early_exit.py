"""The exit loop: every example leaves at the depth that it needs, and examples of different depths share a batch.

All layers of an ALBERT are one set of weights, so one step of the loop takes examples of any depth through their next
layer. Finished ones leave after each step and waiting ones join: the batch stays full, which layers with weights of
their own do not allow.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64

from openalbert.errors import UserError
from openalbert.finetuning.exit_rules import is_settled
from openalbert.finetuning.predict import PRETRAINING, TOKENS_AT_A_TIME, bound_tokens, pack
from openalbert.interop.exits import NEVER, ExitInfo, ExitRule
from openalbert.model.albert import AlbertModel
from openalbert.model.config import HeadKind
from openalbert.model.kernels.cpu_linear import fill_rows
from openalbert.model.packing import Packed
from openalbert.tasks.task import Sequences
from openalbert.train.device import Device


@dataclass(frozen=True)
class Leaving:
    """When examples leave."""

    rule: ExitRule = NEVER
    max_depth: int | None = None
    """The layers computed at most; None: all."""
    deadline: float | None = None
    """Seconds from its beginning after which an example leaves with what it has; None: never."""

    def same_depth(self, num_layers: int) -> int | None:
        """The depth of all examples, which need no loop then; None where each leaves at its own."""
        if self.rule.asks or self.deadline is not None:
            return None
        return min(num_layers, self.rule.depth or num_layers, self.max_depth or num_layers)


@dataclass(frozen=True)
class Left:
    """Sequences that have left: their numbers, logits, and the layers that were computed."""

    numbers: Int64[np.ndarray, "left"]
    logits: Float32[np.ndarray, "left outputs"]
    depths: Int64[np.ndarray, "left"]


@runtime_checkable
class Pool(Protocol):
    """The sequences that are being computed, in the order in which they joined."""

    head: HeadKind
    num_outputs: int
    num_layers: int
    mixes_depths: bool
    """Whether one step takes sequences of different depths: all layers share their weights."""
    most_tokens: int
    """More tokens at a time are no faster."""

    def join(self, sequences: Sequences, chosen: Int64[np.ndarray, "_"]) -> None:
        """Add sequences, at depth 0."""

    def run_layer(self, depths: Int64[np.ndarray, "active"]) -> Float32[np.ndarray, "active outputs"]:
        """Take each sequence through its next layer, after which it is at this depth: its logits."""

    def keep(self, stays: Bool[np.ndarray, "active"]) -> None:
        """Remove the sequences that leave."""

    def clear(self) -> None:
        """Remove all sequences."""


@dataclass
class Active:
    """The sequences in the pool: a row for each, in the pool's order."""

    numbers: Int64[np.ndarray, "active"]
    lengths: Int64[np.ndarray, "active"]
    last: Int64[np.ndarray, "active"]
    """The depth at which it leaves at the latest."""
    until: Float64[np.ndarray, "active"]
    """The time at which it leaves at the latest."""
    depths: Int64[np.ndarray, "active"]
    in_a_row: Int64[np.ndarray, "active"]
    """Layers in a row at which it was settled."""
    logits: Float32[np.ndarray, "active outputs"]
    """Those of its last depth."""

    def __add__(self, other: "Active") -> "Active":
        return Active(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __getitem__(self, rows: Bool[np.ndarray, "active"]) -> "Active":
        return Active(*(values[rows] for values in vars(self).values()))


class DepthMixedBatch:
    """Sequences that join, take one layer a step whatever their depth, and leave when they are settled."""

    def __init__(self, pool: Pool, rule: ExitRule = NEVER, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pool, self.rule, self.clock = pool, rule, clock
        self.step_seconds = 0.0
        """How long the last step took: another one would take as long."""
        self.clear()

    def clear(self) -> None:
        """Remove all sequences, after an error."""
        nothing, none = np.empty(0, np.int64), np.empty((0, self.pool.num_outputs), np.float32)
        self.active = Active(nothing, nothing, nothing, np.empty(0), nothing, nothing, none)
        self.pool.clear()

    @property
    def num_tokens(self) -> int:
        """The tokens of the sequences that are being computed."""
        return int(self.active.lengths.sum())

    @property
    def can_join(self) -> bool:
        """Whether sequences may join now: layers with weights of their own take one depth at a time."""
        return self.pool.mixes_depths or not len(self.active.numbers)

    def join(
        self,
        sequences: Sequences,
        chosen: Int64[np.ndarray, "new"],
        numbers: Int64[np.ndarray, "new"],
        max_depth: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """Add sequences, which get these numbers; `deadline` is in seconds from now."""
        last = self.pool.num_layers if max_depth is None else max_depth
        check_depth(last, self.pool.num_layers)
        last = min(last, self.rule.depth or last)
        count, until = len(chosen), np.inf if deadline is None else self.clock() + deadline
        zeros, logits = np.zeros(count, np.int64), np.zeros((count, self.pool.num_outputs), np.float32)
        new = Active(
            numbers, sequences.lengths[chosen], np.full(count, last), np.full(count, until), zeros, zeros, logits
        )
        self.pool.join(sequences, chosen)
        self.active += new

    def step(self) -> Left:
        """Take every sequence through its next layer; returns those that leave."""
        started, active = self.clock(), self.active
        active.depths = active.depths + 1
        logits = self.pool.run_layer(active.depths)
        settled = is_settled(self.pool.head, self.rule, logits, active.logits)
        if self.rule.kind == "patience":
            settled &= active.depths > 1  # the first layer has none before it
        active.in_a_row = np.where(settled, active.in_a_row + 1, 0)
        active.logits = logits
        leaves = (active.in_a_row >= self.rule.patience) | (active.depths >= active.last)
        now = self.clock()
        self.step_seconds = now - started
        leaves |= now + self.step_seconds > active.until
        self.pool.keep(~leaves)
        left, self.active = active[leaves], active[~leaves]
        return Left(left.numbers, left.logits, left.depths)


def run_with_exits(
    pool: Pool,
    sequences: Sequences,
    leaving: Leaving,
    *,
    tokens_at_a_time: int = TOKENS_AT_A_TIME,
    advance: Callable[[float], None] = lambda tokens: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Left:
    """Compute every sequence until it leaves, in their order; `advance` is called with the tokens that have left.

    With a deadline each is computed alone: together, every one would wait for the others.
    """
    count, lengths = len(sequences.example), sequences.lengths
    out = Left(np.arange(count), np.zeros((count, pool.num_outputs), np.float32), np.zeros(count, np.int64))
    batch = DepthMixedBatch(pool, leaving.rule, clock)
    waiting = np.argsort(-lengths, kind="stable")  # similar lengths together
    tokens_at_a_time = min(tokens_at_a_time, pool.most_tokens)
    while len(waiting) or batch.num_tokens:
        if len(waiting) and batch.can_join:
            fits = int(np.searchsorted(np.cumsum(lengths[waiting]), tokens_at_a_time - batch.num_tokens, side="right"))
            if leaving.deadline is not None:
                fits = 0
            new, waiting = np.split(waiting, [max(fits, int(not batch.num_tokens))])
            if len(new):
                batch.join(sequences, new, new, leaving.max_depth, leaving.deadline)
        left = batch.step()
        out.logits[left.numbers], out.depths[left.numbers] = left.logits, left.depths
        if len(left.numbers):
            advance(float(lengths[left.numbers].sum()))
    return out


class TorchPool:
    """Sequences packed without padding."""

    def __init__(self, model: AlbertModel, device: Device) -> None:
        [head] = [one for one in model.head_list if one.kind not in PRETRAINING]
        self.model, self.device, self.most_tokens = model.eval(), device, bound_tokens(TOKENS_AT_A_TIME, device)
        self.head, self.num_outputs, self.num_layers = head.kind, head.num_outputs, model.config.num_layers
        sharing = model.config.sharing
        self.mixes_depths = sharing.attention == sharing.ffn == 1
        self.clear()
        modules = [*(model.exits or ()), model.heads[head.kind]]
        self.weight = torch.stack([module.dense.weight for module in modules]).detach()
        self.bias = torch.stack([module.dense.bias for module in modules]).detach()

    def clear(self) -> None:
        """Remove all sequences."""
        self.hidden = torch.empty(0, self.model.config.hidden_size, device=self.device.torch_device)
        self.lengths: tuple[int, ...] = ()
        self.layer = 0
        """The layer that comes next, where all sequences are at the same depth."""

    def join(self, sequences: Sequences, chosen: Int64[np.ndarray, "_"]) -> None:
        """Embed sequences, and add them."""
        packed = pack(sequences, chosen, self.device)
        with torch.inference_mode(), self.device.autocast():
            positions = Packed.of(packed.lengths, packed.ids.device).positions(packed.ids)
            new = self.model.encoder.embedding(packed.ids.long(), packed.segments, positions)
            self.hidden = torch.cat((self.hidden.to(new.dtype), new))
        if not self.lengths:
            self.layer = 0
        self.lengths = (*self.lengths, *packed.lengths)

    def run_layer(self, depths: Int64[np.ndarray, "active"]) -> Float32[np.ndarray, "active outputs"]:
        """The next layer's output for all tokens, and the logits of its [CLS]."""
        encoder = self.model.encoder
        with torch.inference_mode(), self.device.autocast():
            attention, ffn = encoder.blocks(0 if self.mixes_depths else self.layer)
            layout = Packed.of(self.lengths, self.hidden.device)
            self.hidden = ffn(attention(fill_rows(self.hidden), layout))[: len(self.hidden)]
            self.layer += 1
            pooled = encoder.pool(layout.first(self.hidden))
            if self.model.exits is None:
                logits = pooled @ self.weight[0].T + self.bias[0]
            else:
                own = torch.from_numpy(depths - 1).to(pooled.device)
                logits = torch.einsum("soh,sh->so", self.weight[own], pooled) + self.bias[own]
            found: np.ndarray = logits.float().cpu().numpy()
            return found

    def keep(self, stays: Bool[np.ndarray, "active"]) -> None:
        """Remove the sequences that leave."""
        if not stays.all():
            kept = torch.from_numpy(np.repeat(stays, self.lengths))
            self.hidden = self.hidden[kept.to(self.hidden.device)]
            self.lengths = tuple(np.array(self.lengths)[stays].tolist())


def check_depth(depth: int, num_layers: int) -> None:
    """Refuse a number of layers that the model has not."""
    if not 1 <= depth <= num_layers:
        raise UserError(f"depth is {depth}, but it must be from 1 to {num_layers}, the number of layers")


def choose_leaving(
    info: ExitInfo | None,
    num_layers: int,
    *,
    depth: int | None = None,
    speedup: float | None = None,
    deadline_ms: float | None = None,
) -> Leaving | None:
    """When examples leave, as a user asks for it. Without a wish it is by the fitted rule; None where there is none.

    `depth` is that of all examples.
    """
    if deadline_ms is not None and not deadline_ms >= 0:
        raise UserError(f"a deadline of {deadline_ms:g} milliseconds is none: give 0 or more")
    if speedup is not None and not speedup >= 1:
        raise UserError(f"a speed-up of {speedup:g} is none: give 1 or more")
    deadline = None if deadline_ms is None else deadline_ms / 1000
    if depth is not None:
        if speedup is not None:
            raise UserError("a depth is the same for all inputs, a speed-up lets each leave at its own: give one")
        check_depth(depth, num_layers)
        return Leaving(NEVER, depth, deadline)
    if speedup is not None and info is None:
        raise UserError("this model has no exits to speed it up: fine-tune it with --exits, or choose a depth")
    if info is not None:
        return Leaving((info.chosen if speedup is None else info.at_speedup(speedup)).rule, None, deadline)
    return None if deadline is None else Leaving(deadline=deadline)
