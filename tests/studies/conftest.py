"""One store of tiny variants for all tests of studies: what one test has trained, another finds."""

from pathlib import Path

import pytest
from tests.tasks.made_data import glue_files


@pytest.fixture(scope="session")
def glue_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of two tasks."""
    folder = tmp_path_factory.mktemp("glue")
    for task in ("sst2", "cola"):
        glue_files(folder, task, 40)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests only add to it."""
    return tmp_path_factory.mktemp("store") / "variants"
