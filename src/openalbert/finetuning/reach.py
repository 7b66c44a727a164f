"""Which right answers a model can learn and give at all: not what every window cuts, nor what is too long."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from openalbert.errors import UserError
from openalbert.finetuning.encode import Encoding
from openalbert.finetuning.windows import of_some
from openalbert.formatting import are, counted
from openalbert.tasks.data.tables import Exclusions
from openalbert.tasks.task import Example, QuestionExample, Reading


def learnable(reading: Reading, encoding: Encoding, max_length: int) -> tuple[Reading, Encoding]:
    """Both without the questions whose answer every window cuts; they are counted among what was left out.

    Each of their windows would teach that there is no answer, to a question that has one. A part of the answer would
    not do: it would teach to stop short, and where the border falls has nothing to do with what was asked.
    """
    sequences = encoding.sequences
    if encoding.windows is None or "span" not in sequences.targets:
        return reading, encoding
    is_learned = np.bincount(sequences.example, sequences.targets["span"][:, 0] > 0, len(reading.examples)) > 0
    kept = is_learned | ~_have_answers(reading.examples)
    if kept.all():
        return reading, encoding
    excluded = Exclusions(reading.excluded)
    for example, stays in zip(reading.examples, kept, strict=True):
        if not stays:
            excluded.add(f"whose answer is whole in no window of {max_length} tokens", f"'{example.id}'")
    examples = tuple(example for example, stays in zip(reading.examples, kept, strict=True) if stays)
    left = replace(reading, examples=examples, excluded=excluded.counted())
    if not examples:
        raise UserError(f"{left.origin}: no question is left to learn from: raise --max-length, or shorten the answers")
    return left, Encoding(*of_some(sequences, encoding.windows, kept))


def out_of_reach(examples: Sequence[Example], encoding: Encoding, max_length: int, max_answer_tokens: int) -> list[str]:
    """Sentences on right answers that can never be given; none where there are none."""
    if encoding.windows is None:
        return []
    has_answer = _have_answers(examples)
    tokens = encoding.windows.answer_tokens
    told = []
    if cut := int((has_answer & (tokens == 0)).sum()):
        what = f"{counted(cut, 'answer')} {are(cut)} cut by every window of {max_length} tokens"
        told.append(f"{what} and can never be given")
    if long := int((tokens > max_answer_tokens).sum()):
        what = f"{counted(long, 'answer')} {are(long)} longer than {counted(max_answer_tokens, 'token')}"
        told.append(f"{what} and can never be given: --max-answer-tokens {tokens.max()} is enough")
    return told


def _have_answers(examples: Sequence[Example]) -> Bool[np.ndarray, "examples"]:
    return np.array([isinstance(example, QuestionExample) and bool(example.answers) for example in examples], bool)
