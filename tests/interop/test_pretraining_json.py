"""pretraining.json: it travels with the weights, reads back equal, and a damaged one is refused by its name."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.convert import Convert, convert
from openalbert.interop.pretraining_json import NONE, EarlierData, Pretraining, PretrainingStage, read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.presets import preset
from openalbert.settings import from_json, to_dict, to_json

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()
FIRST = PretrainingStage(1_000_000_000, 80_000_000, 20_000, 15.0, "1 x NVIDIA H200", "bf16", 128)
KNOWN = Pretraining(
    tokens=1_200_000_000,
    text_tokens=80_000_000,
    steps=2_000,
    minutes=3.5,
    device="1 x NVIDIA H200",
    precision="bf16",
    length=512,
    initialized_from="first",
    before=(FIRST,),
)


def model_folder(folder: Path, pretraining: Pretraining | None = KNOWN) -> Path:
    torch.manual_seed(0)
    model = AlbertModel(replace(preset("albert-micro"), vocab_size=100), PRETRAINING_HEADS)
    huggingface.save(model, folder, pretraining=pretraining)
    return folder


def written(folder: Path, values: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pretraining.json").write_text(json.dumps(values))
    return folder


def test_the_file_of_a_model_folder_says_what_the_weights_have_had(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    assert json.loads((folder / "pretraining.json").read_text()) == {
        "tokens": 1_200_000_000,
        "text_tokens": 80_000_000,
        "steps": 2_000,
        "minutes": 3.5,
        "device": "1 x NVIDIA H200",
        "precision": "bf16",
        "length": 512,
        "initialized_from": "first",
        "earlier_data": [],
        "distilled_from": "",
        "before": [
            {
                "tokens": 1_000_000_000,
                "text_tokens": 80_000_000,
                "steps": 20_000,
                "minutes": 15.0,
                "device": "1 x NVIDIA H200",
                "precision": "bf16",
                "length": 128,
                "initialized_from": "",
                "earlier_data": [],
                "distilled_from": "",
            }
        ],
    }
    assert read_pretraining(folder) == KNOWN


def test_a_folder_that_says_nothing_is_simply_unknown(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", pretraining=None)
    assert not (folder / "pretraining.json").exists()
    assert read_pretraining(folder) is None
    assert read_pretraining(tmp_path / "nowhere") is None
    assert read_pretraining(folder / "config.json") is None
    # A model that replaces another one does not keep what that had had.
    model_folder(tmp_path / "other")
    assert read_pretraining(model_folder(tmp_path / "other", pretraining=None)) is None


def test_transformers_and_openalbert_load_a_folder_with_it(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    ids = torch.arange(5, 15)[None]
    theirs = transformers.AutoModelForPreTraining.from_pretrained(folder).eval()
    with torch.no_grad():
        ours = huggingface.load(folder).encode(ids).hidden
        torch.testing.assert_close(ours, theirs.albert(ids).last_hidden_state, atol=1e-5, rtol=0)


def test_converting_a_folder_takes_it_along(tmp_path: Path) -> None:
    convert(Convert(str(model_folder(tmp_path / "model")), tmp_path / "other", precision="bfloat16"))
    assert read_pretraining(tmp_path / "other") == KNOWN
    convert(Convert(str(model_folder(tmp_path / "model", None)), tmp_path / "other", fresh=True))
    assert read_pretraining(tmp_path / "other") is None


def test_a_damaged_file_is_refused_before_a_conversion_writes_anything(tmp_path: Path) -> None:
    folder = written(model_folder(tmp_path / "model"), {})
    with pytest.raises(UserError, match=r"model/pretraining\.json: Pretraining\.tokens is missing"):
        convert(Convert(str(folder), tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": "many"}, "Pretraining.tokens does not fit: expected a whole number, found 'many'"),
        ({"tokens": 1.5e9}, "expected a whole number"),
        ({"device": None}, "expected a text"),
        ({"token": 3}, "did you mean 'tokens'"),
        ({"before": 3}, "before does not fit"),
        ({"before": [{}]}, "tokens is missing"),
        ({"before": [to_dict(KNOWN)]}, "'before' is not a setting of PretrainingStage"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_file_and_the_reason(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "model", to_dict(KNOWN) | changes)
    with pytest.raises(UserError) as refused:
        read_pretraining(folder)
    assert str(folder / "pretraining.json") in str(refused.value)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe{}", b"null", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pretraining.json").write_bytes(content)
    with pytest.raises(UserError, match=r"pretraining\.json"):
        read_pretraining(tmp_path)


amounts = st.integers(0, 2**53 - 1)


@given(
    st.lists(
        st.builds(
            PretrainingStage,
            amounts,
            amounts,
            amounts,
            st.floats(0, 1e9),
            st.text(),
            st.text(),
            amounts,
            st.text(),
            st.tuples() | st.tuples(st.builds(EarlierData, amounts, amounts, amounts, st.text())),
            st.text(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_history_reads_back_equal(runs: list[PretrainingStage]) -> None:
    *before, last = sorted(runs, key=lambda run: run.tokens)
    whole = Pretraining(**vars(last), before=tuple(before))
    assert from_json(to_json(whole), Pretraining) == whole
    assert whole.unknown_start == (before[0] if before else last).initialized_from


def test_weights_drawn_at_random_have_had_none() -> None:
    assert NONE.tokens == 0
    assert NONE.unknown_start == ""


def test_the_example_in_the_documentation_is_what_is_written() -> None:
    page = Path(__file__).parents[2] / "docs" / "decisions" / "model-folder.md"
    [example] = re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert example == to_json(KNOWN)
