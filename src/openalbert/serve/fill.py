"""The verb `fill`: the most probable pieces for each [MASK] of a text, by the masked-LM head (paper, section 3.1)."""

import json as json_text
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from openalbert.errors import UserError
from openalbert.interop.huggingface import find_folder, load
from openalbert.model.albert import AlbertModel
from openalbert.text.tokenizer import MODEL_FILE, SPACE, Tokenizer

MASK = "[MASK]"

# Text that follows a [MASK] without a space continues its word, so its first piece has no `▁`. This private-use
# character, which is in no vocabulary, replaces the mask while SentencePiece tokenizes such text.
_STAND_IN = "\ue000"


@dataclass(frozen=True)
class Fill:
    """The most probable pieces for each [MASK] of a text."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A model folder, a run of `openalbert pretrain`, the name of a bundled checkpoint (albert-base-wikibooks), or
    `owner/name` on Hugging Face's hub."""
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="[TEXT ...]")] = ()
    """Texts with at least one [MASK] each; by default the lines of standard input."""
    top: int = 5
    """Number of pieces to print for each [MASK]."""
    json: bool = False
    """Print one JSON object per text."""


@dataclass(frozen=True)
class Guess:
    """A predicted piece for a [MASK]."""

    piece: str
    """As in the vocabulary: a leading `▁` begins a word."""
    id: int
    probability: float

    @property
    def reading(self) -> str:
        """The piece as readable text; a continuation of a word begins with an ellipsis."""
        return self.piece.removeprefix(SPACE) or "(space)" if self.piece.startswith(SPACE) else f"…{self.piece}"


def fill_texts(settings: Fill) -> None:
    """Print the predictions for every text."""
    folder = find_folder(settings.model)
    if not (folder / MODEL_FILE).exists():
        raise UserError(
            f"{folder}: there is no {MODEL_FILE}, so text cannot be tokenized for this model: copy its tokenizer there"
        )
    model, tokenizer = load(folder), Tokenizer.load(folder)
    for text in settings.texts or _lines():
        guesses = fill(model, tokenizer, text, settings.top)
        if settings.json:
            masks = [[asdict(guess) for guess in of_mask] for of_mask in guesses]
            print(json_text.dumps({"text": text, "masks": masks}, ensure_ascii=False), flush=True)
        else:
            print("\n".join(readable(text, guesses)), flush=True)


def fill(model: AlbertModel, tokenizer: Tokenizer, text: str, top: int = 5) -> list[list[Guess]]:
    """For each [MASK] of a text, in order, its most probable pieces, the best first."""
    if "masked_lm" not in model.heads:
        has = ", ".join(model.heads) or "none"
        raise UserError(f"this model has no masked-LM head (its heads: {has}): use a pretrained one")
    if tokenizer.vocab_size > model.config.vocab_size:
        raise UserError(
            f"the tokenizer {tokenizer.where} has {tokenizer.vocab_size} pieces but the model has "
            f"{model.config.vocab_size}: they do not belong together"
        )
    if not 1 <= top <= tokenizer.vocab_size:
        raise UserError(f"top is {top}: give a number from 1 to {tokenizer.vocab_size}, the size of the vocabulary")
    numbers = [tokenizer.cls_id, *encode_masked(tokenizer, text), tokenizer.sep_id]
    if len(numbers) > model.config.max_positions:
        raise UserError(
            f"'{_shortened(text)}' has {len(numbers)} tokens but the model reads {model.config.max_positions} at most: "
            "shorten the text"
        )
    ids = torch.tensor([numbers], device=next(model.parameters()).device)
    at = (ids == tokenizer.mask_id).nonzero()[None, :, 1]
    with torch.inference_mode():
        scores = model.scores("masked_lm", model.encode(ids, at=at))[0, :, : tokenizer.vocab_size]
        best = scores.float().softmax(-1).topk(top)
    return [
        [
            Guess(piece, number, probability)
            for piece, number, probability in zip(tokenizer.pieces(found), found, probabilities, strict=True)
        ]
        for found, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text with `[MASK]`, without [CLS] and [SEP].

    As in Hugging Face's tokenizer, a space before a mask vanishes, and one after it begins the next word.
    """
    before, *behind = text.split(MASK)
    if not behind:
        raise UserError(
            f"there is no {MASK} in '{_shortened(text)}': write {MASK}, in capitals, where a word is wanted"
        )
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


def readable(text: str, guesses: list[list[Guess]]) -> Iterator[str]:
    """The text, and one line per mask."""
    yield text
    for number, of_mask in enumerate(guesses, 1):
        name = MASK if len(guesses) == 1 else f"{MASK} {number}"
        yield f"  {name}: " + ", ".join(f"{guess.reading} {guess.probability:.1%}" for guess in of_mask)


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        print(f"a text with {MASK} on each line, Ctrl-D to end:", file=sys.stderr)
    for line in sys.stdin:
        if line.strip():
            yield line.strip()


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
