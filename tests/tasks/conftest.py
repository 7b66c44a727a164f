"""What the tests of fine-tuning share: a tiny model."""

from pathlib import Path

import pytest
from tests.tasks.made_lessons import made_model

from openalbert.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, small: Tokenizer) -> Path:
    """A tiny model's folder."""
    return made_model(tmp_path_factory.mktemp("tiny") / "model", small)
