"""The command line as a person meets it."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import openalbert
from openalbert import cli
from openalbert.interop.huggingface import save
from openalbert.model.albert import AlbertModel
from openalbert.model.presets import preset
from openalbert.pretraining.provenance import source_of
from openalbert.pretraining.settings import Pretrain
from openalbert.text.tokenizer import Tokenizer

ALL_HEADS = ("masked-LM head", "sentence-order head", "span head", "classification head", "answerability head")
OPENALBERT = [sys.executable, "-m", "openalbert"]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*OPENALBERT, *words], capture_output=True, text=True, check=False)


def test_help_lists_every_verb_with_one_line_and_imports_no_torch() -> None:
    code = "import sys, openalbert.cli as c\ntry: c.main(['--help'])\nexcept SystemExit as e: assert e.code == 0\n"
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb, entry in cli.VERBS.items():
        assert any(line.strip().startswith(verb) and entry.summary in line for line in done.stdout.splitlines()), verb


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_explains_each_of_its_settings(verb: str) -> None:
    import dataclasses
    import importlib
    import inspect

    entry = cli.VERBS[verb]
    module = importlib.import_module(entry.module)
    kind = getattr(module, entry.settings)
    assert callable(getattr(module, entry.function))
    source = inspect.getsource(kind)
    for field in dataclasses.fields(kind):
        line = source.index(f"\n    {field.name}:")
        following = source[line:].split("\n")[2:]
        assert any(text.strip().startswith('"""') for text in following[:6]), f"{verb}: {field.name} has no docstring"


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (["shwo"], "did you mean 'show'?", 2),
        (["tokenizer", "trian"], "did you mean 'train'?", 2),
        (["show", "albert-bsae"], "did you mean 'albert-base'?", 1),
        (["show", "albert-base", "--lenght", "3"], "--length", 2),
        (["show", "albert-base", "--model.hidden-sise", "3"], "--model.hidden-size", 2),
        (["show", "--json", "albert-base"], "right after the verb", 2),
        (["show", "albert-base", "--model.sharing.ffn", "13"], "sharing.ffn is 13", 1),
        (["show", "albert-base", "--length", "513"], "has 512 positions", 1),
        (["show", "albert-base", "--batch", "0"], "batch is 0", 1),
        (["show", "--length", "513"], "no preset has more than 512 positions", 1),
        (["show", "albert-base", "--model.vocab-size", "99999999999999999999"], "it must be at most", 1),
    ],
)
def test_a_mistake_is_answered_with_a_sentence_and_the_nearest_name(
    words: list[str], sentence: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    said = capsys.readouterr()
    assert stop.value.code == code
    assert sentence in said.err + said.out


def test_a_folder_that_may_not_be_written_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "there/run.json")

    monkeypatch.setattr(cli, "run_verb", refused)
    with pytest.raises(SystemExit):
        cli.main(["show"])
    said = capsys.readouterr().err
    assert said == (
        f"error: there/run.json: Permission denied: you may not write or read {Path.cwd()}: "
        "choose another folder, or change its permissions\n"
    )


@pytest.mark.parametrize(
    ("number", "path", "advice"),
    [
        (errno.ENOENT, "/proc/x/run.json", "/proc belongs to the system, and no files can be made there: choose"),
        (errno.EACCES, "/sys/x", "/sys belongs to the system"),
        (errno.EROFS, "/usr/x", "/usr is read-only: choose a folder elsewhere"),
        (errno.ENOTDIR, f"{__file__}/x", f"{__file__} is a file, where a folder is needed"),
        (errno.ENOENT, "missing.txt", ""),
    ],
)
def test_the_advice_on_a_place_that_cannot_be_written_fits_the_place(number: int, path: str, advice: str) -> None:
    found = cli.advice_on(OSError(number, os.strerror(number), path))
    assert advice in found
    assert bool(found) == bool(advice)
    assert cli.advice_on(OSError(number, os.strerror(number))) == ""


def test_the_names_of_presets_and_recipes_win_over_folders_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["convert", "albert-micro", "--out", "albert-base"])
    cli.main(["convert", "albert-micro", "--out", "albert-demo"])
    capsys.readouterr()
    for words, layers in (
        (["albert-base"], 12),
        (["./albert-base", "--length", "8"], 2),
        (["albert-demo", "--length", "8"], 3),
        (["albert-demo/", "--length", "8"], 2),
    ):
        cli.main(["show", *words])
        assert f": {layers} layers" in capsys.readouterr().out
    assert len(openalbert.load("albert-base").module.encoder.attention) == 1
    assert openalbert.load("albert-base").config.num_layers == 12
    assert openalbert.load(Path("albert-base")).config.num_layers == 2
    for name, is_model in (("albert-demo", False), ("./albert-demo", True)):
        settings = cli.parse(Pretrain, "pretrain", [name])
        assert (source_of(settings) is not None) == is_model
        assert (settings.model.num_layers == 2) == is_model
    with pytest.raises(SystemExit):
        cli.main(["fill", "albert-base", "a [MASK]"])
    assert "'albert-base' is a preset" in (told := capsys.readouterr().err)
    assert "the folder of that name is ./albert-base" in told


