"""Embeddings of a pretrained model without training: pooling, layer and post-processing, by similarity and by search.

    python bench/embeddings.py albert-base-wikibooks --glue glue --text wikipedia.txt --out results/embeddings

Every text is encoded once. For the input of the first layer (0) and the output of each layer the script pools [CLS],
the mean over all tokens, the mean over words (without [CLS] and [SEP]), and two means that weigh rare words more (SIF,
Arora et al., 2017): by frequencies counted in --text, and by the probabilities in the vocabulary's own unigram model,
which every model folder has. Similarity is Spearman's correlation of cosines with the scores of STS-B. Search is the
mean reciprocal rank of the sentence that answers a question of QNLI among 1,000 sentences. Means and principal
components for post-processing are fitted on sentences of --text, or on training sentences of STS-B without their
scores; with --sentences 0 there is none. The choice is made on STS-B dev; STS-B test and QNLI are reported for it. Rows
that run.json has and that are not measured again are kept.
"""

import argparse
import csv
import json
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch

from openalbert.finetuning.encode import UniqueTexts
from openalbert.finetuning.predict import TOKENS_AT_A_TIME, batches_by_length
from openalbert.interop import huggingface
from openalbert.tasks.metrics import spearman
from openalbert.text.sentences import split_sentences
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

POOLINGS = {
    "cls": "[CLS]",
    "mean": "mean",
    "words": "mean of words",
    "counted": "weighted, counted",
    "vocabulary": "weighted, vocabulary",
}
PROCESSED = (("mean", "words", "vocabulary"), ("1", "2", "3", "6", "12"))  # poolings and layers
SIF_SMOOTHING = 1e-3  # Arora et al.: weights a / (a + p(w)) with a from 1e-4 to 1e-3
TOP_COMPONENTS = 7  # all-but-the-top (Mu and Viswanath, 2018): about a hundredth of the 768 dimensions
WHITENED = 256  # dimensions kept by whitening, as in Su et al. (2021)
CPU = Device(torch.device("cpu"), "fp32")
CHOSEN_LAYER = "2"
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


