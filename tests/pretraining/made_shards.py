"""Shards of a made-up language, with a vocabulary of their own, for tests that need no real data."""

import random
from pathlib import Path

from tests.text.written_shards import write_shards

from openalbert.text.shards import VocabularyInfo
from openalbert.text.tokenizer import Tokenizer
from openalbert.text.train_tokenizer import TrainVocabulary, train_vocabulary

SYLLABLES = "ka lo mi nu per sta vor bel dra gos hin tul wex".split()


def made_text(documents: int = 60, seed: int = 0) -> str:
    """Documents of one to thirty sentences, one a line, an empty line between documents."""
    dice = random.Random(seed)

    def sentence() -> str:
        words = ("".join(dice.choices(SYLLABLES, k=dice.randint(1, 3))) for _ in range(dice.randint(3, 20)))
        return " ".join(words).capitalize() + "."

    def document() -> str:
        return "\n".join(sentence() for _ in range(dice.choice((1, 2, 5, 12, 30))))

    return "\n\n".join(document() for _ in range(documents)) + "\n"


def easy_text(documents: int, seed: int = 0) -> str:
    """Documents of one syllable each, said again and again: what is hidden can be read off its neighbours."""
    words = random.Random(seed).choices(SYLLABLES, k=documents)
    return "\n\n".join("\n".join([" ".join([word] * 5).capitalize() + "."] * 6) for word in words) + "\n"


def made_shards(
    folder: Path,
    text: str | None = None,
    shard_tokens: int = 1500,
    heldout: str | None = None,
    vocab_size: int = 300,
    sample_seed: int = 1,
) -> Path:
    """Several small shards and their vocabulary."""
    sample = folder / "sample.txt"
    sample.write_text(made_text(200, seed=sample_seed))
    train_vocabulary(TrainVocabulary(files=(str(sample),), out=folder / "vocabulary", vocab_size=vocab_size))
    tokenizer = Tokenizer.load(folder / "vocabulary")
    texts = {"train": made_text() if text is None else text} | ({} if heldout is None else {"heldout": heldout})
    documents = {
        split: [
            [tokenizer.encode(sentence) for sentence in document.strip().splitlines()]
            for document in of_split.split("\n\n")
        ]
        for split, of_split in texts.items()
    }
    out = folder / "shards"
    tokenizer.save(out / "tokenizer")
    special = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id, "[MASK]": tokenizer.mask_id}
    vocabulary = VocabularyInfo(tokenizer.fingerprint, tokenizer.vocab_size, special)
    write_shards(out, documents, vocabulary, shard_tokens)
    return out
