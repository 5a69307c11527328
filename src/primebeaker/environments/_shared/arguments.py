"""The arguments of ``load_environment``: declared once, checked before anything is read.

An environment lists its arguments as :class:`Argument` rows; :func:`check_arguments` turns the keywords of one load
into values, or into one line ``<environment>: <argument>=<value>: <what is expected>`` a mistake.  TOML has no null, so
``None`` and ``null`` (any case) mean null wherever a kind is ``or_null``; a bool is never a number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from primebeaker.errors import UserError, did_you_mean

__all__ = [
    "REQUIRED",
    "VERIFIERS_ARGUMENTS",
    "Argument",
    "ArgumentTypeError",
    "Kind",
    "anything",
    "check_arguments",
    "choice",
    "flag",
    "function",
    "integer",
    "mapping",
    "number",
    "text",
    "text_list",
    "url",
]

_LONGEST_SHOWN_VALUE = 100


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


#: The default of an argument that has none.
REQUIRED: Any = _Required()


class ArgumentTypeError(UserError, TypeError):
    """A value of the wrong type, a missing argument, or an unknown one."""


class _Wrong(Exception):
    def __init__(self, expected: str, *, of_type: bool = False) -> None:
        super().__init__(expected)
        self.expected = expected
        self.of_type = of_type


def _bounds(least: float | None, most: float | None, above: float | None = None, below: float | None = None) -> str:
    parts = [
        f"at least {least:g}" if least is not None else "",
        f"above {above:g}" if above is not None else "",
        f"at most {most:g}" if most is not None else "",
        f"below {below:g}" if below is not None else "",
    ]
    stated = " and ".join(part for part in parts if part)
    return f" that is {stated}" if stated else ""


@dataclass(frozen=True)
class Kind:
    """The type of an argument.

    Args:
        label: How the type is called in listings, such as ``int`` or ``list of str``.
        convert: Returns the value to use; raises on a value that does not fit.
        null: Whether null is a value.
    """

    label: str
    convert: Callable[[Any], Any]
    null: bool = False

    def or_null(self) -> Kind:
        """The same kind, with null as one more value."""
        return replace(self, label=f"{self.label} or null", null=True)


@dataclass(frozen=True)
class Argument:
    """One argument of an environment.

    Args:
        name: The keyword.
        kind: Its type and bounds.
        default: Its default; :data:`REQUIRED` when there is none.
        description: One sentence for listings.
    """

    name: str
    kind: Kind
    default: Any = field(default=REQUIRED)
    description: str = ""

    @property
    def required(self) -> bool:
        """Whether a load must give this argument."""
        return self.default is REQUIRED


def text(*, blank: bool = False, rule: Callable[[str], str | None] | None = None) -> Kind:
    """Text, by default not blank; ``rule`` says what is expected of one that does not fit, or None."""

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise _Wrong("expected text", of_type=True)
        if not blank and not value.strip():
            raise _Wrong("expected text that is not blank")
        expected = rule(value) if rule else None
        if expected:
            raise _Wrong(expected)
        return value

    return Kind("str", convert)


def function() -> Kind:
    """Something that can be called, for Python callers."""

    def convert(value: Any) -> Any:
        if not callable(value):
            raise _Wrong("expected something that can be called", of_type=True)
        return value

    return Kind("callable", convert)


def url() -> Kind:
    """An ``http(s)`` URL with a host, without user info or whitespace; a trailing ``/`` is dropped."""

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise _Wrong("expected a URL as text", of_type=True)
        wanted = "expected an http:// or https:// URL with a host, without user:password@ and whitespace"
        if re.search(r"\s", value):
            raise _Wrong(wanted)
        try:
            parts = urlsplit(value)
            port_is_fine = parts.port is None or parts.port > 0
        except ValueError:
            raise _Wrong(wanted) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or not port_is_fine:
            raise _Wrong(wanted)
        return value.rstrip("/")

    return Kind("str", convert)


def flag() -> Kind:
    """True or false, never 0 or 1."""

    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _Wrong("expected true or false", of_type=True)
        return value

    return Kind("bool", convert)


def integer(*, least: int | None = None, most: int | None = None, decimal_text: bool = False) -> Kind:
    """A whole number within bounds; ``decimal_text`` also accepts text such as ``"2000"``."""
    wanted = "expected a whole number" + _bounds(least, most)

    def convert(value: Any) -> int:
        if decimal_text and isinstance(value, str) and re.fullmatch(r"[0-9]+", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _Wrong(wanted, of_type=True)
        if (least is not None and value < least) or (most is not None and value > most):
            raise _Wrong(wanted)
        return value

    return Kind("int", convert)


def number(
    *, above: float | None = None, least: float | None = None, below: float | None = None, most: float | None = None
) -> Kind:
    """A finite number within bounds; a whole number stays an int."""
    wanted = "expected a finite number" + _bounds(least, most, above, below)

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _Wrong(wanted, of_type=True)
        outside = (
            not math.isfinite(value)
            or (above is not None and value <= above)
            or (least is not None and value < least)
            or (below is not None and value >= below)
            or (most is not None and value > most)
        )
        if outside:
            raise _Wrong(wanted)
        return value

    return Kind("float", convert)


def choice(*values: str) -> Kind:
    """One of a few words."""

    def convert(value: Any) -> str:
        wanted = f"expected {' or '.join(repr(known) for known in values)}"
        if not isinstance(value, str):
            raise _Wrong(wanted, of_type=True)
        if value not in values:
            close = did_you_mean(value, values)
            raise _Wrong(f"{wanted}; {close}" if close else wanted)
        return value

    return Kind("str", convert)


def text_list(*, of: Sequence[str] | None = None, item: Callable[[str], str | None] | None = None) -> Kind:
    """A list or tuple of texts; repeats are dropped, the order is kept.

    Args:
        of: The words that may occur.
        item: Says what is wrong with one text, or None.
    """

    def convert(value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            # A list that lost its quotes to the shell is text as well.
            words = [word.strip() for word in value.strip("[] ").split(",")]
            raise _Wrong(f"expected a list, such as {json.dumps(words)}", of_type=True)
        if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(part, str) for part in value):
            raise _Wrong("expected a list of text", of_type=True)
        for part in value:
            if of is not None and part not in of:
                close = did_you_mean(part, of)
                known = f"{part!r} is not one of {', '.join(of)}"
                raise _Wrong(f"{known}; {close}" if close else known)
            problem = item(part) if item else None
            if problem:
                raise _Wrong(problem)
        return tuple(dict.fromkeys(value))

    return Kind("list of str", convert)


def mapping() -> Kind:
    """A JSON object (a TOML table)."""

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _Wrong("expected an object (a TOML table) with text keys", of_type=True)
        return dict(value)

    return Kind("object", convert)


def anything() -> Kind:
    """Any value, for Python callers."""
    return Kind("any", lambda value: value)


def _messages() -> Kind:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list) or not all(isinstance(part, Mapping) and "role" in part for part in value):
            raise _Wrong("expected a list of messages", of_type=True)
        return value

    return Kind("list of messages", convert)


#: Keywords of the Verifiers environment itself, which every environment passes through.
VERIFIERS_ARGUMENTS: tuple[Argument, ...] = (
    Argument("system_prompt", text().or_null(), None, "System message for rows whose prompt has none."),
    Argument("few_shot", _messages().or_null(), None, "Example messages between the system message and a question."),
    Argument("sampling_args", mapping().or_null(), None, "Default sampling arguments of the environment."),
    Argument("timeout_seconds", number(above=0).or_null(), None, "Seconds after which a rollout is ended."),
    Argument("max_seq_len", integer(least=1).or_null(), None, "Longest sequence of one turn, in tokens."),
    Argument("score_rollouts", flag(), True, "Whether rollouts are scored."),
    Argument("pass_threshold", number(), 0.5, "Reward from which a rollout counts as passed."),
)


def check_arguments(
    environment: str,
    arguments: Sequence[Argument],
    given: Mapping[str, Any],
    *,
    known_elsewhere: Callable[[], Iterable[str]] = tuple,
    check: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] = lambda values: (),
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Check the keywords of one load.

    Args:
        environment: The canonical name, for messages.
        arguments: The arguments the environment has, besides those of Verifiers.
        given: The keywords of this load.
        known_elsewhere: Names that other environments have; such a keyword is ignored and reported.
        check: Rules over several values: pairs of the argument at fault and what is expected of it.

    Returns:
        The value of every argument, and the ignored names in the order given.

    Raises:
        UserError: A wrong value (also a ``ValueError``).
        ArgumentTypeError: A wrong type, a missing or an unknown argument (also a ``TypeError``).
    """
    table = {argument.name: argument for argument in (*arguments, *VERIFIERS_ARGUMENTS)}
    mistakes: list[UserError] = []
    ignored: list[str] = []
    values: dict[str, Any] = {}
    for name in given:
        if name in table:
            continue
        if name in set(known_elsewhere()):
            ignored.append(name)
            continue
        hint = did_you_mean(name, table) or f"known arguments are {', '.join(sorted(table))}"
        mistakes.append(_mistake(environment, name, given[name], f"unknown argument; {hint}", of_type=True))
    for argument in table.values():
        if argument.name not in given:
            if argument.required:
                mistakes.append(ArgumentTypeError(f"{environment}: {argument.name} is missing: {argument.description}"))
            else:
                values[argument.name] = argument.default
            continue
        value = given[argument.name]
        if argument.kind.null and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
            values[argument.name] = None
            continue
        try:
            values[argument.name] = argument.kind.convert(value)
        except _Wrong as wrong:
            or_null = " or null" if argument.kind.null else ""
            mistakes.append(
                _mistake(environment, argument.name, value, f"{wrong.expected}{or_null}", of_type=wrong.of_type)
            )
    if not mistakes:
        for name, expected in check(values):
            mistakes.append(_mistake(environment, name, values[name], expected, of_type=False))
    if mistakes:
        # Verifiers shows a load failure as one text, so several mistakes share one line.
        kind = ArgumentTypeError if isinstance(mistakes[0], ArgumentTypeError) else UserError
        raise kind("; ".join(str(mistake) for mistake in mistakes))
    return values, tuple(ignored)


def _mistake(environment: str, name: str, value: Any, expected: str, *, of_type: bool) -> UserError:
    shown = repr(value)
    if len(shown) > _LONGEST_SHOWN_VALUE:
        shown = shown[:_LONGEST_SHOWN_VALUE] + "…"
    kind = ArgumentTypeError if of_type else UserError
    return kind(f"{environment}: {name}={shown}: {expected}")
