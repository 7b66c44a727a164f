"""Can a model fine-tuned on SQuAD 2.0 separate the questions that have an answer from those that have none?

    python bench/answerability.py NAME=QUESTIONS.json=PREDICTIONS … --out FOLDER

QUESTIONS is a file in SQuAD's form, PREDICTIONS the folder that `openalbert evaluate MODEL --dev QUESTIONS
--predictions PREDICTIONS` wrote. The null score says how sure the model is that there is no answer. Its AUC is the
chance that of two questions, one with an answer and one without, the one without has the higher score: 50 % is no
better than a coin. Beside it the F1 of saying nothing at all, of always answering, and of the best threshold there is:
one that is chosen with the gold answers in hand, which nobody has, so that no other can do better.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from openalbert.finetuning.question_answering.null_threshold import best_cut
from openalbert.tasks.squad import score_answers


def look_at(questions: Path, predictions: Path) -> dict[str, Any]:
    """What a model's null scores and answers are worth on these questions."""
    articles = json.loads(questions.read_text(encoding="utf-8"))["data"]
    gold = {
        question["id"]: tuple(answer["text"] for answer in question["answers"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    (odds_file,) = predictions.glob("*_null_odds.json")
    (best_file,) = predictions.glob("*_nbest.json")
    odds, best = (json.loads(file.read_text(encoding="utf-8")) for file in (odds_file, best_file))
    names = [name for name in gold if name in odds]
    null = np.array([odds[name] for name in names])
    has_answer = np.array([bool(gold[name]) for name in names])
    given = [best[name][0]["text"] if best[name] else "" for name in names]
    answered = np.array(
        [score_answers([gold[name]], [text], True)["f1"] for name, text in zip(names, given, strict=True)]
    )
    silent = np.where(has_answer, 0.0, 100.0)
    cut = best_cut(null, answered, silent)
    of_pairs = mannwhitneyu(null[~has_answer], null[has_answer]).statistic
    return {
        "articles": len(articles),
        "questions": len(names),
        "auc": 100 * of_pairs / (has_answer.sum() * (~has_answer).sum()),
        "f1_of_answers_where_there_is_one": answered[has_answer].mean(),
        "f1_silent": silent.mean(),
        "f1_always_answering": answered.mean(),
        "best_threshold": cut,
        "f1_at_best_threshold": np.where(null > cut, silent, answered).mean(),
        "answered_at_best_threshold": int((null <= cut).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("looks", nargs="+", metavar="NAME=QUESTIONS=PREDICTIONS")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = {name: look_at(Path(questions), Path(folder)) for name, questions, folder in map(split, arguments.looks)}
    lines = [
        "| evaluated on | articles, questions | AUC of the null score | F1 of the answers, where there is one | "
        "F1 silent | always answering | at the best threshold |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['articles']}, {row['questions']:,} | {row['auc']:.1f} % | "
            f"{row['f1_of_answers_where_there_is_one']:.1f} | {row['f1_silent']:.1f} | "
            f"{row['f1_always_answering']:.1f} | {row['f1_at_best_threshold']:.1f}, "
            f"answering {row['answered_at_best_threshold']:,} |"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "answerability.json").write_text(json.dumps(rows, indent=2) + "\n")
    print("\n".join(lines))


def split(look: str) -> tuple[str, str, str]:
    """Name, questions and predictions of a look."""
    name, questions, predictions = look.split("=")
    return name, questions, predictions


if __name__ == "__main__":
    main()
