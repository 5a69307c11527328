"""The one choke point: parse a command line, run its command, print its result, turn every fault into one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from inspect import BoundArguments

from cyclopts import UNSET, App, CycloptsError, MissingArgumentError

from primebeaker.cli.flags import collecting
from primebeaker.cli.output import OutputOptions, Result, print_result
from primebeaker.cli.plain_help import plain_help
from primebeaker.cli.tokens import clean, command_flags
from primebeaker.errors import Mistakes, PrimeBeakerError, UserError, UserErrors, did_you_mean
from primebeaker.redaction import Redactor

__all__ = ["report", "run"]

_HELP = frozenset({"--help", "-h"})


def run(app: App, words: Sequence[str]) -> int:
    """Run one command line.

    Args:
        app: The root command.
        words: What the user typed after the program's name.

    Returns:
        The exit code: 0 done, 2 user mistake, 3 an outside program failed, 130 interrupted, 1 a fault of ours; a
        command may document codes of its own.
    """
    try:
        return _run(app, words)
    except BaseException as error:
        return report(error)


def _run(app: App, words: Sequence[str]) -> int:
    if list(words) == ["--version"]:
        sys.stdout.write(f"{app.version() if callable(app.version) else app.version}\n")
        return 0
    # Words after a command's first flag belong to that flag; only a bare --help is a question.
    asks = any(word in _HELP for word in words)
    chain, apps, rest = app.parse_commands([word for word in words if word not in _HELP])
    command = apps[-1]
    if asks or command.default_command is None:
        if rest and command.default_command is None:
            raise _unknown_command(command, chain, rest[0])
        if sys.stdout.isatty():
            app.help_print(list(chain))
        else:
            sys.stdout.write(plain_help(command, chain))
        return 0
    flags, positional = command_flags(command)
    with collecting() as mistakes:
        # A command whose flags come from elsewhere may know more about a flag it does not have.
        unknown_flag = getattr(command.default_command, "unknown_flag", None)
        cleaned = clean(rest, flags, positional, mistakes, unknown_flag)
        try:
            function, bound, _ = app.parse_args([*chain, *cleaned], exit_on_error=False, print_error=False)
        except MissingArgumentError as error:
            mistakes.add(_missing_word(command, chain, cleaned) or UserError(" ".join(str(error).splitlines()[-1:])))
        except CycloptsError as error:
            mistakes.add(UserError(" ".join(str(error).splitlines()[-1:])))
        else:
            _find_more(command, bound, mistakes)
        mistakes.raise_if_any()
    outcome = function(*bound.args, **bound.kwargs)
    chosen = next((value.format for value in bound.arguments.values() if isinstance(value, OutputOptions)), None)
    if isinstance(outcome, Result):
        print_result(outcome, chosen)
        return outcome.exit_code
    return outcome if isinstance(outcome, int) else 0


def _find_more(command: App, bound: BoundArguments, mistakes: Mistakes) -> None:
    """Add what is wrong beside mistyped flags, where the command can check that without doing anything."""
    check = getattr(command.default_command, "find_more", None)
    if check is not None and mistakes.errors and bound.args:
        options = bound.args[0]
        refused = {field.name: field.default for field in fields(options) if getattr(options, field.name) is UNSET}
        with mistakes.collect():
            check(replace(options, **refused))


def _missing_word(command: App, chain: Sequence[str], cleaned: Sequence[str]) -> UserError | None:
    """The mistake of leaving out positional words; None when it is no such word that is missing."""
    names = [argument.names[0] for argument in command.assemble_argument_collection() if argument.index is not None]
    given = sum(not word.startswith("--") for word in cleaned)
    if given >= len(names):
        return None
    missing = names[given:]
    usage = " ".join(["primebeaker", *chain, *names])
    verb = "is" if len(missing) == 1 else "are"
    return UserError(f"{' and '.join(missing)} {verb} missing", hint=f"write: {usage}")


def _unknown_command(command: App, chain: Sequence[str], word: str) -> UserError:
    names = sorted(name for name in command if not name.startswith("-"))
    place = " ".join(["primebeaker", *chain])
    return UserError(
        f"unknown command {word!r} of {place}", hint=did_you_mean(word, names) or f"{place} has {', '.join(names)}"
    )


def report(error: BaseException) -> int:
    """Write one ``primebeaker: error:`` line a fault to stderr and return the exit code it stands for."""
    redact = Redactor()
    if os.environ.get("PRIMEBEAKER_DEBUG") == "1" and not isinstance(error, SystemExit):
        import traceback

        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return _write([str(error) or "interrupted"], redact, 130)
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, UserErrors):
        return _write([str(part) for part in error.errors], redact, error.exit_code)
    if isinstance(error, PrimeBeakerError):
        return _write([str(error)], redact, error.exit_code)
    kind = type(error).__name__
    return _write([f"internal fault ({kind}: {error}); please rerun with PRIMEBEAKER_DEBUG=1 and report it"], redact, 1)


def _write(lines: Sequence[str], redact: Redactor, code: int) -> int:
    for line in lines:
        sys.stderr.write(f"primebeaker: error: {redact(' '.join(line.splitlines()))}\n")
    sys.stderr.flush()
    return code
