"""Runs read back from their folders, whatever happened to a run while it wrote."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pretraining.made_runs import make_run, metrics, run_info

from openalbert.errors import UserError
from openalbert.report.run_reader import read_run, read_runs


def test_every_record_of_a_whole_run_is_read(tmp_path: Path) -> None:
    lines = metrics(50)
    run = read_run(make_run(tmp_path / "run", lines=lines))
    train = [line for line in lines if line["kind"] == "train"]
    held_out = [line for line in lines if line["kind"] == "evaluation"]
    for name in ("step", "tokens", "mlm_loss", "depth", "seconds"):
        assert run.train.columns[name].tolist() == [line[name] for line in train]
    assert run.evaluation.columns["perplexity"].tolist() == [line["perplexity"] for line in held_out]
    assert [(event.step, event.what) for event in run.events] == [
        (line["step"], line["what"]) for line in lines if line["kind"] == "event"
    ]
    assert run.remarks == ()
    assert run.is_finished


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 4000))
def test_a_file_cut_anywhere_gives_the_records_before_the_cut(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_run(tmp_path_factory.mktemp("runs") / "run", lines=metrics(10))
    whole = (folder / "metrics.jsonl").read_bytes()
    kept = whole[: min(cut, len(whole))]
    (folder / "metrics.jsonl").write_bytes(kept)
    run = read_run(folder)
    expected = [json.loads(line) for line in whole.splitlines()][: len(kept.splitlines())]
    last = kept.splitlines()[-1]
    is_whole = last in whole.splitlines()
    expected = expected if is_whole else expected[:-1]
    assert run.train.columns["step"].tolist() == [line["step"] for line in expected if line["kind"] == "train"]
    assert [("cut off" in remark) for remark in run.remarks] == [True] * (not is_whole)


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in metrics(10, order=False)]
    lines[2] = "}{"
    lines[4] = '{"kind": "train", "step": "five"}'
    lines[5] = "[1, 2]"
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    assert len(run.train) + len(run.evaluation) + len(run.events) == len(lines) - 3
    assert run.remarks == ("metrics.jsonl is damaged (3 lines, the first is 3): what cannot be read is skipped.",)


def test_two_records_on_one_line_do_not_pass_for_one(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in metrics(4)]
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("\n".join([lines[0] + "," + lines[2], *lines[3:]]) + "\n")
    assert "damaged (line 1)" in read_run(folder).remarks[0]


def test_values_that_are_no_numbers_are_gaps(tmp_path: Path) -> None:
    lines = [line for line in metrics(6) if line["kind"] == "train"]
    lines[0]["mlm_loss"] = None
    lines[1]["mlm_loss"] = "7.1"
    lines[2]["mlm_loss"] = float("nan")
    lines[3]["mlm_loss"] = float("inf")
    run = read_run(make_run(tmp_path / "run", lines=lines))
    loss = run.train.columns["mlm_loss"]
    assert np.isnan(loss[:3]).all()
    assert np.isinf(loss[3])
    assert np.isfinite(loss[4:]).all()


def test_of_steps_recorded_twice_the_later_record_counts(tmp_path: Path) -> None:
    first = [line for line in metrics(10, seed=1) if line["kind"] == "train"]
    second = [line for line in metrics(10, seed=2) if line["kind"] == "train"]
    run = read_run(make_run(tmp_path / "run", lines=[*first[:7], *second[4:]]))
    expected = [*first[:4], *second[4:]]
    assert run.train.columns["mlm_loss"].tolist() == [line["mlm_loss"] for line in expected]
    assert run.remarks == ("3 train records were written again after a restart: the later count.",)


def test_records_of_an_attempt_that_collapsed_are_not_counted_as_of_a_restart(tmp_path: Path) -> None:
    first = [line for line in metrics(10, seed=1) if line["kind"] == "train"]
    second = [line for line in metrics(10, seed=2) if line["kind"] == "train"]
    collapsed = {"kind": "event", "step": first[5]["step"], "what": "collapsed", "text": "collapsed"}
    run = read_run(make_run(tmp_path / "run", lines=[*first[:6], collapsed, *second]))
    assert run.train.columns["mlm_loss"].tolist() == [line["mlm_loss"] for line in second]
    assert run.remarks == ("6 train records were written again after a collapse: the later count.",)
    # And a restart within the second attempt is still noted.
    run = read_run(make_run(tmp_path / "both", lines=[*first[:6], collapsed, *second[:4], *second[3:]]))
    assert run.remarks == (
        "6 train records were written again after a collapse: the later count.",
        "1 train record was written again after a restart: the later count.",
    )


def test_a_restart_before_a_collapse_is_noted_as_a_restart(tmp_path: Path) -> None:
    first = [line for line in metrics(10, seed=1) if line["kind"] == "train"]
    second = [line for line in metrics(10, seed=2) if line["kind"] == "train"]
    collapsed = {"kind": "event", "step": first[5]["step"], "what": "collapsed", "text": "collapsed"}
    # Steps 3 to 5 come again after a restart; then all of the six collapse, twice; then step 4 again after a restart.
    attempt = [*first[:5], *first[2:6], collapsed]
    run = read_run(make_run(tmp_path / "run", lines=[*attempt, *first[:2], collapsed, *second[:4], *second[3:]]))
    assert run.train.columns["mlm_loss"].tolist() == [line["mlm_loss"] for line in second]
    assert run.remarks == (
        "8 train records were written again after a collapse: the later count.",
        "4 train records were written again after a restart: the later count.",
    )


def test_time_and_tokens_between_records_are_in_proportion(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", lines=metrics(10)))
    seconds, tokens = run.train.columns["seconds"], run.train.columns["tokens"]
    assert run.seconds_at(np.array([0.0, 20.0, 30.0])).tolist() == pytest.approx(
        [0, seconds[0], (seconds[0] + seconds[1]) / 2]
    )
    assert run.tokens_at(np.array([10.0])).tolist() == [tokens[0] / 2]


def test_a_run_without_metrics_or_run_info_is_noted_as_such(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    (folder / "run_info.json").write_text('{"openalbert": ')
    run = read_run(folder)
    assert len(run.train) == len(run.evaluation) == 0
    assert not run.is_finished
    assert ["damaged" in remark or "no metrics.jsonl yet" in remark for remark in run.remarks] == [True, True]


def test_what_is_no_run_is_refused_with_what_may_have_been_meant(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    with pytest.raises(UserError, match=r"runs is no run, it has no run.json: did you mean one of these in it: mine\?"):
        read_run(tmp_path / "runs")
    with pytest.raises(UserError, match="nothing does not exist"):
        read_run(tmp_path / "nothing")
    (tmp_path / "runs" / "mine" / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json is not JSON"):
        read_run(tmp_path / "runs" / "mine")


def test_runs_of_one_name_get_distinct_names_and_none_counts_twice(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / parent / "run") for parent in ("a", "b")]
    assert len({run.name for run in read_runs(folders)}) == 2
    with pytest.raises(UserError, match="named twice"):
        read_runs([folders[0], tmp_path / "a" / "." / "run"])


def test_run_info_of_the_wrong_type_is_unknown_and_no_error(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", known=run_info(data=["not", "an", "object"], actual="no")))
    assert run.info("data", "train_tokens") is None
    assert not run.is_finished


def test_the_metrics_table_holds_every_record_once_in_order_of_steps(tmp_path: Path) -> None:
    lines = metrics(40)
    run = read_run(make_run(tmp_path / "run", lines=lines))
    table = run.metrics_table()
    records = [line for line in lines if line["kind"] != "event"]
    assert [(kind, step) for kind, step in zip(table["kind"], table["step"], strict=True)] == [
        (line["kind"], line["step"]) for line in records
    ]
    for name in ("tokens", "mlm_loss", "lr", "perplexity", "examples"):
        expected = [line.get(name, np.nan) for line in records]
        assert table[name] == pytest.approx(expected, nan_ok=True)
    assert {len(column) for column in table.values()} == {len(records)}
    assert "nsp_loss" not in table  # no record has it
    last = [line for line in lines if line["kind"] == "train"][-1]
    assert table["seconds"][-1] == pytest.approx(last["seconds"])  # of training, not of the evaluation
    assert all(type(value) in (int, float, str) for column in table.values() for value in column)


def test_the_metrics_table_of_a_fine_tuning_run_has_the_metrics_of_its_task(quick_runs: dict[str, Path]) -> None:
    run = read_run(quick_runs["classification"])
    assert run.task_metrics[0] == "accuracy"
    table = run.metrics_table()
    held_out = [kind == "evaluation" for kind in table["kind"]]
    assert np.isfinite(table["accuracy"]).tolist() == held_out
    assert np.isfinite(table["classification_loss"]).tolist() == [not held for held in held_out]


def test_the_metrics_table_of_a_run_without_records_is_empty(tmp_path: Path) -> None:
    assert read_run(make_run(tmp_path / "run", lines=[])).metrics_table() == {"kind": [], "step": []}
