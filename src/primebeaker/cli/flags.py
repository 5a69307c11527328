"""How a dataclass field becomes a flag.

Each helper gives the :class:`cyclopts.Parameter` of one field and converts the words the user typed, literally:
no value is evaluated, numbers stay text unless the field is a number.  A conversion that fails is remembered (see
:func:`collecting`) instead of ending the run, so that all mistakes of one command line are reported together.

Example::

    @dataclass(kw_only=True)
    class PreviewOptions(OutputOptions):
        toml: Annotated[Path | None, path("The training TOML.", panel="Input")] = None
        env: Annotated[tuple[str, ...], repeated("NAME=VALUE for the task.", panel="Runtime")] = ()
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from cyclopts import UNSET, Group, Parameter, Token

from primebeaker.errors import Mistakes, UserError, did_you_mean
from primebeaker.json_keys import RepeatedKey, unique_keys

__all__ = [
    "WITHOUT_VALUE",
    "boolean",
    "choice",
    "collecting",
    "integer",
    "number",
    "parameter",
    "path",
    "repeated",
    "text",
]

#: The attribute of a flag's converter that holds what the flag stands for without a value.
WITHOUT_VALUE = "without_value"

_mistakes: ContextVar[Mistakes] = ContextVar("mistakes")
_panels: dict[str, Group] = {}

_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no"})


@contextlib.contextmanager
def collecting() -> Iterator[Mistakes]:
    """Collect the conversion mistakes of the flags parsed inside."""
    mistakes = Mistakes()
    token = _mistakes.set(mistakes)
    try:
        yield mistakes
    finally:
        _mistakes.reset(token)


def text(
    help_text: str, *, panel: str = "Options", default: str | None = None, without_value: str | None = None
) -> Parameter:
    """A flag whose value is the literal text, ``None``, ``1e3`` and the empty string included.

    Args:
        help_text: One sentence.
        panel: The help panel.
        default: How the default is shown.
        without_value: What ``--flag`` alone stands for. Such a flag takes a value only as ``--flag=value``.
    """
    return parameter(help_text, panel, lambda flag, value: value, default=default, without_value=without_value)


def path(help_text: str, *, panel: str = "Options", default: str | None = None) -> Parameter:
    """A path: ``~`` is expanded and relative paths are taken from the current directory; links are not resolved."""

    def convert(flag: str, value: str) -> Path:
        if not value or "\0" in value or "\n" in value:
            raise UserError(f"{flag} = {value!r}: expected a path")
        return Path.cwd() / Path(value).expanduser()

    return parameter(help_text, panel, convert, default=default)


def integer(
    help_text: str,
    *,
    least: int | None = None,
    most: int | None = None,
    panel: str = "Options",
    default: str | None = None,
) -> Parameter:
    """A whole number in decimal digits, within bounds."""

    def convert(flag: str, value: str) -> int:
        bounds = _bounds(least, most)
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            raise UserError(f"{flag} = {value!r}: expected a whole number{bounds}")
        converted = int(value)
        if (least is not None and converted < least) or (most is not None and converted > most):
            raise UserError(f"{flag} = {value}: expected a whole number{bounds}")
        return converted

    return parameter(help_text, panel, convert, default=default)


def number(
    help_text: str,
    *,
    above: float | None = None,
    least: float | None = None,
    panel: str = "Options",
    default: str | None = None,
) -> Parameter:
    """A finite decimal number, within bounds."""

    def convert(flag: str, value: str) -> float:
        bounds = f" above {above:g}" if above is not None else _bounds(least, None)
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
            raise UserError(f"{flag} = {value!r}: expected a number{bounds}")
        converted = float(value)
        too_small = (above is not None and converted <= above) or (least is not None and converted < least)
        if too_small or converted in (float("inf"), float("-inf")):
            raise UserError(f"{flag} = {value}: expected a number{bounds}")
        return converted

    return parameter(help_text, panel, convert, default=default)


def choice(help_text: str, values: Sequence[str], *, panel: str = "Options", default: str | None = None) -> Parameter:
    """One of a few words."""

    def convert(flag: str, value: str) -> str:
        if value not in values:
            raise UserError(f"{flag} = {value!r}: expected {_either(values)}", hint=did_you_mean(value, values))
        return value

    return parameter(f"{help_text} One of: {', '.join(values)}.", panel, convert, default=default)


def boolean(help_text: str, *, name: str, panel: str = "Options") -> Parameter:
    """A switch: ``--x``, ``--x=true|false|1|0|yes|no``, ``--no-x`` and ``--nox``.

    Args:
        help_text: One sentence.
        name: The flag without dashes, needed to spell its negatives.
        panel: The help panel.
    """

    def convert(flag: str, value: str) -> bool:
        lowered = value.lower()
        if lowered not in _TRUE | _FALSE:
            raise UserError(f"{flag} = {value!r}: expected true or false")
        return lowered in _TRUE

    switch = parameter(help_text, panel, convert)
    return Parameter.combine(switch, Parameter(negative=(f"--no-{name}", f"--no{name}")))


def repeated(
    help_text: str,
    *,
    split_commas: bool = False,
    mappings: bool = False,
    panel: str = "Options",
    default: str | None = None,
) -> Parameter:
    """A flag that may be given many times; the order is kept.

    Each value is also accepted as one list: a JSON array or a quoted Python-style list of strings.

    Args:
        help_text: One sentence.
        split_commas: Split each value on commas too.
        mappings: Accept a JSON object as well, each pair becoming ``NAME=VALUE``.
        panel: The help panel.
        default: How the default is shown.
    """

    def convert(flag: str, value: str) -> list[str]:
        values = _listed(flag, value, mappings=mappings)
        if values is not None:
            return values
        return [part.strip() for part in value.split(",")] if split_commas else [value]

    return parameter(help_text, panel, convert, many=True, default=default)


def parameter(
    help_text: str,
    panel: str,
    convert: Callable[[str, str], Any],
    *,
    many: bool = False,
    default: str | None = None,
    without_value: str | None = None,
) -> Parameter:
    """A flag with a conversion of its own.

    Args:
        help_text: One sentence.
        panel: The help panel.
        convert: Makes the value from the flag's name and the words typed; raises :class:`UserError`.
        many: The flag repeats, and ``convert`` gives a list for each time.
        default: How the default is shown.
        without_value: What the flag stands for when it is given without a value.
    """

    def converter(_type: Any, tokens: Sequence[Token]) -> Any:
        converted: list[Any] = []
        for token in tokens:
            if token.value == "" and isinstance(token.implicit_value, bool):
                return token.implicit_value
            try:
                converted.append(convert(token.keyword or "", token.value))
            except UserError as error:
                _mistakes.get().add(error)
        if many:
            return tuple(value for values in converted for value in values)
        # Where pydantic is loaded, cyclopts validates what we return; of a value that is unset it checks the default.
        return converted[-1] if converted else UNSET

    # The pass over the command line, which knows nothing else about a flag's meaning, looks here.
    setattr(converter, WITHOUT_VALUE, without_value)
    return Parameter(
        help=help_text,
        group=_panels.setdefault(panel, Group(panel)),
        converter=converter,
        negative=(),
        show_default=False if default is None else (lambda _value: default),
    )


def _listed(flag: str, value: str, *, mappings: bool) -> list[str] | None:
    """The strings of a JSON array, a Python-style list or a JSON object; None when ``value`` is none of these."""
    stripped = value.strip()
    if not (stripped.startswith("[") or (mappings and stripped.startswith("{"))):
        return None
    try:
        parsed = json.loads(stripped, object_pairs_hook=unique_keys)
    except RepeatedKey as error:
        raise UserError(f"{flag}: {error}", hint="give it once") from None
    except ValueError:
        try:
            parsed = ast.literal_eval(stripped)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if isinstance(parsed, dict) and mappings:
        parsed = [
            f"{name}={item}" if not isinstance(item, bool | dict | list | None) else item
            for name, item in parsed.items()
        ]
    if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
        raise UserError(f"{flag} = {value}: expected a list of strings")
    return [str(item) for item in parsed]


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f" of at least {least}"
    return f" of at most {most}" if most is not None else ""


def _either(values: Sequence[str]) -> str:
    return (
        " or ".join([", ".join(repr(value) for value in values[:-1]), repr(values[-1])])
        if len(values) > 1
        else repr(values[0])
    )
