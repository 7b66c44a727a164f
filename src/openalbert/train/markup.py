"""HTML that cannot be broken by what stands in it: every text is escaped unless it was made here."""

import html


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text_of(child: str) -> Markup:
    """A text as HTML."""
    return child if isinstance(child, Markup) else Markup(html.escape(child))


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element. `class_` is written class and `stroke_width` stroke-width; an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{''.join(map(text_of, children))}</{name}>")


def joined(*parts: str) -> Markup:
    """Several pieces of HTML or text behind each other."""
    return Markup("".join(map(text_of, parts)))


def table(head: list[str], rows: list[list[str]], numbers_from: int = 1) -> Markup:
    """A table whose first columns are names and whose others, from `numbers_from` on, are set to the right."""

    def cells(kind: str, row: list[str]) -> Markup:
        return joined(
            *(
                element(
                    "th" if column == 0 and kind == "td" else kind,
                    cell,
                    scope="row" if column == 0 and kind == "td" else "col" if kind == "th" else None,
                    class_="figure" if column >= numbers_from else None,
                )
                for column, cell in enumerate(row)
            )
        )

    body = [element("tr", cells("td", row)) for row in rows]
    heading = [element("thead", element("tr", cells("th", head)))] if any(head) else []
    return element("div", element("table", *heading, element("tbody", *body)), class_="scroll")
