"""The page of pretraining runs: true to the records, complete without a network, safe with any file content."""

import json
import math
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.pretraining.made_runs import ENTROPY, TRUTH, make_run, metrics, run_info
from tests.report.parsed_page import Page

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.pretraining.settings import Pretrain
from openalbert.report import charts
from openalbert.report.report import Report, report


def page_of(*folders: Path, out: Path | None = None) -> Page:
    target = out or folders[0] / "page.html"
    report(Report(runs=folders, out=target))
    return Page(target.read_text(encoding="utf-8"))


def test_the_headline_compares_the_last_evaluation_with_a_unigram_model_and_chance(tmp_path: Path) -> None:
    lines = metrics()
    last = [line for line in lines if line["kind"] == "evaluation"][-1]
    page = page_of(make_run(tmp_path / "mine", lines=lines))
    assert "albert-base · mine finished 11,813,810 parameters." in page.text
    assert "8,000 steps, 524 M tokens in 18 min of training, on NVIDIA H200." in page.text
    assert f"MLM loss {last['mlm_loss']:.3f} unigram model 6.970 chance 10.31" in page.text
    assert f"MLM accuracy {100 * last['mlm_acc']:.1f} % chance 0.0033 %" in page.text
    assert f"accuracy {100 * last['sop_acc']:.1f} % chance 50.0 %" in page.text
    assert f"the MLM loss is {ENTROPY - last['mlm_loss']:.2f} nats below the unigram entropy" in page.text
    assert "restarts 1" in page.text
    assert "step skipped: 1" in page.text
    assert "steps 8,000 8,000 1.00 tokens 512 M 524 M 1.02" in page.text
    assert "epochs over the training tokens 12.0" in page.text


def test_the_points_of_a_chart_are_those_of_the_records(tmp_path: Path) -> None:
    lines = metrics(100)
    folder = make_run(tmp_path / "mine", lines=lines)
    page = page_of(folder)
    train = [line for line in lines if line["kind"] == "train"]
    loss = page.data["charts"][0]["curves"][0]
    assert loss["steps"] == [line["step"] for line in train]
    assert loss["y"] == pytest.approx([line["mlm_loss"] for line in train], rel=1e-4)
    assert loss["minutes"] == pytest.approx([line["seconds"] / 60 for line in train], rel=1e-4)
    text = (folder / "page.html").read_text(encoding="utf-8")
    picture = ET.fromstring(re.findall(r"<figure.*?(<svg.*?</svg>)", text, flags=re.DOTALL)[0])
    for axis, unit, scale in (("steps", "step", 1.0), ("tokens", "tokens", 1.0), ("minutes", "seconds", 1 / 60)):
        group = picture.find(f"g[@class='by-{axis}']")
        assert group is not None
        path = next(path for path in group.iter("path") if path.get("class") == "run-0 training")
        points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", path.attrib["d"])[1:]]
        assert len(points) == len(train)
        # Places are a straight map of values: what is recovered from the ends must fit in between.
        x, y = np.array(points).T
        expected = np.array([line[unit] * scale for line in train])
        place = charts.LEFT + expected / expected[-1] * (charts.RIGHT - charts.LEFT)
        np.testing.assert_allclose(x, place, atol=0.06)
        values = np.array([line["mlm_loss"] for line in train])
        slope, start = np.polyfit(values, y, 1)
        assert slope < 0
        np.testing.assert_allclose(y, start + slope * values, atol=0.06)
    level = next(line for line in picture.iter("line") if line.get("class") == "level")
    assert float(level.attrib["y1"]) == pytest.approx(start + slope * ENTROPY, abs=0.1)


def test_three_axes_can_be_chosen_and_one_is(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "mine", lines=metrics(40)))
    radios = [attributes for tag, attributes in page.elements if tag == "input"]
    assert [(radio["value"], "checked" in radio) for radio in radios] == [
        ("steps", True),
        ("tokens", False),
        ("minutes", False),
    ]
    groups = [attributes.get("class") for tag, attributes in page.elements if tag == "g"]
    pictures = sum(tag == "figure" for tag, _ in page.elements)
    assert pictures == 9
    for axis in charts.AXES:
        assert groups.count(f"by-{axis}") == pictures


def test_the_page_asks_nothing_of_a_network(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "mine", lines=metrics(40))
    page = page_of(folder)
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object", "base", "form")]
    assert not [attributes for _, attributes in page.elements if {"src", "href", "action", "srcset"} & set(attributes)]
    text = (folder / "page.html").read_text(encoding="utf-8")
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert "url(" not in text.replace("url(#inside-", "")
    assert "default-src 'none'" in text


EVIL = "</script></style></title><script>alert(1)</script><img src=x onerror=alert(1)>&\"'"


