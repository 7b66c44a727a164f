"""The folder of a run: which settings may change, and where it was trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from openalbert.pretraining.settings import FREE_TO_CHANGE, Pretrain
from openalbert.report.summary import over_all_starts
from openalbert.train.device import Speed
from openalbert.train.run import differences, record_move


def test_differences_name_each_setting_that_changes_what_is_learned_and_no_other() -> None:
    before = Pretrain(preset="albert-base", batch_size=64)
    now = replace(before, batch_size=32, seed=7, out=Path("elsewhere"), speed=Speed(threads=3))
    assert differences(before, now, FREE_TO_CHANGE) == ["batch_size was 64, now 32", "seed was 1, now 7"]
    assert differences(before, replace(before, log_every=3), FREE_TO_CHANGE) == []


def test_moves_whose_steps_were_lost_are_removed() -> None:
    run_info: dict[str, Any] = {"device": "a", "moves": [{"step": 5, "device": "b"}, {"step": 9, "device": "c"}]}
    record_move(run_info, {"device": "b"}, None, 7)
    assert [move["step"] for move in run_info["moves"]] == [5]
    record_move(run_info, {"device": "d"}, 2.0, 8)
    assert [(move["step"], move["device"]) for move in run_info["moves"]] == [(5, "b"), (8, "d")]
    assert run_info["moves"][-1]["matmul_peak_flops"] == 2.0


def test_a_value_that_run_info_does_not_have_is_no_move() -> None:
    old: dict[str, Any] = {"device": "1 x CPU"}
    record_move(old, {"device": "1 x CPU", "precision": "fp32"}, 1.0, 5)
    assert old["moves"] == []
    record_move(old, {"device": "2 x CPU", "precision": "fp32"}, 1.0, 5)
    assert over_all_starts(old, "device") == "1 x CPU, then 2 x CPU"
