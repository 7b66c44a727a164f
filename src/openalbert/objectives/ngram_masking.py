"""Masked n-grams of whole words (paper, section 4.1, equation 1): chosen, hidden and scored here.

The rule is Google's, which goes through an example's words in random order, one after the other (its data builder,
`create_masked_lm_predictions`); how a whole batch follows it at once is told at `choose`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, Int64, Shaped
from torch import Tensor

from openalbert.errors import UserError
from openalbert.objectives.keyed_random import below, bits, threshold
from openalbert.objectives.score import Score, score

LONGEST_NGRAM = 8
_LAST = (1 << 31) - 1  # the rank of what is no candidate
_LOW_32 = (1 << 32) - 1

# How far a batch follows the rule one by one, so that it can do so in a fixed number of operations; what it costs is
# measured by test_a_batch_follows_the_rule_one_by_one.
_TAIL_CANDIDATES = 16
_TAIL_CHOICES = 5


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
    mask_fraction: float = 0.8
    """Share of the chosen tokens that become [MASK]."""
    random_fraction: float = 0.1
    """Share of the chosen tokens that become a random token; the rest stays."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_ngram <= LONGEST_NGRAM:
            raise UserError(f"max_ngram is {self.max_ngram} but an n-gram has 1 to {LONGEST_NGRAM} words")
        if not 0 < self.rate < 1:
            raise UserError(f"rate is {self.rate} but the share of predicted tokens lies between 0 and 1")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(f"max_predictions is {self.max_predictions} but at least 1 must be allowed")
        if min(self.mask_fraction, self.random_fraction) < 0 or self.mask_fraction + self.random_fraction > 1:
            raise UserError(
                f"mask_fraction {self.mask_fraction} and random_fraction {self.random_fraction} add up to more than 1"
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


class MaskingVocabulary(NamedTuple):
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
    vocabulary: MaskingVocabulary,
    settings: NgramMasking,
) -> Masked:
    """Hide tokens of `[CLS] first [SEP] second [SEP]`, or of `[CLS] first [SEP]` where the second segment is empty.

    The two keys of an example decide which, and behind what."""
    length = ids.shape[1]
    num_predictions = settings.budget(length)
    chosen = choose(ids, first_length, second_length, keys[:, 0], vocabulary.word_starts, settings)

    # Chosen places in front, the others behind them. A void prediction points at [CLS].
    place = (~chosen).int()
    place *= length
    place += torch.arange(length, dtype=torch.int32, device=ids.device)
    positions = _lowest(place, num_predictions).long()
    valid = positions < length
    positions *= valid
    labels = ids.gather(1, positions)

    drawn = bits(keys[:, 1:], positions)
    random_token = below(drawn, len(vocabulary.word_starts))
    fate = drawn & _LOW_32
    hidden = torch.where(fate < threshold(settings.mask_fraction + settings.random_fraction), random_token, labels)
    hidden = torch.where(fate < threshold(settings.mask_fraction), vocabulary.mask_id, hidden)
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
    chosen n-grams are summed up: as long as the budget lasts, it changes nothing. (3) From the first n-gram that would
    pass it, the few tokens left are given away choice by choice.

    Selections by a mask are written as products and shifts: on a CPU these run in vector registers, `where` does not.
    """
    batch, length = ids.shape
    longest = settings.max_ngram if settings.unit == "word" else 1
    first_end = first_length + 1
    second_end = first_end + second_length + (second_length > 0)

    # A special token counts as a word that cannot be chosen. What stands first in a segment starts a word, even a
    # piece from within one.
    if settings.unit == "word":
        starts = word_starts.index_select(0, ids.flatten()).view(batch, length)
        after_first = torch.minimum(first_end + 1, second_end)
        fresh = torch.stack([first_length * 0, first_length * 0 + 1, first_end, after_first, second_end], 1)
        starts = starts.scatter_(1, fresh, True)
    else:
        starts = torch.ones_like(ids, dtype=torch.bool)
    word = starts.cumsum(1)
    first_sep, second_sep = word.gather(1, torch.stack([first_end, second_end], 1)).int().split(1, 1)

    # From here on columns are words; [CLS] is word 1, and there is no word 0.
    tokens = torch.zeros(batch, length + 1, dtype=torch.int32, device=ids.device)
    tokens.scatter_add_(1, word, torch.ones(1, 1, dtype=torch.int32, device=ids.device).expand(batch, length))
    number = torch.arange(length + 1, device=ids.device)
    number_32 = number.int()
    until_separator = first_sep - number_32
    until_separator += (until_separator >> 31) & (second_sep - first_sep)
    until_separator *= (number_32 > 1).int()
    until_separator.clamp_(min=0)
    drawn = bits(keys[:, None], number)
    ngram = torch.minimum(_drawn_ngram(drawn.int(), settings.probabilities()[:longest]), until_separator)
    # The number of the word is packed below the random bits: one sort gives the order and tells who is who.
    number_mask = (1 << length.bit_length()) - 1
    rank = (drawn >> 32).int()
    rank &= _LAST ^ number_mask
    rank |= number_32
    rank |= ((until_separator - 1) >> 31) & _LAST

    # meets[k]: does the n-gram of a word go over the word k + 1 further on?
    meets = [_shifted(ngram, gap)[0] > gap for gap in range(1, longest)]
    kept = _without_rivals(rank, meets, rounds=5 if settings.rate <= 0.2 else 11)
    # The same as `settings.budget`: torch rounds doubles as Python does.
    most = settings.budget(length)
    budget = ((second_end + 1).double() * settings.rate).round_().clamp_(1, most).int()[:, None]
    return _within_budget(rank, kept, ngram, meets, tokens, budget, most, number_mask).gather(1, word)


def _drawn_ngram(drawn: Int32[Tensor, "batch words"], probabilities: list[float]) -> Int32[Tensor, "batch words"]:
    """The length of the n-gram that each word asks for, by 32 bits that are read as signed."""
    ngram = torch.ones_like(drawn)
    for n in range(1, len(probabilities)):
        ngram += (drawn >= threshold(sum(probabilities[:n])) - (1 << 31)).int()
    return ngram


def _shifted(words: Shaped[Tensor, "batch words"], gap: int) -> tuple[Shaped[Tensor, "_"], Shaped[Tensor, "_"]]:
    """Every word, and with it the word `gap` further on.

    The rows are read as one: no n-gram reaches over the end of its row, so what is paired wrongly there is never asked.
    """
    flat = words.view(-1)
    return flat[: len(flat) - gap], flat[gap:]


def _without_rivals(
    rank: Int32[Tensor, "batch words"], meets: list[Bool[Tensor, "_"]], rounds: int
) -> Bool[Tensor, "batch words"]:
    """The n-grams that are chosen where there is no budget: those that meet no chosen one of lower rank.

    Who waits for a chain of d rivals, each before the last, is settled after d + 1 rounds. Until then he is wrongly in
    after even rounds and wrongly out after odd ones: the number is odd, so that no two n-grams ever overlap. Long
    chains are rare at a rate of 15 %, since all of a chain has to come up before the budget is spent: the slow test of
    test_ngram_masking.py counts what is lost.
    """
    kept = torch.ones_like(rank, dtype=torch.bool)
    right, left = [], []
    for gap, meet in enumerate(meets, 1):
        here, there = _shifted(rank, gap)
        before = here < there
        right.append(meet & before)
        left.append(meet & ~before)
    for _ in range(rounds if meets else 0):
        blocked = torch.zeros_like(kept)
        for gap in range(1, len(meets) + 1):
            (here, there), (blocked_here, blocked_there) = _shifted(kept, gap), _shifted(blocked, gap)
            blocked_there.bitwise_or_(here & right[gap - 1])
            blocked_here.bitwise_or_(there & left[gap - 1])
        kept = ~blocked
    return kept


def _within_budget(
    rank: Int32[Tensor, "batch words"],
    kept: Bool[Tensor, "batch words"],
    ngram: Int32[Tensor, "batch words"],
    meets: list[Bool[Tensor, "_"]],
    tokens: Int32[Tensor, "batch words"],
    budget: Int32[Tensor, "batch 1"],
    most: int,
    number_mask: int,
) -> Bool[Tensor, "batch words"]:
    """The words that are chosen: those of `kept` n-grams while the budget lasts, then what still fits."""
    num_words = rank.shape[1]
    size = tokens.clone()
    for gap, meet in enumerate(meets, 1):
        _shifted(size, gap)[0].add_(_shifted(tokens, gap)[1] * meet.int())
    # Few candidates meet one chosen before: no more are looked at than this. Where there are too few, the last column
    # fills up, which never holds a candidate.
    size[:, -1] = 0
    considered = min(num_words, 3 * most // 2 + _TAIL_CANDIDATES)
    order = _lowest(rank, considered + _TAIL_CANDIDATES)
    who = (order & number_mask).clamp_(max=num_words - 1).long()
    asked = size.gather(1, who[:, :considered])
    paid = asked * kept.gather(1, who[:, :considered]).int()
    # Even an n-gram that meets another ends this part if it is too large: tried shorter, it may meet none.
    lasts = paid.cumsum(1) - paid + asked <= budget
    lasting = lasts.cumprod(1)
    reached = lasting.sum(1, keepdim=True)
    left = budget - (paid * lasting).sum(1, keepdim=True)
    taken = kept & (rank < order.gather(1, reached))
    covered = taken.clone()
    for gap, meet in enumerate(meets, 1):
        _shifted(covered, gap)[1].bitwise_or_(_shifted(taken, gap)[0] & meet)
    turn = torch.arange(_TAIL_CANDIDATES, device=rank.device)
    return _with_tail(covered, who.gather(1, reached + turn), left, ngram, tokens, len(meets) + 1)


def _with_tail(
    covered: Bool[Tensor, "batch words"],
    who: Int64[Tensor, "batch candidates"],
    left: Int64[Tensor, "batch 1"],
    ngram: Int32[Tensor, "batch words"],
    tokens: Int32[Tensor, "batch words"],
    longest: int,
) -> Bool[Tensor, "batch words"]:
    """Give the tokens that are left to the candidates whose turn it is now, in order."""
    words = torch.arange(1, longest + 1, device=who.device)
    first = who[:, :, None]
    beyond = first + words
    # Of each candidate's first one, two, three words: their tokens, and whether one of them is covered already.
    ahead = (beyond - 1).clamp_(max=ngram.shape[1] - 1)
    sizes = tokens.gather(1, ahead.flatten(1)).view_as(ahead).cumsum(2)
    sizes += (words > ngram.gather(1, who)[:, :, None]) * ngram.shape[1]
    met = covered.gather(1, ahead.flatten(1)).view_as(ahead).cumsum(2) > 0
    given = torch.zeros_like(who)
    open_ = torch.ones_like(who, dtype=torch.bool)
    for _ in range(_TAIL_CHOICES):
        if _is_eager_cpu(left) and not left.any():
            break  # a GPU would have to wait for the answer; more rounds change nothing
        # As many words as still fit; then the first in order who meets nobody with them.
        fit = (sizes <= left[:, :, None]).sum(2)
        with_fit = (fit - 1).clamp_(min=0)[:, :, None]
        free = (fit > 0) & open_ & ~met.gather(2, with_fit)[:, :, 0]
        so_far = free.cumsum(1)
        chosen = free & (so_far == 1)
        open_ = (so_far > 0) & ~chosen
        won = fit * chosen
        given = given + won
        left = left - (sizes.gather(2, with_fit)[:, :, 0] * chosen).sum(1, keepdim=True)
        begin = (who * chosen).sum(1)[:, None, None]
        met = met | ((first < begin + won.sum(1)[:, None, None]) & (begin < beyond))
    # What nobody has won falls on column 0, where there is no word.
    return covered.scatter_(1, (ahead * (words <= given[:, :, None])).flatten(1), True)


def _lowest(numbers: Int32[Tensor, "batch columns"], count: int) -> Int32[Tensor, "batch count"]:
    """The lowest `count` numbers of each row in order, filled up with the last rank where there are fewer."""
    # numpy sorts 32-bit integers in vector registers, some 20 times as fast as torch does on a CPU.
    in_order = torch.from_numpy(np.sort(numbers.numpy(), axis=1)) if _is_eager_cpu(numbers) else numbers.sort(1).values
    short = count - numbers.shape[1]
    return torch.nn.functional.pad(in_order, (0, short), value=_LAST) if short > 0 else in_order[:, :count]


def _is_eager_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def mlm_loss(
    logits: Float[Tensor, "*predictions vocabulary"],
    labels: Int[Tensor, "*predictions"],
    valid: Bool[Tensor, "*predictions"],
) -> Score:
    """Cross entropy at the hidden tokens, to be averaged over the valid predictions of a step."""
    return score(logits, labels, valid)
