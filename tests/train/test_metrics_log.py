"""What a run tells: plain lines and a bar, means over windows, TensorBoard."""

import json
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pretraining.micro_runs import command, micro_run, records

from openalbert import cli
from openalbert.errors import UserError
from openalbert.formatting import throughput
from openalbert.train.loop import Step, TrainState
from openalbert.train.metrics_log import MetricsLog, Window

LINE = re.compile(
    r"step [\d,]+  loss \d+\.\d{3}  mlm_acc \d+\.\d %  sop_acc \d+\.\d %  ([\d,]+\.\d ktok/s|\d+ tok/s)  "
    r"lr \d\.\d\de[-+]\d\d(  eta \d+:\d\d:\d\d)?"
)


def step(number: int, loss: float = 2.0, is_skipped: bool = False, right: int = 1) -> Step:
    return Step(
        number, {"mlm": (loss * 4, 4, right), "sop": (1.4, 2, 1)}, loss + 0.7, 1.5, 0.001, 2,
        (number - 1) / 10, is_skipped, False,
    )  # fmt: skip


def test_a_record_holds_the_means_since_the_one_before(tmp_path: Path) -> None:
    metrics_log = MetricsLog(tmp_path, True, False, flops_per_token=lambda depth: 100.0, peak=1e6)
    train_state = TrainState()
    for number, loss in enumerate((3.0, 1.0, 8.0, 5.0), 1):
        train_state.step, train_state.tokens, train_state.seconds = number, 1000 * number, 0.5 * number
        metrics_log.add_step(step(number, loss, is_skipped=number == 3, right=number), train_state, number / 10)
        if number in (2, 4):
            metrics_log.write_window(step(number, loss), train_state)
    first, second = records(tmp_path, "train")
    assert (first["step"], first["mlm_loss"], first["mlm_acc"]) == (2, 2.0, 3 / 8)
    assert first["grad_norm"] == 1.5
    assert first["tokens_per_second"] == 2000.0
    assert first["mfu"] == 0.2
    # The third step was skipped: it has no part in the mean.
    assert (second["mlm_loss"], second["mlm_acc"]) == (5.0, 1.0)


def test_a_window_whose_steps_were_all_skipped_has_no_loss_norm_or_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr("openalbert.progress.SECONDS_BETWEEN_LINES", 0.0)
    metrics_log = MetricsLog(tmp_path, True, True, flops_per_token=lambda depth: 100.0, peak=1e6)
    train_state = TrainState()
    for number in range(1, 7):
        train_state.step, train_state.tokens, train_state.seconds = number, 1000 * number, 0.5 * number
        metrics_log.add_step(step(number, 2.0, is_skipped=number in (3, 4)), train_state, number / 10)
        if number % 2 == 0:
            metrics_log.write_window(step(number), train_state)
    metrics_log.close()
    before, gap, after = records(tmp_path, "train")
    means = {"loss", "grad_norm", "mlm_loss", "mlm_acc"}
    means |= {"sop_loss", "sop_acc"}
    assert set(before) - set(gap) == means
    assert set(after) == set(before)
    assert (gap["step"], gap["tokens"], gap["tokens_per_second"]) == (4, 4000, 2000.0)
    lines = capsys.readouterr().err.splitlines()
    assert "step 3  loss –  mlm_acc –  sop_acc –  2.0 ktok/s" in lines[2]
    # A NaN breaks TensorBoard's line; a step without a value would not.
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    for name in means:
        values = [event.value for event in board.Scalars(f"train/{name}")]
        assert [math.isnan(value) for value in values] == [False, True, False]


def test_a_window_reads_back_equal_and_resumes(tmp_path: Path) -> None:
    window = Window()
    window.add(step(1, 3.0))
    again = Window(json.loads(json.dumps(vars(window))))
    window.add(step(2, 1.0))
    again.add(step(2, 1.0))
    assert again.metrics() == window.metrics()


def test_what_was_recorded_after_a_checkpoint_is_cut_off_when_a_run_resumes(tmp_path: Path) -> None:
    metrics_log = MetricsLog(tmp_path, True, False, lambda depth: 1.0, 1.0)
    metrics_log.record({"kind": "event", "step": 1, "what": "depth", "text": "kept"})
    size = metrics_log.size
    metrics_log.record({"kind": "event", "step": 2, "what": "depth", "text": "not kept"})
    metrics_log.resume(size, {}, TrainState())
    assert [event["text"] for event in records(tmp_path, "event")] == ["kept"]
    with pytest.raises(UserError, match="it was changed"):
        metrics_log.resume(size + 1, {}, TrainState())


