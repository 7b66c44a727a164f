"""Files of predictions, in the forms that others read."""

import json
from pathlib import Path

import pytest
from tests.tasks.made_data import glue_files, made_source

from openalbert.errors import UserError
from openalbert.finetuning.evaluation.submission import format_prediction, write_glue, write_lines, write_squad
from openalbert.tasks.metrics import Retrieved
from openalbert.tasks.registry import GLUE, TASKS, TaskSource, open_task
from openalbert.tasks.task import QuestionExample, TaskMetadata

# What the leaderboard takes: the file of each test split, and how its first classes are written.
LEADERBOARD = {
    "cola": ({"test": "CoLA.tsv"}, ["0", "1"]),
    "sst2": ({"test": "SST-2.tsv"}, ["0", "1"]),
    "mrpc": ({"test": "MRPC.tsv"}, ["0", "1"]),
    "stsb": ({"test": "STS-B.tsv"}, ["0.000", "1.000"]),
    "qqp": ({"test": "QQP.tsv"}, ["0", "1"]),
    "mnli": ({"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"}, ["entailment", "neutral"]),
    "qnli": ({"test": "QNLI.tsv"}, ["entailment", "not_entailment"]),
    "rte": ({"test": "RTE.tsv"}, ["entailment", "not_entailment"]),
    "wnli": ({"test": "WNLI.tsv"}, ["0", "1"]),
}


@pytest.mark.parametrize("name", GLUE)
def test_predictions_are_written_as_the_leaderboard_takes_them(name: str, tmp_path: Path) -> None:
    task = open_task(name, TaskSource(data=glue_files(tmp_path, name)))
    files, words = LEADERBOARD[name]
    for split, file in files.items():
        examples = task.read(split).examples
        path = write_glue(task, split, examples, [number % 2 for number in range(6)], tmp_path / "out")
        assert path == tmp_path / "out" / file
        lines = path.read_text().split("\n")
        assert lines[:3] == ["index\tprediction", f"0\t{words[0]}", f"1\t{words[1]}"]
        assert len(lines) == 8
        assert lines[-1] == ""


def test_the_code_of_a_class_does_not_hang_on_the_models_order(tmp_path: Path) -> None:
    source = TaskSource(data=glue_files(tmp_path, "sst2"))
    task = open_task("sst2", source, TaskMetadata(labels=("positive", "negative")))
    path = write_glue(task, "test", task.read("test").examples, [0] * 6, tmp_path)
    assert path.read_text().split("\n")[1] == "0\t1"


def test_answers_are_not_written_where_two_questions_have_one_id(tmp_path: Path) -> None:
    questions = [QuestionExample("a", "The house is old.", text, ()) for text in ("What?", "Why?")]
    with pytest.raises(UserError, match="2 questions have 1 id, and answers are written by id"):
        write_squad(questions, ["house", ""], tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_values_stay_within_what_annotators_could_say(tmp_path: Path) -> None:
    task = open_task("stsb", TaskSource(data=glue_files(tmp_path, "stsb")))
    path = write_glue(task, "test", task.read("test").examples, [-1, 5.2, 3.14159, 0, 5, 2.0005], tmp_path)
    told = [line.split("\t")[1] for line in path.read_text().split("\n")[1:4]]
    assert told == ["0.000", "5.000", "3.142"]


def test_predictions_of_dev_are_not_taken_for_the_leaderboards(tmp_path: Path) -> None:
    task = open_task("rte", TaskSource(data=glue_files(tmp_path, "rte")))
    path = write_glue(task, "dev", task.read("dev").examples, [0] * 6, tmp_path)
    assert path.name == "RTE.dev.tsv"


def test_only_glue_has_a_leaderboard_of_glue(tmp_path: Path) -> None:
    task = open_task("race", made_source("race", tmp_path))
    with pytest.raises(UserError, match="race is not a task of GLUE"):
        write_glue(task, "dev", task.read("dev").examples, [], tmp_path)


def test_every_example_needs_a_prediction(tmp_path: Path) -> None:
    task = open_task("rte", TaskSource(data=glue_files(tmp_path, "rte")))
    examples = task.read("dev").examples
    for write in (
        lambda: write_glue(task, "dev", examples, [0], tmp_path),
        lambda: write_lines(task, examples, [0], tmp_path / "a.jsonl"),
        lambda: write_squad(examples, ["x"], tmp_path / "a.json"),
    ):
        with pytest.raises(UserError, match="1 prediction for 6 examples"):
            write()


def test_answers_and_odds_are_written_as_squads_scorer_takes_them(tmp_path: Path) -> None:
    task = open_task("squad2", made_source("squad2", tmp_path))
    examples = task.read("dev").examples
    answers = [example.answers[0].text if example.answers else "" for example in examples]
    odds = [0.0 if answer else 1.5 for answer in answers]
    path, beside = write_squad(examples, answers, tmp_path / "out" / "predictions.json", odds)
    assert beside == tmp_path / "out" / "predictions_null_odds.json"
    assert json.loads(path.read_text()) == {one.id: answer for one, answer in zip(examples, answers, strict=True)}
    told = json.loads((tmp_path / "out" / "predictions_null_odds.json").read_text())
    assert told == {one.id: odd for one, odd in zip(examples, odds, strict=True)}


# The files of tags are tested with a run, in test_tagging.py: they have entities and a column of words.
@pytest.mark.parametrize("name", [name for name in TASKS if name != "tagging"])
def test_predictions_of_every_task_can_be_written_format_prediction(name: str, tmp_path: Path) -> None:
    task = open_task(name, made_source(name, tmp_path))
    examples = task.read(task.splits[0]).examples[:1]
    prediction, words = {
        "classification": (1, task.labels[1:2] and task.labels[1]),
        "regression": (2.5, 2.5),
        "multi_label": ((0, 2), [*task.labels[:1], *task.labels[2:3]]),
        "multiple_choice": (1, "B"),
        "question_answering": ("Ä0", "Ä0"),
        "similarity": (Retrieved(3, 0.5, 0.25), 0.5),
    }[task.kind]
    path = write_lines(task, examples, [prediction], tmp_path / "out.jsonl")
    assert json.loads(path.read_text()) == {"id": examples[0].id, "prediction": words}


def test_an_option_behind_the_alphabet_has_a_number(tmp_path: Path) -> None:
    task = open_task("multiple_choice", made_source("multiple_choice", tmp_path))
    assert [format_prediction(task, number) for number in (0, 25, 26)] == ["A", "Z", "26"]
