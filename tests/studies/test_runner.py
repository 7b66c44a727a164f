"""Studies at the budget tiny: two variants of each, resumed, changed, damaged, split into jobs and merged."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.parsed_page import Page

from openalbert import cli
from openalbert.errors import UserError
from openalbert.studies import carry_out
from openalbert.studies.estimate import estimate_study
from openalbert.studies.plan import make_plan
from openalbert.studies.registry import STUDIES
from openalbert.studies.results import Results
from openalbert.studies.runner import merge, run_study
from openalbert.studies.settings import RunStudy
from openalbert.studies.study import Base, Claim, Study, Variant
from openalbert.studies.units import failures, is_done

# Two variants of each study that are as different as its variants get; together few runs, since many are shared.
TWO = {
    "sizes": ("bert-large", "albert-large"),
    "embedding": ("all shared, E = 64", "all shared, E = 128"),
    "sharing": ("E = 768, none shared", "E = 128, all shared"),
    "sentence": ("NSP", "SOP"),
    "time": ("bert-large", "albert-xxlarge"),
    "data": ("without", "with"),
    "dropout": ("with dropout", "without dropout"),
    "depth": ("1 layer", "3 layers"),
    "width": ("H = 1024", "H = 2048"),
    "deeper": ("12 layers", "24 layers"),
    "layers": ("ALBERT", "BERT"),
    "masking": ("n-grams, 15 %", "n-grams, 30 %"),
    "optimizer": ("LAMB, all shared", "Muon, all shared"),
}
QUICK = ("intrinsic.examples=32", "intrinsic.probe_steps=2", "intrinsic.layer_examples=8", "steps=6")


def settings(shards: Path, out: Path, store: Path | None = None, **changes: Any) -> RunStudy:
    defaults: dict[str, Any] = {"data": shards, "out": out, "store": store, "set": QUICK}
    return RunStudy(**{**defaults, **changes})


def run(chosen: RunStudy, own: Study | None = None) -> Results:
    results = run_study(chosen, own)
    assert results is not None
    return results


@pytest.fixture(scope="module")
def more_data(tmp_path_factory: pytest.TempPathFactory, easy_shards: Path) -> Path:
    """The same vocabulary and other text: the held-out split as training text would do, so the shards are copied."""
    from tests.pretraining.made_shards import easy_text, made_shards

    return made_shards(tmp_path_factory.mktemp("more"), easy_text(170), heldout=easy_text(10, seed=1))


@pytest.mark.parametrize("study", STUDIES)
def test_two_variants_of_the_study_are_trained_evaluated_and_reported(
    study: str, easy_shards: Path, more_data: Path, store: Path, tmp_path: Path
) -> None:
    length = ("minutes=0.005",) if study == "time" else QUICK[-1:]
    out = tmp_path / study
    results = run(
        settings(easy_shards, out, store, study=study, more_data=more_data, only=TWO[study], set=(*QUICK[:-1], *length))
    )
    assert [row.variant.name for row in results.rows] == list(TWO[study])
    for row in results.rows:
        assert not row.failure
        for metric in ("mlm", "sop", "nsp"):
            found = row.interval(metric, ())
            assert found is not None
            assert found.low <= found.value <= found.high
        assert row.minutes is not None
        assert row.flops is not None
    report = (out / "report.md").read_text()
    assert re.findall(r"^## (.*)$", report, re.MULTILINE) == ["Result", "Setup", "Limits"]
    assert results.sentence() in report
    page = Page((out / "report.html").read_text())
    assert all(name in page.text for name in TWO[study])
    assert "`" not in page.text
    read_alike = "read the same examples in the same order" in report
    assert read_alike == (study not in ("sentence", "data"))
    assert ("under the same masks" in report) == (study not in ("sentence", "data", "masking"))
    assert ("E = 64 of the paper is 8" in report) == (study == "embedding")
    assert ("H = 1024 of the paper is 16" in report) == (study == "width")
    assert not re.search(r"(src|href)=\"http", (out / "report.html").read_text())
    for name in ("curves.png", *(["layers.png"] if study == "layers" else [])):
        assert (out / name).stat().st_size > 1000
    numbers = json.loads((out / "results.json").read_text())
    assert set(numbers["variants"]) == set(TWO[study])
    if study == "sizes":
        assert "### Speed" in report
        assert numbers["variants"]["albert-large"]["speed"]["tokens_per_second"] > 0
    if study == "depth":
        deep = next(unit for unit in plan_units(results) if unit.variant == "3 layers")
        info = json.loads((deep.run_folder / "run_info.json").read_text())
        assert info["initialized_from"] == "pretrain"
        assert Path(deep.pretrain.warm_start).parent.name == deep.after


def plan_units(results: Results) -> Iterator[Any]:
    return (one.unit for row in results.rows for one in row.results)


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_all_variants_of_the_study_are_trained_with_two_seeds(
    study: str, easy_shards: Path, more_data: Path, store: Path, tmp_path: Path
) -> None:
    results = run(settings(easy_shards, tmp_path / study, store, study=study, more_data=more_data, seeds=2, set=()))
    assert all(len(row.by_seed) == 2 and not row.failure for row in results.rows)


def test_variants_that_two_studies_have_in_common_are_trained_once(easy_shards: Path, tmp_path: Path) -> None:
    chosen = {
        name: make_plan(settings(easy_shards, tmp_path, study=name), STUDIES[name]) for name in TWO if name != "data"
    }
    keys = {name: {unit.variant: unit.key for unit in plan.units} for name, plan in chosen.items()}
    base = keys["sharing"]["E = 128, all shared"]
    assert base == keys["embedding"]["all shared, E = 128"] == keys["layers"]["ALBERT"]
    assert base == keys["masking"]["n-grams, 15 %"] == keys["optimizer"]["LAMB, all shared"]
    assert keys["sharing"]["E = 768, none shared"] == keys["layers"]["BERT"]
    assert base == keys["dropout"]["without dropout"]


def test_the_key_of_a_unit_depends_on_what_is_learned_and_on_nothing_else(easy_shards: Path, tmp_path: Path) -> None:
    def key(**changes: Any) -> str:
        return (
            make_plan(
                settings(easy_shards, tmp_path / "a", study="sharing")
                if not changes
                else replace(settings(easy_shards, tmp_path / "b", study="sharing"), **changes),
                STUDIES["sharing"],
            )
            .units[0]
            .key
        )

    moved = tmp_path / "moved"
    shutil.copytree(easy_shards, moved)
    assert key() == key(data=moved) == key(store=tmp_path / "other") == key(set=(*QUICK, "log_every=7"))
    assert key() == key(set=(*QUICK, "intrinsic.examples=8"))
    learned = ("batch_size=4", "objective.max_length=24", "optimizer.learning_rate=0.5", "model.ffn_size=64")
    for setting in (*learned, "distill=albert-base-wikibooks"):
        assert key(set=(*QUICK, setting)) != key(), setting
    units = make_plan(settings(easy_shards, tmp_path, study="depth", seeds=2), STUDIES["depth"]).units
    assert len({unit.key for unit in units}) == len(units)


def test_other_heldout_text_is_evaluated_on_again_and_nothing_is_trained_again(
    easy_shards: Path, more_data: Path, tmp_path: Path
) -> None:
    study = own_study("heldout", a={})
    first = run(settings(easy_shards, tmp_path / "a"), study).rows[0].results[0]
    trained = (first.unit.run_folder / "run_info.json").stat().st_mtime_ns
    other = run(settings(easy_shards, tmp_path / "a", heldout=more_data), study).rows[0].results[0]
    assert other.unit.key == first.unit.key
    assert other.unit.intrinsic_stage != first.unit.intrinsic_stage
    assert other.measured["intrinsic"].values["mlm"] != first.measured["intrinsic"].values["mlm"]
    assert (first.unit.run_folder / "run_info.json").stat().st_mtime_ns == trained


def test_the_same_command_again_trains_nothing_and_a_new_task_only_fine_tunes(
    easy_shards: Path, glue_data: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(easy_shards, tmp_path, store, study="sharing", only=TWO["sharing"])
    run(chosen)
    trained: list[str] = []
    pretrain = carry_out.pretrain
    monkeypatch.setattr(carry_out, "pretrain", lambda run: (trained.append(run.preset), pretrain(run)))
    run(chosen)
    with_tasks = replace(chosen, tasks=("sst2", "cola"), task_data=glue_data)
    results = run(with_tasks)
    assert not trained
    assert results.tasks == ("sst2", "cola")
    table = (tmp_path / "report.md").read_text()
    assert "| SST-2 | CoLA | Avg | seeds |" in table
    for row in results.rows:
        average, sst2, cola = (row.interval(name, results.tasks) for name in ("average", "sst2", "cola"))
        assert average is not None
        assert sst2 is not None
        assert cola is not None
        assert average.value == pytest.approx((sst2.value + cola.value) / 2)
        stored = row.results[0].measured["sst2"]
        assert stored.values["score"] == pytest.approx(sst2.value)
        assert not list((row.results[0].unit.folder / "tasks").rglob("*.safetensors"))
    run(replace(with_tasks, set=(*QUICK, "batch_size=4"), tasks=(), only=TWO["sharing"][1:]))
    assert len(trained) == 1


def own_study(name: str, **changes: dict[str, Any]) -> Study:
    def variants(base: Base) -> list[Variant]:
        return [Variant(label, replace(base.pretrain, **change)) for label, change in changes.items()]

    return Study(name, "Ours", "", variants, (Claim("b is better", "b", "a", "mlm"),))


def test_a_variant_that_fails_is_reported_and_the_others_go_on(
    easy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = own_study("failing", a={}, b={"warm_start": "nowhere"}, c={"batch_size": 4})
    measure = carry_out.measure_intrinsic

    def without_memory(unit: Any) -> Any:
        if unit.variant == "c":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return measure(unit)

    monkeypatch.setattr(carry_out, "measure_intrinsic", without_memory)
    chosen = settings(easy_shards, tmp_path / "failing")
    results = run(chosen, study)
    said = capsys.readouterr().err
    assert "b, seed 1: pretraining FAILED: nowhere" in said
    report = (tmp_path / "failing" / "report.md").read_text()
    assert re.search(r"^\| b \| .* \| failed \|", report, re.MULTILINE)
    assert "c, seed 1: intrinsic failed: CUDA out of memory" in report
    assert "Failed: b, c." in results.sentence()
    assert results.rows[0].interval("mlm", ()) is not None
    # Tried again: what failed after pretraining does not train again.
    monkeypatch.setattr(carry_out, "measure_intrinsic", measure)
    before = (results.rows[2].results[0].unit.run_folder / "run_info.json").stat().st_mtime_ns
    again = run(chosen, study)
    assert [bool(row.failure) for row in again.rows] == [False, True, False]
    assert (again.rows[2].results[0].unit.run_folder / "run_info.json").stat().st_mtime_ns == before


def test_a_run_that_diverges_is_a_failure(easy_shards: Path, tmp_path: Path) -> None:
    from openalbert.optim.settings import OptimizerSettings

    wild = OptimizerSettings(kind="adamw", learning_rate=1e30)
    results = run(settings(easy_shards, tmp_path / "wild", set=("steps=40",)), own_study("wild", a={"optimizer": wild}))
    assert "no finite number" in results.rows[0].failure


def test_damaged_results_are_measured_again_and_damaged_weights_are_trained_again_with_a_notice(
    easy_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, chosen = own_study("damaged", a={}), settings(easy_shards, tmp_path / "damaged")
    unit = run(chosen, study).rows[0].results[0].unit
    arrays = next(unit.folder.glob("intrinsic-*.npz"))
    good = arrays.read_bytes()
    arrays.write_bytes(good[:-20])
    assert not is_done(unit)
    capsys.readouterr()
    run(chosen, study)
    assert "results are damaged (its checksum does not match): measured again" in capsys.readouterr().err
    assert arrays.read_bytes() == good
    weights = unit.run_folder / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:100])
    next(unit.folder.glob("intrinsic-*.json")).unlink()
    run(chosen, study)
    assert "pretraining: what was there cannot be used" in capsys.readouterr().err
    assert weights.read_bytes() == content
    assert arrays.read_bytes() == good
    next(unit.folder.glob("intrinsic-*.json")).write_text("{")
    results = run(replace(chosen, report_only=True), study)
    assert "the results are damaged" in results.remarks[0]
    assert "1 of 1 run are not done yet" in (tmp_path / "damaged" / "report.md").read_text()


def test_a_study_that_was_killed_resumes_and_ends_with_the_same_numbers(
    easy_shards: Path, store: Path, tmp_path: Path
) -> None:
    names = TWO["sharing"]
    words = ["study", "sharing", "--data", str(easy_shards), "--out", str(tmp_path / "killed"), "--only", *names]
    words += ["--store", str(tmp_path / "variants"), "--set", *QUICK]
    process = subprocess.Popen([sys.executable, "-m", "openalbert", *words], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while (
        process.poll() is None and time.monotonic() < until and not list(tmp_path.glob("variants/*/intrinsic-*.json"))
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cli.main(words)
    undisturbed = run(settings(easy_shards, tmp_path / "whole", store, study="sharing", only=names))
    killed = json.loads((tmp_path / "killed" / "results.json").read_text())
    for row in undisturbed.rows:
        found = row.interval("mlm", ())
        assert found is not None
        assert killed["variants"][row.variant.name]["metrics"]["mlm"] == found._asdict()


def test_jobs_that_ran_apart_are_merged_into_the_whole_study_and_reported_without_the_text(
    easy_shards: Path, store: Path, tmp_path: Path
) -> None:
    names = ("E = 768, none shared", "E = 128, all shared")
    apart = []
    for number in (1, 2):
        one = settings(
            easy_shards, tmp_path / f"job{number}" / "sharing", study="sharing", only=names, job=f"{number}/2"
        )
        results = run(one)
        apart.append(one.variants_folder)
        assert [len(row.by_seed) for row in results.rows] == [int(number == 1), int(number == 2)]
        assert "1 of 2 runs are not done yet." in (one.folder / "report.md").read_text()
    together = settings(easy_shards, tmp_path / "all" / "sharing", study="sharing", only=names, merge=tuple(apart))
    merged = run(replace(together, report_only=True))
    assert all(len(row.by_seed) == 1 for row in merged.rows)
    assert not list(together.variants_folder.rglob("*.safetensors"))
    whole = run(settings(easy_shards, tmp_path / "whole", store, study="sharing", only=names))
    assert [row.interval("mlm", ()) for row in merged.rows] == [row.interval("mlm", ()) for row in whole.rows]
    elsewhere = run(replace(together, data=Path("gone"), merge=(), report_only=True))
    assert [row.interval("mlm", ()) for row in elsewhere.rows] == [row.interval("mlm", ()) for row in whole.rows]
    assert elsewhere.command == together.command_line
    with pytest.raises(UserError, match="holds no variants"):
        merge(easy_shards, tmp_path / "none")


def test_units_that_start_from_one_another_belong_to_one_job(easy_shards: Path, tmp_path: Path) -> None:
    from openalbert.studies.runner import _subset

    units = make_plan(settings(easy_shards, tmp_path, study="depth", seeds=4), STUDIES["depth"]).units
    parts = [_subset(units, (number, 2)) for number in range(2)]
    assert sorted(unit.key for part in parts for unit in part) == sorted(unit.key for unit in units)
    assert [sorted({unit.seed for unit in part}) for part in parts] == [[1, 3], [2, 4]]


def test_a_dry_run_prints_minutes_of_each_variant_and_trains_nothing(
    easy_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "dry"
    assert run_study(settings(easy_shards, out, study="sharing", seeds=2, dry_run=True)) is None
    said = capsys.readouterr().out
    rows = re.findall(r"^(E = .*?shared) +2 .*?([\d.]+) +([\d.]+)$", said, re.MULTILINE)
    assert len(rows) == 8
    assert "in total" in said
    assert "pretraining alone, one run at a time, at " in said
    assert not out.exists()
    assert not (tmp_path / "variants").exists()


def test_minutes_follow_from_tokens_and_flops_and_equal_minutes_stay_what_they_are(
    easy_shards: Path, tmp_path: Path
) -> None:
    chosen = settings(easy_shards, tmp_path, study="depth", set=("tokens=6000000",))
    plan = make_plan(chosen, STUDIES["depth"])
    lines = estimate_study(plan, lambda unit: (1e9, 1.0)).splitlines()
    minutes = [float(line.split()[-2]) for line in lines[1:4]]
    assert minutes[1] / minutes[0] > 1.8
    masking = estimate_study(make_plan(replace(chosen, study="masking"), STUDIES["masking"]), lambda unit: (1e9, 1.0))
    by_rate = {
        rate: float(line.split()[-2])
        for rate in (15, 40)
        for line in masking.splitlines()
        if line.startswith(f"n-grams, {rate} %")
    }
    assert by_rate[40] > 1.02 * by_rate[15]  # more positions are predicted
    timed = make_plan(replace(chosen, study="time", set=("minutes=3.5",)), STUDIES["time"])
    lines = estimate_study(timed, lambda unit: (1e9, 1.0)).splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["3.5", "3.5", "7"]


def test_a_dry_run_counts_evaluation_and_fine_tuning_by_earlier_runs_and_no_pretraining_that_is_done(
    easy_shards: Path, glue_data: Path, tmp_path: Path
) -> None:
    study = own_study("estimate", a={}, b={"batch_size": 4})
    chosen = settings(easy_shards, tmp_path / "estimate", tasks=("sst2",), task_data=glue_data)
    first = run(replace(chosen, only=("a",)), study).rows[0].results[0]
    took = {title: measured.values["seconds"] for title, measured in first.measured.items()}
    estimate = estimate_study(make_plan(chosen, study), lambda unit: (1e9, 1.0))
    minutes = re.search(r"evaluation and fine-tuning: ([\d.e-]+) minutes, as measured in earlier runs", estimate)
    assert minutes is not None
    assert float(minutes[1]) == pytest.approx((took["intrinsic"] + took["sst2"]) / 60, rel=0.01)
    assert not re.search(r"^a ", estimate, re.MULTILINE)
    run(replace(chosen, tasks=()), study)
    estimate = estimate_study(make_plan(chosen, study), lambda unit: (1e9, 1.0))
    assert "all variants are pretrained" in estimate
    new_task = estimate_study(make_plan(replace(chosen, tasks=("cola",)), study), lambda unit: (1e9, 1.0))
    assert new_task.endswith("evaluation and fine-tuning are not counted: no run here has finished cola yet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study": "data"}, "give the shards of the larger one with --more-data"),
        ({"only": ("E = 128",)}, "is not a variant of this study: did you mean 'E = 128"),
        ({"set": ("batch=3",)}, "'batch' is not a setting"),
        ({"set": ("batch_size",)}, "write a name and a value"),
        ({"set": ("finetune.epoch=3",)}, "did you mean 'epochs'"),
        ({"tasks": ("sst2",)}, "give the folder of its data with --task-data"),
        ({"tasks": ("classification:gone.csv",)}, "gone.csv"),
        ({"study": "sharin"}, "did you mean 'sharing'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_trained(
    changes: dict[str, Any], message: str, easy_shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        run_study(settings(easy_shards, tmp_path / "out", **{"study": "sharing", **changes}))
    assert not (tmp_path / "variants").exists()


@pytest.mark.parametrize("job", ["0/2", "3/2", "2", "a/b"])
def test_a_job_that_is_none_is_refused(job: str) -> None:
    with pytest.raises(UserError, match="from 1/4 to 4/4"):
        RunStudy(job=job)


def test_shards_without_heldout_text_are_refused(tmp_path: Path) -> None:
    from tests.pretraining.made_shards import easy_text, made_shards

    shards = made_shards(tmp_path, easy_text(20))
    with pytest.raises(UserError, match="has no held-out text to evaluate on"):
        run_study(settings(shards, tmp_path / "out", study="sharing"))


def test_without_a_name_the_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["study"])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in STUDIES)


@pytest.mark.slow
def test_processes_train_several_variants_at_once_stop_when_asked_and_give_the_same_numbers(
    easy_shards: Path, glue_data: Path, store: Path, tmp_path: Path
) -> None:
    words = ["study", "depth", "--data", str(easy_shards), "--out", str(tmp_path / "processes"), "--parallel", "2"]
    words += ["--seeds", "2", "--set", *QUICK, "--tasks", "sst2", "--task-data", str(glue_data)]
    process = subprocess.Popen([sys.executable, "-m", "openalbert", *words], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while (
        process.poll() is None and time.monotonic() < until and not list(tmp_path.glob("variants/*/intrinsic-*.json"))
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert ": started; " in said
    assert said.endswith("stopped: the same command resumes each run from its checkpoint\n")
    done = subprocess.run([sys.executable, "-m", "openalbert", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    alone = run(
        settings(easy_shards, tmp_path / "alone", store, study="depth", seeds=2, tasks=("sst2",), task_data=glue_data)
    )
    found = json.loads((tmp_path / "processes" / "results.json").read_text())
    for row in alone.rows:
        for metric in ("mlm", "sst2"):
            own = row.interval(metric, alone.tasks)
            assert own is not None
            assert found["variants"][row.variant.name]["metrics"][metric] == own._asdict()


RAY = """
import json, sys
from ray.cluster_utils import Cluster
from openalbert.cli import main
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
try:
    main([*json.loads(sys.argv[1]), "--engine", "ray", "--ray-address", cluster.address])
