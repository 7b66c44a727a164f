"""Small made-up data of every task, in the layouts in which they are published or in which a user may bring them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openalbert.tasks.registry import GLUE, TaskSource

SENTENCES = (
    "The house is old.",
    "It was found again.",
    "Nobody knows why, or how.",
    'He said "so it is".',
    "A man ran.",
)


def write_tsv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in ([header] if header else []) + list(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def glue_files(root: Path, name: str, rows: int = 6) -> Path:
    """GLUE's own files of a task: a folder below `root` with its names, columns and quoting."""
    task = GLUE[name]
    folder = root / task.folder
    codes = task.codes or task.labels or ("0.000", "2.500", "5.000")
    for split, (pattern, *_) in task.files.items():
        if split == "heldout" or split == "test_diagnostic":
            continue
        is_test = split.startswith("test")
        table = []
        for number in range(rows):
            first, second = SENTENCES[number % 5] + f" {split} {number}", SENTENCES[(number + 1) % 5]
            code = codes[number % len(codes)]
            table.append(_glue_row(name, number, first, second, code, is_test))
        write_tsv(folder / pattern, _glue_header(name, is_test), table)
    return root


def _glue_header(name: str, is_test: bool) -> tuple[str, ...]:
    if name == "cola":
        return ("index", "sentence") if is_test else ()
    if name == "sst2":
        return ("index", "sentence") if is_test else ("sentence", "label")
    if name == "mrpc":
        return ("index" if is_test else "Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    header = {
        "stsb": ("index", "genre", "sentence1", "sentence2", "score"),
        "qqp": ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        "mnli": ("index", "promptID", "pairID", "genre", "sentence1", "sentence2", "label1", "gold_label"),
        "qnli": ("index", "question", "sentence", "label"),
        "rte": ("index", "sentence1", "sentence2", "label"),
        "wnli": ("index", "sentence1", "sentence2", "label"),
    }[name]
    if not is_test:
        return header
    return ("id", "question1", "question2") if name == "qqp" else header[: -2 if name == "mnli" else -1]


def _glue_row(name: str, number: int, first: str, second: str, code: str, is_test: bool) -> tuple[object, ...]:
    if name == "cola":
        return (number, first) if is_test else ("made", code, "*" if code == "0" else "", first)
    if name == "sst2":
        return (number, first) if is_test else (first + " ", code)
    if name == "mrpc":
        return (number if is_test else code, 1000 + number, 2000 + number, first, second)
    if name == "qqp":
        quoted = ['"' + text.replace('"', '""') + '"' if '"' in text else text for text in (first, second)]
        return (number, *quoted) if is_test else (number, number, number + 9, *quoted, code)
    middle: tuple[object, ...] = {"mnli": (number, "1e", "slate"), "stsb": ("main-news",)}.get(name, ())
    label = (code, code) if name == "mnli" else (code,)
    return (number, *middle, first, second, *(() if is_test else label))


def squad_json(articles: int, questions: int, without_answer: bool = False) -> dict[str, Any]:
    """SQuAD's JSON: a passage an article; every second question has no answer if some may have none."""
    data = []
    for number in range(articles):
        passage = f"The  tower number {number} was built in {1800 + number}, by the people of Ä{number}."
        qas = []
        for turn in range(questions):
            texts = [str(1800 + number), f"in {1800 + number}"] if turn % 3 < 2 else [f"the people of Ä{number}"]
            impossible = without_answer and turn % 2 == 1
            answers = [] if impossible else [{"text": text, "answer_start": passage.index(text)} for text in texts]
            question = {"id": f"{number}-{turn}", "question": f"When was it built? {turn}", "answers": answers}
            qas.append({**question, "is_impossible": impossible} if without_answer else question)
        data.append({"title": f"Tower_{number}", "paragraphs": [{"context": passage, "qas": qas}]})
    return {"version": "v2.0" if without_answer else "1.1", "data": data}


def squad_files(root: Path, version: str) -> Path:
    folder = root / "squad"
    folder.mkdir(parents=True, exist_ok=True)
    for split, articles in (("train", 4), ("dev", 3), ("test", 2)):
        whole = squad_json(articles, 4, without_answer=version == "2.0")
        (folder / f"{split}-v{version}.json").write_text(json.dumps(whole))
    return root


def race_passage(number: int, school: str) -> dict[str, Any]:
    return {
        "id": f"{school}{number}.txt",
        "article": f"Passage {number} tells of a {school} school.\nIt is short.",
        "questions": [f"What is it about {turn} _ ?" for turn in range(3)],
        "options": [["a school", "a house", "a war", "a dog"]] * 3,
        "answers": ["A", "D", "B"],
    }


def race_folders(root: Path) -> Path:
    """RACE as it is published: a file a passage, below the split and the school."""
    for split in ("train", "dev", "test"):
        for school in ("middle", "high"):
            folder = root / "RACE" / split / school
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(2):
                (folder / f"{number}.txt").write_text(json.dumps(race_passage(number, school)))
    return root


def custom_rows(kind: str, count: int = 12) -> list[dict[str, Any]]:
    """Rows of a user's own file, as JSONL would have them."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        text = f"{SENTENCES[number % 5]} Number {number}."
        rows.append(
            {
                "classification": {"text": text, "label": ("good", "bad", "so-so")[number % 3]},
                "regression": {"text": text, "score": number / 4},
                "multi_label": {"text": text, "labels": ["old", "new", "odd"][: number % 4]},
                "multiple_choice": {
                    "question": f"What is {number}?",
                    "options": [str(number + turn) for turn in range(3)],
                    "answer": "ABC"[number % 3],
                },
                "question_answering": {
                    "context": f"In {1900 + number} it was built.",
                    "question": "When?",
                    "answer": str(1900 + number) if number % 4 else "",
                },
                "similarity": {"anchor": text, "positive": f"It is {number}.", "negative": f"Not {number}."},
                "tagging": {"tokens": text.split(), "ner_tags": ["B-the", *["O"] * (len(text.split()) - 1)]},
            }[kind]
        )
    return rows


def made_source(name: str, root: Path) -> TaskSource:
    """Where a task of this name finds all its splits, written there first."""
    if name in GLUE:
        return TaskSource(data=glue_files(root, name))
    if name.startswith("squad"):
        return TaskSource(data=squad_files(root, {"squad1": "1.1", "squad2": "2.0"}[name]))
    if name.startswith("race"):
        return TaskSource(data=race_folders(root))
    for split in ("train", "dev", "test"):
        write_jsonl(root / f"{split}.jsonl", custom_rows(name))
    return TaskSource(train=root / "train.jsonl", dev=root / "dev.jsonl", test=root / "test.jsonl")
