"""Human-readable numbers: counts, percentages, durations, sizes, and tables of them. A missing value is a dash."""

import math
from collections.abc import Sequence
from datetime import datetime

NOTHING = "–"
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def present(value: object) -> float | None:
    """The value if it is a number, otherwise None."""
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def number(value: object, digits: int = 4) -> str:
    """A number with this many significant digits."""
    amount = present(value)
    if amount is None:
        return NOTHING
    if math.isnan(amount):
        return "not a number"
    if math.isinf(amount):
        return "∞" if amount > 0 else "−∞"
    if amount == 0:
        return "0"
    rounded = float(f"{amount:.{digits - 1}e}")  # 9.9999 is written with the digits of 10
    magnitude = math.floor(math.log10(abs(rounded)))
    if magnitude < -4 or magnitude > 14:
        mantissa, _, exponent = f"{amount:.{digits - 1}e}".partition("e")
        trimmed = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{trimmed}e{int(exponent)}".replace("-", "−")
    return f"{amount:,.{max(0, digits - 1 - magnitude)}f}".replace("-", "−")


def count(value: object) -> str:
    """A count: all digits below a million, then 43.8 M, 262 G."""
    amount = present(value)
    if amount is None or not math.isfinite(amount):
        return number(value)
    for size, prefix in PREFIXES:
        if abs(amount) >= 0.99995 * size:
            return f"{number(amount / size, 3)} {prefix}"
    return f"{amount:,.0f}"


def rate(value: object) -> str:
    """A rate per second: 740 k, 1.39 M."""
    amount = present(value)
    if amount is None or not math.isfinite(amount) or amount >= 999_500:
        return count(value)
    return f"{number(amount / 1000, 3)} k" if amount >= 1000 else number(amount, 3)


def throughput(tokens_per_second: float) -> str:
    """For progress lines: `824 tok/s`, `49.8 ktok/s`."""
    if tokens_per_second < 999.5:
        return f"{tokens_per_second:.{0 if tokens_per_second >= 9.95 else 1}f} tok/s"
    return f"{tokens_per_second / 1000:,.1f} ktok/s"


def percent(value: object) -> str:
    """A fraction in percent with one decimal, or more where it is very small."""
    amount = present(value)
    if amount is None or not math.isfinite(amount):
        return number(value)
    return f"{100 * amount:.1f} %" if abs(amount) >= 0.001 or amount == 0 else f"{number(100 * amount, 2)} %"


def duration(seconds: object) -> str:
    """A duration in at most two units: 45 s, 18 min 5 s, 3 h 12 min, 2 d 4 h."""
    amount = present(seconds)
    if amount is None or not math.isfinite(amount):
        return number(seconds)
    if amount < 99.5:
        return f"{number(amount, 2)} s"
    whole = round(amount)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def size(value: object) -> str:
    """Bytes: 512 B, 22.6 MiB, 50.1 GiB."""
    amount = present(value)
    if amount is None or not math.isfinite(amount):
        return number(value)
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(amount) >= 1024**power:
            return f"{number(amount / 1024**power, 3)} {unit}"
    return f"{amount:,.0f} B"


def moment(text: object) -> str:
    """An ISO time as `12 March 2026, 14:03`, with its offset if it has one; other text as it is."""
    if not isinstance(text, str):
        return NOTHING
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{time.day} {time:%B %Y, %H:%M}" + (f" {time:%Z}" if time.tzinfo else "")


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table as lines of text: these columns are aligned at the left, the others at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    at_left = [range(len(widths))[column] for column in left]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in at_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and how many there are more: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def two_decimals(value: float | None) -> str:
    """A metric as tables have it."""
    return NOTHING if value is None else f"{value:.2f}"


def counted(number: int, noun: str) -> str:
    """A count with its noun, whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent_of(part: int, whole: int) -> str:
    """A fraction in percent; never 0 unless `part` is 0."""
    percent = 100 * part / whole
    return "under 0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"


def are(number: int) -> str:
    """`is` or `are`, for this number."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """`was` or `were`, for this number."""
    return "was" if number == 1 else "were"
