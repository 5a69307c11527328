"""Environment variables in the string values of our YAML files.

``$NAME`` and ``${NAME}`` give the variable, ``${NAME:-text}`` gives ``text`` when it is unset or empty, ``$$`` is one
dollar sign, and any other dollar sign stays.  One pass: what came from a variable is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from primebeaker.errors import UserError

__all__ = ["Expanded", "expand"]

_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<malformed>\{))"
)


@dataclass(frozen=True)
class Expanded:
    """A value with its variables put in.

    Args:
        text: The result.
        references: The references that were replaced, as written; messages show these, never the text.
        whole: Whether the value is one reference and nothing else, so that its text takes the type that is expected.
    """

    text: str
    references: tuple[str, ...] = ()
    whole: bool = False


def expand(value: str, environment: Mapping[str, str]) -> Expanded:
    """Put the variables of ``environment`` into ``value``.

    Raises:
        UserError: A variable is not set, or a ``${`` is not closed or holds no name; the message names no place.
    """
    references: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        if match["malformed"]:
            raise UserError(
                f"malformed reference {value[match.start() :].splitlines()[0]!r}",
                hint="write ${NAME}, ${NAME:-default}, or $$ for a dollar sign",
            )
        name = match["bare"] or match["name"]
        references.append(match[0])
        if match["default"] is not None:
            return environment.get(name) or match["default"]
        if name not in environment:
            raise UserError(f"environment variable {name} is not set")
        return environment[name]

    text = _REFERENCE.sub(replace, value)
    return Expanded(text, tuple(references), whole=len(references) == 1 and references[0] == value)
