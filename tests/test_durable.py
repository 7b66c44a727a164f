"""Files and folders are whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from openalbert import durable
from openalbert.errors import UserError


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


def test_a_folder_is_locked_for_one_at_a_time(tmp_path: Path) -> None:
    with (
        durable.locked(tmp_path, "work"),
        pytest.raises(UserError, match="another `openalbert work` is at work here"),
        durable.locked(tmp_path, "work"),
    ):
        pass
    with durable.locked(tmp_path, "work"):
        pass


def test_a_file_system_without_locks_is_worked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with durable.locked(tmp_path, "work"):
        pass


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


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    target = tmp_path / "name"
    target.write_text("precious")
    with pytest.raises(UserError, match="is a file"), durable.new_folder(target):
        pass
    assert target.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_the_folder_one_stands_in_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with durable.new_folder(Path()) as aside:
        (aside / "file").write_text("x")
    assert (tmp_path / "here" / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "file").write_text("old")
    rename = Path.rename

    def fail(self: Path, other: Path) -> Path:
        if self.name == "folder.partial":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="error"), durable.new_folder(target) as aside:
        (aside / "file").write_text("new")
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_made_unless_a_file_is_in_its_way(tmp_path: Path) -> None:
    durable.make_folder(tmp_path / "a" / "b")
    durable.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for name in ("file", "link"):
        for folder in (tmp_path / name, tmp_path / name / "below"):
            with pytest.raises(UserError, match=f"/{name} is no folder, and one is to be there: give another name"):
                durable.make_folder(folder)


def test_a_folder_that_could_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    durable.check_writable(tmp_path / "one" / "two")
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    durable.check_writable(tmp_path / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]


def test_a_folder_in_which_nothing_can_be_written_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(UserError, match="taken is no folder, and one is to be there"):
            durable.check_writable(folder)

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(UserError, match=r"two: nothing can be written there \(Read-only file system\): choose another"):
        durable.check_writable(tmp_path / "one" / "two")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
