"""Small data on two cores: minutes and accuracy of fine-tuning, of transformers' Trainer, and of linear classifiers.

    python bench/laptop.py --books corpus/heldout-books.txt --glue glue --out results/laptop
    python bench/laptop.py … --tasks books --sides head tfidf --seeds 5        # some cells; the others are kept
    python bench/laptop.py --table results/laptop                              # draw the table again

Tasks. *books*: 400 training and 400 test paragraphs of 30 to 120 words, 100 and 100 of each of the four books that have
the most such paragraphs; the class is the book. *sst2-N*: N training sentences of SST-2, tested on its dev set. Seed s
draws the paragraphs or sentences, without overlap, and is the seed of the training. Sides, each in a process of its own
that reads a CSV, learns, and predicts the test file:

- head, lora, all: `openalbert finetune --trainable …` with its defaults, a tenth of the training file held out;
- trainer: transformers' Trainer from the same weights, with our rate, batch, steps and patience, a tenth held out;
- sentence-transformers: mean of the last layer's states, and logistic regression, in fp32 as all other sides;
- sentence-transformers-bf16: the same in the type of the file, which is what it loads if nothing is said;
- tfidf: TF-IDF of words and pairs of words, and logistic regression.

A cell that is in laptop.json is not run again: the whole can be run in pieces. A cell that takes longer than --limit
minutes is stopped, and the table shows the limit; with a higher one it is run again. Wall seconds are those of the
process, from start to end; CPU seconds, its user and system time, are less disturbed by other work on the machine.
Needs `pip install "openalbert[bench]"`.
"""

import argparse
import csv
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.pretrained import bundled_folder, pretrained_names

WORDS_OF_A_PARAGRAPH = range(30, 121)
BOOKS, OF_EACH = 4, 100
TASKS = ("books", "sst2-200", "sst2-1000", "sst2-10000")
OURS = ("head", "lora", "all")
SIDES = ("tfidf", "head", "lora", "all", "trainer", "sentence-transformers", "sentence-transformers-bf16")
RESULT = "laptop.json"
Rows = list[tuple[str, str]]


def draw_books(file: Path, seed: int) -> tuple[Rows, Rows]:
    """Training and test paragraphs, 100 of each book in each, no paragraph twice."""
    books = []
    for text in file.read_text(encoding="utf-8").strip().split("\n\n"):
        usable = [one for one in text.split("\n") if len(one.split()) in WORDS_OF_A_PARAGRAPH]
        books.append(sorted(set(usable)))
    longest = sorted(range(len(books)), key=lambda number: -len(books[number]))[:BOOKS]
    dice, train, test = random.Random(seed), [], []
    for number in sorted(longest):
        drawn = [(text, f"book {number + 1}") for text in dice.sample(books[number], 2 * OF_EACH)]
        train += drawn[:OF_EACH]
        test += drawn[OF_EACH:]
    dice.shuffle(train)
    return train, test


def draw_sst2(glue: Path, number: int, seed: int) -> tuple[Rows, Rows]:
    """So many sentences of the training set, none of them in the dev set, and the dev set."""

    def read(name: str) -> Rows:
        with (glue / "SST-2" / name).open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        return [(text.strip(), ("negative", "positive")[int(label)]) for text, label in lines]

    test = read("dev.tsv")
    held = {text for text, _ in test}
    train = sorted({row for row in read("train.tsv") if row[0] not in held})
    return random.Random(seed).sample(train, number), test


def write_csv(path: Path, rows: Rows) -> None:
    """A file of texts and labels as a user has it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


# --- the sides: each reads two files and returns the accuracy on the second, in percent, and what else is worth noting


def read_csv(path: Path) -> tuple[list[str], list[str]]:
    """Texts and labels."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def ours(side: str, model: str, folder: Path, seed: int) -> dict[str, Any]:
    """`openalbert finetune`, then `openalbert evaluate` on the test file."""
    import openalbert

    run = openalbert.finetune(
        model,
        task="classification",
        train=folder / "train.csv",
        out=folder / "run",
        trainable=side,
        seed=seed,
        device="cpu",
    )
    scores = openalbert.evaluate(run, dev=folder / "test.csv", device="cpu")
    info = json.loads((folder / "run" / "run_info.json").read_text(encoding="utf-8"))
    return {"accuracy": scores["dev"]["accuracy"], "steps": info["actual"]["steps"], "budget": info["budget"]}


