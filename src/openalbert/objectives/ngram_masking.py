"""N-gram masking of whole words (paper, section 4.1, equation 1): choose and mask tokens.

The rule is that of Google's data builder (`create_masked_lm_predictions`), which goes through the words of an example
in random order. `choose` describes how a whole batch is done at once.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64, Shaped
from torch import Tensor

from openalbert.errors import UserError
from openalbert.objectives.keyed_random import below, bits, threshold

LONGEST_NGRAM = 8
_LAST = (1 << 31) - 1  # the rank of what is not a candidate
_LOW_32 = (1 << 32) - 1

# Limits of the sequential part, so that a batch takes a fixed number of operations; the deviation from the rule is
# measured by test_a_batch_follows_the_rule_one_by_one.
_TAIL_CANDIDATES = 16
_TAIL_CHOICES = 5


@dataclass(frozen=True)
class NgramMasking:
    """How many tokens are masked, in which units, and what replaces them."""

    unit: Literal["word", "token"] = "word"
    """The unit of masking: whole words, or single tokens (BERT's first rule)."""
    max_ngram: int = 3
    """The longest n-gram in words."""
    favor: Literal["shorter", "longer", "equal"] = "shorter"
    """Probability of n: proportional to 1/n, the reverse of that, or uniform."""
    rate: float = 0.15
    """Fraction of an example's tokens, including special ones, that is predicted."""
    max_predictions: int | None = None
    """Maximum predictions per example; Google's setting is 20. None: as many as the rate gives."""
    mask_fraction: float = 0.8
    """Fraction of the chosen tokens that become [MASK]."""
    random_fraction: float = 0.1
    """Fraction of the chosen tokens that become a random token; the rest is unchanged."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_ngram <= LONGEST_NGRAM:
            raise UserError(f"max_ngram is {self.max_ngram} but an n-gram has 1 to {LONGEST_NGRAM} words")
        if not 0 < self.rate < 1:
            raise UserError(f"rate is {self.rate} but the fraction of predicted tokens lies between 0 and 1")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(f"max_predictions is {self.max_predictions} but at least 1 must be allowed")
        if min(self.mask_fraction, self.random_fraction) < 0 or self.mask_fraction + self.random_fraction > 1:
            raise UserError(
                f"mask_fraction {self.mask_fraction} and random_fraction {self.random_fraction} add up to more than 1"
            )

    def budget(self, length: int) -> int:
        """The number of predictions in an example of this length, as in Google's code."""
        wanted = max(1, round(length * self.rate))
        return wanted if self.max_predictions is None else min(wanted, self.max_predictions)

    def probabilities(self) -> list[float]:
        """The probability of each n from 1 to max_ngram."""
        weights = [1.0 if self.favor == "equal" else 1 / n for n in range(1, self.max_ngram + 1)]
        if self.favor == "longer":
            weights.reverse()
        return [weight / sum(weights) for weight in weights]


class MaskingVocabulary(NamedTuple):
    """What masking needs of the vocabulary."""

    word_starts: Bool[Tensor, "vocabulary"]
    """Whether a word starts with this piece."""
    mask_id: int


class Masked(NamedTuple):
    """A masked batch; all examples have the same number of predictions, of which some are not valid."""

    ids: Int64[Tensor, "batch length"]
    positions: Int64[Tensor, "batch predictions"]
    """Positions to predict, ascending; 0 where not valid."""
    labels: Int64[Tensor, "batch predictions"]
    """The original tokens; 0 where not valid."""
    valid: Bool[Tensor, "batch predictions"]


def mask(
    ids: Int64[Tensor, "batch length"],
    first_length: Int64[Tensor, "batch"],
    second_length: Int64[Tensor, "batch"],
    keys: Int64[Tensor, "batch 2"],
    vocabulary: MaskingVocabulary,
    settings: NgramMasking,
) -> Masked:
    """Mask tokens of `[CLS] first [SEP] second [SEP]`, or of `[CLS] first [SEP]` where the second segment is empty.

    Of the two keys of an example, one determines which tokens are chosen, the other what replaces them.
    """
    length = ids.shape[1]
    num_predictions = settings.budget(length)
    chosen = choose(ids, first_length, second_length, keys[:, 0], vocabulary.word_starts, settings)

    # Sort the chosen positions to the front. A prediction that is not valid points at [CLS].
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

    The sequential rule: take the words in random order; each draws its n; the n-gram that starts with it is chosen
    unless it overlaps one chosen before; one that would exceed the budget is tried shorter, and otherwise skipped.

    In parallel: (1) Without a budget, an n-gram is chosen if no overlapping n-gram of lower rank is. Those start within
    n - 1 words, so a few rounds over the neighbours settle this for all. (2) The sizes of the chosen n-grams are summed
    in random order: up to the budget, this is the sequential result. (3) From the first n-gram that would exceed it,
    the few tokens left are assigned choice by choice.

    Selections by a mask are written as products and shifts: on a CPU these are vectorized, `where` is not.
    """
    batch, length = ids.shape
    longest = settings.max_ngram if settings.unit == "word" else 1
    first_end = first_length + 1
    second_end = first_end + second_length + (second_length > 0)

    # A special token counts as a word that cannot be chosen. The first piece of a segment starts a word, even if it
    # continues one.
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
    # The number of the word is packed below the random bits, so that one sort gives the order of the words.
    number_mask = (1 << length.bit_length()) - 1
    rank = (drawn >> 32).int()
    rank &= _LAST ^ number_mask
    rank |= number_32
    rank |= ((until_separator - 1) >> 31) & _LAST

    # meets[k]: whether the n-gram of a word covers the word k + 1 places further on.
    meets = [_shifted(ngram, gap)[0] > gap for gap in range(1, longest)]
    kept = _without_rivals(rank, meets, rounds=5 if settings.rate <= 0.2 else 11)
    # The same as `settings.budget`: torch rounds doubles as Python does.
    most = settings.budget(length)
    budget = ((second_end + 1).double() * settings.rate).round_().clamp_(1, most).int()[:, None]
    return _within_budget(rank, kept, ngram, meets, tokens, budget, most, number_mask).gather(1, word)


def _drawn_ngram(drawn: Int32[Tensor, "batch words"], probabilities: list[float]) -> Int32[Tensor, "batch words"]:
    """The n that each word draws, from 32 bits read as signed."""
    ngram = torch.ones_like(drawn)
    for n in range(1, len(probabilities)):
        ngram += (drawn >= threshold(sum(probabilities[:n])) - (1 << 31)).int()
    return ngram


def _shifted(words: Shaped[Tensor, "batch words"], gap: int) -> tuple[Shaped[Tensor, "_"], Shaped[Tensor, "_"]]:
    """Every word, and the word `gap` places further on.

    The rows are flattened: no n-gram crosses the end of its row, so wrong pairs there do not matter.
    """
    flat = words.view(-1)
    return flat[: len(flat) - gap], flat[gap:]


def _without_rivals(
    rank: Int32[Tensor, "batch words"], meets: list[Bool[Tensor, "_"]], rounds: int
) -> Bool[Tensor, "batch words"]:
    """The n-grams that are chosen without a budget: those that overlap no chosen one of lower rank.

    An n-gram at the end of a chain of d overlaps is settled after d + 1 rounds. Until then it is wrongly kept after
    even rounds and wrongly dropped after odd ones: the number of rounds is odd, so that no two n-grams overlap. Long
    chains are rare at a rate of 15 %, since all of a chain must be drawn within the budget: the slow test in
    test_ngram_masking.py counts the loss.
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
    """The chosen words: those of `kept` n-grams within the budget, then what still fits."""
    num_words = rank.shape[1]
    size = tokens.clone()
    for gap, meet in enumerate(meets, 1):
        _shifted(size, gap)[0].add_(_shifted(tokens, gap)[1] * meet.int())
    # Few candidates overlap one chosen before, so this many are enough. Where there are fewer, the last column, which
    # never holds a candidate, fills up.
    size[:, -1] = 0
    considered = min(num_words, 3 * most // 2 + _TAIL_CANDIDATES)
    order = _lowest(rank, considered + _TAIL_CANDIDATES)
    who = (order & number_mask).clamp_(max=num_words - 1).long()
    asked = size.gather(1, who[:, :considered])
    paid = asked * kept.gather(1, who[:, :considered]).int()
    # Even an overlapping n-gram ends this phase if it is too large: tried shorter, it may overlap none.
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
    """Assign the tokens that are left to the next candidates in order."""
    words = torch.arange(1, longest + 1, device=who.device)
    first = who[:, :, None]
    beyond = first + words
    # For the first one, two, three words of each candidate: their tokens, and whether one is covered already.
    ahead = (beyond - 1).clamp_(max=ngram.shape[1] - 1)
    sizes = tokens.gather(1, ahead.flatten(1)).view_as(ahead).cumsum(2)
    sizes += (words > ngram.gather(1, who)[:, :, None]) * ngram.shape[1]
    met = covered.gather(1, ahead.flatten(1)).view_as(ahead).cumsum(2) > 0
    given = torch.zeros_like(who)
    open_ = torch.ones_like(who, dtype=torch.bool)
    for _ in range(_TAIL_CHOICES):
        if _is_eager_cpu(left) and not left.any():
            break  # only on a CPU, since a GPU would synchronize; more rounds change nothing
        # As many words as still fit; then the first candidate in order that overlaps nothing with them.
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
    # What is not chosen goes to column 0, where there is no word.
    return covered.scatter_(1, (ahead * (words <= given[:, :, None])).flatten(1), True)


def _lowest(numbers: Int32[Tensor, "batch columns"], count: int) -> Int32[Tensor, "batch count"]:
    """The lowest `count` numbers of each row in order, padded with the last rank."""
    # numpy's vectorized sort of 32-bit integers is about 20 times as fast as torch's on a CPU.
    in_order = torch.from_numpy(np.sort(numbers.numpy(), axis=1)) if _is_eager_cpu(numbers) else numbers.sort(1).values
    short = count - numbers.shape[1]
    return torch.nn.functional.pad(in_order, (0, short), value=_LAST) if short > 0 else in_order[:, :count]


def _is_eager_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
