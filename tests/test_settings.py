"""Settings become JSON and come back equal."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig, Head, Sharing
from openalbert.model.presets import PRESETS
from openalbert.settings import from_dict, from_json, to_dict, to_json


@dataclass(frozen=True)
class Example:
    folder: Path
    files: tuple[Path, ...] = ()
    share: float = 0.1
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    switch: bool = False
    word: str = ""
    model: AlbertConfig = field(default_factory=AlbertConfig)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_reads_back_equal(name: str) -> None:
    assert from_json(to_json(PRESETS[name]), AlbertConfig) == PRESETS[name]


@given(
    st.builds(
        Example,
        folder=st.just(Path("a/b")),
        files=st.lists(st.sampled_from([Path("x"), Path("y z")])).map(tuple),
        share=st.floats(allow_nan=False),
        kind=st.sampled_from(["a", "b"]),
        limit=st.none() | st.integers(),
        model=st.builds(
            AlbertConfig,
            sharing=st.builds(Sharing, st.integers(1, 12), st.integers(1, 12)),
            hidden_dropout=st.just(0.3),
        ),
    )
)
def test_nested_settings_read_back_equal(example: Example) -> None:
    assert from_json(to_json(example), Example) == example


def test_heads_read_back_equal() -> None:
    head = Head("classification", ("no", "yes"))
    assert from_dict(to_dict(head), Head) == head


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"folder": "x", "shar": 1}, "run.json: 'shar' is not a setting of Example: did you mean 'share'"),
        ({"folder": "x", "model": {"hiden_size": 1}}, "'hiden_size' is not a setting of AlbertConfig"),
        ({"folder": "x", "kind": "c"}, "does not fit"),
        ({"folder": "x", "share": "much"}, "does not fit"),
        ({}, "Example.folder is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_dict(values, Example, "run.json")


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(UserError, match=r"run\.json: not JSON"):
        from_json("{", Example, "run.json")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": {"hidden_size": "64"}}, r"run\.json: Example\.model\.hidden_size does not fit: expected a whole"),
        ({"model": {"hidden_size": 64.5}}, "hidden_size does not fit: expected a whole number, found 64.5"),
        ({"model": {"hidden_size": True}}, "hidden_size does not fit: expected a whole number, found True"),
        ({"share": "0.1"}, "share does not fit: expected a number, found '0.1'"),
        ({"limit": "3"}, "limit does not fit"),
        ({"switch": "false"}, "switch does not fit: expected true or false, found 'false'"),
        ({"switch": 0}, "switch does not fit"),
        ({"word": 3}, "word does not fit: expected a text, found 3"),
        ({"model": {"sharing": {"ffn": None}}}, r"Example\.model\.sharing\.ffn does not fit"),
        ({"model": {"hidden_size": -64}}, r"run\.json: hidden_size is -64: it must be at least 1"),
        ({"folder": None}, r"Example\.folder does not fit"),
    ],
)
def test_values_of_another_kind_are_refused_and_never_guessed(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_dict({"folder": "x"} | values, Example, "run.json")


def test_a_whole_number_will_do_where_a_number_is_asked_for() -> None:
    share = from_dict({"folder": "x", "share": 1}, Example).share
    assert isinstance(share, float)
    assert share == 1.0


@pytest.mark.parametrize("text", ["[" * 100_000, "3", "null", "[]"])
def test_json_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"run\.json: "):
        from_json(text, Example, "run.json")