def test_nothing_that_stands_in_a_runs_files_becomes_markup(tmp_path: Path) -> None:
    lines = [
        {**metrics(3)[0]},
        {"kind": "event", "step": 1, "what": EVIL, "text": EVIL},
    ]
    known = run_info(
        **dict.fromkeys(("openalbert", "torch", "python", "device", "started", "command", "precision"), EVIL),
        data={"folder": EVIL, "tokenizer": EVIL, "train_tokens": EVIL},
        estimate={"steps": EVIL},
        actual={"steps": EVIL},
    )
    evil_name = "<b onclick='alert(1)'>&amp;"
    first = make_run(tmp_path / evil_name, Pretrain(preset=EVIL, depth_schedule="1,12@0.5"), lines, known)
    second = make_run(tmp_path / "plain", lines=metrics(5))
    harmless = page_of(second)
    for page in (page_of(first), page_of(second, first)):
        assert evil_name in page.text
        assert "<img src=x onerror=alert(1)>" in page.text
        assert sum(tag == "script" for tag, _ in page.elements) == 2
        assert page.scripts[-1] == harmless.scripts[-1]
        assert not [tag for tag, _ in page.elements if tag in ("img", "b") and _.get("onclick")]
        allowed = {tag for tag, _ in harmless.elements} | {"pre", "ul", "li", "h3"}
        assert {tag for tag, _ in page.elements} <= allowed
        assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_several_runs_stand_in_the_same_pictures_with_what_differs(tmp_path: Path) -> None:
    settings = Pretrain(preset="albert-base", steps=800)
    first = make_run(tmp_path / "one", settings, metrics(40))
    second = make_run(tmp_path / "two", replace(settings, batch_size=512), metrics(30, seed=2, order=False))
    page = page_of(first, second, out=tmp_path / "both.html")
    assert page.text.startswith("2 runs compared – openalbert 2 runs compared run MLM loss")
    between = page.text.split("Settings that differ")[1].split("Data")[0]
    assert between.split() == "setting one two batch_size 4096 512 one".split()
    loss, order = page.data["charts"][0], page.data["charts"][2]
    assert [(curve["run"], curve["heldOut"]) for curve in loss["curves"]] == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
    ]
    assert [curve["run"] for curve in order["curves"]] == [0, 0]
    assert page.data["runs"] == ["one", "two"]
    assert "unigram model 6.970" in page.text


def test_equal_settings_and_more_runs_than_colours_are_told_apart(tmp_path: Path) -> None:
    settings = Pretrain(preset="albert-base", steps=800)
    runs = [make_run(tmp_path / f"run-{n}", settings, metrics(10, seed=n)) for n in range(charts.NUM_COLOURS + 1)]
    page = page_of(*runs, out=tmp_path / "page.html")
    assert "All settings are the same." in page.text
    found = {attributes["class"] for tag, attributes in page.elements if tag == "path" and attributes.get("class")}
    assert {"run-0 training", "run-0 dash-1 training"} <= found
    assert len({charts.look(n) for n in range(28)}) == 28


def test_a_run_that_is_going_on_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "going", lines=metrics()[:101], known=run_info())
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 2')
    page = page_of(folder)
    assert "unfinished" in page.text
    assert "The run is in progress or was stopped: the last record is of step" in page.text
    assert "The last line of metrics.jsonl is cut off" in page.text
    assert "The actual values are written at the end of the run." in page.text


def test_a_run_without_evaluation_or_without_records_is_said_to_be_so(tmp_path: Path) -> None:
    train = [line for line in metrics(40) if line["kind"] == "train"]
    page = page_of(make_run(tmp_path / "blind", lines=train))
    assert "There is no evaluation on held-out text: the final metrics are of training batches." in page.text
    assert f"MLM loss {train[-1]['mlm_loss']:.3f}" in page.text
    page = page_of(make_run(tmp_path / "empty", lines=[], known={}))
    assert "nothing is logged yet" in page.text
    assert "There is nothing to draw yet." in page.text


def test_one_point_that_is_not_finite_is_one_point(tmp_path: Path) -> None:
    lines = [line for line in metrics(40) if line["kind"] == "train"]
    lines[7]["mlm_loss"] = float("nan")
    page = page_of(make_run(tmp_path / "mine", lines=lines))
    assert " 1 drawn point has no finite value: the line has a gap there. " in page.text + " "


def test_a_curve_breaks_where_a_record_has_no_value_and_is_not_joined_over_it(tmp_path: Path) -> None:
    """As the journal writes a window whose steps were all skipped; a point alone between two gaps is a dot."""
    lines = [line for line in metrics(40) if line["kind"] == "train"]
    for number in (7, 9, 20):
        del lines[number]["mlm_loss"]
    folder = make_run(tmp_path / "mine", lines=lines)
    page = page_of(folder)
    assert page.data["charts"][0]["curves"][0]["y"][7] is None
    text = (folder / "page.html").read_text(encoding="utf-8")
    picture = ET.fromstring(re.findall(r"<figure.*?(<svg.*?</svg>)", text, flags=re.DOTALL)[0])
    path = next(path for path in picture.iter("path") if path.get("class") == "run-0 training")
    stretches = path.attrib["d"].split("M")[1:]
    assert [1 + stretch.count("L") for stretch in stretches] == [7, 1, 10, len(lines) - 21]
    assert stretches[1].endswith("h0")


