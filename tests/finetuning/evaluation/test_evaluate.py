"""`openalbert evaluate`: the same figures as fine-tuning gave, ensembles, files of predictions, and clear refusals."""

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.finetuning.made_lessons import KINDS, imbalanced, learn, lesson
from tests.finetuning.micro_models import micro_model
from tests.report.parsed_page import Page
from tests.tasks.made_tasks import made_task

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.finetuning.data import encode_split
from openalbert.finetuning.evaluation.error_analysis import analyze_errors
from openalbert.finetuning.evaluation.evaluate import Evaluate, Options, evaluate, open_for, resolve_options
from openalbert.finetuning.evaluation.split import Evaluation, evaluate_split
from openalbert.finetuning.predict import load_models
from openalbert.interop import huggingface
from openalbert.interop.huggingface import TASK
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.interop.task_json import TaskInfo, read_task_info, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.report.summary import describe_pretraining
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.task import Task
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
ALL = [*KINDS, "some_without_answer"]


def file_of(run: Path) -> Path:
    """The file that a quick run learned from."""
    [file] = (run.parent / "data").iterdir()
    return file


def evaluated(
    models: Sequence[AlbertModel], task: Task, split: str, tokenizer: Tokenizer, threshold: float | None = None
) -> Evaluation:
    data = encode_split(task, split, task.read(split), tokenizer, max_length=64)
    return evaluate_split(models, task, data, CPU, null_threshold=threshold)


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    main(["evaluate", *map(str, words), "--json", "--speed.threads", "1"])
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def test_a_split_without_labels_of_which_rows_were_left_out_is_refused_whatever_the_task(small: Tokenizer) -> None:
    task = made_task("classification")
    read = task.read
    task = replace(task, read=lambda split: replace(read(split), excluded={"broken (first: my.tsv, line 3)": 2}))
    model = micro_model(task)
    evaluated([model], task, "dev", small)
    with pytest.raises(UserError, match=r"made_classification test: .*2 broken \(first: my\.tsv, line 3\)"):
        evaluated([model], task, "test", small)


