"""Which L2 penalty a head on a frozen encoder needs: scores by penalty and number of training examples.

    python bench/head_penalty.py albert-base-wikibooks --books heldout-books.txt --glue glue --cache /tmp/states

The features are those of `--trainable head`: [CLS] plus twice the mean of the tokens, standardized on the training
examples, and tanh of that. *books*: 360 training and 400 test paragraphs of four books; *sst2*: of 3,000 training
sentences, dev; *stsb*: of 1,500 training pairs, dev. Each draw takes other training examples (of the books, other test
paragraphs too). `stepwise` is how the head was trained before: pooler and classifier, 20 epochs of AdamW at 0.001 in
batches of 16. scikit-learn fits the rest: tests show that `fit_head` finds the same optimum. The encoder runs once, and
its states stay in --cache. Writes results/head-penalty/.
"""

import argparse
import csv
import json
import statistics
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from laptop import BOOKS, WORDS_OF_A_PARAGRAPH
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from openalbert import atomic_io, cli
from openalbert.finetuning.data import load_data
from openalbert.finetuning.frozen import FrozenStates
from openalbert.finetuning.settings import Finetune
from openalbert.finetuning.trainable import make_model, resolve
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
SIZES = {"books": (360,), "sst2": (180, 450, 900, 2_700), "stsb": (180, 450, 900)}
PENALTIES = {"classification": (10, 30, 100, 300, 1_000), "regression": (40, 100, 400, 1_000, 4_000)}
OF_A_BOOK = 300


