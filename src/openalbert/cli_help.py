"""Help for each verb: one screen with the values that a run will use, and how tyro names values in the full help."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from openalbert.cli_pages import PAGES
from openalbert.settings import Effective

WIDEST = 100  # columns
WIDEST_OPTION = 36  # columns that options have at most before their help starts on a line of its own
NOT_GIVEN = re.compile(r"(?:; |\. |\.\n)not given: (?P<default>[^;]+?)(?:\.(?=\s|$)|$)", re.IGNORECASE)
HEADING = "Settings"
METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "NAME", Path: "PATH"}
REQUIRED = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a verb."""

    name: str
    """As it is typed, without dashes: `optimizer.learning-rate`; a positional argument's metavar."""
    label: str
    """With its dashes and its metavar."""
    help: str
    """The docstring under its field."""
    default: Any
    """Its value where it is not given; `REQUIRED` where it must be."""


def options(kind: type, default: Any = REQUIRED, prefix: str = "") -> dict[str, Option]:
    """All options of a settings class by name, with the values of `default` where there is one."""
    found: dict[str, Option] = {}
    annotations, texts = typing.get_type_hints(kind, include_extras=True), field_texts(kind)
    for field in dataclasses.fields(kind):
        plain, marks = _without_marks(annotations[field.name])
        if tyro.conf.Suppress in marks:
            continue
        value = _default_of(field) if default is REQUIRED else getattr(default, field.name)
        given = next((mark for mark in marks if hasattr(mark, "metavar")), None)  # what tyro.conf.arg() makes
        named = field.name if given is None or given.name is None else given.name
        name = ".".join(part for part in (prefix, named.replace("_", "-")) if part)
        if dataclasses.is_dataclass(plain):
            inner = prefix if tyro.conf.OmitArgPrefixes in marks else name
            found |= options(typing.cast(type, plain), value, inner)
            continue
        shown = (given.metavar if given is not None else None) or metavar(plain)
        if tyro.conf.Positional in marks:
            found[shown] = Option(shown, shown, texts[field.name], value)
        elif plain is bool:
            name = ".".join([*name.split(".")[:-1], f"no-{name.split('.')[-1]}"]) if value is True else name
            found[name] = Option(name, f"--{name}", texts[field.name], value)
        else:
            found[name] = Option(name, f"--{name} {shown}", texts[field.name], value)
    return found


def _without_marks(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(annotation) is typing.Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def metavar(kind: Any) -> str:
    """What stands for a value of this kind in a help text."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    if origin in (types.UnionType, typing.Union):
        return "|".join(metavar(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"{metavar(inner[0])} ..." if inner[-1] is Ellipsis else " ".join(map(metavar, inner))
    return METAVARS.get(kind, getattr(kind, "__name__", str(kind)).upper())


@functools.cache
def field_texts(kind: type) -> dict[str, str]:
    """The docstring under each field of a class."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    texts: dict[str, str] = {}
    body = typing.cast(ast.ClassDef, tree).body
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            texts[field.target.id] = inspect.cleandoc(str(text.value.value)) if is_text else ""  # type: ignore[attr-defined]
    return texts


registry = ConstructorRegistry()
"""How tyro names kinds of values in its help: NAME for a text, and INT rather than {None}|INT."""


@registry.primitive_rule
def _text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type is not str:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=METAVARS[str],
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value or "none"],
    )


@registry.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kinds = [kind for kind in typing.get_args(info.type) if kind is not type(None)]
    if info.type_origin not in (types.UnionType, typing.Union) or len(kinds) != 1:
        return None
    inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
    if not isinstance(inner, PrimitiveConstructorSpec):
        return None

    def read(words: list[str]) -> Any:
        return None if words == ["None"] else inner.instance_from_str(words)

    return dataclasses.replace(
        inner,
        instance_from_str=read,
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda value: ["none"] if value is None else inner.str_from_instance(value),
    )


# The page of a verb.


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
