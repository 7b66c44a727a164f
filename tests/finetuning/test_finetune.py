"""`openalbert finetune`: every kind of task is learned, the best is kept, and whatever happens, nothing is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.finetuning.made_lessons import KINDS, command, learn, learned, lesson, records, weights
from tests.tasks.made_data import glue_files

import openalbert
from openalbert import cli
from openalbert.finetuning import losses
from openalbert.interop.pretraining_json import NONE, read_pretraining
from openalbert.interop.task_json import read_task_info
from openalbert.train.device import Device
from openalbert.train.metrics_log import MetricsLog

LEAST = {"accuracy": 95.0, "r2": 80.0, "f1": 55.0}
QUICK = "--steps 30"


@pytest.mark.parametrize("kind", [*KINDS, "question_answering, some without an answer"])
def test_a_tiny_model_learns_every_kind_of_task(kind: str, tiny: Path, tmp_path: Path) -> None:
    name = kind.split(",")[0]
    file = lesson(name, tmp_path, may_have_no_answer="," in kind)
    # To find a place in a passage takes longer than to tell classes apart, however the first weights fall.
    words = "--steps 200" if name == "question_answering" else ""
    scores = learn(tiny, name, file, tmp_path / "run", words)
    assert scores["scores"]["dev"][scores["main_metric"]] >= LEAST[scores["main_metric"]]
    assert scores["collapsed"] is None
    losses = [record["loss"] for record in records(tmp_path / "run", "train")]
    assert losses[-1] < 0.5 * losses[0]
    tuned = read_task_info(tmp_path / "run" / "model")
    assert tuned is not None
    assert (tuned.task, tuned.kind, tuned.scores) == (name, name, scores["scores"]["dev"])
    assert (tuned.null_threshold is not None) == ("," in kind)
    assert not (tmp_path / "run" / "checkpoints").exists()  # no longer needed: the model is there
    kinds = [head.kind for head in openalbert.load(tmp_path / "run" / "model").module.head_list]
    of_questions = ["span", "answerability"] if "," in kind else ["span"]
    assert kinds == (of_questions if name == "question_answering" else [name])


def test_the_model_answers_in_transformers_pipelines_by_the_names_of_the_labels(tiny: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "classes")
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "classes" / "model"), device="cpu")
    texts = ["the good people of the time", "the war of the people"]
    assert [found["label"] for found in classify(texts)] == ["warm", "cold"]
    learn(tiny, "question_answering", lesson("question_answering", tmp_path), tmp_path / "answers", "--steps 250")
    folder = tmp_path / "answers" / "model"
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("what is good", "people time key water house day", return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs)
    answer = inputs["input_ids"][0, found.start_logits.argmax() : found.end_logits.argmax() + 1]
    assert tokenizer.decode(answer).strip() == "water"


def test_the_best_weights_are_kept_unless_the_last_are_asked_for(tiny: Path, tmp_path: Path) -> None:
    file = lesson("classification", tmp_path)
    # The rate stays high to the end, so that the score falls again.
    words = "--steps 60 --evaluate-every 5 --schedule.kind constant --optimizer.learning-rate 0.01 "
    words += "--patience None --keep "
    best = learn(tiny, "classification", file, tmp_path / "best", words + "best")
    last = learn(tiny, "classification", file, tmp_path / "last", words + "last")
    evaluations = records(tmp_path / "best", "evaluation")
    curve = [record["accuracy"] for record in evaluations]
    assert best["scores"]["dev"]["accuracy"] == max(curve)
    ranks = [(record["accuracy"], record["macro_f1"], -record["evaluation_loss"]) for record in evaluations]
    assert best["step"] == 5 * (ranks.index(max(ranks)) + 1)
    assert last["scores"]["dev"]["accuracy"] == curve[-1]
    assert last["step"] == 60


def test_a_run_that_gets_no_better_ends_early_and_reports_it(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 300 --evaluate-every 10 --patience 3"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    curve = [record["accuracy"] for record in records(tmp_path / "run", "evaluation")]
    assert scores["steps"] == 10 * (curve.index(max(curve)) + 1) + 30 < 300
    assert "ended early" in capsys.readouterr().err
    assert [event["what"] for event in records(tmp_path / "run", "event")] == ["early_stop"]


def test_the_last_steps_of_a_run_are_recorded_too(tiny: Path, tmp_path: Path) -> None:
    """However few: a run of seven steps has a curve."""
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "run", "--steps 7 --log-every 5")
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [5, 7]


def test_a_score_that_has_not_risen_yet_does_not_end_a_run(tiny: Path, tmp_path: Path) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 30 --evaluate-every 3 --patience 2 --optimizer.learning-rate 0"
    assert learn(tiny, "classification", file, tmp_path / "run", words)["steps"] == 30


@pytest.mark.parametrize("kind", ["lamb", "muon"])
def test_lamb_and_muon_fine_tune_too_and_tensorboard_is_written_on_request(
    tiny: Path, tmp_path: Path, kind: str
) -> None:
    file = lesson("classification", tmp_path)
    words = f"--steps 100 --optimizer.kind {kind} --optimizer.learning-rate 0.01 --tensorboard"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert scores["scores"]["dev"]["accuracy"] > 90
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_same_command_again_finds_the_run_done(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    first = learn(tiny, "classification", file, tmp_path / "run", QUICK)
    written = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert learn(tiny, "classification", file, tmp_path / "run", QUICK) == first
    assert "this run is done" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == written


def test_a_run_that_was_killed_when_all_but_its_page_was_written_gets_it(tiny: Path, tmp_path: Path) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    learn(tiny, "classification", file, out, QUICK)
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    (out / "checkpoints" / "step-00000010").mkdir(parents=True)
    learn(tiny, "classification", file, out, QUICK)
    assert len((out / "report.html").read_bytes()) == len(page)
    assert not (out / "checkpoints").exists()


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run stopped by a signal once it has recorded this step; it ends after the next one."""
    record = MetricsLog.record

    def stopping(self: MetricsLog, values: dict[str, Any]) -> None:
        record(self, values)
        if values["kind"] == "train" and values["step"] == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(MetricsLog, "record", stopping)


