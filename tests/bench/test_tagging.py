"""WNUT-17 against the Trainer: its side labels first pieces as run_ner.py does; the page has a row for each side."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import numpy as np
import tagging
import transformers

from openalbert.interop.huggingface import find_folder
from openalbert.tasks.custom.tagging import join_words
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.task import UNLABELLED, TaggingExample

LABELS = ("O", "B-place", "I-place")


def test_words_of_the_other_side_have_one_label_each_and_score_as_they_are_decided(tmp_path: Path) -> None:
    words, tags = ["Nobody", "left", "@Springfieldsville", "."], ("O", "O", "B-place", "O")
    (tmp_path / "train.conll").write_text("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)))
    task = open_task("tagging", TaskSource(train=tmp_path / "train.conll", dev=tmp_path / "train.conll"))
    text, spans = join_words(words)
    example = TaggingExample("a", text, spans, tags)
    tokenizer = transformers.AutoTokenizer.from_pretrained(find_folder("albert-base-wikibooks"))
    data = tagging.Words([example], tokenizer, LABELS)
    [row] = data.rows
    labels = np.array(row["labels"])
    assert [LABELS[label] for label in labels[labels != UNLABELLED]] == list(tags)
    logits = np.zeros((1, len(labels) + 3, len(LABELS)))  # as padded
    logits[0, np.arange(len(labels)), np.maximum(labels, 0)] = 1
    assert tagging.scored(task, data, [example], logits)["f1"] == 100


def test_the_page_has_a_row_for_each_side() -> None:
    plan = tagging.Plan("my-model", Path("wnut17"), Path("runs"), 5, 16, 5e-5, 0.1, 10, "cpu")
    scores = {"f1": 30.0, "precision": 40.0, "recall": 24.0}
    runs = [{"dev": scores, "test": {**scores, "f1": 30.0 + seed}, "seconds": 9.0} for seed in range(3)]
    info = {"command": "python …", "steps": 100, "device": "CPU", "torch": "2", "transformers": "5"}
    page = tagging.report(plan, dict.fromkeys(tagging.SIDES, runs), info)
    assert page.count("| 3 | 31.00 | 31.00 | 1.00 | 30.00 | 32.00 |") == 2
    for heading in ("## Result", "## Setup", "## Limits"):
        assert heading in page
