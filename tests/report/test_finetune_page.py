"""The page of fine-tuning runs: true to their files, complete without a network, in any state of a run."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.finetuning.made_lessons import KINDS, learn, lesson, records
from tests.pretraining.made_runs import make_run
from tests.report.parsed_page import Page

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.interop.pretraining_json import NONE
from openalbert.report.error_analysis import read_error_analyses
from openalbert.report.report import Report, report
from openalbert.report.run_reader import RunRecord, read_finetuning_runs
from openalbert.settings import to_dict


def page_of(*folders: Path, out: Path) -> Page:
    report(Report(runs=folders, out=out))
    return Page(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", [*KINDS, "some_without_answer"])
def test_a_run_of_every_kind_ends_with_a_page_of_its_scores(
    kind: str, quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = quick_runs[kind]
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    scores = json.loads((run / "scores.json").read_text())
    name = "question_answering" if kind == "some_without_answer" else kind
    assert page.text.startswith(f"{name} · run – openalbert {name} · run finished")
    for metric, value in scores["scores"]["dev"].items():
        assert f"{metric.replace('_', ' ')} on dev {value:.2f}" in page.text
    assert f"The model folder has the weights of step {scores['step']}." in page.text
    [analyses] = read_error_analyses(run)
    assert analyses.scores == scores["scores"]["dev"]
    assert (analyses.null_threshold != "") == (kind == "some_without_answer")
    assert "Error analysis: dev" in page.text
    assert f"{analyses.num_examples} examples" in page.text
    for mistake in analyses.mistakes[:3]:
        assert mistake.place in page.text
    # Every evaluation is a point of the main figure's curve, which is the first picture.
    evaluations = [record[scores["main_metric"]] for record in records(run, "evaluation")]
    [curve] = page.data["charts"][0]["curves"]
    assert curve["heldOut"]
    assert curve["y"] == pytest.approx(evaluations, rel=1e-3)
    assert page_of(run, out=tmp_path / "again.html").text.split("Written by")[0] == page.text.split("Written by")[0]


def test_the_page_of_a_head_that_was_fitted_at_once_has_no_steps_and_no_curves(tiny: Path, tmp_path: Path) -> None:
    learn(tiny, "classification", lesson("classification", tmp_path, 60), tmp_path / "run", "--trainable head")
    text = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    headline, _ = text.split("Error analysis: dev")
    assert "on 54 examples: " in headline
    assert " step" not in headline
    assert "Curves" not in text


def test_the_row_of_a_mistake_is_the_one_that_a_spreadsheet_shows(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    """A quoted text of two lines and a blank line are in the way of whoever counts lines."""
    file = tmp_path / "own.csv"
    rows = [("warm", "one\ntwo"), ("cold", "the good time"), ("warm", "the old war"), ("cold", "the time")]
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerows([("label", "text"), rows[0]])
        opened.write("\n")
        writer.writerows(rows[1:])
    words = ["--dev", str(file), "--report", str(tmp_path / "page.html")]
    main(["evaluate", str(quick_runs["classification"]), "--task", "classification", *words])
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    found = re.findall(
        r"actual: (cold|warm) predicted: (?:cold|warm) (.*?) (?:cold|warm) [\d.]+ %.*?· row (\d)", page.text
    )
    assert found
    for right, text, number in found:
        assert rows[int(number) - 1] == (right, text.replace("one two", "one\ntwo"))
    assert "Rows are counted from 1, without the file's header." in page.text


def test_a_page_names_what_the_run_was_initialized_from(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(quick_runs["classification"], tmp_path / "run"))
    run_info, settings = (json.loads((run / name).read_text()) for name in ("run_info.json", "run.json"))
    assert f"fine-tuned from {Path(run_info['model']).parent.name} on" in page_of(run, out=tmp_path / "page.html").text
    (run / "run_info.json").write_text(json.dumps(run_info | {"model": "/far/away/albert-base-wikibooks"}))
    assert "fine-tuned from albert-base-wikibooks on" in page_of(run, out=tmp_path / "page.html").text
    (run / "run.json").write_text(json.dumps(settings | {"from_scratch": True}))
    assert "fine-tuned from weights drawn at random on" in page_of(run, out=tmp_path / "page.html").text


def test_a_page_asks_nothing_of_a_network(quick_runs: dict[str, Path]) -> None:
    page = Page((quick_runs["classification"] / "report.html").read_text(encoding="utf-8"))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not {"src", "href", "srcset", "onload", "onclick"} & attributes.keys()
    policy = next(found["content"] for _, found in page.elements if "http-equiv" in found)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_a_browser_draws_the_page_without_a_complaint(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--enable-logging=stderr"]
    page = (quick_runs["some_without_answer"] / "report.html").as_uri()
    done = subprocess.run([browser, *words, "--dump-dom", page], capture_output=True, text=True, timeout=120)
    assert "Error analysis" in done.stdout
    assert 'class="values"' in done.stdout  # the script ran: it has made the box for the values under the pointer
    assert not re.search("CONSOLE|Refused|Uncaught", done.stderr)


def test_a_run_in_progress_has_a_page_without_scores(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(quick_runs["classification"], tmp_path / "going")
    for name in ("scores.json", "error_analysis.json", "report.html"):
        (run / name).unlink()
    shutil.rmtree(run / "model")
    run_info = json.loads((run / "run_info.json").read_text())
    del run_info["actual"]
    (run / "run_info.json").write_text(json.dumps(run_info))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    page = page_of(run, out=tmp_path / "page.html")
    assert "unfinished" in page.text
    assert "The run is in progress or was stopped: the last record is of step 30" in page.text
    assert "its last checkpoint is of step 20, from which it would resume" in page.text
    assert "is cut off" in page.text
    assert "Error analysis" not in page.text


def test_a_record_whose_steps_were_all_skipped_is_a_gap_and_takes_no_picture_away(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(quick_runs["classification"], tmp_path / "run")
    whole = page_of(run, out=tmp_path / "whole.html")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    second = [line for line in lines if line["kind"] == "train"][1]
    for name in ("loss", "classification_loss", "classification_acc", "grad_norm"):
        del second[name]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(run, out=tmp_path / "page.html")
    assert len(page.data["charts"]) == len(whole.data["charts"])
    gaps = [curve["y"][1] is None for one in page.data["charts"] for curve in one["curves"] if not curve["heldOut"]]
    assert gaps.count(True) == 3  # of loss, accuracy and gradient norm
    assert "1 drawn point has no finite value: the line has a gap there." in page.text


def test_a_run_that_has_not_begun_to_record_has_a_page(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    shutil.copy(quick_runs["classification"] / "run.json", tmp_path / "bare" / "run.json")
    page = page_of(tmp_path / "bare", out=tmp_path / "page.html")
    assert "There is nothing to draw yet." in page.text


def test_several_seeds_are_one_page_with_their_median_and_the_best_ones_mistakes(tiny: Path, tmp_path: Path) -> None:
    main_words = (
        f"finetune {tiny} --task classification --train {lesson('classification', tmp_path)} --out {tmp_path / 'all'}"
    )
    settings = "--seeds 3 --steps 20 --batch-size 8 --optimizer.learning-rate 0.004 --speed.threads 1"
    main([*main_words.split(), *settings.split()])
    page = Page((tmp_path / "all" / "report.html").read_text(encoding="utf-8"))
    summary = json.loads((tmp_path / "all" / "seeds.json").read_text())
    figures = summary["metrics"]["dev"]
    for line in ("median", "mean", "spread"):
        expected = " ".join(f"{figures[metric][line]:.2f}" for metric in figures)
        assert f"{line} {expected}" in page.text
    assert f"The best is seed-{summary['best_seed']}" in page.text
    assert "<b>median</b>" in (tmp_path / "all" / "report.html").read_text(encoding="utf-8")
    assert page.data["runs"] == ["seed-1", "seed-2", "seed-3"]
    best = read_error_analyses(tmp_path / "all" / f"seed-{summary['best_seed']}")[0]
    assert best.mistakes == () or best.mistakes[0].place in page.text
    # Where all but one have collapsed there is no spread.
    for metric in figures:
        figures[metric]["spread"] = None
    (tmp_path / "all" / "seeds.json").write_text(json.dumps(summary))
    expected = " ".join("–" for _ in figures)
    assert f"spread {expected}" in page_of(tmp_path / "all", out=tmp_path / "page.html").text


def test_runs_are_compared_by_scores_and_settings(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    file = quick_runs["classification"].parent / "data" / "classification.csv"
    tiny = json.loads((quick_runs["classification"] / "run_info.json").read_text())["model"]
    scores = learn(tiny, "classification", file, tmp_path / "other", "--steps 30 --optimizer.learning-rate 0.001")
    page = page_of(quick_runs["classification"], tmp_path / "other", out=tmp_path / "page.html")
    assert "2 fine-tuning runs compared" in page.text
    assert f"other classification {scores['scores']['dev']['accuracy']:.2f}" in page.text
    before = json.loads((quick_runs["classification"] / "run.json").read_text())["optimizer"]["learning_rate"]
    assert f"optimizer.learning_rate {before} 0.001" in page.text
    assert "Error analysis" not in page.text


def test_a_collapsed_run_is_named_as_one(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(quick_runs["classification"], tmp_path / "run")
    scores = json.loads((run / "scores.json").read_text())
    (run / "scores.json").write_text(json.dumps({**scores, "collapsed": "all are <cold>"}))
    assert (
        "This run collapsed, and its scores are no result: all are <cold>."
        in page_of(run, out=tmp_path / "p.html").text
    )
    attempts = [{"learning_rate": 0.01, "step": 40, "reason": "all alike"}]
    (run / "scores.json").write_text(json.dumps({**scores, "attempts": attempts}))
    assert (
        "It collapsed once and was run again at a lower learning rate: all alike."
        in page_of(run, out=tmp_path / "p.html").text
    )


def known_task(run: Path, tmp_path: Path, task: str) -> RunRecord:
    """A run made out to be one of a known task."""
    copy = shutil.copytree(run, tmp_path / "known")
    run_info = json.loads((copy / "run_info.json").read_text())
    run_info["task"]["name"] = task
    (copy / "run_info.json").write_text(json.dumps(run_info))
    return read_finetuning_runs([copy])[0]


def test_a_known_task_is_compared_with_the_paper_and_its_pretraining(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    record = known_task(quick_runs["classification"], tmp_path, "sst2")
    page = page_of(record.folder, out=tmp_path / "page.html")
    accuracy = record.by_split["dev"]["accuracy"]
    assert f"accuracy on dev {accuracy:.2f} the paper's albert-base: 90.3" in page.text
    assert f"examples accuracy this model, dev 12 {accuracy:.1f} the paper's albert-base – 90.3" in page.text
    assert "official dev set of 872 examples; dev of 12 examples is not that one" in page.text
    run_info = json.loads((record.folder / "run_info.json").read_text())
    run_info["data"]["scored"]["dev"] = 872
    (record.folder / "run_info.json").write_text(json.dumps(run_info))
    page = page_of(record.folder, out=tmp_path / "page.html")
    assert "Scores on the official dev set of 872 examples." in page.text
    assert (
        "The paper's models were pretrained on 262 G tokens or more. "
        "This one was pretrained on 1.65 G tokens (0.6 % of the paper's 262 G)." in page.text
    )


def test_a_page_states_the_amount_of_pretraining(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(quick_runs["regression"], tmp_path / "run"))
    run_info, settings = (json.loads((run / name).read_text()) for name in ("run_info.json", "run.json"))
    model = Path(run_info["model"]).parent.name

    def described(pretraining: object) -> str:
        (run / "run_info.json").write_text(json.dumps(run_info | {"pretraining": pretraining}))
        text = page_of(run, out=tmp_path / "page.html").text
        [words] = re.findall(r"Before that it was (.*?)\. Started", text)
        # All that is known of a run says the same again.
        source = "weights drawn at random" if settings["from_scratch"] else model
        assert f"initialized from {source}, {words} training examples" in text
        return str(words)

    known = run_info["pretraining"]
    assert described(known) == "pretrained on 1.65 G tokens (0.6 % of the paper's 262 G)"
    assert described(known | {"initialized_from": "<b>x"}) == (
        "pretrained on 1.65 G tokens (0.6 % of the paper's 262 G, "
        "not counting the pretraining of <b>x, which is unknown)"
    )
    first = {name: value for name, value in known.items() if name != "before"}
    assert "not counting" not in described(known | {"initialized_from": "other", "before": [first]})
    assert described(to_dict(NONE)) == "not pretrained"
    for damaged in (None, 7, {}, known | {"tokens": "many"}):
        assert described(damaged) == "pretrained on an unknown amount of text"
    settings["from_scratch"] = True
    (run / "run.json").write_text(json.dumps(settings))
    assert described(None) == "not pretrained"


def test_a_task_of_ones_own_has_nothing_in_the_paper(quick_runs: dict[str, Path]) -> None:
    assert (
        "Compared with the paper"
        not in Page((quick_runs["regression"] / "report.html").read_text(encoding="utf-8")).text
    )


def test_runs_of_two_kinds_are_not_compared(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    pretraining = make_run(tmp_path / "pretraining")
    with pytest.raises(UserError, match=r"classification0/run is a fine-tuning run and .*pretraining is not"):
        report(Report(runs=(quick_runs["classification"], pretraining), out=tmp_path / "page.html"))
    report(Report(runs=(pretraining,), out=tmp_path / "page.html"))
    assert "MLM loss" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_verb_writes_into_the_run_and_needs_no_torch(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(quick_runs["multi_label"], tmp_path / "run")
    (run / "report.html").unlink()
    code = f"from openalbert.cli import main, sys; main(['report', {str(run)!r}]); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(run / "report.html")
    assert re.search("<h1>multi_label · run</h1>", (run / "report.html").read_text(encoding="utf-8"))


def test_a_page_that_cannot_be_written_raises_a_user_error(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="taken is not a folder"):
        report(Report((quick_runs["classification"],), tmp_path / "taken" / "page.html"))
