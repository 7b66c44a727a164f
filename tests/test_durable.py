"""Files and folders are whole or not there."""

import os
from pathlib import Path

import pytest

from openalbert import durable


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write_text(path, "one")
    durable.write_bytes(path, b"two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    durable.write_text(path, "old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        durable.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with durable.new_folder(target) as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "file").write_text("x")
        assert not target.exists()
    assert (target / "sub" / "file").read_text() == "x"
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with durable.new_folder(target) as aside:
        (aside / "file").write_text("old")
    with pytest.raises(RuntimeError), durable.new_folder(target) as aside:  # noqa: PT012
        (aside / "file").write_text("new")
        raise RuntimeError("stopped")
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with durable.new_folder(target) as aside:
        (aside / "file").write_text("new")
    assert (target / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
