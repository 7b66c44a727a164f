"""Which options a settings class has: names, metavars, help texts and defaults, for tyro and for the short help."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
import typing
from pathlib import Path
from typing import Any, Literal

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

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
