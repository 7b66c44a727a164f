"""Masked n-grams of whole words (paper, section 4.1, equation 1): chosen, hidden and scored here.

The rule is Google's, which goes through an example's words in random order, one after the other (albert's data builder,
`create_masked_lm_predictions`); how a whole batch follows it at once is told at `choose`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, Int64
from torch import Tensor

from openalbert.errors import UserError
from openalbert.objectives.keyed_random import below, bits, threshold
from openalbert.objectives.score import Score, score

LONGEST_NGRAM = 8
_LAST = (1 << 31) - 1  # the rank of what is no candidate
_LOW_32 = (1 << 32) - 1

# How far a batch follows the rule; test_the_batch_follows_the_rule_one_by_one measures how often it is too short.
_ROUNDS_PER_NGRAM = 4
_TAIL_CANDIDATES = 24
_TAIL_CHOICES = 6


@dataclass(frozen=True)
class NgramMasking:
    """How many tokens are hidden, in which groups, and behind what."""

    unit: Literal["word", "token"] = "word"
    """What is chosen: whole words, or single tokens (BERT's first rule)."""
    max_ngram: int = 3
    """The longest run of words that is chosen as one."""
    favor: Literal["shorter", "longer", "equal"] = "shorter"
    """Probability of n: proportional to 1/n, the same turned round, or the same for all."""
    rate: float = 0.15
    """Share of an example's tokens, special ones counted, that is to be predicted."""
    max_predictions: int | None = None
    """At most this many predictions an example; Google's setting is 20. Nothing said: as many as the rate asks for."""
    mask_share: float = 0.8
    """Share of the chosen tokens that become [MASK]."""
    random_share: float = 0.1
    """Share of the chosen tokens that become a random token; the rest stays."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_ngram <= LONGEST_NGRAM:
            raise UserError(f"max_ngram is {self.max_ngram} but an n-gram has 1 to {LONGEST_NGRAM} words")
        if not 0 < self.rate < 1:
            raise UserError(f"rate is {self.rate} but the share of predicted tokens lies between 0 and 1")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(f"max_predictions is {self.max_predictions} but at least 1 must be allowed")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise UserError(
                f"mask_share {self.mask_share} and random_share {self.random_share} must be shares of one whole"
            )

    def budget(self, length: int) -> int:
        """How many tokens of an example of this length are predicted, as Google counts them."""
        wanted = max(1, round(length * self.rate))
        return wanted if self.max_predictions is None else min(wanted, self.max_predictions)

    def probabilities(self) -> list[float]:
        """The probability of each n from 1 to max_ngram."""
        weights = [1.0 if self.favor == "equal" else 1 / n for n in range(1, self.max_ngram + 1)]
        if self.favor == "longer":
            weights.reverse()
        return [weight / sum(weights) for weight in weights]


class Vocabulary(NamedTuple):
    """What masking has to know of the vocabulary."""

    word_starts: Bool[Tensor, "vocabulary"]
    """Does a word start with this piece?"""
    mask_id: int


class Masked(NamedTuple):
    """A batch with hidden tokens; the number of predictions is the same for all, those beyond the budget are void."""

    ids: Int64[Tensor, "batch length"]
    positions: Int64[Tensor, "batch predictions"]
    """Where to predict, in rising order; 0 where void."""
    labels: Int64[Tensor, "batch predictions"]
    """What stood there; 0 where void."""
    valid: Bool[Tensor, "batch predictions"]


def mask(
    ids: Int64[Tensor, "batch length"],
    first_length: Int64[Tensor, "batch"],
    second_length: Int64[Tensor, "batch"],
    keys: Int64[Tensor, "batch 2"],
    vocabulary: Vocabulary,
    settings: NgramMasking,
) -> Masked:
    """Hide tokens of `[CLS] first [SEP] second [SEP]`; the two keys of an example decide which, and behind what."""
    batch, length = ids.shape
    num_predictions = settings.budget(length)
    chosen = choose(ids, first_length, second_length, keys[:, 0], vocabulary.word_starts, settings)

    # Chosen tokens move up to the front; the rest falls into a column that is cut off.
    slot = chosen.cumsum(1).sub_(1).masked_fill_(~chosen, num_predictions)
    place = torch.arange(length, device=ids.device)
    positions = torch.zeros(batch, num_predictions + 1, dtype=torch.int64, device=ids.device)
    positions = positions.scatter_(1, slot, place.expand(batch, length))[:, :num_predictions]
    valid = torch.arange(num_predictions, device=ids.device) < chosen.sum(1, keepdim=True)
    labels = ids.gather(1, positions)

    drawn = bits(keys[:, 1:], positions)
    random_token = below(drawn, len(vocabulary.word_starts))
    fate = drawn & _LOW_32
    hidden = torch.where(fate < threshold(settings.mask_share + settings.random_share), random_token, labels)
    hidden = hidden.masked_fill_(fate < threshold(settings.mask_share), vocabulary.mask_id)
    # A void prediction points at [CLS], and writes back what stands there.
    hidden = torch.where(valid, hidden, labels)
    return Masked(ids.scatter(1, positions, hidden), positions, labels * valid, valid)


def choose(
    ids: Int64[Tensor, "batch length"],
    first_length: Int64[Tensor, "batch"],
    second_length: Int64[Tensor, "batch"],
    keys: Int64[Tensor, "batch"],
    word_starts: Bool[Tensor, "vocabulary"],
    settings: NgramMasking,
) -> Bool[Tensor, "batch length"]:
    """Choose the tokens to predict, by whole words, within the budget.

    One by one the rule is: words come up in random order, each draws its n; the n-gram that starts with it is chosen
    unless it meets one chosen before; one that would pass the budget is tried shorter, and else left out.

    All at once: (1) Without a budget, an n-gram is chosen if none of its rivals that come before it is. A rival starts
    within n - 1 words, so a few rounds over the neighbours settle this for all. (2) In the random order, the sizes of
    chosen n-grams are summed up: as long as the budget lasts, the budget changes nothing. (3) From the first n-gram
    that passes it, the few tokens left are given away choice by choice. The number of rounds and choices is fixed, so
    that the same operations run whatever the text: an example in ten thousands ends a token below its budget.
    """
    batch, length = ids.shape
    device, longest = ids.device, settings.max_ngram if settings.unit == "word" else 1
    place = torch.arange(length, device=device)
    first_end = (first_length + 1)[:, None]
    second_end = (first_length + second_length + 2)[:, None]

    # [SEP] counts as a word that cannot be chosen: then a word always ends where the next one starts.
    separator = (place == first_end) | (place == second_end)
    text = (place > 0) & (place < second_end) & ~separator
    starts = text | separator
    if settings.unit == "word":
        # Whatever stands first in a segment starts a word, even a piece from within one.
        fresh = (place == 1) | (place == first_end + 1) | separator
        starts &= word_starts.index_select(0, ids.flatten()).view(batch, length) | fresh
    word = starts.cumsum(1).sub_(1)
    first_words, all_words = word.gather(1, first_end), word.gather(1, second_end)

    # From here on columns are words. What starts no word falls into a last column that nobody reads.
    num_words = length - 1
    start = second_end.repeat(1, num_words + longest + 1)
    start.scatter_(1, word.masked_fill(~starts, num_words + longest), place.expand(batch, length))
    number = torch.arange(num_words, device=device)
    until_separator = torch.where(number <= first_words, first_words, all_words) - number
    drawn = bits(keys[:, None], number)
    ngram = torch.minimum(_drawn_ngram(drawn, settings.probabilities()[:longest]), until_separator.clamp_(min=0))
    # The number of the word is packed below the random bits: one sort gives the order and tells who is who.
    number_bits = num_words.bit_length()
    rank = (((drawn >> 33) & (_LAST >> number_bits << number_bits)) | number).to(torch.int32)
    rank.masked_fill_(until_separator == 0, _LAST)

    kept = _without_rivals(rank, ngram, longest)
    limits = torch.tensor([settings.budget(n) for n in range(length + 1)], device=device)
    taken = _within_budget(rank, kept, ngram, start, limits[second_end + 1], settings.budget(length), longest)
    return _covered(taken, longest).gather(1, word.clamp_(min=0)) & text


def _drawn_ngram(drawn: Int64[Tensor, "batch words"], probabilities: list[float]) -> Int64[Tensor, "batch words"]:
    low = drawn & _LOW_32
    ngram = torch.ones_like(drawn)
    for n in range(1, len(probabilities)):
        ngram += low >= threshold(sum(probabilities[:n]))
    return ngram


def _without_rivals(
    rank: Int32[Tensor, "batch words"], ngram: Int64[Tensor, "batch words"], longest: int
) -> Bool[Tensor, "batch words"]:
    """The n-grams that are chosen where there is no budget: those that meet no chosen one of lower rank."""
    kept = torch.ones_like(rank, dtype=torch.bool)
    meets = [ngram[:, :-gap] > gap for gap in range(1, longest)]
    before = [rank[:, :-gap] < rank[:, gap:] for gap in range(1, longest)]
    right = [meet & first for meet, first in zip(meets, before, strict=True)]
    left = [meet & ~first for meet, first in zip(meets, before, strict=True)]
    # Who waits for a chain of d rivals is settled after d + 1 rounds. Before that he is wrongly in after even rounds,
    # wrongly out after odd ones; the number is odd, so that no two n-grams ever overlap.
    for _ in range(_ROUNDS_PER_NGRAM * longest - 1 if longest > 1 else 0):
        blocked = torch.zeros_like(kept)
        for gap in range(1, longest):
            blocked[:, gap:] |= kept[:, :-gap] & right[gap - 1]
            blocked[:, :-gap] |= kept[:, gap:] & left[gap - 1]
        kept = ~blocked
    return kept


def _within_budget(
    rank: Int32[Tensor, "batch words"],
    kept: Bool[Tensor, "batch words"],
    ngram: Int64[Tensor, "batch words"],
    start: Int64[Tensor, "batch columns"],
    budget: Int64[Tensor, "batch 1"],
    most: int,
    longest: int,
) -> Int64[Tensor, "batch words"]:
    """How many words are chosen from each word on: `kept` n-grams while the budget lasts, then what still fits."""
    num_words = rank.shape[1]
    number_bits = num_words.bit_length()
    number = torch.arange(num_words, device=rank.device)
    size = start.gather(1, number + ngram) - start[:, :num_words]
    # Under half of the candidates meet one chosen before, so twice the budget is more than are ever looked at.
    considered = min(num_words, 2 * most + _TAIL_CANDIDATES)
    order = _lowest(rank, considered + _TAIL_CANDIDATES)
    who = (order & ((1 << number_bits) - 1)).clamp_(max=num_words - 1).long()
    asked = size.gather(1, who[:, :considered])
    paid = asked * kept.gather(1, who[:, :considered])
    spent = paid.cumsum(1)
    # Even an n-gram that meets another ends this part if it is too large: tried shorter, it may meet none.
    lasts = spent - paid + asked <= budget
    reached = lasts.cumprod(1).sum(1, keepdim=True)
    left = budget - (paid * (number[:considered] < reached)).sum(1, keepdim=True)
    taken = ngram * (kept & (rank < order.gather(1, reached)))

    # The next candidates in order; `size` and `met` are those of their first one, two, three words.
    window = reached + torch.arange(_TAIL_CANDIDATES, device=rank.device)
    who = who.gather(1, window)
    words = torch.arange(1, longest + 1, device=rank.device)
    asked = ngram.gather(1, who) * (order.gather(1, window) != _LAST)
    reach = who[:, :, None] + torch.minimum(words, asked[:, :, None])
    sizes = start.gather(1, reach.flatten(1)).view_as(reach) - start.gather(1, who)[:, :, None]
    covered = _covered(taken, longest)
    ahead = (who[:, :, None] + words - 1).clamp_(max=num_words - 1)
    met = covered.gather(1, ahead.flatten(1)).view_as(ahead).cumsum(2) > 0
    given = torch.zeros_like(who)
    turn = torch.arange(_TAIL_CANDIDATES, device=rank.device)
    last = torch.full_like(left, -1)
    for _ in range(_TAIL_CHOICES):
        fits = ((words <= asked[:, :, None]) & (sizes <= left[:, :, None])).sum(2)
        longest_fit = (fits - 1).clamp_(min=0)[:, :, None]
        free = (fits > 0) & (turn > last) & ~met.gather(2, longest_fit)[:, :, 0]
        found, chosen = free.any(1, keepdim=True), free.int().argmax(1, keepdim=True)
        won, where = fits.gather(1, chosen) * found, who.gather(1, chosen)
        left = left - sizes.gather(2, longest_fit)[:, :, 0].gather(1, chosen) * found
        given = torch.where((turn == chosen) & found, won, given)
        met = met | ((who < where + won)[:, :, None] & (where[:, :, None] < who[:, :, None] + words))
        last = torch.where(found, chosen, _TAIL_CANDIDATES)
    return taken.scatter_add(1, who, given)


def _lowest(rank: Int32[Tensor, "batch words"], count: int) -> Int32[Tensor, "batch count"]:
    """The lowest `count` ranks of each row in order, filled up with the last rank."""
    if rank.device.type == "cpu" and not torch.compiler.is_compiling():
        # numpy sorts 32-bit integers in vector registers, some 20 times as fast as torch does on a CPU.
        order = torch.from_numpy(np.sort(rank.numpy(), axis=1))
    else:
        order = rank.sort(1).values
    short = count - rank.shape[1]
    return torch.nn.functional.pad(order, (0, short), value=_LAST) if short > 0 else order[:, :count]


def _covered(taken: Int64[Tensor, "batch words"], longest: int) -> Bool[Tensor, "batch words"]:
    """Is a word in one of the n-grams, of which `taken` has the length at the first word of each?"""
    covered = taken > 0
    for gap in range(1, longest):
        covered[:, gap:] |= taken[:, :-gap] > gap
    return covered


def masked_lm_loss(
    logits: Float[Tensor, "*predictions vocabulary"],
    labels: Int[Tensor, "*predictions"],
    valid: Bool[Tensor, "*predictions"],
) -> Score:
    """Cross entropy at the hidden tokens, to be averaged over the valid predictions of a step."""
    return score(logits, labels, valid)
