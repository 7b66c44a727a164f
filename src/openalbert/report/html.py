"""HTML that cannot be broken by what stands in it: every text is escaped unless it was made here."""

import html


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


def joined(*parts: str) -> Markup:
    """Several pieces of HTML or text behind each other."""
    return Markup("".join(map(text_of, parts)))


SHORT = 16  # characters of a cell that is kept on one line, so that no number stands apart from its unit


def table(head: list[str], rows: list[list[str]], numbers_from: int = 1) -> Markup:
    """A table whose first columns are names and whose others, from `numbers_from` on, are set to the right."""

    def look(column: int, text: str) -> str | None:
        found = ["figure"] * (column >= numbers_from) + ["short"] * (len(text) <= SHORT)
        return " ".join(found) or None

    def cell(column: int, text: str) -> Markup:
        return element("td", text, class_=look(column, text)) if column else element("th", text, scope="row")

    body = [element("tr", *(cell(column, text) for column, text in enumerate(row))) for row in rows]
    titles = [
        element("th", text, scope="col", class_="figure" if column >= numbers_from else None)
        for column, text in enumerate(head)
    ]
    heading = [element("thead", element("tr", *titles))] if any(head) else []
    return element("div", element("table", *heading, element("tbody", *body)), class_="scroll")
