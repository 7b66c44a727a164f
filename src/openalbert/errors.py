"""The one kind of error that is meant for the user: a sentence that says what to do, shown without a stack trace."""

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Something the user can mend: wrong settings, a damaged file, a full disk."""


class InputWarning(UserWarning):
    """Something unusual in the user's files that is used all the same: the command line prints it as one sentence."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Name what was probably meant: `did you mean 'x'?`, or else everything there is."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(names)}"


@contextlib.contextmanager
def explain_full_disk(where: Path, outcome: str) -> Iterator[None]:
    """Say in a sentence that there is no room left at `where`, and what becomes of the work when it is done again."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"{where}: the disk is full ({error.strerror}): make room there and run the same command again; {outcome}"
        ) from None
