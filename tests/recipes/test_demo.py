"""The demo at a small scale: through all its stages, stopped in the middle, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.interop.folder_contract import check_tokenizer_takes_what_the_model_takes

from openalbert.recipes.demo import (
    FIXED_TEXTS,
    HELDOUT_PAIRS,
    HELDOUT_TEXTS,
    RECIPE,
    Demo,
    demo,
    heldout_pairs,
    heldout_texts,
)
from openalbert.recipes.pretraining import RECIPES
from openalbert.serve.masks import MASK, encode_masked
from openalbert.text.shards import open_shards
from openalbert.text.tokenizer import Tokenizer

STEPS = 6
WORDS = ["--corpus-megabytes", "0.25", "--vocab-size", "600", "--heldout", "0.1", "--steps", str(STEPS)]


def start(folder: Path) -> "subprocess.Popen[str]":
    """In a session of its own, as a terminal has one: Ctrl-C reaches the demo and the command that it runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "openalbert", "demo", "--out", str(folder), *WORDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_until(process: "subprocess.Popen[str]", sign: str) -> str:
    assert process.stdout is not None
    lines = ""
    for line in process.stdout:
        lines += line
        if sign in line:
            return lines
    raise AssertionError(f"'{sign}' was never printed:\n{lines}")


@pytest.fixture(scope="module")
def stopped_and_gone_on_with(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A demo's folder, what was printed up to a Ctrl-C in the middle of the training, and what after it."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    process = start(folder)
    before = read_until(process, "step 1 ")
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    process = start(folder)
    after, _ = process.communicate(timeout=300)
    assert process.returncode == 0, after
    return folder, before + rest, after


def test_an_interrupted_demo_goes_on_where_it_was(stopped_and_gone_on_with: tuple[Path, str, str]) -> None:
    folder, before, after = stopped_and_gone_on_with
    assert "the same command resumes from here" in before
    assert "corpus.txt is there already" in after
    assert "has this vocabulary already: nothing to do" in after
    assert "shards: already done" in after
    assert "resuming from step" in after
    steps = [json.loads(line)["step"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] == STEPS


def test_its_model_folder_fulfils_the_contract_of_all(stopped_and_gone_on_with: tuple[Path, str, str]) -> None:
    check_tokenizer_takes_what_the_model_takes(stopped_and_gone_on_with[0] / "run" / "model")


def test_every_stage_shows_its_command_and_the_summary_its_figures(
    stopped_and_gone_on_with: tuple[Path, str, str],
) -> None:
    folder, _, printed = stopped_and_gone_on_with
    commands = [line.split()[2:4] for line in printed.splitlines() if line.startswith("$ openalbert")]
    assert [words[0] for words in commands] == ["tokenizer", "prepare", "pretrain", "report", "predict", "predict"]
    run_info = json.loads((folder / "run" / "run_info.json").read_text())
    assert f"word frequencies alone give {run_info['unigram_entropy']:.2f}" in printed
    assert "chance is 50%" in printed
    assert printed.count("(it was: ") == HELDOUT_TEXTS
    assert 0 < printed.count("as it was written: ") <= HELDOUT_PAIRS
    assert all(text in printed for text in FIXED_TEXTS)
    assert (folder / "run" / "report.html").exists()
    assert "where to go next" in printed


def test_sentences_to_fill_in_are_held_out_and_read_back_as_they_are(
    stopped_and_gone_on_with: tuple[Path, str, str],
) -> None:
    folder, _, _ = stopped_and_gone_on_with
    tokenizer = Tokenizer.load(folder / "vocabulary")
    corpus = " ".join((folder / "corpus.txt").read_text().lower().split())
    found = list(heldout_texts(open_shards(folder / "shards", "heldout"), tokenizer, 20))
    assert len(set(found)) == len(found) > 5
    for text, actual in found:
        assert text.count(MASK) == 1
        assert text.replace(MASK, actual) in corpus
        whole = tokenizer.encode(text.replace(MASK, actual))
        masked = encode_masked(tokenizer, text)
        assert [new for new, old in zip(masked, whole, strict=True) if new != old] == [tokenizer.mask_id]


def test_pairs_of_sentences_follow_each_other_in_the_text(stopped_and_gone_on_with: tuple[Path, str, str]) -> None:
    folder, _, _ = stopped_and_gone_on_with
    tokenizer = Tokenizer.load(folder / "vocabulary")
    corpus = " ".join((folder / "corpus.txt").read_text().lower().split())
    found = heldout_pairs(open_shards(folder / "shards", "heldout"), tokenizer, 20)
    known = [f"{first} {second}" for first, second in found if "⁇" not in first + second]
    assert known
    assert all(text in corpus for text in known)


def test_a_finished_demo_trains_nothing_again(
    stopped_and_gone_on_with: tuple[Path, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = stopped_and_gone_on_with
    settings = Demo(folder, corpus_megabytes=0.25, vocab_size=600, heldout=0.1, steps=STEPS)
    weights = folder / "run" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    demo(settings)
    assert "this run is done" in capfd.readouterr().err
    assert weights.stat().st_mtime_ns == written


def test_a_command_that_fails_ends_the_demo_as_it_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.txt").write_text("Far too little text.\n")
    (tmp_path / "corpus.json").write_text(
        '{"documents": 1, "characters": 21, "files": 1, "repeated": 0, "packages": []}'
    )
    with pytest.raises(SystemExit) as exit_:
        demo(Demo(tmp_path))
    assert exit_.value.code == 1
    assert "too few different words for a vocabulary" in capfd.readouterr().err


def test_a_demo_that_is_killed_while_collecting_leaves_no_half_corpus(tmp_path: Path) -> None:
    process = start(tmp_path / "demo")
    read_until(process, "1/6")
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "demo" / "corpus.json").exists()


def test_the_demo_has_a_recipe_of_its_own() -> None:
    assert RECIPES[RECIPE]().preset == RECIPE
