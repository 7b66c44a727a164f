"""HTML elements, tables and the page around them. Every text is escaped unless it is `Markup`."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from openalbert.formatting import moment
from openalbert.version import __version__

SHORT = 16  # characters of a cell that is kept on one line, so that no number is separated from its unit


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text_of(child: str) -> Markup:
    """A text as HTML."""
    return child if isinstance(child, Markup) else Markup(html.escape(child))


def element(name: str, *children: str, **attributes: str | int | float | None) -> Markup:
    """An element. `class_` is written class and `stroke_width` stroke-width; an attribute that is None is left out."""
    written = ""
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            written += f' {key.rstrip("_").replace("_", "-")}="{html.escape(text)}"'
    return Markup(f"<{name}{written}>{''.join(map(text_of, children))}</{name}>")


def joined(*pieces: str) -> Markup:
    """Several pieces of HTML or text in a row."""
    return Markup("".join(map(text_of, pieces)))


def table(head: list[str], rows: list[list[str]], numbers_from: int = 1) -> Markup:
    """A table; its columns from `numbers_from` on are aligned to the right."""

    def look(column: int, text: str) -> str | None:
        found = ["number"] * (column >= numbers_from) + ["short"] * (len(text) <= SHORT)
        return " ".join(found) or None

    def cell(column: int, text: str) -> Markup:
        return element("td", text, class_=look(column, text)) if column else element("th", text, scope="row")

    body = [element("tr", *(cell(column, text) for column, text in enumerate(row))) for row in rows]
    titles = [
        element("th", text, scope="col", class_="number" if column >= numbers_from else None)
        for column, text in enumerate(head)
    ]
    heading = [element("thead", element("tr", *titles))] if any(head) else []
    return element("div", element("table", *heading, element("tbody", *body)), class_="scroll")


def document(
    title: str, headline: Sequence[Markup], sections: Sequence[Markup], values: Mapping[str, Any], now: datetime
) -> str:
    """A page: one file with style and script in it, which needs no network; `values` are those of the charts."""
    style, script = (
        resources.files(__package__).joinpath(name).read_text("utf-8") for name in ("report.css", "report.js")
    )
    # Within a script element nothing is unescaped: a "<" could end it, so none is written.
    data = json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # The browser itself refuses any network access, and any script but this one.
        Markup(
            '<meta http-equiv="Content-Security-Policy" '
            f"content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">"
        ),
        element("title", f"{title} – openalbert"),
        element("style", Markup(style)),
    )
    body = joined(
        element("header", element("h1", title), *headline),
        element("main", *sections),
        element("footer", f"Written by openalbert {__version__} on {moment(now.isoformat())}. Needs no network."),
        element("script", Markup(data), type="application/json", id="curves"),
        element("script", Markup(script)),
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def now() -> datetime:
    """The present moment, in the reader's own time zone."""
    return datetime.now(UTC).astimezone()