@pytest.mark.parametrize("deepens", [True, False])
def test_the_depth_is_reported_only_where_it_changes(
    deepens: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics_log = MetricsLog(tmp_path, True, False, lambda depth: 1.0, 1.0, deepens)
    metrics_log.add_step(step(1), TrainState(step=1, tokens=10, seconds=1.0), 0.1)
    line = capsys.readouterr().err
    assert "step 1  loss 2.7" in line
    assert ("depth 2" in line) == deepens


@pytest.mark.parametrize(
    ("tokens_per_second", "written"),
    [
        (0.26, "0.3 tok/s"),
        (38.2, "38 tok/s"),
        (999.4, "999 tok/s"),
        (999.6, "1.0 ktok/s"),
        (1_234_567.0, "1,234.6 ktok/s"),
    ],
)
def test_a_line_tells_the_throughput_in_a_unit_that_fits(tokens_per_second: float, written: str) -> None:
    assert throughput(tokens_per_second) == written


def test_the_fraction_of_the_peak_is_reported_where_the_peak_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for peak in (400.0, None):
        metrics_log = MetricsLog(tmp_path, True, False, lambda depth: 10.0, peak)
        metrics_log.add_step(step(1), TrainState(step=1, tokens=10, seconds=1.0), 0.1)
        metrics_log.write_window(step(1), TrainState(step=1, tokens=10, seconds=1.0))
    known, unknown = capsys.readouterr().err.splitlines()
    assert "10 tok/s  MFU 25 %  lr" in known
    assert "10 tok/s  lr" in unknown
    assert [record.get("mfu") for record in records(tmp_path, "train")] == [0.25, None]


def test_only_the_main_process_speaks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics_log = MetricsLog(tmp_path, False, True, lambda depth: 1.0, 1.0)
    metrics_log.add_step(step(1), TrainState(step=1, tokens=10, seconds=1.0), 0.1)
    metrics_log.write_window(step(1), TrainState(step=1, tokens=10, seconds=1.0))
    metrics_log.log("something")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert not list(tmp_path.iterdir())


def test_where_there_is_no_terminal_plain_lines_tell_everything(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openalbert.progress.SECONDS_BETWEEN_LINES", 0.0)
    micro_run(easy_shards, tmp_path / "run", "--steps 4")
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if " tok/s " in line or " ktok/s " in line]
    assert len(lines) == 4
    for number, line in enumerate(lines, 1):
        assert line.startswith(f"{25 * number:5.1f} %  ")
        assert LINE.fullmatch(line[9:]), line
        assert ("  eta " in line) == (number > 1)  # what the first step took says nothing of the others
    assert lines[-1].endswith("eta 0:00:00")
    assert "\x1b" not in said.err
    assert said.out == ""  # results only, and here there are none


def test_on_a_terminal_a_bar_tells_everything(tmp_path: Path, easy_shards: Path) -> None:
    main, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "openalbert", *command(easy_shards, tmp_path / "run", "--steps 12")]
    process = subprocess.Popen(words, stderr=terminal, stdout=subprocess.DEVNULL, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:  # how a pseudo-terminal says that the other side has gone
            break
        if not piece:
            break
        shown += piece
    os.close(main)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "training ━" in text
    assert LINE.search(text), text
    bars = re.findall(r"training ([━╸╺]+)", text)
    assert bars[-1] == "━" * 20, "a run that is done has a bar that is full"
    assert "step 12, held-out:" in text
    assert "done: the model is in" in text


def test_tensorboard_files_hold_what_the_metrics_hold(tmp_path: Path, easy_shards: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = micro_run(easy_shards, tmp_path / "run", "--steps 10 --tensorboard")
    board = EventAccumulator(str(out / "tensorboard"))
    board.Reload()
    for kind, name in (("train", "mlm_loss"), ("train", "lr"), ("evaluation", "perplexity")):
        shown = [(event.step, event.value) for event in board.Scalars(f"{kind}/{name}")]
        assert shown == [(record["step"], pytest.approx(record[name], rel=1e-6)) for record in records(out, kind)]


def test_without_tensorboard_a_sentence_says_how_to_get_it(
    tmp_path: Path, easy_shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit) as stop:
        cli.main(command(easy_shards, tmp_path / "run", "--steps 5 --tensorboard"))
    assert stop.value.code == 1
    assert "pip install 'openalbert[tensorboard]'" in capsys.readouterr().err