def test_show_prints_json_with_the_exact_counts(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", "albert-base", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["parameters"]["encoder"] == 11_683_584
    assert figures["parameters"]["with_heads"] == 11_813_810
    # The published arithmetic: 0.570 GFLOP a token in training at length 512.
    assert round(figures["flops_per_token"]["training"] / 1e9, 3) == 0.570
    cli.main(["show", "albert-base", "--model.sharing.ffn", "12", "--json"])
    changed = json.loads(capsys.readouterr().out)
    assert changed["parameters"]["encoder"] == 63_647_232
    assert changed["parameters"]["in_the_paper"] is None


def test_show_without_a_preset_prints_all_of_them_beside_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show"])
    table = capsys.readouterr().out
    for expected in ("222,595,584", "235M", "albert-tiny", "1,275,291,648", "1270M", "5.6x"):
        assert expected in table


def test_show_reads_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Path(__file__).parent / "golden" / "google" / "groups"
    cli.main(["convert", str(golden), "--out", str(tmp_path / "model")])
    capsys.readouterr()
    cli.main(["show", str(tmp_path / "model"), "--length", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["parameters"]["with_heads"] == 7900


def test_show_lists_the_heads_that_a_model_has_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = Path(__file__).parent / "golden" / "google"
    totals = {}
    for name, heads in {"groups": {"masked-LM head", "sentence-order head"}, "squad": {"span head"}}.items():
        cli.main(["convert", str(golden / name), "--out", str(tmp_path / name)])
        capsys.readouterr()
        cli.main(["show", str(tmp_path / name), "--length", "8"])
        table = capsys.readouterr().out
        assert {head for head in ALL_HEADS if head in table} == heads
        cli.main(["show", str(tmp_path / name), "--length", "8", "--json"])
        totals[name] = json.loads(capsys.readouterr().out)["parameters"]["with_heads"]
        assert totals[name] == openalbert.load(tmp_path / name).module.num_parameters()
    save(AlbertModel(preset("albert-micro")), tmp_path / "bare")
    capsys.readouterr()
    cli.main(["show", str(tmp_path / "bare")])
    table = capsys.readouterr().out
    assert " head " not in table
    assert "with heads" not in table


def test_show_prints_no_zero_for_the_flops_of_small_models(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", "albert-micro"])
    table = capsys.readouterr().out
    assert "0.000 " not in table
    assert "GFLOP a token, forward, length 128  0.000276" in re.sub("  +", "  ", table)
    cli.main(["show"])
    table = capsys.readouterr().out
    assert not re.search(r" 0\.000\s", table)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    words = " ".join([*OPENALBERT, "show", "--json"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words} | head -1"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0


def in_one_pipe(words: list[str]) -> str:
    """What a command prints where both streams are one pipe, buffered as Python does unless it is told otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
    ).stdout


def test_results_and_messages_stay_in_order_where_both_go_into_one_pipe(tmp_path: Path, small: Tokenizer) -> None:
    """The second line is not UTF-8, which is told on standard error after the first line's ids on standard output."""
    (tmp_path / "lines.txt").write_bytes(b"the first line\n\xff\n")
    words = [*OPENALBERT, "tokenizer", "encode", str(tmp_path / "lines.txt"), "--tokenizer", str(small.where)]
    first, second = in_one_pipe(words).splitlines()
    assert first.startswith('{"ids": [')
    assert second.startswith("error: ")


def test_what_prepare_counts_stands_before_what_it_warns_of_in_one_pipe(tmp_path: Path, small: Tokenizer) -> None:
    (tmp_path / "text.txt").write_text("One sentence. Another one.\n")
    words = [*OPENALBERT, "prepare", str(tmp_path / "text.txt"), "--tokenizer", str(small.where), "--heldout", "0.0001"]
    words += ["--out", str(tmp_path / "shards"), "--workers", "1"]
    marks = ["preparing: ", "split", "1 documents of", "no document is held out"]
    printed = in_one_pipe(words)
    places = [printed.index(mark) for mark in marks]
    assert places == sorted(places)


def test_the_version_is_printed() -> None:
    assert run("--version").stdout.startswith("openalbert 0.")
