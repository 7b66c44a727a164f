"""`openalbert VERB --help`: one screen for each verb, with the values that a run will use."""

import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from openalbert.cli_options import REQUIRED, Option, options
from openalbert.cli_pages import PAGES
from openalbert.settings import Effective

WIDEST = 100  # columns
WIDEST_OPTION = 36  # columns that options have at most before their help starts on a line of its own
NOT_GIVEN = re.compile(r"(?:; |\. |\.\n)not given: (?P<default>[^;]+?)(?:\.(?=\s|$)|$)", re.IGNORECASE)
HEADING = "Settings"


def verb_page(verb: str, kind: type, effective: Effective | None = None, given: str = "") -> str:
    """The help of a verb; `given` are the arguments after it that the defaults depend on."""
    page = PAGES[verb]
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    settings, in_words, heading = effective or Effective(REQUIRED, {}, HEADING)
    known = options(kind, settings)
    lines = [f"usage: openalbert {verb} {page.usage}", "", *textwrap.wrap(page.about, width), "", "Examples"]
    lines += [f"  {example}" for example in page.examples]
    lines += ["", heading]
    chosen = [(_option(known, name), text) for name, text in page.settings.items()]
    column = min(WIDEST_OPTION, max(len(option.label) for option, _ in chosen) + 4)
    for option, text in chosen:
        lines += _row(option, text, in_words.get(option.name), column, width)
    full = " ".join(word for word in ("openalbert", verb, given, "--help-all") if word)
    lines += ["", f"All settings: {full}"] if len(known) > len(chosen) else []
    return "\n".join(lines)


def _option(known: dict[str, Option], name: str) -> Option:
    """An option by its name, or the first one whose name begins so."""
    return known[name] if name in known else next(known[full] for full in known if full.startswith(name))


def _row(option: Option, text: str, in_words: str | None, column: int, width: int) -> Iterator[str]:
    about, default = in_short(text or option.help, option.default)
    default = in_words or default
    about += f" [{default}]" if default else ""
    lines = textwrap.wrap(about, width - column, break_on_hyphens=False)
    if len(option.label) + 4 > column:
        yield f"  {option.label}"
    else:
        yield f"  {option.label:{column - 2}s}{lines.pop(0)}"
    for line in lines:
        yield " " * column + line


def in_short(text: str, default: Any) -> tuple[str, str]:
    """The first sentence of a help text without what it says of the default, and the default."""
    not_given = NOT_GIVEN.search(text)
    first = re.split(r"(?<=[.?])\s", NOT_GIVEN.sub(".", text).strip())[0]
    first = " ".join(first.split())
    if default is REQUIRED:
        return first, "required"
    if default in (None, "", ()) and not_given:
        return first, " ".join(not_given["default"].split())
    return first, value_text(default)


def value_text(value: Any) -> str:
    """A default as it would be typed; nothing for a switch and for what is empty."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
