"""The fields of a native stack config, read from its dataclass, and the values they take.

A value comes from a flag or an environment variable (text, converted literally) or from YAML (already typed, checked
strictly).  What a value may be beyond its type is the native config's business.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from primebeaker.errors import UserError
from primebeaker.services.field_help import FIELD_HELP

__all__ = ["ALIAS", "Field", "Kind", "check_typed", "parse_text", "parse_words", "stack_fields"]

Kind = Literal["str", "int", "float", "bool", "list"]

#: Singular alias of ``service_clusters``, in flags and in YAML.
ALIAS = "service_cluster"

_KINDS: Mapping[Any, Kind] = {str: "str", int: "int", float: "float", bool: "bool"}
_EXPECTED: Mapping[Kind, str] = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "list": "a list of strings",
}
_NONE = frozenset({"", "none", "null"})
_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no"})


@dataclass(frozen=True)
class Field:
    """One field of a native config."""

    name: str
    kind: Kind
    optional: bool
    default: Any
    help: str = ""

    @property
    def flag(self) -> str:
        """Its flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def type_text(self) -> str:
        """Its type as shown to the user."""
        kind = "list of str" if self.kind == "list" else self.kind
        return f"{kind} or none" if self.optional else kind

    @property
    def expected(self) -> str:
        """What a value must be, for messages."""
        return _EXPECTED[self.kind]

    @property
    def default_text(self) -> str:
        """Its default as shown to the user."""
        if self.default is dataclasses.MISSING:
            return "required"
        if self.default is None:
            return "none"
        if isinstance(self.default, bool):
            return "true" if self.default else "false"
        if isinstance(self.default, float):
            return f"{self.default:g}" if self.default < 1e6 else str(self.default)
        if isinstance(self.default, tuple):
            return ",".join(self.default)
        return str(self.default)

    @property
    def is_secret_name(self) -> bool:
        """Whether its value is the name of a Beaker secret."""
        return self.name.endswith("_secret")


def stack_fields(config_class: type[Any]) -> dict[str, Field]:
    """The fields of a config dataclass, by name, in its order."""
    hints = typing.get_type_hints(config_class)
    fields: dict[str, Field] = {}
    for native in dataclasses.fields(config_class):
        kind, optional = _kind(hints[native.name])
        default = native.default
        if native.default_factory is not dataclasses.MISSING:
            default = native.default_factory()
        fields[native.name] = Field(native.name, kind, optional, default, FIELD_HELP.get(native.name, ""))
    return fields


def _kind(hint: Any) -> tuple[Kind, bool]:
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    optional = type(None) in members
    origins = [typing.get_origin(member) or member for member in members if member is not type(None)]
    if any(origin in (tuple, list) for origin in origins):
        return "list", optional
    for origin in origins:
        if origin in _KINDS:
            return _KINDS[origin], optional
    # A type of a newer release that is none of these is passed as the text typed; the native config judges it.
    return "str", optional


def parse_text(field: Field, text: str, origin: str) -> Any:
    """Convert the literal text of a flag or an environment variable.

    Args:
        field: The field.
        text: What was given.
        origin: Where, for the message: a flag, or a file's key.

    Raises:
        UserError: The text is not of the field's type; the text is never evaluated.
    """
    stripped = text.strip()
    shown = "a value that is not shown" if field.is_secret_name else repr(text)
    if field.kind == "list":
        return parse_words(field, text, origin)
    if field.optional and stripped.lower() in _NONE:
        return None
    if "\0" in text or "\n" in text:
        raise UserError(f"{origin}: expected {_EXPECTED[field.kind]} without NUL and newline")
    converted: Any = None
    match field.kind:
        case "str":
            if not stripped:
                raise UserError(f"{origin}: expected a non-empty string")
            return stripped
        case "int" if re.fullmatch(r"[+-]?[0-9]+", stripped):
            converted = int(stripped)
        case "float" if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", stripped):
            converted = float(stripped)
        case "bool" if stripped.lower() in _TRUE | _FALSE:
            converted = stripped.lower() in _TRUE
        case _:
            pass
    if converted is None or (field.kind == "float" and not math.isfinite(converted)):
        raise UserError(f"{origin} = {shown}: expected {_EXPECTED[field.kind]}")
    return converted


def parse_words(field: Field, text: str, origin: str) -> tuple[str, ...]:
    """Split a comma list; blanks around the words are removed.

    Raises:
        UserError: Nothing is left, or the text holds NUL or newline.
    """
    if "\0" in text or "\n" in text:
        raise UserError(f"{origin}: expected {_EXPECTED[field.kind]} without NUL and newline")
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words and not field.optional:
        raise UserError(f"{origin}: expected at least one value")
    return words


def check_typed(field: Field, value: Any) -> Any:
    """Check a YAML value, which already has a type: nothing is coerced but an integer for a float.

    Raises:
        UserError: The value is not of the field's type; the message has no location.
    """
    if value is None:
        if field.optional:
            return None
        raise UserError(f"expected {_EXPECTED[field.kind]}, found null")
    match field.kind:
        case "list" if isinstance(value, str):
            return parse_words(field, value, "the text")
        case "list" if isinstance(value, list) and all(isinstance(item, str) for item in value):
            words = tuple(item.strip() for item in value)
            if not words or not all(words):
                raise UserError("expected at least one value, and no empty one")
            return words
        case "str" if isinstance(value, str):
            # The word none is text here: YAML has null.
            return parse_text(dataclasses.replace(field, optional=False), value, "the text")
        case "bool" if isinstance(value, bool):
            return value
        case "int" if isinstance(value, int) and not isinstance(value, bool):
            return value
        case "float" if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        case _:
            pass
    found = "" if field.is_secret_name else f", found {_describe(value)}"
    raise UserError(f"expected {_EXPECTED[field.kind]}{found}")


def _describe(value: Any) -> str:
    """A YAML value for a message: what it is, and a scalar's text."""
    if isinstance(value, bool):
        return f"a boolean ({str(value).lower()})"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    names = {int: "an integer", float: "a number", str: "a string"}
    return f"{names.get(type(value), type(value).__name__)} ({value!r})"
