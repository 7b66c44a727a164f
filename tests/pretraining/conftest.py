"""What the tests of runs share: shards of a text that is easily learnt, with a held-out split."""

from pathlib import Path

import pytest
from tests.pretraining.made_shards import easy_text, made_shards


@pytest.fixture(scope="session")
def easy_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("easy"), easy_text(150), heldout=easy_text(40, seed=1))