def test_the_final_metrics_are_of_the_last_record_that_has_a_loss(tmp_path: Path) -> None:
    lines = [line for line in metrics(40) if line["kind"] == "train"]
    for name in ("loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc"):
        del lines[-1][name]
    page = page_of(make_run(tmp_path / "mine", lines=lines))
    assert f"MLM loss {lines[-2]['mlm_loss']:.3f}" in page.text
    assert f"On training batches, at step {lines[-2]['step']:,}." in page.text
    assert "diverged" not in page.text


def test_a_diverged_run_keeps_its_pictures(tmp_path: Path) -> None:
    lines = metrics(200)
    for line in lines[150:]:
        line["mlm_loss"] = float("nan")
    lines[100]["mlm_loss"] = 1e30
    page = page_of(make_run(tmp_path / "mine", lines=lines))
    assert "this run has diverged" in page.text
    assert " drawn points have no finite value: the line has gaps there" in page.text
    assert "chart is cut at the top: the highest value is 1e30" in page.text
    for tag, attributes in page.elements:
        if tag == "path":
            assert "nan" not in str(attributes["d"])
            assert "inf" not in str(attributes["d"])


def test_a_depth_that_never_changes_is_a_sentence(tmp_path: Path) -> None:
    lines = [{**line, "depth": 12} if line["kind"] == "train" else line for line in metrics(30)]
    page = page_of(make_run(tmp_path / "mine", lines=lines))
    assert "Depth: 12 layers throughout." in page.text
    assert sum(tag == "figure" for tag, _ in page.elements) == 8


def test_a_run_of_many_records_is_thinned_and_loses_no_spike(tmp_path: Path) -> None:
    train = [line for line in metrics(2000) if line["kind"] == "train"]
    text = "".join(json.dumps(line) + "\n" for line in train)
    folder = make_run(tmp_path / "long", lines=[])
    pattern = re.compile(r'"step": (\d+)')
    with (folder / "metrics.jsonl").open("w") as file:
        for block in range(30):
            file.write(pattern.sub(lambda found, add=40_000 * block: f'"step": {int(found[1]) + add}', text))
    last = {**train[-1], "step": 2_000_000, "grad_norm": 12345.0, "mlm_loss": 0.5}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last) + "\n")
    started = time.monotonic()
    page = page_of(folder)
    assert time.monotonic() - started < 20  # 60,001 records; about a second on a quiet machine
    assert (folder / "page.html").stat().st_size < 2e6
    norms = next(p for p in page.data["charts"] if max(v for v in p["curves"][0]["y"]) == 12345)
    assert len(norms["curves"][0]["y"]) <= charts.MOST_POINTS
    assert page.data["charts"][0]["curves"][0]["steps"][-1] == 2_000_000


def test_thousands_of_events_are_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    events = [{"kind": "event", "step": n, "what": "skipped", "text": f"event number {n}."} for n in range(3000)]
    page = page_of(make_run(tmp_path / "mine", lines=[*metrics(5), *events]))
    assert "step skipped: 3,001" in page.text
    assert "event number 90." in page.text
    assert "event number 2999." not in page.text
    assert "of 3,003; metrics.jsonl has all." in page.text


def test_the_command_is_shown_or_said_to_be_unknown(tmp_path: Path) -> None:
    command = "openalbert pretrain albert-base --steps 8000"
    assert command in page_of(make_run(tmp_path / "a", lines=[], known=run_info(command=command, actual=TRUTH))).text
    assert "The command line is not known" in page_of(make_run(tmp_path / "b", lines=[])).text


def test_the_verb_writes_into_the_runs_folder_and_prints_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "mine", lines=metrics(20))
    main(["report", str(folder)])
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").stat().st_size > 10_000
    main(["report", str(folder), "--out", str(tmp_path / "pages" / "page.html")])
    assert (tmp_path / "pages" / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "nothing does not exist: give the folder of a run"),
        (["."], "is no run, it has no run.json"),
        (["mine", "mine"], "is named twice"),
        (["mine", "--out", "mine/run.json"], "give a name that ends in .html"),
    ],
)
def test_what_cannot_be_reported_is_said_in_a_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(tmp_path / "mine", lines=metrics(5))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["report", *words])
    assert stopped.value.code == 1
    assert sentence in capsys.readouterr().err
    assert "preset" in json.loads((tmp_path / "mine" / "run.json").read_text())


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="no run is named"):
        Report(runs=())


def test_levels_of_different_data_are_both_drawn(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, lines=metrics(20), known=run_info(unigram_entropy=entropy, actual=TRUTH))
        for name, entropy in (("one", 6.97), ("two", 7.4))
    ]
    page = page_of(*runs, out=tmp_path / "page.html")
    assert "unigram entropy 6.97" in page.text
    assert "unigram entropy 7.40" in page.text
    assert math.isclose(page.data["charts"][0]["ends"]["steps"], 400)
