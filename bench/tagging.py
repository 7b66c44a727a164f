"""WNUT-17 test F1 of our fine-tuning and of Hugging Face's Trainer, from the same checkpoint, with the same settings.

    python bench/tagging.py albert-base-wikibooks --data wnut17 --out results/wnut17

The folder has train.conll, dev.conll and test.conll. Both sides keep the weights of the best dev F1. The Trainer's side
is the way of transformers' run_ner.py: words split by the file, a label on the first piece of each, most likely tags,
scored by seqeval. Our scorer gives both sides' numbers, and seqeval must agree on them. A run that is in runs.json is
not run again: the whole can be run in pieces, and --seeds can grow.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch

import openalbert
from openalbert import atomic_io
from openalbert.interop.huggingface import find_folder
from openalbert.recipes.finetuning import defaults_for
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.tags import count_matches, gold_tags, tag_scores
from openalbert.tasks.task import UNLABELLED, TaggingExample, Task

SIDES = ("openalbert", "transformers")
METRICS = ("f1", "precision", "recall")


@dataclass(frozen=True)
class Plan:
    """What both sides are given."""

    model: str
    data: Path
    runs: Path
    epochs: float
    batch_size: int
    learning_rate: float
    warmup_fraction: float
    evaluations: int
    device: str

    def source(self) -> TaskSource:
        """The files to learn from and to select by."""
        return TaskSource(train=self.data / "train.conll", dev=self.data / "dev.conll")

    def test(self) -> TaskSource:
        """The test file in the place of dev: its labels are read, and it selects nothing."""
        return TaskSource(train=self.data / "train.conll", dev=self.data / "test.conll")


def ours(plan: Plan, seed: int) -> dict[str, Any]:
    """Fine-tune with openalbert, and score the model that it keeps."""
    started = time.perf_counter()
    steps = num_steps(plan)
    run = openalbert.finetune(
        plan.model,
        task="tagging",
        train=plan.data / "train.conll",
        dev=plan.data / "dev.conll",
        out=plan.runs / f"openalbert-{seed}",
        steps=steps,
        batch_size=plan.batch_size,
        learning_rate=plan.learning_rate,
        schedule__warmup_fraction=plan.warmup_fraction,
        evaluate_every=max(1, steps // plan.evaluations),
        patience=None,
        seed=seed,
        device=plan.device,
        fresh=True,
    )
    seconds = time.perf_counter() - started
    scores = openalbert.evaluate(run, task="tagging", dev=plan.data / "test.conll", device=plan.device)["dev"]
    return {"test": scores, "dev": run.scores["dev"], "seconds": seconds}


def num_steps(plan: Plan) -> int:
    examples = len(open_task("tagging", plan.source()).read("train").examples)
    return max(1, round(plan.epochs * examples / plan.batch_size))


class Words(torch.utils.data.Dataset[dict[str, Any]]):
    """Sentences as run_ner.py prepares them."""

    def __init__(self, examples: list[TaggingExample], tokenizer: Any, labels: tuple[str, ...]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.words: list[set[int]] = []
        """Of each sentence the words that have a piece."""
        for example in examples:
            words = [example.text[start:end] for start, end in example.words]
            encoded = tokenizer(words, is_split_into_words=True, truncation=True)
            wanted, before = [], None
            for word in encoded.word_ids():
                is_first = word is not None and word != before
                wanted.append(labels.index((example.tags or ())[word]) if is_first else UNLABELLED)
                before = word
            self.rows.append({**encoded, "labels": wanted})
            self.words.append({word for word in encoded.word_ids() if word is not None})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


def theirs(plan: Plan, seed: int) -> dict[str, Any]:
    """Fine-tune with Hugging Face's Trainer, and score the model that it keeps."""
    import transformers

    started = time.perf_counter()
    task, test = open_task("tagging", plan.source()), open_task("tagging", plan.test())
    folder = find_folder(plan.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    transformers.set_seed(seed)
    names = {"id2label": dict(enumerate(task.labels)), "label2id": {name: n for n, name in enumerate(task.labels)}}
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32, **names)
    splits = {"train": task.read("train"), "dev": task.read("dev"), "test": test.read("dev")}
    data = {
        split: Words([one for one in reading.examples if isinstance(one, TaggingExample)], tokenizer, task.labels)
        for split, reading in splits.items()
    }
    steps = num_steps(plan)
    every = max(1, steps // plan.evaluations)
    is_cuda = plan.device != "cpu"
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=plan.batch_size,
        per_device_eval_batch_size=64,
        max_steps=steps,
        learning_rate=plan.learning_rate,
        warmup_steps=round(plan.warmup_fraction * steps),
        weight_decay=0.01,
        adam_epsilon=1e-6,
        max_grad_norm=1.0,
        lr_scheduler_type="linear",
        bf16=is_cuda,
        use_cpu=not is_cuda,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="f1",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        seed=seed,
    )

    def measure(found: Any) -> dict[str, float]:
        return scored(task, data["dev"], splits["dev"].examples, found.predictions)

    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
        compute_metrics=measure,
        processing_class=tokenizer,
    )
    trainer.train()
    seconds = time.perf_counter() - started
    trainer.compute_metrics = None  # it scores dev
    by_split = {
        split: scored(task, data[split], splits[split].examples, trainer.predict(data[split]).predictions)
        for split in ("dev", "test")
    }
    return {**by_split, "seconds": seconds}


