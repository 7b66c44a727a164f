"""Predictions in Python: equal to transformers' pipelines, in the order of the inputs, for every head."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.finetuning.made_lessons import PLAIN, TELLING, learn

import openalbert
from openalbert.errors import InputWarning, UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, Head
from openalbert.model.presets import preset
from openalbert.serve.backend import Backend, TorchBackend
from openalbert.serve.predictions import ClassPrediction, FillPrediction
from openalbert.serve.predictor import Predictor

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()

TEXTS = ["the good war", "water " * 30, "school", "a great day and a good one", "key", "key"]


def pipeline(task: str, run: Path) -> Any:
    return transformers.pipeline(task, model=str(run / "model"), device="cpu")


def test_classes_and_probabilities_are_those_of_hugging_faces_pipeline(quick_runs: dict[str, Path]) -> None:
    ours = openalbert.load(quick_runs["classification"]).predict(TEXTS)
    theirs = pipeline("text-classification", quick_runs["classification"])(TEXTS, top_k=None)
    for mine, of_text in zip(ours, theirs, strict=True):
        assert mine.probabilities == pytest.approx({one["label"]: one["score"] for one in of_text}, abs=1e-5)
        assert mine.label == of_text[0]["label"]
        assert mine.probability == max(mine.probabilities.values())


def test_labels_and_values_are_those_of_hugging_faces_pipeline(quick_runs: dict[str, Path]) -> None:
    ours = openalbert.load(quick_runs["multi_label"]).predict(TEXTS)
    theirs = pipeline("text-classification", quick_runs["multi_label"])(TEXTS, top_k=None)
    for mine, of_text in zip(ours, theirs, strict=True):
        assert mine.probabilities == pytest.approx({one["label"]: one["score"] for one in of_text}, abs=1e-5)
        assert set(mine.labels) == {one["label"] for one in of_text if one["score"] > 0.5}
    values = openalbert.load(quick_runs["regression"]).predict(TEXTS)
    theirs = pipeline("text-classification", quick_runs["regression"])(TEXTS, function_to_apply="none")
    assert [one.value for one in values] == pytest.approx([one["score"] for one in theirs], abs=1e-4)


def test_the_answer_is_the_best_span_by_transformers_logits(quick_runs: dict[str, Path]) -> None:
    folder = quick_runs["question_answering"] / "model"
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for passage in ("So the KEY, way out!", "thought take even so key way our during", "One  key\tÉtat (great)"):
        batch = tokenizer("what is good", passage, return_offsets_mapping=True, return_tensors="pt")
        offsets = batch.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            logits = theirs(**batch)
        inside = [
            place
            for place, kind in enumerate(batch["token_type_ids"][0].tolist())
            if kind == 1 and passage[slice(*offsets[place])].strip()
        ]
        sums = {
            (first, last): float(logits.start_logits[0, first] + logits.end_logits[0, last])
            for first in inside
            for last in inside
            if first <= last
        }
        first, last = max(sums, key=lambda span: sums[span])
        found = loaded(quick_runs["question_answering"]).answer("what is good", passage)
        assert found.answer == passage[offsets[first][0] : offsets[last][1]].strip()
        assert found.answer == passage[found.start : found.end]


def test_the_answer_of_a_passage_of_many_windows_is_its_own_characters(quick_runs: dict[str, Path]) -> None:
    model = loaded(quick_runs["question_answering"])
    passage = "  ".join(["Modern facts, however: great!"] * 40 + ["so the key way out"] + ["thought take"] * 40)
    found = model.answer("what is good", passage)
    assert found.answer == passage[found.start : found.end] != ""
    assert model.predict({"question": "what is good", "context": passage}) == found


def test_the_option_with_the_highest_score_is_chosen(quick_runs: dict[str, Path]) -> None:
    model = openalbert.load(quick_runs["multiple_choice"])
    lines = (quick_runs["multiple_choice"].parent / "data" / "choices.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    inputs = [{"question": row["question"], "options": row["options"]} for row in rows]
    found = model.predict(inputs)
    assert [one.number for one in found] == [row["answer"] for row in rows]
    for one, row in zip(found, rows, strict=True):
        assert one.option == row["options"][one.number]
        assert len(one.probabilities) == len(row["options"])
        assert sum(one.probabilities) == pytest.approx(1)
    assert found[0].cells()["prediction"] == rows[0]["answer"]  # as the training file names it


def test_a_pretrained_model_fills_masks_and_tells_the_order_of_pairs(tiny: Path) -> None:
    model = openalbert.load(tiny)
    mixed = ["a [MASK] text", ("the first", "the second"), "[MASK] [MASK]", ("so", "it is")]
    found = model.predict(mixed)
    assert [type(one) for one in found] == [FillPrediction, ClassPrediction] * 2
    assert [guess.id for guess in found[0].masks[0]] == [guess.id for guess in model.fill("a [MASK] text").masks[0]]
    theirs = transformers.AlbertForPreTraining.from_pretrained(tiny).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    with torch.no_grad():
        logits = theirs(**tokenizer("the first", "the second", return_tensors="pt")).sop_logits
    assert list(found[1].probabilities.values()) == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-5)
    assert list(found[1].probabilities) == ["in order", "swapped"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    texts=st.lists(
        st.lists(st.sampled_from([*PLAIN[:20], *TELLING]), min_size=1, max_size=80).map(" ".join), max_size=12
    )
)
def test_every_text_is_predicted_in_its_place_whatever_is_computed_with_it(
    quick_runs: dict[str, Path], texts: list[str]
) -> None:
    model = loaded(quick_runs["classification"])
    together = [one.probability for one in model.predict(texts, tokens_at_a_time=64)]
    alone = [model.predict(text).probability for text in texts]
    assert together == pytest.approx(alone, abs=1e-5)


_LOADED: dict[Path, Predictor] = {}


def loaded(run: Path) -> Predictor:
    return _LOADED.setdefault(run, openalbert.load(run))


def test_a_series_and_other_iterables_are_lists_of_texts(quick_runs: dict[str, Path]) -> None:
    model = loaded(quick_runs["classification"])
    wanted = model.predict(TEXTS)
    for given_texts in (
        pandas.Series(TEXTS, index=range(5, 11)),
        tuple(TEXTS),
        np.array(TEXTS),
        (one for one in TEXTS),
    ):
        assert model.predict(given_texts) == wanted
    assert model.predict([]) == []
    assert model.predict([{"text": "key"}]) == model.predict(["key"])


def test_inputs_without_text_are_predicted_as_none_with_a_warning(quick_runs: dict[str, Path]) -> None:
    model = loaded(quick_runs["classification"])
    texts = pandas.Series(["good", None, float("nan"), "", "\u200b \x00", 5, "\ud800 water"])
    with pytest.warns(InputWarning, match=r"4 inputs without a text \(first: number 1\): predicted as None"):
        found = model.predict(texts)
    assert [one is None for one in found] == [False, True, True, True, True, False, False]
    assert found[0].probability == pytest.approx(model.predict("good").probability, abs=1e-6)


def test_inputs_that_are_too_long_are_cut_with_a_warning(quick_runs: dict[str, Path]) -> None:
    model = loaded(quick_runs["classification"])
    texts = ["good", "the " * 100, "the water " * 100]
    with pytest.warns(InputWarning, match="2 inputs were too long, and cut to 64 tokens"):
        assert len(model.predict(texts)) == 3
    with pytest.warns(InputWarning, match="1 input was too long, and cut to 12 tokens"):
        model.embed(texts[1], max_length=12)


REFUSED: dict[str, tuple[str, Any, str]] = {
    "an empty text": (
        "classification",
        lambda model: model.predict(""),
        "nothing to predict for an input without a text",
    ),
    "a pair for single texts": ("classification", lambda model: model.predict(("a", "b")), "trained on single texts"),
    "three values": (
        "classification",
        lambda model: model.predict([("a", "b", "c")]),
        "input 0 has 3 values, and not 2",
    ),
    "a number": ("classification", lambda model: model.predict(5), "the input is a int: give texts"),
    "a DataFrame": (
        "classification",
        lambda model: model.predict(pandas.DataFrame({"text": ["a"]})),
        "the input is a DataFrame: give one of its columns",
    ),
    "a DataFrame to embed": (
        "classification",
        lambda model: model.embed(pandas.DataFrame({"text": ["a"]})),
        "the input is a DataFrame: give one of its columns",
    ),
    "bytes": ("classification", lambda model: model.predict(b"a"), "the input is a bytes: give texts"),
    "a wrong key": (
        "classification",
        lambda model: model.predict({"txt": "a"}),
        "has the key 'txt', but its keys are text",
    ),
    "an answer of a classifier": (
        "classification",
        lambda model: model.answer("a", "b"),
        r"predicts classes, by predict",
    ),
    "a mask for a classifier": (
        "classification",
        lambda model: model.fill("[MASK]"),
        r"no masked-LM head .* by predict",
    ),
    "a text for questions": (
        "question_answering",
        lambda model: model.predict("a"),
        "give tuples of question and passage",
    ),
    "no passage": ("question_answering", lambda model: model.answer("a", " "), "without a passage"),
    "no question": ("question_answering", lambda model: model.answer(" ", "a"), "without a question"),
    "a mask for questions": (
        "question_answering",
        lambda model: model.fill("[MASK]"),
        r"by answer\(question, passage\)",
    ),
    "a text for choices": ("multiple_choice", lambda model: model.predict("a"), 'give dicts: {"question"'),
    "one option": (
        "multiple_choice",
        lambda model: model.predict({"question": "a", "options": ["b", " "]}),
        "with fewer than two options",
    ),
    "too long": (
        "classification",
        lambda model: model.predict("a", max_length=65),
        "give a number from 8 to 64 tokens",
    ),
    "no tokens at a time": ("classification", lambda model: model.predict("a", tokens_at_a_time=0), "at least 1"),
    "no such device": ("classification", lambda model: model.to("tpu"), "the device 'tpu' cannot be used"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_model_cannot_predict_is_refused_with_what_it_can(case: str, quick_runs: dict[str, Path]) -> None:
    kind, call, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        call(loaded(quick_runs[kind]))


def test_a_pretrained_model_says_what_it_is_for(tiny: Path) -> None:
    model = openalbert.load(tiny)
    with pytest.raises(UserError, match=r"cannot answer questions on a passage: it is a pretrained model, for fill"):
        model.answer("a", "b")
    with pytest.raises(UserError, match=r"an input without \[MASK\]"):
        model.predict("a text")


def test_a_preset_takes_ids_and_no_texts() -> None:
    model = openalbert.load("albert-micro", heads=PRETRAINING_HEADS)
    assert model.encode(torch.ones(1, 3, dtype=torch.long)).pooled.shape == (1, model.config.hidden_size)
    with pytest.raises(UserError, match="albert-micro has no tokenizer"):
        model.fill("a [MASK]")
    with pytest.raises(UserError, match="has no heads, so it predicts nothing"):
        openalbert.load("albert-micro").predict("a text")


def test_a_saved_model_predicts_as_before(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    for kind in ("classification", "some_without_answer"):
        model = openalbert.load(quick_runs[kind])
        model.save(tmp_path / kind)
        again = openalbert.load(tmp_path / kind)
        given_input: Any = "the good war" if kind == "classification" else ("what is good", "so key way out")
        assert again.predict(given_input) == model.predict(given_input)
        assert (again.task, again.labels) == (model.task, model.labels)
        assert {path.name for path in (tmp_path / kind).iterdir()} == {
            path.name for path in (quick_runs[kind] / "model").iterdir()
        }


def test_a_model_describes_itself_and_its_predictions(quick_runs: dict[str, Path], tiny: Path) -> None:
    model = loaded(quick_runs["classification"])
    assert re.fullmatch(r"Predictor\('.*'\): classification, labels cold, warm", repr(model))
    assert repr(openalbert.load(tiny)).endswith("pretrained, masked_lm and sentence_order")
    assert re.fullmatch(r"ClassPrediction\('(cold|warm)', probability=0\.\d{3}\)", repr(model.predict("good")))
    answer = loaded(quick_runs["question_answering"]).answer("what", "so key way out")
    assert re.fullmatch(r"AnswerPrediction\('.+', start=\d+, end=\d+, probability=\d\.\d{3}\)", repr(answer))
    assert isinstance(model.module, AlbertModel)
    assert isinstance(model.backend, Backend)
    assert model.to("cpu") is model


def test_a_model_without_task_json_predicts_by_its_head(tmp_path: Path, small: Any) -> None:
    torch.manual_seed(0)
    module = AlbertModel(preset("albert-micro"), (Head("classification", ("no", "yes")),)).eval()
    huggingface.save(module, tmp_path / "model", small)
    model = openalbert.load(tmp_path / "model")
    assert model.task is None
    assert {one.label for one in model.predict(["a", ("a", "b")])} <= {"no", "yes"}


def test_pairs_are_read_where_pairs_were_learned(tiny: Path, tmp_path: Path) -> None:
    lines = [f"the {word} war,it is {word},{label}" for word, label in zip(TELLING * 8, ["a", "b"] * 24, strict=True)]
    (tmp_path / "pairs.csv").write_text("\n".join(["premise,hypothesis,label", *lines]) + "\n")
    learn(tiny, "classification", tmp_path / "pairs.csv", tmp_path / "run", "--steps 3")
    model = openalbert.load(tmp_path / "run")
    assert model.predict([("the good war", "it is good")])[0] == model.predict(("the good war", "it is good"))
    with pytest.raises(UserError, match="was trained on pairs of texts: give tuples of two texts"):
        model.predict(["the good war"])


def test_long_work_shows_its_progress(quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(quick_runs["classification"])
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        model.predict(TEXTS)
        assert not said.getvalue()
        monkeypatch.setattr("openalbert.serve.backend.LONG_INPUT", 10)
        model.predict(TEXTS)
    assert re.match(r"predict: 0\.1/0\.1 k tokens", said.getvalue())


def test_too_little_memory_is_explained(quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(TorchBackend, "logits", full)
    with pytest.raises(UserError, match="give fewer with tokens_at_a_time"):
        loaded(quick_runs["classification"]).predict("a text")
