"""The one kind of error that is meant for the user: a sentence that says what to do, shown without a stack trace."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: wrong settings, a damaged file, a full disk."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Name what was probably meant: `did you mean 'x'?`, or else everything there is."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(names)}"