def scored(task: Task, data: Words, examples: Any, logits: np.ndarray) -> dict[str, float]:
    """Scores of the most likely tags, as they are; seqeval must give the same."""
    import seqeval.metrics

    gold, predicted = gold_tags(examples), []
    for row, of_row, words, tags in zip(data.rows, logits, data.words, gold, strict=True):
        best = iter(of_row[: len(row["labels"])].argmax(1)[np.array(row["labels"]) != UNLABELLED])
        # A word without a piece is outside.
        predicted.append([task.labels[next(best)] if word in words else "O" for word in range(len(tags))])
    counts = count_matches(gold, predicted)
    found = {name: float(value) for name, value in tag_scores(counts.sum(0), True).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where nothing was predicted
        peer = 100 * seqeval.metrics.f1_score([list(tags) for tags in gold], predicted)
    assert abs(found["f1"] - peer) < 1e-6, (found, peer)
    return found


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def report(plan: Plan, found: dict[str, list[dict[str, Any]]], info: dict[str, Any]) -> str:
    """The page of the results."""
    lines = ["# WNUT-17: entities in tweets and comments", "", "## Result", ""]
    lines += [
        "Entity F1 on test, in percent.",
        "",
        "| | seeds | median | mean | standard deviation | lowest | highest |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for side in SIDES:
        values = [one["test"]["f1"] for one in found[side]]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        numbers = (statistics.median(values), statistics.mean(values), spread, min(values), max(values))
        lines.append(f"| {side} | {len(values)} | " + " | ".join(f"{value:.2f}" for value in numbers) + " |")
    if all(len(found[side]) > 1 for side in SIDES):
        means, errors = zip(
            *(mean_and_error([one["test"]["f1"] for one in found[side]]) for side in SIDES), strict=True
        )
        error = math.hypot(*errors)
        lines += ["", f"Difference of the means: {means[0] - means[1]:.1f} points, standard error {error:.1f}."]
    lines += [
        "",
        "Median of each metric:",
        "",
        "| | " + " | ".join(f"{s} {m}" for s in ("dev", "test") for m in METRICS),
    ]
    lines[-1] += " | seconds |"
    lines += ["|---|" + "---|" * 7]
    for side in SIDES:
        cells = [
            f"{statistics.median(one[split][metric] for one in found[side]):.2f}"
            for split in ("dev", "test")
            for metric in METRICS
        ]
        seconds = statistics.median(one["seconds"] for one in found[side])
        lines.append(f"| {side} | {' | '.join(cells)} | {seconds:.0f} |")
    lines += [
        "",
        "## Setup",
        "",
        f"`{info['command']}`: {plan.model}, {info['steps']:,} steps of batch {plan.batch_size} ({plan.epochs:g} "
        f"epochs), learning rate {plan.learning_rate:g}, warm-up {plan.warmup_fraction:g}, linear decay, AdamW; the "
        f"weights of the best of {plan.evaluations} evaluations on dev. {info['device']}, torch {info['torch']}, "
        f"transformers {info['transformers']}. Every run is in runs.json.",
        "",
        "## Limits",
        "",
        "The vocabulary is lower-cased, so capitals, which mark names, are not seen. One dataset of short, noisy "
        "texts, whose test has other entities than train on purpose. Seconds include reading, evaluations and "
        "checkpoints, and depend on what else runs.",
        "",
    ]
    return "\n".join(line if line.startswith("|") else fill(line, 120, break_on_hyphens=False) for line in lines)


def main() -> None:
    recipe = defaults_for("tagging")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/wnut17"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=recipe.recipe.epochs)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=recipe.recipe.learning_rate)
    parser.add_argument("--evaluations", type=int, default=10)
    given = parser.parse_args()
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = Plan(
        given.model,
        given.data,
        given.runs,
        given.epochs,
        given.batch_size,
        given.learning_rate,
        recipe.schedule.warmup_fraction or 0.0,
        given.evaluations,
        device,
    )
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    info = {
        "command": f"python bench/tagging.py {plan.model} --data wnut17 --epochs {given.epochs:g} "
        f"--evaluations {given.evaluations} --out {given.out}",
        "steps": num_steps(plan),
        "batch_size": plan.batch_size,
        "learning_rate": plan.learning_rate,
        "device": name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path = given.out / "runs.json"
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    if path.exists():
        known = json.loads(path.read_text())
        found = known.pop("runs")
        if known != info:
            parser.error(f"{path} has runs of other settings or another machine ({known}): name another --out")
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in range(1, given.seeds + 1):  # in turn, so that whatever slows the machine down slows both
        for side, run in zip(SIDES, (ours, theirs), strict=True):
            if any(one["seed"] == seed for one in found[side]):
                continue
            found[side].append({"seed": seed, **run(plan, seed)})
            print(f"{side}, seed {seed}: test F1 {found[side][-1]['test']['f1']:.2f}", flush=True)
            atomic_io.write_text(path, json.dumps({**info, "runs": found}, indent=1) + "\n")
            if all(found.values()):
                atomic_io.write_text(given.out / "report.md", report(plan, found, info))


if __name__ == "__main__":
    main()
