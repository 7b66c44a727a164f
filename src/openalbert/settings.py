"""Settings are frozen dataclasses; to JSON and back, and changed by the names of their fields."""

import dataclasses
import json
import os
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import cattrs
from tyro.conf import OmitArgPrefixes

from openalbert.errors import UserError, suggestion

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    S = TypeVar("S", bound=DataclassInstance)
else:
    S = TypeVar("S")


class Effective(NamedTuple):
    """The defaults of a run as its help shows them."""

    settings: Any
    """The settings with all values filled in."""
    in_words: dict[str, str]
    """Options whose default no single value can express, in words."""
    heading: str
    """The origin of these values."""


def _exactly(expected: str, *kinds: type) -> Callable[[Any, Any], Any]:
    """A hook that accepts only these types. cattrs alone would read 64.5 as 64 and the text "false" as true."""

    def take(value: Any, kind: type) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"expected {expected}, found {value!r}")
        return kind(value)

    return take


_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_unstructure_hook(Path, str)
_converter.register_structure_hook(Path, lambda value, _: Path(value))
_converter.register_structure_hook(bool, _exactly("true or false", bool))
_converter.register_structure_hook(int, _exactly("a whole number", int))
_converter.register_structure_hook(float, _exactly("a number", int, float))
_converter.register_structure_hook(str, _exactly("a text", str))


def to_dict(settings: "DataclassInstance") -> dict[str, Any]:
    """The settings as plain JSON values."""
    plain: dict[str, Any] = _converter.unstructure(settings)
    return plain


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names, as on the command line."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        is_nested = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{name}.") if is_nested else {f"{prefix}{name}": value}
    return found


def from_dict(values: Any, kind: type[S], where: str = "settings") -> S:
    """The settings that `to_dict` wrote; `where` names their origin in an error."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: {kind.__name__} does not fit: expected a JSON object, found {values!r}")
    try:
        return _converter.structure(values, kind)
    except Exception as error:
        raise UserError(f"{where}: {_first_reason(error, kind.__name__)}") from None


def _first_reason(error: Exception, name: str) -> str:
    """The first error that cattrs collected, with the name of its setting."""
    while isinstance(error, cattrs.BaseValidationError):
        # A misspelt name comes first: the error about the missing one follows from it.
        inner = sorted(error.exceptions, key=lambda one: not isinstance(one, cattrs.ForbiddenExtraKeysError))[0]
        for note in getattr(inner, "__notes__", ()):
            if isinstance(note, cattrs.AttributeValidationNote):
                name = f"{name}.{note.name}"
        error = inner
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [field.name for field in dataclasses.fields(error.cl)]
        key = sorted(map(str, error.extra_fields))[0]
        return f"'{key}' is not a setting of {error.cl.__name__}: {suggestion(key, known)}"
    if isinstance(error, KeyError):
        return f"{name} is missing"
    return f"{name} does not fit: {error}"


def to_json(settings: "DataclassInstance") -> str:
    """The settings as indented JSON."""
    return json.dumps(to_dict(settings), indent=2) + "\n"


def from_file(path: Path, kind: type[S]) -> S:
    """The settings that a file holds as JSON."""
    return from_json(path.read_bytes(), kind, str(path))


def from_json(text: str | bytes, kind: type[S], where: str = "settings") -> S:
    """The settings that `to_json` wrote."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    return from_dict(values, kind, where)


def check_at_least_one(settings: "DataclassInstance", *names: str) -> None:
    """Refuse settings below 1 that count something; None is one that is not given."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}: it must be at least 1")


def changed(settings: S, given: Mapping[str, Any], where: str) -> S:
    """The settings with the values given; a name or a value that does not fit is refused."""
    paths, tree = _paths(type(settings)), to_dict(settings)
    for name, value in given.items():
        if name not in paths:
            raise UserError(f"{where}: '{name}' is not a setting: {suggestion(name, paths)}")
        *outer, last = paths[name]
        inner = tree
        for key in outer:
            inner = inner[key]
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        inner[last] = [plain] if isinstance(plain, str) and isinstance(inner[last], list | tuple) else plain
    return from_dict(tree, type(settings), where)


def _paths(kind: type) -> dict[str, tuple[str, ...]]:
    """The place of every setting by its name in Python, which is that of the command line with two underscores."""
    found: dict[str, tuple[str, ...]] = {}
    for name, annotation in typing.get_type_hints(kind, include_extras=True).items():
        is_marked = typing.get_origin(annotation) is Annotated
        plain, marks = (annotation.__origin__, annotation.__metadata__) if is_marked else (annotation, ())
        if isinstance(plain, type) and dataclasses.is_dataclass(plain):
            prefix = "" if OmitArgPrefixes in marks else f"{name}__"
            found |= {f"{prefix}{inner}": (name, *path) for inner, path in _paths(plain).items()}
        else:
            found[name] = (name,)
    return found
