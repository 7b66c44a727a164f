"""The card of a fine-tuned model: no blanks, the scores of its run, and its code runs."""

import contextlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from tests.finetuning.made_lessons import KINDS, MADE_PRETRAINING, learn, lesson

from openalbert.finetuning.evaluate import open_for
from openalbert.finetuning.predict import load_models
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.report.finetuned_card import finetuned_card
from openalbert.report.finetuning_reader import read_finetuning_runs
from openalbert.tasks.registry import TaskSource
from openalbert.tasks.task import Task
from openalbert.text.tokenizer import Tokenizer

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()
ALL = [*KINDS, "some_without_answer"]


def task_of(run: Path) -> Task:
    [file] = (run.parent / "data").iterdir()
    return open_for(load_models([str(run)]), "", TaskSource(train=file))


@pytest.mark.parametrize("kind", ALL)
def test_the_card_in_the_model_folder_has_the_scores_of_its_run(kind: str, quick_runs: dict[str, Path]) -> None:
    run = quick_runs[kind]
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    scores = json.loads((run / "scores.json").read_text())["scores"]["dev"]
    for value in scores.values():
        assert f" {value:.2f} " in card
    results = ModelCard(card).data.eval_results or []
    assert sorted(one.metric_value for one in results) == sorted(scores.values())
    assert {one.dataset_split for one in results} == {"dev"}
    prose = re.sub(r"^```.*?^```$", "", card.split("---", 2)[2], flags=re.MULTILINE | re.DOTALL)
    for blank in ("None", "nan", "{", "|  |", "not recorded", "?"):
        assert blank not in prose
    settings = json.loads((run / "run.json").read_text())
    assert f"| seed | {settings['seed']} |" in card
    assert "| begun with | `" in card
    assert "Before it was fine-tuned it was pretrained on 1.65 G tokens (0.6 % of the paper's 262 G)." in card
    assert read_pretraining(run / "model") == MADE_PRETRAINING
    # The recipes' inputs are longer than this model takes, and what it never read is not claimed.
    assert settings["max_length"] > 64
    assert "at most 64 tokens each" in card
    assert "It read inputs of at most 64 tokens" in card


def blocks(card: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", card, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("kind", ALL)
def test_the_code_of_the_card_runs_in_the_model_folder(
    kind: str, quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quick_runs[kind] / "model")
    [code] = blocks(Path("README.md").read_text(encoding="utf-8"))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, "card", "exec"), {})
    assert said.getvalue().strip() or kind in ("question_answering", "some_without_answer")
    if kind in ("classification", "multi_label"):
        assert all(f"'label': '{label}'" in said.getvalue() for label in task_of(quick_runs[kind]).labels)


@pytest.mark.parametrize("kind", ALL)
def test_the_code_of_the_card_takes_texts_that_are_longer_than_the_model_reads(
    kind: str, quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quick_runs[kind] / "model")
    [code] = blocks(Path("README.md").read_text(encoding="utf-8"))
    longer = code.replace('"a text"', '"a text " * 500').replace("sat on the mat.", "sat on the mat. " * 100)
    assert longer != code
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(longer, "card", "exec"), {})


@pytest.mark.parametrize("of_pairs", [True, False])
def test_pairs_that_are_longer_than_the_model_reads_are_taken_too(
    of_pairs: bool, quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quick_runs["regression"]
    monkeypatch.chdir(run / "model")
    [code] = blocks(finetuned_card(huggingface.load(run / "model"), task_of(run), run, {}, of_pairs=of_pairs))
    longer = re.sub(r'"(a text|the first text|the second)"', r'"\1 " * 500', code)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(longer, "card", "exec"), {})
    assert "'score': " in said.getvalue()


@pytest.mark.parametrize(
    ("words", "is_told"), [("--patience 5", True), ("--patience None", True), ("--keep last", False)]
)
def test_a_score_that_is_the_best_of_several_is_said_to_be_a_little_high(
    words: str, is_told: bool, tiny: Path, tmp_path: Path
) -> None:
    file = lesson("classification", tmp_path, num_examples=60)
    learn(tiny, "classification", file, tmp_path / "run", f"--steps 4 --evaluate-every 2 {words}")
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert ("so its score is a little high" in card) == is_told
    learn(tiny, "classification", file, tmp_path / "once", "--steps 2 --evaluate-every 2")
    assert "a little high" not in (tmp_path / "once" / "model" / "README.md").read_text(encoding="utf-8")


def test_transformers_and_openalbert_give_the_same_scores(quick_runs: dict[str, Path]) -> None:
    folder = quick_runs["classification"] / "model"
    classify = transformers.pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    theirs = {found["label"]: found["score"] for found in classify(["the good old time"])[0]}
    model, tokenizer = huggingface.load(folder), Tokenizer.load(folder)
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode("the good old time"), tokenizer.sep_id]])
    with torch.no_grad():
        ours = model.scores("classification", model.encode(ids)).softmax(1)[0].tolist()
    assert theirs == pytest.approx(dict(zip(model.head_list[0].labels, ours, strict=True)), abs=1e-5)


def test_a_collapsed_run_is_named_as_one_and_a_known_task_stands_beside_the_paper(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(quick_runs["classification"], tmp_path / "all" / "seed-3"))
    task = replace(task_of(quick_runs["classification"]), name="sst2", labels=("a|b", "c`d"))
    model = huggingface.load(run / "model")
    card = finetuned_card(model, task, run, {"dev": {"accuracy": 50.0}}, collapsed="all predictions are 'a|b'")
    assert "**This run collapsed, and its scores are no result:** all predictions are 'a\\|b'." in card
    assert "| the paper's albert-base | 90.30 |" in card
    assert "the official dev set of 872 examples; dev of 12 examples is not that one, so its figures are not" in card
    assert "# all, seed-3" in card
    assert "`a|b`, `c d`" in card
    assert read_finetuning_runs([run])[0].run.name == "seed-3"


@pytest.mark.parametrize(("of_pairs", "shown"), [(True, '"text_pair": "the second"'), (False, 'classify("a text")')])
def test_the_card_asks_for_a_pair_only_where_the_task_has_pairs(
    of_pairs: bool, shown: str, quick_runs: dict[str, Path]
) -> None:
    run = quick_runs["classification"]
    [code] = blocks(finetuned_card(huggingface.load(run / "model"), task_of(run), run, {}, of_pairs=of_pairs))
    assert shown in code


def test_what_was_never_scored_is_said_to_be_unknown(quick_runs: dict[str, Path]) -> None:
    run = quick_runs["regression"]
    card = finetuned_card(huggingface.load(run / "model"), task_of(run), run, {})
    assert "It was not scored, so nothing is known of its quality." in card
    assert ModelCard(card).data.eval_results is None
