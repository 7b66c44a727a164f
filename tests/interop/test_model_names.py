"""One way to name a model wherever one is taken: its folder, the run that made it, a bundled checkpoint, a preset."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.data import load_data
from openalbert.finetuning.predict import load_models
from openalbert.finetuning.settings import Finetune
from openalbert.interop.huggingface import find_folder, save
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.presets import preset
from openalbert.tasks.data.source import TaskSource
from openalbert.text.tokenizer import Tokenizer

BUNDLED = "albert-base-wikibooks"


@pytest.fixture
def run(tmp_path: Path, small: Tokenizer) -> Path:
    """A run that has ended, in a folder whose name looks like markup."""
    torch.manual_seed(0)
    folder = tmp_path / "runs[bold]" / "first"
    save(AlbertModel(preset("albert-micro"), PRETRAINING_HEADS), folder / "model", small)
    (folder / "run.json").write_text("{}")
    return folder


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    cli.main(words)
    return capsys.readouterr().out


def test_a_run_stands_for_its_model_in_every_verb_and_in_load(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(run / "model")
    ours, theirs = openalbert.load(run).module, openalbert.load(model).module
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name])
    assert said(["fill", str(run), "a [MASK]", "--json"], capsys) == said(["fill", model, "a [MASK]", "--json"], capsys)
    shown = [json.loads(said(["show", name, "--json"], capsys)) for name in (str(run), model)]
    assert shown[0]["parameters"] == shown[1]["parameters"]
    cli.main(["convert", str(run), "--out", str(tmp_path / "converted")])
    assert (tmp_path / "converted" / "spiece.model").exists()
    file = tmp_path / "own.csv"
    file.write_text("text,label\n" + "".join(f"number {n},{'ab'[n % 2]}\n" for n in range(40)))
    settings = Finetune(str(run), task="classification", source=TaskSource(train=file), max_length=64)
    assert load_data(settings).folder == run / "model"
    with pytest.raises(UserError, match="has no head for a task"):  # found, and it is a pretrained one
        load_models([str(run)])


def test_a_run_that_has_not_ended_says_what_to_do(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "model")
    for name in ("load", "fill", "show", "convert", "evaluate", "finetune"):
        if name == "load":
            with pytest.raises(UserError) as error:
                openalbert.load(run)
            told = str(error.value)
        else:
            more = {"convert": ["--out", str(run / "to")], "finetune": ["--task", "sst2", "--dry-run"]}.get(name, [])
            with pytest.raises(SystemExit):
                cli.main([name, str(run), *more])
            told = capsys.readouterr().err
        assert f"{run} is a run that has no model yet: run its command again to finish it" in told, name


def test_bundled_checkpoints_and_presets_go_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_folder(BUNDLED).name == BUNDLED
    for name in (BUNDLED, "albert-micro"):
        assert json.loads(said(["show", name, "--json"], capsys))["name"] == name
    with pytest.raises(SystemExit):
        cli.main(["show", "albert-mciro"])
    assert "'albert-mciro' is neither a model folder nor a preset: did you mean 'albert-micro'?" in (
        capsys.readouterr().err
    )


def test_brackets_in_names_and_in_advice_are_printed_as_they_are(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = "openalbert.interop.convert.importlib.util.find_spec"
    monkeypatch.setattr(found, lambda name: None)  # as where transformers is not installed
    told = said(["convert", str(run), "--out", str(tmp_path / "converted")], capsys)
    assert "pip install 'openalbert[huggingface]'" in told
    assert f"{run} -> " in told
    assert said(["show", str(run)], capsys).startswith(f"{run}: 2 layers")