@pytest.mark.parametrize("kind", [pytest.param("classification", marks=pytest.mark.slow), "multiple_choice", "tagging"])
def test_a_run_that_is_stopped_and_resumes_learns_the_same_to_the_last_bit(
    kind: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson(kind, tmp_path)
    words = QUICK + " --dropout 0.1 --classifier-dropout 0.1 --log-every 1 --evaluate-every 7 --speed.micro-batch 5"
    learn(tiny, kind, file, tmp_path / "whole", words)
    for step in (4, 14):
        with monkeypatch.context() as patch:
            stop_at(step, patch)
            with pytest.raises(SystemExit) as ended:
                cli.main(command(tiny, kind, file, tmp_path / "stopped", words))
            assert ended.value.code == 143
    learn(tiny, kind, file, tmp_path / "stopped", words)
    assert "resuming from step 15" in capsys.readouterr().err
    assert learned(tmp_path / "stopped") == learned(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(tmp_path / "stopped")[name]), name


def test_where_a_run_resumes_is_noted_and_said(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    words = QUICK + " --log-every 1"
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(SystemExit):
            cli.main(command(tiny, "classification", file, out, words))
    assert json.loads((out / "run_info.json").read_text())["moves"] == []
    monkeypatch.setattr(Device, "describe", lambda _: "1 x Abacus")
    learn(tiny, "classification", file, out, words)
    [move] = json.loads((out / "run_info.json").read_text())["moves"]
    assert (move["step"], move["device"]) == (5, "1 x Abacus")
    assert "parameters on 1 x Abacus" in capsys.readouterr().err


def test_a_run_that_is_killed_resumes_to_the_same_bits(tiny: Path, tmp_path: Path) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 80 --evaluate-every 20 --dropout 0.1 --log-every 20"
    learn(tiny, "classification", file, tmp_path / "whole", words)
    out = tmp_path / "killed"
    line = [sys.executable, "-m", "openalbert", *command(tiny, "classification", file, out, words)]
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    until = time.monotonic() + 60
    while not any(int(path.name[5:13]) >= 40 for path in out.glob("checkpoints/step-*")):
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.wait()
    learn(tiny, "classification", file, out, words)
    assert json.loads((out / "run_info.json").read_text())["restarts"] == 1
    assert learned(out) == learned(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(out)[name]), name


def test_a_folder_is_not_mixed_and_fresh_starts_over(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    learn(tiny, "classification", file, out, QUICK)
    with pytest.raises(SystemExit) as ended:
        cli.main(command(tiny, "classification", file, out, QUICK + " --optimizer.learning-rate 0.001"))
    assert ended.value.code == 1
    assert "optimizer.learning_rate was 0.004, now 0.001" in capsys.readouterr().err
    scores = learn(tiny, "classification", file, out, QUICK + " --optimizer.learning-rate 0.001 --fresh")
    assert scores["learning_rate"] == 0.001


def test_a_file_that_was_changed_is_no_file_to_resume_with(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    stop_at(9, monkeypatch)
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "classification", file, out, QUICK + " --log-every 1"))
    monkeypatch.undo()
    lesson("classification", tmp_path, seed=1)
    with pytest.raises(SystemExit) as ended:
        cli.main(command(tiny, "classification", file, out, QUICK + " --log-every 1"))
    assert ended.value.code == 1
    assert "started with other training examples" in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What is said when a command is not carried out."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_a_file_to_score_on_that_was_changed_is_none_to_resume_with(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    dev = lesson("classification", tmp_path / "dev", 60, seed=3)
    words = command(tiny, "classification", file, out, f"{QUICK} --log-every 1 --dev {dev}")
    stop_at(9, monkeypatch)
    with pytest.raises(SystemExit):
        cli.main(words)
    monkeypatch.undo()
    lesson("classification", tmp_path / "dev", 60, seed=4)
    assert "started with other examples to score on (dev): the file was changed since" in refused(capsys, words)
    lesson("classification", tmp_path / "dev", 60, seed=3)
    cli.main(words)


def test_a_run_that_is_done_does_not_tell_its_score_for_files_that_were_changed(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    learn(tiny, "classification", file, out, "--steps 2")
    text = file.read_text()
    for changed in (text.replace("good", "great"), text.replace("warm", "hot")):
        file.write_text(changed)
        said = refused(capsys, command(tiny, "classification", file, out, "--steps 2"))
        assert (
            "started with other training examples: the file was changed since. Give another --out, or --fresh" in said
        )
    file.write_text(text)
    learn(tiny, "classification", file, out, "--steps 2")


def test_other_answers_that_count_as_right_are_other_examples_to_score_on(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, dev = lesson("question_answering", tmp_path, 40), lesson("question_answering", tmp_path / "dev", 8, seed=1)
    words = command(tiny, "question_answering", file, tmp_path / "run", f"--steps 1 --dev {dev}")
    cli.main(words)
    values = json.loads(dev.read_text())
    question = values["data"][0]["paragraphs"][0]
    question["qas"][0]["answers"].append({"text": question["context"].split()[0], "answer_start": 0})
    dev.write_text(json.dumps(values))
    assert "started with other examples to score on (dev)" in refused(capsys, words)


def test_a_device_that_runs_out_of_memory_computes_less_at_a_time_and_learns_the_same(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    learn(tiny, "classification", file, tmp_path / "whole", QUICK)
    scores = losses.finetuning_scores

    def in_little_room(model: Any, batch: Any, *more: Any) -> Any:
        if len(batch.tokens) > 40:
            raise torch.OutOfMemoryError
        return scores(model, batch, *more)

    monkeypatch.setattr(losses, "finetuning_scores", in_little_room)
    learn(tiny, "classification", file, tmp_path / "split", QUICK)
    assert "out of memory" in capsys.readouterr().err
    for first, second in zip(records(tmp_path / "whole", "train"), records(tmp_path / "split", "train"), strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-3)


def test_a_dry_run_reports_what_it_would_take_and_leaves_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--dry-run"))
    told = capsys.readouterr().out
    for word in ("step 2: loss", "steps", "100", "tokens", "time", "memory", "disk"):
        assert word in told
    assert not (tmp_path / "run").exists()


def test_a_dry_run_takes_no_more_steps_than_the_run_would(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 2 --dry-run"))
    told = capsys.readouterr().out
    assert "step 2: loss" in told
    assert "step 3: loss" not in told


def test_the_last_lines_of_a_run_come_after_its_scores(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lesson("classification", tmp_path)
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 2"))
    *_, scores, done, shell, python = capsys.readouterr().out.splitlines()
    assert scores.startswith("dev: accuracy ")
    assert done.startswith("done: the model of step ")
    assert shell.startswith("to predict: openalbert predict ")
    assert python.startswith("in Python:  openalbert.load(")


@pytest.mark.parametrize("words", ["--dry-run", ""])
def test_a_folder_that_cannot_be_written_is_refused_by_a_dry_run_as_by_a_run(
    words: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "classification", file, file / "below", words))
    [said] = capsys.readouterr().err.splitlines()
    assert f"{file} is not a folder" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_another_fine_tuned_model_can_be_begun_with(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper begins RTE with a model of MNLI: encoder and pooler go over, the head is of the new task."""
    learn(tiny, "multi_label", lesson("multi_label", tmp_path), tmp_path / "first")
    file = lesson("classification", tmp_path)
    words = "--steps 1 --optimizer.learning-rate 0 --from "
    learn(tiny, "classification", file, tmp_path / "second", words + str(tmp_path / "first"))
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    for name in first:
        assert torch.equal(first[name], second[name]) == (not name.startswith("classifier")), name
    assert first["albert.pooler.weight"].ne(weights_of(tiny)["albert.pooler.weight"]).any()
    # A head for the very same labels is kept.
    words += str(tmp_path / "second")
    learn(tiny, "classification", file, tmp_path / "third", words)
    assert torch.equal(second["classifier.weight"], weights(tmp_path / "third")["classifier.weight"])


def test_a_model_to_begin_with_that_was_never_tuned_is_reported_and_the_papers_way_too(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "tuned", "--steps 1")
    elsewhere = Path(shutil.copytree(tmp_path / "tuned" / "model", tmp_path / "elsewhere"))
    (elsewhere / "task.json").unlink()
    data = glue_files(tmp_path, "rte")
    hint = "the paper starts rte from a model of MNLI: give one with --from"
    for start, is_tuned in ((tiny, False), (tmp_path / "tuned", True), (elsewhere, True)):
        capsys.readouterr()
        words = f"finetune --from {start} --task rte --data {data} --out {tmp_path / 'run'} --dry-run --speed.threads 1"
        cli.main(words.split())
        told = capsys.readouterr().err
        assert (f"--from {start} was not fine-tuned for a task" in told) == (not is_tuned)
        assert (hint in told) == (not is_tuned)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return openalbert.interop.weights.read_tensors(folder / "model.safetensors")  # type: ignore[attr-defined]


def test_from_scratch_begins_with_fresh_weights_of_the_seed(tiny: Path, tmp_path: Path) -> None:
    file = lesson("classification", tmp_path)
    words = "--steps 1 --optimizer.learning-rate 0 --from-scratch --seed "
    for seed in (1, 2):
        learn(tiny, "classification", file, tmp_path / f"run-{seed}", words + str(seed))
    name = "albert.embeddings.word_embeddings.weight"
    first, second = (weights(tmp_path / f"run-{seed}")[name] for seed in (1, 2))
    assert not torch.equal(first, second)
    assert not torch.equal(first, weights_of(tiny)[name])
    # That nothing was learned before is known of the model, and of one that goes on from it.
    assert read_pretraining(tmp_path / "run-1" / "model") == NONE
    learn(tmp_path / "run-1", "classification", file, tmp_path / "on", "--steps 1")
    card = (tmp_path / "on" / "model" / "README.md").read_text(encoding="utf-8")
    assert "Before fine-tuning it was not pretrained." in card


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--task sst3", "'sst3' is not a task: did you mean 'sst2'?"),
        ("--epochs 2", "the run's length is given in epochs and steps: give one of them"),
        ("--exits --exit-drop 101", "exit_drop is 101.0: give the points that may be lost, from 0 to 100"),
        ("--exit-drop 0.5", "--exit-drop is for --exits: give both, or none"),
        ("--seeds 0", "seeds is 0: it must be at least 1"),
        ("--dropout 1", "dropout is 1.0: it is a fraction"),
        ("--from x --from-scratch", "give one of them"),
        ("--from nowhere", "'nowhere' is no model folder: known are: "),
        ("--max-length 3", "max_length is 3: an input needs 8 tokens at least"),
        ("--speed.compile layer", "packed batches are all different, and a layer would be compiled again and again"),
        ("--speed.compile whole", "needs a GPU, bf16 and no --speed.recompute"),
        ("--schedule.warmup-steps 500", "warmup_steps is 500 but the run has 100 steps"),
        ("--stride 0", "stride is 0: it must be at least 1"),
        ("--max-length 0", "max_length is 0: it must be at least 1"),
        ("--train .", ". is a folder, and a file is needed"),
        ("--out some-file", "some-file is not a folder: give another name"),
        ("--out some-file/run", "some-file is not a folder: give another name"),
        ("--text-column label", "'label' is named as the text (--text-column), but is already the label"),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_sentence(
    words: str,
    sentence: str,
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = lesson("classification", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some-file").write_text("a file\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(command(tiny, "classification", file, tmp_path / "run", f"--speed.device cpu {words}"))
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert "Traceback" not in told


def test_examples_of_one_class_are_reported(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.csv").write_text("text,label\nthe good time,warm\nthe old war,cold\n")
    (tmp_path / "one.csv").write_text("text,label\nthe time,cold\nthe war,cold\n")
    dev = f"--steps 1 --dev {tmp_path / 'one.csv'}"
    learn(tiny, "classification", tmp_path / "two.csv", tmp_path / "run", dev)
    assert "dev: all examples are of one class, 'cold': a score there is hardly meaningful" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "rows", "alike"),
    [
        (
            "classification",
            "text,label\nthe good time,warm\nthe old war,cold\n",
            "all examples are of one class, 'warm'",
        ),
        ("regression", "text,label\nthe good time,3\nthe old war,5\n", "all examples have the same value, "),
    ],
)
def test_too_few_examples_to_hold_some_out_are_reported_as_that(
    kind: str, rows: str, alike: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.csv").write_text(rows)
    said = refused(capsys, command(tiny, kind, tmp_path / "two.csv", tmp_path / "run", "--steps 1"))
    few = f"error: {tmp_path / 'two.csv'}: 2 examples are too few to hold some out to score on: in the rest {alike}"
    assert few in said
    assert "give a file to score on with --dev, or more rows" in said


@pytest.mark.parametrize(
    ("kind", "train", "alike"),
    [
        ("sst2", "sentence\tlabel\nthe good time\t1\nthe old war\t1\n", "all examples are of one class, 'positive'"),
        ("multi_label", "text\tlabels\nthe good time\tfood\nthe old war\tfood\n", "have the same labels, 'food'"),
        ("regression", "text\tscore\nthe good time\t3\nthe old war\t3\n", "have the same value, 3"),
        ("stsb", "sentence1\tsentence2\tscore\nthe time\ta\t3\nthe war\ta\t3\n", "have the same value, 3"),
    ],
)
def test_nothing_can_be_learned_from_examples_that_are_all_alike(
    kind: str, train: str, alike: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.tsv").write_text(train)
    words = f"--steps 1 --dev {tmp_path / 'train.tsv'}"
    said = refused(capsys, command(tiny, kind, tmp_path / "train.tsv", tmp_path / "run", words))
    assert f"error: {tmp_path / 'train.tsv'}: in train, " in said
    assert alike in said


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (("1e300", "-1e300"), "regression.csv, line 2: 1e300 in 'label' is too large to compute with: 1e+30 is"),
        (("1", "1e31"), "regression.csv, line 3: 1e31 in 'label' is too large"),
        (("1e-300", "-1e-300"), "regression.csv: the values differ by 2e-300 at most, which is too little"),
        (
            ("1000000000.001", "1000000000"),
            "which have steps of 64 there, so it cannot distinguish them; give",
        ),
    ],
)
def test_values_that_32_bits_cannot_hold_are_refused(
    values: tuple[str, str], sentence: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "regression.csv"
    file.write_text("text,label\n" + "".join(f"the {n},{values[n % 2]}\n" for n in range(20)))
    dev = lesson("regression", tmp_path / "dev", 20)
    words = f"--steps 1 --dev {dev}"
    assert sentence in refused(capsys, command(tiny, "regression", file, tmp_path / "run", words))


@pytest.mark.parametrize("unit", ["1e28", "1e-25"])
def test_values_of_almost_any_size_are_learned(unit: str, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "regression.csv"
    file.write_text(
        "text,label\n" + "".join(f"{('good', 'old')[n % 2]} {n},{n % 2 * float(unit)}\n" for n in range(40))
    )
    scores = learn(tiny, "regression", file, tmp_path / "run", f"--dev {file} --steps 60")
    assert scores["scores"]["dev"]["r2"] > 80


def test_times_within_20_minutes_are_learned_and_how_coarse_the_model_gives_them_is_reported(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "regression.csv"
    times = [1_700_000_000 + 1200 * (n % 2) for n in range(40)]
    file.write_text("text,label\n" + "".join(f"{('good', 'old')[n % 2]} {n},{time}\n" for n, time in enumerate(times)))
    scores = learn(tiny, "regression", file, tmp_path / "run", f"--dev {file} --steps 60")
    assert scores["scores"]["dev"]["r2"] > 80
    told = "train: the model predicts 32-bit numbers, which have steps of 128 where values reach 1.7e+09: for finer"
    assert told in capsys.readouterr().err


def test_values_to_score_on_that_are_all_the_same_are_reported(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "same.csv").write_text("text,score\nthe good time,3\nthe old war,3\n")
    sentence = "dev: all examples have the same value, 3: no metric is meaningful there"
    words = f"--steps 1 --dev {tmp_path / 'same.csv'}"
    learn(tiny, "regression", lesson("regression", tmp_path), tmp_path / "run", words)
    assert sentence in capsys.readouterr().err
    cli.main(["evaluate", str(tmp_path / "run"), "--dev", str(tmp_path / "same.csv")])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("steps", "0"), ("steps", "-3"), ("minutes", "0"), ("epochs", "inf")])
def test_a_run_of_no_length_is_refused_before_anything_is_read(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--train", str(tmp_path / "nowhere.csv"), "--out", str(tmp_path / "run"), f"--{name}", value]
    with pytest.raises(SystemExit) as ended:
        cli.main(["finetune", "no-model", "--task", "classification", *words])
    assert ended.value.code == 1
    number = int(value) if name == "steps" else float(value)
    assert capsys.readouterr().err == f"error: {name} is {number}: give a number above 0\n"
    assert not (tmp_path / "run").exists()


def test_a_model_and_a_task_must_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (["finetune"], ["finetune", "--task", "sst2", "--out", str(tmp_path / "run")]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "name the task" in told
    assert "name the model right after the verb" in told
