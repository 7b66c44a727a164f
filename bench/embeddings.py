"""Embeddings of a pretrained model without training: pooling, layer and post-processing, by Spearman on STS-B.

    python bench/embeddings.py albert-base-wikibooks --data glue/STS-B --text wikipedia.txt --out results/embeddings

Every text is encoded once. For the input of the first layer (0) and the output of each layer the script pools the mean
over all tokens, the mean over words (without [CLS] and [SEP]), [CLS], and the mean with SIF weights (Arora et al.,
2017). Means, principal components and word frequencies for the post-processing are fitted on sentences of --text, which
have nothing to do with STS-B. The choice is made on dev; test is reported for it.
"""

import argparse
import csv
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openalbert.finetuning.encode import UniqueTexts
from openalbert.finetuning.predict import batches_by_length
from openalbert.interop import huggingface
from openalbert.tasks.metrics import spearman
from openalbert.text.sentences import split_sentences
from openalbert.text.tokenizer import Tokenizer

POOLINGS = ("mean", "words", "cls", "sif")
SIF_SMOOTHING = 1e-3  # Arora et al.: weights a / (a + p(w)) with a from 1e-4 to 1e-3
TOP_COMPONENTS = 7  # all-but-the-top (Mu and Viswanath, 2018): about a hundredth of the 768 dimensions
WHITENED = 256  # dimensions kept by whitening, as in Su et al. (2021)
TOKENS_AT_A_TIME = 4096
Transform = Callable[[np.ndarray], np.ndarray]


