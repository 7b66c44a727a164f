"""Texts that are longer than the input: windows in place of truncation, learned, combined, stored and reported."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.finetuning.made_lessons import PLAIN, learn
from tests.finetuning.micro_models import micro_model
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.data import encode_split
from openalbert.finetuning.encode import encode
from openalbert.finetuning.evaluation.split import evaluate_split
from openalbert.finetuning.predict import predict
from openalbert.finetuning.windows import spread_windows
from openalbert.interop.task_json import read_task_info
from openalbert.tasks.task import Kind, LongTexts, Reading, TextExample
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
TEXT_KINDS: tuple[Kind, ...] = ("classification", "regression", "multi_label")
LABELS = {"classification": (1, 0, 1), "regression": (0.5, -1.0, 2.0), "multi_label": ((0, 1), (), (1,))}


def examples(kind: Kind, *lengths: int, pairs: tuple[int, ...] = ()) -> list[TextExample]:
    dice = random.Random(0)
    texts = [" ".join(dice.choices(PLAIN, k=length)) for length in lengths]
    seconds = [" ".join(dice.choices(PLAIN, k=length)) for length in pairs] or [None] * len(texts)
    labels = LABELS[kind]
    return [
        TextExample(str(number), text, second, labels[number % 3])
        for number, (text, second) in enumerate(zip(texts, seconds, strict=True))
    ]


@given(st.integers(1, 3000), st.integers(6, 510))
def test_windows_over_a_text_cover_it_overlap_by_an_eighth_and_are_as_few_as_can_be(tokens: int, room: int) -> None:
    windows = spread_windows(tokens, room)
    assert windows[0][0] == 0
    assert sum(windows[-1]) == tokens
    if tokens <= room:
        assert windows == [(0, tokens)]
        return
    assert {length for _, length in windows} == {room}
    starts = np.array([start for start, _ in windows])
    overlaps = room - np.diff(starts)
    assert overlaps.min() >= room // 8
    assert np.ptp(overlaps) <= 1  # spread evenly
    fewer = len(windows) - 1
    assert fewer * room - (fewer - 1) * (room // 8) < tokens


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, "mean") for kind in TEXT_KINDS), ("classification", "max"), ("multi_label", "max")]
)
def test_the_scores_of_a_long_text_are_the_mean_or_the_max_of_those_of_its_windows(
    kind: Kind, how: LongTexts, small: Tokenizer
) -> None:
    task = made_task(kind)
    model = micro_model(task)
    some = examples(kind, 3, 120, 40)
    sequences = encode(task, some, small, 24, long_texts=how).sequences
    outputs = predict([model], sequences, CPU).logits[kind]
    assert len(outputs) == 3
    for number, example in enumerate(some):
        ids = small.encode(example.first)
        each = []
        for start, length in spread_windows(len(ids), 22):
            window = [small.cls_id, *ids[start : start + length], small.sep_id]
            with torch.inference_mode():
                each.append(model.eval().scores(kind, model.encode(torch.tensor([window])))[0].numpy())
        assert (len(each) > 1) == (number > 0)
        expected = np.mean(each, axis=0) if how == "mean" else np.max(each, axis=0)
        np.testing.assert_allclose(outputs[number], expected, rtol=1e-4, atol=1e-5)
    # Metrics and loss are of texts, not of windows.
    split = encode_split(task, "dev", Reading(tuple(some)), small, max_length=24, long_texts=how)
    found = evaluate_split([model], task, split, CPU)
    assert len(found.predictions) == 3
    labels = split.encoding.sequences.targets[kind][sequences.first_of_examples]
    rows, wanted = torch.from_numpy(outputs), torch.from_numpy(labels)
    losses = {
        "classification": lambda: torch.nn.functional.cross_entropy(rows, wanted),
        "regression": lambda: torch.nn.functional.mse_loss(rows[:, 0], wanted),
        "multi_label": lambda: torch.nn.functional.binary_cross_entropy_with_logits(rows, wanted),
    }
    assert found.loss == pytest.approx(float(losses[kind]()), rel=1e-5)


def test_short_texts_are_the_same_with_windows_as_with_truncation(small: Tokenizer) -> None:
    task = made_task("classification")
    some = examples("classification", 3, 10, 12, pairs=(2, 4, 3))
    cut, windows = (encode(task, some, small, 64, long_texts=how).sequences for how in ("truncate", "mean"))
    np.testing.assert_array_equal(cut.ids, windows.ids)
    np.testing.assert_array_equal(cut.second, windows.second)
    assert (windows.num_in_windows, windows.num_truncated) == (0, 0)


def test_of_a_long_pair_the_longer_text_has_windows_and_the_shorter_is_in_each(small: Tokenizer) -> None:
    task = made_task("classification")
    some = examples("classification", 4, 90, 100, pairs=(80, 5, 60))
    sequences = encode(task, some, small, 32, long_texts="mean").sequences
    room = 32 - 3
    for number, example in enumerate(some):
        first, second = small.encode(example.first), small.encode(example.second or "")
        found_first: list[int] = []
        found_second: list[int] = []
        for row in np.flatnonzero(sequences.example == number):
            ids = sequences.ids[sequences.starts[row] : sequences.starts[row + 1]].tolist()
            border = int(sequences.second[row])
            assert len(ids) <= 32
            found_first.append(len(ids[1 : border - 1]))
            found_second.append(len(ids[border:-1]))
            shorter, whole = (ids[1 : border - 1], first) if len(first) < len(second) else (ids[border:-1], second)
            assert shorter == whole[: room // 2]
        assert sum(found_first if len(first) > len(second) else found_second) >= max(len(first), len(second))
    assert sequences.num_in_windows == 3
    assert sequences.num_truncated == 1  # of the last pair both are long


@pytest.mark.parametrize("kind", ["multiple_choice", "question_answering"])
def test_windows_are_refused_where_there_is_no_label_of_a_text(kind: Kind, small: Tokenizer) -> None:
    with pytest.raises(UserError, match=f"--long-texts mean is for a label or a value of a text.*{kind}"):
        encode(made_task(kind), EXAMPLES[kind], small, 24, long_texts="mean")


def test_the_maximum_over_windows_is_refused_for_values(small: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"no maximum over its windows.*give --long-texts mean"):
        encode(made_task("regression"), [TextExample("1", "a text", None, 2.0)], small, 24, long_texts="max")


def late_file(path: Path, num_examples: int = 240, words: int = 120, short: int = 6) -> Path:
    """Texts whose label is their last word; every sixth is short."""
    dice = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number in range(num_examples):
            label = dice.choice(("good", "war"))
            length = 8 if number % short == 0 else words
            writer.writerow((" ".join([*dice.choices(PLAIN[:20], k=length), label]), f"class {label}"))
    return path


def test_a_label_that_depends_on_the_end_of_long_texts_is_learned_by_windows_and_not_by_truncation(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = late_file(tmp_path / "late.csv")
    words = "--steps 200 --patience None --evaluate-every 50 --long-texts "
    cut = learn(tiny, "classification", file, tmp_path / "cut", words + "truncate")
    assert cut["scores"]["dev"]["accuracy"] < 80
    capsys.readouterr()
    windows = learn(tiny, "classification", file, tmp_path / "windows", words + "mean")
    assert windows["scores"]["dev"]["accuracy"] > 95
    said = capsys.readouterr().err
    assert "longer than 64 tokens and read in 3.0 windows on average, whose scores are combined by their mean" in said
    info = json.loads((tmp_path / "windows" / "run_info.json").read_text())["data"]
    assert info["train_in_windows"] > 150
    assert info["train_truncated"] == 0
    assert "long and read in windows" in (tmp_path / "windows" / "report.html").read_text(encoding="utf-8")
    task_info = read_task_info(tmp_path / "windows" / "model")
    assert task_info is not None
    assert task_info.long_texts == "mean"
    card = (tmp_path / "windows" / "model" / "README.md").read_text(encoding="utf-8")
    assert "reads longer ones in overlapping windows and combines their logits by the mean" in card

    # evaluate does as fine-tuning did, unless another way is given.
    def evaluated(*more: str) -> float:
        cli.main(["evaluate", str(tmp_path / "windows"), "--dev", str(file), "--json", *more])
        return float(json.loads(capsys.readouterr().out)["splits"]["dev"]["scores"]["accuracy"])

    assert evaluated() > 95
    assert evaluated("--long-texts", "truncate") < 80


def test_values_of_long_texts_are_learned_standardized(tiny: Path, tmp_path: Path) -> None:
    dice = random.Random(2)
    lines = ["text,value"]
    for _ in range(160):
        value = dice.choice((1000, 3000))
        lines.append(f"{' '.join(dice.choices(PLAIN[:20], k=70))} {'good' if value == 3000 else 'war'},{value}")
    (tmp_path / "values.csv").write_text("\n".join(lines) + "\n")
    words = "--steps 100 --patience None --evaluate-every 50 --long-texts mean"
    scores = learn(tiny, "regression", tmp_path / "values.csv", tmp_path / "run", words)
    # The first window does not show the word and gives the mean, so that 75 is the best that there is.
    assert scores["scores"]["dev"]["r2"] > 50
