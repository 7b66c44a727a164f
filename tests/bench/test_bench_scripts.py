"""The scripts that compare with other people's code: what they say to a newcomer, and the tables they make. No GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import demo
import finetune
import finetune_report
import finetune_sides
import order_cue
import pretrain
import pretrain_jobs
import pretrain_report
import two_signals
from pretrain_jobs import Job, folder_for

from openalbert.objectives.sentence_order import SentenceOrder

BENCH = Path(__file__).resolve().parents[2] / "bench"
SPEED = {"seconds": 30.0, "median_ms": 85.0, "first_step_seconds": 8.0, "peak_gib": 20.0, "matmul_peak_tflops": 700.0}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process may be started."""

    def refuse(*_: Any) -> Iterator[Any]:
        raise AssertionError("something was started")

    monkeypatch.setattr(pretrain, "measured", refuse)


def said_by_pretrain(*words: str) -> str:
    with pytest.raises(SystemExit) as end:
        pretrain.main(list(words))
    return str(end.value)


def run_of(rate: float, **more: Any) -> dict[str, Any]:
    return {**SPEED, "tokens_per_second": rate, "mfu": 0.5, **more}


def write_model(folder: Path, name: str, runs: dict[str, Any], **more: Any) -> None:
    told = {"model": name, "batch": 128, "length": 512, "device": "NVIDIA H200", "torch": "2.11.0", "step_flops": 1e12}
    told |= {"runs": runs, "matmul_peak_tflops": 700.0, "arguments": {"ahead": 4}, **more}
    (folder / f"{name}.json").write_text(json.dumps(told))


def rows_of(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {name} |")]


def test_without_a_gpu_the_pretraining_bench_ends_with_one_sentence() -> None:
    ended = subprocess.run(
        [sys.executable, str(BENCH / "pretrain.py"), "albert-base:128"],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "finds no GPU here" in ended.stderr
    assert "NVIDIA GPU" in ended.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["albert-base"], "'albert-base' has no batch: write MODEL:BATCH, such as albert-base:128"),
        (["albert-base:"], "'albert-base:' has no batch"),
        (["albert-base:x"], "the batch of 'albert-base:x' is 'x', which is no whole number from 1 on"),
        (["albert-base:0"], "no whole number from 1 on"),
        (["albert-base:8:soon"], "does not end in a batch or in seconds"),
        (["albert-base:8:0"], "does not end in a batch or in seconds"),
        (["albert-base:8:15:2"], "does not end in a batch or in seconds"),
        (["albert-base:8", "albert-lrge:8"], "'albert-lrge' is not a preset: did you mean 'albert-large'?"),
        (["albert-base:8", "albert-base:16"], "albert-base is named twice"),
        (["albert-micro:8"], "--length is 512, but albert-micro has 128 positions"),
        (["albert-base:8", "--length", "2"], "max_length is 2"),
        (
            ["albert-base:8", "bert-base:8", "--which", "ours-one-batch"],
            "of the first model alone: leave bert-base:8 out",
        ),
        (["albert-base:8", "--tokenizer", "nowhere"], "nowhere does not exist"),
    ],
)
@pytest.mark.usefixtures("gpu", "no_process")
def test_wrong_words_are_told_before_anything_is_started(words: list[str], sentence: str) -> None:
    said = said_by_pretrain(*words)
    assert said.startswith("error: ")
    assert sentence in said


@pytest.mark.usefixtures("no_gpu", "no_process")
def test_wrong_words_are_told_where_there_is_no_gpu_too() -> None:
    assert "no batch" in said_by_pretrain("albert-base")


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("NVIDIA H200", "speed-h200"),
        ("NVIDIA GeForce RTX 4090", "speed-geforce-rtx-4090"),
        ("Tesla V100-SXM2-16GB", "speed-tesla-v100-sxm2-16gb"),
    ],
)
def test_each_gpu_has_a_folder_of_its_own(device: str, folder: str) -> None:
    assert folder_for(device) == BENCH.parent / "results" / folder


@pytest.mark.usefixtures("gpu", "no_process")
def test_figures_of_more_implementations_are_not_written_over(tmp_path: Path) -> None:
    write_model(tmp_path, "albert-base", {"ours": run_of(1.0), "eager": run_of(1.0)})
    before = (tmp_path / "albert-base.json").read_text()
    said = said_by_pretrain("albert-base:8", "--which", "ours", "--out", str(tmp_path))
    assert f"{tmp_path / 'albert-base.json'} has eager too" in said
    assert "give another --out" in said
    assert (tmp_path / "albert-base.json").read_text() == before
    # Of a model that is not the first one batch is never measured alone.
    write_model(tmp_path, "albert-base", {"ours": run_of(1.0), "ours-one-batch": run_of(1.0)})
    assert "has ours-one-batch too" in said_by_pretrain("bert-base:8", "albert-base:8", "--out", str(tmp_path))


