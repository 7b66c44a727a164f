"""Predictions of an exported model: padded batches of similar lengths, computed by ONNX Runtime on the CPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Int64

from openalbert.finetuning.encode import concatenate_ranges
from openalbert.finetuning.predict import MEAN, PRETRAINING, Embedding, Outputs, combine_windows, softmax
from openalbert.interop.onnx_graph import SCORE_TOKENS
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.model.config import AlbertConfig, Head, HeadKind
from openalbert.serve.backend import USUAL_PACE, MaskedPieces, Pace
from openalbert.tasks.task import Sequences

MOST_TOKENS = 1024  # of a batch: with more, the activations of a layer leave the cache
MOST_PADDING = 8  # tokens of a sequence; more would cost about as much as a batch of its own (estimated)


@dataclass(frozen=True)
class PaddedInputs:
    """Some of the sequences, padded to the longest."""

    chosen: Int64[np.ndarray, "batch"]
    ids: Int64[np.ndarray, "batch length"]
    segments: Int64[np.ndarray, "batch length"]
    is_real: Bool[np.ndarray, "batch length"]
    tokens: Int64[np.ndarray, "real"]
    """The place in `Sequences.ids` of each real token, row by row."""

    @property
    def mask(self) -> Int64[np.ndarray, "batch length"]:
        """1 for real tokens."""
        return self.is_real.astype(np.int64)


def alike(lengths: Int64[np.ndarray, "n"], tokens_at_a_time: int) -> Iterator[Int64[np.ndarray, "_"]]:
    """The numbers of the sequences that are computed together, longest first, with little padding.

    A large batch gains nothing on a CPU: 16 sequences of 128 tokens take as long as one after the other.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        fits = int(np.searchsorted(-lengths[order], MOST_PADDING - longest, side="right"))
        end = min(fits, start + max(1, tokens_at_a_time // longest))
        yield order[start:end]
        start = end


def padded_batches(sequences: Sequences, tokens_at_a_time: int) -> Iterator[PaddedInputs]:
    """All sequences in batches of similar lengths, the longest first."""
    for chosen in alike(sequences.lengths, min(tokens_at_a_time, MOST_TOKENS)):
        yield pad(sequences, chosen)


def pad(sequences: Sequences, chosen: Int64[np.ndarray, "batch"]) -> PaddedInputs:
    """Some of the sequences, padded to the longest."""
    lengths = sequences.lengths[chosen]
    positions = np.arange(lengths.max())
    is_real = positions < lengths[:, None]
    tokens = concatenate_ranges(sequences.starts[chosen], lengths)
    ids = np.zeros(is_real.shape, np.int64)
    ids[is_real] = sequences.ids[tokens]
    segments = (positions >= sequences.second[chosen][:, None]) & is_real
    return PaddedInputs(chosen, ids, segments.astype(np.int64), is_real, tokens)


class OnnxPool:
    """Sequences that leave at different depths; each layer computes those of similar lengths together."""

    most_tokens = MOST_TOKENS

    def __init__(self, model: ExportedModel) -> None:
        [head] = [one for one in model.heads if one.kind not in PRETRAINING]
        self.model, self.head, self.num_outputs = model, head.kind, head.num_outputs
        self.num_layers = model.config.num_layers
        self.mixes_depths = len(set(model.manifest.layers)) == 1
        model.load_for_exits(head.kind)
        self.clear()

    def clear(self) -> None:
        """Remove all sequences."""
        self.hidden: list[Float32[np.ndarray, "length hidden"]] = []
        self.layer = 0
        """The layer that comes next, where all sequences are at the same depth; 0 where layers share their weights."""

    def join(self, sequences: Sequences, chosen: Int64[np.ndarray, "_"]) -> None:
        """Embed sequences, and add them."""
        if not self.hidden:
            self.layer = 0
        embedded: list[np.ndarray] = [np.empty(0)] * len(chosen)
        for rows in alike(sequences.lengths[chosen], MOST_TOKENS):
            new = pad(sequences, chosen[rows])
            for row, states, real in zip(rows, self.model.embed(new.ids, new.segments), new.is_real, strict=True):
                embedded[row] = states[real]
        self.hidden += embedded

    def run_layer(self, depths: Int64[np.ndarray, "active"]) -> Float32[np.ndarray, "active outputs"]:
        """The next layer's output for all tokens, and the logits of its [CLS]."""
        for rows in alike(np.array([len(states) for states in self.hidden]), MOST_TOKENS):
            output = self.model.layer(self.layer, *_padded([self.hidden[row] for row in rows]))
            for row, states in zip(rows, output, strict=True):
                self.hidden[row] = states[: len(self.hidden[row])]
        if not self.mixes_depths:
            self.layer += 1
        return self.model.depth_scores(self.head, np.stack([states[0] for states in self.hidden]), depths)

    def keep(self, stays: Bool[np.ndarray, "active"]) -> None:
        """Remove the sequences that leave."""
        self.hidden = [states for states, is_kept in zip(self.hidden, stays, strict=True) if is_kept]


def _padded(
    states: Sequence[Float32[np.ndarray, "_ hidden"]],
) -> tuple[Float32[np.ndarray, "batch length hidden"], Int64[np.ndarray, "batch length"]]:
    """Hidden states of some sequences, padded to the longest, and their mask."""
    lengths = np.array([len(one) for one in states])
    is_real = np.arange(lengths.max()) < lengths[:, None]
    if is_real.all():
        return np.stack(states), is_real.astype(np.int64)
    hidden = np.zeros((*is_real.shape, states[0].shape[1]), np.float32)
    hidden[is_real] = np.concatenate(states)
    return hidden, is_real.astype(np.int64)


@dataclass(frozen=True)
class OnnxBackend:
    """An exported model, computed through all layers or the first `depth` of them."""

    model: ExportedModel
    depth: int | None = None

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""
        return self.model.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """Its heads, with their labels."""
        return self.model.heads

    def at_depth(self, depth: int) -> "OnnxBackend":
        """The same model, computed through its first layers only."""
        return replace(self, depth=depth)

    def pool(self) -> OnnxPool:
        """An empty pool for sequences that leave at different depths."""
        return OnnxPool(self.model)

    def logits(self, sequences: Sequences, kinds: Sequence[HeadKind], pace: Pace = USUAL_PACE) -> Outputs:
        """The logits of these heads."""
        of_tokens = {head.kind: head.kind in SCORE_TOKENS for head in self.heads if head.kind in kinds}
        widths = {head.kind: head.num_outputs for head in self.heads}
        rows = {True: len(sequences.ids), False: len(sequences.example)}
        found: dict[str, np.ndarray] = {
            kind: np.zeros((rows[scores], widths[kind]), np.float32) for kind, scores in of_tokens.items()
        }
        for batch in padded_batches(sequences, pace.tokens_at_a_time):
            # Without a head that scores tokens, the last layer computes [CLS] alone.
            firsts = None if any(of_tokens.values()) else np.zeros((len(batch.chosen), 1), np.int64)
            hidden = self.model.encode(batch.ids, batch.segments, batch.mask, rows=firsts, depth=self.depth)
            for kind, scores_tokens in of_tokens.items():
                if scores_tokens:
                    found[kind][batch.tokens] = self.model.scores(kind, hidden[batch.is_real])
                else:
                    depths = np.full(len(batch.chosen), self.depth or self.config.num_layers)
                    found[kind][batch.chosen] = self.model.depth_scores(kind, hidden[:, 0], depths)
            pace.advance(float(len(batch.tokens)))
        return Outputs({kind: combine_windows(sequences, rows) for kind, rows in found.items()})

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
        for batch in padded_batches(sequences, pace.tokens_at_a_time):
            is_masked = np.zeros(batch.is_real.shape, bool)
            is_masked[batch.is_real] = np.isin(batch.tokens, masks)
            # The masked positions of each sequence first, as many as in the sequence with most of them.
            rows = np.argsort(~is_masked, axis=1, kind="stable")[:, : is_masked.sum(1).max()]
            is_asked = np.take_along_axis(is_masked, rows, axis=1)
            hidden = self.model.encode(batch.ids, batch.segments, batch.mask, rows=rows, depth=self.depth)
            likely = softmax(self.model.scores("masked_lm", hidden[is_asked])[:, :num_pieces])
            best = np.argsort(-likely, axis=1, kind="stable")[:, :top]
            places = np.searchsorted(masks, batch.tokens[is_masked[batch.is_real]])
            ids[places], probabilities[places] = best, np.take_along_axis(likely, best, axis=1)
            pace.advance(float(len(batch.tokens)))
        return MaskedPieces(ids, probabilities)

    def embed(
        self, sequences: Sequences, how: Embedding = MEAN, pace: Pace = USUAL_PACE
    ) -> Float32[np.ndarray, "sequences hidden"]:
        """One vector for each sequence: the mean over its tokens, weighted by piece or not, or its [CLS]."""
        found = np.zeros((len(sequences.example), self.config.hidden_size), np.float32)
        for batch in padded_batches(sequences, pace.tokens_at_a_time):
            firsts = np.zeros((len(batch.chosen), 1), np.int64) if how.pooling == "cls" else None
            hidden = self.model.encode(
                batch.ids, batch.segments, batch.mask, rows=firsts, depth=how.layer or self.depth
            )
            if how.pooling == "cls":
                found[batch.chosen] = hidden[:, 0]
            else:
                of_tokens = batch.is_real if how.weights is None else batch.is_real * how.weights[batch.ids]
                found[batch.chosen] = (hidden * of_tokens[..., None]).sum(1) / of_tokens.sum(1, keepdims=True)
            pace.advance(float(len(batch.tokens)))
        return found / np.linalg.norm(found, axis=1, keepdims=True) if how.normalize else found
