"""Similarity: contrastive losses over a whole batch that is encoded in chunks, and retrieval to score it.

Pairs and triplets are learned with in-batch negatives (InfoNCE; MultipleNegativesRankingLoss of sentence-transformers),
pairs with scores with CoSENT. Both compare every text of a batch with every other, so the loss needs all embeddings at
once; the activations do not have to be there at once (GradCache, Gao et al., 2021).
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from openalbert.finetuning.batches import PackedBatch
from openalbert.model.albert import AlbertModel
from openalbert.model.pooling import embed_packed
from openalbert.tasks.metrics import Retrieved
from openalbert.tasks.task import Sequences
from openalbert.train.device import Device
from openalbert.train.loop import Score, TrainingTask

TEMPERATURE = 0.05  # of SimCSE; sentence-transformers' scale of 20
ANCHORS_AT_ONCE = 1024  # compared with all other texts, in evaluation


# --- training --------------------------------------------------------------------------------------------------------


def similarity_training(model: AlbertModel, temperature: float, device: Device) -> TrainingTask[PackedBatch]:
    """Similarity as the loop needs it. A batch is a whole step; it is encoded chunk by chunk."""

    def predictions(batch: PackedBatch) -> dict[str, Tensor]:
        return {"similarity": torch.full((), len(batch), dtype=torch.int64, device=batch.tokens.device)}

    def tokens(batch: PackedBatch) -> Tensor:
        return torch.full((), len(batch.tokens), dtype=torch.int64, device=batch.tokens.device)

    def scores(batch: PackedBatch, depth: int) -> dict[str, Score]:
        problem, embeddings = None, torch.empty(0)
        try:
            embeddings = embed_in_chunks(model, batch, depth)
        except torch.OutOfMemoryError as error:
            problem = error
        # Other processes would wait for these embeddings forever.
        if device.any_rank(problem is not None):
            raise problem or torch.OutOfMemoryError("out of memory in another process")
        # The loss itself is in fp32 even where the encoder is not.
        with torch.autocast(batch.tokens.device.type, enabled=False):
            return {"similarity": similarity_loss(embeddings, batch, temperature, device)}

    config = model.config
    return TrainingTask(predictions, scores, tokens, max(config.hidden_dropout, config.attention_dropout) > 0)


def embed_in_chunks(model: AlbertModel, batch: PackedBatch, depth: int) -> Float[Tensor, "sequences hidden"]:
    """The embeddings of a batch. Of several chunks only the embeddings are kept for the backward pass.

    The activations of a chunk are computed again when its backward pass comes, one chunk at a time, with the same
    dropout. The gradient is the same as without chunks.
    """
    chunks = batch.chunks or (len(batch.lengths),)

    def embed(tokens: Tensor, segments: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return embed_packed(model, tokens, lengths, segments, layer=depth)

    embeddings, sequence, token = [], 0, 0
    for count in chunks:
        lengths = batch.lengths[sequence : sequence + count]
        end = token + sum(lengths)
        inputs = (batch.tokens[token:end], batch.segments[token:end], lengths)
        embeddings.append(checkpoint(embed, *inputs, use_reentrant=False) if len(chunks) > 1 else embed(*inputs))
        sequence, token = sequence + count, end
    return torch.cat(embeddings)


def similarity_loss(
    embeddings: Float[Tensor, "sequences hidden"], batch: PackedBatch, temperature: float, device: Device
) -> Score:
    """The loss of a step. With several processes every one compares with the texts of all of them.

    Each process differentiates the loss of the whole batch with respect to its own embeddings, so that the sum of the
    processes' gradients is the gradient of the loss. It reports its own examples' loss only.
    """
    num_texts = batch.options[0]
    own = F.normalize(embeddings, dim=1).view(len(batch), num_texts, -1)
    start, whole = gathered(own, device)
    mine = slice(start, start + len(batch))
    if "score" in batch.targets:
        wanted = gathered(batch.targets["score"].view(-1, num_texts)[:, 0], device)[1]
        losses = cosent((whole[:, 0] * whole[:, 1]).sum(1), wanted, temperature).expand(len(whole))
        is_right = torch.zeros_like(losses, dtype=torch.bool)
    else:
        texts = gathered(batch.targets["similarity"].view(-1, num_texts), device)[1]
        losses, is_right = in_batch_negatives(whole, texts, temperature)
    of_all, of_own = losses.sum(), losses[mine].sum()
    count = torch.full((), len(batch), dtype=torch.int64, device=embeddings.device)
    return Score(of_all + (of_own - of_all).detach(), count, is_right[mine].sum())


def gathered(own: Tensor, device: Device) -> tuple[int, Tensor]:
    """The rows of all processes, in their order, and where the own ones start; only these have a gradient."""
    if device.world == 1:
        return 0, own
    counts = torch.zeros(device.world, dtype=torch.int64, device=own.device)
    counts[device.rank] = len(own)
    sizes = device.sum_over_ranks(counts).tolist()
    start = sum(sizes[: device.rank])
    whole = own.new_zeros(sum(sizes), *own.shape[1:])
    whole[start : start + len(own)] = own.detach()
    device.sum_over_ranks(whole)
    return start, torch.cat((whole[:start], own, whole[start + len(own) :]))


def in_batch_negatives(
    embeddings: Float[Tensor, "units texts hidden"], texts: Int64[Tensor, "units texts"], temperature: float
) -> tuple[Float[Tensor, "units"], Bool[Tensor, "units"]]:
    """For each anchor the cross entropy of its positive among all positives and negatives, and whether it is nearest.

    `texts` are equal for equal texts.
    """
    candidates = embeddings[:, 1:].transpose(0, 1).flatten(0, 1)
    cosines = embeddings[:, 0] @ candidates.T
    logits = (cosines / temperature).masked_fill(false_negatives(texts), -torch.inf)
    own = torch.arange(len(logits), device=logits.device)
    return F.cross_entropy(logits, own, reduction="none"), logits.detach().argmax(1) == own


def false_negatives(texts: Int64[Tensor, "units texts"]) -> Bool[Tensor, "units candidates"]:
    """Candidates that are not negatives of an anchor: its own text, and positives that it has in other units.

    The candidates are the positives of all units, then their negatives.
    """
    anchors, positives, candidates = texts[:, 0], texts[:, 1], texts[:, 1:].T.flatten()
    has_same_anchor = (anchors[:, None] == anchors).float()
    is_positive = has_same_anchor @ (positives[:, None] == candidates).float() > 0
    found = is_positive | (anchors[:, None] == candidates)
    return found & ~torch.eye(*found.shape, dtype=torch.bool, device=found.device)


def cosent(cosines: Float[Tensor, "pairs"], scores: Float[Tensor, "pairs"], temperature: float) -> Float[Tensor, ""]:
    """CoSENT (Su, 2022): log(1 + the sum of exp((cos_j - cos_i) / temperature) over all i with a higher score than j).

    It compares the order of cosines with that of scores, which Spearman's correlation measures.
    """
    scores, order = scores.sort()
    logits = cosines[order] / temperature
    # For each pair, what all pairs with a higher score contribute: they are those behind it, but for ties.
    behind = torch.logcumsumexp(-logits.flip(0), 0).flip(0)
    behind = torch.cat((behind, behind.new_full((1,), -torch.inf)))
    above = behind[torch.searchsorted(scores.contiguous(), scores.contiguous(), right=True)]
    return torch.cat((logits.new_zeros(1), logits + above)).logsumexp(0)


# --- evaluation ------------------------------------------------------------------------------------------------------


def predict_similarity(sequences: Sequences, embeddings: Float32[np.ndarray, "sequences hidden"]) -> list[object]:
    """For each example the cosine of its two texts or, where they are known to be similar, what was retrieved."""
    if "similarity" in sequences.targets and "score" not in sequences.targets:
        return [one for one, _ in retrieve(sequences, embeddings)]
    return list(map(float, cosines_of_pairs(sequences, embeddings)))


def evaluation_loss(sequences: Sequences, embeddings: Float32[np.ndarray, "sequences hidden"]) -> float:
    """The loss of all examples of a split as one batch, at the default temperature."""
    if "score" not in sequences.targets:
        return float(np.mean([loss for _, loss in retrieve(sequences, embeddings)]))
    cosines = torch.from_numpy(cosines_of_pairs(sequences, embeddings))
    scores = torch.from_numpy(sequences.targets["score"][sequences.first_of_examples])
    return float(cosent(cosines, scores.to(cosines.dtype), TEMPERATURE))


def cosines_of_pairs(
    sequences: Sequences, embeddings: Float32[np.ndarray, "sequences hidden"]
) -> Float32[np.ndarray, "examples"]:
    """The cosine of the first two texts of each example; embeddings are normalized."""
    by_example = embeddings.reshape(sequences.num_examples, -1, embeddings.shape[1])
    cosines: np.ndarray = np.einsum("eh,eh->e", by_example[:, 0], by_example[:, 1])
    return cosines


def retrieve(
    sequences: Sequences, embeddings: Float32[np.ndarray, "sequences hidden"]
) -> Iterator[tuple[Retrieved, float]]:
    """For each anchor where its positive is among all distinct positives and negatives, and the loss.

    Its own text and its other positives do not count, as in training.
    """
    texts = sequences.targets["similarity"].reshape(sequences.num_examples, -1)
    by_example = embeddings.reshape(*texts.shape, -1)
    candidates, first, place = np.unique(texts[:, 1:], return_index=True, return_inverse=True)
    place = place.reshape(len(texts), -1)
    first = first // (texts.shape[1] - 1) * texts.shape[1] + first % (texts.shape[1] - 1) + 1  # among all sequences
    others: dict[int, list[int]] = {}
    for anchor, positive in zip(texts[:, 0].tolist(), place[:, 0].tolist(), strict=True):
        others.setdefault(anchor, []).append(positive)
    for start in range(0, len(texts), ANCHORS_AT_ONCE):
        cosines = by_example[start : start + ANCHORS_AT_ONCE, 0] @ embeddings[first].T
        for number, row in enumerate(cosines, start):
            anchor, own = int(texts[number, 0]), int(place[number, 0])
            cosine = float(row[own])
            negative = None if texts.shape[1] == 2 else float(row[place[number, 1]])
            row[[*others[anchor], *np.flatnonzero(candidates == anchor)]] = -np.inf
            nearest = int(row.argmax())
            is_there = bool(np.isfinite(row[nearest]))
            logits = np.append(row[np.isfinite(row)], cosine).astype(np.float64) / TEMPERATURE
            loss = float(np.logaddexp.reduce(logits) - cosine / TEMPERATURE)
            rank = 1 + int((row >= cosine).sum())
            yield Retrieved(rank, cosine, negative, int(first[nearest]) if is_there else None), loss