finally:
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_ray_cluster_trains_the_units_and_gives_the_same_numbers(
    easy_shards: Path, store: Path, tmp_path: Path
) -> None:
    words = ["study", "depth", "--data", str(easy_shards), "--out", str(tmp_path / "ray"), "--seeds", "2"]
    words += ["--set", *QUICK]
    (tmp_path / "driver.py").write_text(RAY)
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "driver.py"), json.dumps(words)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    alone = run(settings(easy_shards, tmp_path / "alone", store, study="depth", seeds=2))
    found = json.loads((tmp_path / "ray" / "results.json").read_text())
    for row in alone.rows:
        own = row.interval("mlm", ())
        assert own is not None
        assert found["variants"][row.variant.name]["metrics"]["mlm"] == own._asdict()


def test_runs_in_processes_of_their_own_end_without_a_failure(easy_shards: Path, tmp_path: Path) -> None:
    results = run(settings(easy_shards, tmp_path / "out", parallel=2), own_study("processes", a={}))
    assert results.rows[0].results[0].is_finished
    assert not results.rows[0].failure


def test_a_process_that_writes_much_to_standard_error_does_not_stop_and_its_last_line_is_the_reason(
    easy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = tmp_path / "loud.sh"
    loud.write_text(
        "#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x >&2\necho >&2\necho 'no GPU is left' >&2\nexit 1\n"
    )
    loud.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(loud))
    results = run(settings(easy_shards, tmp_path / "out", parallel=2), own_study("loud", a={}))
    assert results.rows[0].failure == "pretraining: no GPU is left"


