"""Can the order of two segments be told without reading a word? How much the lengths of their sentences give away.

    python bench/order_cue.py --data SHARDS [--examples 60000]

A classifier (scikit-learn's gradient boosting) sees nothing of each pair but lengths: of both segments, of their first,
last, longest and shortest sentence, and the number of sentences. It learns from two thirds of the pairs and is judged
by the rest, for both ways of making chunks, on the text as it is and with the sentences of each document shuffled:
whatever is told there is told by the making alone. Prints a table and writes results/order-cue/.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from openalbert.objectives.sentence_order import SentenceOrder, pair
from openalbert.text.shards import open_shards

ROOT = Path(__file__).resolve().parents[1]


def lengths_of(rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """What the classifier sees: six lengths of each segment, whose sentences begin at `starts`."""
    columns = []
    for segment in ("first", "second"):
        begin = rows[f"{segment}_begin"]
        end = begin + rows[f"{segment}_length"]
        inner = np.searchsorted(starts, begin, side="right"), np.searchsorted(starts, end)
        sentences = [
            np.diff(np.concatenate([[b], starts[i:j], [e]])) for b, e, i, j in zip(begin, end, *inner, strict=True)
        ]
        columns += [end - begin, inner[1] - inner[0] + 1]
        columns += [np.array([pick(lengths) for lengths in sentences]) for pick in (_first, _last, np.max, np.min)]
    return np.stack(columns, axis=1)


def _first(lengths: np.ndarray) -> int:
    return int(lengths[0])


def _last(lengths: np.ndarray) -> int:
    return int(lengths[-1])


def shuffled(starts: np.ndarray, documents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same sentences in a random order within each document."""
    lengths = np.diff(starts)
    order = np.argsort(np.repeat(np.arange(len(documents) - 1), np.diff(documents)) + rng.random(len(lengths)))
    return np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64)


def told(starts: np.ndarray, documents: np.ndarray, how: SentenceOrder, length: int, examples: int) -> dict[str, Any]:
    """How many orders the classifier tells right."""
    rng = np.random.default_rng(0)
    rows = pair(starts, documents, how, length, 1, 0).rows
    rows = rows[rng.permutation(len(rows))[:examples]]
    seen, order = lengths_of(rows, starts), rows["swapped"]
    border = 2 * len(rows) // 3
    classifier = HistGradientBoostingClassifier(random_state=0).fit(seen[:border], order[:border])
    right = classifier.score(seen[border:], order[border:])
    error = float(np.sqrt(right * (1 - right) / (len(rows) - border)))
    return {"examples": len(rows), "right": float(right), "standard_error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "order-cue")
    arguments = parser.parse_args()
    shards = open_shards(arguments.data)
    shard = shards.shards[0]
    starts, documents = np.asarray(shard.sentence_starts), np.asarray(shard.document_starts)
    texts = {"as it is": starts, "sentences shuffled": shuffled(starts, documents, np.random.default_rng(1))}
    found = []
    for length in (128, 512):
        for chunks in ("google", "whole"):
            for text, of_text in texts.items():
                how = SentenceOrder(chunks=chunks)
                figures = told(of_text, documents, how, length, arguments.examples)
                found.append({"length": length, "chunks": chunks, "text": text, **figures})
                print(f"{length:4d} {chunks:7s} {text:20s} {100 * figures['right']:.1f} %", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = {"sentences": len(starts) - 1, "documents": len(documents) - 1, "told": found}
    (arguments.out / "run.json").write_text(json.dumps(run, indent=2) + "\n")
    table = "\n".join(
        f"| {row['length']} | {row['chunks']} | {row['text']} "
        f"| {100 * row['right']:.1f} ± {100 * row['standard_error']:.1f} % |"
        for row in found
    )
    (arguments.out / "report.md").write_text(
        f"""# The order of two segments, told from the lengths of their sentences alone

`python bench/order_cue.py` on {len(documents) - 1:,} documents. Chance is 50 %; no word is seen.

| length | chunks | text | order told |
|---|---|---|---|
{table}

google: a chunk takes sentences until it reaches its length or passes it, as Google's data builder does, and is trimmed.
whole: it takes the whole sentences that fit, and passes over the one that does not. Why this is so stands in
docs/decisions/whole-chunks.md.
"""
    )


if __name__ == "__main__":
    main()
