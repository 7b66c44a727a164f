"""What `import openalbert` offers: the work of the command line as functions, in scripts, threads and notebooks."""

import contextlib
import doctest
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.finetuning.made_lessons import lesson
from tests.pretraining.made_shards import made_text

import openalbert
from openalbert import cli
from openalbert.progress import Work
from openalbert.train.metrics_log import MetricsLog

PRETRAINING: dict[str, Any] = {
    "batch_size": 8,
    "max_length": 32,
    "learning_rate": 0.01,
    "evaluation_examples": 32,
    "log_every": 5,
    "reference_batch": 8,
    "speed__threads": 1,
}
AS_WORDS = (
    "--batch-size 8 --objective.max-length 32 --optimizer.learning-rate 0.01 --evaluation-examples 32 --log-every 5 "
    "--reference-batch 8 --speed.threads 1"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, easy_shards: Path) -> Path:
    """A folder with shards and with files to learn from and to predict for."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "shards").symlink_to(easy_shards)
    shutil.move(lesson("classification", folder / "made", 80), folder / "mails.csv")
    shutil.move(lesson("classification", folder / "made", 30, seed=1), folder / "new-mails.csv")
    return folder


@pytest.fixture
def at_home(home: Path) -> Iterator[Path]:
    with contextlib.chdir(home):
        yield home


@pytest.fixture(scope="module")
def pretrained(home: Path) -> openalbert.Run:
    return openalbert.pretrain("albert-micro", home / "shards", home / "runs/first", steps=10, **PRETRAINING)


@pytest.fixture(scope="module")
def finetuned(home: Path, pretrained: openalbert.Run) -> openalbert.Run:
    out = home / "runs/task"
    return openalbert.finetune(
        pretrained, task="classification", train=home / "mails.csv", out=out, steps=6, evaluate_every=3, log_every=2
    )


def test_the_example_in_every_docstring_gives_what_it_shows(home: Path, tmp_path: Path) -> None:
    for name in ("mails.csv", "new-mails.csv"):
        shutil.copy(home / name, tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(made_text(200))
    # In the order of a whole job, for each example uses the runs of those before it.
    for name in (
        "Tokenizer",
        "train_tokenizer",
        "prepare",
        "pretrain",
        "load",
        "open_run",
        "Run",
        "finetune",
        "Predictor",
        "evaluate",
    ):
        offered = getattr(openalbert, name)
        [found] = doctest.DocTestFinder(recurse=False).find(offered, name, globs={})
        assert found.examples, name
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        said: list[str] = []
        with contextlib.chdir(tmp_path):
            runner.run(found, out=said.append)
        assert runner.failures == 0, "".join(said)


def test_everything_offered_has_a_docstring_and_is_listed() -> None:
    assert dir(openalbert) == sorted([*openalbert.__all__, "__version__"])
    for name in openalbert.__all__:
        assert getattr(openalbert, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'pretain'"):
        openalbert.pretain  # noqa: B018


def test_importing_openalbert_or_its_tokenizer_does_not_import_torch() -> None:
    code = "import openalbert, sys; openalbert.Tokenizer, openalbert.UserError; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return settings | {"out": ""}


def test_pretrain_runs_what_the_command_line_runs(pretrained: openalbert.Run, home: Path, tmp_path: Path) -> None:
    words = f"pretrain albert-micro --data {home / 'shards'} --out {tmp_path / 'cli'} --steps 10 {AS_WORDS}"
    cli.main(words.split())
    assert settings_of(tmp_path / "cli") == settings_of(pretrained.folder)
    same = openalbert.load(tmp_path / "cli").module.state_dict()
    assert all(torch.equal(same[name], tensor) for name, tensor in pretrained.model().state_dict().items())


def test_finetune_runs_what_the_command_line_runs(finetuned: openalbert.Run, home: Path, tmp_path: Path) -> None:
    words = (
        f"finetune {home / 'runs/first'} --task classification --train {home / 'mails.csv'} --out {tmp_path / 'cli'}"
    )
    cli.main([*words.split(), *"--steps 6 --evaluate-every 3 --log-every 2".split()])
    assert settings_of(tmp_path / "cli") == settings_of(finetuned.folder)
    assert openalbert.open_run(tmp_path / "cli").scores == finetuned.scores


def test_a_settings_object_takes_the_place_of_the_model_and_keywords_change_it(home: Path, tmp_path: Path) -> None:
    settings = openalbert.Pretrain(preset="albert-micro", data=home / "shards", steps=5)
    with pytest.raises(openalbert.UserError, match=r"objective\.max_length is 512 but model\.max_positions is"):
        openalbert.pretrain(settings, out=tmp_path, model__max_positions=256)
    task = openalbert.Finetune(model="no-such-model", task="cola", out=tmp_path / "run")
    with pytest.raises(openalbert.UserError, match="no-such-model"):
        openalbert.finetune(task, task="classification", train=home / "mails.csv")


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"optimizer__learning_rat": 0.1}, "is not a setting: did you mean 'optimizer__learning_rate'"),
        ({"minute": 3}, "'minute' is not a setting: did you mean 'minutes'"),
        ({"steps": 2.5}, r"Pretrain\.steps does not fit: expected a whole number, found 2\.5"),
        ({"steps": 3, "minutes": 1.0}, "give exactly one"),
        ({"speed__precision": "fp8"}, "precision does not fit"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(given: dict[str, Any], refusal: str, tmp_path: Path) -> None:
    with pytest.raises(openalbert.UserError, match=refusal):
        openalbert.pretrain("albert-micro", out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_run_that_python_started_records_the_call_as_its_command(finetuned: openalbert.Run) -> None:
    known = json.loads((finetuned.folder / "run_info.json").read_text())
    assert known["command"].startswith(f"openalbert.finetune('{finetuned.folder.parent}/first', ")
    assert "task='classification'" in known["command"]
    assert f"out='{finetuned.folder}'" in known["command"]


def test_evaluate_returns_the_metrics_that_the_command_line_prints(
    finetuned: openalbert.Run, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    found = openalbert.evaluate(finetuned, dev=home / "new-mails.csv")
    assert capsys.readouterr().out == ""
    cli.main(["evaluate", str(finetuned.folder), "--dev", str(home / "new-mails.csv"), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert found == {split: values["scores"] for split, values in printed["splits"].items()}
    assert found == openalbert.evaluate([finetuned, finetuned.folder], dev=home / "new-mails.csv", splits=["dev"])


# What a run shows.


def test_the_metrics_of_a_run_are_a_table_by_step(pretrained: openalbert.Run) -> None:
    table = pretrained.metrics
    assert list(table["step"]) == [5, 10, 10]
    assert list(table["kind"]) == ["train", "train", "evaluation"]
    assert np.isfinite(table["mlm_loss"]).all()
    assert np.isnan(table["perplexity"][:2]).all()
    assert pretrained.scores["heldout"]["mlm_loss"] == table["mlm_loss"].iloc[-1]


def test_without_pandas_the_metrics_are_columns(finetuned: openalbert.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = finetuned.metrics
    assert type(table) is dict
    assert table["step"] == [2, 3, 4, 6, 6]
    assert finetuned.scores["dev"]["accuracy"] in table["accuracy"]


def test_a_run_of_several_seeds_has_a_column_run_and_median_scores(pretrained: openalbert.Run, home: Path) -> None:
    run = openalbert.finetune(
        pretrained, task="classification", train=home / "mails.csv", out=home / "runs/seeds", steps=2, seeds=2
    )
    assert set(run.metrics["run"]) == {"seed-1", "seed-2"}
    each = [json.loads((run.folder / name / "scores.json").read_text()) for name in ("seed-1", "seed-2")]
    assert run.scores["dev"]["accuracy"] == pytest.approx(sum(one["scores"]["dev"]["accuracy"] for one in each) / 2)
    assert repr(run).endswith("done, step 2")
    assert run.plot().axes


def test_a_run_is_drawn_and_summarized_for_a_notebook(pretrained: openalbert.Run, finetuned: openalbert.Run) -> None:
    for run, title in ((pretrained, "MLM accuracy"), (finetuned, "accuracy")):
        titles = [axes.get_title() for axes in run.plot().axes]
        assert any(title.lower() in one.lower() for one in titles), titles
    assert "<th>model</th><td>albert-micro</td>" in pretrained._repr_html_()
    assert "<th>task</th><td>classification</td>" in finetuned._repr_html_()
    assert "accuracy" in finetuned._repr_html_()


def test_a_folder_without_a_run_is_refused_but_shown(tmp_path: Path) -> None:
    with pytest.raises(openalbert.UserError, match=r"is no run, it has no run\.json"):
        openalbert.open_run(tmp_path)
    assert "it has no run.json" in openalbert.Run(tmp_path)._repr_html_()


# Interrupts, threads and notebooks.


def test_an_interrupt_leaves_a_checkpoint_raises_keyboard_interrupt_and_the_same_call_resumes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretrained: openalbert.Run
) -> None:
    add_step, before = MetricsLog.add_step, signal.getsignal(signal.SIGINT)

    def interrupted(log: MetricsLog, step: Any, *others: Any) -> None:
        add_step(log, step, *others)
        if step.number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(MetricsLog, "add_step", interrupted)
        with pytest.raises(KeyboardInterrupt, match="the same call resumes it"):
            openalbert.pretrain("albert-micro", home / "shards", tmp_path / "run", steps=10, **PRETRAINING)
    assert signal.getsignal(signal.SIGINT) == before
    assert repr(openalbert.open_run(tmp_path / "run")).startswith(f"Run('{tmp_path / 'run'}'): not done")
    expected = r"no model yet: run its command again .*`openalbert\.pretrain\(.*resumes from step 4"
    with pytest.raises(openalbert.UserError, match=expected):
        openalbert.Run(tmp_path / "run").model()
    run = openalbert.pretrain("albert-micro", home / "shards", tmp_path / "run", steps=10, **PRETRAINING)
    assert run.scores == pretrained.scores


def test_sigterm_ends_the_process_with_its_code(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_step = MetricsLog.add_step

    def ended(log: MetricsLog, *others: Any) -> None:
        add_step(log, *others)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricsLog, "add_step", ended)
    with pytest.raises(SystemExit) as end:
        openalbert.pretrain("albert-micro", home / "shards", tmp_path / "run", steps=10, **PRETRAINING)
    assert end.value.code == 143


def test_a_run_in_another_thread_sets_no_signal_handlers(home: Path, tmp_path: Path) -> None:
    before, errors = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        try:
            openalbert.pretrain("albert-micro", home / "shards", tmp_path / "run", steps=2, **PRETRAINING)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert signal.getsignal(signal.SIGINT) == before
    assert openalbert.open_run(tmp_path / "run").model().num_parameters()


class Notebook:
    """Stands for IPython in a Jupyter kernel: remembers what each line of output showed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: object) -> None:
        self.lines: list[list[str]] = []
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        shown = [data["text/plain"]]
        self.lines.append(shown)
        return types.SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))