@pytest.mark.parametrize("kind", ALL)
def test_a_model_scores_as_it_did_when_it_was_tuned(
    kind: str, quick_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = quick_runs[kind]
    found = printed(capsys, run, "--train", file_of(run))
    scores = json.loads((run / "scores.json").read_text())
    assert found["task"] == scores["task"]
    assert found["splits"]["dev"]["scores"] == pytest.approx(scores["scores"]["dev"])
    assert found["splits"]["dev"].get("null_threshold") == scores["null_threshold"]


def test_a_run_that_is_evaluated_without_examples_names_the_command_with_its_own(
    quick_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = quick_runs["classification"]
    scores = json.loads((run / "scores.json").read_text())["scores"]["dev"]
    for model in (run, run / "model"):
        with pytest.raises(UserError) as error:
            evaluate(Evaluate((str(model),)))
        told = str(error.value)
        assert told.startswith("classification needs examples: give a file with --dev, or --test to predict for, or ")
        [line] = re.findall("`openalbert evaluate (.*)`", told)
        assert line == f"{model} --train {file_of(run)}"
        assert printed(capsys, *shlex.split(line))["splits"]["dev"]["scores"] == pytest.approx(scores)
    with pytest.raises(UserError) as error:
        evaluate(Evaluate((str(run),), task="sst2"))
    assert str(error.value) == (
        "sst2 needs examples: give its folder with --data, or a file with --dev, or --test to predict for, or --dataset"
    )


def test_where_examples_are_is_written_as_it_is_read() -> None:
    source = TaskSource(train=Path("my file.csv"), label_columns=("a", "b c"), heldout_fraction=0.2)
    assert source.command_line == "--train 'my file.csv' --label-columns a 'b c' --heldout-fraction 0.2"


@pytest.mark.parametrize("kind", ALL)
def test_an_ensemble_of_one_model_twice_is_that_model(
    kind: str, quick_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = quick_runs[kind]
    alone = printed(capsys, run, "--train", file_of(run))["splits"]
    assert printed(capsys, run, run / "model", "--train", file_of(run))["splits"] == alone


def test_an_ensemble_averages_what_its_models_say(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = quick_runs["classification"]
    tiny = json.loads((run / "run_info.json").read_text())["model"]
    learn(tiny, "classification", file_of(run), tmp_path / "other", "--steps 20 --seed 7")
    scores = []
    for names in ([str(run)], [str(tmp_path / "other")], [str(run), str(tmp_path / "other")]):
        loaded = load_models(names)
        task = open_for(loaded, "", TaskSource(train=file_of(run)))
        found = evaluated(loaded.models, task, "dev", loaded.tokenizer)
        assert analyze_errors(found).num_models == len(names)
        scores.append(found.outputs.logits["classification"])
    np.testing.assert_allclose(scores[2], (scores[0] + scores[1]) / 2, rtol=1e-4, atol=1e-5)
    assert not np.allclose(scores[0], scores[1], atol=0.01)


def test_the_table_has_a_row_for_each_split_and_the_main_figure_first(
    quick_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = quick_runs["classification"]
    main(["evaluate", str(run), "--train", str(file_of(run)), "--dev", str(file_of(run)), "--splits", "dev", "train"])
    head, dev, train = capsys.readouterr().out.splitlines()
    assert head.split() == ["classification", "examples", "accuracy", "macro_f1", "f1", "matthews"]
    assert dev.split()[:2] == ["dev", "120"]
    assert dev.split()[1:] == train.split()[1:]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_model_that_knows_of_questions_without_an_answer_says_so_whatever_the_file_shows(
    split: str, quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    answered = tmp_path / "answered.csv"
    answered.write_text("passage,question,answer\nthe good old key people said so,what is good,people\n")
    words = [f"--{split}", str(answered), "--splits", split, "--predictions", str(tmp_path)]
    main(["evaluate", str(quick_runs["some_without_answer"]), *words, "--null-threshold", "-1000"])
    assert json.loads((tmp_path / f"question_answering.{split}.json").read_text()) == {"0": ""}
    assert (tmp_path / f"question_answering.{split}_null_odds.json").exists()


@pytest.mark.parametrize("kind", ALL)
def test_predictions_are_written_one_for_each_example_in_words(
    kind: str, quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = quick_runs[kind]
    words = ["evaluate", str(run), "--train", str(file_of(run)), "--predictions", str(tmp_path / "out")]
    main(words)
    task = "question_answering" if kind == "some_without_answer" else kind
    lines = [json.loads(line) for line in (tmp_path / "out" / f"{task}.dev.jsonl").read_text().splitlines()]
    loaded = load_models([str(run)])
    opened = open_for(loaded, "", TaskSource(train=file_of(run)))
    examples = opened.read("dev").examples
    assert [line["id"] for line in lines] == [example.id for example in examples]
    found = {
        "classification": lambda line: line in ("cold", "warm"),
        "regression": lambda line: isinstance(line, float),
        "multi_label": lambda line: set(line) <= {"war", "water", "school"},
        "multiple_choice": lambda line: line in "ABCD",
        "question_answering": lambda line: isinstance(line, str),
        "tagging": lambda line: {entity["label"] for entity in line} <= {"place", "thing"},
    }
    assert all(found[task](line["prediction"]) for line in lines)
    if task == "question_answering":
        answers = json.loads((tmp_path / "out" / f"{task}.dev.json").read_text())
        assert answers == {line["id"]: line["prediction"] for line in lines}
        best = json.loads((tmp_path / "out" / f"{task}.dev_nbest.json").read_text())
        assert all(answers[name] in ("", best[name][0]["text"]) for name in answers)
        assert (tmp_path / "out" / f"{task}.dev_null_odds.json").exists() == (kind == "some_without_answer")


def strictly(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("kind", ALL)
def test_predictions_come_with_how_likely_they_are(kind: str, quick_runs: dict[str, Path], tmp_path: Path) -> None:
    """Of an ensemble too: of the mean of its models' scores. Recomputed by torch from the scores themselves."""
    run = quick_runs[kind]
    model = huggingface.load(run / "model")
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.mul_(-0.5)
    other = tmp_path / "other"
    huggingface.save(model, other, Tokenizer.load(run / "model"))
    shutil.copy(run / "model" / TASK, other)
    main(["evaluate", str(run), str(other), "--train", str(file_of(run)), "--predictions", str(tmp_path / "out")])
    name = "question_answering" if kind == "some_without_answer" else kind
    lines = [
        json.loads(line, parse_constant=strictly)
        for line in (tmp_path / "out" / f"{name}.dev.jsonl").read_text().splitlines()
    ]
    loaded = load_models([str(run), str(other)])
    task = open_for(loaded, "", TaskSource(train=file_of(run)))
    tuned = read_task_info(other)
    assert tuned is not None
    found = evaluated(loaded.models, task, "dev", loaded.tokenizer, tuned.null_threshold)
    if kind == "regression":
        assert all(line.keys() == {"id", "prediction"} for line in lines)
    elif name == "question_answering":
        for line, answers in zip(lines, found.answers, strict=True):
            rest = 1.0
            if kind == "some_without_answer":
                none = torch.tensor(answers.null_score, dtype=torch.float64).sigmoid().item()
                assert line["no_answer_probability"] == pytest.approx(none, rel=1e-5)
                assert tuned.null_threshold is not None
                assert (line["prediction"] == "") == (answers.null_score > tuned.null_threshold)
                rest -= none
            scores = torch.tensor([candidate.score for candidate in answers.candidates], dtype=torch.float64)
            assert line["answer_probability"] == pytest.approx(rest * scores.softmax(0)[0].item(), rel=1e-4)
    elif kind == "tagging":
        words = found.data.encoding.words
        likely = torch.from_numpy(found.outputs.logits[name][words.token]).double().softmax(1).max(1).values
        for line, example, start in zip(lines, found.data.examples, words.starts, strict=False):
            for entity in line["prediction"]:
                assert example.text[entity["start"] : entity["end"]] == entity["text"]
                inside = [n for n, (begin, _) in enumerate(example.words) if entity["start"] <= begin < entity["end"]]
                assert entity["probability"] == pytest.approx(likely[start + np.array(inside)].mean().item(), rel=1e-5)
    else:
        scores = torch.from_numpy(found.outputs.logits[name]).double()
        start = 0
        for number, line in enumerate(lines):
            told = list(line["probabilities"].values())
            if kind == "multiple_choice":
                wanted = scores[start : start + len(told), 0].softmax(0)
                start += len(told)
                names = list("ABCD"[: len(told)])
                best = max(line["probabilities"], key=line["probabilities"].get)
                assert best == line["prediction"]
            elif kind == "classification":
                wanted, names = scores[number].softmax(0), ["cold", "warm"]
                assert max(line["probabilities"], key=line["probabilities"].get) == line["prediction"]
            else:
                wanted, names = scores[number].sigmoid(), list(task.labels)
                assert [label for label in names if line["probabilities"][label] > 0.5] == line["prediction"]
            assert list(line["probabilities"]) == names
            assert told == pytest.approx(wanted.tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label", "multiple_choice"])
def test_a_test_file_with_labels_is_scored_as_a_dev_file_is(
    kind: str, quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson(kind, tmp_path, 20, seed=5)
    by_dev = printed(capsys, quick_runs[kind], "--dev", file)["splits"]["dev"]
    assert by_dev["scores"]
    assert printed(capsys, quick_runs[kind], "--test", file)["splits"]["test"] == by_dev


def test_a_test_file_whose_labels_are_not_all_there_is_predicted_and_not_scored(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("", "?"):
        (tmp_path / "new.csv").write_text(f"text,label\nthe good time,warm\nthe old war,{label}\n")
        main(["evaluate", str(quick_runs["classification"]), "--test", str(tmp_path / "new.csv"), "--json"])
        out, err = capsys.readouterr()
        assert json.loads(out)["splits"]["test"]["examples"] == 2
        assert json.loads(out)["splits"]["test"]["scores"] == {}
        assert "the labels are not used, for not all are there" in err


def test_examples_without_labels_are_predicted_and_not_scored(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("text\nthe good time\nthe old war\n")
    words = ["--test", tmp_path / "new.csv", "--splits", "test", "--predictions", tmp_path / "out"]
    found = printed(capsys, quick_runs["classification"], *words)
    assert found["splits"]["test"] == {"examples": 2, "truncated": 0, "in_windows": 0, "excluded": {}, "scores": {}}
    assert printed(capsys, quick_runs["classification"], "--test", tmp_path / "new.csv") == found
    assert len((tmp_path / "out" / "classification.test.jsonl").read_text().splitlines()) == 2
    asked = Evaluate(
        (str(quick_runs["classification"]),),
        source=TaskSource(test=tmp_path / "new.csv"),
        splits=("test",),
        report=tmp_path / "page.html",
    )
    evaluate(asked)
    assert "no page is written: these examples have no labels" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_file_to_score_on_is_enough_and_an_unknown_label_is_told(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes are the model's own, so the file that it learned from need not be at hand."""
    (tmp_path / "other.csv").write_text("text,label\nthe good time,warm\nthe old war,cold\n")
    found = printed(capsys, quick_runs["classification"], "--dev", tmp_path / "other.csv")
    assert found["splits"]["dev"]["examples"] == 2
    (tmp_path / "wrong.csv").write_text("text,label\nthe good time,lukewarm\nthe old war,cold\n")
    with pytest.raises(SystemExit):
        main(["evaluate", str(quick_runs["classification"]), "--dev", str(tmp_path / "wrong.csv")])
    said = capsys.readouterr().err
    assert "lukewarm" in said
    assert "wrong.csv" in said


def test_long_examples_are_cut_and_the_share_is_told(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.csv").write_text(f"text,label\n{'the good time ' * 99},warm\nthe old war,cold\n")
    main(["evaluate", str(quick_runs["classification"]), "--dev", str(tmp_path / "long.csv")])
    assert "dev: 1 example (50.0 %) was too long, and cut" in capsys.readouterr().err


def test_a_page_looks_at_the_mistakes(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = quick_runs["some_without_answer"]
    page = tmp_path / "deep" / "page.html"
    main(["evaluate", str(run), str(run / "model"), "--train", str(file_of(run)), "--report", str(page)])
    text = Page(page.read_text(encoding="utf-8")).text
    assert "question_answering · evaluation" in text
    assert "2 models averaged" in text
    assert "A question has no answer above this null score" in text


def test_the_page_of_a_known_task_says_how_much_the_model_had_read(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(quick_runs["classification"] / "model", tmp_path / "model"))
    glue = tmp_path / "glue" / "SST-2"
    glue.mkdir(parents=True)
    (glue / "dev.tsv").write_text("sentence\tlabel\nthe good time\t1\nthe old war\t0\n")
    model = huggingface.load(folder)
    labelled = AlbertModel(model.config, (Head("classification", ("negative", "positive")),))
    labelled.load_state_dict(model.state_dict())
    known = read_pretraining(folder)
    for pretraining, words in ((known, describe_pretraining(known)), (None, "pretrained on an unknown amount of text")):
        huggingface.save(labelled, tmp_path / "sst2", Tokenizer.load(folder), pretraining=pretraining)
        page = tmp_path / "page.html"
        asked = ["--task", "sst2", "--data", str(glue.parent), "--report", str(page)]
        main(["evaluate", str(tmp_path / "sst2"), *asked])
        assert f"This one was {words}." in Page(page.read_text(encoding="utf-8")).text


def test_without_a_threshold_each_half_is_judged_by_the_one_of_the_other(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = quick_runs["some_without_answer"]
    loaded = load_models([str(run)])
    task = open_for(loaded, "", TaskSource(dev=file_of(run)))
    found = evaluated(loaded.models, task, "dev", loaded.tokenizer)
    assert "for each half of the passages fitted on the other" in analyze_errors(found).null_threshold
    assert found.null_threshold is not None
    oracle = task.measure(found.data.examples, [one.text(found.null_threshold) for one in found.answers])
    assert oracle["f1"] >= found.metrics["f1"]  # the best of all on all: what must not be reported
    given = evaluated(loaded.models, task, "dev", loaded.tokenizer, 1e6)
    assert analyze_errors(given).null_threshold == "1000000.000"
    assert "" not in given.predictions


def test_answers_are_no_longer_and_no_more_than_asked_for(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = quick_runs["question_answering"]
    words = ["--n-best", "3", "--max-answer-tokens", "1", "--predictions", str(tmp_path)]
    main(["evaluate", str(run), "--train", str(file_of(run)), *words])
    best = json.loads((tmp_path / "question_answering.dev_nbest.json").read_text())
    assert {len(candidates) for candidates in best.values()} == {3}
    tokenizer = Tokenizer.load(run / "model")
    texts = [candidate["text"] for candidates in best.values() for candidate in candidates]
    assert all(" " not in text for text in texts)
    assert np.mean([len(tokenizer.encode(text)) for text in texts]) < 1.5  # a part of a word alone may be cut otherwise


@pytest.mark.parametrize("kind", ALL)
def test_a_model_whose_weights_are_no_numbers_is_scored_badly_not_fatally(
    kind: str, quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = quick_runs[kind]
    folder = tmp_path / "model"
    model = huggingface.load(run / "model")
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.fill_(torch.nan)
    huggingface.save(model, folder, Tokenizer.load(run / "model"))
    task = "question_answering" if kind == "some_without_answer" else kind
    words = ["--task", task, "--train", str(file_of(run)), "--report", str(tmp_path / "page.html")]
    main(["evaluate", str(folder), *words, "--predictions", str(tmp_path / "out")])
    assert f"{task} · evaluation" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    lines = (tmp_path / "out" / f"{task}.dev.jsonl").read_text().splitlines()
    assert all(json.loads(line, parse_constant=strictly)["id"] for line in lines)


def test_how_a_model_is_asked_comes_from_the_line_then_from_tuning_then_from_its_size(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(quick_runs["some_without_answer"] / "model", tmp_path / "model"))
    write_task_info(folder, TaskInfo("question_answering", "question_answering", 48, 20, 1.5, max_answer_tokens=7))
    loaded = load_models([str(folder)])
    assert resolve_options(Evaluate((str(folder),)), loaded) == Options(48, 20, 1.5, 7, "truncate")
    asked = Evaluate((str(folder),), max_length=32, stride=9, null_threshold=0.25, max_answer_tokens=40)
    assert resolve_options(asked, loaded) == Options(32, 9, 0.25, 40, "truncate")
    with pytest.raises(UserError, match="max_length is 99, but the model has 64 positions"):
        resolve_options(Evaluate((str(folder),), max_length=99), loaded)
    (folder / TASK).unlink()
    assert resolve_options(Evaluate((str(folder),)), load_models([str(folder)])) == Options(
        64, 128, None, 30, "truncate"
    )
    with pytest.raises(UserError, match=r"has no task\.json, which names its task: give one with --task"):
        open_for(load_models([str(folder)]), "", TaskSource())


def classifier(folder: Path, tokenizer: Tokenizer, *labels: str) -> str:
    """A model with these classes, by its folder's name."""
    model = micro_model(made_task("classification"), heads=(Head("classification", labels),))
    huggingface.save(AlbertModel(model.config, model.head_list), folder, tokenizer)
    return str(folder)


def test_classes_are_known_by_their_names_whatever_their_order_and_case(
    small: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    source = TaskSource(data=tmp_path)

    def labels_of(*names: str) -> list[object]:
        task = open_for(load_models([classifier(tmp_path / "model", small, *names)]), "sst2", source)
        assert len(task.labels) == len(names)
        return [example.label for example in task.read("dev").examples]  # type: ignore[union-attr]

    assert labels_of("negative", "positive") == [1, 0]
    assert labels_of("POSITIVE", "NEGATIVE") == [0, 1]
    assert capsys.readouterr().err == ""
    assert labels_of("LABEL_0", "LABEL_1") == [1, 0]
    assert "have no names (LABEL_0, LABEL_1): taken for negative, positive" in capsys.readouterr().err
    for names in (("no", "yes"), ("LABEL_0", "LABEL_1", "LABEL_2")):
        with pytest.raises(UserError, match="but sst2 has negative, positive: is it fine-tuned for another task"):
            labels_of(*names)


def test_models_that_cannot_do_it_are_refused_in_a_sentence(
    quick_runs: dict[str, Path], tiny: Path, small: Tokenizer, cased: Tokenizer, tmp_path: Path
) -> None:
    run = quick_runs["classification"]
    with pytest.raises(UserError, match="no model is named"):
        Evaluate(())
    with pytest.raises(UserError, match="has no head for a task: fine-tune it first"):
        load_models([str(tiny)])
    with pytest.raises(UserError, match=r"has the heads regression, but .* has classification \(cold, warm\)"):
        load_models([str(run), str(quick_runs["regression"])])
    with pytest.raises(UserError, match=r"is no model folder: known are: .*albert-base-wikibooks"):
        load_models([str(tmp_path / "nowhere")])
    other = classifier(tmp_path / "cased", cased, "cold", "warm")
    with pytest.raises(UserError, match="has another vocabulary than"):
        load_models([str(run), other])
    with pytest.raises(UserError, match=r"regression needs a regression head, but .* has classification"):
        open_for(load_models([str(run)]), "regression", TaskSource(train=file_of(quick_runs["regression"])))
    with pytest.raises(UserError, match="'classificaton' is not a task: did you mean 'classification'"):
        open_for(load_models([str(run)]), "classificaton", TaskSource())
    with pytest.raises(UserError, match=r"the page is HTML: give a name that ends in \.html"):
        Evaluate((str(run),), report=Path("page.pdf"))
    (tmp_path / "going").mkdir()
    shutil.copy(run / "run.json", tmp_path / "going")
    with pytest.raises(UserError, match="going is a run that has no model yet: run its command again"):
        load_models([str(tmp_path / "going")])


def test_where_nothing_can_be_written_nothing_is_computed(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = quick_runs["classification"]
    (tmp_path / "taken").write_text("")
    (tmp_path / "folder.html").mkdir()
    for words, sentence in (
        (("--predictions", "taken"), f"{tmp_path / 'taken'} is not a folder"),
        (("--predictions", "taken/below"), f"{tmp_path / 'taken'} is not a folder"),
        (("--report", "taken/page.html"), f"{tmp_path / 'taken'} is not a folder"),
        (("--report", "folder.html"), "is a folder, and the page is a file"),
    ):
        with pytest.raises(SystemExit):
            main(["evaluate", str(run), "--train", str(file_of(run)), words[0], str(tmp_path / words[1])])
        [said] = capsys.readouterr().err.splitlines()
        assert sentence in said


def test_a_file_of_one_class_is_told(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "warm.csv").write_text("text,label\nthe good time,warm\nthe good war,warm\n")
    main(["evaluate", str(quick_runs["classification"]), "--dev", str(tmp_path / "warm.csv")])
    assert "dev: all examples are of one class, 'warm': a score there is hardly meaningful" in capsys.readouterr().err


PAIRS = "sentence1,sentence2,label\nthe good time,the old war,warm\nthe old war,the time,cold\n"
SINGLES = "text,label\nthe good time,warm\nthe old war,cold\n"


def test_pairs_are_refused_by_a_model_of_single_texts_and_the_other_way_round(
    quick_runs: dict[str, Path], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, singles, run = tmp_path / "pairs.csv", tmp_path / "singles.csv", quick_runs["classification"]
    pairs.write_text(PAIRS)
    singles.write_text(SINGLES)
    learn(tiny, "classification", pairs, tmp_path / "run", f"--dev {pairs} --steps 1")
    assert [one.of_pairs for one in load_models([str(run), str(tmp_path / "run")]).task_infos if one] == [False, True]
    of_questions = read_task_info(quick_runs["question_answering"] / "model")
    assert of_questions is not None
    assert of_questions.of_pairs is None
    capsys.readouterr()
    for models, file, sentence in (
        ([run], pairs, f"{run} was trained on single texts, but dev has pairs: take the column"),
        ([tmp_path / "run"], singles, "was trained on pairs of texts, but dev has single ones: name the column"),
        ([tmp_path / "run", run], pairs, f"{run} was trained on single texts, but dev has pairs"),
    ):
        with pytest.raises(SystemExit):
            main(["evaluate", *map(str, models), "--dev", str(file)])
        assert f"error: {sentence}" in capsys.readouterr().err.replace(f"{tmp_path / 'run'} was trained", "was trained")
    assert printed(capsys, tmp_path / "run", "--dev", pairs)["splits"]["dev"]["examples"] == 2


def test_a_model_of_a_known_task_is_known_to_be_of_pairs_and_one_that_says_nothing_is_believed(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(quick_runs["classification"] / "model", tmp_path / "model"))
    (tmp_path / "singles.csv").write_text(SINGLES)
    source = TaskSource(dev=tmp_path / "singles.csv")
    write_task_info(folder, TaskInfo("rte", "classification", 64))
    task = open_for(load_models([str(folder)]), "classification", source)
    with pytest.raises(UserError, match="was trained on pairs of texts, but dev has single ones"):
        task.read("dev")
    write_task_info(folder, TaskInfo("classification", "classification", 64))
    assert len(open_for(load_models([str(folder)]), "", source).read("dev").examples) == 2


def test_what_a_model_was_tuned_for_reads_back_and_damage_is_told(tmp_path: Path) -> None:
    tuned = TaskInfo("squad2", "question_answering", 384, 64, -1.25, "dev", {"f1": 80.0, "exact_match": 77.0})
    write_task_info(tmp_path, tuned)
    assert read_task_info(tmp_path) == tuned
    assert read_task_info(tmp_path / "nowhere") is None
    (tmp_path / TASK).write_text('{"task": "squad2", "kind": "question_answering", "max_length": "long"}')
    with pytest.raises(UserError, match=r"task\.json: TaskInfo\.max_length does not fit: expected a whole number"):
        read_task_info(tmp_path)


@pytest.mark.parametrize("name", ["sst2", "mrpc", "squad1", "race"])
def test_known_tasks_are_evaluated_on_their_own_files(
    name: str, real_data: Path, small: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real files from end to end with a tiny model; what it says is worth nothing, that it is counted is."""
    folders = {"squad1": "squad", "race": "race"}
    data = real_data / folders.get(name, "glue")
    if name == "squad1":
        articles = json.loads((data / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
        data = tmp_path
        few = {**articles[5], "paragraphs": articles[5]["paragraphs"][:8]}
        (data / "dev-v1.1.json").write_text(json.dumps({"data": [few]}))
    if name == "race":
        lines = (data / "dev.jsonl").read_text(encoding="utf-8").splitlines()[:20]
        data = tmp_path
        (data / "dev.jsonl").write_text("\n".join(lines))
    task = open_task(name, TaskSource(data=data))
    huggingface.save(micro_model(task), tmp_path / "model", small)
    found = printed(capsys, tmp_path / "model", "--task", name, "--data", data, "--predictions", tmp_path / "out")
    scores = found["splits"]["dev"]["scores"]
    assert scores.keys() >= {task.main_metric}
    assert all(0 <= score <= 100 for score in scores.values())
    assert found["splits"]["dev"]["examples"] == len(task.read("dev").examples)
    assert {path.suffix for path in (tmp_path / "out").iterdir()} >= {".jsonl"}


def test_the_answers_of_choices_are_read_as_the_model_learned_them(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"question": "what is it", "options": ["good", "war", "water"]}
    numbers = {"train": (1, 2, 3, 1, 2, 3), "dev": (1, 2, 2)}
    for name, answers in numbers.items():
        lines = [json.dumps({**row, "question": f"{name} {n}", "answer": a}) for n, a in enumerate(answers)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    dev = str(tmp_path / "dev.jsonl")
    run = tmp_path / "run"
    learned = learn(tiny, "multiple_choice", tmp_path / "train.jsonl", run, f"--steps 10 --dev {dev}")
    tuned = read_task_info(run / "model")
    assert tuned is not None
    assert tuned.answer_format == "number from 1"
    capsys.readouterr()
    main(["evaluate", str(run), "--dev", dev, "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out)["splits"]["dev"]["scores"] == learned["scores"]["dev"]
    assert "answer format: number from 1, as in the model's training file" in said.err


def test_an_evaluation_puts_the_metric_first_that_was_optimized(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path, 80)
    for metric, first in (("macro_f1", "macro_f1"), ("loss", "accuracy")):
        learn(tiny, "classification", file, tmp_path / metric, f"--dev {file} --steps 2 --metric {metric}")
        capsys.readouterr()
        main(["evaluate", str(tmp_path / metric), "--dev", str(file), "--json"])
        assert json.loads(capsys.readouterr().out)["main_metric"] == first