def test_a_process_that_dies_is_a_failure_and_one_that_was_stopped_is_not(easy_shards: Path, tmp_path: Path) -> None:
    from openalbert.studies.runner import _log_exit

    unit = make_plan(settings(easy_shards, tmp_path, study="layers"), STUDIES["layers"]).units[0]
    unit.folder.mkdir(parents=True)
    for number, is_failure in ((signal.SIGTERM, False), (signal.SIGKILL, True)):
        process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True, encoding="utf-8")
        process.send_signal(number)
        process.wait()
        _log_exit(process, unit, 1.0)
        assert bool(failures(unit)) == is_failure
    assert failures(unit) == {"pretraining": "its process was ended by SIGKILL"}


@pytest.mark.parametrize(
    ("handler", "grace", "code"),
    [
        ("times=$((times + 1)); [ $times = 2 ] && exit 7", None, 7),  # the first one came too late to stop its stage
        (":", 1.0, -signal.SIGKILL),
    ],
)
def test_processes_are_asked_to_stop_more_than_once_and_killed_when_their_time_is_over(
    handler: str, grace: float | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openalbert.studies import runner

    monkeypatch.setattr(runner, "SECONDS_BETWEEN_SIGNALS", 0.5)
    script = f"times=0; trap '{handler}' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    process.stdout.readline()
    runner._end([process], grace)
    assert process.returncode == code


ORPHAN = """
import signal, sys, threading, time
from openalbert.studies import carry_out
carry_out.SECONDS_BETWEEN_SIGNALS = 0.1
times = []
signal.signal(signal.SIGTERM, lambda *_: times.append(1))
threading.Thread(target=carry_out._end_with_parent, daemon=True).start()
until = time.monotonic() + 60
while len(times) < 2 and time.monotonic() < until:
    time.sleep(0.05)
sys.exit(len(times))
"""


def test_a_run_whose_parent_is_gone_is_asked_to_stop_more_than_once() -> None:
    assert subprocess.run([sys.executable, "-c", ORPHAN], stdin=subprocess.DEVNULL).returncode == 2
