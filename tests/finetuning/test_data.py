"""The data of a run: answers that no window contains, metrics and classes that a task does not have."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.finetuning.made_lessons import PLAIN, command, imbalanced, learn, lesson, records
from tests.tasks.made_tasks import made_task

from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.data import TaskData, encode_split, load_data
from openalbert.finetuning.question_answering.span_decoding import best_answers
from openalbert.finetuning.settings import Finetune
from openalbert.interop.task_json import read_task_info
from openalbert.report.error_analysis import read_error_analyses
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.task import Answer, QuestionExample, Reading
from openalbert.text.tokenizer import Tokenizer

TASK = made_task("question_answering")


def long_article(name: str, num_words: int, around: int = 30, seed: int = 0) -> dict[str, object]:
    """An article with one question, whose answer has so many words."""
    dice = random.Random(seed)
    before, answer, behind = (" ".join(dice.choices(PLAIN, k=k)) for k in (around, num_words, around))
    qas = {"id": name, "question": "what is good", "answers": [{"text": answer, "answer_start": len(before) + 1}]}
    return {"title": name, "paragraphs": [{"context": f"{before} {answer} {behind}", "qas": [qas]}]}


def with_articles(path: Path, *articles: dict[str, object]) -> Path:
    """A file of questions, with more of them."""
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({"data": [*articles, *whole["data"]]}))
    return path


def question(answer: str, passage: str, *others: str) -> QuestionExample:
    answers = tuple(Answer(text, passage.index(text)) for text in (answer, *others))
    return QuestionExample("a", passage, "what?", answers)


@pytest.mark.parametrize("may_have_no_answer", [False, True])
def test_a_question_whose_answer_every_window_cuts_is_not_learned_as_one_without(
    may_have_no_answer: bool, tiny: Path, tmp_path: Path
) -> None:
    train = lesson("question_answering", tmp_path / "train", 200, may_have_no_answer=may_have_no_answer)
    with_articles(train, *(long_article(f"long-{number}", 80, seed=number) for number in range(3)))
    dev = lesson("question_answering", tmp_path / "dev", 40, 1, may_have_no_answer=may_have_no_answer)
    with_articles(dev, long_article("long-dev", 80, seed=9))
    task_data = load_data(Finetune(str(tiny), "question_answering", TaskSource(train=train, dev=dev)))
    held_out = task_data.threshold.examples if task_data.threshold is not None else ()
    lost = 3 - sum(example.id.startswith("long") for example in held_out)
    told = f"train: {lost} left out: whose answer is whole in no window of 64 tokens (first: 'long-"
    assert any(remark.startswith(told) for remark in task_data.remarks)
    sequences = task_data.train.encoding.sequences
    assert sequences.num_examples == len(task_data.train.examples)
    is_learned = np.bincount(sequences.example, sequences.targets["span"][:, 0] > 0) > 0
    assert is_learned.tolist() == [bool(example.answers) for example in task_data.train.examples]
    # What is scored on stays as it is.
    assert task_data.scored["dev"].examples[0].id == "long-dev"
    assert "dev: 1 answer is cut by every window of 64 tokens and can never be predicted" in task_data.remarks


def test_a_run_says_what_it_leaves_out_and_evaluation_what_can_never_be_given(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = with_articles(lesson("question_answering", tmp_path, 40), long_article("long", 80))
    cli.main(command(tiny, "question_answering", file, tmp_path / "run", f"--steps 2 --dev {file}"))
    assert (
        "train: 1 left out: whose answer is whole in no window of 64 tokens (first: 'long')" in capsys.readouterr().err
    )
    assert [record["split"] for record in records(tmp_path / "run", "evaluation")] == ["dev", "dev"]
    cli.main(["evaluate", str(tmp_path / "run"), "--dev", str(file)])
    assert "dev: 1 answer is cut by every window of 64 tokens and can never be predicted" in capsys.readouterr().err


def test_where_no_question_is_left_a_sentence_says_so(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"data": [long_article(str(number), 80, seed=number) for number in range(3)]}))
    with pytest.raises(UserError, match=r"a\.json \(3 left out: whose answer .*\): no question is left to learn from"):
        load_data(Finetune(str(tiny), "question_answering", TaskSource(train=file, dev=file)))


def test_the_first_right_answer_that_a_window_holds_is_learned(small: Tokenizer) -> None:
    words = "people time water war old house day school world man state years".split()
    passage = " ".join(words * 8)
    example = question(passage, passage, "house day", "school")
    split = encode_split(TASK, "train", Reading((example,)), small, max_length=32, stride=8)
    assert split.without_unlearnable().examples == (example,)
    sequences, windows = split.encoding.sequences, split.encoding.windows
    assert windows is not None
    for start, (first, last) in zip(sequences.starts, sequences.targets["span"], strict=False):
        if first:
            assert passage[windows.begin[start + first] : windows.end[start + last]] == "house day"


def test_what_is_said_to_be_out_of_reach_is_what_no_score_can_bring_about(small: Tokenizer) -> None:
    """An oracle gives the right tokens the highest scores, in every window; only then is an answer found or not."""
    dice, reached = random.Random(4), []
    for _ in range(150):
        words = dice.choices(PLAIN, k=dice.randint(5, 60))
        first, number = dice.randrange(len(words)), dice.choice((1, 3, 8, 15, 25))
        start = len(" ".join(words[:first])) + (first > 0)
        text = " ".join(words[first : first + number])
        example = QuestionExample("a", " ".join(words), "what?", (Answer(text, start),))
        length, stride = dice.choice((20, 32)), dice.choice((4, 16))
        reading = Reading((example,))
        split = encode_split(TASK, "dev", reading, small, max_length=length, stride=stride, max_answer_tokens=64)
        windows, sequences = split.encoding.windows, split.encoding.sequences
        assert windows is not None
        span = np.stack([windows.begin == start, windows.end == start + len(text)], 1).astype(np.float32)
        none = np.zeros((len(sequences.example), 1), np.float32)
        (found,) = best_answers([example], split.encoding, {"span": span, "answerability": none}, max_answer_tokens=64)
        can_be_given = found.candidates[0].score == 2
        assert (split.unreachable_answers() == []) == can_be_given
        assert can_be_given == bool(sequences.targets["span"].any())  # whole in any window, that is
        reached.append(can_be_given)
    assert set(reached) == {True, False}


def long_lesson(folder: Path, num_articles: int, seed: int) -> Path:
    """Passages that are answers from end to end, of a word that stands nowhere else to another."""
    dice = random.Random(seed)
    data: list[dict[str, Any]] = []
    for number in range(num_articles):
        passage = " ".join(["war", *dice.choices(PLAIN, k=12), "key"])
        qas = [{"id": str(number), "question": "what is good", "answers": [{"text": passage, "answer_start": 0}]}]
        data.append({"title": str(number), "paragraphs": [{"context": passage, "qas": qas}]})
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"data": data}))
    return folder / "a.json"


def test_how_long_an_answer_may_be_is_told_set_kept_and_used_again(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = long_lesson(tmp_path / "train", 40, 0), long_lesson(tmp_path / "dev", 10, 1)
    tokenizer = Tokenizer.load(tiny)
    lengths = {}
    for split, file in (("train", train), ("dev", dev)):
        passages = [article["paragraphs"][0]["context"] for article in json.loads(file.read_text())["data"]]
        lengths[split] = [len(tokenizer.encode_with_offsets(passage).ids) for passage in passages]
    short = learn(tiny, "question_answering", train, tmp_path / "short", f"--dev {dev} --max-answer-tokens 9")
    said = capsys.readouterr().err
    for split, number in (("train", 40), ("dev", 10)):
        wanted = max(lengths[split])
        told = f"{number} answers are longer than 9 tokens and can never be predicted: --max-answer-tokens {wanted}"
        assert f"{split}: {told}" in said
    assert short["scores"]["dev"]["exact_match"] == 0
    (found,) = read_error_analyses(tmp_path / "short")
    assert found.mistakes
    most = max(lengths["train"] + lengths["dev"])
    long = learn(tiny, "question_answering", train, tmp_path / "long", f"--dev {dev} --max-answer-tokens {most}")
    assert "can never be predicted" not in capsys.readouterr().err
    assert long["scores"]["dev"]["exact_match"] > 50
    for name, tokens, scores in (("short", 9, short), ("long", most, long)):
        tuned = read_task_info(tmp_path / name / "model")
        assert tuned is not None
        assert tuned.max_answer_tokens == tokens
        cli.main(["evaluate", str(tmp_path / name), "--dev", str(dev), "--json"])
        said = capsys.readouterr()
        assert json.loads(said.out)["splits"]["dev"]["scores"] == scores["scores"]["dev"]
        assert ("dev: 10 answers are longer than 9 tokens" in said.err) == (tokens == 9)
    cli.main(["evaluate", str(tmp_path / "long"), "--dev", str(dev), "--json", "--max-answer-tokens", "9"])
    assert json.loads(capsys.readouterr().out)["splits"]["dev"]["scores"]["exact_match"] == 0


@pytest.mark.parametrize("may_have_no_answer", [False, True])
def test_what_is_left_is_encoded_as_if_the_others_had_never_been_there(
    may_have_no_answer: bool, small: Tokenizer
) -> None:
    task, dice = made_task("question_answering", may_have_no_answer=may_have_no_answer), random.Random(1)
    examples = []
    for number in range(30):
        words = dice.choices(PLAIN, k=60)
        passage, length = " ".join(words), dice.choice((1, 5, 50))
        asked = " ".join(dice.choices(PLAIN, k=dice.choice((3, 40))))
        one = replace(question(" ".join(words[5 : 5 + length]), passage), id=str(number), question=asked)
        examples.append(replace(one, answers=()) if may_have_no_answer and number % 5 == 0 else one)
    whole = encode_split(task, "train", Reading(tuple(examples)), small, max_length=48, stride=16)
    rest = whole.without_unlearnable()
    assert 0 < len(rest.examples) < len(examples)
    left = rest.encoding
    alone = encode_split(task, "train", Reading(rest.examples), small, max_length=48, stride=16).encoding
    assert 0 < alone.sequences.num_truncated < whole.encoding.sequences.num_truncated
    for found, wanted in ((left.sequences, alone.sequences), (left.windows, alone.windows)):
        for name, value in vars(wanted).items():
            if name == "targets":
                assert value.keys() == found.targets.keys()
                assert all((found.targets[kind] == rows).all() for kind, rows in value.items())
            else:
                assert np.array_equal(getattr(found, name), value), name
                assert getattr(getattr(found, name), "dtype", None) == getattr(value, "dtype", None), name


def test_a_metric_that_the_task_does_not_have_is_refused_with_those_it_has(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, names in (
        ("classification", "accuracy, macro_f1, f1, matthews, loss"),
        ("regression", "r2, pearson, spearman, loss"),
        ("multi_label", "f1, macro_f1, exact_match, loss"),
        ("multiple_choice", "accuracy, loss"),
        ("question_answering", "exact_match, f1, loss"),
    ):
        file = lesson(kind, tmp_path, 40)
        with pytest.raises(SystemExit):
            cli.main(command(tiny, kind, file, tmp_path / "run", "--metric auc"))
        said = capsys.readouterr().err
        assert f"--metric is 'auc', which {kind} does not have: give one of {names}" in " ".join(said.split())


def test_a_class_that_is_learned_but_not_among_the_held_out_examples_is_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path, 40)  # two of Cancellation, too few for a tenth to be held out
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 4 --dry-run"))
    said = " ".join(capsys.readouterr().err.split())
    assert "WARNING: there is no example of class Cancellation to score on, so no metric counts it" in said
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 4 --dry-run --heldout-fraction 0.5"))
    assert "to score on, so no metric" not in capsys.readouterr().err


def test_metric_and_weights_are_what_is_learned_and_cannot_change_on_the_way(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (Finetune().metric, Finetune().class_weights) == (None, "none")
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", "--steps 2"))
    for words in ("--metric loss", "--class-weights balanced"):
        with pytest.raises(SystemExit):
            cli.main(command(tiny, "classification", file, tmp_path / "run", f"--steps 2 {words}"))
        assert "holds a run with other settings" in capsys.readouterr().err


def test_some_of_the_training_examples_are_learned_from_and_all_others_scored_as_before(
    tiny: Path, tmp_path: Path
) -> None:
    file = lesson("classification", tmp_path, 80)

    def loaded(count: int | None) -> TaskData:
        return load_data(Finetune(str(tiny), "classification", TaskSource(train=file), train_examples=count))

    whole, some = loaded(None), loaded(20)
    order = [example.id for example in whole.train.examples]
    chosen = [example.id for example in some.train.examples]
    assert len(chosen) == 20
    assert chosen == sorted(chosen, key=order.index)
    assert chosen == [example.id for example in loaded(20).train.examples]
    assert chosen != order[:20]
    assert some.scored["dev"].examples == whole.scored["dev"].examples
    assert "train: 20 of 72 examples are used" in some.remarks
    assert loaded(500).train.examples == whole.train.examples
