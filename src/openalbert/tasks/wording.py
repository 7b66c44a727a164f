"""Numbers in sentences: `1 example is`, `2,000 examples are`, `12.5 %`."""


def counted(number: int, noun: str) -> str:
    """So many of something, whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(part: int, whole: int) -> str:
    """How much of a whole a part is, in percent; what there is of is never told as 0."""
    percent = 100 * part / whole
    return "under 0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"


def are(number: int) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """The same of what is over."""
    return "was" if number == 1 else "were"
