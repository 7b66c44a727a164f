"""Files and folders are whole or not there."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from openalbert import atomic_io
from openalbert.errors import UserError


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_io.write_text(path, "one")
    atomic_io.write_bytes(path, b"two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic_io.write_text(path, "old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        atomic_io.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with atomic_io.new_folder(target) as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "file").write_text("x")
        assert not target.exists()
    assert (target / "sub" / "file").read_text() == "x"
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_folder_is_locked_for_one_at_a_time(tmp_path: Path) -> None:
    with (
        atomic_io.locked(tmp_path, "work"),
        pytest.raises(UserError, match="another `openalbert work` is at work here"),
        atomic_io.locked(tmp_path, "work"),
    ):
        pass
    with atomic_io.locked(tmp_path, "work"):
        pass


def test_a_lock_that_is_refused_leaves_nothing_open(tmp_path: Path) -> None:
    def opened() -> int:
        return sum(os.path.realpath(link) == str(tmp_path.resolve()) for link in Path("/proc/self/fd").iterdir())

    with atomic_io.locked(tmp_path, "work"):
        for _ in range(3):
            with pytest.raises(UserError, match="is at work here"), atomic_io.locked(tmp_path, "work"):
                pass
        assert opened() == 1  # the lock that is held
    assert opened() == 0


def test_a_file_system_without_locks_is_worked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with atomic_io.locked(tmp_path, "work"):
        pass


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with atomic_io.new_folder(target) as aside:
        (aside / "file").write_text("old")
    with pytest.raises(RuntimeError), atomic_io.new_folder(target) as aside:  # noqa: PT012
        (aside / "file").write_text("new")
        raise RuntimeError("stopped")
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with atomic_io.new_folder(target) as aside:
        (aside / "file").write_text("new")
    assert (target / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the disk and which names change, in order: `sync NAME BYTES` of a file or folder, `name NEW`."""
    events: list[str] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def note_sync(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        events.append(f"sync {place.name}" + (f" {place.stat().st_size}" if place.is_file() else ""))
        fsync(descriptor)

    def note_rename(self: Path, target: Path) -> Path:
        events.append(f"name {target.name}")
        return rename(self, target)

    def note_replace(self: Path, target: Path) -> Path:
        events.append(f"name {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(Path, "replace", note_replace)
    return events


def test_all_bytes_of_a_file_are_on_the_disk_before_it_takes_its_name(tmp_path: Path, disk: list[str]) -> None:
    atomic_io.write_bytes(tmp_path / "file", b"x" * 1000)
    assert disk == ["sync file.partial 1000", "name file", f"sync {tmp_path.name}"]


def test_all_that_a_folder_holds_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, disk: list[str]) -> None:
    with atomic_io.new_folder(tmp_path / "folder") as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "deep").write_bytes(b"x" * 300)
        (aside / "file").write_bytes(b"x" * 200)
    assert disk[-2:] == ["name folder", f"sync {tmp_path.name}"]
    assert sorted(disk[:-2]) == ["sync deep 300", "sync file 200", "sync folder.partial", "sync sub"]


def test_what_a_killed_process_left_aside_neither_hinders_nor_gets_in(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for leftover in ("folder", "folder.partial", "folder.replaced.partial"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "stale").write_text("x")
    with atomic_io.new_folder(target) as aside:
        (aside / "file").write_text("new")
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_replaced_folder_that_cannot_be_removed_does_not_fail_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rmdir = tmp_path / "folder", os.rmdir
    target.mkdir()

    def busy(path: str | Path, *args: Any, **options: Any) -> None:
        if str(path).endswith("folder.replaced.partial"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        rmdir(path, *args, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    with atomic_io.new_folder(target) as aside:
        (aside / "file").write_text("new")
    assert (target / "file").read_text() == "new"


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    target = tmp_path / "name"
    target.write_text("precious")
    with pytest.raises(UserError, match="is a file"), atomic_io.new_folder(target):
        pass
    assert target.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_the_folder_one_stands_in_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with atomic_io.new_folder(Path()) as aside:
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
    with pytest.raises(OSError, match="error"), atomic_io.new_folder(target) as aside:
        (aside / "file").write_text("new")
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_made_unless_a_file_is_in_its_way(tmp_path: Path) -> None:
    atomic_io.make_folder(tmp_path / "a" / "b")
    atomic_io.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for name in ("file", "link"):
        for folder in (tmp_path / name, tmp_path / name / "below"):
            with pytest.raises(UserError, match=f"/{name} is not a folder: give another name"):
                atomic_io.make_folder(folder)


def test_a_folder_that_could_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    atomic_io.check_writable(tmp_path / "one" / "two")
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    atomic_io.check_writable(tmp_path / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]


def test_a_folder_in_which_nothing_can_be_written_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(UserError, match="taken is not a folder"):
            atomic_io.check_writable(folder)

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(UserError, match=r"two: cannot be written to \(Read-only file system\): choose another"):
        atomic_io.check_writable(tmp_path / "one" / "two")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
