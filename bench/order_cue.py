"""How much the lengths of sentences reveal of the order of two segments, to a classifier that sees no word.

    python bench/order_cue.py --data SHARDS [SHARDS …] [--examples 60000]

The classifier (scikit-learn's gradient boosting) is given lengths only: of both segments, of their first, last, longest
and shortest sentence, and the number of sentences. It is cross-validated with whole documents held out, for both ways
of making chunks at lengths 128 and 512, on the text as it is and with the sentences of each document shuffled. Above
50 % on shuffled text is an artifact of how chunks are made; what the natural order adds is a property of the text.
Only the first shard of each folder is read. Prints a table and writes results/order-cue/.
"""

import argparse
import json
import math
import statistics
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import sklearn
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GroupKFold, cross_val_predict

from openalbert.objectives.sentence_order import SentenceOrder, pair
from openalbert.text.shards import open_shards

ROOT = Path(__file__).resolve().parents[1]
FOLDS = 5
SHUFFLES = 4


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


def order_accuracy(
    starts: np.ndarray, documents: np.ndarray, how: SentenceOrder, length: int, examples: int
) -> dict[str, float]:
    """Cross-validated accuracy of the classifier, and its standard error over documents."""
    rng = np.random.default_rng(0)
    rows = pair(starts, documents, how, length, 1, 0).rows
    rows = rows[rng.permutation(len(rows))[:examples]]
    seen, swapped = lengths_of(rows, starts), rows["swapped"]
    document = np.searchsorted(documents, rows["example"], side="right") - 1
    predicted = cross_val_predict(
        HistGradientBoostingClassifier(random_state=0), seen, swapped, groups=document, cv=GroupKFold(FOLDS)
    )
    is_right = predicted == swapped
    accuracy = float(is_right.mean())
    # Examples of one document are not independent: its deviation from the mean counts as one draw.
    deviations = np.bincount(document, is_right - accuracy)
    return {
        "examples": len(rows),
        "accuracy": accuracy,
        "standard_error": float(np.sqrt((deviations**2).sum()) / len(rows)),
    }


def mean(of_each: list[dict[str, float]]) -> dict[str, Any]:
    """Over several orders of the same sentences."""
    return {
        "examples": int(sum(one["examples"] for one in of_each)),
        "accuracies": [one["accuracy"] for one in of_each],
        "accuracy": statistics.fmean(one["accuracy"] for one in of_each),
        "standard_error": math.hypot(*(one["standard_error"] for one in of_each)) / len(of_each),
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, nargs="+")
    parser.add_argument("--examples", type=int, default=60_000, help="at most, of each kind")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "order-cue")
    arguments = parser.parse_args(words)
    found, corpora = [], {}
    for folder in arguments.data:
        shard = open_shards(folder).shards[0]
        starts, documents = np.asarray(shard.sentence_starts), np.asarray(shard.document_starts)
        corpora[folder.name] = {"documents": len(documents) - 1, "sentences": len(starts) - 1}
        orders = [shuffled(starts, documents, np.random.default_rng(seed)) for seed in range(1, SHUFFLES + 1)]
        texts = {"as it is": [starts], "shuffled": orders}
        for length, chunks, text in product((128, 512), ("google", "whole"), texts):
            how = SentenceOrder(chunks=chunks)
            row = {"corpus": folder.name, "length": length, "chunks": chunks, "sentences": text}
            of_each = [order_accuracy(order, documents, how, length, arguments.examples) for order in texts[text]]
            found.append({**row, **mean(of_each)})
            row = found[-1]
            print(line(row), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = {"corpora": corpora, "folds": FOLDS, "shuffles": SHUFFLES, "scikit_learn": sklearn.__version__, "rows": found}
    (arguments.out / "run.json").write_text(json.dumps(run, indent=2) + "\n")
    (arguments.out / "report.md").write_text(report(run))


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    names = f"| {row['corpus']} | {row['length']} | {row['chunks']} | {row['sentences']} | {row['examples']:,} "
    return f"{names}| {100 * row['accuracy']:.1f} | {100 * row['standard_error']:.1f} |"


def report(run: dict[str, Any]) -> str:
    """The table, how it was made, and what it does not show."""
    corpora = "; ".join(
        f"{name}: {of['documents']:,} documents, {of['sentences']:,} sentences" for name, of in run["corpora"].items()
    )
    setup = (
        f"`python bench/order_cue.py --data {' '.join(run['corpora'])}`: scikit-learn {run['scikit_learn']}, "
        f"HistGradientBoostingClassifier with its defaults, {run['folds']}-fold cross-validation by document, seed 0. "
        f"First shard of each corpus: {corpora}. Shuffled rows are means over {run['shuffles']} shuffles. Standard "
        "errors are over documents."
    )
    table = "\n".join(line(row) for row in run["rows"])
    return f"""# Sentence order predicted from sentence lengths alone

## Result

Accuracy in percent of a classifier that sees sentence lengths and no word; chance is 50.

| corpus | length | chunks | sentences | examples | accuracy | standard error |
|---|---|---|---|---|---|---|
{table}

google: a chunk takes sentences until it reaches its length or passes it, as Google's data builder does, and is trimmed.
whole: it takes the whole sentences that fit and skips the one that does not
([decision](../../docs/decisions/whole-chunks.md)). The rows with shuffled sentences show what the making of chunks
reveals; what the text as it is adds to them comes from the order of lengths in real documents.

## Setup

{fill(setup, 120, break_long_words=False, break_on_hyphens=False)}

## Limits

One classifier and twelve features of each pair: a stronger one may find more. One seed of chunks.
"""


if __name__ == "__main__":
    main()
