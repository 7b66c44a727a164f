"""Numbers in sentences: `1 example is`, `2,000 examples are`."""


def counted(number: int, noun: str) -> str:
    """So many of something, whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """The same of what is over."""
    return "was" if number == 1 else "were"
