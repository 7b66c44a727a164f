"""What the tests of fine-tuning share: a tiny model."""

from pathlib import Path

import pytest
from tests.finetuning.made_lessons import KINDS, learn, lesson, made_model

from openalbert.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, small: Tokenizer) -> Path:
    """A tiny model's folder."""
    return made_model(tmp_path_factory.mktemp("tiny") / "model", small)


@pytest.fixture(scope="session")
def quick_runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, Path]:
    """A run of every kind of task, short, with its data beside it as `data`; nobody writes into it."""
    runs = {}
    for kind in (*KINDS, "some_without_answer"):
        folder = tmp_path_factory.mktemp(kind)
        name = "question_answering" if kind == "some_without_answer" else kind
        file = lesson(name, folder / "data", 120, may_have_no_answer=kind == "some_without_answer")
        learn(tiny, name, file, folder / "run", "--steps 30 --evaluate-every 10")
        runs[kind] = folder / "run"
    return runs
