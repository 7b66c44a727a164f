"""Files of one's own that a tiny model learns in seconds: what is right can be told from single words."""

import csv
import json
import random
from pathlib import Path
from typing import Any

from tests.text.varied_lines import WORDS

from openalbert import cli
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import Pretraining
from openalbert.interop.weights import read_tensors
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.text.tokenizer import Tokenizer

TELLING = ("good", "war", "water", "school", "great", "key")
PLAIN = [word for word in WORDS if word.isalpha() and word.islower() and word not in TELLING]
KINDS = ("classification", "regression", "multi_label", "multiple_choice", "question_answering", "tagging")
# A tiny model with wide first weights learns fast at a rate that would ruin a large one.
STEPS = (
    "--steps 100 --batch-size 8 --optimizer.learning-rate 0.004 --schedule.warmup-fraction 0.1 --dropout 0 "
    "--classifier-dropout 0 "
)
SETTINGS = "--speed.threads 1 --no-baselines "


MADE_PRETRAINING = Pretraining(
    tokens=1_650_000_000,
    text_tokens=89_000_000,
    steps=30_000,
    minutes=21.5,
    device="1 x NVIDIA H200",
    precision="bf16",
    length=64,
)


def made_model(folder: Path, tokenizer: Tokenizer) -> Path:
    """A model folder as pretraining would leave it, untrained."""
    import torch

    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=32,
        hidden_size=64,
        num_layers=2,
        num_heads=2,
        ffn_size=128,
        max_positions=64,
        initializer_range=0.1,
    )
    huggingface.save(AlbertModel(config, PRETRAINING_HEADS), folder, tokenizer, pretraining=MADE_PRETRAINING)
    return folder


def lesson(kind: str, folder: Path, num_examples: int = 400, seed: int = 0, may_have_no_answer: bool = False) -> Path:
    """A file to learn a kind of task from."""
    dice = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "multiple_choice":
        rows = [_choice(dice) for _ in range(num_examples)]
        path = folder / "choices.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    if kind == "question_answering":
        path = folder / "questions.json"
        data = [_article(number, dice, may_have_no_answer) for number in range(num_examples // 4)]
        path.write_text(json.dumps({"data": data}))
        return path
    if kind == "tagging":
        path = folder / "words.conll"
        path.write_text("\n".join(_sentence(dice) for _ in range(num_examples)))
        return path
    path = folder / f"{kind}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for _ in range(num_examples):
            words = dice.choices(PLAIN, k=6) + dice.choices(TELLING[:5], k=2)
            dice.shuffle(words)
            writer.writerow((" ".join(words), _label(kind, words)))
    return path


def imbalanced(folder: Path, num_examples: int = 200, every: int = 20) -> Path:
    """A file in which one text in twenty is of the class Cancellation."""
    dice = random.Random(0)
    lines = ["text,label"]
    for number in range(num_examples):
        is_rare = number % every == 0
        words = [*dice.choices(PLAIN, k=5), "war" if is_rare else "school"]
        lines.append(f"{' '.join(words)},{'Cancellation' if is_rare else 'Other'}")
    path = folder / "imbalanced.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def _label(kind: str, words: list[str]) -> str:
    if kind == "classification":
        return "warm" if "good" in words else "cold"
    if kind == "regression":
        return str(float(words.count("great") + words.count("good")))
    return ";".join(word for word in ("war", "water", "school") if word in words)


def _choice(dice: random.Random) -> dict[str, Any]:
    options = [" ".join(dice.choices(PLAIN, k=3)) for _ in range(dice.choice((2, 3, 4)))]
    right = dice.randrange(len(options))
    options[right] += " good"
    return {"question": " ".join(dice.choices(PLAIN, k=4)), "options": options, "answer": right}


def _sentence(dice: random.Random) -> str:
    """CoNLL: `water` and `school` are places, and `key` is a thing together with the word after it."""
    words = dice.choices(PLAIN, k=6) + dice.choices(("water", "school", "key"), k=2)
    dice.shuffle(words)
    lines, is_after_key = [], False
    for word in words:
        tag = "B-place" if word in ("water", "school") else "B-thing" if word == "key" else "O"
        lines.append(f"{word}\t{'I-thing' if is_after_key and tag == 'O' else tag}\n")
        is_after_key = word == "key"
    return "".join(lines)


def _article(number: int, dice: random.Random, may_have_no_answer: bool) -> dict[str, Any]:
    paragraphs = []
    for turn in range(4):
        words = dice.choices(PLAIN, k=10)
        place = dice.randrange(1, 9)
        answer = words[place]
        has_answer = not (may_have_no_answer and turn % 2)
        words.insert(place, "key" if has_answer else "war")
        passage = " ".join(words)
        start = len(" ".join(words[: place + 1])) + 1
        question: dict[str, Any] = {"id": f"{number}-{turn}", "question": "what is good", "answers": []}
        if has_answer:
            question["answers"] = [{"text": answer, "answer_start": start}]
        if may_have_no_answer:
            question["is_impossible"] = not has_answer
        paragraphs.append({"context": passage, "qas": [question]})
    return {"title": f"article {number}", "paragraphs": paragraphs}


def command(model: Path | str, kind: str, train: Path, out: Path, words: str = "") -> list[str]:
    """The words after `openalbert`; later ones win. A head that is fitted at once takes no steps."""
    line = ["finetune", str(model), "--task", kind, "--train", str(train), "--out", str(out)]
    settings = SETTINGS if "--trainable head" in words else STEPS + SETTINGS
    return [*line, *settings.split(), *words.split()]


def learn(model: Path | str, kind: str, train: Path, out: Path, words: str = "") -> dict[str, Any]:
    """Carry out a run in this process, and give its scores."""
    cli.main(command(model, kind, train, out, words))
    scores: dict[str, Any] = json.loads((out / "scores.json").read_text())
    return scores


def records(out: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def learned(out: Path) -> list[dict[str, Any]]:
    """All that a run has recorded but the times."""
    times = ("seconds", "tokens_per_second", "mfu")
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in times} for line in lines]


def weights(out: Path) -> dict[str, Any]:
    """The weights that a run ends with."""
    return read_tensors(out / "model" / "model.safetensors")
