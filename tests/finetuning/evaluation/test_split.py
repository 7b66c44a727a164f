"""From a split to metrics: what is decided, and what is reported of it."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.finetuning.made_lessons import imbalanced, learn, lesson
from tests.finetuning.micro_models import micro_model
from tests.report.parsed_page import Page
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert import cli
from openalbert.finetuning.data import encode_split
from openalbert.finetuning.evaluation.split import evaluate_split
from openalbert.model.config import Head
from openalbert.report.error_analysis import read_error_analyses
from openalbert.tasks.task import Reading
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")


def test_only_a_task_that_allows_for_it_leaves_a_question_without_an_answer(small: Tokenizer) -> None:
    reading = Reading(tuple(EXAMPLES["question_answering"]))
    for may_have_no_answer in (True, False):
        task = made_task("question_answering", may_have_no_answer=may_have_no_answer)
        data, model = encode_split(task, "dev", reading, small, max_length=64), micro_model(task)
        silent = evaluate_split([model], task, data, CPU, null_threshold=-1000.0).predictions
        assert [text == "" for text in silent] == [may_have_no_answer] * 3
        assert "" not in evaluate_split([model], task, data, CPU, null_threshold=1000.0).predictions


def test_a_class_that_was_never_predicted_is_named_everywhere(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path)
    sentence = "class Cancellation was never predicted (10 of 200 examples)"
    words = f"--dev {file} --steps 20 --optimizer.learning-rate 0.001 --retries 0 --evaluate-every 20"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert f"WARNING: dev: {sentence}" in capsys.readouterr().err
    assert scores["never_predicted"] == {"dev": {"Cancellation": 10}}
    assert sentence in Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert f"**dev: {sentence}.**" in (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    cli.main(["evaluate", str(tmp_path / "run"), "--dev", str(file), "--report", str(page), "--speed.threads", "1"])
    assert f"WARNING: dev: {sentence}" in capsys.readouterr().err
    assert sentence in Page(page.read_text(encoding="utf-8")).text


def test_scores_on_few_examples_have_an_interval_everywhere(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    scores = learn(tiny, "classification", file, tmp_path / "run", "--steps 25")
    accuracy = scores["scores"]["dev"]["accuracy"]
    low, high = scores["intervals"]["dev"]["accuracy"]
    assert low < accuracy <= high
    written = f"accuracy {accuracy:.2f} [{low:.2f}, {high:.2f}]"
    said = capsys.readouterr().out
    assert said.startswith(f"dev: {written}")
    assert said.endswith("(in brackets: 95 % intervals, from 40 examples)\n")
    [analyses] = read_error_analyses(tmp_path / "run")
    assert {name: list(ends) for name, ends in analyses.intervals.items()} == scores["intervals"]["dev"]
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert f"95 % interval: {low:.1f} to {high:.1f}" in page
    assert written in page
    assert f" {accuracy:.2f} [{low:.2f}, {high:.2f}] |" in (tmp_path / "run" / "model" / "README.md").read_text()
    cli.main(["evaluate", str(tmp_path / "run"), "--train", str(file), "--json", "--speed.threads", "1"])
    again = json.loads(capsys.readouterr().out)["splits"]["dev"]
    assert again["intervals"] == scores["intervals"]["dev"]


def test_a_model_without_an_answerability_head_has_metrics_but_no_loss(small: Tokenizer) -> None:
    task = made_task("question_answering")
    data = encode_split(task, "dev", Reading(tuple(EXAMPLES["question_answering"])), small, max_length=64)
    for heads, has_loss in ((task.heads, True), ((Head("span"),), False)):
        found = evaluate_split([micro_model(task, heads=heads)], task, data, CPU)
        assert found.metrics.keys() == {"right"}
        assert math.isfinite(found.loss) == has_loss
