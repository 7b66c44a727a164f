"""What a frozen encoder knows: accuracy of logistic regression on its states, by depth and pooling. No fine-tuning.

    python bench/frozen_features.py albert-base-wikibooks --books heldout-books.txt --glue glue --cache /tmp/states

Encoded once, and kept in --cache: 300 paragraphs of 30 to 120 words of each of four books (*books*: 400 to train on and
400 others to test on, redrawn for each seed), and 1,000 training sentences of SST-2 with its dev set (*sst2*: 200 or
900 to train on). Features are standardized on the training texts; the penalty is 1 / C = 100; mean over the seeds.
`cls+2mean`, a layer norm of the weighted sum, is what `--trainable head` reads. Writes results/laptop/features.json.
"""

import argparse
import csv
import json
import statistics
from pathlib import Path

import numpy as np
import torch
from laptop import WORDS_OF_A_PARAGRAPH
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from openalbert import atomic_io
from openalbert.finetuning.predict import TOKENS_AT_A_TIME, batches_by_length
from openalbert.interop import huggingface
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

OF_A_BOOK, SENTENCES = 300, 1_000
CPU = Device(torch.device("cpu"), "fp32")
TRAIN_SIZES = {"books": (400,), "sst2": (200, 900)}


def read_texts(books: Path, glue: Path) -> dict[str, tuple[list[str], list[int]]]:
    """Texts and classes of both tasks; of SST-2 the training sentences come first."""
    dice = np.random.default_rng(0)
    usable = [
        [line for line in book.split("\n") if len(line.split()) in WORDS_OF_A_PARAGRAPH]
        for book in books.read_text(encoding="utf-8").strip().split("\n\n")
    ]
    chosen = [
        [book[number] for number in dice.permutation(len(book))[:OF_A_BOOK]] for book in sorted(usable, key=len)[-4:]
    ]
    rows = {}
    for split in ("train", "dev"):
        with (glue / "SST-2" / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
            rows[split] = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    rows["train"] = [rows["train"][number] for number in dice.permutation(len(rows["train"]))[:SENTENCES]]
    both = rows["train"] + rows["dev"]
    return {
        "books": (
            [text for book in chosen for text in book],
            [number for number in range(4) for _ in range(OF_A_BOOK)],
        ),
        "sst2": ([text for text, _ in both], [int(label) for _, label in both]),
    }


@torch.inference_mode()
def encode(name: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Of each text and depth the [CLS] state and the mean state; depth 0 is the embedding."""
    folder = huggingface.find_folder(name)
    model, tokenizer = huggingface.load(folder), Tokenizer.load(folder)
    ids = [[tokenizer.cls_id, *map(int, tokenizer.encode(text)[:510]), tokenizer.sep_id] for text in texts]
    shape = (len(texts), model.config.num_layers + 1, model.config.hidden_size)
    first, mean = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for chosen in batches_by_length(np.array([len(one) for one in ids]), TOKENS_AT_A_TIME, CPU):
        lengths = [len(ids[number]) for number in chosen]
        packed = torch.tensor([token for number in chosen for token in ids[number]])
        for depth, state in enumerate(model.encode_packed(packed, lengths, all_states=True).states):
            for number, one in zip(chosen, state.split(lengths), strict=True):
                first[number, depth], mean[number, depth] = one[0].numpy(), one.mean(0).numpy()
    return {"cls": first, "mean": mean}


def split(task: str, classes: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the texts to train and to test on."""
    dice = np.random.default_rng(seed)
    if task == "sst2":
        return dice.permutation(SENTENCES)[:size], np.arange(SENTENCES, len(classes))
    drawn = [dice.permutation(np.flatnonzero(classes == one)) for one in np.unique(classes)]
    quarter = size // 4
    return np.concatenate([one[:quarter] for one in drawn]), np.concatenate([one[100:200] for one in drawn])


def normed(states: np.ndarray) -> np.ndarray:
    """Layer norm without weights."""
    return torch.nn.functional.layer_norm(torch.from_numpy(states), states.shape[-1:]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 4, 6, 8, 10, 12])
    parser.add_argument("--out", type=Path, default=Path("results/laptop"))
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    table: dict[str, dict[str, float]] = {}
    for task, (texts, labels) in read_texts(arguments.books, arguments.glue).items():
        path, classes = arguments.cache / f"{task}.npz", np.array(labels)
        if not path.exists():
            np.savez(path, **encode(arguments.model, texts))
        states = dict(np.load(path))
        for weight in (1, 2, 4):
            states[f"cls+{weight}mean"] = normed(states["cls"] + weight * states["mean"])
        for size in TRAIN_SIZES[task]:
            for pooling in states:
                row = table.setdefault(f"{task}, {size} texts, {pooling}", {})
                for depth in arguments.depths:
                    accuracies, features = [], states[pooling][:, depth]
                    for seed in range(arguments.seeds):
                        train, test = split(task, classes, size, seed)
                        classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
                        classifier.fit(features[train], classes[train])
                        accuracies.append(100 * classifier.score(features[test], classes[test]))
                    row[str(depth)] = round(statistics.mean(accuracies), 1)
                print(f"{task}, {size} texts, {pooling}: {row}", flush=True)
    result = {"model": arguments.model, "seeds": arguments.seeds, "accuracy by depth": table}
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_io.write_text(arguments.out / "features.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
