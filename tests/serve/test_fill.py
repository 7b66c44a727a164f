"""[MASK] filled in: ids and probabilities against Hugging Face's tokenizer and pipeline, and what is refused."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openalbert import cli
from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.interop.huggingface import save
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Head
from openalbert.model.presets import preset
from openalbert.serve.backend import TorchBackend
from openalbert.serve.fill import Fill, fill_texts
from openalbert.serve.masks import encode_masked
from openalbert.serve.predictions import Guess
from openalbert.serve.predictor import Predictor
from openalbert.text.tokenizer import Tokenizer
from openalbert.text.train_tokenizer import TrainVocabulary, train_vocabulary
from openalbert.train.device import Device

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Norway": "Oslo", "Greece": "Athens"}
TEXTS = [
    "The capital of France is [MASK].",
    "[MASK] is the capital of [MASK], and [MASK] of Italy.",
    "The [MASK]s of Spain are un[MASK]able.",
    "[MASK][MASK] x",
    "  [MASK]  (foo) [MASK]  ",
    "[MASK]",
    "is[MASK] .",
    "☃[MASK]☃ ☃",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: a vocabulary of a few sentences, and weights that say something."""
    place = tmp_path_factory.mktemp("fill")
    lines = [f"The capital of {land} is {city}. {city}, unlike others, is loveable." for land, city in CAPITALS.items()]
    (place / "text.txt").write_text("\n".join(lines * 3))
    train_vocabulary(TrainVocabulary((str(place / "text.txt"),), place / "vocabulary", vocab_size=50))
    save(make_model(50), place / "model", Tokenizer.load(place / "vocabulary"))
    return place / "model"


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def make_model(vocab_size: int, heads: tuple[Head, ...] = PRETRAINING_HEADS) -> AlbertModel:
    torch.manual_seed(0)
    config: AlbertConfig = replace(preset("albert-micro"), vocab_size=vocab_size, max_positions=32)
    model = AlbertModel(config, heads)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def predictor(model: AlbertModel, folder: Path) -> Predictor:
    return Predictor(TorchBackend(model.eval(), Device(torch.device("cpu"), "fp32")), Tokenizer.load(folder))


@pytest.mark.parametrize("text", TEXTS)
def test_guesses_are_those_of_hugging_faces_pipeline(folder: Path, text: str) -> None:
    pipeline = transformers.pipeline("fill-mask", model=str(folder), device="cpu")
    theirs = pipeline(text, top_k=7)
    theirs = theirs if isinstance(theirs[0], list) else [theirs]
    ours = Predictor.load(str(folder)).fill(text, top=7).masks
    assert [[guess.id for guess in of_mask] for of_mask in ours] == [
        [guess["token"] for guess in of_mask] for of_mask in theirs
    ]
    for mine, of_mask in zip(ours, theirs, strict=True):
        assert [guess.probability for guess in mine] == pytest.approx([guess["score"] for guess in of_mask], rel=1e-5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(
    words=st.lists(st.sampled_from(["[MASK]", " ", "France", "is", ".", ",", "(", "un", "é", "☃", "able"]), max_size=12)
)
def test_a_text_with_masks_has_the_ids_of_hugging_faces_tokenizer(folder: Path, theirs: Any, words: list[str]) -> None:
    text = "".join(["[MASK]", *words])
    assert encode_masked(Tokenizer.load(folder), text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_texts_of_all_lengths_are_filled_together_as_they_are_alone(folder: Path) -> None:
    model = Predictor.load(str(folder))
    together = [one.masks for one in model.fill(TEXTS, top=3)]
    assert [[[guess.id for guess in mask] for mask in one] for one in together] == [
        [[guess.id for guess in mask] for mask in model.fill(text, top=3).masks] for text in TEXTS
    ]


def test_probabilities_of_a_whole_vocabulary_add_up_to_one_and_fall(folder: Path) -> None:
    [guesses] = Predictor.load(str(folder)).fill("The [MASK].", top=50).masks
    probabilities = [guess.probability for guess in guesses]
    assert math.isclose(sum(probabilities), 1, rel_tol=1e-5)
    assert probabilities == sorted(probabilities, reverse=True)
    assert len({guess.id for guess in guesses}) == 50


def test_rows_of_a_model_beyond_its_vocabulary_are_never_guessed(folder: Path) -> None:
    guesses = predictor(make_model(64), folder).fill("The [MASK].", top=50).masks
    assert max(guess.id for guess in guesses[0]) == 49


def test_the_end_of_a_word_is_told_from_a_word() -> None:
    assert Guess("▁paris", 7, 0.5).reading == "paris"
    assert Guess("ris", 8, 0.5).reading == "…ris"
    assert Guess("▁", 9, 0.5).reading == "(space)"


def test_every_mask_has_a_line_to_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fill", str(folder), "The [MASK] is [MASK].", "[MASK]", "--top", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The [MASK] is [MASK]."
    assert [line.split(":")[0] for line in lines] == [lines[0], "  [MASK] 1", "  [MASK] 2", "[MASK]", "  [MASK]"]
    assert lines[1].count("%") == 3


def test_lines_of_standard_input_become_json(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The [MASK].\n\n[MASK] and [MASK]\n"))
    fill_texts(Fill(str(folder), json=True, top=2))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["text"] == "The [MASK]."
    assert [len(first["masks"]), len(second["masks"])] == [1, 2]
    [expected] = Predictor.load(str(folder)).fill("The [MASK].", 2).masks
    assert tuple(Guess(**guess) for guess in first["masks"][0]) == expected


def test_what_cannot_be_filled_is_refused_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    model = Predictor.load(str(folder))
    with pytest.raises(UserError, match=r"'The mask\.' is a text without \[MASK\]: write \[MASK\], in capitals"):
        model.fill("The mask.")
    with pytest.raises(UserError, match=r"is a text of more than 32 tokens, the most that the model reads: shorten"):
        model.fill("[MASK] " * 31)
    assert len(model.fill("[MASK] " * 30).masks) == 30
    with pytest.raises(UserError, match="top is 51: give a number from 1 to 50"):
        model.fill("[MASK]", top=51)
    with pytest.raises(UserError, match="top is 0"):
        model.fill("[MASK]", top=0)
    with pytest.raises(UserError, match=r"no masked-LM head \(its heads: sentence_order\)"):
        predictor(make_model(50, (Head("sentence_order"),)), folder).fill("[MASK]")
    with pytest.raises(UserError, match="50 pieces but the model has 49"):
        predictor(make_model(49), folder).fill("[MASK]")
    save(make_model(50), tmp_path / "bare")
    with pytest.raises(UserError, match=r"bare has no tokenizer \(spiece\.model\)"):
        fill_texts(Fill(str(tmp_path / "bare"), ("[MASK]",)))
    with pytest.raises(UserError, match=r"is no model folder: known are: .*albert-base-wikibooks"):
        fill_texts(Fill("nowhere", ("[MASK]",)))


def test_a_preset_has_no_words_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["fill", "albert-tiny", "a [MASK] b"])
    assert stop.value.code == 1
    assert "'albert-tiny' is a preset, a fresh model without a tokenizer" in capsys.readouterr().err