def test_in_a_notebook_progress_is_one_line_that_changes_in_place(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch, kernel=object())
    monkeypatch.setattr("openalbert.progress.SECONDS_BETWEEN_UPDATES", 0.0)
    openalbert.pretrain("albert-micro", home / "shards", tmp_path / "run", steps=4, **PRETRAINING)
    [line] = notebook.lines
    assert [text.split()[3] for text in line] == ["1", "2", "3", "4"]
    assert line[-1].startswith("100.0 %  step 4  loss")
    assert "step 4  loss" not in capsys.readouterr().err
    with Work("reading", total=2) as work:
        work.advance()
        work.advance()
    assert [text.split()[1] for text in notebook.lines[1]] == ["1/2", "2/2"]
    assert capsys.readouterr().err == ""


def test_ipython_in_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch, kernel=None)
    with Work("reading", total=2) as work:
        work.advance()
    assert not notebook.lines
    assert capsys.readouterr().err.startswith("reading: 1/2")


# A model folder, a run and a name are taken wherever a model is.


@pytest.fixture
def named(
    pretrained: openalbert.Run, finetuned: openalbert.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models bundled, under the names `first` and `task`."""
    for run in (pretrained, finetuned):
        shutil.copytree(run.folder / "model", tmp_path / "bundled" / run.folder.name)
    monkeypatch.setattr("openalbert.pretrained.PRETRAINED", tmp_path / "bundled")


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("form", ["runs/{}/model", "runs/{}", "{}"], ids=["folder", "run", "name"])
@pytest.mark.parametrize(
    "line",
    [
        "fill {first} [MASK]",
        "show {first}",
        "convert {first} --out {out}",
        "tokenizer encode mails.csv --tokenizer {first}",
        "finetune {first} --task classification --train mails.csv --out {out} --steps 1",
        "finetune {first} --from {task} --task classification --train mails.csv --out {out} --steps 1",
        "evaluate {task} --dev new-mails.csv",
        f"pretrain {{first}} --data shards --out {{out}} --steps 1 {AS_WORDS}",
        f"pretrain albert-micro --warm-start {{first}} --data shards --out {{out}} --steps 1 {AS_WORDS}",
    ],
)
def test_every_verb_takes_a_model_folder_a_run_and_a_name(line: str, form: str, at_home: Path, tmp_path: Path) -> None:
    models = {name: form.format(name) for name in ("first", "task")}
    cli.main(line.format(**models, out=tmp_path / "out").split())


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("form", ["runs/first/model", "runs/first", "first"])
def test_python_takes_a_model_folder_a_run_and_a_name(form: str, at_home: Path, pretrained: openalbert.Run) -> None:
    for given in (form, Path(form)) if "/" in form else (form,):
        loaded = openalbert.load(given).module.state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in pretrained.model().state_dict().items())
        assert openalbert.Tokenizer.load(given).vocab_size == 300