@pytest.mark.usefixtures("gpu", "no_process")
def test_a_file_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "albert-base.json").write_text("[]")
    assert "is no file of this bench" in said_by_pretrain("albert-base:8", "--out", str(tmp_path))


@pytest.mark.usefixtures("gpu")
def test_files_tell_what_was_asked_and_of_which_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(jobs: list[Job], _: Any) -> Iterator[tuple[Job, dict[str, Any]]]:
        for job in jobs:
            figures = {**SPEED, "tokens_per_second": 1000.0}
            yield job, {**figures, "compiled": "layer"} if job.kind == "ours" else figures

    monkeypatch.setattr(pretrain, "measured", made_up)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(pretrain_jobs, "ROOT", tmp_path)
    monkeypatch.setattr(
        pretrain_jobs, "_git", lambda *words: "0123456789\n" if "rev-parse" in words else " M src/a.py\n"
    )
    words = ["albert-base:8", "albert-tiny:4:3", "--which", "ours", "eager", "--ahead", "0", "--out", str(tmp_path)]
    for _ in range(2):  # figures of as many implementations are written over
        pretrain.main(words)
    found = json.loads((tmp_path / "albert-tiny.json").read_text())
    assert found["cudnn"] == 91002
    assert found["torch"] == torch.__version__
    assert found["transformers"].split(".")[0].isdecimal()
    assert found["compile"] == "auto"
    assert found["runs"]["ours"]["compiled"] == "layer"
    assert found["arguments"]["models"] == ["albert-base:8", "albert-tiny:4:3"]
    assert found["arguments"]["tokenizer"] == "albert-base-wikibooks"
    assert str(tmp_path) not in json.dumps(found)
    text = pretrain_report.report(tmp_path)
    head = " ".join(text.split("## Setup")[1].split())
    assert "--compile auto` (came to layer)" in head
    assert f"torch {torch.__version__}, transformers {found['transformers']}, cuDNN 91002" in head
    assert "Nothing else was prepared" in head
    assert found["commit"] == "0123456789"
    assert "commit 0123456, with changes" in head


@pytest.mark.usefixtures("gpu")
def test_a_checkout_without_git_tells_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretrain.argparse.Namespace(compile="whole")
    monkeypatch.setattr(pretrain_jobs, "ROOT", tmp_path)
    assert "commit" not in pretrain_jobs.conditions(asked)
    (tmp_path / ".git").write_text("gitdir: nowhere")  # git does not take it for a repository
    assert "commit" not in pretrain_jobs.conditions(asked)


