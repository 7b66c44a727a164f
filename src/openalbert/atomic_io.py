"""Atomic writes of files and folders: written under a temporary name, synced to disk, then renamed."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from openalbert.errors import UserError

PARTIAL = ".partial"  # suffix of everything that is not finished yet


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class LockedError(UserError):
    """Another process has locked a folder."""


@contextlib.contextmanager
def locked(folder: Path, verb: str) -> Iterator[None]:
    """Lock a folder; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LockedError(f"{folder}: another `openalbert {verb}` is at work here: wait for it or stop it") from None
    except OSError:
        pass  # the file system has no locks: continue without
    try:
        yield
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder with its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        there = (path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
        taken = next((path for path in there if not path.is_dir()), folder)
        raise UserError(f"{taken} is not a folder: give another name, or remove it") from None


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be created or written to. Leaves nothing behind."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written to ({error.strerror}): choose another, or change its permissions"
        ) from None
    finally:
        for path in missing:  # the deepest first
            with contextlib.suppress(OSError):
                path.rmdir()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a mixture."""
    with new_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write piece by piece; it gets its name when the block succeeds, and is removed otherwise."""
    aside = path.with_name(path.name + PARTIAL)
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode())


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder to fill; it is renamed to `target` when the block succeeds, and removed otherwise.

    An existing folder is replaced; it is unchanged if the block fails.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - "." has no name; links stay
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, but a folder was expected: give another name, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(target.name + PARTIAL)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        for path in aside.rglob("*"):
            sync(path)
        sync(aside)
        if target.exists():
            replaced = target.with_name(target.name + ".replaced" + PARTIAL)
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
            try:
                aside.rename(target)
            except BaseException:
                replaced.rename(target)
                raise
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            aside.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
