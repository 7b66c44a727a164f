"""Embeddings after contrastive training and after STS-B: Spearman on STS-B, and search for the answers of QNLI.

    python bench/similarity.py albert-base-wikibooks --glue glue --out results/similarity
    python bench/similarity.py … --only untrained nli --more "--minutes 7 --batch-size 32 --max-length 48"

Each row is one run of `openalbert finetune --task similarity`: pairs of NLI (entailment), triplets of NLI (entailment,
and contradiction as hard negative; most of them are of MNLI's dev set, for few premises are twice in the subset of
train), duplicates of QQP, paraphrases of MRPC, questions of QNLI with the sentence that answers them, all pairs
together, the scored pairs of STS-B, and STS-B after all pairs. Weights are selected on STS-B dev. Rows are added to
what run.json has; a finished run in --runs is not trained again.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from embeddings import answered_questions, cosines, mean_reciprocal_rank, sts_pairs

import openalbert
from openalbert.tasks.metrics import spearman

NUM_QUESTIONS = 1000
STAGES = ("untrained", "nli", "nli-triplets", "qqp", "mrpc", "qnli", "all-pairs", "stsb", "stsb-after-pairs")
ABOUT = {
    "untrained": "none, the default (weighted mean, an early layer)",
    "untrained-mean": "none, mean of the last layer",
    "nli": "NLI, entailment pairs",
    "nli-triplets": "NLI, triplets",
    "qqp": "QQP, duplicates",
    "mrpc": "MRPC, paraphrases",
    "qnli": "QNLI, question and answer",
    "all-pairs": "all pairs",
    "stsb": "STS-B",
    "stsb-after-pairs": "all pairs, then STS-B",
}
Rows = list[tuple[str, ...]]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of one of GLUE's files."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def training_rows(glue: Path) -> dict[str, Rows]:
    """The training rows of each stage that has data of its own."""
    nli = rows_of(glue / "MNLI" / "train_subset9k.tsv")
    by_premise: dict[str, dict[str, str]] = {}
    for row in (*nli, *rows_of(glue / "MNLI" / "dev_matched.tsv")):
        label = row.get("label") or row.get("gold_label") or ""
        by_premise.setdefault(row["sentence1"], {})[label] = row["sentence2"]
    pairs = {
        "nli": [(row["sentence1"], row["sentence2"]) for row in nli if row["label"] == "entailment"],
        "qqp": [
            (row["question1"], row["question2"])
            for row in rows_of(glue / "QQP" / "train_subset9k.tsv")
            if row["label"] in ("1", "duplicate")
        ],
        "mrpc": [
            (row["#1 String"], row["#2 String"])
            for row in rows_of(glue / "MRPC" / "train.tsv")
            if row["Quality"] == "1"
        ],
        "qnli": [
            (row["question"], row["sentence"])
            for row in rows_of(glue / "QNLI" / "train_subset9k.tsv")
            if row["label"] == "entailment"
        ],
    }
    found: dict[str, Rows] = {
        **pairs,
        "nli-triplets": [
            (premise, of_premise["entailment"], of_premise["contradiction"])
            for premise, of_premise in by_premise.items()
            if {"entailment", "contradiction"} <= of_premise.keys()
        ],
        "all-pairs": [row for rows in pairs.values() for row in rows],
        "stsb": [
            (row["sentence1"], row["sentence2"], row["score"])
            for row in rows_of(glue / "STS-B" / "train.tsv")
            if row["score"]
        ],
    }
    return {**found, "stsb-after-pairs": found["stsb"]}


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def train(model: str, stage: str, rows: Rows, dev: Path, runs: Path, more: str) -> dict[str, Any]:
    """Train a stage, unless it is done; returns what is known of the run."""
    is_scored = stage.startswith("stsb")
    header = ("sentence1", "sentence2", "score") if is_scored else ("anchor", "positive", "negative")[: len(rows[0])]
    file, out = write_csv(runs / "data" / f"{stage}.csv", header, rows), runs / stage
    words = ["finetune", model, "--task", "similarity", "--train", str(file), "--dev", str(dev), "--out", str(out)]
    words += ["--from", str(runs / "all-pairs")] if stage == "stsb-after-pairs" else []
    subprocess.run([sys.executable, "-m", "openalbert", *words, *shlex.split(more)], check=True)
    run_info = json.loads((out / "run_info.json").read_text())
    scores = json.loads((out / "scores.json").read_text())
    return {
        "examples": len(rows),
        "steps": scores["steps"],
        "batch_size": run_info["batch_size"],
        "device": run_info["device"],
        "settings": more,
    }


def scored(model: Any, glue: Path, **how: Any) -> dict[str, float]:
    """Spearman on STS-B, and the mean reciprocal rank of answers."""
    found: dict[str, float] = {}
    for split in ("dev", "test"):
        first, second, gold = sts_pairs(glue / "STS-B" / f"sts-{split}.csv")
        found[split] = round(spearman(gold, cosines(model.embed(first, **how), model.embed(second, **how))), 2)
    questions, sentences = answered_questions(glue / "QNLI" / "dev.tsv", NUM_QUESTIONS)
    found["search"] = round(mean_reciprocal_rank(model.embed(questions, **how), model.embed(sentences, **how)), 2)
    return found


def report(run: dict[str, Any]) -> str:
    """report.md from run.json."""
    rows = {name: run["rows"][name] for name in ABOUT if name in run["rows"]}
    missing = [ABOUT[name] for name in ABOUT if name not in rows]
    best, search = (max(rows, key=lambda name: rows[name].get(key) or 0.0) for key in ("test", "search"))
    lines = [
        "# Similarity: embeddings before and after training",
        "",
        "## Result",
        "",
        f"Best on STS-B test: {ABOUT[best]} ({rows[best]['test']:.1f}). Best in search: {ABOUT[search]} "
        f"({rows[search]['search']:.1f}).",
        "",
        "| trained on | examples | steps | batch | STS-B dev | STS-B test | search |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        counts = [f"{row[key]:,}" if key in row else "–" for key in ("examples", "steps", "batch_size")]
        values = [f"{row[key]:.1f}" if key in row else "–" for key in ("dev", "test", "search")]
        lines.append(f"| {ABOUT[name]} | {' | '.join((*counts, *values))} |")
    trained = [row for row in rows.values() if "device" in row]
    settings = [f"`{row['settings']}`" if row["settings"] else "the defaults" for row in trained]
    used = sorted({f"{row['device']}, {given}" for row, given in zip(trained, settings, strict=True)})
    lines += [
        "",
        "STS-B: Spearman x 100 of the cosine with the score. Search: mean reciprocal rank x 100 of the sentence that "
        f"answers a question of QNLI dev among {NUM_QUESTIONS:,}.",
        "",
        "## Setup",
        "",
        f"`python bench/similarity.py {run['model']} --glue glue --out results/similarity`, torch {run['torch']}. "
        + (f"Trained on: {'; '.join(used)}. " if used else "")
        + "In-batch negatives at temperature 0.05 for pairs and triplets, CoSENT for scores, mean of the last layer, "
        "one seed; weights selected on STS-B dev. " + " ".join(run.get("notes", [])),
        "",
        "## Limits",
        "",
        "One seed. MNLI, QQP and QNLI are subsets of 9,000 rows; the triplets of NLI are mostly from MNLI's dev set. "
        "The search task has one right sentence a question, from the article that the question was written for."
        + (f" Not run yet: {'; '.join(missing)}." if missing else ""),
    ]
    return "\n".join(line if line.startswith("|") else fill(line, 120) for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/similarity"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--more", default="", help="further words for `openalbert finetune`, in one string")
    parser.add_argument("--dev-pairs", type=int, default=1500, help="pairs of STS-B dev that select the weights")
    arguments = parser.parse_args()
    path = arguments.out / "run.json"
    run = json.loads(path.read_text()) if path.exists() else {"model": arguments.model, "rows": {}}
    run["torch"] = torch.__version__
    first, second, gold = sts_pairs(arguments.glue / "STS-B" / "sts-dev.csv")
    dev_rows = list(zip(first, second, gold.tolist(), strict=True))[:: max(1, len(gold) // arguments.dev_pairs)]
    dev = write_csv(arguments.runs / "data" / "stsb-dev.csv", ("sentence1", "sentence2", "score"), dev_rows)
    rows = training_rows(arguments.glue)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for stage in arguments.only:
        started = time.perf_counter()
        found: dict[str, Any] = {}
        if stage == "untrained":
            model = openalbert.load(arguments.model)
            layers = model.config.num_layers
            run["rows"]["untrained-mean"] = scored(model, arguments.glue, pooling="mean", layer=layers)
        else:
            found = train(arguments.model, stage, rows[stage], dev, arguments.runs, arguments.more)
            model = openalbert.load(arguments.runs / stage)
        if torch.cuda.is_available():
            model.to("cuda")
        found |= scored(model, arguments.glue)
        run["rows"][stage] = {**found, "minutes": round((time.perf_counter() - started) / 60, 1)}
        print(stage, json.dumps(run["rows"][stage]), flush=True)
        path.write_text(json.dumps(run, indent=1) + "\n")
        (arguments.out / "report.md").write_text(report(run))
    print(report(run))


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
