"""Flags made at run time from the fields of an installed native stack config."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.cli import flags
from primebeaker.errors import UserError, nearest
from primebeaker.services.fields import ALIAS, Field, parse_text, parse_words, stack_fields
from primebeaker.services.stack_config import Given, given_by_flags
from primebeaker.services.stacks import STACKS, NativeStack, Stack, load_native

__all__ = ["UNSET", "given_values", "options_class", "unknown_flag"]


class Unset(Enum):
    """The type of a flag that was not given; None means that its value is none."""

    UNSET = "unset"


UNSET = Unset.UNSET

_ALIAS_FIELD = Field(ALIAS, "list", False, (), "Singular alias of --service-clusters.")


def options_class(native: NativeStack, base: type[Any]) -> type[Any]:
    """An option class with ``base``'s flags and one flag for each field of the native config.

    Flags that were not given are :data:`UNSET`, so that the native default applies.
    """
    fields = stack_fields(native.config_class)
    flags_of_fields = [*fields.values(), *([_ALIAS_FIELD] if "service_clusters" in fields else [])]
    made = [(field.name, _annotation(field), UNSET) for field in flags_of_fields]
    return dataclasses.make_dataclass(
        f"{native.stack.name.title()}Options", made, bases=(base,), kw_only=True, module=__name__
    )


def given_values(options: Any, native: NativeStack) -> dict[str, Given]:
    """The fields given as flags."""
    names = [*stack_fields(native.config_class), ALIAS]
    values = {name: getattr(options, name, UNSET) for name in names}
    return given_by_flags({name: value for name, value in values.items() if value is not UNSET})


def unknown_flag(stack: Stack, known: type[Any]) -> Callable[[str], UserError]:
    """Makes the mistake of a flag that a stack's command does not have."""
    flags_known = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(known)]
    listing = f"primebeaker services fields --stack={stack.name} lists all"

    def explain(flag: str) -> UserError:
        if flag.removeprefix("--").replace("-", "_") in _fields_of(stack.other):
            return UserError(
                f"{flag} is no flag of the {stack.name} stack; it belongs to the {stack.other.name} stack "
                f"({stack.other.command} …)"
            )
        close = nearest(flag, flags_known, most=1)
        mend = f"did you mean {close[0]}? {listing}" if close else listing
        return UserError(f"unknown flag {flag} of the {stack.name} stack", hint=mend)

    return explain


def _fields_of(stack: Stack) -> Mapping[str, Field]:
    try:
        return stack_fields(load_native(STACKS[stack.name]).config_class)
    except UserError:
        return {}


def _annotation(field: Field) -> Any:
    hint: Any = {"bool": bool, "list": tuple[str, ...], "int": int, "float": float}.get(field.kind, str)
    return Annotated[hint | Unset | None, _parameter(field)]


def _parameter(field: Field) -> Parameter:
    help_text = field.help or f"{field.type_text}."
    if field.kind == "bool":
        switch = flags.boolean(help_text, name=field.flag.removeprefix("--"), panel="Stack")
        return Parameter.combine(switch, Parameter(show_default=lambda _value: field.default_text))
    many = field.kind == "list"

    def convert(flag: str, text: str) -> Any:
        return list(parse_words(field, text, flag)) if many else parse_text(field, text, flag)

    return flags.parameter(help_text, "Stack", convert, many=many, default=field.default_text)
