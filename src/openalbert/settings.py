"""Settings are frozen dataclasses; here they become JSON and come back equal."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cattrs

from openalbert.errors import UserError, suggestion

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    S = TypeVar("S", bound=DataclassInstance)
else:
    S = TypeVar("S")

_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_converter.register_unstructure_hook(Path, str)
_converter.register_structure_hook(Path, lambda value, _: Path(value))


def to_dict(settings: "DataclassInstance") -> dict[str, Any]:
    """The settings as plain JSON values."""
    plain: dict[str, Any] = _converter.unstructure(settings)
    return plain


def from_dict(values: dict[str, Any], kind: type[S], where: str = "settings") -> S:
    """The settings that `to_dict` wrote; `where` names their origin in an error."""
    try:
        return _converter.structure(values, kind)
    except cattrs.errors.ForbiddenExtraKeysError as error:
        known = [field.name for field in dataclasses.fields(error.cl)]
        key = sorted(error.extra_fields)[0]
        raise UserError(f"{where}: '{key}' is not a setting of {error.cl.__name__}: {suggestion(key, known)}") from None
    except (ValueError, TypeError, KeyError, AttributeError, cattrs.errors.CattrsError) as error:
        raise UserError(f"{where}: {kind.__name__} does not fit: {error}") from None


def to_json(settings: "DataclassInstance") -> str:
    """The settings as a JSON text a person can read."""
    return json.dumps(to_dict(settings), indent=2) + "\n"


def from_json(text: str, kind: type[S], where: str = "settings") -> S:
    """The settings that `to_json` wrote."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    return from_dict(values, kind, where)
