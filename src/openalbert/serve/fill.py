"""The verb `fill`: the most probable pieces for each [MASK] of a text, as `Predictor.fill` gives them."""

import json as json_text
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from openalbert.interop.huggingface import find_folder
from openalbert.serve.masks import MASK
from openalbert.serve.predictions import FillPrediction
from openalbert.serve.predictor import Predictor


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


def fill_texts(settings: Fill) -> None:
    """Print the predictions for every text."""
    find_folder(settings.model)  # refuses a preset, which has no tokenizer
    model = Predictor.load(settings.model)
    for text in settings.texts or _lines():
        found = model.fill(text, settings.top)
        if settings.json:
            masks = [[asdict(guess) for guess in of_mask] for of_mask in found.masks]
            print(json_text.dumps({"text": text, "masks": masks}, ensure_ascii=False), flush=True)
        else:
            print("\n".join(readable(text, found)), flush=True)


def readable(text: str, found: FillPrediction) -> Iterator[str]:
    """The text, and one line per mask."""
    yield text
    for number, of_mask in enumerate(found.masks, 1):
        name = MASK if len(found.masks) == 1 else f"{MASK} {number}"
        yield f"  {name}: " + ", ".join(f"{guess.reading} {guess.probability:.1%}" for guess in of_mask)


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        print(f"a text with {MASK} on each line, Ctrl-D to end:", file=sys.stderr)
    for line in sys.stdin:
        if line.strip():
            yield line.strip()
