"""Flags of the programs that run inside a task, read with the standard library alone.

The command line's own parser would cost more than these programs do.  The manners are the same: both spellings of a
flag, ``--flag value`` and ``--flag=value``, literal values, all mistakes together, the nearest name for an unknown one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from primebeaker.errors import Mistakes, PrimeBeakerError, UserError, UserErrors, did_you_mean
from primebeaker.redaction import Redactor

__all__ = ["Flag", "parse", "report", "run"]


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        help: One sentence.
        convert: Turns the literal text into a value; raises ``ValueError`` with what was expected.
        default: The value without the flag; a required flag has none.
        required: Whether it must be given.
        many: Whether it may be given several times; the value is a tuple then.
    """

    help: str
    convert: Callable[[str], object] = str
    default: object = None
    required: bool = False
    many: bool = False


def parse(words: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, object]:
    """The values of ``--name`` flags.

    Args:
        words: The words after the command.
        flags: Name with dashes -> flag.

    Raises:
        UserErrors: One line for every mistake.
    """
    mistakes = Mistakes()
    given: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, separator, value = word.partition("=")
        name = name.removeprefix("--").replace("_", "-")
        if not word.startswith("--") or name not in flags:
            hint = did_you_mean(name, flags)
            mistakes.add(
                UserError(f"unexpected word {word!r}", hint=f"did you mean --{hint[14:-2]}?" if hint else None)
            )
            if word.startswith("--") and not separator and rest and not rest[0].startswith("--"):
                rest.pop(0)
            continue
        if not separator:
            if not rest or rest[0].startswith("--"):
                mistakes.add(UserError(f"--{name} needs a value"))
                continue
            value = rest.pop(0)
        given.setdefault(name, []).append(value)
    values = {name: _value(name, flag, given.get(name, []), mistakes) for name, flag in flags.items()}
    mistakes.raise_if_any()
    return values


def _value(name: str, flag: Flag, given: Sequence[str], mistakes: Mistakes) -> object:
    if not given:
        if flag.required:
            mistakes.add(UserError(f"--{name} is required: {flag.help}"))
        return () if flag.many else flag.default
    if len(set(given)) > 1 and not flag.many:
        mistakes.add(UserError(f"--{name} is given twice: {' and '.join(repr(value) for value in given)}"))
    converted = []
    for value in given:
        try:
            converted.append(flag.convert(value))
        except ValueError as error:
            mistakes.add(UserError(f"--{name} = {value!r}: expected {error}"))
    if flag.many:
        return tuple(converted)
    return converted[-1] if converted else flag.default


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A converter for whole numbers."""
    expected = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def convert(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise ValueError(expected)
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError(expected)
        return value

    return convert


def positive(text: str) -> float:
    """A converter for finite numbers above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a number above 0")
    return value


def usage(program: str, commands: Mapping[str, Mapping[str, Flag]]) -> str:
    """The help text."""
    lines = []
    for command, flags in commands.items():
        lines.append(f"{program} {command}".rstrip())
        lines += [f"  --{name:<28} {flag.help}" for name, flag in flags.items()]
    return "\n".join(lines) + "\n"


def report(error: BaseException) -> int:
    """One ``primebeaker: error:`` line a fault on stderr; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    redact = Redactor()
    parts: Sequence[object] = error.errors if isinstance(error, UserErrors) else (error,)
    if not isinstance(error, PrimeBeakerError):
        parts = (f"internal fault ({type(error).__name__}: {error}); please rerun with PRIMEBEAKER_DEBUG=1",)
    for part in parts:
        sys.stderr.write(f"primebeaker: error: {redact(' '.join(str(part).splitlines()))}\n")
    sys.stderr.flush()
    return error.exit_code if isinstance(error, PrimeBeakerError) else 1


def run(main: Callable[[], int]) -> int:
    """Run a program's main function with one-line errors."""
    try:
        return main()
    except (Exception, KeyboardInterrupt) as error:
        return report(error)