def answered_questions(path: Path, number: int) -> tuple[list[str], list[str]]:
    """Questions of QNLI, each with the sentence that answers it."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = {row["sentence"]: row["question"] for row in rows if row["label"] == "entailment"}
    return list(found.values())[:number], list(found)[:number]


def pooled_states(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], weights: dict[str, np.ndarray], max_length: int = 128
) -> dict[str, np.ndarray]:
    """By pooling: layers x texts x hidden size. `weights` are those of each piece of the vocabulary."""
    unique = UniqueTexts()
    numbers = np.array([unique.add(text) for text in texts])
    tokens = unique.tokenize(tokenizer)
    lengths = np.minimum(tokens.lengths, max_length - 2) + 2
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    pooled = {name: np.zeros((layers, len(lengths), size), np.float32) for name in POOLINGS}
    with torch.inference_mode():
        for chosen in batches_by_length(lengths, TOKENS_AT_A_TIME, CPU):
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
                for name, of_pieces in weights.items():
                    of_words = of_pieces[row[1:-1] if len(row) > 2 else row]
                    pooled[name][:, text] = np.tensordot(of_words / of_words.sum(), words, (0, 1))
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
        "centered": lambda vectors: vectors - mean,
        "without the top component": lambda vectors: without_top(1, vectors),
        f"without the top {TOP_COMPONENTS} components": lambda vectors: without_top(TOP_COMPONENTS, vectors),
        "whitened": lambda vectors: whitened(len(components), vectors),
        f"whitened to {WHITENED} dimensions": lambda vectors: whitened(WHITENED, vectors),
    }


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(1) / norms, np.float64)


def mean_reciprocal_rank(questions: np.ndarray, sentences: np.ndarray) -> float:
    """Of the sentence with the number of the question, among all sentences, by cosine; in percent."""
    questions, sentences = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (questions, sentences))
    cosine = questions @ sentences.T
    ranks = (cosine >= np.diag(cosine)[:, None]).sum(1)
    return 100 * float((1 / ranks).mean())


def measure(model_name: str, glue: Path, text: Path, num_sentences: int, num_questions: int) -> dict[str, Any]:
    """The scores of every combination."""
    started = time.perf_counter()
    folder = huggingface.find_folder(model_name)
    model, tokenizer = huggingface.load(folder), Tokenizer.load(folder)
    ids, _ = tokenizer.encode_joined(text.read_text(encoding="utf-8").splitlines())
    counted = np.bincount(ids, minlength=tokenizer.vocab_size) / len(ids)
    in_vocabulary = np.exp([tokenizer.processor.get_score(number) for number in range(tokenizer.vocab_size)])
    weights = {
        name: (SIF_SMOOTHING / (SIF_SMOOTHING + frequency)).astype(np.float32)
        for name, frequency in (("counted", counted), ("vocabulary", in_vocabulary))
    }
    splits = {name: sts_pairs(glue / "STS-B" / f"sts-{name}.csv") for name in ("dev", "test")}
    questions = answered_questions(glue / "QNLI" / "dev.tsv", num_questions)
    with (glue / "STS-B" / "train.tsv").open(encoding="utf-8", newline="") as file:
        train = [row["sentence1"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    fits: dict[str, list[str]] = {}
    if num_sentences:
        fits = {"Wikipedia": sentences_of(text, num_sentences), "STS-B": train[:: len(train) // num_sentences]}

    def states_of(texts: Sequence[str]) -> dict[str, np.ndarray]:
        return pooled_states(model, tokenizer, texts, weights)

    fitted_on = {name: states_of(texts) for name, texts in fits.items()}
    states = {name: [states_of(side) for side in pairs[:2]] for name, pairs in splits.items()}
    states["search"] = [states_of(side) for side in questions]
    layers = model.config.num_layers
    takes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        str(layer): lambda of_layers, layer=layer: of_layers[layer] for layer in range(layers + 1)
    }
    takes |= {f"{low} and {layers}": lambda of_layers, low=low: of_layers[[low, -1]].mean(0) for low in (0, 1)}
    rows = []
    for pooling, (layer, take) in product(POOLINGS, takes.items()):
        processings = {"none": lambda vectors: vectors}
        if pooling in PROCESSED[0] and layer in PROCESSED[1]:
            for name, fitted in fitted_on.items():
                found = transforms(take(fitted[pooling]))
                processings |= {f"{processing} ({name})": apply for processing, apply in found.items()}
        for name, apply in processings.items():
            row: dict[str, Any] = {"pooling": pooling, "layer": layer, "post_processing": name}
            sides = {split: [apply(take(side[pooling])) for side in both] for split, both in states.items()}
            for split, (*_, gold) in splits.items():
                row[split] = round(spearman(gold, cosines(*sides[split])), 2)
            row["search"] = round(mean_reciprocal_rank(*sides["search"]), 2)
            first, second = sides["dev"]
            row["unrelated"] = round(float(cosines(first, np.roll(second, 7, 0)).mean()), 3)
            rows.append(row)
    return {
        "model": model_name,
        "torch": torch.__version__,
        "sentences_fitted_on": {name: len(texts) for name, texts in fits.items()},
        "pairs": {name: len(pairs[2]) for name, pairs in splits.items()} | {"search": len(questions[0])},
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "rows": rows,
    }


def report(run: dict[str, Any]) -> str:
    """report.md from run.json."""
    rows = run["rows"]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    last = str(max(int(layer) for layer in layers if layer.isdecimal()))
    by_name = {(row["pooling"], row["layer"], row["post_processing"]): row for row in rows}
    chosen, usual = by_name["vocabulary", CHOSEN_LAYER, "none"], by_name["mean", last, "none"]
    best = max(rows, key=lambda row: float(row["dev"]))
    processing = "" if best["post_processing"] == "none" else f", {best['post_processing']}"

    def cell(pooling: str, layer: str, processing: str, key: str, digits: int = 1) -> str:
        value = by_name.get((pooling, layer, processing), {}).get(key)
        return "–" if value is None else f"{value:.{digits}f}"

    def grid(key: str) -> list[str]:
        found = [one for one in POOLINGS if any(key in row for row in rows if row["pooling"] == one)]
        lines = [f"| layer | {' | '.join(POOLINGS[one] for one in found)} |", f"|---{'|---' * len(found)}|"]
        for layer in layers:
            cells = [cell(pooling, layer, "none", key) for pooling in found]
            if set(cells) != {"–"}:
                lines.append(f"| {layer} | {' | '.join(cells)} |")
        return lines

    lines = [
        "# Embeddings without training",
        "",
        "## Result",
        "",
        "Early layers are better than the last one, and a mean that weighs rare words more is better than a plain "
        f"one. The default of `openalbert embed`, a weighted mean of layer {CHOSEN_LAYER}, has {chosen['dev']:.1f} on "
        f"STS-B dev and {chosen['test']:.1f} on test; the mean of the last layer has {usual['dev']:.1f} and "
        f"{usual['test']:.1f}. It computes only the first layers, and its weights come from the vocabulary, not from "
        f"other text. The best of {len(rows)} combinations on dev is {POOLINGS[best['pooling']]}, layer "
        f"{best['layer']}{processing}: {best['dev']:.1f}.",
        "",
        "Spearman x 100 on STS-B dev, without post-processing:",
        "",
        *grid("dev"),
        "",
        "The same on test, which was not used to choose:",
        "",
        *grid("test"),
        "",
        "Mean reciprocal rank x 100 of the answer to a question of QNLI, without post-processing:",
        "",
        *grid("search"),
        "",
        "Post-processing on STS-B dev. *Unrelated* is the mean cosine of unrelated texts:",
        "",
        f"| post-processing (fitted on) | mean, layer {CHOSEN_LAYER} | mean, layer {last} | weighted, layer "
        f"{CHOSEN_LAYER} | unrelated: mean, layer {last} |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["post_processing"] for row in rows):
        weighted = next(one for one in ("vocabulary", "counted") if (one, CHOSEN_LAYER, name) in by_name)
        places = (("mean", CHOSEN_LAYER), ("mean", last), (weighted, CHOSEN_LAYER))
        cells = [cell(*place, name, "dev") for place in places] + [cell("mean", last, name, "unrelated", 2)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    counts = run["pairs"]
    lines += [
        "",
        "## Setup",
        "",
        f"`python bench/embeddings.py {run['model']} --glue glue --text wikipedia.txt --out results/embeddings`: "
        f"{counts['dev']:,} dev and {counts['test']:,} test pairs of STS-B, {counts['search']:,} questions of QNLI "
        f"dev with as many sentences. Layer 0 is the input of the first layer; “0 and {last}” is the mean of the two. "
        f"Weights are a / (a + p) with a = {SIF_SMOOTHING:g}: p is counted in held-out Wikipedia, or it is the "
        f"probability of the piece in the vocabulary. CPU, fp32, torch {run['torch']}. All rows are in run.json.",
        *run.get("notes", []),
        "",
        "## Limits",
        "",
        "One model of one size, two English datasets of short texts. For other depths the default takes the layer at "
        "the same fraction, which was not measured. The best of many combinations on dev is a little high there.",
    ]
    return "\n".join(line if line.startswith("|") else fill(line, 120) for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--glue", type=Path, required=True, help="the folder with STS-B and QNLI")
    parser.add_argument("--text", type=Path, required=True, help="a text file to count words in and to fit on")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    run = measure(arguments.model, arguments.glue, arguments.text, arguments.sentences, arguments.questions)
    path = arguments.out / "run.json"
    if path.exists():
        before = json.loads(path.read_text())
        measured = {(row["pooling"], row["layer"], row["post_processing"]) for row in run["rows"]}
        run["rows"] += [
            row for row in before["rows"] if (row["pooling"], row["layer"], row["post_processing"]) not in measured
        ]
        run["notes"] = before.get("notes", [])
    arguments.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")
    (arguments.out / "report.md").write_text(report(run))
    print(report(run))


if __name__ == "__main__":
    main()
