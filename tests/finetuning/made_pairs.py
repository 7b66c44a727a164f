"""Files of similar texts that a tiny model learns in seconds: a word of one text stands for another of the other."""

import csv
import random
from pathlib import Path

from tests.finetuning.made_lessons import PLAIN

TOPICS = list(zip(PLAIN[:16], PLAIN[16:32], strict=True))
FILLING = PLAIN[32:60]


def pairs_file(form: str, folder: Path, num_examples: int = 240, seed: int = 0, ending: str = "csv") -> Path:
    """Pairs, triplets or scored pairs; two texts are similar if one has the first word of a topic, and one the second.

    The negative of a triplet has the same other words as the positive.
    """
    dice = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{form}.{ending}"
    columns = {"pairs": ("anchor", "positive"), "triplets": ("anchor", "positive", "negative")}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if ending == "tsv" else ",")
        writer.writerow(columns.get(form, ("sentence1", "sentence2", "score")))
        for number in range(num_examples):
            topic, other = dice.sample(TOPICS, 2)
            first = _text(dice, topic[0])
            filling = dice.choices(FILLING, k=4)
            second, negative = (" ".join([*filling[:2], word, *filling[2:]]) for word in (topic[1], other[1]))
            if form == "scored":
                is_similar = number % 2 == 0
                row = (first, second if is_similar else negative, 4 + dice.random() if is_similar else dice.random())
                writer.writerow((*row[:2], f"{row[2]:.2f}"))
            else:
                writer.writerow((first, second, negative)[: len(columns[form])])
    return path


def _text(dice: random.Random, word: str) -> str:
    words = dice.choices(FILLING, k=4)
    words.insert(dice.randrange(5), word)
    return " ".join(words)
