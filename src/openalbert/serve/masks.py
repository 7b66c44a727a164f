"""[MASK] in text: the tokens of a text with masks, and the pieces that the masked-LM head fills in."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from openalbert.errors import UserError
from openalbert.serve.backend import Computation
from openalbert.serve.predictions import FillPrediction, Guess, Prediction, Unpredictable
from openalbert.tasks.task import Sequences
from openalbert.text.tokenizer import Tokenizer

MASK = "[MASK]"

# Text that follows a [MASK] without a space continues its word, so its first piece has no `▁`. This private-use
# character, which is in no vocabulary, replaces the mask while SentencePiece tokenizes such text.
_STAND_IN = "\ue000"


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text with `[MASK]`, without [CLS] and [SEP].

    As in Hugging Face's tokenizer, a space before a mask vanishes, and one after it begins the next word.
    """
    before, *behind = text.split(MASK)
    ids = tokenizer.encode(before)
    for part in behind:
        ids.append(tokenizer.mask_id)
        if not part or part[0].isspace():
            ids += tokenizer.encode(part)
        else:
            encoding = tokenizer.encode_with_offsets(_STAND_IN + part)
            places = zip(encoding.ids, encoding.offsets, strict=True)
            ids += [number for number, (_, end) in places if end > len(_STAND_IN)]
    return ids


def masked_sequences(tokenizer: Tokenizer, texts: list[list[int]]) -> tuple[Sequences, Int64[np.ndarray, "masks"]]:
    """The sequences of encoded texts, and the places of all their masks."""
    rows = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in texts]
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.array([number for row in rows for number in row], np.int32)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    sequences = Sequences(ids, starts, lengths, np.arange(len(rows)), {}, len(rows), num_truncated=0)
    return sequences, np.flatnonzero(ids == tokenizer.mask_id).astype(np.int64)


def fill_masks(
    compute: Computation, tokenizer: Tokenizer, texts: Sequence[str], top: int
) -> list[Prediction | Unpredictable]:
    """The most probable pieces for each [MASK] of each text, by the masked-LM head (paper, section 3.1)."""
    longest = compute.backend.config.max_positions
    if not 1 <= top <= tokenizer.vocab_size:
        raise UserError(f"top is {top}: give a number from 1 to {tokenizer.vocab_size}, the size of the vocabulary")
    encoded = [encode_masked(tokenizer, text) if MASK in text else [] for text in texts]
    fits = [MASK in text and len(ids) + 2 <= longest for text, ids in zip(texts, encoded, strict=True)]
    sequences, masks = masked_sequences(tokenizer, [ids for ids, fit in zip(encoded, fits, strict=True) if fit])
    best = compute.masked_pieces(sequences, masks, top, tokenizer.vocab_size)
    guesses = [
        tuple(map(Guess, tokenizer.pieces(ids), ids, likely))
        for ids, likely in zip(best.ids.tolist(), best.probabilities.tolist(), strict=True)
    ]
    borders = np.searchsorted(masks, sequences.starts).tolist()
    filled = iter(FillPrediction(tuple(guesses[start:end])) for start, end in pairwise(borders))
    too_long = Unpredictable(f"of more than {longest} tokens, the most that the model reads")
    return [
        next(filled) if fit else too_long if MASK in text else Unpredictable(f"without {MASK}")
        for text, fit in zip(texts, fits, strict=True)
    ]
