"""bench/install_checkpoint.py makes a trained run a bundled checkpoint, with its records, its history and its card."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text

import openalbert
from openalbert import cli, pretrained
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import install_checkpoint

TINY = "--batch-size 4 --steps 2 --evaluation-examples 8 --log-every 1".split()


@pytest.fixture
def home(tmp_path: Path, small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, the second initialized from the first, and room for bundled checkpoints."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    small.save(Path("tokenizer"))
    Path("text.txt").write_text(easy_text(30))
    cli.main(["prepare", "text.txt", "--tokenizer", "tokenizer", "--out", "all", "--heldout", "0.2"])
    for name, words in (("short", "--objective.max-length 16"), ("long", "--objective.max-length 32")):
        start = ["--warm-start", "base/short"] if name == "long" else []
        words = ["--data", "all", "--out", f"base/{name}", *words.split(), *start, *TINY]
        cli.main(["pretrain", "albert-micro", *words])
    for module in (pretrained, install_checkpoint):
        monkeypatch.setattr(module, "PRETRAINED", tmp_path / "bundled")
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    return home


def test_a_trained_model_is_there_by_name_with_its_history_and_its_records(home: Path, tmp_path: Path) -> None:
    words = [str(home), "base/short", "base/long", "--name", "albert-new", "--results", str(tmp_path / "results")]
    install_checkpoint.main([*words, "--licence", "CC BY-SA 3.0"])
    model = openalbert.load("albert-new")
    assert model.module.num_parameters() == huggingface.load(home / "base" / "long").num_parameters()
    known = read_pretraining(tmp_path / "bundled" / "albert-new")
    assert known is not None
    assert (known.initialized_from, known.before[0].initialized_from) == ("1-length-16", "")
    for name, run in (("1-length-16", "short"), ("2-length-32", "long")):
        for file in ("run.json", "run_info.json", "metrics.jsonl"):
            assert (tmp_path / "results" / name / file).read_bytes() == (home / "base" / run / file).read_bytes()
    card = (tmp_path / "bundled" / "albert-new" / "README.md").read_text()
    for words_of_it in (
        "# albert-new\n",
        "`text.txt`",
        "1-length-16",
        "Licence of the texts: CC BY-SA 3.0",
        "not evaluated on any task",
    ):
        assert words_of_it in card
    assert json.loads((tmp_path / "bundled" / "albert-new" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_card_has_the_scores_of_this_checkpoint_alone(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(home), "base/long", "--name", "albert-new", "--results", str(tmp_path / "results")]
    run = {
        "table": [{"task": "sst2", "metric": "accuracy", "median": 88.25, "seeds": 3}],
        "runs": [{"facts": {"model": "albert-new"}}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "run.json").write_text(json.dumps(run))
    install_checkpoint.main([*words, "--tasks", "tasks"])
    card = (tmp_path / "bundled" / "albert-new" / "README.md").read_text()
    assert "| sst2 | accuracy | 88.2 | 3 |\n\n## Usage" in card
    assert "not evaluated on any task" not in card
    with pytest.raises(SystemExit, match="the scores are of albert-new, not of albert-other"):
        install_checkpoint.main([*words, "--tasks", "tasks", "--name", "albert-other"])


def test_runs_that_are_no_chain_and_too_large_a_wheel_are_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--name", "albert-new", "--results", str(tmp_path / "results")]
    with pytest.raises(SystemExit, match="name the runs in order"):
        install_checkpoint.main([str(home), "base/long", "base/short", *words])
    monkeypatch.setattr(install_checkpoint, "LARGEST", 1000)
    with pytest.raises(SystemExit, match="a wheel may have 50"):
        install_checkpoint.main([str(home), "base/short", "base/long", *words])
    shutil.rmtree(home / "base" / "long" / "model")
    with pytest.raises(SystemExit, match="no model"):
        install_checkpoint.main([str(home), "base/short", "base/long", *words])