def words_of(task: str, books: Path, glue: Path, folder: Path) -> list[str]:
    """The options of `openalbert finetune` that read a task."""
    if task != "books":
        return ["--task", task, "--data", str(glue), "--train-examples", "3000" if task == "sst2" else "1500"]
    usable = [
        sorted({line for line in book.split("\n") if len(line.split()) in WORDS_OF_A_PARAGRAPH})
        for book in books.read_text(encoding="utf-8").strip().split("\n\n")
    ]
    with (folder / "books.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number, book in enumerate(sorted(usable, key=len)[-BOOKS:]):
            chosen = np.random.default_rng(0).permutation(len(book))[:OF_A_BOOK]
            writer.writerows((book[one], f"book {number + 1}") for one in chosen)
    return ["--task", "classification", "--train", str(folder / "books.csv")]


def encode(model: str, words: list[str]) -> dict[str, np.ndarray]:
    """States and targets of the training examples and of those to score on."""
    settings = cli.parse(Finetune, "finetune", [model, *words, "--trainable", "head"])
    data = load_data(settings)
    settings, _ = resolve(settings, data, CPU)
    frozen, found = FrozenStates(make_model(data, settings), CPU), {}
    for name, split in (("train", data.train), ("dev", data.scored["dev"])):
        sequences = split.encoding.sequences
        found[f"{name}_states"] = frozen.of(name, sequences).numpy()
        [found[f"{name}_targets"]] = sequences.targets.values()
    return found


def draw(task: str, data: dict[str, np.ndarray], size: int, seed: int) -> tuple[np.ndarray, ...]:
    """Features and targets to train on, and features and targets to score on."""
    dice, targets = np.random.default_rng(seed), data["train_targets"]
    states, wanted = data["dev_states"], data["dev_targets"]
    if task == "books":
        states, targets = np.concatenate([data["train_states"], states]), np.concatenate([targets, wanted])
        of_books = [dice.permutation(np.flatnonzero(targets == one)) for one in range(BOOKS)]
        train = np.concatenate([of_book[: size // BOOKS] for of_book in of_books])
        test = np.concatenate([of_book[-100:] for of_book in of_books])
        states, wanted, given = states[test], targets[test], states[train]
    else:
        train = dice.permutation(len(targets))[:size]
        given = data["train_states"][train]
    mean, std = given.mean(0), given.std(0)
    std = np.maximum(std, 1e-3 * std.mean())
    return (given - mean) / std, targets[train], (states - mean) / std, wanted


def fitted(penalty: float, given: np.ndarray, targets: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The predictions of a head with this penalty."""
    if targets.dtype.kind == "f":
        return Ridge(alpha=penalty / 2).fit(np.tanh(given), targets).predict(np.tanh(states))  # type: ignore[no-any-return]
    classes = len(np.unique(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = LogisticRegression(C=(2 if classes == 2 else 1) / penalty, max_iter=500)
        return classifier.fit(np.tanh(given), targets).predict(np.tanh(states))  # type: ignore[no-any-return]


def stepwise(given: np.ndarray, targets: np.ndarray, states: np.ndarray, seed: int) -> np.ndarray:
    """The predictions of a head that was trained in steps."""
    torch.manual_seed(seed)
    is_regression = targets.dtype.kind == "f"
    width, outputs = given.shape[1], 1 if is_regression else int(targets.max()) + 1
    pooler, classifier = torch.nn.Linear(width, width), torch.nn.Linear(width, outputs)
    with torch.no_grad():
        torch.nn.init.eye_(pooler.weight)
        torch.nn.init.normal_(classifier.weight, std=0.02)
        pooler.bias.zero_()
        classifier.bias.zero_()
    weights, biases = [pooler.weight, classifier.weight], [pooler.bias, classifier.bias]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    optimizer, steps = torch.optim.AdamW(groups, lr=1e-3, eps=1e-6), 20 * len(given) // 16
    inputs, wanted = torch.from_numpy(given).float(), torch.from_numpy(targets)
    order = torch.cat([torch.randperm(len(given)) for _ in range(21)])
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min((step + 1) / (0.1 * steps), 1 - step / steps)
        chosen = order[16 * step : 16 * (step + 1)]
        hidden = torch.nn.functional.dropout(torch.tanh(pooler(inputs[chosen])), 0.1)
        logits = classifier(hidden)
        loss = (
            (logits[:, 0] - wanted[chosen]).square().mean()
            if is_regression
            else torch.nn.functional.cross_entropy(logits, wanted[chosen])
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*weights, *biases], 1.0)
        optimizer.step()
    with torch.no_grad():
        logits = classifier(torch.tanh(pooler(torch.from_numpy(states).float())))
    return (logits[:, 0] if is_regression else logits.argmax(1)).numpy()


def score(predicted: np.ndarray, wanted: np.ndarray) -> float:
    """Accuracy, or Pearson's correlation, times 100."""
    if wanted.dtype.kind == "f":
        return 100 * float(np.corrcoef(predicted, wanted)[0, 1])
    return 100 * float((predicted == wanted).mean())


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    """Means over the draws, and for each penalty the difference from the head that was trained in steps."""
    lines = ["| task, examples | way | mean | minus stepwise | two standard errors |", "|---|---|---|---|---|"]
    for name, ways in rows.items():
        for way, values in ways.items():
            apart = [one - other for one, other in zip(values, ways["stepwise"], strict=True)]
            error = 2 * statistics.stdev(apart) / len(apart) ** 0.5
            more = "– | –" if way == "stepwise" else f"{statistics.fmean(apart):+.1f} | {error:.1f}"
            lines.append(f"| {name} | {way} | {statistics.fmean(values):.1f} | {more} |".replace("-", "−"))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/head-penalty"))
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, list[float]]] = {}
    for task, sizes in SIZES.items():
        path = arguments.cache / f"{task}.npz"
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                words = words_of(task, arguments.books, arguments.glue, Path(folder))
                np.savez(path, **encode(arguments.model, words))
        data = dict(np.load(path))
        kind = "regression" if data["dev_targets"].dtype.kind == "f" else "classification"
        for size in sizes:
            ways = rows.setdefault(f"{task}, {size:,}", {})
            for seed in range(arguments.draws):
                given, targets, states, wanted = draw(task, data, size, seed)
                ways.setdefault("stepwise", []).append(score(stepwise(given, targets, states, seed), wanted))
                for penalty in PENALTIES[kind]:
                    predicted = fitted(penalty, given, targets, states)
                    ways.setdefault(f"penalty {penalty:,}", []).append(score(predicted, wanted))
            print(table({f"{task}, {size:,}": ways}), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"model": arguments.model, "draws": arguments.draws, "scores": rows}
    atomic_io.write_text(arguments.out / "run.json", json.dumps(result, indent=1) + "\n")
    atomic_io.write_text(arguments.out / "table.md", table(rows))


if __name__ == "__main__":
    main()
