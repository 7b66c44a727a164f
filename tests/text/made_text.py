"""A made-up corpus and a small vocabulary of it, for tests that need both and no real data."""

import io
import random
from pathlib import Path

import sentencepiece

SYLLABLES = "ba ce di fo gu la me ni po ru sa te vi xo zu brin clav dorn fels grum holt".split()


def sentence(dice: random.Random) -> str:
    words = ["".join(dice.choices(SYLLABLES, k=dice.randint(1, 3))) for _ in range(dice.randint(3, 18))]
    return " ".join(words).capitalize() + dice.choice(".?!.")


def document(dice: random.Random) -> str:
    """Some paragraphs of some sentences; one document in ten is a single sentence."""
    if dice.random() < 0.1:
        return sentence(dice)
    paragraphs = [" ".join(sentence(dice) for _ in range(dice.randint(1, 8))) for _ in range(dice.randint(1, 6))]
    return "\n".join(paragraphs)


def documents(size: int, seed: int) -> list[str]:
    """Documents of about so many characters in all."""
    dice = random.Random(seed)
    found: list[str] = []
    while size > 0:
        found.append(document(dice))
        size -= len(found[-1])
    return found


def write_vocabulary(folder: Path, seed: int = 0) -> Path:
    """A SentencePiece model of a few hundred pieces with ALBERT's special ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(documents(60_000, seed)).lower().split("\n")),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["."],
        minloglevel=2,
        num_threads=1,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    return folder