@pytest.mark.parametrize(("ahead", "started"), [(0, [1, 2, 3, 4]), (1, [2, 3, 4, 4]), (9, [4, 4, 4, 4])])
def test_no_more_processes_get_ready_than_asked(
    ahead: int, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[str] = []
    seen: list[int] = []

    class Spawning:
        """Stands for processes: each is counted, and tells at once."""

        def Event(self) -> "Spawning":  # noqa: N802
            return self

        def Pipe(self, duplex: bool) -> tuple["Spawning", "Spawning"]:  # noqa: N802
            return self, self

        def Process(self, target: Any, args: Any) -> "Spawning":  # noqa: N802
            alive.append(args[0].kind)
            return self

        def recv(self) -> dict[str, Any]:
            seen.append(len(alive))
            return {}

        def start(self) -> None: ...

        close = set = join = kill = start

    monkeypatch.setattr(pretrain.multiprocessing, "get_context", lambda _: Spawning())
    jobs = [Job("albert-base", 8, kind, 1.0) for kind in pretrain_report.KINDS]
    assert [job for job, _ in pretrain.measured(jobs, pretrain.argparse.Namespace(ahead=ahead))] == jobs
    assert seen == started


def test_an_empty_folder_makes_no_report_but_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no MODEL\.json to make a table of"):
        pretrain_report.main([str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else_is_named_by_the_report(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"loss": 1.0}')
    with pytest.raises(SystemExit, match=r"run\.json is no file of bench/pretrain\.py"):
        pretrain_report.main([str(tmp_path)])


def test_models_of_different_runs_are_not_put_into_one_table(tmp_path: Path) -> None:
    write_model(tmp_path, "albert-base", {"ours": run_of(1000.0)})
    write_model(tmp_path, "bert-base", {"ours": run_of(1000.0)}, matmul_peak_tflops=600.0)
    with pytest.raises(SystemExit, match="not of one run"):
        pretrain_report.main([str(tmp_path)])


def test_a_report_has_no_ratio_where_ours_is_missing_or_found_no_room(tmp_path: Path) -> None:
    write_model(tmp_path, "albert-base", {"ours": run_of(3000.0), "eager": run_of(1000.0)})
    write_model(tmp_path, "albert-large", {"ours": {"out_of_memory": True}, "eager": run_of(1000.0)})
    write_model(tmp_path, "bert-large", {"compiled": run_of(1000.0)}, step_flops=2e12)
    pretrain_report.main([str(tmp_path)])
    text = (tmp_path / "report.md").read_text()
    first, second, _, _, speedup = rows_of(text, "albert-base")
    assert first.endswith("| 20.0 |  |")
    assert second.endswith("| 20.0 | 3.00x |")
    assert speedup == "| albert-base | 5.6x | 2.00x |  |"
    assert "out of memory" in rows_of(text, "albert-large")[0]
    assert rows_of(text, "albert-large")[1].endswith("| 20.0 |  |")
    assert rows_of(text, "bert-large")[0].endswith("| 20.0 |  |")
    for table in (block for block in text.split("\n\n") if block.startswith("|")):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_report_can_be_made_where_nothing_found_room(tmp_path: Path) -> None:
    write_model(tmp_path, "bert-large", {"ours": {"out_of_memory": True}}, matmul_peak_tflops=0.0)
    assert "out of memory" in pretrain_report.report(tmp_path)


def test_models_that_are_not_the_papers_come_last_and_have_no_figure_of_it(tmp_path: Path) -> None:
    for name, rate in (("albert-base-v2", 4000.0), ("bert-large", 1000.0), ("albert-base", 3000.0)):
        write_model(tmp_path, name, {"ours": run_of(rate)})
    text = pretrain_report.report(tmp_path)
    table = [line.split(" | ")[0].strip("| ") for line in text.split("\n\n")[2].splitlines()[2:]]
    assert table == ["albert-base", "bert-large", "albert-base-v2"]
    assert rows_of(text, "albert-base-v2")[-1] == "| albert-base-v2 |  | 1.00x | 4.00x |"


def test_the_committed_report_is_what_its_files_make() -> None:
    for file in (BENCH.parent / "results").glob("speed-*/**/report.md"):
        assert pretrain_report.report(file.parent) == file.read_text()


def test_the_report_gives_mfu_by_one_formula_and_executed_flops_by_implementation(tmp_path: Path) -> None:
    model_flops = Job("albert-base", 128, "ours", 0.0).model_flops(512)
    write_model(tmp_path, "albert-base", {"ours": run_of(3000.0), "eager": run_of(1000.0)}, step_flops=model_flops)
    ours, theirs = rows_of(pretrain_report.report(tmp_path), "albert-base")[2:]
    # 1 - 0.940: the last of 12 layers without queries, outputs and feed-forward at 434 of 512 positions.
    assert ours == "| albert-base | openalbert | 50.0 | 0.940 | 47.0 |"
    # 1.035 - 1: the vocabulary scored at the other 435 positions.
    assert theirs == "| albert-base | transformers, eager | 50.0 | 1.035 | 51.8 |"


@pytest.mark.parametrize(
    ("device", "sentence"), [("cuda", "finds no GPU here: give --device cpu"), ("gpu", "runs on cpu or cuda")]
)
@pytest.mark.usefixtures("no_gpu")
def test_a_device_that_is_not_there_is_told_in_a_sentence(device: str, sentence: str) -> None:
    with pytest.raises(SystemExit) as end:
        finetune.main(["--device", device])
    assert sentence in str(end.value)


def test_speeds_and_scores_of_finetuning_become_two_tables(tmp_path: Path) -> None:
    settings = {"device": "cpu", "preset": "albert-base", "layers": None, "batch": 32, "turns": 3, "seconds": 10.0}
    settings |= {"score_task": "sst2", "score_steps": 600, "score_rate": 2e-5}
    part = {"settings": settings, "machine": "1 x CPU", "peer": "transformers 5.17.0"}
    ratios = {"ours": [2.0, 2.5, 3.0], "eager": [1.5, 1.0, 1.25]}
    speed = {"shape": "SST-2", "batch": 32, "ours": 50.04, "eager": 25.0, "theirs": 20.0, "padding": 0.664}
    scores = [
        {"model": "12 layers, 768 wide", "seed": 1, "ours": 90.0, "theirs": 89.0},
        {"model": "12 layers, 768 wide", "seed": 2, "ours": 92.0, "theirs": 89.0},
    ]
    found = {"speed": {**part, "rows": [{**speed, "ratios": ratios}]}, "scores": {**part, "rows": scores}}
    (tmp_path / "note.md").write_text("Of this run alone.\n")
    finetune_report.write(tmp_path, found)
    assert json.loads((tmp_path / "run.json").read_text()) == {"script": "bench/finetune.py", **found}
    text = (tmp_path / "report.md").read_text()
    words = " ".join(text.split())
    assert "albert-base, 12 layers, batch 32, random tokens; 1 x CPU; transformers 5.17.0. 3 turns, in each" in words
    assert "| SST-2 | 66 | packed | 50.0 | 20.0 | 2.50x | 2.00x | 3.00x |" in text
    assert "| SST-2 | 66 | packed, without CUDA graphs | 25.0 | 20.0 | 1.25x | 1.00x | 1.50x |" in text
    assert (
        "| seed | ours | Trainer |\n|---|---|---|\n| 1 | 90.00 | 89.00 |\n| 2 | 92.00 | 89.00 |\n"
        "| mean | 91.00 | 89.00 |\n| standard deviation | 1.41 | 0.00 |\n"
    ) in text
    assert text.endswith("\n\nOf this run alone.\n")


@pytest.mark.parametrize(("script", "folder"), [(order_cue, "order-cue"), (two_signals, "two-signals")])
def test_the_committed_reports_of_single_scripts_are_what_their_files_make(script: Any, folder: str) -> None:
    place = BENCH.parent / "results" / folder
    assert script.report(json.loads((place / "run.json").read_text())) == (place / "report.md").read_text()


def test_order_is_predicted_from_lengths_where_they_reveal_it_and_not_where_they_do_not() -> None:
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(rng.integers(3, 60, 40_000))])
    documents = np.arange(0, len(starts), 100)
    google, whole = (
        order_cue.order_accuracy(starts, documents, SentenceOrder(chunks=chunks), 128, 6000)
        for chunks in ("google", "whole")
    )
    assert google["accuracy"] > 0.5 + 4 * google["standard_error"]
    assert abs(whole["accuracy"] - 0.5) < 4 * whole["standard_error"]
    # Over documents, where the lengths of all sentences are drawn alike, it is that of independent examples.
    assert whole["standard_error"] == pytest.approx(0.5 / whole["examples"] ** 0.5, rel=0.2)


def test_the_committed_reports_of_finetuning_are_what_their_files_make() -> None:
    for folder in (BENCH.parent / "results").glob("finetune-*"):
        assert finetune_report.report(folder) == (folder / "report.md").read_text()


def test_our_side_of_finetuning_takes_steps_and_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    ours: list[Any] = []

    def our_steps(model: Any, sequences: Any, *settings: Any) -> Iterator[Any]:
        ours.append(sequences)
        return finetune_sides.our_steps(model, sequences, *settings)

    class Trainer:
        """Stands for the peer, which needs packages that the tests do without."""

        def __init__(self, *settings: Any) -> None:
            self.clock = settings[-1]
            given.append(settings[1])

        def train(self) -> None:
            number = 0
            while not self.clock.step(number := number + 1):
                pass

    monkeypatch.setattr(finetune, "ROOT", tmp_path)
    monkeypatch.setattr(finetune, "check_machine", lambda _: None)
    monkeypatch.setattr(finetune, "trainer_of", Trainer)
    monkeypatch.setattr(finetune, "our_steps", our_steps)
    finetune.main("--preset albert-tiny --layers 1 --batch 4 --shapes SST-2 --steps 2".split())
    found = json.loads((tmp_path / "results" / "finetune-cpu" / "run.json").read_text())
    assert found["speed"]["rows"][0]["ours"] > 0
    # Seven turns, and in each of them both sides had the same examples, of two batches.
    assert len(found["speed"]["rows"][0]["ratios"]["ours"]) == len(given) == 7
    assert {len(sequences.example) for sequences in given} == {8}
    assert len({sequences.ids.tobytes() for sequences in given}) == 7
    assert [sequences.ids.tobytes() for sequences in ours] == [sequences.ids.tobytes() for sequences in given]
    assert "| SST-2 |" in (tmp_path / "results" / "finetune-cpu" / "report.md").read_text()


@pytest.mark.slow
def test_the_timed_demo_keeps_its_run_its_times_and_a_report_made_of_them(tmp_path: Path) -> None:
    demo.main(["--out", str(tmp_path), "--", "--steps", "20", "--corpus-megabytes", "1", "--vocab-size", "500"])
    times = json.loads((tmp_path / "times.json").read_text())
    assert len(times["stages"]) == 6
    assert sum(times["stages"].values()) <= times["seconds"] + 1
    assert json.loads((tmp_path / "run.json").read_text())["preset"] == "albert-demo"
    assert "--- done in" in (tmp_path / "output.txt").read_text()
    text = (tmp_path / "report.md").read_text()
    assert text == demo.report(tmp_path)
    assert f"| wall time of all stages, minutes | {times['seconds'] / 60:.1f} |" in text


def test_the_committed_report_of_a_timed_demo_is_what_its_files_make() -> None:
    for times in (BENCH.parent / "results").glob("demo/times.json"):
        assert demo.report(times.parent) == (times.parent / "report.md").read_text()