def sts_pairs(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """First and second texts and scores of one of the original files of STS-B."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row) >= 7]
    return [row[5] for row in rows], [row[6] for row in rows], np.array([float(row[4]) for row in rows])


def sentences_of(path: Path, number: int) -> list[str]:
    """Sentences from all over a text file."""
    found = [one for line in path.read_text(encoding="utf-8").splitlines() for one in split_sentences(line)]
    found = [one for one in found if 5 <= len(one.split()) <= 60]
    return found[:: max(1, len(found) // number)][:number]


def pooled_states(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], frequency: np.ndarray | None, max_length: int = 128
) -> dict[str, np.ndarray]:
    """By pooling: layers x texts x hidden size."""
    unique = UniqueTexts()
    numbers = np.array([unique.add(text) for text in texts])
    tokens = unique.tokenize(tokenizer)
    lengths = np.minimum(tokens.lengths, max_length - 2) + 2
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    pooled = {name: np.zeros((layers, len(lengths), size), np.float32) for name in POOLINGS}
    weight = None if frequency is None else SIF_SMOOTHING / (SIF_SMOOTHING + frequency)
    with torch.inference_mode():
        for chosen in batches_by_length(lengths, TOKENS_AT_A_TIME):
            rows = [
                [tokenizer.cls_id, *tokens.ids[start : start + length - 2], tokenizer.sep_id]
                for start, length in zip(tokens.starts[chosen], lengths[chosen], strict=True)
            ]
            encoded = model.encode_packed(
                torch.tensor([one for row in rows for one in row]), lengths[chosen].tolist(), all_states=True
            )
            states = torch.stack(encoded.states).numpy()
            begin = 0
            for text, row in zip(chosen.tolist(), rows, strict=True):
                state = states[:, begin : begin + len(row)]
                words = state[:, 1:-1] if len(row) > 2 else state
                pooled["mean"][:, text], pooled["words"][:, text] = state.mean(1), words.mean(1)
                pooled["cls"][:, text] = state[:, 0]
                if weight is not None and len(row) > 2:
                    of_words = weight[row[1:-1]][:, None]
                    pooled["sif"][:, text] = (words * of_words).sum(1) / of_words.sum()
                begin += len(row)
    return {name: values[:, numbers] for name, values in pooled.items()}


def transforms(fitted_on: np.ndarray) -> dict[str, Transform]:
    """Post-processing by name, fitted on the embeddings of some sentences."""
    mean = fitted_on.mean(0)
    _, scales, components = np.linalg.svd(fitted_on - mean, full_matrices=False)
    scales = np.maximum(scales / np.sqrt(len(fitted_on)), 1e-6)

    def without_top(count: int, vectors: np.ndarray) -> np.ndarray:
        centered = vectors - mean
        return centered - centered @ components[:count].T @ components[:count]

    def whitened(count: int, vectors: np.ndarray) -> np.ndarray:
        return (vectors - mean) @ (components[:count].T / scales[:count])

    return {
        "none": lambda vectors: vectors,
        "centered": lambda vectors: vectors - mean,
        "without the top component": lambda vectors: without_top(1, vectors),
        f"without the top {TOP_COMPONENTS} components": lambda vectors: without_top(TOP_COMPONENTS, vectors),
        "whitened": lambda vectors: whitened(len(components), vectors),
        f"whitened, {WHITENED} dimensions": lambda vectors: whitened(WHITENED, vectors),
    }


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(1) / norms, np.float64)


def measure(model_name: str, data: Path, text: Path, num_sentences: int) -> dict[str, Any]:
    """The scores of every combination."""
    started = time.perf_counter()
    folder = huggingface.find_folder(model_name)
    model, tokenizer = huggingface.load(folder), Tokenizer.load(folder)
    sentences = sentences_of(text, num_sentences)
    ids, _ = tokenizer.encode_joined(text.read_text(encoding="utf-8").splitlines())
    frequency = (np.bincount(ids, minlength=tokenizer.vocab_size) / len(ids)).astype(np.float32)
    splits = {name: sts_pairs(data / f"sts-{name}.csv") for name in ("dev", "test")}
    fitted_on = pooled_states(model, tokenizer, sentences, frequency)
    states = {
        name: [pooled_states(model, tokenizer, side, frequency) for side in pairs[:2]] for name, pairs in splits.items()
    }
    layers = model.config.num_layers
    rows = []
    for pooling in POOLINGS:
        which: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
            str(layer): lambda one, layer=layer, pooling=pooling: one[pooling][layer] for layer in range(layers + 1)
        }
        which |= {
            f"{low} and {layers}": lambda one, low=low, pooling=pooling: (one[pooling][low] + one[pooling][layers]) / 2
            for low in (0, 1)
        }
        for layer, take in which.items():
            for name, transform in transforms(take(fitted_on)).items():
                row: dict[str, Any] = {"pooling": pooling, "layer": layer, "post_processing": name}
                for split, (*_, gold) in splits.items():
                    first, second = (transform(take(side)) for side in states[split])
                    found = cosines(first, second)
                    row[split] = round(spearman(gold, found), 2)
                    if split == "dev":
                        row["mean_cosine_unrelated"] = round(float(cosines(first, np.roll(second, 7, 0)).mean()), 3)
                rows.append(row)
    return {
        "model": model_name,
        "torch": torch.__version__,
        "sentences_fitted_on": len(sentences),
        "pairs": {name: len(pairs[2]) for name, pairs in splits.items()},
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "rows": rows,
    }


def report(run: dict[str, Any]) -> str:
    """report.md from run.json."""
    rows, layers = run["rows"], max(int(row["layer"]) for row in run["rows"] if row["layer"].isdecimal())
    names = list(dict.fromkeys(row["post_processing"] for row in rows))

    def score(pooling: str, layer: str, processing: str = "none", split: str = "dev") -> float:
        return next(
            float(row[split])
            for row in rows
            if (row["pooling"], row["layer"], row["post_processing"]) == (pooling, layer, processing)
        )

    plain = [row for row in rows if row["post_processing"] == "none" and row["pooling"] in ("mean", "cls")]
    plain = [row for row in plain if row["layer"].isdecimal() and row["layer"] != "0"]
    best_plain, best = max(plain, key=lambda row: row["dev"]), max(rows, key=lambda row: row["dev"])
    last = str(layers)
    lines = [
        "# Embeddings without training",
        "",
        "## Result",
        "",
        f"Mean pooling of the last layer gives {score('mean', last):.1f} on dev, [CLS] {score('cls', last):.1f}. The best "
        f"single layer is {best_plain['layer']} ({best_plain['pooling']}): {best_plain['dev']:.1f}. The best of all "
        f"{len(rows)} combinations on dev is {best['pooling']}, layer {best['layer']}, {best['post_processing']}: "
        f"{best['dev']:.1f}, on test {best['test']:.1f}. "
        "[Contrastive fine-tuning](../similarity/report.md) is another matter.",
        "",
        "Spearman correlation x 100 of the cosine with the score, STS-B dev, without post-processing:",
        "",
        "| layer | mean | mean of words | [CLS] | SIF weights |",
        "|---|---|---|---|---|",
    ]
    order = list(dict.fromkeys(row["layer"] for row in rows))
    for layer in order:
        lines.append(f"| {layer} | " + " | ".join(f"{score(one, layer):.1f}" for one in POOLINGS) + " |")
    lines += [
        "",
        "Post-processing, fitted on sentences of Wikipedia, for mean pooling; dev, and the mean cosine of unrelated texts:",
        "",
        f"| post-processing | layer {best_plain['layer']} | layer {last} | unrelated, layer {last} |",
        "|---|---|---|---|",
    ]
    for name in names:
        unrelated = next(
            row["mean_cosine_unrelated"]
            for row in rows
            if (row["pooling"], row["layer"], row["post_processing"]) == ("mean", last, name)
        )
        lines.append(
            f"| {name} | {score('mean', best_plain['layer'], name):.1f} | {score('mean', last, name):.1f} | "
            f"{unrelated:.2f} |"
        )
    lines += ["", "The ten best combinations on dev:", "", "| pooling | layer | post-processing | dev | test |"]
    lines.append("|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: -row["dev"])[:10]:
        lines.append(
            f"| {row['pooling']} | {row['layer']} | {row['post_processing']} | {row['dev']:.1f} | {row['test']:.1f} |"
        )
    lines += [
        "",
        "## Setup",
        "",
        f"`python bench/embeddings.py {run['model']} --data glue/STS-B --text wikipedia.txt --out results/embeddings`: "
        f"{run['pairs']['dev']:,} dev and {run['pairs']['test']:,} test pairs, means, components and word frequencies "
        f"from {run['sentences_fitted_on']:,} sentences of held-out Wikipedia. Layer 0 is the input of the first layer; "
        f"“0 and {last}” is the mean of the two. One CPU thread, fp32, torch {run['torch']}. "
        "All combinations are in run.json.",
        "",
        "## Limits",
        "",
        "One model, one dataset. STS-B's sentences are short captions, headlines and forum posts; on long texts the "
        "order may differ. The best of many combinations on dev is a little high there; test was not used to choose.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True, help="the folder of STS-B")
    parser.add_argument("--text", type=Path, required=True, help="a text file to fit the post-processing on")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    run = measure(arguments.model, arguments.data, arguments.text, arguments.sentences)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    (arguments.out / "report.md").write_text(report(run))
    print(report(run))


if __name__ == "__main__":
    main()
