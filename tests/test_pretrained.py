"""The model that comes with openalbert: there by name, what its card says it is, and the same in transformers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.interop.huggingface import find_folder
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.pretrained import PRETRAINED, pretrained_names
from openalbert.text.normalization import Normalization
from openalbert.text.shards import open_shards
from openalbert.text.tokenizer import Tokenizer

NAME = "albert-base-wikibooks"
RESULTS = Path(__file__).parents[1] / "results"
# The records of each checkpoint's runs, each initialized with the weights of the one before it.
RUNS = {NAME: [RESULTS / NAME / folder for folder in ("", "longer", "25-minutes")]}
BUNDLED = pytest.mark.parametrize("name", RUNS)


def test_it_is_there_by_name_from_anywhere(tmp_path: Path) -> None:
    assert pretrained_names() == sorted(RUNS)
    done = subprocess.run(
        [sys.executable, "-m", "openalbert", "fill", NAME, "She opened the [MASK] and walked into the room.", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"▁door"' in done.stdout


def test_it_is_shown_at_the_longest_input_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", NAME, "--json"])
    assert json.loads(capsys.readouterr().out)["flops_per_token"]["length"] == 512


@pytest.mark.parametrize("verb", ["fill", "finetune", "prepare", "show", "tokenizer encode", "tokenizer decode"])
def test_the_help_of_a_verb_that_takes_it_says_so(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*verb.split(), "--help"])
    words = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "bundled" in words


def test_it_fills_in_words_that_make_sense() -> None:
    model = openalbert.load(NAME)
    for text, word in {
        "She opened the [MASK] and walked into the room.": "door",
        "The ship sailed across the [MASK] for forty days.": "atlantic",
        "He was born in [MASK] in 1879.": "london",
        "It was a dark and stormy [MASK].": "night",
    }.items():
        [guesses] = model.fill(text, top=5).masks
        assert word in [guess.reading for guess in guesses]


@BUNDLED
def test_its_vocabulary_is_the_one_it_was_trained_with(name: str) -> None:
    run_info = json.loads((RUNS[name][0] / "run_info.json").read_text())
    assert Tokenizer.load(PRETRAINED / name).fingerprint == run_info["data"]["tokenizer"]


def test_text_of_ones_own_is_prepared_with_its_vocabulary_by_its_name_and_read_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [" ".join(f"The {word} of the town was old." for word in words) for words in (("door", "wall"), ("well",))]
    Path("own.txt").write_text("\n\n".join([text + " It stood there for years. Nobody came." for text in texts] * 8))
    cli.main(["prepare", "own.txt", "--tokenizer", NAME, "--out", "shards"])
    assert open_shards(Path("shards")).manifest.tokenizer == Tokenizer.load(NAME).fingerprint
    words = ["--objective.max-length", "16", "--batch-size", "2", "--optimizer.learning-rate", "0"]
    cli.main(["pretrain", NAME, "--data", "shards", "--out", "run", "--steps", "1", *words])
    before, after = (dict(openalbert.load(name).module.named_parameters()) for name in (NAME, "run/model"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_folder_of_its_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Tokenizer.load(NAME).model
    Tokenizer(own, Normalization(cased=True)).save(tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    assert Tokenizer.load(NAME).normalization.cased
    assert not Tokenizer.load(PRETRAINED / NAME).normalization.cased


@BUNDLED
def test_its_card_tells_the_figures_of_its_run(name: str) -> None:
    card = (PRETRAINED / name / "README.md").read_text()
    lines = [json.loads(line) for line in (RUNS[name][-1] / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "evaluation"][-1]
    for metric in ("mlm_acc", "sop_acc"):
        assert f"| {100 * last[metric]:.1f} % |" in card
    assert f"| {last['mlm_loss']:.3f} |" in card
    assert f"{openalbert.load(name).module.num_parameters():,} parameters" in card


@BUNDLED
def test_transformers_loads_it_as_it_is(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = find_folder(name)
    theirs = transformers.AlbertForPreTraining.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = tokenizer("It was a dark and stormy [MASK].", "The rain fell in torrents.", return_tensors="pt")
    model = openalbert.load(name).module
    with torch.no_grad():
        expected = theirs(**texts)
        encoded = model.encode(texts["input_ids"], texts["token_type_ids"], texts["attention_mask"])
    torch.testing.assert_close(model.scores("masked_lm", encoded), expected.prediction_logits, rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(model.scores("sentence_order", encoded), expected.sop_logits, rtol=1e-3, atol=1e-3)


def test_a_longer_text_than_it_has_positions_for_is_refused() -> None:
    with pytest.raises(UserError, match="600 tokens, but the model has 512 positions"):
        openalbert.load(NAME).encode(torch.full((1, 600), 7))


@BUNDLED
def test_it_tells_how_much_it_was_pretrained(name: str) -> None:
    told = read_pretraining(find_folder(name))
    assert told is not None
    runs = [json.loads((folder / "run_info.json").read_text()) for folder in RUNS[name]]
    assert [run.steps for run in (*told.before, told)] == [run["actual"]["steps"] for run in runs]
    assert told.tokens == sum(run["actual"]["tokens"] for run in runs)
    assert told.text_tokens == runs[-1]["data"]["train_tokens"]


def test_a_name_that_is_nearly_right_is_set_right() -> None:
    with pytest.raises(UserError, match=NAME):
        find_folder("albert-base-wikibook")


def test_where_weights_are_needed_folders_that_are_there_are_named_and_no_presets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("r/first", "r/second/model", "r/no-model", "s/x1/model"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("r/first", "r/second/model", "s/x1/model"):
        (tmp_path / folder / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    for name, told in (
        ("r/frist", "'r/frist' is no model folder: did you mean 'r/first'?"),
        ("r/secnd", "'r/secnd' is no model folder: did you mean 'r/second/model'?"),
        ("r/xyz", f"'r/xyz' is no model folder: known are: r/first, r/second/model, {NAME}"),
        ("s/kx", f"'s/kx' is no model folder: known are: s/x1/model, {NAME}"),
        ("xyz", f"'xyz' is no model folder: known are: {NAME}"),
        ("none/at/xyz", f"'none/at/xyz' is no model folder: known are: {NAME}"),
    ):
        with pytest.raises(UserError) as error:
            find_folder(name)
        assert str(error.value) == told
    with pytest.raises(UserError, match="'albert-bsae' is neither a model folder nor a preset: did you mean 'albert-b"):
        openalbert.load("albert-bsae")
