"""The command line as a person meets it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openalbert import cli
from openalbert.text.tokenizer import Tokenizer

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
def test_every_verb_explains_each_of_its_settings(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    import dataclasses
    import importlib
    import inspect

    entry = cli.VERBS[verb]
    module = importlib.import_module(entry.module)
    kind = getattr(module, entry.settings)
    assert callable(getattr(module, entry.function))
    with pytest.raises(SystemExit) as stop:
        cli.run_verb(verb, ["--help"])
    assert stop.value.code == 0
    assert entry.summary in capsys.readouterr().out
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
    assert said == "error: there/run.json: Permission denied: choose another folder, or have its rights changed\n"


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