def tfidf(side: str, model: str, folder: Path, seed: int) -> dict[str, Any]:
    """Words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    classifier = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10, max_iter=1000)
    )
    classifier.fit(*read_csv(folder / "train.csv"))
    return {"accuracy": 100 * classifier.score(*read_csv(folder / "test.csv"))}


def sentence_transformers(side: str, model: str, folder: Path, seed: int) -> dict[str, Any]:
    """The same encoder's mean vectors, standardized, and logistic regression with its strength by cross-validation."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    dtype = torch.bfloat16 if side.endswith("bf16") else torch.float32
    encoder = Transformer(str(weights_of(model)), max_seq_length=512, model_kwargs={"dtype": dtype})
    embedder = SentenceTransformer(modules=[encoder, Pooling(encoder.get_word_embedding_dimension())], device="cpu")
    (train, labels), (test, wanted) = read_csv(folder / "train.csv"), read_csv(folder / "test.csv")
    classifier = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=[1e-3, 1e-2, 1e-1], max_iter=500))
    classifier.fit(embedder.encode(train), labels)
    return {"accuracy": 100 * classifier.score(embedder.encode(test), wanted)}


def trainer(side: str, model: str, folder: Path, seed: int) -> dict[str, Any]:
    """transformers' Trainer, dynamic padding, sorted by length."""
    import numpy as np
    import torch
    import transformers

    from openalbert.finetuning.settings import plan
    from openalbert.recipes.finetuning import defaults_for

    (texts, labels), (test, wanted) = read_csv(folder / "train.csv"), read_csv(folder / "test.csv")
    names, own = sorted(set(labels)), defaults_for("classification")
    order = random.Random(seed).sample(range(len(texts)), len(texts))
    held, kept = order[: len(texts) // 10], order[len(texts) // 10 :]
    planned = plan(own, len(kept), len(kept))
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights_of(model))
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        weights_of(model), num_labels=len(names), dtype=torch.float32
    )

    def rows(some: list[str], of: list[str]) -> list[dict[str, Any]]:
        ids = tokenizer(some, truncation=True, max_length=512)["input_ids"]
        return [{"input_ids": one, "labels": names.index(label)} for one, label in zip(ids, of, strict=True)]

    def accuracy(given: Any) -> dict[str, float]:
        return {"accuracy": float((np.argmax(given.predictions, 1) == given.label_ids).mean())}

    steps = planned.budget.steps or 1
    arguments = transformers.TrainingArguments(
        str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=planned.batch_size,
        per_device_eval_batch_size=32,
        learning_rate=own.recipe.learning_rate,
        warmup_steps=steps // 10,
        eval_strategy="steps",
        eval_steps=planned.evaluate_every,
        save_steps=planned.evaluate_every,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        seed=seed,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    learner = transformers.Trainer(
        network,
        arguments,
        train_dataset=rows([texts[one] for one in kept], [labels[one] for one in kept]),
        eval_dataset=rows([texts[one] for one in held], [labels[one] for one in held]),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[transformers.EarlyStoppingCallback(own.patience or 5)],
    )
    learner.train()
    found = learner.evaluate(rows(test, wanted))
    return {"accuracy": 100 * found["eval_accuracy"], "steps": learner.state.global_step, "budget": f"{steps} steps"}


def weights_of(model: str) -> str:
    """The folder of a bundled checkpoint, or the folder itself."""
    return str(bundled_folder(model) or model)


WORK = {
    **dict.fromkeys(OURS, ours),
    "tfidf": tfidf,
    "trainer": trainer,
    "sentence-transformers": sentence_transformers,
    "sentence-transformers-bf16": sentence_transformers,
}


# --- running the cells


def measure(side: str, model: str, folder: Path, seed: int, threads: int, limit: float) -> dict[str, Any]:
    """Run one side in a process of its own, for so many minutes at most, and time it."""
    result = folder / "result.json"
    words = [sys.executable, __file__, "--cell", side, model, str(folder), str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    started = time.perf_counter()
    child = os.posix_spawn(sys.executable, words, environment)
    timer = threading.Timer(60 * limit, os.kill, (child, signal.SIGKILL))
    timer.daemon = True
    timer.start()
    try:
        _, status, used = os.wait4(child, 0)
    finally:
        timer.cancel()
    wall = time.perf_counter() - started
    found: dict[str, Any] = {}
    if status == signal.SIGKILL and wall >= 60 * limit:
        found["is_stopped"] = True
    elif status:
        raise SystemExit(f"{side} with {model}: its process failed (status {status})")
    else:
        found = json.loads(result.read_text(encoding="utf-8"))
    return {**found, "wall_seconds": round(wall, 1), "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}


def run_cells(arguments: argparse.Namespace) -> None:
    """Run the cells that are asked for and not yet known, and write the table after each."""
    path = arguments.out / RESULT
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cells": {}}
    for task in arguments.tasks:
        for seed in range(1, arguments.seeds + 1):
            for side in arguments.sides:
                for model in arguments.models if side != "tfidf" else ["none"]:
                    key = f"{task} {side} {model} {seed}"
                    before = known["cells"].get(key)
                    may_go_on = before and "is_stopped" in before and 60 * arguments.limit > before["wall_seconds"]
                    if before and not may_go_on:
                        continue
                    with tempfile.TemporaryDirectory() as temporary:
                        folder = Path(temporary)
                        is_books = task == "books"
                        both = (
                            draw_books(arguments.books, seed)
                            if is_books
                            else draw_sst2(arguments.glue, int(task.split("-")[1]), seed)
                        )
                        for name, rows in zip(("train", "test"), both, strict=True):
                            write_csv(folder / f"{name}.csv", rows)
                        known["cells"][key] = measure(side, model, folder, seed, arguments.threads, arguments.limit)
                    known["threads"], known["machine"] = arguments.threads, platform.machine()
                    arguments.out.mkdir(parents=True, exist_ok=True)
                    atomic_io.write_text(path, json.dumps(known, indent=1) + "\n")
                    atomic_io.write_text(arguments.out / "table.md", table(known["cells"]))
                    print(key, known["cells"][key], flush=True)


def median(name: str, cells: list[dict[str, Any]]) -> float:
    """Of one number over some cells."""
    return statistics.median(cell.get(name, 0) for cell in cells)


def table(cells: dict[str, dict[str, Any]]) -> str:
    """Medians over the seeds, a row for each side and model."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for key, cell in cells.items():
        task, side, model, _ = key.split(" ")
        groups.setdefault((task, side, model), []).append(cell)
    lines = [
        "| task | side | model | accuracy | wall minutes | CPU minutes | steps | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (task, side, model), some in sorted(
        groups.items(), key=lambda one: (TASKS.index(one[0][0]), SIDES.index(one[0][1]))
    ):
        name = "–" if model == "none" else Path(model).name
        ended = [cell for cell in some if not cell.get("is_stopped")]
        if not ended:
            longest = max(cell["wall_seconds"] for cell in some)
            lines.append(f"| {task} | {side} | {name} | stopped | > {longest / 60:.1f} | – | – | {len(some)} |")
            continue
        steps = f"{median('steps', ended):.0f}" if "steps" in ended[0] else "–"
        lines.append(
            f"| {task} | {side} | {name} | {median('accuracy', ended):.1f} | "
            f"{median('wall_seconds', ended) / 60:.2f} | {median('cpu_seconds', ended) / 60:.2f} | "
            f"{steps} | {len(ended)} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, help="a file of five books or more, an empty line between them")
    parser.add_argument("--glue", type=Path, help="GLUE's folder")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--models", nargs="+", default=pretrained_names(), help="the bundled checkpoints if not given")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120.0, help="minutes after which a cell is stopped")
    parser.add_argument("--out", type=Path, default=Path("results/laptop"))
    parser.add_argument("--table", type=Path, help="only draw the table of a folder again")
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.cell:
        side, model, folder, seed = arguments.cell
        found = WORK[side](side, model, Path(folder), int(seed))
        (Path(folder) / "result.json").write_text(json.dumps(found), encoding="utf-8")
    elif arguments.table:
        cells = json.loads((arguments.table / RESULT).read_text(encoding="utf-8"))["cells"]
        atomic_io.write_text(arguments.table / "table.md", table(cells))
    else:
        for name, tasks in (("books", {"books"}), ("glue", set(TASKS[1:]))):
            if tasks & set(arguments.tasks) and getattr(arguments, name) is None:
                parser.error(f"these tasks need --{name}")
        run_cells(arguments)


if __name__ == "__main__":
    main()
